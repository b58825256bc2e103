"""Admission of pod subresources: sessions (CONNECT) and evictions (CREATE).

Only validating webhooks are called. In the real server, mutating webhooks may change the options of a
session, too.
https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#matching-requests-rules
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from moorage_kube.resources import PODS, Obj
from moorage_local.apiserver.core import Core
from moorage_local.apiserver.pipeline.calls import Admission, Call

_OPTIONS = {"attach": "PodAttachOptions", "exec": "PodExecOptions", "portforward": "PodPortForwardOptions"}


async def admit(
    core: Core,
    call: Call,
    operation: Literal["CONNECT", "CREATE"],
    obj: Obj,
    *,
    namespace: str | None,
    name: str,
    subresource: str,
) -> None:
    """Call the admitters for `obj`, which has its own kind. Raises the error of the first one that refuses."""
    await core.pipeline.admit(
        Admission(
            operation=operation,
            kind=core.kind_of(PODS),
            namespace=namespace,
            name=name,
            subresource=subresource,
            obj=obj,
            old=None,
            call=call,
            options={},
        )
    )


def session_options(subresource: str, query: Mapping[str, Sequence[str]]) -> Obj:
    """Convert a query to `v1.PodExecOptions` and similar objects."""
    options: Obj = {"apiVersion": "v1", "kind": _OPTIONS[subresource]}
    for field in ("stdin", "stdout", "stderr", "tty"):
        if (query.get(field) or [""])[0] in ("true", "1"):
            options[field] = True
    if container := (query.get("container") or [""])[0]:
        options["container"] = container
    if subresource == "exec":
        options["command"] = list(query.get("command") or ())
    if subresource == "portforward":
        options["ports"] = [int(port) for port in query.get("ports") or () if port.isdecimal()]
    return options
