"""`moorage.AsyncClient`: the platform for programs. `moorage.Client` is made from it (`sync.py`).

All methods raise `moorage.errors.ApiError` (NotFound, Forbidden, AlreadyExists, Conflict, Invalid, ServerError …)
with `message`, `hint`, `code` and `field` from the server.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Literal, Self

from moorage.api.budgets import BudgetRow, Budgets
from moorage.api.costs import Costs
from moorage.api.crons import BackfillAnswer, Cron, CronHistory, CronRun
from moorage.api.datasets import Dataset
from moorage.api.explain import Explanation
from moorage.api.gpus import Gpus
from moorage.api.idle import IdleWork
from moorage.api.jobs import Job
from moorage.api.logins import Person
from moorage.api.nodes import Nodes
from moorage.api.reading import read
from moorage.api.usage import Top
from moorage.api.volumes import Volume
from moorage.api.workspaces import Workspace
from moorage.client.connection import Connection
from moorage.client.sites import Given, finder_of
from moorage.sdk.aiocontainers import AsyncContainers as AsyncContainers
from moorage.sdk.aioworkflows import AsyncWorkflows as AsyncWorkflows
from moorage.sdk.aioworkflows import AsyncWorkflowTemplates as AsyncWorkflowTemplates
from moorage.sdk.group import Group, lines_of, new_key
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import AlreadyExists, UsageError

LOOKS = (0.1, 2.0)  # first and longest pause between two checks while waiting
EXIT_CODE_LOOKS = 5  # more, at a run that failed, before its exit code counts as unknown


class AsyncWorkspaces(Group):
    """Workspaces: interactive pods with JupyterLab, code-server or another server."""

    async def list(
        self, *, namespace: str | None = None, all_namespaces: bool = False
    ) -> AsyncIterator[Workspace]:
        """List the workspaces of a namespace, or of all namespaces where you may list workspaces."""
        async for page in self._pages("workspaces", namespace, all_namespaces):
            yield read(Workspace, page)

    async def get(self, name: str, *, namespace: str | None = None) -> Workspace:
        """Raises NotFound."""
        return read(Workspace, await self._json("GET", await self._path("workspaces", namespace, name)))

    async def create(
        self,
        name: str,
        *,
        type: str = "jupyterlab",
        machine: tuple[str, str] | None = None,
        cpu: str | float | None = None,
        memory: str | None = None,
        gpus: int = 0,
        gpu_type: str | None = None,
        gpu_resource: str | None = None,
        gpu_claim: str | None = None,
        image: str | None = None,
        env: Mapping[str, str] | None = None,
        volumes: Sequence[str] = (),
        home_size: str | None = None,
        access: Literal["", "login", "token"] = "",
        running: bool = True,
        queue: str | None = None,
        spec: Mapping[str, Any] | None = None,
        host_env: bool = False,
        namespace: str | None = None,
        dry_run: bool = False,
        key: str | None = None,
    ) -> Workspace:
        """Create a workspace, and start it unless `running` is false.

        `machine`: (group, type), instead of resources; `queue`: a LocalQueue of Kueue; `volumes`:
        `NAME:/path[:ro]`; `spec`: more fields of the kind Workspace, which override the other arguments;
        `key`: an idempotency key: a second call with the same key returns the same workspace (None: a new key
        for this call).
        """
        # values that are not given are left out: the server has the defaults
        resources = {
            "cpu": cpu,
            "memory": memory,
            "gpus": gpus or None,
            "gpuType": gpu_type or None,
        }
        resources |= {"gpuResource": gpu_resource or None, "gpuClaim": gpu_claim or None}
        wanted: dict[str, Any] = {
            "type": type,
            "image": image or None,
            "machine": {"group": machine[0], "type": machine[1]} if machine else None,
            "resources": {name: value for name, value in resources.items() if value is not None} or None,
            "env": [{"name": variable, "value": value} for variable, value in (env or {}).items()] or None,
            "volumes": [_mount(volume) for volume in volumes] or None,
            "home": {"size": home_size} if home_size else None,
            "access": access or None,
            "running": None if running else False,
        }
        # `spec` has the last word on fields without a parameter
        body: dict[str, Any] = {
            "name": name,
            "namespace": await self._in(namespace),
            "spec": {name: value for name, value in wanted.items() if value is not None} | dict(spec or {}),
            "queue": queue or "",
            "hostEnv": host_env,
            "dryRun": dry_run,
        }
        made = await self._json("POST", "/api/v1/workspaces", body=body, key=key or new_key())
        return read(Workspace, made)

    async def start(self, name: str, *, namespace: str | None = None) -> Workspace:
        path = await self._path("workspaces", namespace, name, "start")
        return read(Workspace, await self._json("POST", path))

    async def stop(self, name: str, *, namespace: str | None = None) -> Workspace:
        """Stop it. Files on its volumes remain; the memory of its processes is lost."""
        path = await self._path("workspaces", namespace, name, "stop")
        return read(Workspace, await self._json("POST", path))

    async def snooze(self, name: str, *, time: str, namespace: str | None = None) -> IdleWork:
        """Postpone the suspension of an idle workspace by a time such as "4h", within the limits of the idle
        policy.
        """
        path = await self._path("workspaces", namespace, name, "snooze")
        return read(IdleWork, await self._json("POST", path, body={"time": time}))

    async def open(self, name: str, *, path: str = "", namespace: str | None = None) -> str:
        """Return an address that logs a browser in to the workspace. It works once, within a minute.

        `path`: the first page to show, relative to the workspace.
        """
        where = await self._path("workspaces", namespace, name, "open")
        return str((await self._json("POST", where, body={"path": path}))["url"])

    async def wait(
        self, name: str, *, phase: str = "Running", timeout: float = 600.0, namespace: str | None = None
    ) -> Workspace:
        """The workspace once it is in that phase.

        Raises TimeoutError after `timeout` seconds, with the reason for the wait.
        """
        began, pause = self._clock.monotonic(), LOOKS[0]
        while True:
            workspace = await self.get(name, namespace=namespace)
            if workspace.phase == phase:
                return workspace
            if self._clock.monotonic() - began > timeout:
                why = f": {workspace.waiting_for.message}" if workspace.waiting_for else ""
                raise TimeoutError(f"the workspace {name} is {workspace.phase} after {timeout:g} s{why}")
            await self._clock.sleep(pause)
            pause = min(pause * 1.5, LOOKS[1])

    async def delete(self, name: str, *, delete_home: bool = False, namespace: str | None = None) -> None:
        """Delete a workspace. Its home volume stays, unless `delete_home` is set."""
        params = {"deleteHome": delete_home or None}
        await self._json("DELETE", await self._path("workspaces", namespace, name), params=params)


class AsyncVolumes(Group):
    """Persistent volumes."""

    async def list(self, *, namespace: str | None = None, all_namespaces: bool = False) -> AsyncIterator[Volume]:
        """List the volumes of a namespace, or of all namespaces."""
        async for page in self._pages("volumes", namespace, all_namespaces):
            yield read(Volume, page)

    async def create(
        self,
        name: str,
        size: str,
        *,
        access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = "ReadWriteOnce",
        storage_class: str = "",
        namespace: str | None = None,
        key: str | None = None,
    ) -> Volume:
        """Create a volume of a size such as 10Gi. `key`: as for workspaces."""
        body = {"name": name, "size": size, "accessMode": access_mode, "storageClass": storage_class}
        body["namespace"] = await self._in(namespace)
        return read(Volume, await self._json("POST", "/api/v1/volumes", body=body, key=key or new_key()))

    async def resize(self, name: str, size: str, *, namespace: str | None = None) -> Volume:
        """Make a volume larger. Raises Conflict if the new size is smaller than the old."""
        path = await self._path("volumes", namespace, name)
        return read(Volume, await self._json("PATCH", path, body={"size": size}))

    async def delete(self, name: str, *, force: bool = False, namespace: str | None = None) -> None:
        """Delete a volume. Raises Conflict (code `in_use`) while a pod mounts it, unless `force` is set."""
        path = await self._path("volumes", namespace, name)
        await self._json("DELETE", path, params={"force": force or None})


class AsyncCrons(Group):
    """Schedules of workflows."""

    async def list(self, *, namespace: str | None = None, all_namespaces: bool = False) -> AsyncIterator[Cron]:
        """List the schedules of a namespace, or of all namespaces."""
        async for page in self._pages("crons", namespace, all_namespaces):
            yield read(Cron, page)

    async def get(self, name: str, *, namespace: str | None = None) -> Cron:
        """Raises NotFound."""
        return read(Cron, await self._json("GET", await self._path("crons", namespace, name)))

    async def create(
        self,
        manifest: Mapping[str, Any],
        *,
        replace: bool = False,
        namespace: str | None = None,
        key: str | None = None,
    ) -> Cron:
        """Create a schedule. `manifest`: a CronWorkflow in Argo's format; `key`: as for workspaces.

        `replace`: change the schedule if it exists; otherwise an existing schedule raises AlreadyExists.
        """
        body = {"manifest": dict(manifest), "namespace": await self._in(namespace)}
        try:
            return read(Cron, await self._json("POST", "/api/v1/crons", body=body, key=key or new_key()))
        except AlreadyExists:
            if not replace:
                raise
        name = str((manifest.get("metadata") or {}).get("name") or "")
        return read(Cron, await self._json("PUT", await self._path("crons", namespace, name), body=body))

    async def suspend(self, name: str, *, namespace: str | None = None) -> Cron:
        """Suspend a schedule: it starts no more runs. Runs that have started continue."""
        return read(Cron, await self._json("POST", await self._path("crons", namespace, name, "suspend")))

    async def resume(self, name: str, *, namespace: str | None = None) -> Cron:
        """Resume a suspended schedule, from now on."""
        return read(Cron, await self._json("POST", await self._path("crons", namespace, name, "resume")))

    async def run(
        self,
        name: str,
        parameters: Mapping[str, str] | None = None,
        *,
        namespace: str | None = None,
        key: str | None = None,
    ) -> CronRun:
        """Start the workflow of a schedule now, outside of the schedule. `key`: as for workspaces."""
        path = await self._path("crons", namespace, name, "run")
        body = {"parameters": dict(parameters or {})}
        return read(CronRun, await self._json("POST", path, body=body, key=key or new_key()))

    async def backfill(
        self,
        name: str,
        begin: datetime,
        end: datetime,
        *,
        parallel: int = 1,
        dry_run: bool = False,
        namespace: str | None = None,
    ) -> BackfillAnswer:
        """Run the slots from `begin` to `end` (aware times) that did not run, oldest first, `parallel` at a time.

        Returns at once: the operator starts them. Raises Conflict during another backfill.
        """
        path = await self._path("crons", namespace, name, "backfill")
        body = {"begin": begin.isoformat(), "end": end.isoformat(), "parallel": parallel, "dryRun": dry_run}
        return read(BackfillAnswer, await self._json("POST", path, body=body))

    async def history(self, name: str, *, namespace: str | None = None) -> tuple[CronRun, ...]:
        """Its runs, newest first, including deleted ones."""
        path = await self._path("crons", namespace, name, "history")
        return read(CronHistory, await self._json("GET", path)).runs

    async def delete(self, name: str, *, namespace: str | None = None) -> None:
        """Delete a schedule and its workflows."""
        await self._json("DELETE", await self._path("crons", namespace, name))


class AsyncDatasets(Group):
    """Datasets: volumes that are filled once and read by many pods."""

    async def list(self, *, namespace: str | None = None, all_namespaces: bool = False) -> AsyncIterator[Dataset]:
        """List the datasets of a namespace, or of all namespaces."""
        async for page in self._pages("datasets", namespace, all_namespaces):
            yield read(Dataset, page)

    async def get(self, name: str, *, namespace: str | None = None) -> Dataset:
        """Raises NotFound."""
        return read(Dataset, await self._json("GET", await self._path("datasets", namespace, name)))

    async def create(
        self,
        name: str,
        source: str,
        size: str,
        *,
        secret: str = "",
        anonymous: bool = False,
        unpack: bool = False,
        storage_class: str = "",
        access: Literal["auto", "shared", "clone"] = "auto",
        readers: Sequence[str] = (),
        namespace: str | None = None,
        dry_run: bool = False,
        key: str | None = None,
    ) -> Dataset:
        """Create a dataset. Moorage starts to fill it at once.

        `source`: s3://…, gs://…, https://… or volume:NAME/FOLDER; `size`: the size of its volume; `readers`: other
        tenants that may read it; `key`: as for workspaces.
        """
        filled = {"url": source, "secret": secret, "anonymous": anonymous, "unpack": unpack}
        spec: dict[str, Any] = {"source": {field: value for field, value in filled.items() if value}, "size": size}
        spec |= {"access": access, "readers": list(readers)}
        if storage_class:
            spec["storageClass"] = storage_class
        body = {"name": name, "namespace": await self._in(namespace), "spec": spec, "dryRun": dry_run}
        made = await self._json("POST", "/api/v1/datasets", body=body, key=key or new_key())
        return read(Dataset, made)

    async def share(self, name: str, readers: Sequence[str], *, namespace: str | None = None) -> Dataset:
        """Set the tenants that may read the dataset. The new list replaces the old."""
        path = await self._path("datasets", namespace, name)
        return read(Dataset, await self._json("PATCH", path, body={"readers": list(readers)}))

    async def delete(self, name: str, *, force: bool = False, namespace: str | None = None) -> None:
        """Delete it. Raises Conflict (code `in_use`) while a pod reads it, unless `force`."""
        path = await self._path("datasets", namespace, name)
        await self._json("DELETE", path, params={"force": force or None})


class AsyncJobs(Group):
    """Training runs, as `moor run` creates them."""

    async def list(
        self,
        *,
        owner: str | None = None,
        state: str | None = None,
        namespace: str | None = None,
        all_namespaces: bool = False,
        gpu_type: str | None = None,
        since: str | None = None,
        selector: str | None = None,
        sort: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Job]:
        """List the runs of a namespace, or of all namespaces, newest first.

        Filter by owner or state (such as Waiting).

        `since`: only runs created at that time or later: 2h or 7d ago, a day (2026-01-31) or an RFC 3339 time.
        `selector`: a label selector, such as project=vision,stage!=test, in namespaces where you may read Jobs.
        `sort`: age, gpus (most first) or name. `limit`: the maximum number of runs, applied after the sort.
        """
        where = None if all_namespaces else await self._in(namespace)
        params = {"namespace": where, "owner": owner, "state": state, "since": since, "selector": selector}
        params |= {"gpuType": gpu_type, "sort": sort, "limit": None if limit is None else str(limit)}
        for job in (await self._json("GET", "/api/v1/jobs", params=params))["jobs"]:
            yield read(Job, job)

    async def get(self, name: str, *, namespace: str | None = None) -> Job:
        """Return a run with its attempts and their pods. Raises NotFound."""
        return read(Job, await self._json("GET", await self._path("jobs", namespace, name)))

    async def run(
        self,
        command: Sequence[str],
        *,
        name: str | None = None,
        image: str | None = None,
        user: str | None = None,
        gpus: int = 0,
        gpu_type: str | None = None,
        gpu_resource: str | None = None,
        gpu_claim: str | None = None,
        machine: tuple[str, str] | None = None,
        cpu: str | float | None = None,
        memory: str | None = None,
        time: str | None = None,
        volumes: Sequence[str] = (),
        datasets: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        secrets: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        checkpoint: str | None = None,
        working_dir: str | None = None,
        git: str | None = None,
        grace_period_seconds: int | None = None,
        priority_class: str | None = None,
        queue: str | None = None,
        retries: int = 0,
        restart_limit: int | None = None,
        share: bool | None = None,
        host_env: bool = False,
        namespace: str | None = None,
        dry_run: bool = False,
        key: str | None = None,
    ) -> Job:
        """Start a run; the values are those of the options of `moor run`.

        It sends no directory: the program must be in the image, in a git repository or on a volume.

        `memory`: such as 8Gi, or "none"; `time`: such as 2h; `volumes`: `NAME:/path[:ro]`; `datasets`:
        `[NAMESPACE/]NAME:/path`; `secrets`: `NAME`, `NAME:KEY`, `VARIABLE=NAME:KEY` or `NAME:/path`;
        `checkpoint`: `NAME[:SIZE]`; `working_dir`: `NAME:path` on a volume; `git`: `URL[@REF]`;
        `queue`: a LocalQueue of Kueue;
        `share`: takes turns on GPUs; `user`: `UID[:GID]`; `machine`: (group, type), instead of all amounts;
        `key`: asking again with it gives the same one (None: a new key).
        Raises Invalid, with every problem in its message, and AlreadyExists.
        """
        # a string would be sent as a list of letters
        if isinstance(command, str):
            raise UsageError(
                "invalid command: use a list of arguments, not one string", hint='run(["python", "train.py"])'
            )
        # names of the wire; values that are not given are left out: the server has the defaults
        wanted: dict[str, Any] = {
            "command": [*command],
            "namespace": await self._in(namespace),
            "name": name,
            "image": image,
            "user": user,
            "gpus": gpus,
            "gpuType": gpu_type,
            "gpuResource": gpu_resource,
            "gpuClaim": gpu_claim,
            "machine": "/".join(machine) if machine else None,
            "cpu": cpu,
            "memory": memory,
            "time": time,
            "volumes": [*volumes],
            "datasets": [*datasets],
            "env": dict(env or {}),
            "secrets": [*secrets] or None,
            "labels": dict(labels) if labels else None,
            "checkpoint": checkpoint,
            "workingDir": working_dir,
            "git": git,
            "gracePeriodSeconds": grace_period_seconds,
            "priorityClass": priority_class,
            "queue": queue,
            "retries": retries,
            "restartLimit": restart_limit,
            "share": share,
            "hostEnv": host_env,
            "dryRun": dry_run,
        }
        # the key makes a repeated request return the same run
        body = {name: value for name, value in wanted.items() if value is not None}
        return read(Job, await self._json("POST", "/api/v1/jobs", body=body, key=key or new_key()))

    async def logs(
        self,
        name: str,
        *,
        follow: bool = False,
        tail: int | None = None,
        attempt: int | None = None,
        namespace: str | None = None,
    ) -> AsyncIterator[str]:
        """Its output, by lines, attempt after attempt, or of one `attempt`; `follow`: until it has ended.

        `tail`: of each pod. For deleted pods it is the output that the server stored.
        """
        path = await self._path("jobs", namespace, name, "logs")
        params = {"follow": follow, "tail": tail, "attempt": attempt}
        async with self._connection.stream("GET", path, params=params) as parts:
            async for line in lines_of(parts):
                yield line

    async def wait(self, name: str, *, timeout: float | None = None, namespace: str | None = None) -> Job:
        """Wait until the run ends, and return it with its exit code. Raises TimeoutError after `timeout` seconds.

        Without `timeout` it waits without a limit.
        """
        began, pause, more = self._clock.monotonic(), LOOKS[0], EXIT_CODE_LOOKS
        while True:
            job = await self.get(name, namespace=namespace)
            if job.has_ended:
                if job.exit_code is not None or job.state != "Failed" or not more:
                    return job
                more -= 1  # its pod's end may become known a moment later
            elif timeout is not None and self._clock.monotonic() - began > timeout:
                why = f": {job.reason}" if job.reason else ""
                raise TimeoutError(f"the run {name} is {job.state} after {timeout:g} s{why}")
            await self._clock.sleep(pause)
            pause = min(pause * 1.5, LOOKS[1])

    async def cancel(self, name: str, *, namespace: str | None = None) -> Job:
        """Cancel a run: its pods get their grace period, and no new attempt starts.

        A run that has ended is not changed.
        """
        path = await self._path("jobs", namespace, name)
        return read(Job, await self._json("DELETE", path, params={"delete": False}))

    async def suspend(self, name: str, *, namespace: str | None = None) -> Job:
        """Suspend a run: its pods get their grace period. It uses no resources until `resume`."""
        return read(Job, await self._json("POST", await self._path("jobs", namespace, name, "suspend")))

    async def resume(self, name: str, *, namespace: str | None = None) -> Job:
        """Resume a suspended run from its checkpoint."""
        return read(Job, await self._json("POST", await self._path("jobs", namespace, name, "resume")))

    async def snooze(self, name: str, *, time: str, namespace: str | None = None) -> IdleWork:
        """Postpone the suspension of an idle run by a time such as "4h", within the limits of the idle policy."""
        path = await self._path("jobs", namespace, name, "snooze")
        return read(IdleWork, await self._json("POST", path, body={"time": time}))

    async def delete(self, name: str, *, forget: bool = False, namespace: str | None = None) -> None:
        """Stop a run and delete it with its pods; its checkpoints stay.

        For some time the server keeps its data and the end of its logs, and shows the run as Deleted. With
        `forget` these are deleted too.
        """
        await self._json("DELETE", await self._path("jobs", namespace, name), params={"delete": True})
        if forget:
            await self._json("DELETE", await self._path("jobs", namespace, name, "records"))


class AsyncClient(Group):
    """A client of a Moorage server. `async with AsyncClient() as client:`, or `await client.close()` at the end.

    The server is the first of these that is set: `server` (a URL) with `token`; $MOORAGE_SERVER with
    $MOORAGE_TOKEN; the cluster of `kubeconfig`, `context` or $MOORAGE_KUBECONFIG; the server of the last
    `moor login`; the running local cluster; the cluster of kubectl. A `server` without a token uses the login
    saved by `moor login`. `namespace`: the default namespace of all methods.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | os.PathLike[str] | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        given = Given(url=server, token=token, namespace=namespace, context=context, kubeconfig=kubeconfig)
        super().__init__(Connection(finder_of(given), clock=clock), clock)
        self.jobs = AsyncJobs(self._connection, clock)
        self.workspaces = AsyncWorkspaces(self._connection, clock)
        self.containers = AsyncContainers(self._connection, clock)
        self.volumes = AsyncVolumes(self._connection, clock)
        self.datasets = AsyncDatasets(self._connection, clock)
        self.workflows = AsyncWorkflows(self._connection, clock)
        self.workflow_templates = AsyncWorkflowTemplates(self._connection, clock)
        self.crons = AsyncCrons(self._connection, clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._connection.close()

    async def whoami(self) -> Person:
        return read(Person, await self._json("GET", "/api/v1/login"))

    async def gpus(self) -> Gpus:
        """Every GPU of every node, and its user if it has one."""
        return read(Gpus, await self._json("GET", "/api/v1/gpus"))

    async def nodes(self) -> Nodes:
        """Every node: its state, its GPUs, CPU and memory and their use, and the runs on it."""
        return read(Nodes, await self._json("GET", "/api/v1/nodes"))

    async def top(self, *, by: str | None = None, since: str | None = None, until: str | None = None) -> Top:
        """Return used GPU-hours.

        `by`: user, namespace, run, workflow, type or gpu; `since`: such as 24h, or a time.
        """
        params = {"by": by, "since": since, "until": until}
        return read(Top, await self._json("GET", "/api/v1/top", params=params))

    async def budgets(self) -> tuple[BudgetRow, ...]:
        """The use of each budget that applies to you or your tenants; for administrators, of all budgets."""
        return read(Budgets, await self._json("GET", "/api/v1/budgets")).budgets

    async def cost(
        self, *, by: str | None = None, since: str | None = None, until: str | None = None,
        time_zone: str | None = None, prices: str = "",
    ) -> Costs:  # fmt: skip
        """Return costs: used, allocated and idle. `by`: user, tenant, run, namespace, day, node or type.

        `since`, `until`: such as 30d, a day or a time. `prices`: the text of a price file,
        used instead of the installed prices.
        """
        asked = {"by": by, "since": since, "until": until, "timeZone": time_zone}
        if not prices:
            return read(Costs, await self._json("GET", "/api/v1/cost", params=asked))
        body = {name: value for name, value in asked.items() if value is not None} | {"prices": prices}
        return read(Costs, await self._json("POST", "/api/v1/cost", body=body))

    async def explain(self, name: str, *, namespace: str | None = None) -> Explanation:
        """Return the reasons why a run or a pod waits."""
        return read(Explanation, await self._json("GET", await self._path("explain", namespace, name)))


def _mount(text: str) -> dict[str, Any]:
    name, _, rest = text.partition(":")
    path, _, mode = rest.partition(":")
    if not name or not path.startswith("/") or mode not in ("", "rw", "ro"):
        raise UsageError(f"invalid volume {text!r}", hint="use NAME:/path, or NAME:/path:ro")
    return {"claimName": name, "mountPath": path} | ({"readOnly": True} if mode == "ro" else {})
