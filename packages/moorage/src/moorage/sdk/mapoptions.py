"""The options of `moorage.map`, and the request that creates a map from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from moorage_kube.errors import UsageError

if TYPE_CHECKING:
    from moorage.decide.maps.mapjob import MapRequest

Where = Literal["cluster", "local"]
PLACES = ("cluster", "local")
SEQUENCES = ("volumes", "datasets", "secrets", "preflight_read", "preflight_write", "notify")
CLUSTER_ONLY = (
    "image",
    "cpu",
    "memory",
    "gpus",
    "gpu_type",
    "gpu_resource",
    "gpu_claim",
    *SEQUENCES,
    "working_dir",
    "queue",
    "spot",
)


class Options(Struct, frozen=True, kw_only=True):
    """The options of a map; strings have the format of the options of `moor map create`.

    `retries` None: 3 on a cluster, 0 on this machine. `time`: the time limit of an item, such as 5m, or seconds.
    `keep`: do not delete the map when it ends.
    """

    where: Where = "cluster"
    name: str | None = None
    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | os.PathLike[str] | None = None
    parallelism: int | None = None
    slots: int = 1
    cpu: str | float | None = None
    memory: str | None = None
    gpus: int = 0
    gpu_type: str | None = None
    gpu_resource: str | None = None
    gpu_claim: str | None = None
    image: str | None = None
    host_env: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    working_dir: str | None = None
    priority_class: str | None = None
    queue: str | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    rate: float | None = None
    retries: int | None = None
    time: str | float | None = None
    max_memory: str | None = None
    idempotent: bool = False
    priority: int = 0
    spot: bool = False
    restart_limit: int | None = None
    preflight_read: tuple[str, ...] = ()
    preflight_write: tuple[str, ...] = ()
    notify: tuple[str, ...] = ()
    progress: bool = True
    keep: bool = False


def options_of(given: Mapping[str, Any]) -> Options:
    known = Options.__struct_fields__
    unknown = [name for name in given if name not in known]
    if unknown:
        from difflib import get_close_matches

        near = get_close_matches(unknown[0], known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
        raise UsageError(f"unknown map option {unknown[0]!r}", hint=hint)
    made = Options(**given)
    if made.where not in PLACES:
        raise UsageError(f"invalid where {made.where!r}: use 'cluster' or 'local'")
    sequences: dict[str, Any] = {name: tuple(getattr(made, name)) for name in SEQUENCES}
    return replace(made, **sequences)


def check_local(options: Options) -> None:
    wrong = [name for name in CLUSTER_ONLY if getattr(options, name)]
    if wrong:
        raise UsageError(
            f"option {wrong[0]!r} cannot be used with where='local'", hint="leave it out, or use where='cluster'"
        )


def seconds_of(time: str | float | None) -> float | None:
    """Return the time limit of an item in seconds; None if there is no limit. Raises UsageError."""
    from moorage.decide.runs.timelimit import parse_time

    if not isinstance(time, str):
        return time
    try:
        return parse_time(time)
    except ValueError as error:
        raise UsageError(f"invalid time {time!r}: use a time such as 30s, 5m or 2h, or seconds") from error


def request_of(function: bytes, options: Options, name: str, namespace: str) -> MapRequest:
    # imported here: only maps on a cluster need it
    from moorage.decide.maps.mapjob import FUNCTION_WORD, MapRequest
    from moorage.decide.runs.request import RunRequest

    # the part that workers share with runs
    run = RunRequest(
        command=(FUNCTION_WORD,),
        namespace=namespace,
        name=name,
        cpu=None if options.cpu is None else str(options.cpu),
        memory=options.memory,
        gpus=options.gpus,
        gpu_type=options.gpu_type,
        gpu_resource=options.gpu_resource,
        gpu_claim=options.gpu_claim,
        queue=options.queue,
        volumes=options.volumes,
        datasets=options.datasets,
        secrets=options.secrets,
        working_dir=options.working_dir,
        priority_class=options.priority_class,
        env=tuple(f"{key}={value}" for key, value in options.env.items()),
        image=options.image,
        host_env=options.host_env,
    )
    # the part that only maps have
    return MapRequest(
        run=run,
        function=function,
        parallelism=1 if options.parallelism is None else options.parallelism,
        slots=options.slots,
        limits=tuple(f"{key}={value}" for key, value in options.limits.items()),
        rate=options.rate,
        retries=options.retries,
        time=options.time,
        max_memory=options.max_memory,
        idempotent=options.idempotent,
        priority=options.priority,
        spot=options.spot,
        restart_limit=options.restart_limit,
        preflight_read=options.preflight_read,
        preflight_write=options.preflight_write,
        notify=options.notify,
    )
