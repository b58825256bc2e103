"""The admission endpoints: `POST /mutate`, `/validate` and `/audit`; `GET /healthz`, `/readyz` and `/metrics`.

`/audit` admits everything at once. Its requests and those of `/validate` become records for the server.
Stateless but for caches of tenants, guardrail policies, namespaces, nodes, Ingresses, PriorityClasses and failed
pods, so any number of replicas may run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from moorage.decide.admission.fields import at, field_of
from moorage.decide.admission.gpufacts import Facts, facts_of
from moorage.decide.admission.gpunodes import away_from_gpus
from moorage.decide.admission.hosts import KINDS as HOST_KINDS
from moorage.decide.admission.hosts import (
    Claim,
    claims_of,
    judge_hosts,
    names_records,
    reserved_hosts,
    slim_ingress,
)
from moorage.decide.admission.operators import PLATFORM, judge_operator
from moorage.decide.admission.order import admit, judge, judge_growth
from moorage.decide.admission.priority import judge_priority
from moorage.decide.admission.review import MASTERS, NODE_USERS, OPERATOR, TEMPLATES, Refusal, Request, Verdict
from moorage.decide.admission.shape import misshapen
from moorage.decide.admission.templates import CONTAINERS_MAX, WORKLOADS, container_count
from moorage.decide.admission.tenancy import own_selector
from moorage.decide.audit.changes import Change
from moorage.metrics.caches import measure_caches
from moorage.metrics.page import MEDIA_TYPE, exposition
from moorage.metrics.page import PATH as METRICS_PATH
from moorage.model.budget import BUDGETS, Budget, budgets_of, check_budget
from moorage.model.idle import IDLE_POLICIES, check_idle_policy
from moorage.model.info import parse_info
from moorage.model.machine import MACHINES
from moorage.model.mapjob import MAPJOBS, check_mapjob
from moorage.model.names import GUARD_LABEL, INFO_CONFIGMAP, SCHEDULER_CONFIGMAP, SYSTEM_NAMESPACE
from moorage.model.people import PEOPLE_NAMESPACE, account_in, person_in
from moorage.model.policy import POLICIES, Policy, policy_for
from moorage.model.reservation import RESERVATIONS
from moorage.model.secondscheduler import scheduler_name
from moorage.model.tenant import TENANTS, defaults_of, is_reserved, tenant_names, tenant_of
from moorage.model.workspace import WORKSPACES, BadWorkspace, check_workspace, parse_platform
from moorage.webhooks.answers import refusal, response, review, unreadable
from moorage.webhooks.auditsender import AuditSender, Send, ServerPost
from moorage.webhooks.kills import KillCaches
from moorage.webhooks.machines import MachineJudge
from moorage.webhooks.measures import Review, WebhookMeasures
from moorage_kube.api import Api
from moorage_kube.bodies import BodyTooLong, ClientLeft, read_body
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.documents import parse_json
from moorage_kube.errors import ApiError, DocumentError, NotFound
from moorage_kube.informer import Informer
from moorage_kube.informers import Informers
from moorage_kube.meta import annotations_of, controller_ref, labels_of
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    INGRESSES,
    NAMESPACES,
    NODES,
    PRIORITYCLASSES,
    REPLICASETS,
    REPLICATIONCONTROLLERS,
    SERVICEACCOUNTS,
    STATEFULSETS,
    Obj,
    Resource,
)
from moorage_kube.scheduling import NodeInfo, parse_node

log = logging.getLogger(__name__)

SYNC_SECONDS = 2.0  # a request that comes before the caches are full waits this long; the API server allows 5 s
NOT_SYNCED = "the caches are not filled yet"
KIND_SECONDS = 2.0  # how often a cluster without one of our kinds is asked for it again
NAME_LABEL = "kubernetes.io/metadata.name"  # on every namespace
# etcd takes 1.5 MiB of an object, and an UPDATE brings two; the API server writes `<`, `>` and `&` as six
# characters (Go's encoding/json). That is 18 MiB, and little else is in a review. Longer ones cannot be stored.
# https://etcd.io/docs/v3.5/dev-guide/limit/
_BODY_MAX_BYTES = 32 * 2**20


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of an admission.k8s.io/v1 AdmissionReview that we use."""

    request: _Asked


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    groups: tuple[str, ...] = ()


class _Kind(msgspec.Struct, frozen=True):
    kind: str
    group: str = ""


class _Resource(msgspec.Struct, frozen=True):
    resource: str = ""
    group: str = ""
    version: str = "v1"


class _Asked(msgspec.Struct, frozen=True, rename="camel"):
    uid: str
    kind: _Kind
    operation: str
    resource: _Resource = _Resource()
    name: str = ""
    namespace: str = ""
    sub_resource: str = ""
    user_info: _User = _User()
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    dry_run: bool | None = None


class Webhook:
    """The webhook service. Serve `app` over TLS, and run `run` to update its caches."""

    def __init__(
        self,
        api: Api,
        *,
        clock: Clock = SYSTEM,
        informers: Informers | None = None,
        send: Send | None = None,
        is_token: Callable[[str], bool] = lambda _: False,
        certificate: Path | None = None,
    ) -> None:
        """`send`: delivers audit records; None: by HTTP to the server that INFO_CONFIGMAP names.

        `is_token`: whether a path's token is the API server's. Any client can connect, so other requests are
        not recorded.

        `certificate`: its serving certificate; the expiry is among the metrics.
        """
        # settings
        self._certificate = certificate
        self.measures = WebhookMeasures(clock=clock)
        self._is_token = is_token
        # audit records are sent only if there is a server to send to
        shared = informers or Informers()
        self._api, self._clock = api, clock
        self._post = ServerPost(api, lambda: self._server) if isinstance(api, KubeClient) else None
        self._server = ""  # its address
        sending = send or self._post
        self._audit_sender = AuditSender(sending, clock=clock) if sending is not None else None
        # admission reads caches only: a review must not wait for the API server
        self._tenants = shared.of(api, TENANTS)
        self._nodes = shared.of(api, NODES)
        self._policies = shared.of(api, POLICIES)
        self._budgets = shared.of(api, BUDGETS)
        self._budgets_seen: tuple[tuple[str, ...], list[Budget]] = ((), [])
        self._namespaces = shared.of(api, NAMESPACES)
        self._machines = shared.of(api, MACHINES)
        self._reservations = shared.of(api, RESERVATIONS)
        self._classes = shared.of(api, PRIORITYCLASSES)
        self._ingresses = shared.of(api, INGRESSES, keep=slim_ingress)
        self._info = shared.of(api, CONFIGMAPS, SYSTEM_NAMESPACE, field_selector=f"metadata.name={INFO_CONFIGMAP}")
        self._switch = shared.of(
            api, CONFIGMAPS, SYSTEM_NAMESPACE, field_selector=f"metadata.name={SCHEDULER_CONFIGMAP}"
        )
        # decisions with their own state
        self._judge = MachineJudge(self._machines, self._reservations, clock)
        self._kills = KillCaches(api)
        self._people = shared.of(api, SERVICEACCOUNTS, PEOPLE_NAMESPACE)
        # reviews wait until these kinds are listed; without the others the webhook is not ready
        self._known = {
            resource: asyncio.Event() for resource in (TENANTS, POLICIES, BUDGETS, MACHINES, RESERVATIONS)
        }  # listed, or no kind here (yet)
        self._needed = (
            self._nodes,
            self._namespaces,
            self._classes,
            self._ingresses,
            self._info,
            self._switch,
        )
        # values computed from the caches; a change clears them
        self._away: dict[
            tuple[tuple[str, str], ...], tuple[Obj, ...]
        ] = {}  # by the selector of a tenant's own nodes
        self._reserved: tuple[str, ...] = ()
        self._taken: tuple[Claim, ...] | None = None
        self._facts: Facts | None = None
        self._node_taints: dict[str, frozenset[tuple[str, str]]] | None = None
        self._policy_of: dict[str, Policy | None] = {}  # by namespace; emptied when either changes
        # changes that clear computed values
        self._nodes.on_change(self._node_changed)
        self._policies.on_change(self._policy_changed)
        self._namespaces.on_change(self._namespace_changed)
        self._ingresses.on_change(self._ingress_changed)
        self._info.on_change(self._info_changed)
        # a path may end in the token that only the API server knows
        self.app = Starlette(
            routes=[
                *(
                    Route(path, handler, methods=["POST"])
                    for name, handler in (
                        ("/mutate", self._mutate),
                        ("/validate", self._validate),
                        ("/audit", self._audit),
                    )
                    for path in (name, f"{name}/{{token}}")
                ),
                Route("/healthz", self._healthz, methods=["GET"]),
                Route("/readyz", self._readyz, methods=["GET"]),
                Route(METRICS_PATH, self._metrics, methods=["GET"]),
            ]
        )

    @property
    def synced(self) -> bool:
        """Whether the caches are complete, so that requests can be checked."""
        return all(informer.synced.is_set() for informer in self._needed) and all(
            listed.is_set() for listed in self._known.values()
        )

    async def run(self) -> None:
        """Update the caches and send audit records, until cancelled."""
        try:
            await self._run()
        finally:
            if self._post is not None:
                await self._post.close()

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._audit_sender is not None:
                tasks.create_task(self._audit_sender.run(), name="audit records")
            tasks.create_task(self._follow(TENANTS, self._tenants), name="informer tenants")
            tasks.create_task(self._follow(BUDGETS, self._budgets), name="informer budgets")
            tasks.create_task(self._follow(POLICIES, self._policies), name="informer policies")
            tasks.create_task(self._follow(MACHINES, self._machines), name="informer machines")
            tasks.create_task(self._follow(RESERVATIONS, self._reservations), name="informer reservations")
            for informer in self._needed:
                tasks.create_task(informer.run(), name=f"informer {informer.resource}")
            tasks.create_task(self._people.run(), name="informer people")
            for informer in self._kills.informers:
                tasks.create_task(informer.run(), name=f"informer {informer.resource} killed")

    async def wait_synced(self) -> None:
        """Wait until the caches are complete, so that requests can be checked."""
        for informer in self._needed:
            await informer.synced.wait()
        for known in self._known.values():
            await known.wait()

    def decide(self, asked: _Asked, *, mutating: bool) -> Verdict:
        """Run the steps of admission, or judge the object that they made.

        Other kinds pass, and most subresources.
        """
        kind, user = asked.kind.kind, asked.user_info
        if asked.object is not None and asked.sub_resource in ("scale", "resize") and kind in WORKLOADS:
            return judge_growth(self._request(asked, asked.object, mutating=mutating))
        if asked.object is None or asked.sub_resource:
            return Verdict()
        if user.username == OPERATOR and (kind in _OPERATORS or asked.namespace in PLATFORM):
            named = tenant_names(self._tenants.all())
            allowed = [namespace for namespace in named if not is_reserved(namespace)]
            return Verdict(
                (),
                judge_operator(kind, asked.object, asked.old_object, namespace=asked.namespace, tenants=allowed),
            )
        if unfit := _judge_template(kind, asked.object, asked.old_object):
            return Verdict((), unfit)
        if mutating:
            return admit(self._request(asked, asked.object, mutating=True)) if kind in TEMPLATES else Verdict()
        refusals = self._judge.judge(kind, asked.object, asked.old_object, user=user.username, groups=user.groups)
        refusals += _judge_ours(kind, asked.object, asked.old_object)
        refusals += self._judge_of_tenants(asked, asked.object)
        if kind in TEMPLATES:
            refusals += judge(self._request(asked, asked.object, mutating=False)).refusals
        return Verdict((), refusals)

    def _judge_of_tenants(self, asked: _Asked, obj: Obj) -> tuple[Refusal, ...]:
        """Refuse hosts of another team, and priorities that the tenant may not use."""
        kind, is_mirror = asked.kind.kind, asked.user_info.username.startswith(NODE_USERS)
        tenants = self._tenants.all()
        tenant = tenant_of(asked.namespace, tenants)
        refusals: tuple[Refusal, ...] = ()
        if _names_hosts(asked.kind) or (kind == "Pod" and not is_mirror and names_records(obj)):
            refusals = self._judge_hosts(asked, tenant, tenants)
        if kind in WORKLOADS and not is_mirror:
            classes = self._classes.all()
            refusals += judge_priority(kind, obj, asked.old_object, tenant=tenant, classes=classes)
        return refusals

    def _judge_hosts(self, asked: _Asked, tenant: Obj | None, tenants: list[Obj]) -> tuple[Refusal, ...]:
        obj, old = asked.object, asked.old_object
        if obj is None or _is_operators(asked) or (old is not None and _leads_to(old) == _leads_to(obj)):
            return ()
        return judge_hosts(
            asked.kind.kind,
            obj,
            namespace=asked.namespace,
            tenant=tenant,
            tenants=tenants,
            reserved=self._reserved,
            taken=self._claims(),
        )

    def _request(self, asked: _Asked, obj: Obj, *, mutating: bool) -> Request:
        """The request with all cluster data that the checks need."""
        policy = self._policy(asked.namespace)
        is_new_pod = mutating and policy is not None and asked.kind.kind == "Pod" and asked.operation == "CREATE"
        tenants = self._tenants.all()
        tenant = tenant_of(asked.namespace, tenants)
        return Request(
            kind=asked.kind.kind,
            operation=asked.operation,
            user=asked.user_info.username,
            groups=asked.user_info.groups,
            obj=obj,
            old=asked.old_object,
            defaults=defaults_of(tenant),
            restart_limit_max=((tenant or {}).get("spec") or {}).get("restartLimit"),
            away_from_gpus=self._away_from_gpus(tenant),
            policy=policy,
            facts=self._gpu_facts(),
            known=self._kills.known(obj) if is_new_pod else None,
            pools=self._judge.pools(),
            gpu_machines=self._judge.gpu_machines(),
            namespace=self._namespaces.get(asked.namespace),
            tenant=tenant,
            tenants=tenants,
            node_taints=self._taints_of_nodes(),
            classes=self._classes.all(),
            scheduler=self._scheduler(),
            budgets=self._held(),
            now=self._clock.now(),
        )

    def _held(self) -> list[Budget]:
        """The Budgets. They are parsed again after a change."""
        objects = self._budgets.all()
        versions = tuple(str(obj["metadata"].get("resourceVersion")) for obj in objects)
        if versions != self._budgets_seen[0]:
            self._budgets_seen = (versions, budgets_of(objects))
        return self._budgets_seen[1]

    async def _follow(self, resource: Resource, informer: Informer) -> None:
        """Watch one of our kinds. While the cluster does not define the kind, it has no objects."""
        known = self._known[resource]
        while True:
            try:
                await self._api.list(resource, limit=1)
                break
            except NotFound:
                if not known.is_set():
                    log.info("this cluster does not have a kind of ours yet", extra={"resource": str(resource)})
                known.set()
            except (ApiError, OSError) as error:
                log.warning("cannot read a kind of ours", extra={"resource": str(resource), "error": str(error)})
            await self._clock.sleep(KIND_SECONDS)
        following = asyncio.create_task(informer.run())
        try:
            await informer.synced.wait()
            known.set()
            await following
        finally:
            following.cancel()

    async def _mutate(self, http: HttpRequest) -> Response:
        with self.measures.review("mutate") as review_seen:
            return await self._answer(http, review_seen, mutating=True)

    async def _validate(self, http: HttpRequest) -> Response:
        with self.measures.review("validate") as review_seen:
            return await self._answer(http, review_seen, mutating=False)

    async def _audit(self, http: HttpRequest) -> Response:
        """Admit any object at once; the record is sent later."""
        with self.measures.review("audit") as review_seen:
            return await self._note(http, review_seen)

    async def _metrics(self, _: HttpRequest) -> Response:
        informers = [
            *self._needed,
            *(self._tenants, self._policies, self._budgets, self._machines, self._reservations, self._people),
            *self._kills.informers,
        ]
        rows = [*self.measures.read(self._certificate), *measure_caches(informers)]
        return Response(exposition(rows, process=True), media_type=MEDIA_TYPE)

    async def _note(self, http: HttpRequest, review_seen: Review) -> Response:
        try:
            body = await read_body(http.receive, _BODY_MAX_BYTES)
            asked = parse_json(body, _Review, bytes_max=_BODY_MAX_BYTES).request
        except (BodyTooLong, ClientLeft, DocumentError) as error:
            return PlainTextResponse(f"invalid AdmissionReview: {error}", 400)  # the failure policy is Ignore
        self._record(http, asked)
        review_seen.outcome = "allowed"
        return review({"uid": asked.uid, "allowed": True})

    def _record(self, http: HttpRequest, asked: _Asked, status: int = 200) -> None:
        if self._audit_sender is None or asked.dry_run or not self._is_token(http.path_params.get("token", "")):
            return
        where = asked.resource
        change = Change(
            operation=asked.operation,
            group=where.group,
            plural=where.resource,
            version=where.version,
            namespace=asked.namespace,
            name=asked.name,
            subresource=asked.sub_resource,
            obj=asked.object,
            old=asked.old_object,
            options=asked.options or {},
        )
        self._audit_sender.note(change, account=asked.user_info.username, status=status)

    async def _healthz(self, _: HttpRequest) -> Response:
        return PlainTextResponse("ok")

    async def _readyz(self, _: HttpRequest) -> Response:
        return PlainTextResponse("ok" if self.synced else NOT_SYNCED, 200 if self.synced else 503)

    async def _answer(self, http: HttpRequest, review_seen: Review, *, mutating: bool) -> Response:
        try:
            body = await read_body(http.receive, _BODY_MAX_BYTES)
        except BodyTooLong as error:
            return PlainTextResponse(str(error), 413, {"connection": "close"})
        except ClientLeft:
            return PlainTextResponse("the client closed the connection", 400)
        try:
            asked = parse_json(body, _Review, bytes_max=_BODY_MAX_BYTES).request
        except DocumentError as error:
            return unreadable(body, error)
        try:
            await asyncio.wait_for(self.wait_synced(), SYNC_SECONDS)
        except TimeoutError:
            # judged without the tenants' defaults it might be refused for nothing: let the failure policy decide
            review_seen.outcome = "not_ready"
            return PlainTextResponse(NOT_SYNCED, 503)
        if not self._kills.synced and asked.kind.kind == "Pod" and mutating and len(self._policies):
            await self._kills.settle()
        by_account, asked = asked, await self._by_person(asked)
        try:
            verdict = self.decide(await self._of_parent(asked), mutating=mutating)
        except Exception as error:  # a defect triggered by an object must not admit the object
            log.exception("an object could not be judged", extra=_of(asked))
            self._record(http, by_account, 500)
            review_seen.outcome = "failed"
            message = f"the admission webhook failed on this object: {error!r}; its log has more"
            return review(refusal(asked.uid, 500, "InternalError", message))
        review_seen.outcome = "refused" if verdict.refusals else "allowed"
        if verdict.refusals or not mutating:  # an admitted object is reviewed again by the validating webhook
            self._record(http, by_account, 422 if verdict.refusals else 200)
        return review(response(asked.uid, verdict, _of(asked)))

    async def _by_person(self, asked: _Asked) -> _Asked:
        """The request with the person's user name if it came from the person's account: owners are persons."""
        user = asked.user_info
        if not (name := account_in(user.username)):
            return asked
        account = self._people.get(name, PEOPLE_NAMESPACE)
        if account is None:  # newer than our copy
            try:
                account = await self._api.get(SERVICEACCOUNTS, name, PEOPLE_NAMESPACE)
            except (ApiError, OSError) as error:
                log.warning("cannot read the owner of this account", extra={"account": name, "error": str(error)})
                return asked
        person = person_in(account)
        return msgspec.structs.replace(asked, user_info=_User(person, user.groups)) if person else asked

    async def _of_parent(self, asked: _Asked) -> _Asked:
        """For a Scale request: the workload before and after the change. Raises ApiError."""
        resource = _SCALED.get(asked.resource.resource)
        if asked.sub_resource != "scale" or resource is None or not self._held():
            return asked
        try:
            parent = await self._api.get(resource, asked.name, asked.namespace)
        except NotFound:
            return asked
        return msgspec.structs.replace(
            asked,
            kind=_Kind(resource.kind, resource.group),
            object=_scaled(parent, asked.object),
            old_object=_scaled(parent, asked.old_object),
        )

    def _node_changed(self, before: Obj | None, after: Obj | None) -> None:
        if before is None or after is None or _face(before) != _face(after):  # not for every heartbeat
            self._away, self._facts, self._node_taints = {}, None, None

    def _policy_changed(self, _before: Obj | None, _after: Obj | None) -> None:
        self._policy_of.clear()

    def _namespace_changed(self, before: Obj | None, after: Obj | None) -> None:
        if before is None or after is None or labels_of(before) != labels_of(after):
            self._policy_of.clear()

    def _ingress_changed(self, _before: Obj | None, _after: Obj | None) -> None:
        self._taken = None

    def _info_changed(self, _before: Obj | None, after: Obj | None) -> None:
        data = (after or {}).get("data") or {}
        self._server = str(data.get("serverUrl") or "")
        try:
            domain = parse_platform(data).domain
        except BadWorkspace as error:  # then workspaces have no hosts
            log.warning("workspaces have no hosts", extra={"error": error.message})
            domain = ""
        info = parse_info(data)
        self._reserved = reserved_hosts(domain, *info.public_urls, info.server_url)

    def _scheduler(self) -> str:
        return scheduler_name(self._switch.get(SCHEDULER_CONFIGMAP, SYSTEM_NAMESPACE))

    def _claims(self) -> tuple[Claim, ...]:
        if self._taken is None:
            self._taken = tuple(claim for ingress in self._ingresses.all() for claim in claims_of(ingress))
        return self._taken

    def _policy(self, namespace: str) -> Policy | None:
        if not len(self._policies):
            return None
        if namespace not in self._policy_of:
            namespace_object = self._namespaces.get(namespace)
            if namespace_object is None:  # newer than our copy: it is guarded, or we would not have been asked
                return policy_for({GUARD_LABEL: "enabled", NAME_LABEL: namespace}, self._policies.all())
            self._policy_of[namespace] = policy_for(labels_of(namespace_object), self._policies.all())
        return self._policy_of[namespace]

    def _gpu_facts(self) -> Facts:
        if self._facts is None:
            self._facts = facts_of(self._readable_nodes())
        return self._facts

    def _taints_of_nodes(self) -> dict[str, frozenset[tuple[str, str]]]:
        if self._node_taints is None:
            self._node_taints = {
                node.name: frozenset((taint.key, taint.value) for taint in node.taints)
                for node in self._readable_nodes()
            }
        return self._node_taints

    def _readable_nodes(self) -> list[NodeInfo]:
        return [node for obj in self._nodes.all() if (node := _parse(obj)) is not None]

    def _away_from_gpus(self, tenant: Obj | None) -> tuple[Obj, ...]:
        selector = own_selector(tenant)
        key = tuple(sorted(selector.items()))
        if key not in self._away:
            self._away[key] = away_from_gpus(self._readable_nodes(), own=selector)
        return self._away[key]


_OPERATORS = ("Namespace", "RoleBinding", "NetworkPolicy", "ResourceQuota")  # kinds of `judge_operator`
_SCALED = {
    resource.plural: resource
    for resource in (
        DEPLOYMENTS,
        REPLICASETS,
        STATEFULSETS,
        REPLICATIONCONTROLLERS,
    )
}
_CHECKS = {
    BUDGETS.kind: check_budget,
    IDLE_POLICIES.kind: check_idle_policy,
    MAPJOBS.kind: check_mapjob,
    WORKSPACES.kind: check_workspace,
}


def _judge_template(kind: str, obj: Obj, old: Obj | None) -> tuple[Refusal, ...]:
    """Refuse a pod template with too many containers, or, in a MapJob, with fields of a wrong type."""
    if kind not in WORKLOADS:
        return ()
    count, path = container_count(kind, obj), (*WORKLOADS[kind], "spec")
    if count > CONTAINERS_MAX and (old is None or at(old, path) != at(obj, path)):
        reason = f"must be at most {CONTAINERS_MAX}, with initContainers"
        return (Refusal(field_of((*path, "containers")), str(count), reason),)
    if kind != MAPJOBS.kind:  # Kubernetes checks the types in other kinds' templates
        return ()
    return tuple(Refusal(finding.field, finding.value, finding.message) for finding in misshapen(kind, obj))


def _judge_ours(kind: str, obj: Obj, old: Obj | None) -> tuple[Refusal, ...]:
    unchanged = old is not None and old.get("spec") == obj.get("spec")
    if kind not in _CHECKS or unchanged or obj["metadata"].get("deletionTimestamp"):
        return ()
    return tuple(Refusal(fault.field, fault.value, fault.message) for fault in _CHECKS[kind](obj))


def _scaled(parent: Obj, scale: Obj | None) -> Obj:
    replicas = at(scale, ("spec", "replicas")) or 0  # a Scale of none has no field
    return parent | {"spec": {**(parent.get("spec") or {}), "replicas": replicas}}


def _is_operators(asked: _Asked) -> bool:
    """Whether the operator made it; with a control plane for tests, an administrator made it for a Workspace."""
    user, owner = asked.user_info, controller_ref(asked.object or {"metadata": {}}) or {}
    return user.username == OPERATOR or (MASTERS in user.groups and owner.get("kind") == WORKSPACES.kind)


def _names_hosts(kind: _Kind) -> bool:
    return any(kind.kind == name for _, name in HOST_KINDS.get(kind.group, ()))


def _leads_to(obj: Obj) -> Any:
    """The fields that decide the address of an object: the others may change freely."""
    return obj.get("spec"), annotations_of(obj)


def _face(node: Obj) -> Any:
    spec = node.get("spec") or {}
    return (
        labels_of(node),
        spec.get("taints"),
        spec.get("unschedulable"),
        (node.get("status") or {}).get("allocatable"),
    )


def _parse(obj: Obj) -> NodeInfo | None:
    try:
        return parse_node(obj)
    except (ValueError, KeyError, TypeError) as error:
        log.warning("a node cannot be read", extra={"node": obj["metadata"]["name"], "error": repr(error)})
        return None


def _of(asked: _Asked) -> dict[str, str]:
    return {"namespace": asked.namespace, "kind": asked.kind.kind, "user": asked.user_info.username}
