"""The controller of Workspaces: the reads and writes around `plan`."""

from __future__ import annotations

import base64
import contextlib
import logging
import secrets
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, assert_never

from moorage.cluster.kueue import read_queue_wait
from moorage.controllers.base import Controller, Shared
from moorage.controllers.machine.controller import MachineController
from moorage.controllers.workspace.objects import make_secret
from moorage.controllers.workspace.plan import Seen, Step, Verb, merge_of, plan, waits_for_machine, waits_in_queue
from moorage.decide.explain.explainer import Explainer
from moorage.decide.explain.snapshot import concerning, snapshot
from moorage.decide.runs.gputypes import GpuType, gpu_types
from moorage.decide.runs.kueue import QueueWait
from moorage.model.names import (
    INFO_CONFIGMAP,
    MACHINE_GROUP_LABEL,
    SYSTEM_NAMESPACE,
    TEMPLATE_LABEL,
    WORKSPACE_LABEL,
)
from moorage.model.runtimes import is_on_processes
from moorage.model.workspace import (
    GATEWAY_SECRET,
    WORKSPACES,
    App,
    BadWorkspace,
    Platform,
    WorkspaceView,
    check_workspace,
    make_token,
    parse_platform,
    parse_workspace,
    templates_of,
)
from moorage.present.explanation import short_reason
from moorage_kube.errors import AlreadyExists, BadRequest, Conflict, Forbidden, Invalid, NotFound
from moorage_kube.informer import index_by_label
from moorage_kube.meta import Key, controller_ref, is_deleting, key_of, labels_of
from moorage_kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    ENDPOINTSLICES,
    INGRESSES,
    NODES,
    PODS,
    PVCS,
    SECRETS,
    SERVICES,
    Obj,
)
from moorage_kube.scheduling import parse_node

log = logging.getLogger(__name__)

REFUSED_SECONDS = 60.0  # until the next try after the API refused an object: an admin may change a rule
SERVER_SLICES = "kubernetes.io/service-name=moorage-server"
KEY_BYTES = 32


class WorkspaceController(Controller):
    """The controller of Workspaces; one per operator. The informers of `machines` are not among its own."""

    def __init__(self, shared: Shared, machines: MachineController) -> None:
        super().__init__(shared, "workspace")
        self._machines = machines
        self._workspaces = self._follow(WORKSPACES)
        self._deployments = self._follow(DEPLOYMENTS, label_selector=WORKSPACE_LABEL)
        self._pods = self._follow(
            PODS, label_selector=WORKSPACE_LABEL, indexes={"workspace": index_by_label(WORKSPACE_LABEL)}
        )
        self._services = self._follow(SERVICES, label_selector=WORKSPACE_LABEL)
        self._slices = self._follow(ENDPOINTSLICES, label_selector=WORKSPACE_LABEL)
        self._ingresses = self._follow(INGRESSES, label_selector=WORKSPACE_LABEL)
        self._claims = self._follow(PVCS, keep=_keep_claim)
        self._nodes = self._follow(NODES)
        self._templates = self._follow(CONFIGMAPS, SYSTEM_NAMESPACE, label_selector=TEMPLATE_LABEL)
        self._info = self._follow(CONFIGMAPS, SYSTEM_NAMESPACE, field_selector=f"metadata.name={INFO_CONFIGMAP}")
        self._gateways = self._follow(ENDPOINTSLICES, SYSTEM_NAMESPACE, label_selector=SERVER_SLICES)
        self.loop.hear(self._workspaces, lambda obj: [key_of(obj)])
        for informer in (self._deployments, self._pods, self._services, self._slices, self._ingresses):
            self.loop.hear(informer, _workspace_of)
        self.loop.hear(self._claims, self._users_of)
        for informer in (self._templates, self._info, self._gateways):
            self.loop.hear(informer, self._everyone)
        self._nodes.on_change(self._nodes_changed)
        self._workspaces.on_change(self._forget)
        self._gpu_types: tuple[GpuType, ...] | None = None
        self._secrets: set[str] = set()  # uids of workspaces whose Secret was made
        self._refused: dict[str, tuple[int, float, str, str]] = {}  # by uid: generation, until, reason, message
        self._key: bytes | None = None

    async def reconcile(self, key: Key) -> timedelta | None:
        """Bring one workspace a step closer to its spec; return when to look again."""
        obj = self._workspaces.get(key.name, key.namespace)
        if obj is None:
            return None
        try:
            view = parse_workspace(obj)
        except BadWorkspace as error:
            log.warning("a Workspace cannot be read", extra={"workspace": str(key), "error": error.message})
            return None
        if self._key is None and not view.deleting:
            await self._gateway_key()  # the server looks for it
        queue = await read_queue_wait(self._api, waits_in_queue(self._pods_of(view)))
        decided = plan(self._observe(view, obj, queue))
        for step in decided.steps:
            await self._act(view, obj, step)
        if refused := self._refusal(view):
            decided = plan(self._observe(view, obj, queue))  # the API will not have it: say so
        if decided.status is not None:
            await self._report(obj, decided.status)
            typed = {"apiVersion": WORKSPACES.api_version, "kind": WORKSPACES.kind} | obj
            for event in decided.events:
                kind: Any = event.type
                await self._events.record(typed, kind, event.reason, event.message)
        waits = [] if decided.look_again_in is None else [decided.look_again_in]
        if refused:
            waits.append(timedelta(seconds=max(1.0, refused[1] - self._clock.monotonic())))
        return min(waits, default=None)

    # --- reads

    def _pods_of(self, view: WorkspaceView) -> list[Obj]:
        pods = self._pods.by_index("workspace", view.name)
        return [pod for pod in pods if pod["metadata"].get("namespace") == view.namespace]

    def _observe(self, view: WorkspaceView, obj: Obj, queue: QueueWait | None) -> Seen:
        platform, wrong = self._platform()
        templates, bad = templates_of(self._templates.all())
        app: App | None = view.spec.app or templates.get(view.spec.type)
        # the first of these faults is reported
        refused = self._refusal(view)
        fault, reason = (refused[3], refused[2]) if refused else ("", "Invalid")
        if not fault and (faults := check_workspace(obj)):  # where no webhook judged it
            fault = "; ".join(f"{fault.field}: {fault.message}" for fault in faults)
        if not fault and app is None and view.spec.type in bad:
            fault, reason = bad[view.spec.type], "BadTemplate"
        if not fault and wrong:
            fault, reason = wrong, "BadPlatform"
        # all objects of the workspace, from caches
        pods = self._pods_of(view)
        name, gateway_name, namespace = view.object_name, view.gateway_name, view.namespace
        return Seen(
            view=view,
            obj=obj,
            now=self._clock.now(),
            app=app,
            platform=platform,
            fault=fault,
            fault_reason=reason,
            deployment=self._deployments.get(name, namespace),
            service=self._services.get(name, namespace),
            gateway_service=self._services.get(gateway_name, namespace),
            gateway_slice=self._slices.get(gateway_name, namespace),
            ingress=self._ingresses.get(name, namespace),
            home=self._claims.get(view.home_claim, namespace),
            secret_made=view.status.secret == view.secret_name or view.uid in self._secrets,
            missing_claims=tuple(
                volume.claim_name
                for volume in view.spec.volumes
                if self._claims.get(volume.claim_name, namespace) is None
            ),
            pods=pods,
            gateway=self._gateway(),
            gpu_types=self._types() if view.spec.resources.gpu_type else (),
            on_processes=is_on_processes(self._nodes.all()),
            line=self._line(pods),
            queue=queue,
            templates=tuple(sorted(templates)),
        )

    def _platform(self) -> tuple[Platform, str]:
        info = self._info.get(INFO_CONFIGMAP, SYSTEM_NAMESPACE)
        try:
            return parse_platform((info or {}).get("data") or {}), ""
        except BadWorkspace as error:
            return Platform(), f"ConfigMap {SYSTEM_NAMESPACE}/{INFO_CONFIGMAP}: {error.message}"

    def _gateway(self) -> Mapping[str, Any] | None:
        gateways = [
            gateway for gateway in self._gateways.all() if gateway.get("endpoints") and gateway.get("ports")
        ]
        return min(
            gateways, key=lambda gateway: (gateway.get("addressType") != "IPv4", key_of(gateway)), default=None
        )

    def _types(self) -> tuple[GpuType, ...]:
        if self._gpu_types is None:
            infos = []
            for obj in self._nodes.all():
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    infos.append(parse_node(obj))
            self._gpu_types = gpu_types(infos, ())
        return self._gpu_types

    def _line(self, pods: Iterable[Obj]) -> str:
        """The reason why a pod waits for its machine, and the number of pods before it."""
        pod = waits_for_machine(pods)
        if pod is None:
            return ""
        group = labels_of(pod).get(MACHINE_GROUP_LABEL, "")
        others = concerning(pod, self._machines.pods.by_index("group", group))
        explainer = Explainer(snapshot(self._nodes.all(), others, machines=self._machines.machines.all()))
        try:
            explanation = explainer.explain(pod, now=self._clock.now(), brief=True)
        except (ValueError, KeyError, TypeError) as error:
            log.warning("cannot say why a pod waits", extra={"pod": str(key_of(pod)), "error": repr(error)})
            return ""
        ahead = f"; {len(explanation.line)} ahead in line" if explanation.line else ""
        return short_reason(explanation) + ahead

    def _refusal(self, view: WorkspaceView) -> tuple[int, float, str, str] | None:
        refusal = self._refused.get(view.uid)
        if refusal is not None and refusal[0] == view.generation and refusal[1] > self._clock.monotonic():
            return refusal
        self._refused.pop(view.uid, None)
        return None

    # --- writes

    async def _act(self, view: WorkspaceView, obj: Obj, step: Step) -> None:
        if self._refusal(view) is not None:
            return  # the next steps depend on the refused object
        namespace = view.namespace
        resource = step.resource or WORKSPACES
        try:
            match step.verb:
                case Verb.CREATE:
                    await self._create(view, step)
                case Verb.REPLACE:
                    await self._api.update(resource, step.obj)
                case Verb.PATCH:
                    with contextlib.suppress(NotFound):
                        await self._api.patch(resource, step.name, step.obj, namespace)
                case Verb.DELETE:
                    with contextlib.suppress(NotFound):
                        after_pods: Any = "Foreground" if resource is DEPLOYMENTS else None
                        await self._api.delete(
                            resource, step.name, namespace, uid=step.uid, propagation=after_pods
                        )
                case Verb.SECRET:
                    await self._make_secret(view, obj)
                case _:
                    assert_never(step.verb)
        except (Invalid, BadRequest, Forbidden) as error:
            self._refuse(view, "Refused", error.message)

    async def _create(self, view: WorkspaceView, step: Step) -> None:
        assert step.resource is not None
        name = step.obj["metadata"]["name"]
        try:
            await self._api.create(step.resource, step.obj, view.namespace)
        except AlreadyExists as error:
            if step.resource is PVCS:
                return  # a home from before, or one that the user made
            existing = await self._api.get(step.resource, name, view.namespace)
            owner = controller_ref(existing)
            if owner is not None and owner.get("uid") == view.uid:
                return  # an earlier pass made it
            if is_deleting(existing) or (owner is not None and owner.get("kind") == WORKSPACES.kind):
                raise Conflict(f"{step.resource.kind} {name} of an earlier workspace is on its way out") from error
            message = f"{step.resource.kind} {name} exists that is not of this workspace: remove or rename it"
            self._refuse(view, "NameTaken", message)

    async def _make_secret(self, view: WorkspaceView, obj: Obj) -> None:
        token = make_token(await self._gateway_key(), view.uid)
        try:
            await self._api.create(SECRETS, make_secret(view, obj, token), view.namespace)
        except AlreadyExists:
            pass  # its name contains the uid of its workspace
        except (Invalid, BadRequest, Forbidden) as error:
            self._refuse(view, "Refused", error.message)
            return
        self._secrets.add(view.uid)

    async def _gateway_key(self) -> bytes:
        """The platform's signing key for workspaces. It is created at the first use."""
        if self._key is None:
            made = {
                "apiVersion": SECRETS.api_version,
                "kind": SECRETS.kind,
                "metadata": {"name": GATEWAY_SECRET, "namespace": SYSTEM_NAMESPACE},
                "type": "Opaque",
                "immutable": True,
                "data": {"key": base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()},
            }
            try:
                secret = await self._api.get(SECRETS, GATEWAY_SECRET, SYSTEM_NAMESPACE)
            except NotFound:
                try:
                    secret = await self._api.create(SECRETS, made, SYSTEM_NAMESPACE)
                except AlreadyExists:
                    secret = await self._api.get(SECRETS, GATEWAY_SECRET, SYSTEM_NAMESPACE)
            self._key = base64.b64decode(secret["data"]["key"])
        return self._key

    def _refuse(self, view: WorkspaceView, reason: str, message: str) -> None:
        until = self._clock.monotonic() + REFUSED_SECONDS
        self._refused[view.uid] = (view.generation, until, reason, message)

    async def _report(self, obj: Obj, status: Obj) -> None:
        """Write the status. It applies only to the version that was read."""
        meta = obj["metadata"]
        patch = {
            "metadata": {"resourceVersion": meta["resourceVersion"]},
            "status": merge_of(obj.get("status") or {}, status),
        }
        with contextlib.suppress(NotFound):
            await self._api.patch(WORKSPACES, meta["name"], patch, meta["namespace"], subresource="status")

    # --- changes

    def _everyone(self, _: Obj) -> Iterable[Key]:
        return [key_of(workspace) for workspace in self._workspaces.all()]

    def _users_of(self, claim: Obj) -> Iterable[Key]:
        """The workspaces of the namespace that mount the claim."""
        name, namespace = claim["metadata"]["name"], claim["metadata"].get("namespace")
        for obj in self._workspaces.all():
            if obj["metadata"].get("namespace") == namespace and name in _claims_of(obj):
                yield key_of(obj)

    def _nodes_changed(self, before: Obj | None, after: Obj | None) -> None:
        if before is None or after is None or labels_of(before) != labels_of(after):
            self._gpu_types = None
            for obj in self._workspaces.all():
                if ((obj.get("spec") or {}).get("resources") or {}).get("gpuType"):
                    self.loop.queue.add(key_of(obj))

    def _forget(self, before: Obj | None, after: Obj | None) -> None:
        if after is None and before is not None:
            self._refused.pop(before["metadata"]["uid"], None)
            self._secrets.discard(before["metadata"]["uid"])


def _workspace_of(obj: Obj) -> Iterable[Key]:
    name = labels_of(obj).get(WORKSPACE_LABEL)
    return (Key(obj["metadata"].get("namespace") or "", name),) if name else ()


def _claims_of(obj: Mapping[str, Any]) -> set[str]:
    spec = obj.get("spec") or {}
    home = (spec.get("home") or {}).get("claimName") or f"{obj['metadata']['name']}-home"
    return {home, *(str(volume.get("claimName")) for volume in spec.get("volumes") or ())}


def _keep_claim(claim: Obj) -> Obj:
    """The fields to cache of a claim: only its existence matters."""
    meta = claim["metadata"]
    return {"metadata": {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion") if key in meta}}
