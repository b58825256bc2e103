"""`argo submit` inside of a container's command: the workflow that a CronJob starts by it.

https://argo-workflows.readthedocs.io/en/latest/cli/argo_submit/
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct, field

SHELLS = ("sh", "bash", "dash", "ash", "zsh")
_SHELL_OPTION = re.compile(r"-[a-z]*c")
_SUBSTITUTION = re.compile(r"`([^`]*)`|\$\(([^()]*)\)")
_MARK = re.compile("\x00([0-9]+)\x00")
_DATE = re.compile(r"date\s+(?:-u\s+|--utc\s+)?['\"]?\+([^'\"]*)['\"]?")
_OPERATORS = frozenset(";|&<>()")
_CALL = re.compile(r"\bargo(?:\s|['\",\]])+submit\b")

# option → the field of Submit it sets; "": it is read and has no effect on the run; None: a flag without effect
_VALUED: Mapping[str, str] = {
    "--from": "source",
    "--name": "name",
    "--generate-name": "name",
    "-p": "parameter",
    "--parameter": "parameter",
    "-l": "labels",
    "--labels": "labels",
    "--entrypoint": "entrypoint",
    "--serviceaccount": "service_account",
    "--priority": "priority",
    "-n": "namespace",
    "--namespace": "namespace",
    "-o": "",
    "--output": "",
}
_FLAGS = ("--wait", "-w", "--watch", "--log", "--strict", "--strict=true", "--strict=false", "--wait=true")
_TEMPLATES: Mapping[str, bool] = {  # word before the slash → whether it is a ClusterWorkflowTemplate
    **dict.fromkeys(("workflowtemplate", "workflowtemplates", "wftmpl"), False),
    **dict.fromkeys(("clusterworkflowtemplate", "clusterworkflowtemplates", "clusterwftmpl", "cwft"), True),
}
_DATES: Mapping[str, str] = {  # letters of date(1) → Argo's tag of the moment at which the Workflow was created
    **{letter: f"{{{{workflow.creationTimestamp.{letter}}}}}" for letter in "YmdHMSyj"},
    "s": "{{workflow.creationTimestamp.s}}",
}
_SHORTHANDS: Mapping[str, str] = {"F": "%Y-%m-%d", "T": "%H:%M:%S"}


class Submit(Struct, frozen=True, kw_only=True):
    """The arguments of one `argo submit --from TEMPLATE`. `monitor`: KEY, if `cronitor exec KEY` runs it."""

    template: str
    is_cluster: bool = False
    name: str = ""  # as typed; the runs of a CronWorkflow have other names
    parameters: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    entrypoint: str = ""
    service_account: str = ""
    priority: int | None = None
    monitor: str = ""
    has_dates: bool = False  # a parameter had the output of `date`, and has a tag now


class NotConverted(Struct, frozen=True):
    """The reason why a command that calls `argo submit` cannot be converted."""

    reason: str


def parse_submit(words: Sequence[str], namespace: str = "") -> Submit | NotConverted | None:
    """Read a container's command and arguments; None if they do not call `argo submit`.

    `namespace`: the namespace of the CronJob; a submit into another namespace is not converted.
    """
    if not _CALL.search(" ".join(words)):
        return None
    try:
        return _submit(words, namespace)
    except _No as no:
        return NotConverted(str(no))


class _No(Exception):
    """The command cannot be converted; the message is the reason."""


def _submit(words: Sequence[str], namespace: str) -> Submit:
    monitor = ""
    words = list(words)
    if words[:2] == ["cronitor", "exec"] and len(words) > 2:
        monitor, words = words[2], words[3:]
    if words and words[0].rpartition("/")[2] in SHELLS:
        words = words[1:]
        while words and words[0].startswith("-") and not _SHELL_OPTION.fullmatch(words[0]):
            words = words[1:]
        if len(words) < 2 or not _SHELL_OPTION.fullmatch(words[0]):
            raise _No("the shell is not called with -c and one script")
        words, substitutions = _words_of(words[1])
    else:
        substitutions = []
    if words[:1] == ["exec"]:
        words = words[1:]
    if words[:2] == ["cronitor", "exec"] and len(words) > 2:
        monitor, words = words[2], words[3:]
    if len(words) < 2 or words[0].rpartition("/")[2] != "argo" or words[1] != "submit":
        raise _No("something else is called around `argo submit`")
    return _parsed(words[2:], substitutions, namespace, monitor)


def _words_of(script: str) -> tuple[list[str], list[str]]:
    """The words of a script of one command, and the substitutions in it; marks replace them in the words."""
    substitutions: list[str] = []

    def mark(match: re.Match[str]) -> str:
        substitutions.append((match[1] or match[2] or "").strip())
        return f"\x00{len(substitutions) - 1}\x00"

    text = _SUBSTITUTION.sub(mark, script.replace("\x00", "").replace("\\\n", " "))
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("#", "set -"))]
    if len(lines) != 1:
        raise _No("the script has more than one command")
    lexer = shlex.shlex(lines[0], posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise _No(f"the script cannot be read: {error}") from None
    if any(word and set(word) <= _OPERATORS for word in words):
        raise _No("the script does more than submit one workflow")
    return words, substitutions


def _parsed(words: Sequence[str], substitutions: Sequence[str], namespace: str, monitor: str) -> Submit:
    # options of the command line, with substitutions as marks
    source = ""
    name = entrypoint = account = ""
    priority: int | None = None
    parameters: dict[str, str] = {}
    labels: dict[str, str] = {}
    has_dates = False
    for option, value in _options(words):
        target = _VALUED[option]
        if target == "name":
            name = _MARK.sub(lambda match: f"$({substitutions[int(match[1])]})", value)
            continue
        # all other values are plain strings, or dates that the workflow computes itself
        text, is_dated = _text(option, value, substitutions)
        has_dates |= is_dated
        if target == "source":
            source = text
        elif target == "parameter":
            key, equals, given = text.partition("=")
            if not equals:
                raise _No(f"the parameter {text!r} has no value")
            parameters[key] = given
        elif target == "labels":
            for pair in filter(None, text.split(",")):
                key, _, given = pair.partition("=")
                labels[key] = given
        elif target == "entrypoint":
            entrypoint = text
        elif target == "service_account":
            account = text
        elif target == "namespace" and text != namespace:
            raise _No(f"it submits into the namespace {text!r}, which is not the CronJob's own")
        elif target == "priority":
            if not re.fullmatch(r"-?[0-9]{1,9}", text):
                raise _No(f"the priority {text!r} is not a number")
            priority = int(text)
    # only a submission from a template can become a reference
    if not source:
        raise _No("it submits a file, not --from a template")
    word, slash, template = source.partition("/")
    if not slash or not template or word.lower() not in _TEMPLATES:
        raise _No(f"--from {source} is not a WorkflowTemplate")
    return Submit(
        template=template,
        is_cluster=_TEMPLATES[word.lower()],
        name=name,
        parameters=parameters,
        labels=labels,
        entrypoint=entrypoint,
        service_account=account,
        priority=priority,
        monitor=monitor,
        has_dates=has_dates,
    )


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, value) for each option with a value, and skip flags. Raises _No for unknown options."""
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word in _FLAGS:
            continue
        if not word.startswith("-"):
            raise _No("it submits a file, not --from a template")
        option, equals, value = word.partition("=")
        if option not in _VALUED:
            raise _No(f"the option {option} cannot be converted")
        if not equals:
            if index >= len(words):
                raise _No(f"the option {option} has no value")
            value = words[index]
            index += 1
        yield option, value


def _text(option: str, value: str, substitutions: Sequence[str]) -> tuple[str, bool]:
    """Return the value with each `date` command replaced by a tag, and whether there was such a command."""

    def tag(match: re.Match[str]) -> str:
        command = substitutions[int(match[1])]
        call = _DATE.fullmatch(command)
        if not call:
            raise _No(f"{option} has the output of a command: {command}")
        return _tags(call[1])

    if "$" in _MARK.sub("", value):
        raise _No(f"{option} has a variable of the shell: {value}")
    text = _MARK.sub(tag, value)
    return text, text != value


def _tags(form: str) -> str:
    for letter, meaning in _SHORTHANDS.items():
        form = form.replace(f"%{letter}", meaning)

    def tag(match: re.Match[str]) -> str:
        if match[1] not in _DATES:
            allowed = ", ".join(f"%{letter}" for letter in (*_DATES, *_SHORTHANDS))
            raise _No(f"`date` is called with %{match[1]}, which cannot be converted: use {allowed}")
        return _DATES[match[1]]

    return re.sub(r"%(.?)", tag, form)
