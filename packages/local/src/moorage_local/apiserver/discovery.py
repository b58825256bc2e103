"""Discovery: the server's groups, versions and resources.

https://kubernetes.io/docs/concepts/overview/kubernetes-api/#discovery-api
"""

from __future__ import annotations

import base64
import hashlib
import sys
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.kind import Kind, Kinds, Subresource
from moorage_local.apiserver.types.schema import builtin

SUFFIX = "+moorage"


def version_info() -> Obj:
    """Return the answer of `/version`: the Kubernetes version of this API, with a suffix for this server."""
    text = builtin()["kubernetes"]
    major, minor = text.removeprefix("v").split(".")[:2]
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"{text.split('+')[0]}{SUFFIX}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": f"python{sys.version_info.major}.{sys.version_info.minor}",
        "platform": "linux/amd64",
    }


def api_versions() -> Obj:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list(kinds: Kinds) -> Obj:
    groups = [_group(kinds, name) for name in _group_names(kinds)]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def group(kinds: Kinds, name: str) -> Obj | None:
    if not name or name not in kinds.groups():
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(kinds, name)}


def resource_list(kinds: Kinds, group_name: str, version: str) -> Obj | None:
    served = _of_version(kinds, group_name, version)
    if not served:
        return None
    resources: list[Obj] = []
    for kind in served:
        where = kind.resource
        entry: Obj = {
            "name": where.plural,
            "singularName": kind.singular,
            "namespaced": where.namespaced,
            "kind": where.kind,
            "verbs": list(kind.verbs),
        }
        if kind.short_names:
            entry["shortNames"] = list(kind.short_names)
        if kind.categories:
            entry["categories"] = list(kind.categories)
        if kind.custom:
            entry["storageVersionHash"] = _storage_version_hash(kind)
        resources.append(entry)
        for subresource in kind.subresources.values():
            described: Obj = {
                "name": f"{where.plural}/{subresource.name}",
                "singularName": "",
                "namespaced": where.namespaced,
                "kind": subresource.kind,
                "verbs": list(subresource.verbs),
            }
            if subresource.group is not None:
                described |= {"group": subresource.group, "version": subresource.version or ""}
            resources.append(described)
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group_name}/{version}" if group_name else version,
        "resources": resources,
    }


def _storage_version_hash(kind: Kind) -> str:
    """Eight bytes of the SHA-256 of the kind's storage version, as k8s.io/apiserver's StorageVersionHash."""
    stored = kind.rules.to_storage({"apiVersion": kind.resource.api_version})["apiVersion"]
    digest = hashlib.sha256(f"{stored}/{kind.resource.kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def aggregated(kinds: Kinds, *, core: bool) -> Obj:
    """Return the `apidiscovery.k8s.io/v2` document: all kinds in one answer."""
    items = []
    for name in [""] if core else _group_names(kinds):
        versions = []
        for version in kinds.groups().get(name, ()):
            resources = [_aggregated_resource(kind) for kind in _of_version(kinds, name, version)]
            versions.append({"version": version, "resources": resources, "freshness": "Current"})
        meta: Obj = {"name": name} if name else {}
        items.append({"metadata": meta, "versions": versions})
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }


def root_paths(kinds: Kinds) -> list[str]:
    paths = ["/api", "/api/v1", "/apis"]
    for name in _group_names(kinds):
        paths.append(f"/apis/{name}")
        paths += [f"/apis/{name}/{version}" for version in kinds.groups()[name]]
    return [*paths, "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]


def _group_names(kinds: Kinds) -> list[str]:
    return [name for name in kinds.groups() if name]


def _group(kinds: Kinds, name: str) -> Obj:
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in kinds.groups()[name]]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _of_version(kinds: Kinds, group_name: str, version: str) -> list[Kind]:
    return [kind for kind in kinds.all() if kind.resource.group == group_name and kind.resource.version == version]


def _aggregated_resource(kind: Kind) -> Obj:
    where = kind.resource
    out: dict[str, Any] = {
        "resource": where.plural,
        "responseKind": {"group": where.group, "version": where.version, "kind": where.kind},
        "scope": "Namespaced" if where.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        out["shortNames"] = list(kind.short_names)
    if kind.categories:
        out["categories"] = list(kind.categories)
    if kind.subresources:
        out["subresources"] = [
            _aggregated_subresource(kind, subresource) for subresource in kind.subresources.values()
        ]
    return out


def _aggregated_subresource(kind: Kind, subresource: Subresource) -> Obj:
    group = kind.resource.group if subresource.group is None else subresource.group
    version = kind.resource.version if subresource.version is None else subresource.version
    return {
        "subresource": subresource.name,
        "responseKind": {"group": group, "version": version, "kind": subresource.kind},
        "verbs": list(subresource.verbs),
    }
