"""A run's options as a document: a file of `moor run -f`, and the stored options for `moor rerun`.

Names are those of the REST API: `gpus`, `gpuType`, `volumes`. Their spellings of the command line and of Python,
`gpu-type` and `gpu_type`, are read too.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from moorage.decide.runs.request import RunRequest, expanded
from moorage.model.names import COMMAND_ANNOTATION, OPTIONS_ANNOTATION
from moorage_kube.errors import Problems, UsageError
from moorage_kube.meta import annotations_of
from moorage_kube.resources import Obj
from moorage_kube.texts import camel

INTEGERS = ("gpus", "grace_period_seconds", "retries", "restart_limit")
LISTS = ("volumes", "datasets", "secrets")
FLAGS = ("host_env", "share", "live")
TEXTS = (
    "name", "namespace", "gpu_type", "gpu_resource", "gpu_claim", "machine", "cpu", "memory", "time",
    "checkpoint", "priority_class", "image", "user", "working_dir", "git", "queue",
)  # fmt: skip
FIELDS = ("command", *TEXTS, *INTEGERS, *LISTS, "env", "labels", *FLAGS)
OTHER_NAMES = {"args": "command", "cmd": "command"}
OPTIONS_MAX = 64 * 1024  # bytes of options that a run keeps; annotations may have 256 KiB in all
NEVER_STORED = ("name", "namespace")


def parse_run_file(document: Any) -> dict[str, Any]:
    """Parse a run file to options, by the field names of `RunRequest`. Raises Problems with all errors."""
    if not isinstance(document, Mapping):
        raise UsageError("a run's file holds its options, such as `gpus: 1` and `command: python train.py`")
    if "kind" in document and "apiVersion" in document:
        _refuse_manifest(document)
    options: dict[str, Any] = {}
    problems: list[tuple[str, str | None]] = []
    for key, value in document.items():
        field = _field(str(key))
        if field is None:
            problems.append(_unknown(str(key)))
        elif field in options:
            problems.append((f"{key}: {camel(field)} is given twice", None))
        elif value is not None:
            try:
                options[field] = _value(field, str(key), value)
            except UsageError as error:
                problems.append((error.message, error.hint))
    if problems:
        raise Problems(problems)
    return options


def options_of(request: RunRequest) -> str:
    """The options of a request that differ from the defaults, as JSON; empty where they are too long to store.

    Of variables only the names: the values are in the pod, and nowhere else.
    """
    options: dict[str, Any] = {}
    default = RunRequest(command=())
    for name in RunRequest.__struct_fields__:
        value = getattr(request, name)
        if name not in NEVER_STORED and value != getattr(default, name):
            options[name] = list(value) if isinstance(value, tuple) else value
    if request.shown == request.command:
        options.pop("shown", None)
    if request.env:
        options["env"] = list(dict.fromkeys(text.partition("=")[0] for text in request.env))
    text = json.dumps(options, separators=(",", ":"))
    return text if len(text) <= OPTIONS_MAX else ""


def stored_request(job: Obj) -> RunRequest | None:
    """The request of a run, without its name, from its first Job. None if the Job does not store it."""
    options = _stored_options(annotations_of(job).get(OPTIONS_ANNOTATION, ""))
    if options is None:
        return None
    containers: Any = job["spec"]["template"]["spec"].get("containers") or [{}]
    values = {str(env.get("name")): str(env.get("value", "")) for env in containers[0].get("env") or ()}
    env = tuple(f"{name}={expanded(values[name])}" for name in options.pop("env", ()) if name in values)
    return RunRequest(env=env, **{"shown": options["command"]} | options)


def _stored_options(text: str) -> Any:
    """Parse the options that `options_of` wrote to a dict by field. None if the text has another form."""
    try:
        options = json.loads(text)
    except ValueError:
        return None
    known = set(RunRequest.__struct_fields__) - set(NEVER_STORED)
    if not isinstance(options, dict):
        return None
    if not options.get("command") or set(options) - known:
        return None
    for name, value in options.items():
        wanted = int if name in INTEGERS else bool if name in FLAGS else str if name in TEXTS else list
        if not isinstance(value, wanted):
            return None
        if isinstance(value, list) and not all(isinstance(word, str) for word in value):
            return None
    return {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}


def _refuse_manifest(document: Mapping[str, Any]) -> None:
    metadata = document.get("metadata")
    notes = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    if isinstance(notes, Mapping) and COMMAND_ANNOTATION in notes:
        hint = "write the options of the run: moor run --help"
    else:
        hint = "create it as it is: kubectl apply -f FILE; a run's file has the options of moor run"
    raise UsageError(f"the file is a manifest of kind {document['kind']}, not the options of a run", hint=hint)


def _plain(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _unknown(key: str) -> tuple[str, str | None]:
    """The message and the hint for a name of an unknown option."""
    other = next((new for old, new in OTHER_NAMES.items() if _plain(old) == _plain(key)), None)
    if other is not None:
        return f"unknown field {key!r}: use {other!r}", None
    names = {_plain(field): camel(field) for field in FIELDS}
    near = get_close_matches(_plain(key), list(names), n=1)
    hint = f"did you mean {names[near[0]]}?" if near else f"use {', '.join(names.values())}"
    return f"unknown field {key!r}", hint


def _field(key: str) -> str | None:
    plain = _plain(key)
    return next((field for field in FIELDS if _plain(field) == plain), None)


def _value(field: str, path: str, value: Any) -> Any:
    """Convert a value of the file to the type of the `RunRequest` field."""
    if field == "command":
        return _command(path, value)
    if field == "env":
        return _env(path, value)
    if field == "labels":
        return _labels(path, value)
    if field in FLAGS:
        if not isinstance(value, bool):
            raise UsageError(f"{path}: invalid value {value!r}: use true or false")
        return value
    if field in INTEGERS:
        if not isinstance(value, int) or isinstance(value, bool):
            raise UsageError(f"{path}: invalid value {value!r}: use a whole number")
        return value
    if field in LISTS:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise UsageError(f"{path}: invalid value {value!r}: use a list of NAME:/PATH")
        return tuple(items)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UsageError(f"{path}: invalid value {value!r}: use a string")
    return str(value)


def _command(path: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            raise UsageError(f"{path}: invalid command: {error}", hint="write it as a list of words") from error
    if not isinstance(value, list):
        raise UsageError(f"{path}: invalid value {value!r}: use a string or a list of words")
    for at, word in enumerate(value):
        if isinstance(word, bool) or not isinstance(word, str | int | float):
            raise UsageError(f"{path}[{at}]: invalid value {word!r}: use a string")
    return tuple(str(word) for word in value)


def _env(path: str, value: Any) -> tuple[str, ...]:
    """Convert a mapping or list to NAME=VALUE texts. NAME without a value takes the caller's variable."""
    return _pairs(path, value, "NAME", bare=True)


def _labels(path: str, value: Any) -> tuple[str, ...]:
    """Convert a mapping or list to KEY=VALUE texts."""
    return _pairs(path, value, "KEY", bare=False)


def _pairs(path: str, value: Any, word: str, *, bare: bool) -> tuple[str, ...]:
    """Pairs of a mapping or a list. `word`: the name of their left side; `bare`: it needs no value."""
    if isinstance(value, Mapping):
        for name, text in value.items():
            if isinstance(text, bool) or not (isinstance(text, str | int | float) or (bare and text is None)):
                raise UsageError(f"{path}.{name}: invalid value {text!r}: use a string", hint="put it in quotes")
        return tuple(str(name) if text is None else f"{name}={text}" for name, text in value.items())
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise UsageError(f"{path}: invalid value {value!r}: use {word}: VALUE, or a list of {word}=VALUE")
