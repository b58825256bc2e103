"""How a map is made, in the words of Python: the options of `moorage.map`, and the request that they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from moorage.errors import UsageError

if TYPE_CHECKING:
    from moorage.decide.maps.mapjob import MapRequest

Where = Literal["cluster", "local"]
PLACES = ("cluster", "local")


class Resources(TypedDict, total=False):
    """Of one worker, as `moor map create` takes them."""

    cpu: str | float
    memory: str
    gpus: int
    gpu_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a map is made. `retries` None: 3 on a cluster, none on this machine. `keep`: it stays at its end."""

    where: Where = "cluster"
    name: str | None = None
    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | os.PathLike[str] | None = None
    parallelism: int | None = None
    slots: int = 1
    resources: Resources = field(default_factory=lambda: Resources())
    image: str | None = None
    host_env: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    rate: float | None = None
    retries: int | None = None
    timeout: float | None = None
    memory_limit: str | None = None
    idempotent: bool = False
    priority: int = 0
    spot: bool = False
    notify: tuple[str, ...] = ()
    progress: bool = True
    keep: bool = False


def options_of(given: Mapping[str, Any]) -> Options:
    known = Options.__dataclass_fields__
    unknown = [name for name in given if name not in known]
    if unknown:
        from difflib import get_close_matches

        near = get_close_matches(unknown[0], list(known), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
        raise UsageError(f"unknown map option {unknown[0]!r}", hint=hint)
    made = Options(**given)
    if made.where not in PLACES:
        raise UsageError(f"invalid where {made.where!r}: use 'cluster' or 'local'")
    return replace(made, volumes=tuple(made.volumes), notify=tuple(made.notify))


def check_local(options: Options) -> None:
    wrong = [name for name in ("volumes", "notify", "spot", "image", "resources") if getattr(options, name)]
    if wrong:
        raise UsageError(
            f"option {wrong[0]!r} cannot be used with where='local'", hint="leave it out, or use where='cluster'"
        )


def request_of(function: bytes, options: Options, name: str, namespace: str) -> MapRequest:
    from moorage.decide.maps.mapjob import FUNCTION_WORD, MapRequest
    from moorage.decide.runs.request import RunRequest

    resources = options.resources
    cpu = resources.get("cpu")
    run = RunRequest(
        command=(FUNCTION_WORD,),
        namespace=namespace,
        name=name,
        cpu=None if cpu is None else str(cpu),
        memory=resources.get("memory"),
        gpus=resources.get("gpus", 0),
        gpu_type=resources.get("gpu_type"),
        volumes=options.volumes,
        env=tuple(f"{key}={value}" for key, value in options.env.items()),
        image=options.image,
        host_env=options.host_env,
    )
    return MapRequest(
        run=run,
        function=function,
        parallelism=1 if options.parallelism is None else options.parallelism,
        slots=options.slots,
        limits=tuple(f"{key}={value}" for key, value in options.limits.items()),
        rate=options.rate,
        retries=options.retries,
        timeout=options.timeout,
        memory_limit=options.memory_limit,
        idempotent=options.idempotent,
        priority=options.priority,
        spot=options.spot,
        notify=options.notify,
    )
