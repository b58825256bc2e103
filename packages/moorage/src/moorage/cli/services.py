"""Moorage's services as processes: all four in one for the local cluster, one each on a real cluster.

`python -m moorage.cli.services --data FOLDER …` is started by the supervisor of `moor up` (and by test
clusters); `moor operator`, `moor webhook`, `moor extender` and `moor server` are the same code, one part each.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import msgspec
from msgspec import Struct, field

from moorage import __version__
from moorage import settings as table
from moorage.api.errors import ErrorCode
from moorage.cli.datafolder import DataFolder, listening
from moorage.model.names import GUARD_LABEL
from moorage.model.people import LOCAL
from moorage.model.retention import USAGE_DAYS
from moorage_kube.api import Api
from moorage_kube.clock import SYSTEM, Clock, rfc3339
from moorage_kube.connections import raise_file_limit
from moorage_kube.errors import AlreadyExists, ApiError, MoorageError, NotFound, NotReady
from moorage_kube.folderlease import FolderLease
from moorage_kube.hangs import HANG_RECORD, HangRecord
from moorage_kube.informer import wait_synced
from moorage_kube.informers import Informers
from moorage_kube.logs import set_up_logging
from moorage_kube.meta import labels_of
from moorage_kube.parent import answer_parent, end_with_parent, tell_parent
from moorage_kube.resources import (
    CONFIGMAPS,
    CRDS,
    ENDPOINTSLICES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PDBS,
    PRIORITYCLASSES,
    SERVICEACCOUNTS,
    SERVICES,
    VALIDATING_WEBHOOKS,
    Obj,
    Resource,
)
from moorage_kube.serving import GRACE_SECONDS, serve

if TYPE_CHECKING:
    from moorage.api.auditrecords import AuditRecords
    from moorage.decide.rates import Rate
    from moorage.evaluator.pool import Evaluation
    from moorage.server.identity.logins import LoginSettings
    from moorage.server.identity.oidc import ProviderSettings
    from moorage.server.service import ServerService
    from moorage.webhooks.auditsender import Send
    from moorage_kube.remote.client import KubeClient
    from moorage_kube.remote.config import Connection

log = logging.getLogger("moorage.services")

PARTS = ("operator", "webhook", "extender", "server")
ADMISSION = ("webhook",)  # the parts of the process `admission` of a local cluster
API_WAIT_SECONDS = 60.0  # for an API server that was there before us; then the pod is started again
LOCAL_API_WAIT_SECONDS = 1800.0  # for one that starts at the same time: `moor up` gives up before
ENSURED_AT_ONCE = 4  # objects of the installation
AT_ONCE_SECONDS = 0.5  # a folder that is free is taken in milliseconds
LONG_GRACE_SECONDS = 15  # on a cluster: for requests that are under way at the end; then streams are cut
QUARANTINED = "Quarantined"  # reason of condition and event of an object that hung a controller twice
LOCAL_INGRESS = "moorage-local"  # the class of the local cluster's ingress


class Settings(Struct, kw_only=True):
    """The settings of a process of services."""

    parts: tuple[str, ...] = PARTS
    data: Path | None = None  # folder for usage.db and, of a local cluster, its tokens and certificates
    kubeconfig: Path | None = None  # None: the pod's own service account, or the user's kubeconfig
    sockets: dict[str, socket.socket] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict)  # bearer token by part; empty: the kubeconfig's own
    page_token: str = ""
    ingress_port: int | None = None  # of the local cluster's ingress
    logins: LoginSettings | None = None
    provider: ProviderSettings | None = None
    rate: Rate | None = None  # how often one person may ask the server; None: as the environment says
    usage_days: int = USAGE_DAYS  # for which GPU use is stored
    person: str = ""  # user of the page's token; empty: the token may only read
    address: str = ""  # under which pods reach the server; empty: loopback, which pods of this machine share
    hosts: tuple[str, ...] = ()  # names other than loopback under which the server answers
    certificate: Path | None = None
    key: Path | None = None
    ca_pem: bytes = b""
    policy: str = "pack"  # how the extender packs
    audit_token: str = ""  # by which the webhook knows the API server; empty: it is in `audit_token_file`
    audit_token_file: Path | None = None
    scheduler_token: str = ""  # token of the schedulers that may call the extender; empty: all may
    install: bool = False  # make namespace, CRDs, webhook configuration and ConfigMap ourselves
    ready_fd: int | None = None
    alive_fd: int | None = None  # a socket on which the supervisor asks whether the event loop turns
    drain_seconds: float = 0.0  # between SIGTERM and the end, for clients to go elsewhere

    @property
    def name(self) -> str:
        """The name of the process in the supervisor."""
        return _name(self.parts)


def _name(parts: tuple[str, ...]) -> str:
    return "admission" if parts == ADMISSION else "services"


async def run_services(settings: Settings) -> None:
    """Run the chosen parts until SIGTERM or SIGINT. Raises MoorageError if they cannot start."""
    from moorage_kube.remote.client import KubeClient
    from moorage_kube.remote.config import load_connection

    # the first SIGTERM drains, the second one stops at once
    raise_file_limit()
    stop, draining = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGTERM, lambda: (stop if draining.is_set() else draining).set())
    ending = asyncio.create_task(_end_slowly(draining, stop, settings))
    connection = load_connection(settings.kubeconfig)
    if "server" in settings.parts:
        settings.logins = with_cluster(settings.logins, connection)
    # one client per part, with the part's own token; the administrator's is for the installation
    async with contextlib.AsyncExitStack() as stack:
        apis: dict[str, KubeClient] = {}
        for part in settings.parts:
            token = settings.tokens.get(part)
            mine = replace(connection, token=token, token_file=None) if token else connection
            apis[part] = await stack.enter_async_context(KubeClient(mine))
        admin = await stack.enter_async_context(KubeClient(connection))
        # an API server may still be starting
        await wait_for_api(admin, stop, patience=LOCAL_API_WAIT_SECONDS if settings.install else API_WAIT_SECONDS)
        if stop.is_set():
            return
        if settings.install:
            await (_install(admin, settings) if settings.parts != ADMISSION else _installed(admin, stop))
        # SQLite has one writer: wait for the lease on the folder
        if "server" in settings.parts and settings.data is not None and not table.QUEUE_URL.read(os.environ):
            lease = FolderLease(settings.data, renew=not settings.install)
            stack.callback(lease.release)
            if not await unless(stop, asyncio.ensure_future(_hold(lease, settings.sockets["server"]))):
                return

        # parts that read users' expressions share one pool of processes, created at first use
        @functools.cache
        def evaluation() -> Evaluation:
            from moorage.evaluator.pool import Evaluators

            evaluators = Evaluators()
            stack.push_async_callback(evaluators.aclose)
            return evaluators

        # a note of the object in work survives a hang: a later start then suspends the object
        folder = table.WORK_FOLDER.read(os.environ) or (settings.data and settings.data / "run")
        if folder is not None:
            writer = "operator" if "operator" in apis else settings.parts[0]
            HANG_RECORD.set(HangRecord(folder / writer, functools.partial(set_aside, apis[writer])))
        # start the loops of the parts, then the HTTP servers; both run before the caches have synced
        async with asyncio.TaskGroup() as tasks:
            works = _works(settings, apis, _Signals(stop, draining), evaluation)
            background = [tasks.create_task(work, name=name) for name, work in works.behind]
            serving = [tasks.create_task(work, name=name) for name, work in works.serving]
            answer_parent(settings.alive_fd)
            if not await unless(stop, asyncio.gather(*works.ready)):
                for task in (*serving, *background):
                    task.cancel()
                return
            # the webhook is registered only once it can answer
            if settings.install and "webhook" in settings.parts:
                await _install_webhook(admin, settings)
            # objects of the start live for ever: the garbage collector need not look at them again
            gc.collect()
            gc.freeze()
            if settings.ready_fd is not None:
                tell_parent(settings.ready_fd, f"{settings.name} ready")
            log.info("ready", extra={"parts": settings.parts})
            await stop.wait()
            # end long streams first, so that their clients connect to another replica
            for end_streams in works.end_streams:
                end_streams()
            if serving and not settings.install:  # open requests are answered while the other parts still run
                await asyncio.wait(serving)
            for task in (*serving, *background):
                task.cancel()
        ending.cancel()
    log.info("stopped")


async def _hold(lease: FolderLease, sock: socket.socket) -> None:
    """Wait until this server has the lease of the database folder. Until then /healthz is ok, all else is 503."""

    async def wait_here(scope: Any, _receive: Any, send: Any) -> None:
        message = f"another server uses the folder of databases: {lease.holder or 'unknown'}"
        problem = {"code": ErrorCode.STARTING, "message": message, "hint": "try again in a moment"}
        lives = scope.get("path") == "/healthz"
        body = b"ok" if lives else json.dumps(problem).encode()
        headers = [(b"content-type", b"text/plain" if lives else b"application/json")]
        await send({"type": "http.response.start", "status": 200 if lives else 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    acquiring = asyncio.ensure_future(lease.acquire())
    done, _ = await asyncio.wait({acquiring}, timeout=AT_ONCE_SECONDS)
    if done:
        return await acquiring
    log.warning("waits for the folder of databases", extra={"holder": lease.holder})
    waiting = asyncio.Event()
    serving = asyncio.create_task(serve(wait_here, sock.dup(), stop=waiting, grace_seconds=1))
    try:
        await acquiring
    finally:
        acquiring.cancel()
        waiting.set()
        await asyncio.wait({serving})


async def _end_slowly(draining: asyncio.Event, stop: asyncio.Event, settings: Settings) -> None:
    """Stop some time after SIGTERM, so that clients can connect to another replica; at once after a second signal.

    With a local cluster it stops at once, as there is no other replica; so does the operator, which has no
    clients.
    """
    await draining.wait()
    if not settings.install and settings.parts != ("operator",):
        log.info("draining", extra={"seconds": settings.drain_seconds})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), settings.drain_seconds)
    stop.set()


async def unless(stop: asyncio.Event, work: asyncio.Future[Any]) -> bool:
    """Wait for work; return False if `stop` comes first. Afterwards the work has ended or is cancelled."""
    waiting = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            return False
        await work
        return True
    finally:
        for future in (work, waiting):
            future.cancel()
        await asyncio.gather(work, waiting, return_exceptions=True)


class _Signals(Struct, frozen=True):
    """`draining`: still answer, but send clients to another server. `stop`: accept no more requests."""

    stop: asyncio.Event
    draining: asyncio.Event


Work = tuple[str, Coroutine[Any, Any, None]]


class _Works(Struct):
    """The endless coroutines of the parts, by name; those that serve requests end first.

    `ready`: awaited before they can be used; `end_streams`: ends open streams before the end.
    """

    behind: list[Work] = field(default_factory=list)
    serving: list[Work] = field(default_factory=list)
    ready: list[Coroutine[Any, Any, None]] = field(default_factory=list)
    end_streams: list[Callable[[], None]] = field(default_factory=list)


def _works(
    settings: Settings, apis: dict[str, KubeClient], signals: _Signals, evaluation: Callable[[], Evaluation]
) -> _Works:
    from moorage.cluster.metricsguard import MetricsGuard

    works = _Works()
    grace = GRACE_SECONDS if settings.install else LONG_GRACE_SECONDS
    answer = functools.partial(serve, stop=signals.stop, draining=signals.draining, grace_seconds=grace)
    informers = Informers()  # each asks as the part that needs it first; the parts of this process end together
    sockets = settings.sockets
    servers: list[ServerService] = []
    for part, api in apis.items():
        if part == "operator":
            from moorage.controllers.manager import run_operator
            from moorage.controllers.measures import OperatorMeasures, make_app
            from moorage.notify.outbound import outbound_of
            from moorage.settings import REGISTRIES

            identity = f"{socket.gethostname()}-{os.getpid()}"
            on_cluster = not settings.install
            measures = OperatorMeasures()
            operator = run_operator(
                api,
                identity=identity,
                leader_elect=on_cluster,
                certificates=certificates_of(os.environ) if on_cluster else "",
                outbound=outbound_of(os.environ),
                registries=REGISTRIES.read(os.environ),
                informers=informers,
                metrics=measures,
                evaluation=evaluation(),
            )
            works.behind.append(("operator", operator))
            if "operator" in sockets:
                guarded = MetricsGuard(make_app(measures), api, token=settings.page_token)
                works.serving.append(("operator metrics", answer(guarded, sockets["operator"])))
        elif part == "extender":
            from moorage.extender.app import create_app
            from moorage.extender.cache import ExtenderCache
            from moorage.extender.policies import make_policy

            cache = ExtenderCache(api, policy=make_policy(settings.policy))
            works.behind.append(("extender cache", cache.run()))
            app = create_app(cache, token=settings.scheduler_token)
            guarded = MetricsGuard(app, api, token=settings.page_token)
            works.serving.append(("extender", answer(guarded, sockets["extender"])))
            works.ready.append(_set(cache.synced))
        elif part == "webhook":
            from moorage.webhooks.app import Webhook

            # by an administrator's certificate the server would not know the webhook: they are one process then
            send = None if settings.tokens or "server" not in apis else _to(servers)
            webhook = Webhook(
                api,
                informers=informers,
                is_token=_audit_token(settings),
                send=send,
                certificate=settings.certificate,
            )
            works.behind.append(("webhook cache", webhook.run()))
            guarded = MetricsGuard(webhook.app, api, token=settings.page_token)
            by_tls = answer(guarded, sockets["webhook"], certificate=settings.certificate, key=settings.key)
            works.serving.append(("webhook", by_tls))
            works.ready.append(webhook.wait_synced())
        elif part == "server":
            service = _server(api, settings, informers, evaluation())
            servers.append(service)
            works.behind.append(("server caches", service.run()))
            works.serving.append(("server", answer(service.app, sockets["server"])))
            works.end_streams.append(service.end_streams)
            cluster = service.cluster
            works.ready.append(wait_synced(cluster.nodes, cluster.pods, cluster.jobs, service.gateway.info))
    return works


async def set_aside(api: Api, resource: Resource, obj: Obj, message: str) -> Obj:
    """Suspend an object that hung a controller, if its kind can be suspended, and record an event."""
    from moorage.model.argo import CRON_WORKFLOWS, WORKFLOWS
    from moorage_kube.meta import with_condition
    from moorage_kube.remote.events import EventRecorder

    if resource in (WORKFLOWS, CRON_WORKFLOWS):
        known = (obj.get("status") or {}).get("conditions") or ()
        now = rfc3339(SYSTEM.now())
        conditions = with_condition(known, "SpecError", "True", reason=QUARANTINED, message=message, now=now)
        patch = {"spec": {"suspend": True}, "status": {"conditions": conditions}}
        obj = await api.patch(resource, obj["metadata"]["name"], patch, obj["metadata"]["namespace"])
    events = EventRecorder(api, component="moorage", clock=SYSTEM)
    await events.record(obj, "Warning", QUARANTINED, message)
    return obj


def _to(servers: list[ServerService]) -> Send:
    async def send(records: AuditRecords) -> None:
        await servers[0].changes.take(records)

    return send


def _audit_token(settings: Settings) -> Callable[[str], bool]:
    from moorage.server.identity.auth import same
    from moorage.webhooks.auditsender import TokenFile

    if settings.audit_token_file is not None:
        return TokenFile(settings.audit_token_file)
    return functools.partial(same, settings.audit_token)


def _server(api: KubeClient, settings: Settings, informers: Informers, evaluation: Evaluation) -> ServerService:
    """The server with its settings. Raises MoorageError if it has no data folder."""
    from moorage.server.databases import ARTIFACTS_FOLDER
    from moorage.server.service import ServerService
    from moorage.server.usagesources import SourceSettings

    if settings.data is None:
        raise MoorageError("the server needs a folder for usage.db", hint="give it with --data")
    env = dict(os.environ)
    if settings.install and not table.ARTIFACTS.read(env):  # one server: it keeps them in its folder in any case
        env[table.ARTIFACTS.name] = f"file://{settings.data.absolute() / ARTIFACTS_FOLDER}"
    return ServerService(
        api,
        hosts=settings.hosts,
        usage_db=settings.data / "usage.db",
        database=table.QUEUE_URL.read(os.environ) or None,
        page_token=settings.page_token,
        page_person=settings.person,
        logins=settings.logins,
        provider=settings.provider,
        usage_days=settings.usage_days,
        rate=settings.rate,
        env=env,
        sources=SourceSettings(
            namespaces=table.GPU_EXPORTER_NAMESPACES.read(os.environ),
            prometheus=table.PROMETHEUS_URL.read(os.environ),
            token=settings.tokens.get("metrics", ""),
        ),
        informers=informers,
        evaluation=evaluation,
    )


async def _set(event: asyncio.Event) -> None:
    await event.wait()


class _Answers(Protocol):
    async def raw(self, method: str, path: str) -> bytes: ...


async def wait_for_api(api: _Answers, stop: asyncio.Event, *, patience: float, clock: Clock = SYSTEM) -> None:
    """Return when the API answers; it may be starting too. Raises NotReady after `patience` seconds."""
    deadline = clock.monotonic() + patience
    while not stop.is_set():
        try:
            await api.raw("GET", "/readyz")
            return
        except ApiError as error:
            if clock.monotonic() > deadline:
                raise NotReady(f"the Kubernetes API did not answer: {error.message}") from error
        await clock.sleep(0.05)


async def _install(api: Api, settings: Settings) -> None:
    """Create the objects that the services need.

    Only on a local cluster; elsewhere `kubectl apply -k deploy` does.
    """
    from moorage.actions.people import ensure_account
    from moorage.features import feature_crds
    from moorage.model.crds import all_crds
    from moorage.model.definitions import is_anothers
    from moorage.model.manifests import (
        ALL,
        CLUSTERROLEBINDINGS,
        CLUSTERROLES,
        ROLEBINDINGS,
        ROLES,
        make_info,
        make_kubelets_account,
        make_local_admin,
        make_machine_objects,
        make_namespace,
        make_people_namespace,
        make_rights,
        make_server_address,
        make_tenant_roles,
        make_workflow_roles,
        make_workspace_roles,
    )

    await asyncio.gather(
        *(_ensure(api, NAMESPACES, namespace) for namespace in (make_namespace(), make_people_namespace()))
    )
    there = {obj["metadata"]["name"]: obj for obj in (await api.list(CRDS)).items}
    crds = (*all_crds(), *feature_crds())
    await _ensure_all(
        api, ((CRDS, crd) for crd in crds if not is_anothers(there.get(crd["metadata"]["name"]), crd))
    )
    address = f"http://{settings.address or '127.0.0.1'}:{settings.sockets['server'].getsockname()[1]}"
    domain, by = "", ""
    if settings.ingress_port is not None:
        # a separate domain: all names below it are reserved (`decide.hosts`)
        domain, by = f"http://*.workspace.localhost:{settings.ingress_port}", LOCAL_INGRESS
    info = make_info(__version__, address, public_url=address, workspace_url=domain, ingress_class=by)
    for resource, obj in zip((CONFIGMAPS, ROLES, ROLEBINDINGS), info, strict=True):
        await _ensure(api, resource, obj)
    granting = (CLUSTERROLES, CLUSTERROLEBINDINGS, ROLES, ROLEBINDINGS)
    kinds = {resource.kind: resource for resource in (PRIORITYCLASSES, PDBS, SERVICEACCOUNTS, *granting)}
    rights = [obj for service in ALL for obj in make_rights(service)]
    roles = (*make_tenant_roles(), *make_workspace_roles(), *make_workflow_roles(), *make_kubelets_account())
    granted = (*make_machine_objects(), *roles, *rights)
    await _ensure_all(api, ((kinds[obj["kind"]], obj) for obj in granted))
    if settings.ingress_port is not None:
        port = settings.sockets["server"].getsockname()[1]
        for resource, obj in zip((SERVICES, ENDPOINTSLICES), make_server_address(port), strict=True):
            await _ensure(api, resource, obj)
    if settings.person:
        await ensure_account(api, settings.person, (), LOCAL)
        await _ensure(api, CLUSTERROLEBINDINGS, make_local_admin(settings.person))
    guarded = {"metadata": {"labels": {GUARD_LABEL: "enabled"}}}
    await api.patch(NAMESPACES, "default", guarded)


async def _installed(api: Api, stop: asyncio.Event, clock: Clock = SYSTEM) -> None:
    """Return when another process has finished `_install`; this waits for its last step."""
    while not stop.is_set():
        with contextlib.suppress(ApiError):
            if GUARD_LABEL in labels_of(await api.get(NAMESPACES, "default")):
                return
        await clock.sleep(0.05)


async def _install_webhook(api: Api, settings: Settings) -> None:
    from moorage.webhooks.config import audit_configuration, webhook_configurations

    port = settings.sockets["webhook"].getsockname()[1]
    url, is_local = f"https://127.0.0.1:{port}", bool(settings.tokens)
    known: dict[str, Any] = {
        "url": url,
        "ca_pem": settings.ca_pem,
        "token": settings.audit_token,
    }
    configurations = webhook_configurations(**known, conditions=not is_local)
    for config in (*configurations, audit_configuration(**known, conditions=True)):
        mutating = config["kind"] == "MutatingWebhookConfiguration"
        await _ensure(api, MUTATING_WEBHOOKS if mutating else VALIDATING_WEBHOOKS, config)


async def _ensure_all(api: Api, objects: Iterable[tuple[Resource, Obj]]) -> None:
    """Ensure objects a few at a time.

    Each further one needs a new connection, which costs more than the request.
    """
    left = iter(objects)

    async def work() -> None:
        for resource, obj in left:
            await _ensure(api, resource, obj)

    await asyncio.gather(*(work() for _ in range(ENSURED_AT_ONCE)))


async def _ensure(api: Api, resource: Resource, obj: Obj) -> None:
    """Change the existing object to this state, or create it.

    Patched first: kube-apiserver refuses to create a default PriorityClass where there is one, also of the
    same name, before it sees that the name is taken.
    """
    meta = obj["metadata"]
    with contextlib.suppress(NotFound):
        await api.patch(resource, meta["name"], obj, meta.get("namespace"))
        return
    try:
        await api.create(resource, obj)
    except AlreadyExists:  # made in between
        await api.patch(resource, meta["name"], obj, meta.get("namespace"))


def login_settings(env: Mapping[str, str]) -> LoginSettings:
    """Return the settings of logins from the environment, by the variables of `moor server`. Raises UsageError."""
    from moorage.server.identity.logins import LoginSettings

    address = table.KUBERNETES_URL.read(env)
    return LoginSettings(
        local=table.LOCAL_ACCOUNTS.read(env),
        public_url=table.PUBLIC_URL.read(env).rstrip("/"),
        cluster={"server": address, "chosen": True} if address else {},
        behind_proxy=table.BEHIND_PROXY.read(env),
        audit_days=table.AUDIT_KEPT_DAYS.read(env),
    )


def provider_settings(env: Mapping[str, str]) -> ProviderSettings | None:
    """The OIDC provider from the environment; None if none is set. Raises UsageError for invalid settings."""
    issuer = table.OIDC_ISSUER.read(env)
    if not issuer:
        return None
    from moorage.server.identity.oidc import ProviderSettings

    chosen: dict[str, Any] = {
        "name_claim": table.OIDC_NAME_CLAIM.read(env),
        "groups_claim": table.OIDC_GROUPS_CLAIM.read(env),
        "scopes": table.OIDC_SCOPES.read(env),
        "label": table.OIDC_LABEL.read(env),
    }
    return ProviderSettings(
        issuer=issuer,
        client_id=table.OIDC_CLIENT_ID.read(env),
        client_secret=table.OIDC_CLIENT_SECRET.read(env),
        client_secret_file=table.OIDC_CLIENT_SECRET_FILE.read(env),
        **{name: value for name, value in chosen.items() if value},
    )


def certificates_of(env: Mapping[str, str]) -> Literal["own", "given"]:
    """Return the issuer of the webhook's certificate. Raises UsageError."""
    return "own" if table.CERTIFICATE.read(env) == "own" else "given"


def with_cluster(settings: LoginSettings | None, connection: Connection) -> LoginSettings:
    """Add the address and the CA of the Kubernetes API to the settings, for users' kubeconfigs."""
    import base64

    settings = settings if settings is not None else login_settings({})
    known: dict[str, object] = {"name": "moorage", "server": connection.server}
    if connection.ca_pem:
        known["caData"] = base64.b64encode(connection.ca_pem).decode()
    elif connection.insecure:
        known["insecure"] = True
    if connection.in_pod:
        known["internal"] = True
    return msgspec.structs.replace(settings, cluster=known | dict(settings.cluster))


def start(settings: Settings) -> None:
    """Run the parts of this process; after a fatal error, log it and exit with code 1."""
    os.umask(0o077)
    set_up_logging()
    gc.set_threshold(10_000, 50, 100)  # with Python's own, half of a large decode is spent in the collector
    try:
        asyncio.run(run_services(settings))
    except* MoorageError as group:
        first = group.exceptions[0]
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        _end_with(
            first.message if isinstance(first, MoorageError) else str(first), settings.name, settings.ready_fd
        )


def _end_with(message: str, name: str, ready_fd: int | None) -> NoReturn:
    log.error("stopped by an error", extra={"error": message})
    if ready_fd is not None:
        tell_parent(ready_fd, f"{name} {message}")
    sys.exit(1)


def main(parts: tuple[str, ...] = ()) -> None:
    """Run parts of a cluster that belongs to us: a local one, or one made for tests.

    `parts`: all four by default; on a local cluster, which passes sockets, admission is another process.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--fds", type=json.loads, default={})
    parser.add_argument("--ports", type=json.loads, default={})
    parser.add_argument("--kubeconfig", type=Path)
    parser.add_argument("--address", default="", help="IPv4 address of this machine where pods reach the server")
    parser.add_argument("--parts", help="parts to run; the others run elsewhere")
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--alive-fd", type=int)
    options = parser.parse_args()
    if options.parts is not None:
        parts = tuple(options.parts.split(","))
    parts = parts or tuple(part for part in PARTS if not options.fds or part not in ADMISSION)
    end_with_parent()
    try:
        _start_all(options, parts)
    except MoorageError as error:  # of the options read before `start`
        set_up_logging()
        _end_with(error.message, _name(parts), options.ready_fd)


def _start_all(options: argparse.Namespace, parts: tuple[str, ...]) -> None:
    # read the environment first: an invalid setting ends the start before a port is opened
    serves = "server" in parts
    logins = login_settings(os.environ) if serves else None
    provider = provider_settings(os.environ) if serves else None
    days = table.USAGE_KEPT_DAYS.read(os.environ)
    folder = DataFolder(options.data)
    if "api" in options.fds:
        os.close(options.fds.pop("api"))
    # sockets come from the supervisor; without one, as in tests, listen here
    sockets = {name: socket.socket(fileno=fd) for name, fd in options.fds.items()}
    with contextlib.ExitStack() as stack:
        if not sockets:
            ports = {name: options.ports.get(name, 0) for name in ("operator", "extender", "webhook", "server")}
            sockets = stack.enter_context(listening(ports))
            if options.address:
                server = socket.create_server((options.address, ports["server"]), backlog=512)
                sockets["server"] = stack.enter_context(server)
        for sock in sockets.values():
            sock.setblocking(False)
        # imported late: the supervisor's other child does not need the control plane
        from moorage.cli.embedded import embedded
        from moorage.model.schedulerconfig import derived_token

        pki = embedded().ensure_pki(folder.path / "pki")
        # of a local cluster, tokens and addresses come from its data folder
        local = options.kubeconfig is None
        tokens = folder.tokens(config.user if (config := folder.load_config()) else "")
        start(
            Settings(
                parts=parts,
                data=folder.path,
                kubeconfig=options.kubeconfig or folder.kubeconfig,
                sockets=sockets,
                address=options.address,
                tokens=tokens if local else {},
                page_token=tokens["page"],
                person=config.user if local and config else "",
                logins=logins,
                usage_days=days,
                provider=provider,
                ingress_port=config.ports.get("ingress") if local and config else None,
                certificate=pki.certificate,
                key=pki.key,
                ca_pem=pki.ca_pem.encode(),
                policy=table.PACKING_POLICY.read(os.environ),
                audit_token=derived_token(tokens["webhook"], "audit"),
                scheduler_token=derived_token(tokens["extender"]) if local else "",
                install=True,
                ready_fd=options.ready_fd,
                alive_fd=options.alive_fd,
            )
        )


if __name__ == "__main__":
    main()
