"""Which tags (`{{inputs.parameters.x}}`) can be resolved at a place in a manifest.

https://argo-workflows.readthedocs.io/en/latest/variables/
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct

from moorage.decide.admission.fields import Path, mapping, sequence
from moorage.model.names import NAME_COMPARED
from moorage_workflows.decide.workflows.templates import POD_TYPES, Resolved, type_of

# a tag with another prefix is plain text and stays as it is
ROOTS = ("item.", "steps.", "tasks.", "inputs.", "outputs.", "workflow.", "pod.")
# resolved at run time, with any suffix
_ALWAYS = (
    "workflow.creationTimestamp", "workflow.scheduledTime", "workflow.duration", "tasks.name", "steps.name",
    "workflow.labels.workflows.argoproj.io/",
)  # fmt: skip
_TAG = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_BRACES = re.compile(r"(\{\{|\}\})")
_NODE_FIELDS = ("id", "startedAt", "finishedAt", "hostNodeName")
_RESULT_TYPES = frozenset(("container", "script", "data", "http", "plugin"))
_WORKFLOW = (
    "name", "namespace", "uid", "mainEntrypoint", "serviceAccountName", "status", "labels", "labels.json",
    "annotations", "annotations.json",
)  # fmt: skip


class Tag(Struct, frozen=True):
    """A tag in the string at `path`. `text`: without braces and spaces; for an expression, without its `=`."""

    path: Path
    text: str
    is_expression: bool = False


class Scope(Struct, frozen=True):
    """Names that can be resolved. `open`: all names with these prefixes can be resolved too."""

    names: frozenset[str]
    open: tuple[str, ...] = ()

    def with_names(self, names: Iterable[str], open_prefixes: Iterable[str] = ()) -> Scope:
        return Scope(self.names.union(names), (*self.open, *open_prefixes))

    def has(self, name: str) -> bool:
        """Whether a tag of that name can be resolved, or is not a tag of Argo."""
        return not name.startswith(ROOTS) or name in self.names or name.startswith((*_ALWAYS, *self.open))

    def has_part(self, name: str) -> bool:
        """Whether an expression can read this name.

        It can read a known name, the beginning of a known name, and a field inside a known value.
        """
        if self.has(name) or any(known.startswith(name + ".") for known in (*self.names, *self.open)):
            return True
        parts = name.split(".")
        values = {".".join(parts[:count]) for count in range(1, len(parts))} & self.names
        return any(not any(known.startswith(value + ".") for known in self.names) for value in values)

    def nearest(self, name: str) -> str:
        """Return the most similar known name; "" if there is none."""
        return next(iter(difflib.get_close_matches(name[:NAME_COMPARED], self.names, n=1, cutoff=0.75)), "")


def tags_of(text: str) -> Iterator[re.Match[str]]:
    """The tags of a text, from `{{` to the next `}}`; group 1 is the text inside. One look at each character."""
    return _TAG.finditer(text, 0, text.rfind("}}") + 2) if "{{" in text and "}}" in text else iter(())


def without_tags(text: str, value: str | Callable[[re.Match[str]], str]) -> str:
    """Return the string with each tag replaced by a value."""
    end = text.rfind("}}") + 2 if "}}" in text else 0
    return _TAG.sub(value, text[:end]) + text[end:]


def tags_in(value: Any, path: Path) -> Iterator[Tag]:
    """Yield every tag in the strings of a document, including its keys."""
    if isinstance(value, str):
        for match in tags_of(value):
            # of a tag inside of a tag only the inner one is whole: the outer one is looked at when the step runs
            text = match[1].rpartition("{{")[2].strip()
            yield Tag(path, text.removeprefix("=").strip(), text.startswith("="))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from tags_in(str(name), path)
            yield from tags_in(inner, (*path, str(name)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from tags_in(inner, (*path, index))


def without_inner_tags(text: str) -> str:
    """Replace tags inside the name of another tag by the value `x`.

    Such as in `{{steps.run-{{inputs.parameters.date}}.status}}`.
    """
    levels = [""]  # the text around all tags, and of each tag that is open
    for part in _BRACES.split(text):
        if part == "}}" and len(levels) > 2:
            levels.pop()
            levels[-1] += "x"
        elif part == "}}" and len(levels) == 2:
            tag = levels.pop()
            levels[-1] += tag + "}}"
        elif part == "{{":
            levels.append(part)
        else:
            levels[-1] += part
    return "".join(levels)


def has_tag(value: Any) -> bool:
    """Whether the value is known only at run time."""
    return isinstance(value, str) and "{{" in value


def names_of(entries: Any) -> list[str]:
    """Return the names of parameters, artifacts or other entries; names that are not strings are left out."""
    return [entry["name"] for entry in sequence(entries) if isinstance(mapping(entry).get("name"), str)]


def of_workflow(spec: Mapping[str, Any], metadata: Mapping[str, Any], *, is_template: bool) -> Scope:
    """The variables of every place. `is_template`: a Workflow may add parameters that are not declared yet."""
    names = {f"workflow.{field}" for field in _WORKFLOW}
    opened: list[str] = ["workflow.parameters", "workflow.labels.", "workflow.annotations."] if is_template else []
    parameters = names_of(mapping(spec.get("arguments")).get("parameters"))
    if parameters:
        names |= {"workflow.parameters", "workflow.parameters.json"}
        names |= {f"workflow.parameters.{name}" for name in parameters}
    more = mapping(spec.get("workflowMetadata"))
    for field, sources in (
        ("labels", (metadata.get("labels"), more.get("labels"), more.get("labelsFrom"))),
        ("annotations", (metadata.get("annotations"), more.get("annotations"))),
    ):
        names |= {f"workflow.{field}.{name}" for source in sources for name in mapping(source)}
    if spec.get("priority") is not None:
        names.add("workflow.priority")
    if spec.get("onExit") or spec.get("hooks"):
        names.add("workflow.failures")
    return Scope(frozenset(names), tuple(opened))


def with_exports(scope: Scope, templates: Iterable[Mapping[str, Any]]) -> Scope:
    """With the variables that templates export by `globalName`; a name that is itself a tag opens all names."""
    names, opened = set(), set()
    for template in templates:
        for field in ("parameters", "artifacts"):
            for entry in sequence(mapping(template.get("outputs")).get(field)):
                exported = mapping(entry).get("globalName")
                if has_tag(exported):
                    opened.add(f"workflow.outputs.{field}.")
                elif isinstance(exported, str) and exported:
                    names.add(f"workflow.outputs.{field}.{exported}")
    return scope.with_names(names, sorted(opened))


def of_template(template: Mapping[str, Any], outer: Scope) -> Scope:
    """The variables of a template itself, in addition to those of `outer`."""
    kind, inputs, outputs = type_of(template), mapping(template.get("inputs")), mapping(template.get("outputs"))
    names = {"inputs.parameters", *(f"inputs.parameters.{name}" for name in names_of(inputs.get("parameters")))}
    for name in names_of(inputs.get("artifacts")):
        names |= {f"inputs.artifacts.{name}", f"inputs.artifacts.{name}.path"}
    for field in ("parameters", "artifacts"):
        names |= {f"outputs.{field}.{name}.path" for name in names_of(outputs.get(field))}
    if kind in POD_TYPES:
        names.add("pod.name")
    return outer.with_names(names)


def of_metrics(scope: Scope) -> Scope:
    """The variables of the metrics of a template: its outputs, too."""
    return scope.with_names((), ("outputs.",))


def of_node(
    prefix: str, name: str, resolved: Resolved | None, *, is_loop: bool
) -> tuple[set[str], tuple[str, ...]]:
    """The variables that others see of a step or task: names and open prefixes. `prefix`: "steps" or "tasks".

    `resolved` None: its template is not known, so anything may be there.
    """
    at = f"{prefix}.{name}"
    if resolved is None:
        return set(), (f"{at}.",)
    template = resolved.template
    names = {f"{at}.{field}" for field in (*_NODE_FIELDS, "status")}
    if template.get("daemon") is True:
        names.add(f"{at}.ip")
    if has_result(template):
        names |= {f"{at}.outputs.result", f"{at}.exitCode"}
    outputs = mapping(template.get("outputs"))
    for field in ("parameters", "artifacts"):
        names |= {f"{at}.outputs.{field}.{output}" for output in names_of(outputs.get(field))}
    if is_loop:
        names.add(f"{at}.outputs.parameters")
    return names, ()


def has_result(template: Mapping[str, Any]) -> bool:
    """Whether a template produces `outputs.result`. A container set needs a container named main for that."""
    kind = type_of(template)
    if kind == "containerSet":
        return "main" in names_of(mapping(template.get(kind)).get("containers"))
    return kind in _RESULT_TYPES


def of_items(step: Mapping[str, Any]) -> tuple[set[str], tuple[str, ...]]:
    """The variables of a loop: names and open prefixes."""
    names: set[str] = set()
    if step.get("withParam"):
        return {"item"}, ("item.",)
    if step.get("withSequence") is not None:
        return {"item"}, ()
    for item in sequence(step.get("withItems")):
        names.add("item")
        if isinstance(item, Mapping):
            names |= {f"item.{key}" for key in item}
        elif isinstance(item, list):
            names |= {f"item.[{index}]" for index in range(len(item))}
        elif has_tag(item):
            return {"item"}, ("item.",)
    return names, ()
