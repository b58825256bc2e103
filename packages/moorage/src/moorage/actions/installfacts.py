"""The facts that `moor doctor install` checks, read from the cluster and the network. All writes are dry runs."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Mapping
from datetime import datetime
from typing import Protocol, TypeVar
from urllib.parse import quote

from msgspec import Struct

from moorage.actions.siteprobe import look_at_site, resolve
from moorage.decide.installcheck.facts import (
    DAEMONSETS,
    NEEDED_RIGHTS,
    NOT_ASKED,
    Facts,
    Probe,
    Reading,
    Site,
    Unread,
)
from moorage.features import feature_crds
from moorage.model.info import parse_info
from moorage.model.machine import MACHINES
from moorage.model.manifests import EXTENDER, PART_OF, SERVER, Service
from moorage.model.names import INFO_CONFIGMAP, MACHINE_GROUP_LABEL, SYSTEM_NAMESPACE
from moorage.model.proofs import SIGNING_REQUESTS
from moorage.model.workspace import parse_platform
from moorage_kube.access import EVERYTHING, Right, may
from moorage_kube.api import Api
from moorage_kube.clock import Clock
from moorage_kube.documents import parse_json
from moorage_kube.errors import ApiError, MoorageError, NotFound
from moorage_kube.meta import labels_of
from moorage_kube.resources import (
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    INGRESSCLASSES,
    LEASES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    NODES,
    PODS,
    PRIORITYCLASSES,
    PVCS,
    SECRETS,
    STORAGECLASSES,
    VALIDATING_WEBHOOKS,
    Obj,
    Resource,
)

T = TypeVar("T")

NODE_LEASES = "kube-node-lease"
KUBELETS_ASKED = 20  # nodes whose kubelet is asked for its configuration
METADATA_ONLY = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
DENIED = "denied the request"  # how an API server says that a webhook refused
OURS = f"app.kubernetes.io/part-of={PART_OF['app.kubernetes.io/part-of']}"


class InstallApi(Api, Protocol):
    """The verbs, and an API server's version and date: `KubeClient` has them."""

    async def raw(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, accept: str = "application/json"
    ) -> bytes: ...

    async def version(self) -> Obj: ...

    async def date(self) -> datetime: ...


class _Wide(Struct, frozen=True, kw_only=True):
    """Objects of the whole cluster, read whether or not Moorage is installed."""

    nodes: Reading[tuple[Obj, ...]]
    pods: Reading[tuple[Obj, ...]]
    info: Reading[Mapping[str, str] | None]


async def read_facts(
    api: InstallApi,
    *,
    clock: Clock,
    cli_version: str,
    probe: Probe | None = None,
    authorities: Mapping[str, str] | None = None,
) -> Facts:
    """Read everything at once; a value that cannot be read is Unread, with the reason.

    `authorities`: address of a server → the authority of its certificate, as PEM, that a login trusts.
    """
    began = clock.now()
    # between two readings of our clock, so that its offset can be computed
    server_date = await _try(api.date())
    now = clock.now()
    # later checks depend on these
    nodes, pods, info = await asyncio.gather(_list(api, NODES), _list(api, PODS), _info(api))
    wide = _Wide(nodes=nodes, pods=pods, info=info)
    # objects of the cluster, and of an installation if there is one
    leases, storage, priorities, ingress, daemonsets, crds, requests, deployments, claims = await asyncio.gather(
        _list(api, LEASES, NODE_LEASES),
        *(
            _list(api, resource)
            for resource in (
                STORAGECLASSES, PRIORITYCLASSES, INGRESSCLASSES, DAEMONSETS, CRDS, SIGNING_REQUESTS,
            )
        ),
        _list(api, DEPLOYMENTS, SYSTEM_NAMESPACE, labels=OURS),
        _list(api, PVCS, SYSTEM_NAMESPACE),
    )  # fmt: skip
    # properties of the API server, the platform and its services
    kubernetes, rights, namespace = await asyncio.gather(_version(api), _rights(api), _namespace(api))
    names, webhooks, public = await asyncio.gather(
        _secret_names(api), _webhooks(api), _public(wide, authorities or {})
    )
    kubelets, refusal, server = await asyncio.gather(_kubelets(api, wide), _refusal(api, wide), _server(api, wide))
    extenders, (host, addresses) = await asyncio.gather(_extenders(api, wide), _workspaces(wide))
    return Facts(
        now=now, round_trip=now - began, cli_version=cli_version, server_date=server_date, kubernetes=kubernetes,
        rights=rights, nodes=nodes, pods=pods, leases=leases, storage_classes=storage, priority_classes=priorities,
        ingress_classes=ingress, daemonsets=daemonsets, crds=crds, added_crds=tuple(feature_crds()),
        signing_requests=requests, kubelets=kubelets,
        namespace=namespace, info=info, deployments=deployments, claims=claims, secrets=names, webhooks=webhooks,
        webhook_refusal=refusal, server=server, extenders=extenders, public=public, workspace_host=host,
        workspace_addresses=addresses, probe=probe,
    )  # fmt: skip


async def _try(asking: Awaitable[T]) -> Reading[T]:
    try:
        return await asking
    except MoorageError as error:
        return Unread(error.message)


async def _list(
    api: Api, resource: Resource, namespace: str | None = None, *, labels: str | None = None
) -> Reading[tuple[Obj, ...]]:
    try:
        listed = await api.list(resource, namespace, label_selector=labels)
    except NotFound:
        return ()  # the API server does not serve this kind: there are none
    except ApiError as error:
        return Unread(error.message)
    return tuple(listed.items)


async def _version(api: InstallApi) -> Reading[str]:
    answer = await _try(api.version())
    return answer if isinstance(answer, Unread) else str(answer.get("gitVersion") or "")


async def _rights(api: Api) -> Reading[Mapping[Right, bool]]:
    """The caller's rights: the right to do everything, or each needed right one by one."""
    if (everything := await _try(may(api, EVERYTHING))) is True or isinstance(everything, Unread):
        return everything if isinstance(everything, Unread) else {EVERYTHING: True}
    answers = await _try(asyncio.gather(*(may(api, right) for right in NEEDED_RIGHTS)))
    return answers if isinstance(answers, Unread) else dict(zip(NEEDED_RIGHTS, answers, strict=True))


async def _info(api: Api) -> Reading[Mapping[str, str] | None]:
    try:
        info = await api.get(CONFIGMAPS, INFO_CONFIGMAP, SYSTEM_NAMESPACE)
    except NotFound:
        return None
    except ApiError as error:
        return Unread(error.message)
    data: Mapping[str, str] = info.get("data") or {}
    return data


async def _namespace(api: Api) -> Reading[Obj | None]:
    try:
        return await api.get(NAMESPACES, SYSTEM_NAMESPACE)
    except NotFound:
        return None
    except ApiError as error:
        return Unread(error.message)


async def _secret_names(api: InstallApi) -> Reading[frozenset[str]]:
    """The names of Secrets; the API server does not send their contents."""
    path = SECRETS.path(namespace=SYSTEM_NAMESPACE)
    answer = await _try(api.raw("GET", path, accept=METADATA_ONLY))
    if isinstance(answer, Unread):
        return answer
    document = parse_json(answer)
    return frozenset(str(item["metadata"]["name"]) for item in document.get("items") or ())


async def _webhooks(api: Api) -> Reading[tuple[Obj, ...]]:
    mutating, validating = await asyncio.gather(_list(api, MUTATING_WEBHOOKS), _list(api, VALIDATING_WEBHOOKS))
    if isinstance(mutating, Unread):
        return mutating
    if isinstance(validating, Unread):
        return validating
    return tuple(obj for obj in (*mutating, *validating) if obj["metadata"]["name"].startswith("moorage"))


async def _kubelets(api: InstallApi, wide: _Wide) -> Mapping[str, Reading[Obj]]:
    """https://kubernetes.io/docs/tasks/administer-cluster/kubelet-config-file/#viewing-the-kubelet-configuration"""
    if isinstance(wide.nodes, Unread):
        return {}
    names = sorted(str(node["metadata"]["name"]) for node in wide.nodes)[:KUBELETS_ASKED]
    answers = await asyncio.gather(*(_try(_configuration(api, name)) for name in names))
    return dict(zip(names, answers, strict=True))


async def _configuration(api: InstallApi, node: str) -> Obj:
    document: Obj = parse_json(await api.raw("GET", NODES.path(name=node, subresource="proxy/configz")))
    return document


async def _refusal(api: Api, wide: _Wide) -> Reading[str]:
    """The webhook's answer to a Machine of a group that is no valid host name; empty if it was accepted."""
    if not isinstance(wide.info, Mapping):
        return NOT_ASKED
    machine = {
        "apiVersion": MACHINES.api_version,
        "kind": MACHINES.kind,
        "metadata": {
            "name": f"moorage-doctor-{secrets.token_hex(4)}",
            "labels": {MACHINE_GROUP_LABEL: "Not.A.Group"},  # a label to Kubernetes, no group to the webhook
        },
        "spec": {"machineTypes": [], "nodePool": []},
    }
    try:
        await api.create(MACHINES, machine, dry_run=True)
    except ApiError as error:
        return error.message if DENIED in error.message else Unread(error.message)
    return ""


async def _server(api: InstallApi, wide: _Wide) -> Reading[str]:
    """Ask each replica of the server through the API server.

    On a local cluster, ask the process at its address.
    """
    url = wide.info.get("serverUrl") if isinstance(wide.info, Mapping) else None
    pods = _pods_of(wide, SERVER)
    if url is None or isinstance(pods, Unread):
        return NOT_ASKED if url is None else Unread("its pods cannot be listed")
    if not pods and ".svc" not in url:
        site = await look_at_site(url, "/readyz")
        return Unread(site.error or f"{url}/readyz answers {site.status}") if site.status != 200 else "ok"
    if not pods:
        return Unread("it has no pod")
    answers = await asyncio.gather(*(_try(_ask_pod(api, pod, SERVER, "readyz")) for pod in pods))
    text = next((answer for answer in answers if isinstance(answer, str)), None)
    return text if text is not None else answers[0]


async def _extenders(api: InstallApi, wide: _Wide) -> Reading[tuple[str, ...]]:
    if not isinstance(wide.info, Mapping):
        return NOT_ASKED
    pods = _pods_of(wide, EXTENDER)
    if isinstance(pods, Unread) or not pods:
        return pods if isinstance(pods, Unread) else Unread("it has no pod")
    answers = await asyncio.gather(*(_try(_ask_pod(api, pod, EXTENDER, "asked")) for pod in pods))
    texts = tuple(answer for answer in answers if isinstance(answer, str))
    return texts or next(answer for answer in answers if isinstance(answer, Unread))


def _pods_of(wide: _Wide, service: Service) -> Reading[tuple[Obj, ...]]:
    if isinstance(wide.pods, Unread):
        return wide.pods
    return tuple(
        pod
        for pod in wide.pods
        if pod["metadata"].get("namespace") == SYSTEM_NAMESPACE
        and labels_of(pod).get("app.kubernetes.io/name") == service.full_name
        and (pod.get("status") or {}).get("phase") == "Running"
    )


async def _ask_pod(api: InstallApi, pod: Obj, service: Service, path: str) -> str:
    scheme = "https:" if service.https else ""
    name = f"{scheme}{quote(pod['metadata']['name'], safe='')}:{service.port}"
    url = PODS.path(namespace=SYSTEM_NAMESPACE, name="NAME", subresource=f"proxy/{path}").replace("NAME", name)
    return (await api.raw("GET", url, accept="*/*")).decode("utf-8", "replace")


async def _public(wide: _Wide, authorities: Mapping[str, str]) -> Site | None:
    """Check the first address of publicUrl, which users open."""
    url = parse_info(wide.info).public_url if isinstance(wide.info, Mapping) else ""
    return await look_at_site(url, "/healthz", ca=authorities.get(url, "")) if url else None


async def _workspaces(wide: _Wide) -> tuple[str, Reading[tuple[str, ...]]]:
    if not isinstance(wide.info, Mapping):
        return "", NOT_ASKED
    try:
        domain = parse_platform(wide.info).domain
    except MoorageError:
        return "", NOT_ASKED  # another check reports the fault of the domain
    if not domain:
        return "", NOT_ASKED
    host = f"moorage-doctor-{secrets.token_hex(4)}.{domain}"
    return host, await resolve(host)
