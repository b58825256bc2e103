"""Manifests as text → their violations of the guardrails, with the line of each field.

A cluster is not asked unless its facts are given. Files may have any content: unreadable documents, and objects
that are not of Kubernetes, are findings too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml
from msgspec import Struct, field
from msgspec.structs import replace

from moorage.decide.admission.fields import Path, field_of, mapping, sequence
from moorage.decide.admission.findings import Finding
from moorage.decide.admission.gpufacts import Facts
from moorage.decide.admission.rulebook import FIXES, judge_workload
from moorage.decide.admission.shape import misshapen
from moorage.decide.admission.templates import templates_of
from moorage.decide.tools import podsecurity
from moorage.decide.tools.runfiles import is_run_file, job_of_run_file, run_file_finding
from moorage.decide.tools.targetrules import CHECKS, Peaks, TargetFinding, target_findings
from moorage.decide.tools.targets import Place
from moorage.decide.tools.yamledits import Edit, nodes_of, patches_of
from moorage.model.policy import Policy
from moorage.model.tenant import is_reserved
from moorage_kube.errors import DocumentError
from moorage_kube.podsecurity import BASELINE
from moorage_kube.resources import Obj
from moorage_kube.yamldocuments import NodeLoader, check_yaml

BYTES_MAX = 64 * 1024 * 1024  # of one file
EXTENSIONS = (".yaml", ".yml", ".json")

# kind → the API version whose objects are judged, and the versions it had before
API_VERSIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "Pod": ("v1", ()),
    "ReplicationController": ("v1", ()),
    "Job": ("batch/v1", ("extensions/v1beta1",)),
    "CronJob": ("batch/v1", ("batch/v1beta1", "batch/v2alpha1")),
    "Deployment": ("apps/v1", ("apps/v1beta1", "apps/v1beta2", "extensions/v1beta1")),
    "ReplicaSet": ("apps/v1", ("apps/v1beta2", "extensions/v1beta1")),
    "StatefulSet": ("apps/v1", ("apps/v1beta1", "apps/v1beta2")),
    "DaemonSet": ("apps/v1", ("apps/v1beta2", "extensions/v1beta1")),
    "Workflow": ("argoproj.io/v1alpha1", ()),
    "WorkflowTemplate": ("argoproj.io/v1alpha1", ()),
    "ClusterWorkflowTemplate": ("argoproj.io/v1alpha1", ()),
    "CronWorkflow": ("argoproj.io/v1alpha1", ()),
}


class LintFinding(Struct, frozen=True, kw_only=True):
    """One finding in a file. `line` counts from 1; `level` is warn, fill (admission would write it) or deny.

    Of a target: its name, where its rule was read, and the edit that fixes it, where the text allows one.
    """

    file: str
    line: int
    rule: str
    level: str
    message: str
    field: str = ""
    value: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    target: str = ""
    source: str = ""
    edit: Edit | None = None
    document: int = 0  # which one of the file, from 0

    @property
    def fix(self) -> str:
        """The action to take; empty where the message says it."""
        if self.rule in CHECKS:
            return f"see {self.source}"
        return podsecurity.FIX if self.rule == podsecurity.RULE else FIXES.get(self.rule, "")


class Report(Struct, frozen=True, kw_only=True):
    """The result of one run over some files."""

    findings: tuple[LintFinding, ...] = ()
    judged: int = 0  # objects with pods
    skipped: int = 0  # other objects

    @property
    def denied(self) -> bool:
        return any(finding.level == "deny" for finding in self.findings)


class _File(Struct, kw_only=True):
    name: str
    policy: Policy
    facts: Facts | None
    away: tuple[Obj, ...]
    pod_security: str
    places: Sequence[Place]
    peaks: Peaks
    has_guardrails: bool
    text: str = ""
    document: int = -1
    nodes: Sequence[Any] = ()  # as they were composed: reading a document puts its merge keys in place
    findings: list[LintFinding] = field(default_factory=list)
    judged: int = 0
    skipped: int = 0


def lint(
    texts: Iterable[tuple[str, str]],
    policy: Policy | None = None,
    *,
    facts: Facts | None = None,
    away: tuple[Obj, ...] = (),
    pod_security: str = BASELINE,
    places: Sequence[Place] = (),
    peaks: Peaks | None = None,
    has_guardrails: bool = True,
) -> Report:
    """Judge (file name, text) pairs; without a policy each rule has its default level. Never raises, for any
    texts.

    `pod_security`: the level of the namespace that the pods are for. `places`: targets to judge by as well, with
    `peaks` of earlier runs; without `has_guardrails`, by these only.
    """
    findings: list[LintFinding] = []
    judged = skipped = 0
    for name, text in texts:
        file = _File(
            name=name,
            policy=policy or Policy(),
            facts=facts,
            away=away,
            pod_security=pod_security,
            places=places,
            peaks=peaks or Peaks(),
            has_guardrails=has_guardrails,
            text=text,
        )
        _lint_file(file, text)
        findings += sorted(file.findings, key=lambda finding: finding.line)
        judged, skipped = judged + file.judged, skipped + file.skipped
    return Report(findings=tuple(findings), judged=judged, skipped=skipped)


def _lint_file(file: _File, text: str) -> None:
    try:
        check_yaml(text, bytes_max=BYTES_MAX)
    except DocumentError as error:
        _unreadable(file, f"is not valid YAML: {error.message}", error.line or 1)
        return
    if file.places:
        file.nodes = nodes_of(text)
    loader = NodeLoader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            file.document += 1
            try:
                document = loader.construct_document(node)
            except (yaml.YAMLError, ValueError, TypeError) as error:
                _unreadable(file, *_problem_of(error, node.start_mark.line + 1))
                continue
            if document is not None:
                for line, message in repeated_keys(node):
                    _unreadable(file, message, line, "warn")
                _lint_document(file, document, node, ())
    finally:
        loader.dispose()


def _lint_document(file: _File, document: Any, node: Any, path: Path) -> None:
    if not isinstance(document, dict):
        message = f"is not a Kubernetes object but {'a list' if isinstance(document, list) else 'a plain value'}"
        _add(file, node, path, Finding("shape", path, "", message), "deny", {})
        return
    kind, version = document.get("kind"), document.get("apiVersion")
    if file.places and is_run_file(document):
        file.judged += 1
        for place in file.places:
            for finding in target_findings("Job", job_of_run_file(document), place, file.peaks):
                _add_target(file, node, path, run_file_finding(finding), place, document)
        return
    for key, value in (("apiVersion", version), ("kind", kind)):
        if not isinstance(value, str) or not value:
            _add(
                file, node, path, Finding("shape", (key,), "", "must be a string, and is needed"), "deny", document
            )
    if not isinstance(kind, str) or not isinstance(version, str):
        return
    if kind == "List" and version == "v1":
        for index, item in enumerate(sequence(document.get("items"))):
            _lint_document(file, item, node, (*path, "items", index))
        return
    now, before = API_VERSIONS.get(kind, ("", ()))
    if version in before:
        message = f"is no longer served; write {now}"
        _add(file, node, path, Finding("shape", ("apiVersion",), version, message), "deny", document)
    elif version != now and (now or next(templates_of(kind, document), None) is None):
        file.skipped += 1
        return
    file.judged += 1
    wrong = list(misshapen(kind, document))
    for place in file.places:
        for finding in target_findings(kind, document, place, file.peaks):
            _add_target(file, node, path, finding, place, document)
    if not file.has_guardrails:
        for item in wrong:
            _add(file, node, path, item, "deny", document)
        return
    # values that admission would fill in count as set, unless it cannot write them
    judgement = judge_workload(kind, document, file.policy, facts=file.facts, away=file.away, fill=not wrong)
    refused: list[Finding] = []
    if not is_reserved(_namespace(document)):
        refused = list(podsecurity.refused_by_tenants(kind, document, file.pod_security))
    for level, some in (
        ("deny", wrong),
        ("deny", refused),
        ("deny", judgement.denied),
        ("fill", judgement.filled),
        ("warn", judgement.warned),
    ):
        for item in some:
            _add(file, node, path, item, level, document)


def _add(file: _File, node: Any, path: Path, finding: Finding, level: str, document: Mapping[Any, Any]) -> None:
    meta = mapping(document.get("metadata"))
    file.findings.append(
        LintFinding(
            file=file.name,
            line=line_of(node, (*path, *finding.path)),
            rule=finding.rule,
            level=level,
            message=finding.message,
            field=field_of((*path, *finding.path)),
            value=finding.value,
            kind=str(document.get("kind") or ""),
            name=str(meta.get("name") or meta.get("generateName") or ""),
            namespace=_namespace(document),
        )
    )


def _add_target(
    file: _File,
    node: Any,
    path: Path,
    target_finding: TargetFinding | None,
    place: Place,
    document: Mapping[Any, Any],
) -> None:
    if target_finding is None:
        return
    _add(file, node, path, target_finding.finding, target_finding.level, document)
    edit = target_finding.edit
    if edit is not None:
        edit = replace(edit, path=(*path, *edit.path))
        if not patches_of(file.text, file.nodes[file.document], edit):
            edit = None
    file.findings[-1] = replace(
        file.findings[-1],
        target=place.target.name,
        source=target_finding.source,
        edit=edit,
        document=file.document,
    )


def _namespace(document: Mapping[Any, Any]) -> str:
    return str(mapping(document.get("metadata")).get("namespace") or "")


def line_of(node: Any, path: Path) -> int:
    """The line of the field. If it does not exist: the line of the innermost existing field around it."""
    line = node.start_mark.line
    for step in path:
        if isinstance(node, yaml.MappingNode) and isinstance(step, str):
            for key, value in reversed(node.value):
                if isinstance(key, yaml.ScalarNode) and key.value == step:
                    line, node = key.start_mark.line, value
                    break
            else:
                break
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line
        else:
            break
    return int(line) + 1


def repeated_keys(root: Any) -> Iterator[tuple[int, str]]:
    """A key that occurs twice in one mapping, with its line: parsers silently drop all but the last."""
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        elif isinstance(node, yaml.MappingNode):
            first: dict[str, int] = {}
            for key, value in node.value:
                waiting.append(value)
                if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                    continue
                line = key.start_mark.line + 1
                if key.value in first:
                    yield (
                        line,
                        f"the key {key.value!r} occurs here and in line {first[key.value]}; only this one counts",
                    )
                first.setdefault(key.value, line)


def _unreadable(file: _File, message: str, line: int, level: str = "deny") -> None:
    file.findings.append(LintFinding(file=file.name, line=line, rule="yaml", level=level, message=message))


def _problem_of(error: Exception, line: int = 1) -> tuple[str, int]:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        return f"is not valid YAML: {problem}", mark.line + 1 if mark is not None else line
    return f"is not valid YAML: {' '.join(str(error).split())}", line
