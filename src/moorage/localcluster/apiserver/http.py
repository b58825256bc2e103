"""The pipeline over HTTP: an ASGI application that speaks as a kube-apiserver does.

https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec

from moorage.apimachinery.api import CONTENT_TYPES, PatchKind
from moorage.apimachinery.bodies import BodyTooLong, ClientLeft, read_body
from moorage.apimachinery.documents import parse_document, parse_json
from moorage.apimachinery.integers import INT64_MAX, parse_integer
from moorage.apimachinery.resources import NODES, PODS, Obj
from moorage.errors import (
    ApiError,
    BadRequest,
    DocumentError,
    Forbidden,
    MethodNotAllowed,
    NotFound,
    NumberError,
    ServerError,
    TooLarge,
    Unauthorized,
    UnsupportedMediaType,
)
from moorage.localcluster.apiserver import discovery, openapi, streams
from moorage.localcluster.apiserver.auth import ANONYMOUS, Attributes, User, impersonate, refuse
from moorage.localcluster.apiserver.kinds.kind import Kind
from moorage.localcluster.apiserver.operations import Operations
from moorage.localcluster.apiserver.pipeline.calls import Call, DeleteOptions, Event, ListOptions
from moorage.localcluster.apiserver.pipeline.refusals import not_found
from moorage.localcluster.apiserver.wire import protobuf
from moorage.localcluster.apiserver.wire.options import SHOWN_MAX, delete_options_of
from moorage.localcluster.apiserver.wire.tables import Table, partial_object, to_table
from moorage.localcluster.apiserver.wire.websocket import Receive, Scope, Send

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 3 * 1024 * 1024  # as the real server's limit on resource requests
WARNINGS_MAX, WARNING_MAX = 4096, 256  # characters of all warnings of an answer, and of each when they are more
BOOKMARK_SECONDS = 60.0  # between bookmarks of a watch that asked for them
WATCH_SECONDS = 1800.0  # a watch without timeoutSeconds ends after this, as the real server's 30 to 60 minutes
WATCH_SECONDS_MAX = 7 * 86400.0  # whatever timeoutSeconds asks for
THREAD_BYTES = 64 * 1024  # YAML longer than this is read beside the event loop: a megabyte takes a second
PROTOBUF = protobuf.CONTENT_TYPE
YAML_TYPES = ("application/yaml", "application/apply-patch+yaml", "text/yaml", "application/x-yaml")
ANSWERED_WHOLE = frozenset(
    {
        *(("", one) for one in ("persistentvolumeclaims", "persistentvolumes", "pods", "podtemplates")),
        *(("", one) for one in ("resourcequotas", "serviceaccounts", "services")),
        ("storage.k8s.io", "storageclasses"),
    }
)
"""Collections whose deletion is answered with the object, not with a status."""
_PATCH_KINDS: dict[str, PatchKind] = {text: kind for kind, text in CONTENT_TYPES.items()}
_JSON = b"application/json"
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Request:
    """What arrived, its body not yet read."""

    __slots__ = ("_receive", "headers", "method", "path", "query")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: dict[str, str] = dict(
            parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        )
        self.headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            self.headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        self._receive = receive

    def header(self, name: str) -> str:
        return self.headers.get(name, [""])[0]

    def flag(self, name: str) -> bool:
        return self.query.get(name, "") in ("true", "1")

    def number(self, name: str) -> int | None:
        """Raises BadRequest."""
        text = self.query.get(name, "")
        if not text:
            return None
        try:
            return parse_integer(text, minimum=-INT64_MAX - 1)
        except NumberError:
            raise BadRequest(f"strconv.ParseInt: parsing {json.dumps(text[:SHOWN_MAX])}: invalid syntax") from None

    async def body(self) -> bytes:
        """Raises TooLarge."""
        try:
            return await read_body(self._receive, MAX_BODY_BYTES)
        except BodyTooLong as error:
            raise TooLarge(f"Request entity too large: limit is {error.most}") from error
        except ClientLeft:
            raise Disconnected from None

    async def obj(self) -> Any:
        """The body decoded. Raises BadRequest, UnsupportedMediaType, TooLarge."""
        kind = self.header("content-type").split(";")[0].strip().lower()
        data = await self.body()
        if kind in YAML_TYPES:
            return await _yaml(data)
        if kind == PROTOBUF:
            return protobuf.decode(data)
        if kind and not (kind == "application/json" or kind.endswith("+json")):
            raise UnsupportedMediaType(
                "the body of the request was in an unknown format - accepted media types"
                " include: application/json,"
                " application/yaml, application/vnd.kubernetes.protobuf"
            )
        return _json(data)

    async def gone(self) -> None:
        """Return when the client has hung up."""
        while (await self._receive())["type"] != "http.disconnect":
            continue


class Disconnected(Exception):
    """The client hung up."""


def _json(data: bytes) -> Any:
    try:
        return parse_json(data, bytes_max=MAX_BODY_BYTES)
    except DocumentError as error:
        raise BadRequest(
            f"the object provided is unrecognized: couldn't get version/kind; json parse error: {error}"
        ) from None


async def _yaml(data: bytes) -> Any:
    try:
        if len(data) <= THREAD_BYTES:
            return parse_document(data, bytes_max=MAX_BODY_BYTES)
        return await asyncio.to_thread(parse_document, data, bytes_max=MAX_BODY_BYTES)
    except DocumentError as error:
        raise BadRequest(f"error converting YAML to JSON: {error.located}") from None


class Answer:
    """Status, body and headers of a whole answer."""

    __slots__ = ("body", "content_type", "headers", "status")

    def __init__(
        self,
        body: Any,
        status: int = 200,
        *,
        content_type: bytes = _JSON,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        self.body = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self.status = status
        self.content_type = content_type
        self.headers = headers or []


class Stream:
    """An answer that goes on. `close` is awaited in the end, whoever ended it."""

    __slots__ = ("chunks", "content_type", "headers", "seconds")

    def __init__(self, chunks: AsyncIterator[bytes], *, content_type: bytes, seconds: float | None = None) -> None:
        self.chunks = chunks
        self.content_type = content_type
        self.seconds = seconds
        self.headers: list[tuple[bytes, bytes]] = []


class HttpApp:
    """ASGI 3. One instance serves all connections."""

    def __init__(self, server: Operations) -> None:
        self._server = server

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        request = Request(scope, receive)
        warnings: list[str] = []
        answer: Answer | Stream
        try:
            answer = await self._answer(request, warnings)
        except Disconnected:
            return
        except ApiError as error:
            answer = _refusal(error)
        except asyncio.CancelledError:
            raise
        except Exception:  # a defect answers 500 and is logged; the connection and the server live on
            log.exception("request failed", extra={"method": request.method, "path": request.path})
            answer = _refusal(ServerError("Internal error occurred: see the API server's log"))
        headers = [
            (b"content-type", answer.content_type),
            (b"cache-control", b"no-cache, private"),
            *answer.headers,
        ]
        headers += [(b"warning", f'299 - "{_quoted(text)}"'.encode()) for text in _fitting(warnings)]
        if isinstance(answer, Answer):
            headers.append((b"content-length", str(len(answer.body)).encode()))
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            body = b"" if request.method == "HEAD" else answer.body
            await send({"type": "http.response.body", "body": body})
        else:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await _stream(answer, request, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Streams into pods; a refusal is answered as any other request's."""
        request = Request({**scope, "method": "GET"}, receive)
        await receive()  # websocket.connect
        try:
            await streams.serve(self._server, self._user(request), scope, receive, send)
            return
        except ApiError as error:
            refusal = _refusal(error)
        except OSError:
            return  # the client hung up
        except Exception:  # whatever it was, the client gets an answer, and the others theirs
            log.exception("request failed", extra={"method": "websocket", "path": request.path})
            refusal = _refusal(ServerError("Internal error occurred: see the API server's log"))
        headers = [(b"content-type", refusal.content_type), *refusal.headers]
        headers.append((b"content-length", str(len(refusal.body)).encode()))
        with contextlib.suppress(OSError, RuntimeError):  # accepted already, or gone
            await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": refusal.body})

    async def _answer(self, request: Request, warnings: list[str]) -> Answer | Stream:
        path = request.path.rstrip("/") or "/"
        user = self._user(request)
        parts = [unquote(part) for part in path.split("/")[1:]]
        if len(parts) >= 3 and parts[0] in ("api", "apis"):
            core = parts[0] == "api"
            group, version, rest = ("", parts[1], parts[2:]) if core else (parts[1], parts[2], parts[3:])
            if rest:
                return await self._resource(request, user, group, version, rest, warnings)
        return self._plain(request, user, path)

    def _user(self, request: Request) -> User:
        header = request.header("authorization")
        scheme, _, token = header.partition(" ")
        user = None
        if header:
            if scheme.lower() == "bearer" and token.strip():
                user = self._server.authenticate(token.strip())
            if user is None:
                raise Unauthorized("Unauthorized")
        else:
            user = ANONYMOUS
        if name := request.header("impersonate-user"):
            groups = tuple(request.headers.get("impersonate-group", ()))
            extra = {
                unquote(key.removeprefix("impersonate-extra-")): tuple(values)
                for key, values in request.headers.items()
                if key.startswith("impersonate-extra-")
            }
            return impersonate(user, name, groups, extra, self._server.authorizer)
        if any(key.startswith("impersonate-") for key in request.headers):
            raise BadRequest("requested impersonation of groups or extra without impersonating a user")
        return user

    # --- what is no resource

    def _plain(self, request: Request, user: User, path: str) -> Answer:
        asked = Attributes(verb=_VERBS.get(request.method, request.method.lower()), path=path)
        decision = self._server.pipeline.authorizer.authorize(user, asked)
        if not decision.allowed:
            raise refuse(user, asked, decision.reason)
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("the server does not allow this method on the requested resource", details={})
        first = path.split("/")[1]
        if first in ("healthz", "livez", "readyz"):
            if first == "readyz" and not self._server.ready:
                return Answer(b"not ready", 500, content_type=b"text/plain; charset=utf-8")
            return Answer(b"ok", content_type=b"text/plain; charset=utf-8")
        if path == "/version":
            return Answer(discovery.version_info())
        kinds = self._server.kinds
        accept = request.header("accept")
        if path in ("/api", "/apis"):
            if "APIGroupDiscoveryList" in accept and "v=v2;" in accept.replace(" ", "") + ";":
                return Answer(
                    discovery.aggregated(kinds, core=path == "/api"),
                    content_type=b"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                )
            return Answer(discovery.api_versions() if path == "/api" else discovery.group_list(kinds))
        if path == "/":
            return Answer({"paths": discovery.root_paths(kinds)})
        parts = path.split("/")[1:]
        found: Obj | None = None
        if parts[0] == "api" and len(parts) == 2:
            found = discovery.resource_list(kinds, "", parts[1])
        elif parts[0] == "apis" and len(parts) == 2:
            found = discovery.group(kinds, parts[1])
        elif parts[0] == "apis" and len(parts) == 3:
            found = discovery.resource_list(kinds, parts[1], parts[2])
        elif path == "/openapi/v2":
            found = openapi.v2()
        elif path == "/openapi/v3":
            found = openapi.v3_index(kinds)
        elif path.startswith("/openapi/v3/"):
            found = openapi.v3(kinds, path.removeprefix("/openapi/v3/"))
        if found is None:
            return _no_page()
        return Answer(found)

    # --- resources

    async def _resource(
        self, request: Request, user: User, group: str, version: str, rest: list[str], warnings: list[str]
    ) -> Answer | Stream:
        watching = request.flag("watch")
        if rest[0] == "watch" and len(rest) > 1:
            rest, watching = rest[1:], True
        namespace: str | None = None
        if rest[0] == "namespaces" and len(rest) >= 3 and not (group == "" and rest[2] in ("status", "finalize")):
            namespace, rest = rest[1] or None, rest[2:]
        kind = self._server.kinds.find(group, version, rest[0])
        if kind is not None and kind.resource.namespaced and namespace is None and len(rest) > 1:
            kind = None
        if kind is None and all(
            one.custom
            for one in self._server.kinds.all()
            if (one.resource.group, one.resource.version) == (group, version)
        ):
            return _no_page()
        if kind is not None and kind.resource == NODES and rest[2:] == ["proxy", "stats", "summary"]:
            return await self._node_stats(request, Call(user=user), kind, rest[1])
        if kind is None or len(rest) > 3 or (namespace and not kind.resource.namespaced):
            raise NotFound("the server could not find the requested resource", details={})
        name = rest[1] if len(rest) > 1 else None
        subresource = rest[2] if len(rest) > 2 else None
        if subresource in ("exec", "attach", "portforward") and kind.resource == PODS and name and namespace:
            verbs = ("create",) if request.method == "POST" else ("get", "create")
            pod = streams.authorise(self._server, user, namespace, name, subresource, verbs)
            streams.check(pod, subresource, {key: [value] for key, value in request.query.items()})
            raise BadRequest("Upgrade request required: this server streams over WebSockets alone")
        if subresource and subresource not in kind.subresources:
            if kind.custom and name is not None:
                raise not_found(kind.resource, name)
            raise NotFound("the server could not find the requested resource", details={})
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
        if request.method in ("GET", "HEAD"):
            return await self._read(request, call, kind, namespace, name, subresource, watching)
        return await self._write(request, call, kind, namespace, name, subresource)

    async def _read(
        self,
        request: Request,
        call: Call,
        kind: Kind,
        namespace: str | None,
        name: str | None,
        subresource: str | None,
        watching: bool,
    ) -> Answer | Stream:
        server = self._server
        if name is None or watching:
            field_selector = request.query.get("fieldSelector") or None
            if name is not None:
                field_selector = ",".join(filter(None, (field_selector, f"metadata.name={name}")))
            if watching:
                return await self._watch(request, call, kind, namespace, field_selector)
            listed = await server.pipeline.list(
                call,
                kind,
                namespace,
                ListOptions(
                    label_selector=request.query.get("labelSelector") or None,
                    field_selector=field_selector,
                    limit=request.number("limit"),
                    cont=request.query.get("continue") or None,
                    resource_version=request.query.get("resourceVersion") or None,
                    resource_version_match=request.query.get("resourceVersionMatch") or None,
                ),
            )
            meta: Obj = {"resourceVersion": listed.resource_version}
            if listed.cont:
                meta["continue"] = listed.cont
                if listed.remaining is not None:
                    meta["remainingItemCount"] = listed.remaining
            return _formatted(request, server, kind, listed.items, meta)
        if subresource == "log":
            return await self._log(request, call, name, namespace)
        if subresource:
            return Answer(await server.get_subresource(call, kind, name, namespace, subresource))
        obj = await server.pipeline.get(call, kind, name, namespace)
        return _formatted(request, server, kind, obj, None)

    async def _node_stats(self, request: Request, call: Call, kind: Kind, name: str) -> Answer:
        """What the kubelet tells of its pods' volumes; nothing else of a kubelet is proxied here.

        The right to that is enough, as it is at a kubelet: `nodes/stats`, or `nodes/proxy`, which stands for all.
        """
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed("the server does not allow this method on the requested resource", details={})
        server = self._server
        try:
            server.pipeline.authorise(call, "get", kind, None, name, "stats")
        except Forbidden:
            server.pipeline.authorise(call, "get", kind, None, name, "proxy")
        server.pipeline.read(kind, name, None)
        if server.stats_source is None:
            raise NotFound("the server could not find the requested resource", details={})
        return Answer(await server.stats_source(name))

    async def _log(self, request: Request, call: Call, name: str, namespace: str | None) -> Answer | Stream:
        query = request.query
        chunks = await self._server.logs(
            call,
            name,
            namespace,
            container=query.get("container") or None,
            follow=request.flag("follow"),
            tail_lines=request.number("tailLines"),
            since_seconds=request.number("sinceSeconds"),
            since_time=query.get("sinceTime") or None,
            timestamps=request.flag("timestamps"),
            previous=request.flag("previous"),
            limit_bytes=request.number("limitBytes"),
        )
        if chunks is None:
            return Answer(b"", 204, content_type=b"text/plain")
        return Stream(chunks, content_type=b"text/plain")

    async def _watch(
        self, request: Request, call: Call, kind: Kind, namespace: str | None, field_selector: str | None
    ) -> Stream:
        server = self._server
        query = request.query
        bookmarks = request.flag("allowWatchBookmarks")
        initial = {"true": True, "false": False}.get(query.get("sendInitialEvents", ""))
        batches = server.pipeline.watch(
            call,
            kind,
            namespace,
            resource_version=query.get("resourceVersion") or None,
            label_selector=query.get("labelSelector") or None,
            field_selector=field_selector,
            bookmarks=bookmarks,
            initial_events=initial,
        )
        table = _table_asked(request)
        partial = _partial_asked(request)
        shape = Table(kind, server.clock, query.get("includeObject", "Metadata")) if table else None

        def encode(event: Event) -> bytes:
            obj = event.obj
            if shape is not None:
                obj = shape.of([obj], {"resourceVersion": obj["metadata"].get("resourceVersion", "")}, event.type)
            elif partial and event.type != "BOOKMARK":
                obj = partial_object(obj)
            return msgspec.json.encode({"type": event.type, "object": obj}) + b"\n"

        async def lines() -> AsyncIterator[bytes]:
            pending: asyncio.Task[Sequence[Event]] | None = None
            try:
                while True:
                    if pending is None:
                        pending = asyncio.ensure_future(anext(batches))
                    if bookmarks:
                        done, _ = await asyncio.wait({pending}, timeout=BOOKMARK_SECONDS)
                        if not done:
                            yield encode(server.pipeline.bookmark(kind))
                            continue
                    try:
                        batch = await pending
                    except StopAsyncIteration:
                        return
                    except ApiError as error:
                        yield msgspec.json.encode({"type": "ERROR", "object": error.to_status()}) + b"\n"
                        return
                    finally:
                        if pending.done():
                            pending = None
                    yield b"".join(map(encode, batch))
            finally:
                if pending is not None:
                    pending.cancel()
                    with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, ApiError):
                        await pending
                await batches.aclose()

        stream = lines()
        seconds = min(float(request.number("timeoutSeconds") or WATCH_SECONDS), WATCH_SECONDS_MAX)
        return Stream(stream, content_type=_JSON, seconds=max(0.0, seconds))

    async def _write(
        self,
        request: Request,
        call: Call,
        kind: Kind,
        namespace: str | None,
        name: str | None,
        subresource: str | None,
    ) -> Answer:
        server, pipeline = self._server, self._server.pipeline
        verb = _VERBS.get(request.method)
        if verb is None:
            raise MethodNotAllowed("the server does not allow this method on the requested resource", details={})
        if verb == "delete" and name is None:
            verb = "deletecollection"
        # before a byte of the body is read, and by the URL alone
        pipeline.authorise(call, verb, kind, namespace, name or "", subresource)
        if kind.resource.namespaced and namespace is None:
            raise MethodNotAllowed("the server does not allow this method on the requested resource", details={})
        match request.method:
            case "POST":
                if name is None:
                    obj = await server.create(call, kind, await request.obj(), namespace)
                    return _formatted(request, server, kind, obj, None, status=201)
                if subresource is None:
                    raise MethodNotAllowed(
                        "the server does not allow this method on the requested resource", details={}
                    )
                body = await request.obj()
                return Answer(await server.create_subresource(call, kind, name, namespace, subresource, body), 201)
            case "PUT" if name is not None:
                obj = await server.update(call, kind, await request.obj(), name, namespace, subresource)
                return _formatted(request, server, kind, obj, None) if not subresource else Answer(obj)
            case "PATCH" if name is not None:
                content_type = request.header("content-type").split(";")[0].strip().lower()
                patch_kind = _PATCH_KINDS.get(content_type)
                if patch_kind is None:
                    raise UnsupportedMediaType("415: Unsupported Media Type", details={})
                data = await request.body()
                body = await _yaml(data) if patch_kind == "apply" else _json(data)
                before = patch_kind == "apply" and not subresource and not server.exists(kind, name, namespace)
                obj = await server.patch(
                    call,
                    kind,
                    name,
                    namespace,
                    body,
                    patch_kind=patch_kind,
                    subresource=subresource,
                )
                return _formatted(request, server, kind, obj, None, status=201 if before else 200)
            case "DELETE":
                options = await _delete_options(request, call)
                if name is not None:
                    if subresource:
                        raise MethodNotAllowed(
                            "the server does not allow this method on the requested resource", details={}
                        )
                    obj, gone = await pipeline.delete(call, kind, name, namespace, options)
                    if not gone:
                        return _formatted(request, server, kind, obj, None)
                    where = kind.resource
                    details = {"name": name, "kind": where.plural, "uid": obj["metadata"]["uid"]}
                    if where.group:
                        details["group"] = where.group
                    if (where.group, where.plural) in ANSWERED_WHOLE:
                        return _formatted(request, server, kind, obj, None)
                    return Answer(
                        {
                            "kind": "Status",
                            "apiVersion": "v1",
                            "metadata": {},
                            "status": "Success",
                            "details": details,
                        }
                    )
                selection = ListOptions(
                    label_selector=request.query.get("labelSelector") or None,
                    field_selector=request.query.get("fieldSelector") or None,
                    limit=request.number("limit"),
                    cont=request.query.get("continue") or None,
                )
                removed = await pipeline.delete_collection(call, kind, namespace, options, selection)
                meta = {"resourceVersion": str(server.storage.revision)}
                return _formatted(request, server, kind, removed, meta)
        raise MethodNotAllowed("the server does not allow this method on the requested resource", details={})


def _no_page() -> Answer:
    """The answer where no API is."""
    return Answer(b"404 page not found\n", 404, content_type=b"text/plain; charset=utf-8")


def _dry_run(request: Request) -> bool:
    value = request.query.get("dryRun", "")
    if value not in ("", "All"):
        raise BadRequest(f'dryRun: Unsupported value: {json.dumps(value)}: supported values: "All"')
    return value == "All"


async def _delete_options(request: Request, call: Call) -> DeleteOptions:
    data = await request.body()
    body: Any = {}
    if data.strip():
        kind = request.header("content-type").split(";")[0].strip().lower()
        if kind and kind not in ("application/json", PROTOBUF, *YAML_TYPES):
            raise UnsupportedMediaType("the body of the request was in an unknown format")
        if kind in YAML_TYPES:
            body = await _yaml(data)
        else:
            body = protobuf.decode(data) if kind == PROTOBUF else _json(data)
        if not isinstance(body, dict):
            raise BadRequest("DeleteOptions must be an object")
    if body.get("dryRun"):
        if body["dryRun"] != ["All"]:
            raise BadRequest('dryRun: Unsupported value: supported values: "All"')
        call.dry_run = True
    return delete_options_of(body, request.query)


def _table_asked(request: Request) -> bool:
    """Whether a Table comes before plain JSON in Accept."""
    for part in request.header("accept").split(","):
        text = part.replace(" ", "")
        if not text.startswith("application/json"):
            continue
        if "as=Table" in text:
            return "v=v1" in text.split(";")
        if "as=" not in text:
            return False
    return False


def _partial_asked(request: Request) -> bool:
    for part in request.header("accept").split(","):
        text = part.replace(" ", "")
        if text.startswith("application/json"):
            return "as=PartialObjectMetadata" in text
    return False


def _formatted(
    request: Request,
    server: Operations,
    kind: Kind,
    what: Obj | Sequence[Obj],
    meta: Obj | None,
    *,
    status: int = 200,
) -> Answer:
    """An object (meta None) or a list in the form that Accept asks for."""
    items: Sequence[Obj] = [what] if isinstance(what, dict) else what
    if _table_asked(request):
        table_meta = meta or {"resourceVersion": items[0]["metadata"].get("resourceVersion", "")}
        include = request.query.get("includeObject", "Metadata")
        return Answer(to_table(kind, items, table_meta, server.clock, include), status)
    if _partial_asked(request):
        shaped = [partial_object(one) for one in items]
        if meta is None:
            return Answer(shaped[0], status)
        return Answer(
            {
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": meta,
                "items": shaped,
            }
        )
    if meta is None:
        return Answer(what, status)
    if kind.custom:
        meta.setdefault("continue", "")
    else:  # as Go's typed lists do: what the items are, the list says
        items = [{key: value for key, value in one.items() if key not in ("kind", "apiVersion")} for one in items]
    return Answer(
        {"kind": kind.list_kind, "apiVersion": kind.resource.api_version, "metadata": meta, "items": items}, status
    )


def _refusal(error: ApiError) -> Answer:
    status = error.to_status()
    if not status["reason"]:
        del status["reason"]
    headers = []
    wait = (error.details or {}).get("retryAfterSeconds")
    if wait:
        headers.append((b"retry-after", str(wait).encode()))
    code = error.status if 400 <= error.status < 600 else 500
    return Answer(status, code, headers=headers)


def _fitting(warnings: Iterable[str]) -> list[str]:
    """So many warnings as the real API server sends: 4096 characters in all, of 256 each when they are more.

    https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apiserver/pkg/endpoints/filters/warning.go
    """
    found = list(warnings)
    if sum(map(len, found)) <= WARNINGS_MAX:
        return found
    short, room = [], WARNINGS_MAX
    for text in found:
        text = text[:WARNING_MAX]
        if (room := room - len(text)) < 0:
            break
        short.append(text)
    return short


def _quoted(text: str) -> str:
    """What a header can carry: a name in somebody's manifest may hold anything."""
    safe = "".join(one if " " <= one <= "~" else " " if one in "\r\n\t" else "?" for one in text)
    return safe.replace("\\", "\\\\").replace('"', '\\"')


async def _stream(answer: Stream, request: Request, send: Send) -> None:
    """Send chunks until the source ends, the client hangs up or the time is over."""

    async def pump() -> None:
        async for chunk in answer.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

    pumping = asyncio.ensure_future(pump())
    leaving = asyncio.ensure_future(request.gone())
    try:
        await send({"type": "http.response.body", "body": b"", "more_body": True})  # headers go out now
        await asyncio.wait({pumping, leaving}, timeout=answer.seconds, return_when=asyncio.FIRST_COMPLETED)
        if pumping.done() and (error := pumping.exception()) is not None and not isinstance(error, OSError):
            log.warning("stream broke", extra={"path": request.path, "error": str(error)})
    finally:
        for task in (pumping, leaving):
            task.cancel()
        await asyncio.gather(pumping, leaving, return_exceptions=True)
        closing = getattr(answer.chunks, "aclose", None)
        if closing is not None:
            await closing()
    with contextlib.suppress(OSError):
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
