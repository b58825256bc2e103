"""Checks of steps and tasks: the templates that they name, their dependencies, the variables of their tags."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from moorage.decide.admission.fields import Path, mapping, sequence
from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows import scopes
from moorage_workflows.decide.workflows.findings import Gathered
from moorage_workflows.decide.workflows.linttemplate import beyond, cycle_in
from moorage_workflows.decide.workflows.linttext import (
    check_arguments,
    check_expression,
    check_hooks,
    check_names,
    check_supplied,
    check_tags,
    check_when,
    check_whole,
)
from moorage_workflows.decide.workflows.scopes import Scope, has_tag
from moorage_workflows.decide.workflows.templates import Library, Resolved, TemplateMissing
from moorage_workflows.decide.workflows.text.depends import OK, parse_depends
from moorage_workflows.decide.workflows.text.expressions import names_in

TASKS_MAX = 200  # of one DAG, in Argo v4's CRDs
_LOOPS = ("withItems", "withParam", "withSequence")
_HOLDERS = ("template", "templateRef", "inline")
_AFTERWARDS = frozenset(("hooks", "onExit", "inline"))  # fields that are read when the task has begun, or apart
_OF_ITEMS = frozenset(("AnySucceeded", "AllFailed"))


class Place(Struct, frozen=True, kw_only=True):
    """Where steps are checked. `scope`: the list that names are looked up in; `seen`: the variables of the
    template.

    `knows_others`: a template that is not in the library does not exist.
    """

    library: Library
    scope: str
    seen: Scope
    knows_others: bool


class Inline(Struct, frozen=True, kw_only=True):
    """An inline template that is not checked yet."""

    template: Mapping[str, Any]
    path: Path
    seen: Scope


def resolve(out: Gathered, holder: Mapping[str, Any], path: Path, place: Place) -> Resolved | None:
    """Return the template that a step, task or hook refers to; None if it is unknown. A wrong one is a finding."""
    given = [field for field in _HOLDERS if holder.get(field) not in (None, "")]
    if len(given) > 1:
        out.error("template", path, f"has {' and '.join(given)}; use one of them")
    reference = mapping(holder.get("templateRef"))
    names = (holder.get("template"), reference.get("name"), reference.get("template"))
    if any(has_tag(name) for name in names):
        return None
    try:
        return place.library.find(holder, place.scope, path=path)
    except TemplateMissing as error:
        if "templateRef" not in given or place.knows_others or error.problem == "is required":
            out.error("template", error.path, error.problem)
        else:
            name = f"{reference.get('name')}/{reference.get('template')}"
            out.warning("reference", (*path, "templateRef"), "is not checked: its document is not available", name)
        return None


def check_steps(out: Gathered, template: Mapping[str, Any], path: Path, place: Place) -> Iterator[Inline]:
    """Check a template of type steps, including its outputs. Yields its inline templates."""
    groups = sequence(template.get("steps"))
    first: dict[str, str] = {}
    seen = place.seen
    for group_index, group in enumerate(groups):
        at = (*path, "steps", group_index)
        names = [mapping(step).get("name") for step in group]
        check_names(out, group, at)
        for index, name in enumerate(names):
            if isinstance(name, str) and name in first and not has_tag(name):
                out.error("name", (*at, index, "name"), f"is repeated: also at {first[name]}", name)
        first |= {str(name): f"steps[{group_index}][{index}]" for index, name in enumerate(names)}
        later = _later_names(groups[group_index:])
        left: set[str] = set()
        opened: list[str] = []
        for index, entry in enumerate(group):
            step, step_path = mapping(entry), (*at, index)
            name = str(step.get("name") or "")

            def why(tag: str, later: frozenset[str] = later) -> str:
                parts = tag.split(".")
                if parts[0] == "steps" and len(parts) > 1 and parts[1] in later:
                    return f"step {parts[1]!r} is not in an earlier group, so its outputs are not known here"
                return ""

            node = yield from _check_node(out, step, step_path, place, seen, "steps", why)
            left |= node[0]
            opened += node[1]
            if has_tag(name):
                opened.append("steps.")
        seen = seen.with_names(left, opened)
    _check_outputs(out, template, path, seen)


def check_dag(out: Gathered, template: Mapping[str, Any], path: Path, place: Place) -> Iterator[Inline]:
    """Check a template of type dag, including its outputs. Yields its inline templates."""
    dag, at = mapping(template.get("dag")), (*path, "dag", "tasks")
    tasks = [mapping(task) for task in sequence(dag.get("tasks"))]
    if not tasks:
        out.error("dag", at, "must have at least one task")
    if len(tasks) > TASKS_MAX:
        out.warning("limit", at, beyond(len(tasks), "tasks", TASKS_MAX))
    check_names(out, dag.get("tasks"), at)
    names = [str(task.get("name") or "") for task in tasks]
    graph = _dependencies(out, tasks, names, at)
    cycle = cycle_in(graph)
    if cycle:
        out.error("dag", at, f"tasks wait for each other: {' -> '.join(cycle)}")
    _check_target(out, dag, names, (*path, "dag", "target"), place.seen)
    # the variables of each task
    nodes: dict[str, tuple[set[str], tuple[str, ...]]] = {}
    for index, task in enumerate(tasks):
        loops = any(task.get(loop) is not None for loop in _LOOPS)
        resolved = resolve(Gathered(), task, (*at, index), place)
        nodes[names[index]] = scopes.of_node("tasks", names[index], resolved, is_loop=loops)
    # a task sees all others; their values may come too late
    for index, task in enumerate(tasks):
        name, seen = names[index], place.seen
        later: set[str] = set()  # tasks that may end after this task has begun
        for other in sorted(_named_tasks(task) & nodes.keys()):
            known, opened = nodes[other]
            if not cycle and not _is_before(other, name, graph):
                later.add(other)
                known = known - {f"tasks.{other}.status"}
            seen = seen.with_names(known, opened)

        def why(tag: str, name: str = name, later: set[str] = later) -> str:
            other = tag.split(".")[1] if tag.startswith("tasks.") else ""
            return _too_early(name, other) if other in later else ""

        yield from _check_node(out, task, (*at, index), place, seen, "tasks", why)
        _check_order(out, task, (*at, index), later)
    # the template's outputs are read at the end
    every = place.seen.with_names(
        itertools.chain.from_iterable(names for names, _ in nodes.values()),
        itertools.chain.from_iterable(opened for _, opened in nodes.values()),
    )
    _check_outputs(out, template, path, every)


def _check_node(
    out: Gathered,
    node: Mapping[str, Any],
    path: Path,
    place: Place,
    seen: Scope,
    prefix: str,
    why: Callable[[str], str],
) -> Generator[Inline, None, tuple[set[str], tuple[str, ...]]]:
    """Check one step or task. Yields its inline template, and returns the variables that others see of it."""
    name = str(node.get("name") or "")
    loops = [loop for loop in _LOOPS if node.get(loop) is not None]
    if len(loops) > 1:
        out.error("loop", path, f"has {' and '.join(loops)}; use one of them")
    _check_loop(out, node, path)
    resolved = resolve(out, node, path, place)
    check_arguments(out, node.get("arguments"), (*path, "arguments"))
    if resolved is not None:
        check_supplied(out, node.get("arguments"), resolved.template, (*path, "arguments"), name=resolved.name)
    own = scopes.of_node(prefix, name, resolved, is_loop=bool(loops))
    check_hooks(out, node, path)
    check_when(out, node.get("when"), (*path, "when"))
    _check_hook_templates(out, node, path, place)
    with_items = seen.with_names(*scopes.of_items(node))
    inline = node.get("inline")
    if isinstance(inline, Mapping):
        yield Inline(template=inline, path=(*path, "inline"), seen=with_items)
    for field, value in node.items():
        if field == "inline":
            continue
        # a hook runs when its step has begun, so it sees the step itself
        visible = with_items.with_names(*own) if field in ("hooks", "onExit") else with_items
        check_tags(out, value, (*path, field), visible, why)
    _check_stray_item(out, node, path, loops)
    return own


def _check_hook_templates(out: Gathered, node: Mapping[str, Any], path: Path, place: Place) -> None:
    if isinstance(node.get("onExit"), str) and node["onExit"]:
        resolve_named(out, node["onExit"], (*path, "onExit"), place)
    for name, hook in mapping(node.get("hooks")).items():
        at = (*path, "hooks", str(name))
        resolved = resolve(out, mapping(hook), at, place)
        if resolved is not None:
            arguments = mapping(hook).get("arguments")
            check_supplied(out, arguments, resolved.template, (*at, "arguments"), name=resolved.name)


def resolve_named(out: Gathered, name: str, path: Path, place: Place) -> Resolved | None:
    """Return the template that a field refers to by name; None if it is unknown."""
    gathered = Gathered()
    resolved = resolve(gathered, {"template": name}, path, place)
    for finding in gathered.items:
        out.items[replace(finding, path=path)] = None
    return resolved


def _check_loop(out: Gathered, node: Mapping[str, Any], path: Path) -> None:
    sequence_of = node.get("withSequence")
    at = (*path, "withSequence")
    if sequence_of is not None:
        settings = mapping(sequence_of)
        if settings.get("count") is not None and settings.get("end") is not None:
            out.error("loop", at, "has count and end; use one of them")
        if settings.get("count") is None and settings.get("end") is None:
            out.error("loop", at, "needs count or end")
        check_whole(out, settings.get("count"), (*at, "count"))
        for field in ("start", "end"):
            check_whole(out, settings.get(field), (*at, field), least=-(2**63))
    items = node.get("withItems")
    if items is not None and not isinstance(items, list) and not has_tag(items):
        out.error("loop", (*path, "withItems"), "must be a list; for a list in a text use withParam")
    param = node.get("withParam")
    if param is not None and not isinstance(param, str):
        out.error("loop", (*path, "withParam"), "must be a string that is a JSON list; for a list use withItems")


def _check_stray_item(out: Gathered, node: Mapping[str, Any], path: Path, loops: list[str]) -> None:
    if loops:
        return
    for field, value in node.items():
        for tag in scopes.tags_in(value, (*path, field)) if field not in ("inline", "hooks") else ():
            if tag.text == "item" and not tag.is_expression:
                out.warning("tag", tag.path, "stays as it is: there is no loop here", "{{item}}")


def _later_names(groups: Any) -> frozenset[str]:
    return frozenset(
        str(mapping(step).get("name")) for group in groups for step in sequence(group) if mapping(step).get("name")
    )


def _check_outputs(out: Gathered, template: Mapping[str, Any], path: Path, seen: Scope) -> None:
    outputs = mapping(template.get("outputs"))
    check_tags(out, outputs, (*path, "outputs"), seen)
    for index, entry in enumerate(sequence(outputs.get("parameters"))):
        expression = mapping(mapping(entry).get("valueFrom")).get("expression")
        at = (*path, "outputs", "parameters", index, "valueFrom", "expression")
        check_expression(out, expression, at, seen)


# --- dependencies of tasks


def _dependencies(
    out: Gathered, tasks: list[Mapping[str, Any]], names: list[str], path: Path
) -> dict[str, list[str]]:
    """Return the existing tasks that each task waits for."""
    with_depends = any(task.get("depends") not in (None, "") for task in tasks)
    by_name = dict(zip(names, tasks, strict=True))
    graph: dict[str, list[str]] = {}
    for index, (name, task) in enumerate(zip(names, tasks, strict=True)):
        at = (*path, index)
        listed = [str(other) for other in sequence(task.get("dependencies"))]
        if with_depends and listed:
            out.error(
                "dag", (*at, "dependencies"), "cannot be used together with depends in the same DAG; use depends"
            )
        if with_depends and task.get("continueOn") is not None:
            message = (
                "cannot be used together with depends; name the results in depends,"
                " such as 'a.Succeeded || a.Failed'"
            )
            out.error("dag", (*at, "continueOn"), message)
        if (with_depends or listed) and name[:1].isdigit():
            out.error(
                "dag", (*at, "name"), "cannot begin with a digit where depends or dependencies is used", name
            )
        words = [(other, OK) for other in listed] + _words(out, task.get("depends"), (*at, "depends"))
        field = "depends" if task.get("depends") else "dependencies"
        for other, word in words:
            if other not in by_name:
                known = ", ".join(names[:20])
                out.error("dag", (*at, field), f"there is no task {other!r}; tasks: {known}", other)
            elif word in _OF_ITEMS and all(by_name[other].get(loop) is None for loop in _LOOPS):
                message = f"{other}.{word} needs a loop; task {other!r} has no {', '.join(_LOOPS)}"
                out.error("dag", (*at, field), message)
        graph[name] = list(dict.fromkeys(other for other, _ in words if other in by_name))
    return graph


def _words(out: Gathered, depends: Any, path: Path) -> list[tuple[str, str]]:
    """Return the tasks that `depends` names, with the result words, such as Succeeded."""
    if depends in (None, "") or has_tag(depends):
        return []
    if not isinstance(depends, str):
        out.error("dag", path, "must be a string, such as 'a && b.Failed'")
        return []
    try:
        return list(parse_depends(depends).words)
    except TextError as error:
        out.error("dag", path, error.message, depends)
        return []


def _too_early(name: str, other: str) -> str:
    if other == name:
        return f"task {name!r} has no outputs before it ends"
    return f"task {name!r} does not depend on {other!r}; name it in depends"


def _check_order(out: Gathered, task: Mapping[str, Any], path: Path, later: set[str]) -> None:
    """Report values of tasks that may have none yet.

    As in Argo, it is an error if a parameter or the source of an artifact begins with such a tag.
    """
    arguments = mapping(task.get("arguments"))
    for field, source in (("parameters", "value"), ("artifacts", "from")):
        for index, entry in enumerate(sequence(arguments.get(field))):
            text = mapping(entry).get(source)
            if isinstance(text, str) and text.startswith("{{tasks.") and (other := text.split(".")[1]) in later:
                out.error(
                    "tag", (*path, "arguments", field, index, source), _too_early(str(task["name"]), other), text
                )
    for tag in scopes.tags_in({key: value for key, value in task.items() if key not in _AFTERWARDS}, path):
        other = tag.text.split(".")[1] if tag.text.startswith("tasks.") else ""
        if other in later and not tag.is_expression and not _is_reported(out, tag.path):
            out.warning("tag", tag.path, _too_early(str(task["name"]), other), "{{" + tag.text + "}}")


def _is_reported(out: Gathered, path: Path) -> bool:
    return any(finding.path == path for finding in out.items)


def _named_tasks(task: Mapping[str, Any]) -> set[str]:
    """Return the tasks whose outputs the tags of a task read."""
    named: set[str] = set()
    for tag in scopes.tags_in(task, ()):
        names: Iterable[str] = (tag.text,)
        if tag.is_expression:
            try:
                names = names_in(tag.text)
            except TextError:
                names = ()  # it is named where the tags are checked
        named |= {name.split(".")[1] for name in names if name.startswith("tasks.")}
    return named


def _is_before(other: str, name: str, graph: Mapping[str, list[str]]) -> bool:
    """Whether a task waits for the other task, directly or through others. The search is breadth-first."""
    waiting, seen = deque(graph.get(name, ())), set(graph.get(name, ()))
    while waiting:
        current = waiting.popleft()
        if current == other:
            return True
        for following in graph.get(current, ()):
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return False


def _check_target(out: Gathered, dag: Mapping[str, Any], names: list[str], path: Path, seen: Scope) -> None:
    target = dag.get("target")
    if not isinstance(target, str):
        return
    check_tags(out, target, path, seen)
    for name in target.split():
        if not has_tag(target) and name not in names:
            out.error("dag", path, f"there is no task {name!r}; tasks: {', '.join(names[:20])}", name)
