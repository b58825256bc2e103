"""The options of `moorage.map`, and the request that creates a map from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from msgspec import Struct, field, structs

from moorage_kube.errors import UsageError

if TYPE_CHECKING:
    from moorage.decide.maps.mapjob import MapRequest

Where = Literal["cluster", "local"]
OnError = Literal["raise", "return"]
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

    `retries`: how often a failed item runs again (None: 0); the items of lost workers always do. `time`: the time
    limit of an item, such as 5m, or seconds. `keep`: do not delete the map when it ends.
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


class MapOptions(TypedDict, total=False):
    """The names of `Options` as keyword arguments, for type checkers and editors."""

    where: Where
    name: str | None
    namespace: str | None
    context: str | None
    kubeconfig: str | os.PathLike[str] | None
    parallelism: int | None
    slots: int
    cpu: str | float | None
    memory: str | None
    gpus: int
    gpu_type: str | None
    gpu_resource: str | None
    gpu_claim: str | None
    image: str | None
    host_env: bool
    env: Mapping[str, str]
    volumes: Sequence[str]
    datasets: Sequence[str]
    secrets: Sequence[str]
    working_dir: str | None
    priority_class: str | None
    queue: str | None
    limits: Mapping[str, int]
    rate: float | None
    retries: int | None
    time: str | float | None
    max_memory: str | None
    idempotent: bool
    priority: int
    spot: bool
    restart_limit: int | None
    preflight_read: Sequence[str]
    preflight_write: Sequence[str]
    notify: Sequence[str]
    progress: bool
    keep: bool


class MapAndReadOptions(MapOptions, total=False):
    """The options of a map, and of reading its results."""

    ordered: bool
    on_error: OnError


F = TypeVar("F", bound=Callable[..., Any])


def with_named_options(options: type[MapOptions]) -> Callable[[F], F]:
    """Show the options by name in the signature of a function that takes them as `**options`."""
    import inspect

    defaults = {"ordered": True, "on_error": "raise"} | structs.asdict(Options())
    keyword = inspect.Parameter.KEYWORD_ONLY
    named = [
        inspect.Parameter(name, keyword, default=defaults[name], annotation=kind.__forward_arg__)
        for name, kind in options.__annotations__.items()
    ]

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        others = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*others, *named])  # type: ignore[attr-defined]
        return function

    return decorate


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
    return structs.replace(made, **sequences)


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
