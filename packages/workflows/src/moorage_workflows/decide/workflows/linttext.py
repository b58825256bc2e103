"""Checks of texts that have their own language: tags, expressions, durations; and of arguments."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

from moorage.decide.admission.fields import Path, mapping, sequence
from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.findings import Gathered
from moorage_workflows.decide.workflows.scopes import (
    Scope,
    has_tag,
    names_of,
    tags_in,
    tags_of,
    without_inner_tags,
    without_tags,
)
from moorage_workflows.decide.workflows.templates import LOCATIONS, places_of
from moorage_workflows.decide.workflows.text.durations import parse_duration, parse_go_duration
from moorage_workflows.decide.workflows.text.errors import SyntaxProblem
from moorage_workflows.decide.workflows.text.expressions import names_in
from moorage_workflows.decide.workflows.text.when import holds

PARAMETER_NAME = re.compile(r"[-a-zA-Z0-9_]+", re.ASCII)
FIELD_NAME = re.compile(r"[a-zA-Z0-9][-a-zA-Z0-9]*", re.ASCII)  # of templates, steps and tasks
FIELD_NAME_MAX = 128  # characters
_TAGS_TRIED = 3  # of one condition: each takes all of `_TRIED`
# values to try for a tag of a condition; a single quote or bracket is not intended
_TRIED = ("1", "x", "true", "==", "&&", "", "1 == 1", "'x'", "2026-01-01")
WHOLE_MAX = 2**63 - 1  # Go's int64
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)


def check_tags(
    out: Gathered, value: Any, path: Path, scope: Scope, why: Callable[[str], str] | None = None
) -> None:
    """Report every tag below `path` that the scope cannot resolve, and unreadable expressions.

    `why`: returns an explanation of an unknown tag, or "".
    """
    for tag in tags_in(value, path):
        if tag.is_expression:
            check_expression(out, tag.text, tag.path, scope, why)
        elif not scope.has(tag.text):
            message = (why(tag.text) if why is not None else "") or _unknown(tag.text, scope)
            # labels and annotations may come from elsewhere: from a cluster's defaults, or from the submission
            note = out.warning if tag.text.startswith(("workflow.labels.", "workflow.annotations.")) else out.error
            note("tag", tag.path, message, "{{" + tag.text + "}}")


def _unknown(name: str, scope: Scope) -> str:
    nearest = scope.nearest(name)
    if nearest:
        return f"nothing is named {name} here; did you mean {nearest}?"
    root = name.split(".")[0] + "."
    known = sorted(other for other in scope.names if other.startswith(root))
    shown = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    return f"nothing is named {name} here; " + (f"known are: {shown}" if known else f"nothing begins with {root}")


def check_expression(
    out: Gathered,
    text: Any,
    path: Path,
    scope: Scope | None = None,
    why: Callable[[str], str] | None = None,
) -> None:
    """Report an expression that is invalid for all values of its variables; one with tags is checked when it
    runs.

    With a scope, variables that it lacks are warnings: the expression may not need them.
    """
    if not isinstance(text, str) or has_tag(text):
        return
    try:
        names = names_in(text)
    except TextError as error:
        out.error("expression", path, error.message)
        return
    if scope is None:
        return
    for name in sorted(names):
        if not scope.has_part(name):
            out.warning("tag", path, (why(name) if why is not None else "") or _unknown(name, scope), text)


def check_duration(out: Gathered, value: Any, path: Path, *, needs_unit: bool = False) -> None:
    if value is None or has_tag(value) or value == "":
        return
    try:
        (parse_go_duration if needs_unit else parse_duration)(str(value))
    except TextError as error:
        out.error("duration", path, error.message)


def check_whole(out: Gathered, value: Any, path: Path, *, least: int = 0) -> None:
    """Check that a value is a whole number, a number in a string, or a tag."""
    if value is None or has_tag(value):
        return
    text = str(value)
    if isinstance(value, bool) or not _WHOLE.fullmatch(text) or int(text[:20]) < least:
        out.error("number", path, f"must be a whole number of at least {least}", value)
    elif len(text) > 20 or int(text) > WHOLE_MAX:
        out.error("number", path, f"must be a whole number of at most {WHOLE_MAX}", value)


def check_choice(out: Gathered, value: Any, path: Path, choices: tuple[str, ...]) -> None:
    if value in (None, "") or has_tag(value):
        return
    if value not in choices:
        out.error("enum", path, f"must be one of {', '.join(choices)}", value)


def check_names(out: Gathered, entries: Any, path: Path, *, form: re.Pattern[str] = FIELD_NAME) -> None:
    """Check the names of a list's entries: each entry has one, of the right format and not repeated."""
    first: dict[str, int] = {}
    for index, entry in enumerate(sequence(entries)):
        name = mapping(entry).get("name")
        at = (*path, index, "name")
        if name is None or name == "":
            out.error("name", at, "is required")
        elif not isinstance(name, str):
            out.error("name", at, "must be a string", name)
        elif not form.fullmatch(without_tags(name, "x")) or (form is FIELD_NAME and len(name) > FIELD_NAME_MAX):
            if form is FIELD_NAME:
                message = (
                    f"must be letters, digits and '-', begin with a letter or digit, and have at most"
                    f" {FIELD_NAME_MAX} characters"
                )
            else:
                message = "must be letters, digits, '-' and '_'"
            out.error("name", at, message, name)
        elif has_tag(name):
            continue
        elif name in first:
            out.error("name", at, f"is repeated: also at {path[-1]}[{first[name]}]; give each its own name", name)
        else:
            first[name] = index


def check_arguments(out: Gathered, arguments: Any, path: Path, *, values: str = "error") -> None:
    """The arguments of a workflow, step, task or hook.

    `values`: the severity of a parameter without a value: "error", "warning" or "" (nothing).
    """
    fields = mapping(arguments)
    for field in ("parameters", "artifacts"):
        check_names(out, fields.get(field), (*path, field), form=PARAMETER_NAME)
    for index, parameter in enumerate(sequence(fields.get("parameters"))):
        _check_parameter(out, mapping(parameter), (*path, "parameters", index), values)
    for index, entry in enumerate(sequence(fields.get("artifacts"))):
        artifact, at = mapping(entry), (*path, "artifacts", index)
        places = [field for field in ("from", "fromExpression") if artifact.get(field) not in (None, "")]
        places += places_of(artifact)
        if not places:
            out.error("artifact", at, f"needs one of from, fromExpression, {', '.join(LOCATIONS)}")
        elif len(places) > 1:
            out.error("artifact", at, f"has {' and '.join(places)}; use one of them")
        check_expression(out, artifact.get("fromExpression"), (*at, "fromExpression"))


def _check_parameter(out: Gathered, parameter: Mapping[str, Any], path: Path, values: str) -> None:
    value, source, choices = parameter.get("value"), parameter.get("valueFrom"), parameter.get("enum")
    name = parameter.get("name")
    if isinstance(value, (list, dict)):
        out.error("arguments", (*path, "value"), "must be a string; write lists and mappings as JSON in quotes")
    if value is None and source is None:
        if values == "error":
            out.error("arguments", path, f"parameter {name!r} has no value; set value or valueFrom")
        elif values == "warning":
            out.warning("arguments", path, f"parameter {name!r} has no value; give one when you submit it")
    if source is not None:
        known = {"configMapKeyRef", "supplied", "event", "default"}
        wrong = sorted(set(mapping(source)) - known)
        if wrong or not set(mapping(source)) & (known - {"default"}):
            out.error(
                "arguments",
                (*path, "valueFrom"),
                "an argument can take its value from configMapKeyRef or supplied",
                ", ".join(wrong) or "none",
            )
        check_expression(out, mapping(source).get("event"), (*path, "valueFrom", "event"))
    if choices is not None:
        texts = [str(choice) for choice in sequence(choices)]
        if not texts:
            out.error("arguments", (*path, "enum"), "must have at least one value")
        elif value is not None and not has_tag(value) and str(value) not in texts:
            out.error("arguments", (*path, "value"), f"must be one of {', '.join(texts[:20])}", value)


def check_when(out: Gathered, text: Any, path: Path) -> None:
    """Report a condition that is unreadable for all values of its tags."""
    if not isinstance(text, str) or not text:
        return
    flat = without_inner_tags(text)
    tags = sum(1 for _ in tags_of(flat))
    if tags > _TAGS_TRIED:
        return
    problem: TextError | None = None
    for values in itertools.product(_TRIED, repeat=tags):
        left = iter(values)
        try:
            holds(without_tags(flat, lambda _tag, left=left: next(left)))  # type: ignore[misc]
        except TextError as error:
            if tags and not isinstance(error, SyntaxProblem):
                return  # it can be read; its result depends on the values
            problem = problem or error
        else:
            return
    if problem is not None:
        out.error("when", path, problem.message, text)


def check_hooks(out: Gathered, holder: Mapping[str, Any], path: Path) -> None:
    """Check that hooks other than `exit` have an expression."""
    for name, entry in mapping(holder.get("hooks")).items():
        hook, at = mapping(entry), (*path, "hooks", str(name))
        if name != "exit" and not hook.get("expression"):
            out.error("hook", (*at, "expression"), f"hook {name!r} needs an expression; only exit does without")
        check_expression(out, hook.get("expression"), (*at, "expression"))
        check_arguments(out, hook.get("arguments"), (*at, "arguments"))


def supplied(arguments: Any) -> tuple[set[str], set[str]]:
    """Return the names of the parameters and of the artifacts in arguments."""
    fields = mapping(arguments)
    return set(names_of(fields.get("parameters"))), set(names_of(fields.get("artifacts")))


def needed(template: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Return the names of the inputs that a template requires: parameters and artifacts."""
    inputs = mapping(template.get("inputs"))
    parameters = [
        parameter
        for parameter in sequence(inputs.get("parameters"))
        if all(mapping(parameter).get(field) is None for field in ("value", "default", "valueFrom"))
    ]
    artifacts = [
        artifact
        for artifact in sequence(inputs.get("artifacts"))
        if mapping(artifact).get("optional") is not True and not places_of(mapping(artifact))
    ]
    return set(names_of(parameters)), set(names_of(artifacts))


def check_supplied(
    out: Gathered, arguments: Any, template: Mapping[str, Any], path: Path, *, name: str, is_entry: bool = False
) -> None:
    """Report missing required inputs of a template; arguments without an input are a warning.

    `is_entry`: the arguments are the workflow's, which any template may use.
    """
    wanted = ("parameters", "artifacts")
    called = f"template {name!r}" if name else "the inline template"
    inputs = mapping(template.get("inputs"))
    for field, given, missing in zip(wanted, supplied(arguments), needed(template), strict=True):
        declared = set(names_of(inputs.get(field)))
        word = field.removesuffix("s")
        for entry in sorted(missing - given):
            out.error("arguments", (*path, field), f"{called} needs {word} {entry!r}, which is not supplied")
        for entry in () if is_entry else sorted(given - declared):
            have = ", ".join(sorted(declared)) or "none"
            out.warning("arguments", (*path, field), f"{called} has no input {word} {entry!r}; it has: {have}")
