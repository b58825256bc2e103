"""Steps and tasks: their conditions, the nodes that they may refer to, and the values of their tags. Pure
functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from moorage.decide.admission.fields import shown_value
from moorage.decide.evaluation import TextError
from moorage_kube.moments import span_of
from moorage_workflows.decide.workflows.graph.frames import Frame
from moorage_workflows.decide.workflows.graph.locks import (
    DATABASE_MUTEX,
    LIMITS_CONFIGMAP,
    MUTEX,
    SEMAPHORE,
    lock_name,
)
from moorage_workflows.decide.workflows.graph.scopes import Seen
from moorage_workflows.decide.workflows.text.depends import Depends, parse_depends
from moorage_workflows.decide.workflows.text.errors import UnresolvedTag
from moorage_workflows.decide.workflows.text.expressions import evaluate, expression_text
from moorage_workflows.decide.workflows.text.tags import substitute, substitute_text
from moorage_workflows.model.workflow import Artifact, NodePhase, NodeRecord, NodeType, Outputs


class Scope(Struct, frozen=True):
    """The values of tags of a step.

    `absent`: output parameters that a skipped step declares and did not write. `missing`: artifacts that are
    missing and may be.
    """

    values: Mapping[str, str]
    artifacts: Mapping[str, Artifact]
    absent: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()

    @property
    def with_absent(self) -> Mapping[str, str | None]:
        """Return the tag values, with None for each absent output."""
        return {**dict.fromkeys(self.absent), **self.values} if self.absent else self.values


# --- steps and tasks


def type_of(template: Mapping[str, Any]) -> NodeType:
    """The type of a template's node."""
    for key, kind in (
        ("steps", NodeType.STEPS),
        ("dag", NodeType.DAG),
        ("suspend", NodeType.SUSPEND),
        ("http", NodeType.HTTP),
    ):
        if template.get(key) is not None:
            return kind
    return NodeType.POD


def resolve_step(
    step: Mapping[str, Any], values: Mapping[str, str | None], strict: Sequence[str]
) -> dict[str, Any]:
    """Return the step with its tags replaced by values. Tags in its hooks and inline template are resolved later.

    Raises TextError.
    """
    later = {key: step[key] for key in ("hooks", "onExit", "inline") if key in step}
    now = {key: value for key, value in step.items() if key not in later}
    return dict(substitute(without_artifacts(now), values, strict=strict)) | later


def without_artifacts(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the step without the artifacts of its arguments, which are resolved by name, not by text."""
    arguments = step.get("arguments") or {}
    if not arguments.get("artifacts"):
        return dict(step)
    return {**step, "arguments": {key: value for key, value in arguments.items() if key != "artifacts"}}


def without_absent(step: Mapping[str, Any], scope: Scope) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Return the step without arguments that are only the tag of an absent output, and their names.

    For these arguments the defaults of the template apply.
    """
    if not scope.absent:
        return step, frozenset()
    arguments = step.get("arguments") or {}
    absent = []
    kept = []
    for parameter in arguments.get("parameters") or ():
        match = _PURE_TAG.fullmatch(str(parameter.get("value", "")).strip())
        if match and match[1].strip() in scope.absent:
            absent.append(str(parameter.get("name")))
        else:
            kept.append(parameter)
    if not absent:
        return step, frozenset()
    return {**step, "arguments": {**arguments, "parameters": kept}}, frozenset(absent)


_PURE_TAG = re.compile(r"{{([^{}=][^{}]*)}}")
_NAMED = re.compile(r"""\b(?:steps|tasks)(?:\.([A-Za-z0-9_-]+)|\[\\?['"]([^'"\\]+)\\?['"]\])""")
_RESULT = re.compile(_NAMED.pattern + r"""\.outputs(?:\.result|\[)""")
_UNNAMED = re.compile(r"""\b(?:steps|tasks)(?:\.\{\{|\[(?!\\?['"]))""")


def visible_to(frame: Frame, task: Mapping[str, Any], conditions: Mapping[str, Depends]) -> dict[str, Seen]:
    """The tasks that a task may refer to: those before it, and of them those that it names."""
    text = json.dumps(task)
    if _UNNAMED.search(text):
        names = ancestors(conditions, conditions[str(task.get("name"))].tasks)
        return {name: frame.seen[name] for name in names if name in frame.seen}
    named = {first or second for first, second in _NAMED.findall(text)}
    named = {name for name in named if name in frame.seen}
    direct = set(conditions[str(task.get("name"))].tasks)
    if named - direct:
        named &= ancestors(conditions, direct)
    return {name: frame.seen[name] for name in named}


def results_used(template: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names of the steps whose results a template uses.

    None if names contain tags: then it may use any step.
    """
    text = json.dumps(template)
    if "outputs.result" not in text and "outputs[" not in text:
        return frozenset()
    if _UNNAMED.search(text):
        return None
    return frozenset(dotted or quoted for dotted, quoted in _RESULT.findall(text))


def condition_of(task: Mapping[str, Any]) -> Depends:
    """Raises TextError."""
    if task.get("depends"):
        return parse_depends(str(task["depends"]))
    return parse_depends(" && ".join(str(name) for name in task.get("dependencies") or ()))


def words_of(task: Mapping[str, Any], seen: Seen) -> frozenset[str]:
    """The result words of a task that are true in `depends` of another."""
    phase = seen.record.phase
    words = {
        NodePhase.SUCCEEDED: {"Succeeded", "Ok"},
        NodePhase.FAILED: {"Failed"},
        NodePhase.ERROR: {"Errored"},
        NodePhase.SKIPPED: {"Skipped", "Ok"},
        NodePhase.OMITTED: {"Omitted"},
    }.get(phase, set())
    if seen.record.is_daemon:
        words = words | {"Daemoned", "Ok"}
    if continues(task, phase):
        words = words | {"Ok"}
    if seen.is_loop:
        phases = [child.phase for child in seen.children]
        if NodePhase.SUCCEEDED in phases:
            words = words | {"AnySucceeded"}
        if phases and all(each in (NodePhase.FAILED, NodePhase.ERROR) for each in phases):
            words = words | {"AllFailed"}
    return frozenset(words)


def continues(step: Mapping[str, Any], phase: NodePhase) -> bool:
    """Whether `continueOn` of a step allows this phase, so that the workflow continues."""
    goes_on = step.get("continueOn") or {}
    if phase is NodePhase.ERROR:
        return goes_on.get("error") is True
    return phase is NodePhase.FAILED and goes_on.get("failed") is True


def ends_of(seen: Seen) -> tuple[NodeRecord, ...]:
    """Return the nodes that are the parents of the next node."""
    return (seen.record,) if seen.record.id else seen.children


def leaves(conditions: Mapping[str, Depends]) -> list[str]:
    depended = {name for condition in conditions.values() for name in condition.tasks}
    return [name for name in conditions if name not in depended]


def ancestors(conditions: Mapping[str, Depends], names: Iterable[str]) -> set[str]:
    """Return these tasks and all tasks before them. Cycles are allowed."""
    reached: set[str] = set()
    open_names = list(names)
    while open_names:
        name = open_names.pop()
        if name in reached or name not in conditions:
            continue
        reached.add(name)
        open_names += conditions[name].tasks
    return reached


def in_order(conditions: Mapping[str, Depends], among: Mapping[str, Seen]) -> list[str]:
    """Return tasks in the order of their dependencies."""
    left = {name: len({parent for parent in conditions[name].tasks if parent in among}) for name in among}
    dependents: dict[str, list[str]] = {}
    for name in among:
        for parent in set(conditions[name].tasks):
            dependents.setdefault(parent, []).append(name)
    ready = [name for name, count in left.items() if count == 0]
    order = []
    while ready:
        name = ready.pop()
        order.append(name)
        for dependent in dependents.get(name, ()):
            left[dependent] -= 1
            if not left[dependent]:
                ready.append(dependent)
    return order


# --- outputs


def output_value(parameter: Mapping[str, Any], source: Mapping[str, Any], scope: Scope) -> str | None:
    """The value of an output parameter of steps or a DAG; None: its source was not made. Raises TextError."""
    if parameter.get("value") is not None:
        return substitute_text(str(parameter["value"]), scope.values)
    if source.get("parameter"):
        text = str(source["parameter"]).strip()
        match = _PURE_TAG.fullmatch(text)
        name = (match[1] if match else text).strip()
        if name in scope.values:
            return scope.values[name]
        if match is None and "{{" in text:
            return substitute_text(text, scope.values, allow_unresolved=False)
        return None
    if source.get("expression"):
        try:
            value = evaluate(str(source["expression"]), scope.with_absent)
        except UnresolvedTag:
            if source.get("default") is not None:
                return None
            raise
        return None if value is None else expression_text(value)
    return None


def with_fixed_values(template: Mapping[str, Any], outputs: Outputs | None) -> Outputs | None:
    """The outputs of a step, with the parameters that have their value in the template."""
    fixed = {
        str(parameter.get("name")): str(parameter["value"])
        for parameter in (template.get("outputs") or {}).get("parameters") or ()
        if parameter.get("value") is not None and not parameter.get("valueFrom")
    }
    if not fixed:
        return outputs
    known = outputs or Outputs()
    return msgspec.structs.replace(known, parameters=fixed | dict(known.parameters))


def asked_for(source: Mapping[str, Any]) -> str:
    return str(source.get("parameter") or source.get("expression") or "its source")


def is_true(expression: str, scope: Mapping[str, str | None]) -> bool:
    """Raises TextError."""
    answer = evaluate(expression, scope)
    if not isinstance(answer, bool):
        raise TextError(f"a condition must be true or false, and {expression} is {answer!r}")
    return answer


# --- locks


def locks_of(synchronization: Mapping[str, Any] | None, scope: Mapping[str, str]) -> tuple[str, ...]:
    """Return the requested locks: `Mutex/NAMESPACE/NAME`, `Semaphore/NAMESPACE/NAME/KEY`.

    A lock with `database` differs from a lock of the same name without it. A semaphore with `database` has
    its limit in a ConfigMap too.
    """
    if not synchronization:
        return ()
    mutexes = [*(synchronization.get("mutexes") or ())]
    semaphores = [*(synchronization.get("semaphores") or ())]
    mutexes += [synchronization["mutex"]] if synchronization.get("mutex") else []
    semaphores += [synchronization["semaphore"]] if synchronization.get("semaphore") else []
    here = scope["workflow.namespace"]
    locks = []
    for mutex in mutexes:
        kind = DATABASE_MUTEX if mutex.get("database") is True else MUTEX
        locks.append(f"{kind}{mutex.get('namespace') or here}/{mutex.get('name')}")
    for semaphore in semaphores:
        key = semaphore.get("configMapKeyRef") or {}
        if semaphore.get("database"):
            key = {"name": LIMITS_CONFIGMAP, "key": semaphore["database"].get("key")}
        locks.append(f"{SEMAPHORE}{semaphore.get('namespace') or here}/{key.get('name')}/{key.get('key')}")
    return tuple(sorted({substitute_text(lock, scope) for lock in locks}))


def waiting_for(locks: Iterable[str], reason: str = "") -> str:
    """The message of a node that waits for locks. `reason`: why they are not available at all."""
    words = f"Waiting for {', '.join(lock_name(lock) for lock in locks)} lock"
    return f"{words}: {reason}" if reason else words


# --- small things


def stamp(at: datetime) -> str:
    """Return a time as RFC 3339 with milliseconds, in UTC."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at.microsecond // 1000:03d}Z"


class Limits(Struct, frozen=True):
    """The limits in a workflow's spec. None: no limit."""

    parallelism: int | None = None
    runs_for: timedelta | None = None
    priority: int = 0


def limits_of(spec: Mapping[str, Any], scope: Mapping[str, str]) -> Limits:
    """Return the limits of a spec. Raises TextError with the field for a value that is not a number."""
    names = ("parallelism", "activeDeadlineSeconds", "priority")
    values = substitute({name: spec[name] for name in names if spec.get(name) is not None}, scope)
    seconds = whole_number(values.get("activeDeadlineSeconds"), "spec.activeDeadlineSeconds")
    return Limits(
        parallelism=positive(values.get("parallelism"), "spec.parallelism"),
        runs_for=None if seconds is None else span_of(seconds),
        priority=whole_number(values.get("priority"), "spec.priority") or 0,
    )


def whole_number(value: Any, field: str) -> int | None:
    """Return a whole number; None for a missing or empty value. Raises TextError."""
    if value is None or value == "":
        return None
    try:
        return int(str(value))
    except ValueError:
        raise TextError(f"{field} must be a whole number, and is {shown_value(value)!r}") from None


def positive(value: Any, field: str) -> int | None:
    """Return a limit; None if it is missing or not above 0. Raises TextError."""
    number = whole_number(value, field)
    return number if number is not None and number > 0 else None


def is_meant(record: NodeRecord, selector: str) -> bool:
    """Whether a selector such as "displayName=approve" matches this node. An empty selector matches every node."""
    fields = {
        "displayName": record.display_name,
        "name": record.name,
        "id": record.id,
        "templateName": record.template,
        "phase": str(record.phase),
    } | {
        f"inputs.parameters.{name}.value": str(value)
        for name, value in (record.inputs.get("parameters") or {}).items()
    }
    for part in filter(None, (part.strip() for part in selector.split(","))):
        key, is_not, value = part.partition("!=")
        if not is_not:
            key, _, value = part.partition("=")
            value = value.removeprefix("=")
        if (fields.get(key.strip()) == value.strip()) == bool(is_not):
            return False
    return True
