"""Run one step with a `resource` template, from its order to its outputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moorage_kube.errors import SelectorError
from moorage_kube.resources import Obj
from moorage_workflows.decide.workflows.resources.conditions import (
    Conditions,
    failed,
    parse_condition,
    state_of,
    succeeded,
)
from moorage_workflows.decide.workflows.resources.flags import read_flags
from moorage_workflows.executor.errors import StepError
from moorage_workflows.executor.resource.actions import Actions, Done, Task
from moorage_workflows.executor.resource.cluster import Refused
from moorage_workflows.executor.resource.outputs import Output, write_outputs

LOOK_FIRST_SECONDS, LOOK_MOST_SECONDS = 0.25, 5.0  # between two looks at the object; Argo looks every 5 s


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceOrder:
    """The order that `decide.workflows.resources.steps` wrote into the pod's annotation, with the manifest
    parsed.
    """

    task: Task
    conditions: Conditions = field(default_factory=Conditions)
    outputs: tuple[Output, ...] = ()


def read_resource_order(path: Path) -> ResourceOrder:
    """Raises StepError for a file that is not an order, and for a manifest that is not there."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))["resource"]
        manifest = Path(given["manifest"]).read_text(encoding="utf-8") if given.get("manifest") else ""
        return ResourceOrder(
            task=Task(
                action=given["action"],
                namespace=given["namespace"],
                mark=given["mark"],
                manifest=manifest,
                merge_strategy=given.get("mergeStrategy") or "strategic",
                flags=read_flags(given["action"], given.get("flags") or ()),
                owner=given.get("owner"),
            ),
            conditions=Conditions(
                success=parse_condition(given.get("success") or ""),
                failure=parse_condition(given.get("failure") or ""),
            ),
            outputs=tuple(_output(entry) for entry in given.get("outputs") or ()),
        )
    except (OSError, ValueError, KeyError, TypeError, SelectorError) as error:
        raise StepError(f"the order of this pod cannot be read from {path}: {error}") from error


def _output(entry: Mapping[str, Any]) -> Output:
    return Output(
        name=entry["name"],
        path=entry["path"],
        json_path=entry.get("jsonPath") or "",
        jq_filter=entry.get("jqFilter") or "",
        default=entry.get("default") or "",
    )


def carry_out(
    order: ResourceOrder, actions: Actions, *, say: Callable[[str], None] = print, pause: Callable[[float], None]
) -> None:
    """Do the action, wait for a condition, write the outputs. Raises StepError.

    The message names the object, the condition, and the values of the condition's fields.
    """
    needs_one = bool(order.conditions) or any(output.json_path or output.jq_filter for output in order.outputs)
    if needs_one and order.task.action in ("create", "apply", "replace"):
        count = actions.count(order.task)
        if count > 1:
            raise StepError(f"the manifest has {count} objects: conditions and output parameters need one")
    done = actions.run(order.task)
    if needs_one and len(done) > 1:
        raise StepError(f"{len(done)} objects were found: conditions and output parameters need one; name it")
    obj: Obj | None = None
    if done:
        obj = done[0].obj
        if order.conditions:
            obj = wait(done[0], order.conditions, actions.read, say=say, pause=pause)
    write_outputs(order.outputs, obj)


def wait(
    done: Done,
    conditions: Conditions,
    read: Callable[[str], Obj],
    *,
    say: Callable[[str], None],
    pause: Callable[[float], None],
) -> Obj:
    """Read the object until a condition is met. Returns the object at that time. Raises StepError."""
    seconds, before, obj = LOOK_FIRST_SECONDS, "", done.obj
    while True:
        try:
            obj = read(done.path)
        except Refused as error:
            last = f"; before that {before}" if before else ""
            if error.status == 404:
                raise StepError(f"{done.title} was deleted while its condition was waited for{last}") from error
            raise StepError(f"{done.title} cannot be read: {error.message}{last}") from error
        state = state_of(obj, conditions.keys)
        if state != before:
            say(f"{done.title}: {state}")
            before = state
        if (requirement := failed(conditions, obj)) is not None:
            raise StepError(f"{done.title}: failureCondition {str(requirement)!r} holds: {state}")
        if succeeded(conditions, obj):
            return obj
        pause(seconds)
        seconds = min(LOOK_MOST_SECONDS, seconds * 1.5)
