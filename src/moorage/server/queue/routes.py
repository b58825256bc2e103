"""Maps, their items and results for users, and /api/v1/work for workers. See docs/design/0005-map.md."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from moorage.apimachinery.bodies import BodyTooLong, ClientLeft, read_body
from moorage.apimachinery.moments import rfc3339
from moorage.apimachinery.resources import Obj
from moorage.decide.maps import leasing
from moorage.decide.maps.leasing import Exchange, MapState, Policy, State
from moorage.errors import AlreadyExists, ApiError, NotFound, Unauthorized
from moorage.model.names import GROUP
from moorage.queue.manager import Queue, is_waiting
from moorage.queue.store import PAGE_ROWS, NewItem, Store, Stored
from moorage.server.context import Context
from moorage.server.identity.auth import User, bearer_of
from moorage.server.inputs import check_depth, decode, number, whole_number
from moorage.server.problems import Json, Problem

WORK_PATH = "/api/v1/work"
WORK_BYTES = 8 * 1024 * 1024  # of one request of a worker: ten results of the longest kind and more
BODY_BYTES = 256 * 1024  # of a user's request that is no list of items
LINE_BYTES = leasing.VALUE_BYTES + 4096
ADD_AT_ONCE = 2000  # items per transaction
MAPS = "/api/v1/maps/{namespace}/{name}"

T = TypeVar("T")
Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,51}[a-z0-9])?$")]
LimitName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")]
Tokens = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
Capacity = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e6)]
Priority = Annotated[int, msgspec.Meta(ge=-leasing.PRIORITY_LIMIT, le=leasing.PRIORITY_LIMIT)]


class WantedLimit(msgspec.Struct, forbid_unknown_fields=True):
    """Tokens that each lease of a map holds; `capacity` makes the limit when it is new."""

    tokens: Tokens = 1
    capacity: Capacity | None = None


class PolicyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """A map's policy as it is sent. Names, units and defaults are those of `leasing.Policy`."""

    retries: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 3
    loss_limit: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 20
    backoff_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 2.0
    backoff_limit_seconds: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 300.0
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=1e7)] | None = None
    lease_seconds: Annotated[float, msgspec.Meta(ge=2, le=86_400)] = 60.0
    memory_bytes: leasing.Natural = 0
    memory_limit_bytes: leasing.Natural = 0
    idempotent: bool = False
    batch_items: Annotated[int, msgspec.Meta(ge=1, le=1000)] = leasing.BATCH_ITEMS
    rate: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None


class NewMap(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    request: leasing.Text64  # the same one again finds the map that it made
    policy: PolicyBody = PolicyBody()
    limits: dict[LimitName, WantedLimit] = {}
    priority: Priority = 0


class MapChange(msgspec.Struct, forbid_unknown_fields=True):
    """What is left out stays as it is; a rate of 0 is none."""

    state: MapState | None = None
    closed: bool | None = None
    priority: Priority | None = None
    rate: Rate | None = None


class LimitChange(msgspec.Struct, forbid_unknown_fields=True):
    capacity: Capacity


_EXCHANGE = msgspec.json.Decoder(Exchange)
_LINE = msgspec.json.Decoder(NewItem)
_ENCODER = msgspec.json.Encoder()


class Work:
    """What workers ask: answers in, items out. The bearer is their map's token. See docs/design/0005-map.md."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            raise Problem(405, "method_not_allowed", f"{scope['method']} is not known here", "use POST")
        queue = self._queue
        try:
            of = await queue.map_of_token(bearer_of(Headers(scope=scope)))
            asked = _exchange(await _whole(receive, WORK_BYTES))
            reply = await queue.exchange(of, asked)
            if is_waiting(asked, reply):
                waiting = asyncio.ensure_future(queue.wait_for_items(of, asked, reply))
                leaving = asyncio.ensure_future(_disconnected(receive))
                try:
                    await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
                    if not waiting.done():
                        return  # nobody is there any more
                    reply = await waiting
                finally:
                    waiting.cancel()
                    leaving.cancel()
        except Unauthorized as error:
            raise Problem(401, "unauthorized", error.message, error.hint) from error
        except NotFound as error:
            raise Problem(410, "gone", error.message, error.hint) from error
        body = _ENCODER.encode(reply)
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", b"application/json"),
                    (b"content-length", str(len(body)).encode()),
                ],
            }
        )
        await send({"type": "http.response.body", "body": body})


def routes(context: Context) -> list[Route]:
    queue = context.queue
    if queue is None:
        return []

    async def found_map(request: Request, verb: str = "get") -> Stored:
        return await map_of(request, context, queue, verb)

    async def view(found: Stored) -> Obj:
        rate = await queue.rate_of(found)
        return map_json(found, rate=rate)

    async def create(request: Request) -> Response:
        """Make a map; its items are added next."""
        namespace = request.path_params["namespace"]
        await _allow(context, _user(request), "create", namespace)
        asked = await body_of(request, NewMap)
        limits = {name: one.tokens for name, one in asked.limits.items()}
        policy = Policy(**msgspec.structs.asdict(asked.policy), limits=limits)
        try:
            found = await queue.create_map(
                namespace=namespace,
                name=asked.name,
                owner=_user(request).name,
                policy=policy,
                request=asked.request,
                limits={name: one.capacity for name, one in asked.limits.items() if one.capacity is not None},
                priority=asked.priority,
            )
        except AlreadyExists as error:
            raise Problem(409, "already_exists", error.message, error.hint, "name") from error
        if found.owner != _user(request).name:  # another's request may bear the same word
            raise Problem(409, "already_exists", f"map {namespace}/{asked.name} exists already", None, "name")
        return Json(await view(found), 201)

    async def listing(request: Request) -> Response:
        """The maps of all namespaces, or of one: those that the one who asks may see."""
        namespace = request.path_params.get("namespace")
        stored = await queue.read(lambda store: store.list_maps(namespace))
        user = _user(request)
        seen = {
            one: await context.auth.may_use_maps(user, "list", one) for one in {one.namespace for one in stored}
        }
        return Json({"maps": [await view(one) for one in stored if seen[one.namespace]]})

    async def show(request: Request) -> Response:
        """Counts, rate, expected end and policy of a map."""
        return Json(await view(await found_map(request)))

    async def change(request: Request) -> Response:
        """Pause, resume, cancel, close or reopen a map, set its priority or rate."""
        found = await found_map(request, "update")
        asked = await body_of(request, MapChange)
        changed = await queue.change_map(
            found.map.id, state=asked.state, closed=asked.closed, priority=asked.priority, rate=asked.rate
        )
        return Json(await view(changed))

    async def delete(request: Request) -> Response:
        """Delete a map with its items and results."""
        found = await found_map(request, "delete")
        await queue.delete_map(found.map.id)
        return Json({"deleted": True})

    async def add(request: Request) -> Response:
        """Add items, one JSON object per line; `first` numbers them, so that sending again adds nothing twice."""
        found = await found_map(request, "update")
        first = whole_number(request, "first")
        tag = request.query_params.get("request")
        added, start, part = 0, first, 0
        items: list[NewItem] = []

        async def flush() -> None:
            nonlocal added, start, part
            told = None if tag is None else f"{tag}/{part}"
            begin, fresh = await queue.add_items(found.map.id, items, first=start, request=told)
            added, part = added + fresh, part + 1
            start = None if first is None else begin + len(items)
            items.clear()

        async for at, line in _lines(request):
            try:
                items.append(_LINE.decode(line))
                check_depth(items[-1].value, f"line {at}")
            except (msgspec.DecodeError, RecursionError) as exc:
                raise Problem(
                    422,
                    "invalid",
                    f"line {at} is not an item: {exc}; {added} items before it are added",
                    'send lines like {"value": "2019-10-03"}',
                    f"line {at}",
                ) from exc
            if len(items[-1].value) > leasing.VALUE_BYTES:
                raise Problem(
                    413,
                    "too_large",
                    f"the value in line {at} has {len(items[-1].value)} bytes; at most {leasing.VALUE_BYTES}",
                    "put it into a file and send the path",
                    f"line {at}",
                )
            if len(items) >= ADD_AT_ONCE:
                await flush()
        if items:
            await flush()
        if request.query_params.get("close") == "true":
            await queue.change_map(found.map.id, closed=True)
        return Json({"added": added, "total": (await found_map(request)).map.counts.total})

    async def items(request: Request) -> Response:
        """Items in order, of some states; `after` and `limit` page through them."""
        found = await found_map(request)
        states = _states(request)
        after, limit = whole_number(request, "after"), whole_number(request, "limit")
        limit = min(limit or PAGE_ROWS, PAGE_ROWS)
        page = await queue.read(
            lambda store: store.list_items(
                found.map.id, states=states, after=-1 if after is None else after, limit=limit
            )
        )
        return Json({"items": page, "next": page[-1].item if len(page) == limit else None})

    async def item(request: Request) -> Response:
        """One item, with the last output of its last failure."""
        found = await found_map(request)
        seq = number(request.path_params["item"], "item")
        one = await queue.read(lambda store: store.get_item(found.map.id, seq))
        if one is None:
            raise Problem(404, "not_found", f"map {found.namespace}/{found.name} has no item {seq}")
        return Json({"item": one[0], "output": base64.b64encode(one[1]).decode()})

    async def results(request: Request) -> Response:
        """All results so far, one JSON object per line, in the items' order."""
        found = await found_map(request)
        after = whole_number(request, "after")

        async def pages() -> AsyncIterator[bytes]:
            at = -1 if after is None else after
            while page := await queue.read(partial(Store.results, of=found.map.id, after=at)):
                yield b"".join(_ENCODER.encode(one) + b"\n" for one in page)
                at = page[-1].item

        lines = while_allowed(context, _user(request), found.namespace, pages())
        return StreamingResponse(lines, media_type="application/x-ndjson")

    async def retry(request: Request) -> Response:
        """Make the dead items ready again; a cancelled or paused map runs on."""
        found = await found_map(request, "update")
        retried = await queue.retry(found.map.id)
        if found.map.state is not MapState.RUNNING:
            await queue.change_map(found.map.id, state=MapState.RUNNING)
        return Json({"retried": retried})

    async def token(request: Request) -> Response:
        """The token that the workers of a map present."""
        found = await found_map(request, "update")
        return Json({"token": queue.token_of(found.uid)})

    async def limits(_: Request) -> Response:
        """Named limits: how many tokens there are, and how many are held."""
        found = await queue.read(lambda store: store.limits())
        return Json({"limits": found})

    async def limit(request: Request) -> Response:
        """Set how many tokens a named limit has; leases that hold more keep them until they end."""
        asked = await body_of(request, LimitChange)
        name = request.path_params["limit"]
        await _allow(context, _user(request), "update", "")
        await queue.set_limit(name, asked.capacity)
        return Json({"name": name, "capacity": asked.capacity})

    return [
        Route(WORK_PATH, Work(queue)),
        Route("/api/v1/maps", listing, methods=["GET"]),
        Route("/api/v1/maps/{namespace}", listing, methods=["GET"]),
        Route("/api/v1/maps/{namespace}", create, methods=["POST"]),
        Route(MAPS, show, methods=["GET"]),
        Route(MAPS, change, methods=["PATCH"]),
        Route(MAPS, delete, methods=["DELETE"]),
        Route(f"{MAPS}/items", items, methods=["GET"]),
        Route(f"{MAPS}/items", add, methods=["POST"]),
        Route(f"{MAPS}/items/{{item}}", item, methods=["GET"]),
        Route(f"{MAPS}/results", results, methods=["GET"]),
        Route(f"{MAPS}/retry", retry, methods=["POST"]),
        Route(f"{MAPS}/token", token, methods=["POST"]),
        Route("/api/v1/limits", limits, methods=["GET"]),
        Route("/api/v1/limits/{limit}", limit, methods=["PUT"]),
    ]


async def map_of(request: Request, context: Context, queue: Queue, verb: str = "get") -> Stored:
    """The map of the path, where the one who asks may do this with it now. Raises Problem.

    To have made it gives no right: who left a team has none in its namespace.
    """
    namespace, name = request.path_params["namespace"], request.path_params["name"]
    found = await queue.read(lambda store: store.find_map(namespace, name))
    if found is None:
        raise Problem(404, "not_found", f"there is no map {namespace}/{name}", "`moor map list` shows them")
    await _allow(context, _user(request), verb, namespace)
    return found


async def while_allowed(
    context: Context, user: User, namespace: str, chunks: AsyncIterator[bytes]
) -> AsyncIterator[bytes]:
    """An answer that lasts, for as long as who asked may `get` maps there; then it ends."""
    async for chunk in chunks:
        try:
            await _allow(context, user, "get", namespace)
        except Problem:
            return
        except ApiError:
            pass  # nobody can tell just now: what was begun goes on
        yield chunk


async def _allow(context: Context, user: User, verb: str, namespace: str) -> None:
    if not await context.auth.may_use_maps(user, verb, namespace):
        raise Problem(
            403,
            "forbidden",
            f"{user.name} may not {verb} mapjobs.{GROUP} in {namespace or 'all namespaces'}",
            "ask whoever manages the namespace's roles",
        )


def map_json(found: Stored, *, rate: float | None) -> Obj:
    """A map as its owner sees it."""
    one = found.map
    counts = msgspec.structs.asdict(one.counts)
    spent, hinted = counts.pop("spent_ms"), counts.pop("hinted_ms")
    counts.pop("output_bytes")
    remaining = one.counts.total - one.counts.done - one.counts.dead
    mean = leasing.mean_ms(one.counts)
    state = "finished" if leasing.is_finished(one, one.counts) else one.state.value
    policy = PolicyBody(**{name: getattr(one.policy, name) for name in PolicyBody.__struct_fields__})
    return {
        "namespace": found.namespace,
        "name": found.name,
        "uid": found.uid,
        "owner": found.owner,
        "createdAt": rfc3339(_moment(found.created_at)),
        "state": state,
        "closed": one.closed,
        "priority": one.priority,
        "policy": policy,
        "limits": dict(one.policy.limits),
        "counts": counts,
        "spentSeconds": spent / 1000,
        "hintedSeconds": hinted / 1000,
        "meanSeconds": None if mean is None else mean / 1000,
        "itemsPerSecond": rate,
        "secondsLeft": leasing.expected_seconds(remaining=remaining, per_second=rate),
    }


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _user(request: Request) -> User:
    user: User = request.scope["state"]["user"]
    return user


def _exchange(body: bytes) -> Exchange:
    try:
        asked = _EXCHANGE.decode(body)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise _invalid(exc, "see docs/design/0005-map.md for the request") from exc
    for report in asked.reports:
        check_depth(report.value, f"reports[item={report.item}].value")
        if len(report.value) > leasing.RESULT_BYTES:
            raise Problem(
                413,
                "result_too_large",
                f"the result of item {report.item} has {len(report.value)} bytes; at most {leasing.RESULT_BYTES}",
                "write it to a file and send the path",
                f"reports[item={report.item}].value",
            )
    return asked


async def _whole(receive: Receive, most: int) -> bytes:
    try:
        return await read_body(receive, most)
    except BodyTooLong as error:
        raise Problem(413, "too_large", str(error), "send fewer at once") from error
    except ClientLeft:
        raise Problem(400, "bad_request", "the request was not sent to its end") from None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def body_of(request: Request, kind: type[T], *, most: int = BODY_BYTES) -> T:
    """The JSON body of a request, at most so many bytes. Raises Problem."""
    return decode(await _whole(request.receive, most), kind)


def _invalid(exc: Exception, hint: str | None) -> Problem:
    if not isinstance(exc, msgspec.ValidationError):
        return Problem(400, "bad_request", f"the body cannot be read: {exc}", hint)
    message, _, path = str(exc).partition(" - at `$")
    return Problem(422, "invalid", message, hint, path.strip("`.") or None)


async def _lines(request: Request) -> AsyncIterator[tuple[int, bytes]]:
    """The lines of a body as it comes, numbered from 1, empty ones left out."""
    rest, number = b"", 0
    async for part in request.stream():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            number += 1
            if line.strip():
                yield number, line
        if len(rest) > LINE_BYTES:
            raise Problem(
                413, "too_large", f"line {number + 1} has more than {LINE_BYTES} bytes", None, f"line {number + 1}"
            )
    if rest.strip():
        yield number + 1, rest


def _states(request: Request) -> list[State]:
    words = {"ready": [State.READY, State.LARGE]} | {
        one.name.lower(): [one] for one in State if one not in leasing.READY_STATES
    }
    found: list[State] = []
    for text in request.query_params.getlist("state"):
        if text not in words:
            raise Problem(400, "bad_request", f"state is {text!r}", f"use one of: {', '.join(words)}", "state")
        found += words[text]
    return found
