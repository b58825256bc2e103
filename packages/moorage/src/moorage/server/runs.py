"""Lists and shows runs, for the REST API and the pages.

All users may read the public fields of a run. Stored records of deleted pods complete it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from msgspec import Struct

from moorage.actions.runs import (
    events_of_run,
    get_deleted,
    job_of,
    jobs_of_run,
    missing_run,
    select_runs,
    summary_of,
)
from moorage.api.jobs import Job, JobChoice, JobDetails, JobList
from moorage.api.overviews import JobOverview
from moorage.api.rightsizing import SizeAdvice
from moorage.api.storedrecords import StoredPod, StoredRun
from moorage.api.use import Use
from moorage.decide.runs.state import RunView
from moorage.decide.runs.storedruns import needs_records, stored_pods_of
from moorage.decide.timetext import moment_before
from moorage.model.names import RUN_LABEL
from moorage.present.joboverview import make_overview
from moorage.present.rightsizing import make_work
from moorage.server.context import Context
from moorage.server.identity.auth import User
from moorage.server.poduse import use_of_pods
from moorage.server.problems import Problem
from moorage.server.rightsizing import readable_works, work_of_run
from moorage.server.storedruns import RecordsForUser
from moorage_kube.api import Api
from moorage_kube.errors import ApiError, MoorageError, NotFound, StorageError
from moorage_kube.meta import labels_of
from moorage_kube.resources import EVENTS, JOBS, Obj, Resource

log = logging.getLogger(__name__)

ADVICE_SECONDS = 2.0  # an overview is not held up by advice


class RunReader(Struct, frozen=True):
    """Reads runs with the rights of one user."""

    context: Context
    user: User

    async def list(self, choice: JobChoice) -> JobList:
        """The runs that match all of a choice. Raises UsageError for invalid values in it, and Forbidden for
        attempts where the user may not list Jobs.
        """
        if choice.attempts:
            await self._check_listing(choice.namespace)
        cluster, now = await self.context.ready(), self.context.now()
        since = None if choice.since is None else moment_before(choice.since, now, "since")
        known = cluster.runs()
        if choice.selector is not None:
            known = await self._readable(run for run in known if choice.namespace in (None, run.namespace))
        chosen = select_runs(
            known,
            namespace=choice.namespace,
            owner=self.user.name if choice.mine else choice.owner,
            active=choice.active,
            state=choice.state,
            gpu_type=choice.gpu_type,
            since=since,
            selector=choice.selector,
            sort=choice.sort,
            limit=choice.limit,
        )
        shown = await self.complete(chosen, peaks=choice.attempts)
        if choice.attempts:
            return JobDetails(now=now.replace(microsecond=0), jobs=tuple(job_of(run, now) for run in shown))
        return JobList(now=now.replace(microsecond=0), jobs=tuple(summary_of(run) for run in shown))

    async def show(self, namespace: str, name: str) -> RunView:
        """A run with its attempts. A very new one is read as the user; a deleted one is made from its stored
        records. Raises NotFound.
        """
        if jobs := await self.jobs(namespace, name):
            return (await self.complete([self.view(jobs)], peaks=True))[0]
        run = await get_deleted(RecordsForUser(self.context, self.user), namespace, name)
        if run is None:
            raise await self.missing(namespace, name)
        return run

    async def jobs(self, namespace: str, name: str) -> Sequence[Obj]:
        """The Jobs of a run; empty: it does not exist, or is newer than the cache and the user may not read it."""
        cluster = await self.context.ready()
        jobs = cluster.jobs_of_run(namespace, name)
        if not jobs and self.user.account:
            try:
                jobs = await jobs_of_run(await self._reading(JOBS, namespace), namespace, name)
            except (ApiError, Problem):
                jobs = []
        return jobs

    async def missing(self, namespace: str, name: str) -> NotFound:
        """The error for a run that does not exist; it suggests similar names."""
        known = self.context.cluster.run_names(namespace)
        return missing_run(namespace, name, known, everywhere=await self._may("list", ""))

    async def overview(self, namespace: str, name: str, *, advice: bool) -> JobOverview:
        """A run with its use and its events, and with `advice`. Raises Forbidden where the user may not list
        Jobs, and NotFound. Other parts that cannot be read, or not by the user, are left out.
        """
        await self._check_listing(namespace)
        run = await self.show(namespace, name)
        use, events, sizes = await asyncio.gather(
            self.use(run), self.events(run), self._advice_in_time(run, wanted=advice)
        )
        now = self.context.now()
        return make_overview(run, job_of(run, now), now, events=events, use=use, advice=sizes)

    async def use(self, run: RunView) -> Use | None:
        """Resource use of a run over its life; None: it cannot be read."""
        try:
            return await use_of_pods(self.context, pods_of(run))
        except StorageError as error:
            log.warning("the use of a run cannot be read", extra={"error": error.message})
            return None

    async def events(self, run: RunView) -> Sequence[Obj]:
        """The events of a run's newest Jobs and pods; empty if the user may not read events."""
        try:
            return await events_of_run(await self._reading(EVENTS, run.namespace), run)
        except (ApiError, Problem):
            return []

    async def advice(self, run: RunView) -> tuple[SizeAdvice, ...]:
        """Advice on the requests of its work, by past runs that the user may read; none while the stores are
        down.
        """
        past, auth = self.context.rightsizing, self.context.auth
        try:
            works = await readable_works(past, auth, self.user, namespace=run.namespace)
        except MoorageError:
            return ()
        work = work_of_run(works, run.namespace, run.name)
        return () if work is None else make_work(work).advice

    async def answer(self, run: RunView) -> Job:
        """A run as an API object. Only users who may read its Job see its command and messages."""
        return job_of(run, self.context.now(), private=await self.may_read(run.namespace))

    def view(self, jobs: Sequence[Obj], kept: Iterable[StoredPod] = ()) -> RunView:
        """The view of a run, built from its Jobs and from the pods and nodes in the server's caches."""
        meta = jobs[0]["metadata"]
        name = labels_of(jobs[0]).get(RUN_LABEL) or meta["name"]
        gone = stored_pods_of(StoredRun(pods=tuple(kept)), jobs)
        return self.context.cluster.view_run(meta.get("namespace") or "", name, jobs, gone)

    async def complete(self, runs: Sequence[RunView], *, peaks: bool = False) -> tuple[RunView, ...]:
        """Runs with the stored records of their pods, by one query for all of them. `peaks`: as in
        `needs_records`.

        Where the store cannot be read, the runs as they are.
        """
        jobs_of = {
            (run.namespace, run.name): jobs
            for run in runs
            if needs_records(run, peaks=peaks)
            and (jobs := self.context.cluster.jobs_of_run(run.namespace, run.name))
        }
        if not jobs_of:
            return tuple(runs)
        try:
            pods = await self.context.keeper.read_pods(
                job["metadata"]["uid"] for jobs in jobs_of.values() for job in jobs
            )
        except StorageError as error:
            log.warning("runs are shown without their stored records", extra={"error": str(error)})
            return tuple(runs)
        kept: dict[tuple[str, str], list[StoredPod]] = {}
        for pod in pods:
            kept.setdefault((pod.namespace, pod.run), []).append(pod)
        return tuple(
            self.view(jobs_of[key], kept[key])
            if (key := (run.namespace, run.name)) in jobs_of and key in kept
            else run
            for run in runs
        )

    async def may_read(self, namespace: str) -> bool:
        """Whether the user may see more of the runs of a namespace than the public fields. False if it cannot
        be checked.
        """
        return await self._may("get", namespace)

    async def _may(self, verb: str, namespace: str, kind: Resource = JOBS) -> bool:
        """Whether the user may do this to objects of a namespace; empty: of all. False if it cannot be checked."""
        auth = self.context.auth
        try:
            return await auth.may(self.user, verb, kind.plural, group=kind.group, namespace=namespace)
        except ApiError:
            return False

    async def _reading(self, kind: Resource, namespace: str) -> Api:
        """The Kubernetes API as the user. Raises Problem.

        If the server cannot act as the user, but the user may list the objects, the server's own API.
        """
        try:
            return self.context.acting(self.user)
        except Problem:
            if not await self._may("list", namespace, kind):
                raise
            return self.context.api

    async def _advice_in_time(self, run: RunView, *, wanted: bool) -> tuple[SizeAdvice, ...]:
        try:
            async with asyncio.timeout(ADVICE_SECONDS):
                return await self.advice(run) if wanted else ()
        except TimeoutError:
            return ()

    async def _check_listing(self, namespace: str | None) -> None:
        """Raise Forbidden, with the message of the Kubernetes API, if the user may not list Jobs."""
        auth, kind = self.context.auth, JOBS
        if not await auth.may(self.user, "list", kind.plural, group=kind.group, namespace=namespace or ""):
            await self.context.acting(self.user).list(kind, namespace, limit=1)  # a right that is new counts

    async def _readable(self, runs: Iterable[RunView]) -> tuple[RunView, ...]:
        """The runs with labels that the user may read: a selector reveals the labels."""
        known = list(runs)
        namespaces = sorted({run.namespace for run in known})
        rights = await asyncio.gather(*(self.may_read(namespace) for namespace in namespaces))
        readable = {namespace for namespace, may in zip(namespaces, rights, strict=True) if may}
        return tuple(run for run in known if run.namespace in readable)


def pods_of(run: RunView) -> dict[str, tuple[str, int]]:
    """The pods of a run, in the format of `use_of_pods`."""
    return {pod.uid: (pod.name, pod.attempt) for pod in run.pods if pod.uid}
