"""Semantic lint of workflows in Argo's format: all errors that Argo reports when it first reads one, and
more.

All findings at once, each with its field. Checks that need the type of every field are in
actions/workflowcheck.

https://argo-workflows.readthedocs.io/en/latest/fields/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from moorage.decide.admission.fields import Path, field_of, mapping, sequence
from moorage.decide.admission.schedules import SCHEDULES
from moorage.decide.evaluation import OBJECT_NODES
from moorage_workflows.decide.workflows import scopes
from moorage_workflows.decide.workflows.findings import Finding, Gathered
from moorage_workflows.decide.workflows.graph.loops import literal_count
from moorage_workflows.decide.workflows.lintsteps import (
    Inline,
    Place,
    check_dag,
    check_steps,
    resolve,
    resolve_named,
)
from moorage_workflows.decide.workflows.linttemplate import (
    PARAMETERS_MAX,
    Surroundings,
    beyond,
    check_budget,
    check_locks,
    check_metrics,
    check_pod_resources,
    check_retry,
    check_template,
    cycle_in,
)
from moorage_workflows.decide.workflows.linttext import (
    check_arguments,
    check_choice,
    check_duration,
    check_expression,
    check_hooks,
    check_names,
    check_supplied,
    check_tags,
    check_whole,
)
from moorage_workflows.decide.workflows.metadata import reserved_keys
from moorage_workflows.decide.workflows.schedules import (
    Every,
    ScheduleError,
    Timetable,
    next_slot,
    parse_schedule,
    parse_timetable,
)
from moorage_workflows.decide.workflows.scopes import Scope, has_tag
from moorage_workflows.decide.workflows.shapes import Fault, faults_of_shape
from moorage_workflows.decide.workflows.templates import (
    Library,
    TemplateKey,
    TemplateMissing,
    joined,
    key_of,
    spec_of,
    steps_of,
    uses_of,
)
from moorage_workflows.model.workflow import CRON_NAME_MAX, NAME_MAX

KINDS = ("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow")
TEMPLATES_MAX = 200  # in Argo v4's CRDs
POD_GC = ("OnPodCompletion", "OnPodSuccess", "OnWorkflowCompletion", "OnWorkflowSuccess")
VOLUME_CLAIM_GC = ("OnWorkflowCompletion", "OnWorkflowSuccess")
CONCURRENCY = ("Allow", "Forbid", "Replace")
_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
_ONE_SECOND = re.compile(r"(?<![0-9])1(\.[0-9]*)?s\s*$")
_LOOKED_AT_FROM = datetime(2000, 1, 1, tzinfo=UTC)  # whether a schedule ever fires does not depend on it


def check(
    document: Mapping[str, Any],
    others: Mapping[TemplateKey, Mapping[str, Any]] | None = None,
    *,
    is_run: bool = False,
    knows_others: bool = True,
) -> tuple[Finding, ...]:
    """All findings about one document that `normalise` made.

    `others`: WorkflowTemplates. `knows_others`: `others` is complete; if it is not, or None, references to
    unknown templates are warnings. `is_run`: the Workflow is about to start, so its parameters must have
    values. Never raises, for any document; a document of another kind has one finding.
    """
    out = Gathered()
    kind = document.get("kind")
    if kind not in KINDS:
        out.error("shape", ("kind",), f"must be one of {', '.join(KINDS)}", kind or "")
        return tuple(out.items)
    _check_names(out, document, str(kind))
    spec = document.get("spec")
    if not isinstance(spec, Mapping):
        out.error("shape", ("spec",), "is required, and must be a mapping")
        return tuple(out.items)
    path: Path = ("spec",)
    if kind == "CronWorkflow":
        _check_cron(out, spec)
        path = ("spec", "workflowSpec")
        if not isinstance(spec.get("workflowSpec"), Mapping):
            out.error("shape", path, "is required, and must be a mapping")
            return tuple(out.items)
    knows_others = knows_others and others is not None
    is_run = is_run or kind == "CronWorkflow"
    _Spec(out, document, path, others or {}, knows_others=knows_others, is_run=is_run).check()
    return tuple(out.items)


def _check_names(out: Gathered, document: Mapping[str, Any], kind: str) -> None:
    metadata = mapping(document.get("metadata"))
    name = metadata.get("name")
    limit = CRON_NAME_MAX if kind == "CronWorkflow" else NAME_MAX
    if name in (None, ""):
        if not metadata.get("generateName"):
            out.warning("name", ("metadata", "name"), "is required (or generateName), unless a command gives it")
        return
    if not isinstance(name, str) or not _OBJECT_NAME.fullmatch(name):
        message = "must be lower case letters, digits, '-' and '.', and begin and end with a letter or digit"
        out.warning("name", ("metadata", "name"), message, name)
    elif len(name) > limit:
        out.error("name", ("metadata", "name"), f"has {len(name)} characters; a {kind} may have {limit}", name)


class _Spec:
    """Checks one workflow spec, of any kind of document."""

    __slots__ = ("_document", "_is_run", "_is_template", "_knows_others", "_others", "_out", "_own", "_path")

    def __init__(
        self,
        out: Gathered,
        document: Mapping[str, Any],
        path: Path,
        others: Mapping[TemplateKey, Mapping[str, Any]],
        *,
        knows_others: bool,
        is_run: bool,
    ) -> None:
        self._out, self._document, self._path, self._others = out, document, path, others
        self._own = spec_of(document)
        self._is_run, self._knows_others = is_run, knows_others
        self._is_template = str(document.get("kind")).endswith("Template")

    def check(self) -> None:
        if not self._has_shape():
            return
        spec = self._joined()
        if spec is not None:
            self._check_fields(spec)
            self._check_templates(spec)
            self._check_loops(spec)

    def _check_loops(self, spec: Mapping[str, Any]) -> None:
        templates = [mapping(template) for template in sequence(spec.get("templates"))]
        count = sum(literal_count(step) for template in templates for _, step in steps_of(template))
        if count > OBJECT_NODES:
            words = f"have loops of {count:,} items; at most {OBJECT_NODES:,} nodes are allowed in one workflow"
            self._out.error("limit", (*self._path, "templates"), words)

    def _has_shape(self) -> bool:
        """Whether all fields have the expected types, which later checks assume. Wrong fields become findings."""
        faults = tuple(faults_of_shape(self._own, self._path))
        for fault in faults:
            self._out.error("shape", fault.path, f"must be {fault.must}")
        other_faults = [(key, fault) for key, row in self._others.items() for fault in _faults_of_other(row)]
        for key, fault in other_faults:
            message = f"in {key.kind} {key.name}, {field_of(fault.path)}: must be {fault.must}"
            self._out.error("shape", self._path, message)
        return not faults and not other_faults

    def _joined(self) -> Mapping[str, Any] | None:
        """The spec merged with that of its WorkflowTemplate; None if that is not available."""
        reference = self._own.get("workflowTemplateRef")
        if reference is None:
            return self._own
        at = (*self._path, "workflowTemplateRef")
        if self._own.get("templates"):
            self._out.error(
                "template", (*self._path, "templates"), "cannot be used together with workflowTemplateRef"
            )
            return None
        name = mapping(reference).get("name")
        if not isinstance(name, str) or not name:
            self._out.error("template", (*at, "name"), "is required")
            return None
        key = key_of(reference)
        if key is None or (key not in self._others and not self._knows_others):
            self._out.warning("reference", at, "is not checked: its document is not available", name)
            return None
        try:
            return spec_of(joined({"spec": self._own}, self._others.get(key)))
        except TemplateMissing as error:
            self._out.error("template", (*at, "name"), error.problem)
            return None

    def _check_fields(self, spec: Mapping[str, Any]) -> None:
        out, path = self._out, self._path
        without_value = "" if self._is_template else "error" if self._is_run else "warning"
        check_arguments(out, spec.get("arguments"), (*path, "arguments"), values=without_value)
        parameters = sequence(mapping(spec.get("arguments")).get("parameters"))
        if len(parameters) > PARAMETERS_MAX:
            at = (*path, "arguments", "parameters")
            out.warning("limit", at, beyond(len(parameters), "parameters", PARAMETERS_MAX))
        check_hooks(out, spec, path)
        pod_gc = mapping(spec.get("podGC"))
        check_choice(out, pod_gc.get("strategy"), (*path, "podGC", "strategy"), POD_GC)
        check_duration(out, pod_gc.get("deleteDelayDuration"), (*path, "podGC", "deleteDelayDuration"))
        selector = mapping(pod_gc.get("labelSelector"))
        for index, entry in enumerate(sequence(selector.get("matchExpressions"))):
            at = (*path, "podGC", "labelSelector", "matchExpressions", index, "operator")
            check_choice(out, mapping(entry).get("operator"), at, _SELECTOR_OPERATORS)
            for field in ("key", "operator"):
                if not mapping(entry).get(field):
                    out.error("shape", (*at[:-1], field), "is required")
        strategy = mapping(spec.get("volumeClaimGC")).get("strategy")
        check_choice(out, strategy, (*path, "volumeClaimGC", "strategy"), VOLUME_CLAIM_GC)
        check_whole(out, spec.get("parallelism"), (*path, "parallelism"), least=1)
        check_whole(out, spec.get("activeDeadlineSeconds"), (*path, "activeDeadlineSeconds"))
        for field in ("priority", "podPriority"):
            check_whole(out, spec.get(field), (*path, field), least=-(2**31))
        for field in ("secondsAfterCompletion", "secondsAfterSuccess", "secondsAfterFailure"):
            check_whole(out, mapping(spec.get("ttlStrategy")).get(field), (*path, "ttlStrategy", field))
        check_retry(out, spec.get("retryStrategy"), (*path, "retryStrategy"))
        check_locks(out, spec.get("synchronization"), (*path, "synchronization"))
        check_metrics(out, spec.get("metrics"), (*path, "metrics"))
        check_pod_resources(out, spec.get("podResources"), (*path, "podResources"))
        check_budget(out, spec.get("podDisruptionBudget"), (*path, "podDisruptionBudget"))
        for place in reserved_keys(spec):
            out.warning("support", (*path, *place), "is not set: only the services write it")
        for name, source in mapping(mapping(spec.get("workflowMetadata")).get("labelsFrom")).items():
            at = (*path, "workflowMetadata", "labelsFrom", str(name), "expression")
            check_expression(out, mapping(source).get("expression"), at)
        check_names(out, spec.get("volumes"), (*path, "volumes"))

    def _check_templates(self, spec: Mapping[str, Any]) -> None:
        out = self._out
        # templates of the spec, and those that it can reach in other documents
        templates = sequence(spec.get("templates"))
        library = Library({"spec": {**spec, "templateDefaults": None}}, self._others)
        elsewhere = [
            library.find({"template": name}, key.scope).template
            for key in self._others
            for name in library.templates(key.scope)
        ]
        # the metadata of runs decides which variables exist
        metadata = mapping(self._document.get("metadata"))
        if self._document.get("kind") == "CronWorkflow":
            metadata = mapping(mapping(self._document.get("spec")).get("workflowMetadata"))
        seen = scopes.of_workflow(spec, metadata, is_template=self._is_template)
        # exports of all templates are visible everywhere
        every = [template for template in templates if isinstance(template, Mapping)]
        uses = [use for template in every for use in uses_of(template)]
        inlines = [use.holder["inline"] for use in uses if mapping(use.holder.get("inline"))]
        seen = scopes.with_exports(seen, [*every, *inlines, *elsewhere])
        # the place and the surroundings are the same for all templates
        place = Place(library=library, scope="", seen=seen, knows_others=self._knows_others)
        around = Surroundings(
            defaults=mapping(spec.get("templateDefaults")),
            volumes=frozenset(
                [*scopes.names_of(spec.get("volumes"))]
                + [
                    str(mapping(mapping(claim).get("metadata")).get("name"))
                    for claim in sequence(spec.get("volumeClaimTemplates"))
                ]
            ),
            missing_volume_is_error=not self._is_template,
        )
        # the entrypoint and the list as a whole
        self._check_entry(spec, place)
        gathered = Gathered()
        at: Path = (*self._path, "templates")
        check_names(gathered, templates, at)
        if len(templates) > TEMPLATES_MAX:
            gathered.warning("limit", at, beyond(len(templates), "templates", TEMPLATES_MAX))
        if not templates and not self._is_template and "workflowTemplateRef" not in self._own:
            gathered.error("template", at, "must have at least one template")
        # each template, then cycles between them
        for index, template in enumerate(templates):
            check_one(gathered, mapping(template), (*at, index), place, around)
        _check_recursion(gathered, every, at)
        # findings of joined fields move to the fields of this document
        for finding in gathered.items:
            out.items[self._moved(finding)] = None

    def _moved(self, finding: Finding) -> Finding:
        """Move a finding in the WorkflowTemplate that the spec refers to, to the field `workflowTemplateRef`."""
        if "workflowTemplateRef" not in self._own:
            return finding
        name = mapping(self._own["workflowTemplateRef"]).get("name")
        message = f"in WorkflowTemplate {name}, {field_of(finding.path)}: {finding.message}"
        return replace(finding, path=(*self._path, "workflowTemplateRef"), message=message)

    def _check_entry(self, spec: Mapping[str, Any], place: Place) -> None:
        out, path = self._out, self._path
        arguments = spec.get("arguments")
        entrypoint = spec.get("entrypoint")
        if not entrypoint and not self._is_template:
            names = ", ".join(place.library.templates("")) or "none"
            out.error("template", (*path, "entrypoint"), f"is required; templates: {names}")
        for field in ("entrypoint", "onExit"):
            name = spec.get(field)
            if not isinstance(name, str) or not name or has_tag(name):
                continue
            resolved = resolve_named(out, name, (*path, field), place)
            if resolved is not None and not self._is_template:
                check_supplied(
                    out, arguments, resolved.template, (*path, "arguments"), name=resolved.name, is_entry=True
                )
        for name, hook in mapping(spec.get("hooks")).items():
            at = (*path, "hooks", str(name))
            resolved = resolve(out, mapping(hook), at, place)
            given = mapping(hook).get("arguments")
            if resolved is not None and not self._is_template:
                given = arguments if given is None else given
                check_supplied(
                    out, given, resolved.template, (*at, "arguments"), name=resolved.name, is_entry=True
                )
        # those of pods are replaced again for each step, with the variables of the step
        of_pods = place.seen.with_names((), tuple(root for root in scopes.ROOTS if root != "workflow."))
        fields = (
            "arguments",
            "hooks",
            "volumeClaimTemplates",
            "workflowMetadata",
            "volumes",
            "nodeSelector",
            "podMetadata",
        )
        for field in fields:
            is_of_pods = field in ("volumes", "nodeSelector", "podMetadata")
            check_tags(out, spec.get(field), (*path, field), of_pods if is_of_pods else place.seen)


def _faults_of_other(document: Mapping[str, Any]) -> Iterator[Fault]:
    spec = document.get("spec")
    if isinstance(spec, Mapping):
        yield from faults_of_shape(spec, ("spec",))


def check_one(out: Gathered, template: Mapping[str, Any], path: Path, place: Place, around: Surroundings) -> None:
    """Check one template with its steps and its inline templates."""
    waiting = [Inline(template=template, path=path, seen=place.seen)]
    while waiting:
        item = waiting.pop()
        kind = check_template(out, item.template, item.path, around)
        seen = scopes.of_template(item.template, item.seen)
        inside = replace(place, seen=seen)
        if kind == "steps":
            waiting += check_steps(out, item.template, item.path, inside)
        elif kind == "dag":
            waiting += check_dag(out, item.template, item.path, inside)
        else:
            _check_leaf_tags(out, item.template, item.path, seen)


def _check_leaf_tags(out: Gathered, template: Mapping[str, Any], path: Path, seen: Scope) -> None:
    def why(tag: str) -> str:
        root = tag.split(".")[0]
        if root in ("steps", "tasks", "item"):
            return f"a template sees its own inputs, not {root}; pass the value as an argument"
        return ""

    for field, value in template.items():
        check_tags(out, value, (*path, field), scopes.of_metrics(seen) if field == "metrics" else seen, why)


def _check_recursion(out: Gathered, templates: list[Mapping[str, Any]], path: Path) -> None:
    """Report templates that call themselves without any condition in between."""
    graph: dict[str, list[str]] = {}
    for template in templates:
        name = template.get("name")
        if isinstance(name, str):
            graph.setdefault(name, [str(called) for called in _always_called(template)])
    cycle = cycle_in(graph)
    if cycle:
        index = next(index for index, template in enumerate(templates) if template.get("name") == cycle[0])
        message = f"calls itself without end: {' -> '.join(cycle)}; put a `when` on one of the steps"
        out.error("recursion", (*path, index), message)


def _always_called(template: Mapping[str, Any]) -> Iterator[str]:
    """Yield the templates of the same list that every run of a template calls."""
    for _, step in steps_of(template):
        if (
            step.get("when")
            or step.get("withParam")
            or step.get("withSequence")
            or "." in str(step.get("depends"))
        ):
            continue
        inline = step.get("inline")
        if isinstance(inline, Mapping):
            yield from _always_called(inline)
        elif isinstance(step.get("template"), str) and "templateRef" not in step:
            yield step["template"]


# --- CronWorkflow


def _check_cron(out: Gathered, spec: Mapping[str, Any]) -> None:
    schedules, timezone = spec.get("schedules"), spec.get("timezone")
    at: Path = ("spec", "schedules")
    if not isinstance(schedules, list) or not schedules:
        out.error("cron", at, "must be a list with at least one schedule, such as '0 8 * * 1-5'")
        schedules = []
    if len(schedules) > SCHEDULES:
        out.error("cron", at, f"has {len(schedules):,} schedules; at most {SCHEDULES} are allowed")
        schedules = []
    if timezone not in (None, ""):
        try:
            parse_timetable(["* * * * *"], str(timezone), anchor=_LOOKED_AT_FROM)
        except ScheduleError as error:
            out.error("cron", ("spec", "timezone"), error.message, timezone)
    for index, text in enumerate(schedules):
        try:
            parsed = parse_schedule(str(text))
        except ScheduleError as error:
            out.error("cron", (*at, index), error.message, text)
            continue
        if timezone and re.match(r"\s*(CRON_)?TZ=", str(text)):
            out.error("cron", (*at, index), "names a time zone, and spec.timezone does too; use one of them", text)
        timetable = Timetable(schedules=(parsed,), anchor=_LOOKED_AT_FROM)
        if next_slot(timetable, _LOOKED_AT_FROM) is None:
            out.error("cron", (*at, index), "never comes: this day does not exist", text)
        elif isinstance(parsed, Every) and parsed.seconds == 1 and not _ONE_SECOND.search(str(text)):
            out.warning("cron", (*at, index), "comes every second: a shorter interval is rounded up to 1s", text)
    check_choice(out, spec.get("concurrencyPolicy"), ("spec", "concurrencyPolicy"), CONCURRENCY)
    check_whole(out, spec.get("startingDeadlineSeconds"), ("spec", "startingDeadlineSeconds"))
    stop = mapping(spec.get("stopStrategy"))
    check_expression(out, stop.get("expression"), ("spec", "stopStrategy", "expression"))
