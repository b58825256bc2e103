"""Find the template that a step refers to, and build one document with all that a run needs.

A *scope* is a list of templates in which names are looked up: "" is the workflow's own, "name" that of a
WorkflowTemplate and "cluster/name" that of a ClusterWorkflowTemplate.

https://argo-workflows.readthedocs.io/en/latest/workflow-templates/
https://argo-workflows.readthedocs.io/en/latest/template-defaults/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from moorage.decide.admission.fields import Path, field_of, mapping, sequence
from moorage_kube.errors import MoorageError
from moorage_kube.resources import Obj
from moorage_workflows.decide.workflows.merging import merged_values

STORED = "moorageTemplates"  # the field of a stored document: scope → list of templates
# types of templates, in the order in which Argo looks for them
TEMPLATE_TYPES = (
    "container", "containerSet", "steps", "dag", "script", "resource", "data", "suspend", "http", "plugin",
)  # fmt: skip
POD_TYPES = frozenset(("container", "containerSet", "script", "resource", "data"))
LEAF_TYPES = POD_TYPES | {"http", "plugin"}  # as Argo has it: suspend is no leaf
TEMPLATE_LABEL = "workflows.argoproj.io/workflow-template"  # on a Workflow: the name in its workflowTemplateRef
CLUSTER_TEMPLATE_LABEL = "workflows.argoproj.io/cluster-workflow-template"
_CLUSTER = "cluster/"


class TemplateKey(NamedTuple):
    """The name of a WorkflowTemplate, or with `cluster` of a ClusterWorkflowTemplate."""

    cluster: bool
    name: str

    @property
    def scope(self) -> str:
        return (_CLUSTER if self.cluster else "") + self.name

    @property
    def kind(self) -> str:
        return "ClusterWorkflowTemplate" if self.cluster else "WorkflowTemplate"

    @classmethod
    def of_scope(cls, scope: str) -> TemplateKey:
        """Return the key of a scope, the inverse of `scope`. A name contains no slash."""
        return cls(scope.startswith(_CLUSTER), scope.removeprefix(_CLUSTER))


class TemplateMissing(MoorageError):
    """A template that a document names does not exist. `path`: the field that names it; `name`: its value."""

    def __init__(self, path: Path, name: str, message: str, *, hint: str | None = None) -> None:
        field = field_of(path)
        super().__init__(f"{field}: {message}" if field else message, hint=hint, field=field)
        self.path = path
        self.name = name
        self.problem = message  # without the path


class Resolved(Struct, frozen=True, kw_only=True):
    """A template with the workflow's defaults, and the scope of the names inside it.

    `name`: "" for an inline template.
    """

    template: Mapping[str, Any]
    scope: str
    name: str

    @property
    def type(self) -> str:
        """The type of the template, one of TEMPLATE_TYPES; "" if it has none."""
        return type_of(self.template)


def type_of(template: Mapping[str, Any]) -> str:
    """Return the type of a template, one of TEMPLATE_TYPES; "" if it has none."""
    return next((kind for kind in TEMPLATE_TYPES if template.get(kind) is not None), "")


def key_of(reference: Any) -> TemplateKey | None:
    """The key of a `templateRef` or `workflowTemplateRef`; None where its name is missing or has tags."""
    name = mapping(reference).get("name")
    if not isinstance(name, str) or not name or "{{" in name:
        return None
    return TemplateKey(mapping(reference).get("clusterScope") is True, name)


def spec_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the workflow's spec of any of Argo's kinds, including templates and CronWorkflows."""
    spec = mapping(document.get("spec"))
    return mapping(spec.get("workflowSpec")) if document.get("kind") == "CronWorkflow" else spec


# --- references of a document


class Use(NamedTuple):
    """A reference to a template: a step, a task or a hook. `holder` has template, templateRef or inline."""

    path: Path
    holder: Mapping[str, Any]


def uses_of(template: Mapping[str, Any], path: Path = ()) -> Iterator[Use]:
    """Yield every reference from a template to another, including those in inline templates."""
    for at, holder in steps_of(template, path):
        yield Use(at, holder)
        yield from _hooks_of(holder, at)
        inline = holder.get("inline")
        if isinstance(inline, Mapping):
            yield from uses_of(inline, (*at, "inline"))


def steps_of(template: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the steps or tasks of a template with their paths."""
    for group_index, group in enumerate(sequence(template.get("steps"))):
        for index, step in enumerate(sequence(group)):
            if isinstance(step, Mapping):
                yield (*path, "steps", group_index, index), step
    for index, task in enumerate(sequence(mapping(template.get("dag")).get("tasks"))):
        if isinstance(task, Mapping):
            yield (*path, "dag", "tasks", index), task


def uses_of_spec(spec: Mapping[str, Any], path: Path = ("spec",)) -> Iterator[Use]:
    """Yield every reference to a template in a workflow's spec, including its entrypoint and hooks."""
    for field in ("entrypoint", "onExit"):
        if isinstance(spec.get(field), str) and spec[field]:
            yield Use((*path, field), {"template": spec[field]})
    yield from _hooks_of(spec, path, on_exit=False)
    for index, template in enumerate(sequence(spec.get("templates"))):
        if isinstance(template, Mapping):
            yield from uses_of(template, (*path, "templates", index))


def _hooks_of(holder: Mapping[str, Any], path: Path, *, on_exit: bool = True) -> Iterator[Use]:
    if on_exit and isinstance(holder.get("onExit"), str) and holder["onExit"]:
        yield Use((*path, "onExit"), {"template": holder["onExit"]})
    for name, hook in mapping(holder.get("hooks")).items():
        if isinstance(hook, Mapping):
            yield Use((*path, "hooks", str(name)), hook)


def references(document: Mapping[str, Any]) -> set[TemplateKey]:
    """Return the WorkflowTemplates that a document of any of Argo's kinds refers to directly.

    For indirect references see `missing`.
    """
    spec = spec_of(document)
    keys = {key_of(spec.get("workflowTemplateRef"))}
    keys |= {key_of(use.holder.get("templateRef")) for use in uses_of_spec(spec)}
    return {key for key in keys if key is not None}


def missing(document: Mapping[str, Any], others: Mapping[TemplateKey, Mapping[str, Any]]) -> set[TemplateKey]:
    """Return the WorkflowTemplates that a document refers to, directly or indirectly, and that `others` lacks."""
    seen: set[TemplateKey] = set()
    waiting = list(references(document))
    while waiting:
        key = waiting.pop()
        if key not in seen:
            seen.add(key)
            waiting += references(others[key]) if key in others else ()
    return seen - others.keys()


# --- merging


def merged(workflow: Mapping[str, Any], template: Mapping[str, Any] | None = None) -> Obj:
    """A Workflow as it runs: `joined`, and with templateDefaults in every own template."""
    document = joined(workflow, template)
    spec = mapping(document.get("spec"))
    defaults = spec.get("templateDefaults")
    if "templates" in spec and isinstance(defaults, Mapping):
        templates = [
            with_defaults(template, defaults) if isinstance(template, Mapping) else template
            for template in sequence(spec["templates"])
        ]
        document["spec"] = dict(spec) | {"templates": templates}
    return document


def joined(workflow: Mapping[str, Any], template: Mapping[str, Any] | None = None) -> Obj:
    """A Workflow merged over the spec of its WorkflowTemplate; the Workflow wins, parameter by parameter.

    `template`: the template in `spec.workflowTemplateRef`, not used without that field. The reference
    becomes a label. Raises TemplateMissing when `template` is needed and not given.
    """
    spec = dict(mapping(workflow.get("spec")))
    document = dict(workflow)
    reference = spec.pop("workflowTemplateRef", None)
    if isinstance(reference, Mapping):
        name, is_cluster = str(reference.get("name") or ""), reference.get("clusterScope") is True
        if template is None:
            kind = TemplateKey(is_cluster, name).kind
            raise TemplateMissing(("spec", "workflowTemplateRef", "name"), name, f"no {kind} is named {name!r}")
        spec = _joined(spec, mapping(template.get("spec")))
        metadata = dict(mapping(workflow.get("metadata")))
        label = CLUSTER_TEMPLATE_LABEL if is_cluster else TEMPLATE_LABEL
        metadata["labels"] = {**mapping(metadata.get("labels")), label: name}
        document["metadata"] = metadata
    document["spec"] = spec
    return document


def with_defaults(template: Mapping[str, Any], defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """A template merged over `spec.templateDefaults`, of which only those of its type count.

    Defaults that have no type, such as retryStrategy, are for templates of all types.
    """
    kind = type_of(template)
    fitting = {
        field: value
        for field, value in defaults.items()
        if field != "name" and (field == kind or field not in TEMPLATE_TYPES)
    }
    return template if not fitting else dict(merged_values(fitting, template))


def _joined(own: Mapping[str, Any], lower: Mapping[str, Any]) -> Obj:
    spec: Obj = dict(merged_values(_without_hooks(lower), _without_hooks(own)))
    hooks = {**mapping(lower.get("hooks")), **mapping(own.get("hooks"))}  # each as a whole
    if hooks:
        spec["hooks"] = hooks
    labels_from = {**_labels_from(lower), **_labels_from(own)}
    if labels_from:
        spec["workflowMetadata"] = dict(mapping(spec.get("workflowMetadata"))) | {"labelsFrom": labels_from}
    spec.pop("suspend", None)  # Argo takes it from the Workflow alone
    if own.get("suspend") is not None:
        spec["suspend"] = own["suspend"]
    arguments = mapping(spec.get("arguments"))
    if arguments:
        spec["arguments"] = dict(arguments) | {
            field: [_winner(entry, _named(own, field), _named(lower, field), field) for entry in entries]
            for field in ("parameters", "artifacts")
            if isinstance(entries := arguments.get(field), list)
        }
    return spec


def _without_hooks(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return {field: value for field, value in spec.items() if field != "hooks"}


def _labels_from(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(mapping(spec.get("workflowMetadata")).get("labelsFrom"))


def _named(spec: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return the arguments of a spec that have a value, by name. Artifacts always count."""
    return {
        str(entry.get("name")): entry
        for entry in sequence(mapping(spec.get("arguments")).get(field))
        if isinstance(entry, Mapping) and (field == "artifacts" or _has_value(entry))
    }


def _has_value(parameter: Mapping[str, Any]) -> bool:
    return any(parameter.get(field) is not None for field in ("value", "valueFrom", "default"))


# the fields of an artifact that say where it is
LOCATIONS = ("s3", "git", "http", "artifactory", "hdfs", "raw", "oss", "gcs", "azure", "plugin")
# of each, the fields of which one must have a value
_PLACE_FIELDS: Mapping[str, tuple[str, ...]] = {
    "s3": ("key",),
    "gcs": ("key",),
    "oss": ("key",),
    "plugin": ("key",),
    "azure": ("blob",),
    "git": ("repo",),
    "http": ("url",),
    "artifactory": ("url",),
    "hdfs": ("path", "addresses"),
}


def places_of(artifact: Mapping[str, Any]) -> list[str]:
    """Return the fields of an artifact that give its location.

    A field without a key or an address does not count.
    """
    return [
        kind
        for kind in LOCATIONS
        if artifact.get(kind) is not None
        and (kind not in _PLACE_FIELDS or any(mapping(artifact[kind]).get(field) for field in _PLACE_FIELDS[kind]))
    ]


def _winner(entry: Any, own: Mapping[str, Any], lower: Mapping[str, Any], field: str) -> Any:
    """Return a merged argument as in Argo: the whole entry of the higher document that has a value."""
    name = str(mapping(entry).get("name"))
    winner = own.get(name, lower.get(name))
    if winner is None or field == "parameters":
        return entry if winner is None else winner
    stores = [place for place in LOCATIONS if winner.get(place) is not None]
    if name in own and name in lower and len(stores) == 1 and lower[name].get(stores[0]) is not None:
        return dict(winner) | {stores[0]: merged_values(lower[name][stores[0]], winner[stores[0]])}
    return winner


# --- looking up


class Library:
    """The templates of one run: the workflow's own, and those of the WorkflowTemplates that it refers to."""

    __slots__ = ("_defaults", "_document", "_found", "_lists")

    def __init__(
        self, document: Mapping[str, Any], others: Mapping[TemplateKey, Mapping[str, Any]] | None = None
    ) -> None:
        """`document`: a Workflow from `merged`, or for lint a document of another kind."""
        self._document = document
        spec = spec_of(document)
        self._defaults = mapping(spec.get("templateDefaults"))
        self._lists: dict[str, Mapping[str, Mapping[str, Any]]] = {"": _by_name(sequence(spec.get("templates")))}
        for key, other in (others or {}).items():
            self._lists[key.scope] = _by_name(_own_templates(other))
        self._found: dict[tuple[str, str], Resolved] = {}

    @classmethod
    def of_stored(cls, document: Mapping[str, Any]) -> Library:
        """Return the library of a document from `stored`."""
        library = cls(document)
        for scope, templates in mapping(document.get(STORED)).items():
            library._lists[str(scope)] = _by_name(sequence(templates))
        return library

    @property
    def document(self) -> Mapping[str, Any]:
        return self._document

    def entry(self) -> Resolved:
        """Return the template with which the workflow starts. Raises TemplateMissing."""
        name = spec_of(self._document).get("entrypoint")
        if not isinstance(name, str) or not name:
            raise TemplateMissing(("spec", "entrypoint"), "", f"is required; templates: {self._names('')}")
        return self._named(name, "", ("spec", "entrypoint"))

    def find(self, step: Mapping[str, Any], scope: str, *, path: Path = ()) -> Resolved:
        """The template of a step, task or hook. Raises TemplateMissing; its field begins with `path`.

        `scope`: that of the template which the step is in.
        """
        inline = step.get("inline")
        if isinstance(inline, Mapping):
            return Resolved(template=with_defaults(inline, self._defaults), scope=scope, name="")
        reference = step.get("templateRef")
        if isinstance(reference, Mapping):
            return self._referred(reference, (*path, "templateRef"))
        name = step.get("template")
        if isinstance(name, str) and name:
            is_plain = path[-1:] in (("entrypoint",), ("onExit",))  # the field itself is the name
            return self._named(name, scope, path if is_plain else (*path, "template"))
        raise TemplateMissing(path, "", "the template has no name", hint="set template, templateRef or inline")

    def templates(self, scope: str) -> tuple[str, ...]:
        """Return the names in a scope, in order; empty for an unknown scope."""
        return tuple(self._lists.get(scope, ()))

    def _referred(self, reference: Mapping[str, Any], path: Path) -> Resolved:
        name, template = reference.get("name"), reference.get("template")
        for field, value in (("name", name), ("template", template)):
            if not isinstance(value, str) or not value:
                raise TemplateMissing((*path, field), "", "is required")
        key = TemplateKey(reference.get("clusterScope") is True, str(name))
        if key.scope not in self._lists:
            known = [TemplateKey.of_scope(scope) for scope in self._lists if scope]
            names = _listed(other.name for other in known if other.cluster == key.cluster)
            at = (*path, "name")
            raise TemplateMissing(at, key.name, f"no {key.kind} is named {key.name!r}; known are: {names}")
        return self._named(str(template), key.scope, (*path, "template"))

    def _named(self, name: str, scope: str, path: Path) -> Resolved:
        resolved = self._found.get((scope, name))
        if resolved is None:
            template = self._lists.get(scope, {}).get(name)
            if template is None:
                key = TemplateKey.of_scope(scope)
                where = f"{key.kind} {key.name} has" if scope else "there are"
                raise TemplateMissing(path, name, f"there is no template {name!r}; {where}: {self._names(scope)}")
            # those of the workflow have its defaults already when `merged` made it; a second time changes nothing
            template = with_defaults(template, self._defaults)
            resolved = self._found[scope, name] = Resolved(template=template, scope=scope, name=name)
        return resolved

    def _names(self, scope: str) -> str:
        return _listed(self._lists.get(scope, ()))


def _by_name(templates: Iterable[Any]) -> Mapping[str, Mapping[str, Any]]:
    """Return templates by name. As in Argo, the first template of a name counts."""
    made: dict[str, Mapping[str, Any]] = {}
    for template in templates:
        name = mapping(template).get("name")
        if isinstance(name, str):
            made.setdefault(name, template)
    return made


def _own_templates(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the templates of a WorkflowTemplate, with the metadata that it sets for all its pods."""
    spec = spec_of(document)
    templates = [template for template in sequence(spec.get("templates")) if isinstance(template, Mapping)]
    metadata = mapping(spec.get("podMetadata"))
    if not metadata:
        return templates
    return [
        dict(template) | {"metadata": merged_values(metadata, template.get("metadata") or {})}
        for template in templates
    ]


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    return ", ".join(every[:20]) + (f" and {len(every) - 20} more" if len(every) > 20 else "") or "none"


# --- one document for a run


def named_by_tags(document: Mapping[str, Any]) -> set[bool]:
    """Return the kinds that a `templateRef` with tags in its name refers to; True: ClusterWorkflowTemplate."""
    named = [mapping(use.holder.get("templateRef")) for use in uses_of_spec(spec_of(document))]
    return {row.get("clusterScope") is True for row in named if "{{" in str(row.get("name"))}


def choices_of(
    pool: Mapping[TemplateKey, Mapping[str, Any]],
    others: Mapping[TemplateKey, Mapping[str, Any]],
    check: Callable[[Mapping[str, Any], Mapping[TemplateKey, Mapping[str, Any]]], Sequence[str]],
) -> Mapping[TemplateKey, Mapping[str, Any]]:
    """Return the templates of a pool that a tag may name: those without missing references and without errors."""
    every = {**pool, **others}
    choices: dict[TemplateKey, Mapping[str, Any]] = {}
    for key, document in pool.items():
        needed: dict[TemplateKey, Mapping[str, Any]] = {}
        while wanted := missing(document, needed) & every.keys():
            needed |= {other: every[other] for other in wanted}
        if not missing(document, needed) and not check(document, needed):
            choices[key] = document
    return choices


def stored(
    document: Mapping[str, Any],
    others: Mapping[TemplateKey, Mapping[str, Any]],
    choices: Mapping[TemplateKey, Mapping[str, Any]] | None = None,
) -> Obj:
    """All that a run needs in one document, so that edits of the templates' kinds do not change the run.

    `document`: a Workflow; `others`: the templates that it refers to, directly or through others; `choices`:
    templates that tags may also name. The field STORED holds the templates by scope. Raises TemplateMissing
    where a template that can be reached is not in `others`; names with tags are left for the run.
    """
    reference = key_of(mapping(document.get("spec")).get("workflowTemplateRef"))
    whole = merged(document, None if reference is None else others.get(reference))
    library = Library(whole, {**(choices or {}), **others})
    needed: set[str] = set()
    seen: set[tuple[str, str]] = set()
    # (place in the workflow, the reference there, scope in which the name is looked up)
    waiting = [(use.path, use.holder, "") for use in uses_of_spec(mapping(whole.get("spec")))]
    while waiting:
        path, holder, scope = waiting.pop()
        if isinstance(holder.get("inline"), Mapping):
            continue  # `uses_of` has read it
        if any("{{" in str(name) for name in _names_in(holder)):
            scopes = [scope]
            if "templateRef" in holder:
                key, named = key_of(holder["templateRef"]), mapping(holder["templateRef"])
                is_cluster = named.get("clusterScope") is True
                scopes = [choice.scope for choice in choices or () if choice.cluster == is_cluster]
                scopes = scopes if key is None else [key.scope]
            for chosen in filter(None, scopes):
                names = [name for name in library.templates(chosen) if "{{" not in name]
                waiting += [(path, {"template": name}, chosen) for name in names]
            continue
        resolved = library.find(holder, scope, path=path)
        if resolved.scope and (resolved.scope, resolved.name) not in seen:
            needed.add(resolved.scope)
            seen.add((resolved.scope, resolved.name))
            waiting += [(path, use.holder, resolved.scope) for use in uses_of(resolved.template)]
    made = dict(whole)
    made[STORED] = {scope: list(library._lists[scope].values()) for scope in sorted(needed)}
    return made


def _names_in(holder: Mapping[str, Any]) -> tuple[Any, ...]:
    reference = mapping(holder.get("templateRef"))
    return (holder.get("template"), reference.get("name"), reference.get("template"))
