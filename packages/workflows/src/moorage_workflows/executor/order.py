"""The order that `moorage_workflows.decide.workflows.executororders` wrote into the pod's annotation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moorage_workflows.executor.errors import StepError


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """An input artifact. `location`: {"key", "digest"} in our own store, or one store of Argo's.

    `archive`: "" means that the packing is detected. `below`: the path in a volume of main; None: `in/N`.
    """

    name: str
    location: Mapping[str, Any]
    archive: str = ""
    below: str | None = None
    mode: int | None = None
    recurse_mode: bool = False
    is_optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """An output parameter. `default` None: the file must exist."""

    name: str
    path: str
    default: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """An artifact to save. `kept`: the location of the artifact for later steps; empty: our own store.

    `key`: the key in our own store; "": the server chooses it.
    """

    name: str
    path: str
    archive: str = "tar"
    location: Mapping[str, Any] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)
    key: str = ""
    is_optional: bool = False
    mode: int | None = None
    level: int | None = None  # of gzip, 0 to 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The work of the executor in one pod.

    `workflow`: the uid of the Workflow. `brings_shell`: copy our shell into the pod, because the image of main may
    have none. `members`: the containers of a set that wait for each other; empty: there is no such set. `request`:
    the request of the part `http`. `data`: the source and transformation of the part `data`. `log`: the store for
    the log of main; None: our own.
    """

    workflow: str
    pod: str
    inputs: tuple[Input, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    artifacts: tuple[Output, ...] = ()
    keeps_result: bool = False
    keeps_logs: bool = False
    brings_shell: bool = False
    members: tuple[str, ...] = ()
    request: Mapping[str, Any] = field(default_factory=dict)
    log: Output | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def wraps(self) -> bool:
        return bool(self.parameters or self.artifacts or self.keeps_result or self.keeps_logs)

    @property
    def lines(self) -> list[str]:
        """The outputs that the script copies, a line each: parameters, then artifacts."""
        return [f"p {entry.path}" for entry in self.parameters] + [f"a {entry.path}" for entry in self.artifacts]


def read_order(path: Path) -> Order:
    """Raises StepError for a file that is not an order."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Order(
            workflow=document["workflow"],
            pod=document["pod"],
            inputs=tuple(_input(entry) for entry in document["inputs"]),
            parameters=tuple(Parameter(**entry) for entry in document["parameters"]),
            artifacts=tuple(_output(entry) for entry in document["artifacts"]),
            keeps_result=bool(document["result"]),
            keeps_logs=bool(document["logs"]),
            brings_shell=bool(document["shell"]),
            members=tuple(str(name) for name in document.get("set") or ()),
            request=document.get("http") or {},
            log=_log(document.get("log")),
            data=document.get("data") or {},
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StepError(f"the order of this pod cannot be read from {path}: {error}") from error


def _input(entry: Mapping[str, Any]) -> Input:
    return Input(
        name=entry["name"],
        location=entry["location"],
        archive=entry["archive"],
        below=entry["below"],
        mode=entry.get("mode"),
        recurse_mode=bool(entry.get("recurseMode")),
        is_optional=bool(entry.get("optional")),
    )


def _log(entry: Mapping[str, Any] | None) -> Output | None:
    return Output(name="", path="", location=entry["location"], kept=entry["kept"]) if entry else None


def _output(entry: Mapping[str, Any]) -> Output:
    return Output(
        name=entry["name"],
        path=entry["path"],
        archive=entry["archive"],
        location=entry["location"],
        kept=entry["kept"],
        key=entry.get("key") or "",
        is_optional=bool(entry.get("optional")),
        mode=entry.get("mode"),
        level=entry.get("level"),
    )
