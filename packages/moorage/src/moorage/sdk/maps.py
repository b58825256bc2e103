"""`moorage.map`, `moorage.amap`, `moorage.mapped` and the handles behind them.

All I/O is async and happens on the SDK's own loop (`local.loop`); sync functions here only wait for it.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from msgspec import Struct

from moorage.api.maps import Map as MapAnswer
from moorage.api.maps import MapChange, MapLimit, MapPolicy, MapState, NewMap
from moorage.client.connection import Connection, at_url
from moorage.client.itemspool import Spool, spool
from moorage.client.maps import AT_ONCE, UPLOAD_LINES, MapClient, map_client
from moorage.client.sites import Given, finder_of
from moorage.sdk.functions import check_sendable, function_name, pack, pack_items
from moorage.sdk.local import BATCH_ITEMS, NAMESPACE, LocalWorker, loop, site
from moorage.sdk.mapoptions import (
    MapAndReadOptions,
    MapOptions,
    OnError,
    Where,
    check_local,
    options_of,
    request_of,
    seconds_of,
    with_named_options,
)
from moorage.sdk.mapoptions import Options as Options
from moorage.sdk.mapreader import ItemError as ItemError
from moorage.sdk.mapreader import Reader, is_good
from moorage.sdk.progress import Bar, map_line
from moorage.settings import SERVER_URL
from moorage.worker.mapworker.child import decode
from moorage_kube.clock import SYSTEM
from moorage_kube.errors import ApiError, MoorageError, NotFound, UsageError

if TYPE_CHECKING:
    from moorage.client.cluster import Cluster
    from moorage.client.target import Target

    Opener = Callable[[Target], AbstractAsyncContextManager[Cluster]]

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

LOOK_SECONDS = {"local": (0.01, 0.1), "cluster": (0.2, 2.0)}  # first and longest pause between two looks
LOOK_SHARE = 5.0  # a look that took long is not repeated before so many times its cost


class MapStatus(Struct, frozen=True, kw_only=True):
    """Status of a map. `state`: running, paused, cancelled or finished; times in seconds, None: not known yet."""

    name: str
    namespace: str
    state: str
    total: int
    done: int
    failed: int
    running: int
    workers: int
    executions: int
    mean_seconds: float | None
    items_per_second: float | None
    seconds_left: float | None

    @property
    def ended(self) -> bool:
        return self.state in ("finished", "cancelled")


class AsyncMap(Generic[R]):
    """A map that was started, for use on the SDK's loop; `Map` is the same for all other code."""

    def __init__(
        self, client: MapClient, options: Options, name: str, namespace: str, opener: Opener | None = None
    ) -> None:
        self._opener = opener or _open_cluster
        self.name = name
        self.namespace = namespace
        self._client = client
        self._options = options
        self._stack = AsyncExitStack()
        self._check: Callable[[], Awaitable[None]] | None = None
        self._remove: Callable[[], Awaitable[None]] | None = None
        self._set_workers: Callable[[int], Awaitable[None]] | None = None
        self._uploading: asyncio.Task[None] | None = None
        self._spool: Spool | None = None

    # -- making

    @classmethod
    async def start(
        cls, function: bytes, items: Spool, options: Options, label: str, opener: Opener | None = None
    ) -> AsyncMap[R]:
        """Create the map and its workers; items are uploaded in the background.

        `opener`: connects to another cluster.
        """
        name = options.name or _name(label)
        try:
            if options.where == "local":
                made: AsyncMap[R] = await cls._local(function, options, name)
            else:
                made = await cls._cluster(function, options, name, opener)
        except BaseException:
            items.close()
            raise
        made._spool = items
        made._uploading = asyncio.create_task(made._upload(items))
        return made

    @classmethod
    async def attach(cls, name: str, options: Options, opener: Opener | None = None) -> AsyncMap[R]:
        """Return a map that exists already. Raises NotFound."""
        if options.where == "local":
            raise UsageError("cannot attach: a map on this machine ends with its process")
        if options.context is None and options.kubeconfig is None and SERVER_URL.read(os.environ):
            return await cls._attach_by_server(name, options)
        made: AsyncMap[R] = cls(MapClient(Connection(at_url(""))), options, name, "", opener)
        cluster = await made._open()
        made.namespace = cluster.namespace
        try:
            await made._client.show(made.namespace, name)
        except BaseException:
            await made.close()
            raise
        made._bind(cluster, None)
        return made

    @classmethod
    async def _attach_by_server(cls, name: str, options: Options) -> AsyncMap[R]:
        """Attach to a map through the server that `moorage.Client` finds, because pods have no kubeconfig."""
        connection = Connection(finder_of(Given(namespace=options.namespace)), patience=AT_ONCE)
        client = MapClient(connection)
        made: AsyncMap[R] = cls(client, options, name, "")
        made._stack.push_async_callback(client.close)
        try:
            made.namespace = (await connection.site()).namespace
            await client.show(made.namespace, name)
        except BaseException:
            await made.close()
            raise

        async def remove() -> None:
            await client.delete(made.namespace, name)

        async def set_workers(workers: int) -> None:
            await client.change(made.namespace, name, MapChange(parallelism=workers))

        made._remove, made._set_workers = remove, set_workers
        return made

    @classmethod
    async def _local(cls, function: bytes, options: Options, name: str) -> AsyncMap[R]:
        check_local(options)
        # each step registers its undoing, which `aclose` runs in reverse order
        here = site()
        client = here.client()
        made: AsyncMap[R] = cls(client, options, name, NAMESPACE)
        made._stack.push_async_callback(client.close)
        slots = options.parallelism or os.cpu_count() or 1
        secret = secrets.token_urlsafe(32)
        token = here.expect_worker(secret)
        made._stack.callback(here.forget_worker, secret)
        # the worker starts now and gets its token later: both take time
        worker = await asyncio.to_thread(
            functools.partial(LocalWorker, here.folder, name, function, url=here.url, token=secret, slots=slots)
        )
        made._stack.push_async_callback(asyncio.to_thread, worker.stop)
        # options of resources have no meaning on this machine
        body = NewMap(
            name=name,
            request=secrets.token_hex(8),
            policy=MapPolicy(
                retries=options.retries or 0,
                batch_items=BATCH_ITEMS,
                time_seconds=seconds_of(options.time),
                rate=options.rate,
            ),
            limits={key: MapLimit(capacity=value) for key, value in options.limits.items()},
            priority=options.priority,
        )
        # after an error the worker, the token and the client are released
        try:
            await here.start()
            await client.create(NAMESPACE, body)
            token.set_result(await client.token(NAMESPACE, name))
        except BaseException:
            token.cancel()
            await made._stack.aclose()
            raise

        async def check() -> None:
            worker.check()

        async def remove() -> None:
            await client.delete(NAMESPACE, name)

        made._check, made._remove = check, remove
        return made

    @classmethod
    async def _cluster(cls, function: bytes, options: Options, name: str, opener: Opener | None) -> AsyncMap[R]:
        from moorage.actions import mapjobs
        from moorage.actions.runinputs import read_caller, read_cluster_nodes
        from moorage.client.cluster import user_of

        made: AsyncMap[R] = cls(MapClient(Connection(at_url(""))), options, name, "", opener)
        try:
            cluster = await made._open()
            made.namespace = cluster.namespace
            check_sendable(function)
            request = request_of(function, options, name, cluster.namespace)
            caller = read_caller(request.run.command, await user_of(cluster.api, server=cluster.server))
            cluster_nodes = read_cluster_nodes(cluster.api, cluster.server, cluster.namespace)
            plan = await mapjobs.plan_map(cluster.api, request, caller, cluster_nodes=cluster_nodes)
            mapjob = await mapjobs.create_map(cluster.api, plan, cluster.namespace, SYSTEM)
        except BaseException:
            await made.close()
            raise

        made._bind(cluster, mapjob["metadata"].get("uid"))
        return made

    def _bind(self, cluster: Cluster, uid: str | None) -> None:
        """Check, scale and delete the map through its MapJob from now on."""
        from moorage.actions import mapjobs

        async def check() -> None:
            await mapjobs.check_workers(cluster.api, self.namespace, self.name)

        async def remove() -> None:
            forget = functools.partial(self._client.delete, self.namespace, self.name)
            await mapjobs.delete_map(cluster.api, self.namespace, self.name, uid=uid, forget=forget)

        async def set_workers(workers: int) -> None:
            await mapjobs.set_workers(cluster.api, self.namespace, self.name, workers)

        self._check, self._remove, self._set_workers = check, remove, set_workers

    async def _open(self) -> Cluster:
        """Connect to the cluster that the options name."""
        from moorage.client.target import Target

        given = self._options
        kubeconfig = None if given.kubeconfig is None else Path(given.kubeconfig)
        target = Target(context=given.context, kubeconfig=kubeconfig, namespace=given.namespace)
        cluster = await self._stack.enter_async_context(self._opener(target))
        site = await cluster.server.site()  # a cluster without a server is an error at once
        self._client = map_client(cluster.server.address, ca=site.ca)
        self._stack.push_async_callback(self._client.close)
        return cluster

    async def _upload(self, items: Spool) -> None:
        try:
            await self._client.upload(self.namespace, self.name, items.lines(), close=True)
        finally:
            items.close()

    # -- asking

    async def status(self) -> MapStatus:
        return _status(await self._show())

    async def _show(self) -> MapAnswer:
        return await self._client.show(self.namespace, self.name, patient=True)

    async def wait(self) -> MapStatus:
        """Wait until all items are done or have failed. Returns the state of the map."""
        with Bar(wanted=self._options.progress) as bar:
            first, longest = LOOK_SECONDS[self._options.where]
            pause = first
            while True:
                current = await self._show()
                bar.show(map_line(current))
                status = _status(current)
                if status.ended and self._uploaded():
                    bar.show(map_line(current), now=True)
                    return status
                await self._look_after()
                await SYSTEM.sleep(pause)
                pause = min(pause * 1.5, longest)

    async def failures(self) -> list[ItemError]:
        """Return the items that failed for good, in order."""
        return [failure async for failure in self._failures()]

    async def retry(self) -> int:
        """Run the failed items again. Returns their number."""
        return await self._client.retry(self.namespace, self.name)

    async def add(self, items: Spool, *, request: str | None = None, close: bool = False) -> int:
        """Add items to an open map. Returns the new number of items. Raises Conflict if the map is closed."""
        try:
            tag = request or secrets.token_hex(8)
            total = 0
            for at in range(0, max(items.count, 1), UPLOAD_LINES):
                lines = items.lines(at, min(at + UPLOAD_LINES, items.count)).read()
                last = close and at + UPLOAD_LINES >= items.count
                # with an id the same lines again add nothing
                total = await self._client.add(
                    self.namespace, self.name, lines, request=f"{tag}/{at}", close=last, patient=True
                )
            return total
        finally:
            items.close()

    async def scale(self, workers: int) -> None:
        """Set the maximum number of workers. Raises UsageError for a map on this machine."""
        if self._set_workers is None:
            raise UsageError("cannot scale a map on this machine", hint="use where='cluster'")
        await self._set_workers(workers)

    async def cancel(self) -> None:
        await self._client.change(self.namespace, self.name, MapChange(state=MapState.CANCELLED))

    async def delete(self) -> None:
        """Delete the map with its results, and release its resources in this process."""
        if self._uploading is not None:
            self._uploading.cancel()
            with suppress(asyncio.CancelledError, MoorageError):
                await self._uploading
        try:
            if self._remove is not None:
                await self._remove()
        except NotFound:
            pass  # it is deleted already
        await self.close()

    async def close(self) -> None:
        """Close connections, and stop the workers on this machine; a map on a cluster continues."""
        await self._stack.aclose()

    # -- results

    async def pages(self, *, ordered: bool, on_error: OnError) -> AsyncIterator[list[tuple[int, R | ItemError]]]:
        """Results as they come, several at a time; with `ordered` each after all before it.

        With on_error "raise" the first failed item raises ItemError, else it is among the results.
        """
        reader: Reader[R] = Reader(ordered=ordered)
        first, longest = LOOK_SECONDS[self._options.where]
        pause = first
        with Bar(wanted=self._options.progress) as bar:
            while True:
                current = await self._show()
                bar.show(map_line(current))
                counts = current.counts
                news: list[tuple[int, R | ItemError]] = []
                if counts.ended > reader.known:
                    await self._read_news(reader, counts.dead)
                    news = reader.take()
                good = news if on_error == "return" else list(takewhile(is_good, news))
                if good:
                    yield good
                    pause = first
                if len(good) < len(news) and isinstance(failed := news[len(good)][1], ItemError):
                    raise failed
                total = counts.total
                if self._uploaded() and reader.given >= total and current.closed:
                    bar.show(map_line(current), now=True)
                    return
                if current.state == MapState.CANCELLED and not counts.leased:
                    raise MoorageError(
                        f"the map {self.name} was cancelled with {total - reader.given:,} results missing"
                    )
                await self._look_after()
                await SYSTEM.sleep(max(pause, LOOK_SHARE * reader.cost))
                reader.cost = 0.0
                if not news:
                    pause = min(pause * 1.5, longest)

    async def _read_news(self, reader: Reader[R], dead: int) -> None:
        began = SYSTEM.monotonic()
        async for line in self._client.results(self.namespace, self.name, after=reader.after):
            reader.add(line)
        if dead > reader.failed:
            async for failure in self._failures(after=reader.after, unless=reader.knows):
                reader.add_failure(failure)
        reader.cost = SYSTEM.monotonic() - began

    async def _failures(
        self, *, after: int | None = None, unless: Callable[[int], bool] = lambda _: False
    ) -> AsyncIterator[ItemError]:
        async for item in self._client.items(self.namespace, self.name, states=("dead",), after=after):
            if unless(item.item):
                continue
            failed = await self._client.item(self.namespace, self.name, item.item)
            yield ItemError(
                item=item.item,
                value=decode(json.loads(bytes(item.value)), "auto"),
                cause=item.failure.cause if item.failure else "",
                message=item.failure.message if item.failure else "",
                output=failed.output.decode("utf-8", "replace"),
                map_name=self.name,
            )

    def _uploaded(self) -> bool:
        """Whether all items are on the server. Raises the error that ended the upload."""
        if self._uploading is None:
            return True
        if not self._uploading.done():
            return False
        self._uploading.result()
        return True

    async def _look_after(self) -> None:
        """Raise an error if the upload failed or the workers cannot produce more results."""
        self._uploaded()
        if self._check is not None:
            try:
                await self._check()
            except ApiError:
                pass  # the Kubernetes API is away; the queue is not


def _open_cluster(target: Target) -> AbstractAsyncContextManager[Cluster]:
    from moorage.client.cluster import open_cluster

    return open_cluster(target)


class Map(Generic[R]):
    """A map for code without an event loop.

    `close` leaves a map on a cluster running, but ends a map on this machine.
    """

    def __init__(self, inner: AsyncMap[R]) -> None:
        self._inner = inner

    @classmethod
    @with_named_options(MapOptions)
    def start(cls, func: Callable[[T], R] | str, items: Iterable[T], **options: Unpack[MapOptions]) -> Map[R]:
        """Start a map and return at once; the options are those of `moorage.map`."""
        given = options_of(options)
        function, spooled = _prepared(func, items)
        started: AsyncMap[R] = _run(AsyncMap.start(function, spooled, given, function_name(func)))
        return cls(started)

    @classmethod
    def attach(
        cls,
        name: str,
        *,
        where: Where = "cluster",
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | os.PathLike[str] | None = None,
        progress: bool = True,
    ) -> Map[Any]:
        """Return a map that another process or `moor map create` started. Raises NotFound."""
        options = Options(
            where=where, namespace=namespace, context=context, kubeconfig=kubeconfig, progress=progress
        )
        attached: AsyncMap[Any] = _run(AsyncMap.attach(name, options))
        return Map(attached)

    def __enter__(self) -> Map[R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def namespace(self) -> str:
        return self._inner.namespace

    def status(self) -> MapStatus:
        return _run(self._inner.status())

    def wait(self) -> MapStatus:
        """Wait until all items are done or have failed. Returns the state of the map."""
        return _run(self._inner.wait())

    def results(self, *, ordered: bool = True, on_error: OnError = "raise") -> Iterator[R]:
        """Yield results in the order of the items, or as they arrive. Waits for missing results."""
        for page in _pages(self._inner, ordered=ordered, on_error=on_error):
            for _, value in page:
                yield value  # type: ignore[misc]

    def pairs(self, *, ordered: bool = False, on_error: OnError = "raise") -> Iterator[tuple[int, R]]:
        """Yield pairs (number of the item, result). Otherwise as `results`."""
        for page in _pages(self._inner, ordered=ordered, on_error=on_error):
            yield from page  # type: ignore[misc]

    def failures(self) -> list[ItemError]:
        return _run(self._inner.failures())

    def retry(self) -> int:
        """Run the failed items again. Returns their number."""
        return _run(self._inner.retry())

    def add(self, items: Iterable[Any], *, request: str | None = None, close: bool = False) -> int:
        """Add items to an open map (`moor map create --open`); return the number of its items.

        `request`: an id of these items: the same id again adds nothing, so a program that was killed can add them
        again. `close`: these are the last items. Raises Conflict for a closed map.
        """
        return _run(self._inner.add(spool(pack_items(items)), request=request, close=close))

    def scale(self, workers: int) -> None:
        """Set the maximum number of workers, also while the map runs. Raises UsageError, NotFound."""
        _run(self._inner.scale(workers))

    def cancel(self) -> None:
        _run(self._inner.cancel())

    def delete(self) -> None:
        _run(self._inner.delete())

    def close(self) -> None:
        _run(self._inner.close())


@with_named_options(MapOptions)
def map(
    func: Callable[[T], R] | str,
    items: Iterable[T],
    *,
    ordered: bool = True,
    on_error: OnError = "raise",
    **options: Unpack[MapOptions],
) -> Iterator[R]:
    """Call `func` with each item, on many workers; an iterator of the results, in order or as they come.

    The map is started at once. `where="local"` runs it on this machine and needs nothing else. The other
    options are the fields of `Options`: parallelism, cpu, memory="2Gi", gpus, image, limits, rate, retries,
    time="5m", volumes, env, name, …

    An item that fails raises ItemError, and the map is cancelled; with on_error="return" the error takes the
    place of its result. A map is deleted once all results were read, unless `keep` is given.
    """
    given = options_of(options)
    function, spooled = _prepared(func, items)
    inner: AsyncMap[R] = _run(AsyncMap.start(function, spooled, given, function_name(func)))
    return _consumed(inner, given, ordered=ordered, on_error=on_error)


def _consumed(inner: AsyncMap[R], options: Options, *, ordered: bool, on_error: OnError) -> Iterator[R]:
    """Yield results; clean up at the end, or when the iterator is closed."""
    whole = False
    try:
        for page in _pages(inner, ordered=ordered, on_error=on_error):
            for _, value in page:
                yield value  # type: ignore[misc]
        whole = True
    finally:
        with suppress(ApiError):
            _run(_ended(inner, options, whole=whole))


async def _ended(inner: AsyncMap[Any], options: Options, *, whole: bool) -> None:
    if options.keep and whole:
        await inner.close()
    elif whole or options.where == "local":
        await inner.delete()
    else:
        try:
            await inner.cancel()
        finally:
            await inner.close()


@with_named_options(MapOptions)
async def amap(
    func: Callable[[T], R] | str,
    items: Iterable[T],
    *,
    ordered: bool = True,
    on_error: OnError = "raise",
    **options: Unpack[MapOptions],
) -> AsyncIterator[R]:
    """`moorage.map` for async code: it does not block the caller's event loop."""
    given = options_of(options)
    function, spooled = await asyncio.to_thread(_prepared, func, items)
    inner: AsyncMap[R] = await _elsewhere(AsyncMap.start(function, spooled, given, function_name(func)))
    whole = False
    pages = inner.pages(ordered=ordered, on_error=on_error)
    try:
        while (page := await _elsewhere(_next(pages))) is not None:
            for _, value in page:
                yield value  # type: ignore[misc]
        whole = True
    finally:
        with suppress(ApiError):
            await _elsewhere(_ended(inner, given, whole=whole))


class Mapped(Generic[T, R]):
    """A function that can be called, or mapped over items with `map`."""

    def __init__(self, func: Callable[[T], R], options: Mapping[str, Any]) -> None:
        functools.update_wrapper(self, func)
        self._func = func
        self._options = dict(options)

    def __call__(self, item: T) -> R:
        return self._func(item)

    @with_named_options(MapAndReadOptions)
    def map(self, items: Iterable[T], **options: Unpack[MapAndReadOptions]) -> Iterator[R]:
        """`moorage.map` with the options of the decorator; the options given here override them."""
        return map(self._func, items, **{**self._options, **options})

    @with_named_options(MapAndReadOptions)
    def amap(self, items: Iterable[T], **options: Unpack[MapAndReadOptions]) -> AsyncIterator[R]:
        return amap(self._func, items, **{**self._options, **options})

    @with_named_options(MapAndReadOptions)
    def start(self, items: Iterable[T], **options: Unpack[MapAndReadOptions]) -> Map[R]:
        given = {**self._options, **options}
        given.pop("ordered", None)
        given.pop("on_error", None)
        return Map.start(self._func, items, **given)


@with_named_options(MapAndReadOptions)
def mapped(**options: Unpack[MapAndReadOptions]) -> Callable[[Callable[[T], R]], Mapped[T, R]]:
    """A decorator: adds `.map(items)`, `.amap(items)` and `.start(items)` to the function.

    The options are those of `moorage.map`.
    """

    def decorate(func: Callable[[T], R]) -> Mapped[T, R]:
        return Mapped(func, options)

    return decorate


def _pages(inner: AsyncMap[R], *, ordered: bool, on_error: OnError) -> Iterator[list[tuple[int, R | ItemError]]]:
    pages = inner.pages(ordered=ordered, on_error=on_error)
    try:
        while (page := _run(_next(pages))) is not None:
            yield page
    finally:
        _run(pages.aclose())  # type: ignore[attr-defined]


async def _next(pages: AsyncIterator[T]) -> T | None:
    return await anext(pages, None)


def _run(work: Coroutine[Any, Any, T]) -> T:
    return loop().run(work)


async def _elsewhere(work: Coroutine[Any, Any, T]) -> T:
    return await asyncio.wrap_future(loop().submit(work))


def _prepared(func: Callable[..., Any] | str, items: Iterable[Any]) -> tuple[bytes, Spool]:
    """The packed function and the spooled items. Raises UsageError for objects that cannot be packed."""
    function = pack(func)
    return function, spool(pack_items(items, func))


def _name(label: str) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:40].strip("-") or "map"
    return f"{words}-{secrets.token_hex(4)}"


def _status(shown: MapAnswer) -> MapStatus:
    counts = shown.counts
    return MapStatus(
        name=shown.name,
        namespace=shown.namespace,
        state=shown.state,
        total=counts.total,
        done=counts.done,
        failed=counts.dead,
        running=counts.leased,
        workers=counts.workers,
        executions=counts.executions,
        mean_seconds=shown.mean_seconds,
        items_per_second=shown.items_per_second,
        seconds_left=shown.seconds_left,
    )
