"""Convert requests to equivalent commands. Forms show them, so that users learn the commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from moorage.api.datasets import NewDataset
from moorage.api.jobs import NewJob
from moorage.api.maps import MapWorkers, NewMap

_SHELL = re.compile(r"[|&;<>()$`*?~\n]")


def command_words(text: str) -> tuple[str, ...]:
    """Split a command line into arguments; if it needs a shell (a pipe, a variable, two lines), use `sh -c`.

    Raises ValueError for an unclosed quotation.
    """
    text = text.replace("\r\n", "\n").strip()
    if _SHELL.search(text):
        shlex.split(text)  # to find an open quotation now, not in the pod
        return ("sh", "-c", text)
    return tuple(shlex.split(text))


def run_line(body: NewJob) -> str:
    """The `moor run` command that starts the same run."""
    again = ["rerun", body.code_of.rpartition("/")[2]] if body.code_of else ["run"]
    words = ["moor", *again, "-n", body.namespace]
    for option, value in (
        ("--name", body.name),
        ("--gpus", body.gpus or None),
        ("--gpu-type", body.gpu_type),
        ("--gpu-resource", body.gpu_resource),
        ("--gpu-claim", body.gpu_claim),
        ("--machine", body.machine),
        ("--cpu", body.cpu),
        ("--memory", body.memory),
        ("--time", body.time),
        ("--checkpoint", body.checkpoint),
        ("--working-dir", body.working_dir),
        ("--git", body.git),
        ("--image", body.image),
        ("--user", body.user),
        ("--grace-period", body.grace_period_seconds),
        ("--priority-class", body.priority_class),
        ("--queue", body.queue),
        ("--retries", body.retries or None),
        ("--restart-limit", body.restart_limit),
    ):
        words += _option(option, value)
    words += _repeated("--volume", body.volumes)
    words += _repeated("--dataset", body.datasets)
    words += _repeated("--env", _pairs(body.env))
    words += _repeated("--secret", body.secrets)
    words += _repeated("--label", _pairs(body.labels))
    words += [] if body.share is None else ["--share" if body.share else "--no-share"]
    words += ["--host-env"] if body.host_env else []
    return shlex.join([*words, "--", *body.command])


def map_line(namespace: str, body: NewMap, workers: MapWorkers, items: Iterable[str]) -> str:
    """The `moor map create` command for the same map; `items`: the options that select its items."""
    policy = body.policy
    words = ["moor", "map", "create", body.name, "-n", namespace, *items]
    for option, value in (
        ("--parallelism", workers.parallelism if workers.parallelism != 1 else None),
        ("--slots", workers.slots if workers.slots != 1 else None),
        ("--gpus", workers.gpus or None),
        ("--gpu-type", workers.gpu_type),
        ("--cpu", workers.cpu),
        ("--memory", workers.memory),
        ("--working-dir", workers.working_dir),
        ("--image", workers.image),
        ("--queue", workers.queue),
        ("--retries", policy.retries if policy.retries != type(policy)().retries else None),
        ("--time", None if policy.time_seconds is None else f"{policy.time_seconds:g}s"),
    ):
        words += _option(option, value)
    words += _repeated("--volume", workers.volumes)
    words += _repeated("--dataset", workers.datasets)
    words += _repeated("--env", _pairs(workers.env))
    words += _repeated("--secret", workers.secrets)
    words += ["--host-env"] if workers.host_env else []
    return shlex.join([*words, "--", *workers.command])


def dataset_line(body: NewDataset) -> str:
    """The `moor dataset create` command for the same dataset."""
    source: Mapping[str, Any] = body.spec.get("source") or {}
    words = ["moor", "dataset", "create", body.name, "-n", body.namespace]
    words += ["--source", str(source.get("url") or "")]
    words += _option("--size", body.spec.get("size"))
    words += _option("--storage-class", body.spec.get("storageClass"))
    words += _option("--secret", source.get("secret"))
    words += ["--anonymous"] if source.get("anonymous") else []
    words += ["--unpack"] if source.get("unpack") else []
    words += _repeated("--reader", body.spec.get("readers") or ())
    return shlex.join(words)


def _option(name: str, value: object) -> list[str]:
    return [] if value is None or value == "" else [name, str(value)]


def _repeated(name: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (name, value)]


def _pairs(values: Mapping[str, str]) -> Iterable[str]:
    return (f"{name}={value}" for name, value in values.items())
