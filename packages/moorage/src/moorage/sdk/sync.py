"""`moorage.Client`: the methods of `AsyncClient` for programs without an event loop.

Each method runs the async method on the SDK's own loop and waits for its result. Names, types and
documentation are those of `aio.py`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

from moorage.sdk import aio
from moorage.sdk.local import loop

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_END = object()


def _call(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return a blocking version of an async method."""

    def wait(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return loop().run(method(self._over, *args, **kwargs))

    return _named(wait, method)


def _each(method: Callable[Concatenate[Any, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """The items that the method yields; each `next` waits for one."""

    def walk(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        iterator = cast(AsyncGenerator[T, None], method(self._over, *args, **kwargs))
        try:
            while (item := loop().run(_next(iterator))) is not _END:
                yield cast(T, item)
        finally:
            loop().run(iterator.aclose())

    return _named(walk, method)


def _named(made: F, method: Callable[..., Any]) -> F:
    functools.update_wrapper(made, method)
    return made


async def _next(iterator: AsyncIterator[T]) -> T | object:
    return await anext(iterator, _END)


class Workspaces:
    """Workspaces: interactive pods with JupyterLab, code-server or another server."""

    def __init__(self, over: aio.AsyncWorkspaces) -> None:
        self._over = over

    list = _each(aio.AsyncWorkspaces.list)
    get = _call(aio.AsyncWorkspaces.get)
    create = _call(aio.AsyncWorkspaces.create)
    start = _call(aio.AsyncWorkspaces.start)
    stop = _call(aio.AsyncWorkspaces.stop)
    snooze = _call(aio.AsyncWorkspaces.snooze)
    open = _call(aio.AsyncWorkspaces.open)
    wait = _call(aio.AsyncWorkspaces.wait)
    delete = _call(aio.AsyncWorkspaces.delete)


class Volumes:
    """Persistent volumes."""

    def __init__(self, over: aio.AsyncVolumes) -> None:
        self._over = over

    list = _each(aio.AsyncVolumes.list)
    create = _call(aio.AsyncVolumes.create)
    resize = _call(aio.AsyncVolumes.resize)
    delete = _call(aio.AsyncVolumes.delete)


class Crons:
    """Schedules of workflows."""

    def __init__(self, over: aio.AsyncCrons) -> None:
        self._over = over

    list = _each(aio.AsyncCrons.list)
    get = _call(aio.AsyncCrons.get)
    create = _call(aio.AsyncCrons.create)
    suspend = _call(aio.AsyncCrons.suspend)
    resume = _call(aio.AsyncCrons.resume)
    run = _call(aio.AsyncCrons.run)
    backfill = _call(aio.AsyncCrons.backfill)
    history = _call(aio.AsyncCrons.history)
    delete = _call(aio.AsyncCrons.delete)


class Datasets:
    """Datasets: volumes that are filled once and read by many pods."""

    def __init__(self, over: aio.AsyncDatasets) -> None:
        self._over = over

    list = _each(aio.AsyncDatasets.list)
    get = _call(aio.AsyncDatasets.get)
    create = _call(aio.AsyncDatasets.create)
    share = _call(aio.AsyncDatasets.share)
    delete = _call(aio.AsyncDatasets.delete)


class Jobs:
    """Training runs, as `moor run` creates them."""

    def __init__(self, over: aio.AsyncJobs) -> None:
        self._over = over

    list = _each(aio.AsyncJobs.list)
    get = _call(aio.AsyncJobs.get)
    run = _call(aio.AsyncJobs.run)
    logs = _each(aio.AsyncJobs.logs)
    wait = _call(aio.AsyncJobs.wait)
    cancel = _call(aio.AsyncJobs.cancel)
    suspend = _call(aio.AsyncJobs.suspend)
    resume = _call(aio.AsyncJobs.resume)
    snooze = _call(aio.AsyncJobs.snooze)
    delete = _call(aio.AsyncJobs.delete)


class Containers:
    """Containers as in Docker. `container`: a name, or the beginning of an id."""

    def __init__(self, over: aio.AsyncContainers) -> None:
        self._over = over

    list = _each(aio.AsyncContainers.list)
    get = _call(aio.AsyncContainers.get)
    create = _call(aio.AsyncContainers.create)
    start = _call(aio.AsyncContainers.start)
    stop = _call(aio.AsyncContainers.stop)
    wait = _call(aio.AsyncContainers.wait)
    remove = _call(aio.AsyncContainers.remove)
    logs = _each(aio.AsyncContainers.logs)
    exec = _call(aio.AsyncContainers.exec)


class Workflows:
    """Workflows in Argo's format. The name `@latest` means the newest workflow."""

    def __init__(self, over: aio.AsyncWorkflows) -> None:
        self._over = over

    submit = _call(aio.AsyncWorkflows.submit)
    list = _each(aio.AsyncWorkflows.list)
    get = _call(aio.AsyncWorkflows.get)
    explain = _call(aio.AsyncWorkflows.explain)
    wait = _call(aio.AsyncWorkflows.wait)
    logs = _each(aio.AsyncWorkflows.logs)
    stop = _call(aio.AsyncWorkflows.stop)
    terminate = _call(aio.AsyncWorkflows.terminate)
    suspend = _call(aio.AsyncWorkflows.suspend)
    resume = _call(aio.AsyncWorkflows.resume)
    set_node = _call(aio.AsyncWorkflows.set_node)
    retry = _call(aio.AsyncWorkflows.retry)
    resubmit = _call(aio.AsyncWorkflows.resubmit)
    delete = _call(aio.AsyncWorkflows.delete)


class WorkflowTemplates:
    """WorkflowTemplates; with `cluster=True`, ClusterWorkflowTemplates."""

    def __init__(self, over: aio.AsyncWorkflowTemplates) -> None:
        self._over = over

    create = _call(aio.AsyncWorkflowTemplates.create)
    list = _each(aio.AsyncWorkflowTemplates.list)
    get = _call(aio.AsyncWorkflowTemplates.get)
    delete = _call(aio.AsyncWorkflowTemplates.delete)


class Client:
    """A Moorage server, as you. `with Client() as client:`, or `client.close()` at the end. Threads may share one.

    The server and the user are chosen as in `AsyncClient`.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | os.PathLike[str] | None = None,
    ) -> None:
        self._over = aio.AsyncClient(server, token, namespace=namespace, context=context, kubeconfig=kubeconfig)
        self.jobs = Jobs(self._over.jobs)
        self.workspaces = Workspaces(self._over.workspaces)
        self.containers = Containers(self._over.containers)
        self.volumes = Volumes(self._over.volumes)
        self.datasets = Datasets(self._over.datasets)
        self.workflows = Workflows(self._over.workflows)
        self.workflow_templates = WorkflowTemplates(self._over.workflow_templates)
        self.crons = Crons(self._over.crons)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    close = _call(aio.AsyncClient.close)
    whoami = _call(aio.AsyncClient.whoami)
    gpus = _call(aio.AsyncClient.gpus)
    nodes = _call(aio.AsyncClient.nodes)
    top = _call(aio.AsyncClient.top)
    budgets = _call(aio.AsyncClient.budgets)
    cost = _call(aio.AsyncClient.cost)
    explain = _call(aio.AsyncClient.explain)
