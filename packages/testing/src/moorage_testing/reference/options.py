"""A table of each option in all interfaces: the command line, files, the REST API and Python.

This module only defines which command, type and method belong together. Names, meanings and defaults are read
from click, from the types of `moorage.api` and from signatures. Two names are the same option if their words
are the same: spelling, a unit at the end (`timeSeconds`) and the plural of a repeatable flag (`--volume`,
`volumes`) do not count.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_origin

import click
import msgspec

from moorage.api.datasets import NewDataset
from moorage.api.jobs import JobChoice, JobLogs, NewJob
from moorage.api.logins import TokenRequest
from moorage.api.maps import MapPolicy, MapWorkers, NewMap
from moorage.api.people import AuditQuery
from moorage.api.usage import TopQuery
from moorage.api.volumes import NewVolume
from moorage.api.workflows import NewWorkflow, RetryWorkflow, SetNode, WorkflowChoice, WorkflowLogs
from moorage.api.workspaces import Deletion, NewWorkspace
from moorage.cli.commands import COMMANDS, load
from moorage.cli.session import target_options
from moorage.decide.runs.runfile import FIELDS
from moorage.model.dataset import DatasetSource, DatasetSpec
from moorage.model.workspace import Home, Resources, Schedule, WorkspaceSpec
from moorage.sdk.aio import AsyncClient, AsyncDatasets, AsyncJobs, AsyncVolumes, AsyncWorkflows, AsyncWorkspaces
from moorage.sdk.mapoptions import Options
from moorage_kube.texts import camel
from moorage_testing.reference.kinds import cell

UNITS = ("_seconds", "_bytes")
CLI, FILE, REST, PYTHON = WAYS = ("command line", "file", "REST API", "Python")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A type of the REST API with options as its fields. `names`: the option names of fields with another name."""

    kind: type[msgspec.Struct]
    path: str = ""
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A subject that several interfaces share: the commands, the types, the function of Python."""

    title: str
    commands: tuple[str, ...]
    parts: tuple[Part, ...] = ()
    python: Callable[..., Any] | None = None
    has_file: bool = False


SUBJECTS = (
    Subject(
        title="A run",
        commands=("run", "rerun"),
        parts=(Part(kind=NewJob),),
        python=AsyncJobs.run,
        has_file=True,
    ),
    Subject(
        title="A map",
        commands=("map create",),
        parts=(Part(kind=NewMap), Part(kind=MapWorkers, path="workers."), Part(kind=MapPolicy, path="policy.")),
        python=Options,
    ),
    Subject(
        title="A workspace",
        commands=("workspace create",),
        parts=(
            Part(kind=NewWorkspace),
            Part(kind=WorkspaceSpec, path="spec."),
            Part(kind=Resources, path="spec.resources."),
            Part(kind=Home, path="spec.home.", names={"claimName": "home", "size": "home_size"}),
            Part(kind=Schedule, path="spec.schedule."),
        ),
        python=AsyncWorkspaces.create,
    ),
    Subject(
        title="The end of a workspace",
        commands=("workspace delete",),
        parts=(Part(kind=Deletion),),
        python=AsyncWorkspaces.delete,
    ),
    Subject(
        title="A volume",
        commands=("volume create",),
        parts=(Part(kind=NewVolume),),
        python=AsyncVolumes.create,
    ),
    Subject(
        title="A dataset",
        commands=("dataset create",),
        parts=(
            Part(kind=NewDataset),
            Part(kind=DatasetSpec, path="spec."),
            Part(kind=DatasetSource, path="spec.source.", names={"url": "source"}),
        ),
        python=AsyncDatasets.create,
    ),
    Subject(title="A list of runs", commands=("jobs",), parts=(Part(kind=JobChoice),), python=AsyncJobs.list),
    Subject(title="The logs of a run", commands=("logs",), parts=(Part(kind=JobLogs),), python=AsyncJobs.logs),
    Subject(title="The wait for a run", commands=("wait",), python=AsyncJobs.wait),
    Subject(
        title="A workflow",
        commands=("workflow submit",),
        parts=(Part(kind=NewWorkflow),),
        python=AsyncWorkflows.submit,
    ),
    Subject(
        title="A list of workflows",
        commands=("workflow list",),
        parts=(Part(kind=WorkflowChoice),),
        python=AsyncWorkflows.list,
    ),
    Subject(
        title="The logs of a workflow",
        commands=("workflow logs",),
        parts=(Part(kind=WorkflowLogs),),
        python=AsyncWorkflows.logs,
    ),
    Subject(
        title="The retry of a workflow",
        commands=("workflow retry",),
        parts=(Part(kind=RetryWorkflow),),
        python=AsyncWorkflows.retry,
    ),
    Subject(
        title="A step that waits for a person",
        commands=("workflow node set",),
        parts=(Part(kind=SetNode),),
        python=AsyncWorkflows.set_node,
    ),
    Subject(title="GPU-hours", commands=("top",), parts=(Part(kind=TopQuery),), python=AsyncClient.top),
    Subject(title="The audit log", commands=("audit",), parts=(Part(kind=AuditQuery),)),
    Subject(title="A token", commands=("token", "kubeconfig"), parts=(Part(kind=TokenRequest),)),
)
NAMED_ELSEWHERE = {"namespace", "name"}  # `-n` of every command; an argument, or part of the path
QUANTITIES = {"cpu", "memory", "max_memory", "size", "home_size"}
TIMES = {"time", "timeout", "expiration", "since", "until", "deadline"}  # texts on the command line
MEANINGS = {  # of options that only Python has
    "key": "The same key again returns the object of the first request.",
    "where": "cluster, or local: on this machine, without a cluster.",
    "context": "Context of the kubeconfig.",
    "kubeconfig": "Path of the kubeconfig.",
    "progress": "Show a progress bar on a terminal.",
    "keep": "Keep the map when all its results were read.",
    "spec": "More fields of the kind Workspace; they win over the other options.",
}
GROUPS = {"policy", "workers", "spec", "resources", "schedule", "home", "source"}  # fields that hold options


@dataclass(slots=True)
class Option:
    """An option by its name: its spelling in each interface, and its meaning."""

    name: str
    spellings: dict[str, str] = field(default_factory=dict)
    meaning: str = ""
    default: str = ""


def options_of(subject: Subject) -> dict[str, Option]:
    """Return the options of a subject by name: first those of the REST API, in its order."""
    options: dict[str, Option] = {}

    def put(way: str, name: str, spelling: str, meaning: str = "", default: object = None) -> None:
        option = options.setdefault(name, Option(name))
        option.spellings.setdefault(way, spelling)
        option.meaning = option.meaning or meaning
        if not option.default and isinstance(default, str | int | float) and not isinstance(default, bool):
            option.default = str(default)

    for part in subject.parts:
        for name, spelling, meaning, default in _fields(part):
            put(REST, name, spelling, meaning, default)
    if subject.has_file:
        for name in FIELDS:
            put(FILE, name_of(name), camel(name))
    for parameter in _parameters(subject.python):
        put(PYTHON, name_of(parameter.name), parameter.name, default=_default(parameter))
    for typed in _typed(subject):
        name = _long(typed)[2:].replace("-", "_")
        if typed.multiple and f"{name}s" in options:
            name += "s"
        put(CLI, name, _long(typed), _help(typed), _default(typed))
    if any(param.name == "command" for path in subject.commands for param in command_of(path).params):
        put(CLI, "command", "COMMAND")
    return {name: option for name, option in options.items() if name not in NAMED_ELSEWHERE}


def ways_of(subject: Subject) -> tuple[str, ...]:
    """Return the interfaces of a subject."""
    has = {
        CLI: bool(subject.commands),
        FILE: subject.has_file,
        REST: bool(subject.parts),
        PYTHON: subject.python is not None,
    }
    return tuple(way for way in WAYS if has[way])


def name_of(spelling: str) -> str:
    """Return the words of an option without its unit.

    GracePeriodSeconds and grace-period are both grace_period.
    """
    words = re.sub(r"([a-z])([A-Z])", r"\1_\2", spelling).replace("-", "_").lower().rstrip("_")
    return next((words.removesuffix(unit) for unit in UNITS if words.endswith(unit)), words)


def options_page(note: str) -> str:
    """Return the page with the table of each subject."""
    out = [note, "# Options in every way in\n", INTRODUCTION]
    for subject in SUBJECTS:
        ways = ways_of(subject)
        typed = ", ".join(f"`moor {command}`" for command in subject.commands)
        out += [f"## {subject.title}\n", f"{typed}\n"]
        out.append("| option | " + " | ".join(ways) + " | meaning | unit | default |")
        out.append("|---" * (len(ways) + 4) + "|")
        for option in options_of(subject).values():
            spelt = [f"`{option.spellings[way]}`" if way in option.spellings else "" for way in ways]
            words = option.name.replace("_", " ")
            meaning = option.meaning or MEANINGS.get(option.name, "")
            cells = [words, *spelt, cell(meaning), unit_of(option), cell(option.default)]
            out.append("| " + " | ".join(cells) + " |")
        out.append("")
    return "\n".join(out)


def unit_of(option: Option) -> str:
    """The unit of a value; empty for a name, a number of things, or a choice."""
    units = [
        unit
        for unit in ("seconds", "bytes")
        if any(spelling.lower().endswith(unit) for spelling in option.spellings.values())
    ]
    units += ["quantity, such as 8Gi or 500m"] if option.name in QUANTITIES else []
    units += ["time, such as 2h"] if option.name in TIMES else []
    return " or ".join(units)


INTRODUCTION = """\
An option has the same name everywhere. Only its spelling differs: `--gpu-type` on the command line, `gpuType` in
the REST API, files and kinds, `gpu_type` in Python. The words are those of Kubernetes, or of Docker if Kubernetes
has none.

- A flag that may be repeated is in the singular, its list in the plural: `--volume`, `volumes`.
  `env` and `notify` are the same in both.
- In files, the REST API and Python, the name of a number ends with its unit: `gracePeriodSeconds`. A text has the
  unit in its value: `2h`, `8Gi`.
- A class is named by its kind: `storageClass`, `priorityClass`.
- `time` is the time limit of a run or an item, `timeout` that of a waiting command. `memory` is the memory limit,
  `maxMemory` its highest value.
- Containers have Docker's names in Docker's API. `client.containers.create` has the names of this page.

An empty cell means that the option does not exist there. See also [Commands](commands.md) and
[HTTP API](http-api.md).
"""


def _fields(part: Part) -> Iterator[tuple[str, str, str, object]]:
    """Yield name, spelling, meaning and default of each field that is an option."""
    for known in msgspec.structs.fields(part.kind):
        own = part.names.get(known.encode_name)
        if own is None and known.encode_name in GROUPS:
            continue
        name = own or name_of(known.encode_name)
        default = None if known.default is msgspec.NODEFAULT else known.default
        yield name, f"{part.path}{known.encode_name}", _meaning(known.type), default


def _meaning(kind: Any) -> str:
    """The description of a type."""
    if get_origin(kind) is Annotated:
        inner, *metadata = get_args(kind)
        texts = [meta.description for meta in metadata if isinstance(meta, msgspec.Meta) and meta.description]
        return texts[0] if texts else _meaning(inner)
    return ""


def _parameters(function: Callable[..., Any] | None) -> list[inspect.Parameter]:
    if function is None:
        return []
    return [param for param in inspect.signature(function).parameters.values() if param.name != "self"]


def _typed(subject: Subject) -> Iterator[click.Option]:
    """Yield the options of the subject's commands, without the options of all commands."""
    common = {param.name for param in _common().params}
    for path in subject.commands:
        for param in command_of(path).params:
            if isinstance(param, click.Option) and param.name not in common:
                yield param


def command_of(path: str) -> click.Command:
    """Return the command with this path, such as `map create`."""
    first, *rest = path.split()
    command = load(next(target for _, name, target, _ in COMMANDS if name == first))
    for name in rest:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    return command


def _common() -> click.Command:
    @click.command()
    @target_options
    def command(**_: object) -> None:
        pass

    return command


def _long(option: click.Option) -> str:
    return next(text for text in option.opts if text.startswith("--"))


def _help(option: click.Option) -> str:
    return (option.help or "").removesuffix(" Repeatable.")


def _default(owner: click.Option | inspect.Parameter) -> object:
    default = owner.default
    if default is inspect.Parameter.empty or not isinstance(default, str | int | float):
        return None
    return default
