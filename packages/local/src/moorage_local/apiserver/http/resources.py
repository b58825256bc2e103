"""Requests for resources: from the path to its target, and to the answer."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack

from moorage_kube.errors import BadRequest, NotFound
from moorage_kube.resources import NODES, PODS
from moorage_local.apiserver.auth.users import User
from moorage_local.apiserver.http.reading import node_stats, read
from moorage_local.apiserver.http.target import Target
from moorage_local.apiserver.http.writing import write
from moorage_local.apiserver.kinds.kind import Kind
from moorage_local.apiserver.operations import Operations
from moorage_local.apiserver.pipeline.calls import Call
from moorage_local.apiserver.pipeline.refusals import not_found
from moorage_local.apiserver.subresources import streams
from moorage_local.apiserver.wire.answers import Answer, Stream, no_page
from moorage_local.apiserver.wire.requests import Request


async def answer_resource(
    server: Operations,
    request: Request,
    user: User,
    group: str,
    version: str,
    rest: list[str],
    warnings: list[str],
    held: AsyncExitStack,
) -> Answer | Stream:
    """Answer a request to a resource. `rest`: the parts of the path after group and version, at least one.

    `held` is closed when the answer ends.
    """
    watching = request.flag("watch")
    # /watch/… is the old form of ?watch=true
    if rest[0] == "watch" and len(rest) > 1:
        rest, watching = rest[1:], True
    namespace: str | None = None
    if rest[0] == "namespaces" and len(rest) >= 3 and not (group == "" and rest[2] in ("status", "finalize")):
        namespace, rest = rest[1] or None, rest[2:]
    # the real server has two answers: no such page for an unknown version, NotFound for a path in a known one
    kind = server.kinds.find(group, version, rest[0])
    if kind is not None and kind.resource.namespaced and namespace is None and len(rest) > 1:
        kind = None
    if kind is None and _is_unknown_version(server, group, version):
        return no_page()
    if kind is not None and kind.resource == NODES and rest[2:] == ["proxy", "stats", "summary"]:
        return await node_stats(server, request, Call(user=user), kind, rest[1])
    if kind is None or len(rest) > 3 or (namespace and not kind.resource.namespaced):
        raise NotFound("the server could not find the requested resource", details={})
    # a streamed or unknown subresource ends here
    target = Target(
        kind=kind,
        namespace=namespace,
        name=rest[1] if len(rest) > 1 else None,
        subresource=rest[2] if len(rest) > 2 else None,
        watching=watching,
    )
    _check_subresource(server, request, user, target)
    call = _call(request, user, kind, warnings)
    if not (target.watching or target.subresource == "log"):  # these wait, for as long as the client likes
        await held.enter_async_context(server.shares.turn(user, _listed_bytes(server, request, target)))
    if request.method in ("GET", "HEAD"):
        return await read(server, request, call, target)
    return await write(server, request, call, target)


def _listed_bytes(server: Operations, request: Request, target: Target) -> int:
    """Return the size in bytes of the objects that a list request reads; 0 for other requests."""
    if request.method != "GET" or target.name is not None:
        return 0
    limit = request.number("limit")
    page = server.storage.list(target.kind.list_prefix(target.namespace), limit=max(0, limit or 0) or None)
    return sum(len(record.value) for record in page.records)


def _is_unknown_version(server: Operations, group: str, version: str) -> bool:
    """Whether all kinds with this group and version are custom, or there are none."""
    return all(
        kind.custom
        for kind in server.kinds.all()
        if (kind.resource.group, kind.resource.version) == (group, version)
    )


def _check_subresource(server: Operations, request: Request, user: User, target: Target) -> None:
    """Raise NotFound if the kind lacks the subresource, BadRequest if the subresource needs a WebSocket."""
    kind, name, subresource = target.kind, target.name, target.subresource
    streamed = subresource in ("exec", "attach", "portforward") and kind.resource == PODS
    if streamed and subresource and name and target.namespace:
        verbs = ("create",) if request.method == "POST" else ("get", "create")
        pod = streams.authorise(server, user, target.namespace, name, subresource, verbs)
        streams.check(pod, subresource, {key: [value] for key, value in request.query.items()})
        raise BadRequest("Upgrade request required: this server streams over WebSockets alone")
    if subresource and subresource not in kind.subresources:
        if kind.custom and name is not None:
            raise not_found(kind.resource, name)
        raise NotFound("the server could not find the requested resource", details={})


def _call(request: Request, user: User, kind: Kind, warnings: list[str]) -> Call:
    """Read the options of a request. Raises BadRequest for an invalid value of an option."""
    call = Call(
        user=user,
        dry_run=_dry_run(request),
        field_manager=request.query.get("fieldManager", ""),
        field_validation=request.query.get("fieldValidation") or "Warn",
        warnings=warnings,
    )
    if kind.deprecated:
        call.warn(kind.deprecated)
    if call.field_validation not in ("Ignore", "Warn", "Strict"):
        raise BadRequest(f"fieldValidation: Unsupported value: {json.dumps(call.field_validation)}")
    return call


def _dry_run(request: Request) -> bool:
    value = request.query.get("dryRun", "")
    if value not in ("", "All"):
        raise BadRequest(f'dryRun: Unsupported value: {json.dumps(value)}: supported values: "All"')
    return value == "All"
