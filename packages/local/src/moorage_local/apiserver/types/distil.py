"""Make `builtin.json` from a running kube-apiserver: types, resources and table columns of the built-in kinds.

    python -m moorage_local.apiserver.types.distil https://127.0.0.1:6443 TOKEN CA.crt > builtin.json

Run by hand when the local cluster moves to another version of Kubernetes. The file holds the real server's
OpenAPI v2, discovery and table columns, without descriptions and paths.

Types: `{name: {"f": {field: type}, "r": [required fields], "k": [[group, version, kind], ...]}}`, a type being
`s` string, `i` integer of 64 bits, `j` integer of 32, `b` boolean, `n` number, `y` base64 bytes, `q` quantity,
`t` time, `u` time with microseconds, `x` integer or string, `a` anything, `#name` another type, `["m", type]` map,
`["e", [values]]` one of some strings, `["l", type, {"key": merge key, "how": patch strategy,
"type": map|set|atomic, "keys": [...]}]` list.
A field may be `["o", type, {"how": ...}]`: an object with a patch strategy.
"""

from __future__ import annotations

import json
import ssl
import sys
import urllib.request
from typing import Any

LEFT_OUT_GROUPS = frozenset(
    {
        "apiregistration.k8s.io",  # no aggregated API servers
        "flowcontrol.apiserver.k8s.io",  # requests are not queued by priority
        "resource.k8s.io",  # no dynamic resource allocation
        "internal.apiserver.k8s.io",
        "storagemigration.k8s.io",
    }
)
LEFT_OUT_VERSIONS = frozenset({("autoscaling", "v1")})  # v2 says all that it says
LEFT_OUT = frozenset(
    {
        "componentstatuses",
        "servicecidrs",
        "ipaddresses",
        "mutatingadmissionpolicies",  # they hold CEL, which is not evaluated here: better unknown than ignored
        "mutatingadmissionpolicybindings",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    }
)
LEFT_OUT_SUBRESOURCES = frozenset(
    {"exec", "attach", "portforward", "proxy", "ephemeralcontainers", "resize"}
    | {"approval"}  # of certificates: they are not signed here
)

_SPECIAL = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "q",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "t",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": "u",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "x",
}
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def type_of(schema: dict[str, Any]) -> Any:
    """Convert a property of OpenAPI v2 to a type."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/definitions/")
        kind: Any = _SPECIAL.get(name, "#" + name)
        if how := schema.get("x-kubernetes-patch-strategy"):
            return ["o", kind, {"how": how}]
        return kind
    match schema.get("type"):
        case "array":
            more = {
                short: schema[long]
                for short, long in (
                    ("key", "x-kubernetes-patch-merge-key"),
                    ("how", "x-kubernetes-patch-strategy"),
                    ("type", "x-kubernetes-list-type"),
                    ("keys", "x-kubernetes-list-map-keys"),
                )
                if long in schema
            }
            return ["l", type_of(schema["items"]), more]
        case "object" if "additionalProperties" in schema:
            return ["m", type_of(schema["additionalProperties"])]
        case "string":
            if schema.get("format") == "byte":
                return "y"
            return ["e", schema["enum"]] if "enum" in schema else "s"
        case "integer":
            return "j" if schema.get("format") == "int32" else "i"
        case "number":
            return "n"
        case "boolean":
            return "b"
    return "a"


def types_of(definitions: dict[str, Any]) -> dict[str, Any]:
    """Convert all definitions of OpenAPI v2 to types; a definition without properties accepts any value."""
    types: dict[str, Any] = {}
    for name, definition in sorted(definitions.items()):
        if name in _SPECIAL:
            continue
        if "properties" not in definition:
            types[name] = {"any": True}
            continue
        entry: dict[str, Any] = {
            "f": {field: type_of(schema) for field, schema in definition["properties"].items()}
        }
        if definition.get("required"):
            entry["r"] = definition["required"]
        if kinds := definition.get("x-kubernetes-group-version-kind"):
            entry["k"] = [[kind["group"], kind["version"], kind["kind"]] for kind in kinds]
        types[name] = entry
    return types


def reachable(types: dict[str, Any], roots: set[str]) -> dict[str, Any]:
    """Return the types that `roots` need, with `roots`."""
    wanted, todo = set(roots), list(roots)
    while todo:
        for kind in types.get(todo.pop(), {}).get("f", {}).values():
            while isinstance(kind, list) and kind[0] in "lmo":
                kind = kind[1]
            if isinstance(kind, str) and kind.startswith("#") and kind[1:] not in wanted:
                wanted.add(kind[1:])
                todo.append(kind[1:])
    return {name: definition for name, definition in types.items() if name in wanted}


class Source:
    """The API server whose types are read."""

    def __init__(self, url: str, token: str, ca: str) -> None:
        self._url = url
        self._token = token
        self._tls = ssl.create_default_context(cafile=ca)

    def get(self, path: str, accept: str = "application/json") -> dict[str, Any]:
        request = urllib.request.Request(
            self._url + path, headers={"Authorization": f"Bearer {self._token}", "Accept": accept}
        )
        with urllib.request.urlopen(request, context=self._tls) as answer:
            document: dict[str, Any] = json.load(answer)
            return document


def distil(source: Source) -> dict[str, Any]:
    """Read it all."""
    # types, and which of them a kind is
    types = types_of(source.get("/openapi/v2")["definitions"])
    by_kind = {
        tuple(kind): name
        for name, definition in types.items()
        for kind in definition.get("k", ())
        if len(definition["k"]) == 1
    }
    # groups and versions, without alpha and beta
    versions = [("", "v1", "/api/v1")]
    for group in source.get("/apis")["groups"]:
        if group["name"] in LEFT_OUT_GROUPS:
            continue
        for served in group["versions"]:
            if (group["name"], served["version"]) in LEFT_OUT_VERSIONS:
                continue
            if "alpha" not in served["version"] and "beta" not in served["version"]:
                versions.append((group["name"], served["version"], f"/apis/{served['groupVersion']}"))
    # resources, with their subresources and columns
    resources: list[dict[str, Any]] = []
    roots: set[str] = set()
    for group, version, path in versions:
        listed = source.get(path)["resources"]
        for resource in listed:
            if "/" in resource["name"] or resource["name"] in LEFT_OUT:
                continue
            kind = (resource.get("group", group), resource.get("version", version), resource["kind"])
            entry: dict[str, Any] = {
                "group": group,
                "version": version,
                "plural": resource["name"],
                "singular": resource["singularName"],
                "kind": resource["kind"],
                "namespaced": resource["namespaced"],
                "verbs": resource["verbs"],
                "type": by_kind[kind],
            }
            for key in ("shortNames", "categories"):
                if resource.get(key):
                    entry[key] = resource[key]
            subresources = {}
            for other in listed:
                parent, _, name = other["name"].partition("/")
                if parent == resource["name"] and name and name not in LEFT_OUT_SUBRESOURCES:
                    described = {
                        key: other[key] for key in ("group", "version", "kind", "verbs") if other.get(key)
                    }
                    subresources[name] = described
                    other_kind = (other.get("group", group), other.get("version", version), other["kind"])
                    if other_kind in by_kind:
                        described["type"] = by_kind[other_kind]
                        roots.add(by_kind[other_kind])
            if subresources:
                entry["subresources"] = subresources
            if "list" in resource["verbs"]:
                columns = source.get(f"{path}/{resource['name']}?limit=1", _TABLE)["columnDefinitions"]
                entry["columns"] = [
                    {key: value for key, value in column.items() if key != "description"} for column in columns
                ]
            roots.add(entry["type"])
            resources.append(entry)
    # types that a resource needs
    roots |= {
        f"io.k8s.apimachinery.pkg.apis.meta.v1.{name}"
        for name in ("DeleteOptions", "Status", "ObjectMeta", "ListMeta")
    }
    return {
        "kubernetes": source.get("/version")["gitVersion"],
        "types": reachable(types, roots),
        "resources": resources,
    }


if __name__ == "__main__":
    json.dump(distil(Source(*sys.argv[1:4])), sys.stdout, indent=None, separators=(",", ":"), sort_keys=True)
    sys.stdout.write("\n")
