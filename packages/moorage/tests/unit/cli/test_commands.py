"""One name for one option: in the command line, files, the REST API and Python."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import click
import msgspec
import pytest

import moorage.api
from moorage.api.fields import Query, Request
from moorage.cli.commands import COMMANDS, load
from moorage.sdk import aio
from moorage.sdk.aiocontainers import AsyncContainers
from moorage.sdk.group import Group
from moorage.sdk.mapoptions import Options
from moorage_testing.reference.options import CLI, FILE, PYTHON, REST, SUBJECTS, name_of, options_of, ways_of

OF_A_TERMINAL = {"output", "watch", "once", "wait", "follow", "yes"}  # only the command line has them

# Options that some ways in lack, by subject: which ways have them. An option with another name in one way in is
# missing in the others: give it the name that they have.
PARTIAL: dict[str, dict[str, set[str]]] = {
    "A run": {
        "dry_run": {CLI, REST, PYTHON},
        "key": {PYTHON},  # the header Idempotency-Key
        "file": {CLI},
        "code_of": {REST},  # moor rerun
        "live": {CLI, "file"},  # the folder of the caller
    },
    "A map": {
        **dict.fromkeys(("request", "loss_limit", "backoff", "max_backoff", "lease", "batch_items"), {REST}),
        **dict.fromkeys(("where", "context", "kubeconfig", "progress", "keep"), {PYTHON}),
        **dict.fromkeys(("file", "glob", "range", "query", "database", "format", "item_seconds", "open"), {CLI}),
        **dict.fromkeys(("machines", "seconds", "sample", "deadline", "budget"), {CLI}),  # its plan
        **dict.fromkeys(("function", "dry_run"), {CLI}),
        "command": {CLI, REST},  # a function in Python
    },
    "A workspace": {
        **dict.fromkeys(("image_pull_secrets", "home", "start", "stop", "time_zone"), {CLI, REST}),  # `spec`
        **dict.fromkeys(("app", "storage_class", "mount_path"), {REST}),
        **dict.fromkeys(("spec", "key"), {PYTHON}),
    },
    "The end of a workspace": {"dry_run": {CLI}},
    "A volume": {"key": {PYTHON}, "dry_run": {CLI}},
    "A dataset": {"key": {PYTHON}},
    "A list of runs": {
        "all_namespaces": {CLI, PYTHON},  # no namespace over REST
        **dict.fromkeys(("mine", "active"), {CLI, REST}),
        "attempts": {REST},  # the command line always asks for them, Python for one run
    },
    "The logs of a run": dict.fromkeys(("since", "prefix"), {CLI}),
    "The wait for a run": {"for": {CLI}},
    "A workflow": {
        "workflow": {REST, PYTHON},  # a FILE
        **dict.fromkeys(("create_options", "instance_id", "server_dry_run"), {REST}),  # of Argo's clients
        "parameter_file": {CLI},
        "key": {PYTHON},
    },
    "A list of workflows": {"all_namespaces": {CLI, PYTHON}},
    "The logs of a workflow": dict.fromkeys(("container", "prefix"), {CLI}),
    "The retry of a workflow": {"parameters": {REST}},  # of Argo's clients; refused
    "GPU-hours": {"until": {REST, PYTHON}},
    "The audit log": {"before": {REST}},
    "A token": dict.fromkeys(("server", "save", "plain"), {CLI}),
}

# Other words for an option, and its name. No way in may have the word.
OTHER_WORDS = {
    "mem": "memory", "ram": "memory", "memory_limit": "memory, max_memory", "cpus": "cpu", "gpu": "gpus",
    "num_gpus": "gpus", "gpu_count": "gpus", "gpu_kind": "gpu_type", "accelerator": "gpu_type", "workdir":
    "working_dir", "cwd": "working_dir", "directory": "working_dir", "grace": "grace_period",
    "stop_timeout": "grace_period", "time_limit": "time", "max_time": "time", "max_duration": "time",
    "environment": "env", "envs": "env", "mount": "volumes", "mounts": "volumes", "binds": "volumes",
    "class": "storage_class", "storage_class_name": "storage_class", "priority_class_name":
    "priority_class", "mode": "access_mode", "access_modes": "access_mode", "zone": "time_zone", "timezone":
    "time_zone", "tz": "time_zone", "ttl": "expiration", "expires": "expiration", "lifetime": "expiration",
    "pull_secret": "image_pull_secrets", "person": "user", "max_retries": "retries", "backoff_limit":
    "retries", "max_restarts": "restart_limit", "workers_max": "parallelism", "ns": "namespace",
    "labels_selector": "selector", "label_selector": "selector", "everywhere": "all_namespaces",
}  # fmt: skip


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.title)
def test_an_option_has_one_name_in_every_way_in(subject):
    ways = set(ways_of(subject))
    had = {name: set(option.spellings) for name, option in options_of(subject).items()}
    partial = {name: by for name, by in had.items() if by != ways}
    others = {name: by for name, by in partial.items() if by != {CLI} or name not in OF_A_TERMINAL}
    assert others == PARTIAL.get(subject.title, {}), "name it as the others do, or say here which ways in have it"


def test_containers_in_python_have_the_names_of_runs():
    names = {name for name in inspect.signature(AsyncContainers.create).parameters if name != "self"}
    run = {*options_of(SUBJECTS[0]), "name", "namespace"}
    assert names - run == {"ports", "auto_remove", "body"}


def names_of_the_command_line(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    for param in command.params:
        if isinstance(param, click.Option):
            yield from ((path, name_of(text.lstrip("-"))) for text in param.opts if text.startswith("--"))
    if isinstance(command, click.Group):
        for name, subcommand in command.commands.items():
            yield from names_of_the_command_line(subcommand, f"{path} {name}")


def names_of_the_rest_api() -> Iterator[tuple[str, str]]:
    for module in pkgutil.iter_modules(moorage.api.__path__):
        for kind in vars(importlib.import_module(f"moorage.api.{module.name}")).values():
            if isinstance(kind, type) and issubclass(kind, Request | Query):
                yield from ((kind.__name__, name_of(known.encode_name)) for known in msgspec.structs.fields(kind))


def names_of_python() -> Iterator[tuple[str, str]]:
    for kind in vars(aio).values():
        if isinstance(kind, type) and issubclass(kind, Group):
            for method, function in inspect.getmembers(kind, inspect.isfunction):
                if not method.startswith("_"):
                    where = f"{kind.__name__}.{method}"
                    yield from ((where, name_of(name)) for name in inspect.signature(function).parameters)
    yield from (("moorage.map", name_of(name)) for name in Options.__struct_fields__)


def all_names() -> Iterator[tuple[str, str]]:
    for _, name, target, _ in COMMANDS:
        yield from names_of_the_command_line(load(target), f"moor {name}")
    yield from names_of_the_rest_api()
    yield from names_of_python()


def test_no_way_in_has_another_word_for_an_option():
    others = [f"{where}: {name}: use {OTHER_WORDS[name]}" for where, name in all_names() if name in OTHER_WORDS]
    assert others == []


def test_names_are_read_in_each_spelling():
    spellings = ("grace-period", "gracePeriodSeconds", "grace_period_seconds")
    assert {name_of(text) for text in spellings} == {"grace_period"}
    assert name_of("maxMemoryBytes") == name_of("max-memory") == "max_memory"


def test_the_names_in_use_are_more_than_a_few():
    """The walk sees all three ways in."""
    names = set(all_names())
    assert {("moor map create", "max_memory"), ("MapWorkers", "working_dir"), ("moorage.map", "time")} <= names
    assert FILE in ways_of(SUBJECTS[0])
