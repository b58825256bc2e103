"""Docker containers as pods: every call acts as the user, with their rights and no others."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, cast

from moorage.api.errors import ErrorCode
from moorage.decide.docker.containers import (
    REQUEST_ANNOTATION,
    container_name,
    containers,
    find,
    is_ended,
    is_gated,
    is_removed_at_end,
    is_starting,
    never_starts,
)
from moorage.decide.docker.create import Around, next_pod, owned_by, plan_container
from moorage.decide.docker.views import StateView, state_of
from moorage.decide.runs.gputypes import gpu_types
from moorage.decide.runs.request import DEFAULT_CPU, DEFAULT_MEMORY
from moorage.model.localimages import image_rules
from moorage.model.names import CONTAINER_GATE, CONTAINER_LABEL
from moorage.model.tenant import defaults_of, tenant_of
from moorage.server.context import Context
from moorage.server.docker.followers import Followers
from moorage.server.identity.auth import User
from moorage.server.problems import Problem
from moorage_kube.api import PodApi
from moorage_kube.errors import AlreadyExists, ApiError, Conflict, Forbidden, NotFound
from moorage_kube.meta import annotations_of, is_deleting, owner_reference
from moorage_kube.resources import PODS, PVCS, SERVICES, Obj
from moorage_kube.scheduling import parse_node

NAMESPACE_HEADER = "x-moorage-namespace"
HOST_ENV_HEADER = "x-moorage-host-env"  # "true": as `host_env` of `Containers.create`
NAMESPACE = "default"  # for users without a tenant
LOOK_SECONDS = 0.1  # between two looks at data in memory
FOLLOWED_SECONDS = 10.0  # a removal waits so long for followers that still read the output
REMOVAL_GRACE_SECONDS = 1  # of a forced removal; with none a kubelet may still hold its GPUs
STOPPED_SECONDS = 30.0  # patience beyond the grace period, for the kubelet to say that it is over


class Containers:
    """The containers of one user in one namespace, for one request."""

    def __init__(self, context: Context, user: User, namespace: str) -> None:
        self.context = context
        self.user = user
        self.namespace = namespace
        self.api = cast(PodApi, context.acting(user))

    @classmethod
    async def of(cls, context: Context, user: User, asked: str) -> Containers:
        """The containers of a request, in the requested namespace, else the user's only tenant, else "default".

        Raises Problem 400 if the user may work in several tenants and the request names no namespace.
        """
        if asked:
            return cls(context, user, asked)
        mine: list[str] = []
        for tenant in await context.tenants.all(anew=True):  # else a container is made where it is not found later
            namespace = str((tenant.get("spec") or {}).get("namespace") or "")
            if namespace and await context.auth.may(user, "create", "pods", namespace=namespace):
                mine.append(namespace)
        if len(set(mine)) > 1:
            raise Problem(
                400,
                ErrorCode.WHICH_NAMESPACE,
                f"you work in several namespaces: {', '.join(sorted(set(mine)))}",
                "choose one: moor docker -n NAME -- COMMAND, or the header X-Moorage-Namespace",
            )
        return cls(context, user, mine[0] if mine else NAMESPACE)

    # --- reading

    async def pods(self) -> list[Obj]:
        return (await self.api.list(PODS, self.namespace, label_selector=CONTAINER_LABEL)).items

    async def get(self, word: str) -> Obj:
        """The newest pod of a container, by name or id; a pod in deletion does not count. Raises Problem 404 or
        400.
        """
        try:
            pod = find([pod for pod in await self.pods() if not is_deleting(pod)], word)
        except LookupError as error:
            raise Problem(400, ErrorCode.AMBIGUOUS, str(error), "write more of the id") from error
        if pod is None:
            raise Problem(404, ErrorCode.NOT_FOUND, f"No such container: {word}", "`docker ps -a` lists them")
        return pod

    async def listed(self) -> list[Obj]:
        return containers(await self.pods())

    async def services(self) -> dict[str, Obj]:
        """By container."""
        try:
            services = (await self.api.list(SERVICES, self.namespace, label_selector=CONTAINER_LABEL)).items
        except Forbidden:
            return {}
        return {container_name(service): service for service in services}

    def state(self, pod: Mapping[str, Any]) -> StateView:
        return state_of(pod, self.context.now())

    # --- writing

    async def create(
        self,
        body: Mapping[str, Any],
        name: str | None,
        *,
        platform: str = "",
        key: str = "",
        dry_run: bool = False,
        host_env: bool = False,
    ) -> Any:
        """Create a container; return its pod and warnings.

        A repeat with the same `key` returns the same container.

        `host_env`: on a local cluster, the command of any image runs in this machine's environment.

        Raises Problem 400 with every fault, 404 for a missing volume, 409 for a name in use, 422 for a key
        that was used for a different request.
        """
        # by the digest a repeated request differs from a reused key
        wanted = json.dumps([name, body, platform] if platform else [name, body], sort_keys=True)
        request = hashlib.sha256(f"{self.user.name}\0{key}".encode()).hexdigest()[:32] if key else ""
        digest = hashlib.sha256(wanted.encode()).hexdigest()[:32]
        there = await self.pods()
        if request:
            for pod in containers(there):
                first, _, rest = annotations_of(pod).get(REQUEST_ANNOTATION, "").partition(".")
                if first == request and rest == digest:
                    return pod, ()
                if first == request:
                    raise Problem(422, ErrorCode.KEY_REUSED, "this idempotency key was used for another container")
        # all faults of the request are reported at once, before anything is created
        around = await self._around(
            salt=f"{request}{digest}" if request else secrets.token_hex(8), platform=platform, host_env=host_env
        )
        plan = plan_container(body, name, around)
        if plan.faults:
            first_fault = plan.faults[0]
            raise Problem(
                400,
                ErrorCode.INVALID,
                "; ".join(f"{fault.field}: {fault.message}" for fault in plan.faults),
                "; ".join(dict.fromkeys(fault.hint for fault in plan.faults if fault.hint)) or None,
                first_fault.field,
            )
        # a clear error for a taken name or a missing volume, before the API server's own
        if taken := find(there, plan.name):
            raise self._taken(plan.name, taken)
        await self._check_claims(plan.pod)
        if request:
            plan.pod["metadata"]["annotations"][REQUEST_ANNOTATION] = f"{request}.{digest}"
        # the pod comes first, as it owns the Service; a container without its Service is removed again
        try:
            made = await self.api.create(PODS, plan.pod, self.namespace, dry_run=dry_run)
        except AlreadyExists as error:
            raise self._taken(plan.name, None) from error
        if plan.service is not None and not dry_run:
            try:
                await self.api.create(SERVICES, owned_by(plan.service, made), self.namespace)
            except ApiError as error:
                with suppress(ApiError):
                    await self.api.delete(PODS, made["metadata"]["name"], self.namespace)
                if isinstance(error, AlreadyExists):
                    raise Problem(
                        409, ErrorCode.NAME_TAKEN, f"there is a Service {plan.name} already", "choose a name"
                    ) from error
                raise
        return made, plan.warnings

    def _taken(self, name: str, pod: Obj | None) -> Problem:
        return Problem(
            409,
            ErrorCode.NAME_TAKEN,
            f'Conflict. The container name "/{name}" is already in use',
            "remove that one (docker rm), or choose another name" if pod else "a pod of that name is there",
        )

    async def _check_claims(self, pod: Mapping[str, Any]) -> None:
        for volume in pod["spec"].get("volumes") or ():
            if claim := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
                try:
                    await self.api.get(PVCS, claim, self.namespace)
                except NotFound as error:
                    raise Problem(
                        404,
                        ErrorCode.NO_VOLUME,
                        f"no such volume: {claim}",
                        f"make it: moor volume create {claim} --size 10Gi",
                    ) from error

    async def _around(self, salt: str, *, platform: str, host_env: bool) -> Around:
        defaults = defaults_of(tenant_of(self.namespace, await self.context.tenants.all()))
        cluster = await self.context.ready()
        return Around(
            namespace=self.namespace,
            cpu=str(defaults.cpu or DEFAULT_CPU),
            memory=str(defaults.memory or DEFAULT_MEMORY),
            gpu_types=gpu_types((parse_node(node) for node in cluster.nodes.all()), ()),
            salt=salt,
            on_processes=cluster.on_processes(),
            images=image_rules(cluster.nodes.all()),
            platform=platform,
            host_env=host_env,
        )

    async def start(self, word: str) -> Obj | None:
        """Start a container; return its pod, or None if it already runs."""
        pod = await self.get(word)
        if is_ended(pod) or is_deleting(pod):
            return await self._again(pod, gated=False)
        if not is_gated(pod):
            return None
        gates = [gate for gate in pod["spec"].get("schedulingGates") or () if gate.get("name") != CONTAINER_GATE]
        meta = pod["metadata"]
        change = {
            "metadata": {"resourceVersion": meta["resourceVersion"]},
            "spec": {"schedulingGates": gates or None},
        }
        try:
            return await self.api.patch(PODS, meta["name"], change, self.namespace)
        except Conflict:
            return await self.start(word)

    async def _again(self, pod: Obj, *, gated: bool) -> Obj:
        """Create the next pod of a container and delete this pod; return the new pod."""
        made = next_pod(pod)
        if gated:
            made["spec"]["schedulingGates"] = [{"name": CONTAINER_GATE}]
        with suppress(AlreadyExists):  # by another start at the same time
            made = await self.api.create(PODS, made, self.namespace)
            await self._hand_on(pod, made)
        with suppress(NotFound):
            await self.api.delete(PODS, pod["metadata"]["name"], self.namespace, uid=pod["metadata"]["uid"])
        return made

    async def _hand_on(self, old: Obj, new: Obj) -> None:
        """Make the newest pod the owner of the Service."""
        name = container_name(old)
        with suppress(NotFound, Forbidden):
            await self.api.get(SERVICES, name, self.namespace)
            change = {"metadata": {"ownerReferences": [owner_reference(new)]}}
            await self.api.patch(SERVICES, name, change, self.namespace)

    async def stop(self, word: str) -> bool:
        """Stop a container with its grace period; return False if it does not run. Logs and exit code stay."""
        pod = await self.get(word)
        if is_gated(pod) or is_ended(pod) or is_deleting(pod):
            return False
        meta = pod["metadata"]
        if not (pod.get("status") or {}).get("startTime"):  # not on a kubelet yet: there is nothing to end
            await self._again(pod, gated=True)
            return True
        await self.api.patch(PODS, meta["name"], {"spec": {"activeDeadlineSeconds": 1}}, self.namespace)
        grace = float(pod["spec"].get("terminationGracePeriodSeconds") or 0)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace + STOPPED_SECONDS):
                await self.ended(pod)
        await self.sweep(pod)
        return True

    async def remove(self, word: str, *, force: bool) -> None:
        """Remove a container. Raises Problem 409 if it runs, unless `force`."""
        pod = await self.get(word)
        if not force and not is_gated(pod) and not is_ended(pod) and not is_deleting(pod):
            raise Problem(
                409,
                ErrorCode.RUNNING,
                f"You cannot remove a running container {word}. Stop the container before attempting removal or"
                " force remove",
                "docker rm -f",
            )
        name = container_name(pod)
        mine = [pod for pod in await self.pods() if container_name(pod) == name]
        await self._read_to_the_end(pod)
        for member in mine:
            with suppress(NotFound):
                grace = REMOVAL_GRACE_SECONDS if force else None
                await self.api.delete(PODS, member["metadata"]["name"], self.namespace, grace_period_seconds=grace)
        with suppress(TimeoutError):  # then its name is free
            async with asyncio.timeout(STOPPED_SECONDS):
                for member in mine:
                    await self._until(member, lambda _: False)

    async def sweep(self, pod: Obj) -> None:
        """Remove a container with `--rm` after it has ended and its followers have read its output to the end.

        Pods are removed here because this request has the owner's rights.
        """
        if is_removed_at_end(pod):
            await self._read_to_the_end(pod)
            with suppress(NotFound):
                await self.api.delete(PODS, pod["metadata"]["name"], self.namespace, uid=pod["metadata"]["uid"])

    async def _read_to_the_end(self, pod: Obj) -> None:
        """Wait until the readers of an ended pod's log have finished, at most FOLLOWED_SECONDS.

        The time is limited because the readers may wait for this removal.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(FOLLOWED_SECONDS):
                while is_ended(pod) and await self.context.part(Followers).has(pod["metadata"]["uid"]):
                    await self.context.clock.sleep(LOOK_SECONDS)

    def following(self, pod: Obj) -> AbstractAsyncContextManager[None]:
        """Hold the removal of a pod while its output is read."""
        return self.context.part(Followers).following(pod["metadata"]["uid"])

    # --- waiting

    async def ended(self, pod: Obj) -> Obj | None:
        """The pod once it has ended, or can never start; None when it was deleted."""
        return await self._until(pod, lambda current: is_ended(current) or bool(never_starts(current)))

    async def started(self, pod: Obj, seconds: float) -> Obj:
        """The pod of a started container once it runs or cannot run now; at the latest after `seconds`."""
        if not is_starting(pod):
            return pod
        clock = self.context.clock
        end = clock.monotonic() + seconds
        return await self._until(pod, lambda now: not is_starting(now) or clock.monotonic() >= end) or pod

    async def begun(self, pod: Obj) -> Obj | None:
        """The pod once its container runs or has ended; None when it was deleted, or can never start."""
        last = await self._until(
            pod,
            lambda current: (
                is_ended(current) or self.state(current).status == "running" or bool(never_starts(current))
            ),
        )
        return None if last is None or never_starts(last) else last

    async def _until(self, pod: Obj, is_so: Any) -> Obj | None:
        meta = pod["metadata"]
        cluster = await self.context.ready()
        while True:
            seen = cluster.pods.get(meta["name"], self.namespace)
            if seen is None or seen["metadata"]["uid"] != meta["uid"]:
                try:
                    seen = await self.api.get(PODS, meta["name"], self.namespace)
                except NotFound:
                    return None
                if seen["metadata"]["uid"] != meta["uid"]:
                    return None
            if is_so(seen):
                return seen
            await self.context.clock.sleep(LOOK_SECONDS)
