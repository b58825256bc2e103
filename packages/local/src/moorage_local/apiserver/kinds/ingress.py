"""Ingresses and IngressClasses, with the error messages of the real server.

https://github.com/kubernetes/kubernetes/blob/master/pkg/apis/networking/validation/validation.go
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import NONE, created, spec_of, status_of, with_more
from moorage_local.apiserver.kinds.kind import Rules, spec_changed
from moorage_local.apiserver.types.fields import FieldErrors
from moorage_local.apiserver.types.metadata import NAME_MAX, name_problems

CLASS_ANNOTATION = "kubernetes.io/ingress.class"
SEQUENCES = ("//", "/./", "/../", "%2f", "%2F")
SUFFIXES = ("/..", "/.")
PORT_NAME_MAX = 15
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_WILDCARD = re.compile(r"\*\." + _SUBDOMAIN)
_WILDCARD_RULE = (
    "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of"
    " lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com',"
    rf" regex used for validation is '\*\.{_SUBDOMAIN}')"
)


def _default(obj: Obj) -> None:
    obj.setdefault("status", {}).setdefault("loadBalancer", {})


def _validate(obj: Obj, errors: FieldErrors) -> None:
    """Check an Ingress when it is created and when it is updated."""
    spec = obj.get("spec") or {}
    rules, default = spec.get("rules") or [], spec.get("defaultBackend")
    if not rules and default is None:
        errors.invalid("spec", spec.get("rules"), "either `defaultBackend` or `rules` must be specified")
    if default is not None:
        _check_backend(default, "spec.defaultBackend", errors)
    for at, rule in enumerate(rules):
        _check_host(rule.get("host") or "", f"spec.rules[{at}].host", errors)
        http = rule.get("http")
        if http is None:
            continue
        where = f"spec.rules[{at}].http.paths"
        if not http.get("paths"):
            errors.required(where)
        for number, path in enumerate(http.get("paths") or ()):
            _check_path(path, f"{where}[{number}]", errors)
    for at, tls in enumerate(spec.get("tls") or ()):
        for number, host in enumerate(tls.get("hosts") or ()):
            _check_name(host, f"spec.tls[{at}].hosts[{number}]", errors)
        if tls.get("secretName"):
            for problem in name_problems(tls["secretName"], "subdomain"):
                errors.invalid(f"spec.tls[{at}].secretName", tls["secretName"], problem)
    if spec.get("ingressClassName") is not None:
        for problem in name_problems(spec["ingressClassName"], "subdomain"):
            errors.invalid("spec.ingressClassName", spec["ingressClassName"], problem)


def _validate_create(obj: Obj, errors: FieldErrors) -> None:
    """On create alone."""
    noted = (obj["metadata"].get("annotations") or {}).get(CLASS_ANNOTATION)
    named = (obj.get("spec") or {}).get("ingressClassName")
    if noted is not None and named is not None and noted != named:
        text = "must match `ingressClassName` when both are specified"
        errors.invalid(f"annotations.{CLASS_ANNOTATION}", noted, text)


def _check_host(host: str, where: str, errors: FieldErrors) -> None:
    if not host:
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        errors.invalid(where, host, "must be a DNS name, not an IP address")
    _check_name(host, where, errors)


def _check_name(host: str, where: str, errors: FieldErrors) -> None:
    if "*" not in host:
        for problem in name_problems(host, "subdomain"):
            errors.invalid(where, host, problem)
        return
    if len(host) > NAME_MAX:
        errors.invalid(where, host, f"must be no more than {NAME_MAX} bytes")
    if not _WILDCARD.fullmatch(host):
        errors.invalid(where, host, _WILDCARD_RULE)


def _check_path(path: Mapping[str, Any], where: str, errors: FieldErrors) -> None:
    kind, text = path.get("pathType"), path.get("path") or ""
    if kind is None:
        errors.required(f"{where}.pathType", "pathType must be specified")
        return
    if kind in ("Exact", "Prefix"):
        if not text.startswith("/"):
            errors.invalid(f"{where}.path", text, "must be an absolute path")
        for part in SEQUENCES:
            if part in text:
                errors.invalid(f"{where}.path", text, f"must not contain '{part}'")
        for part in SUFFIXES:
            if text.endswith(part):
                errors.invalid(f"{where}.path", text, f"cannot end with '{part}'")
    elif kind == "ImplementationSpecific" and text and not text.startswith("/"):
        errors.invalid(f"{where}.path", text, "must be an absolute path")
    _check_backend(path.get("backend") or {}, f"{where}.backend", errors)


def _check_backend(backend: Mapping[str, Any], where: str, errors: FieldErrors) -> None:
    service, other = backend.get("service"), backend.get("resource")
    if service is not None and other is not None:
        errors.invalid(where, "", "cannot set both resource and service backends")
        return
    if service is None:
        if other is None:
            errors.invalid(where, "", "resource or service backend is required")
        return
    if not service.get("name"):
        errors.required(f"{where}.service.name")
    else:
        for problem in name_problems(service["name"], "label"):
            errors.invalid(f"{where}.service.name", service["name"], problem)
    port = service.get("port") or {}
    name, number = port.get("name") or "", port.get("number") or 0
    if name and number:
        errors.invalid(where, "", "cannot set both port name & port number")
    elif name:
        for problem in _port_name_problems(name):
            errors.invalid(f"{where}.service.port.name", name, problem)
    elif number:
        if not 0 < number < 1 << 16:
            errors.invalid(f"{where}.service.port.number", number, "must be between 1 and 65535, inclusive")
    else:
        errors.required(where, "port name or number is required")


def _port_name_problems(name: str) -> list[str]:
    out = []
    if len(name) > PORT_NAME_MAX:
        out.append(f"must be no more than {PORT_NAME_MAX} bytes")
    if not re.fullmatch(r"[-a-z0-9]+", name):
        out.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search(r"[a-z]", name):
        out.append("must contain at least one letter (a-z)")
    if "--" in name:
        out.append("must not contain consecutive hyphens")
    if name.startswith("-") or name.endswith("-"):
        out.append("must not begin or end with a hyphen")
    return out


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec = spec_of(obj)
    hosts = [rule["host"] for rule in spec.get("rules") or () if rule.get("host")]
    addresses = [
        point.get("ip") or point.get("hostname") or ""
        for point in (status_of(obj).get("loadBalancer") or {}).get("ingress") or ()
    ]
    return (
        obj["metadata"]["name"],
        spec.get("ingressClassName", NONE),
        with_more(hosts, "*"),
        ",".join(addresses),
        "80, 443" if spec.get("tls") else "80",
        created(obj, now),
    )


def _class_cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec = spec_of(obj)
    wanted = spec.get("parameters")
    parameters = NONE
    if wanted:
        group = f".{wanted['apiGroup']}" if wanted.get("apiGroup") else ""
        parameters = f"{wanted.get('kind', '')}{group}/{wanted.get('name', '')}"
    notes = obj["metadata"].get("annotations") or {}
    default = notes.get("ingressclass.kubernetes.io/is-default-class") == "true"
    name = obj["metadata"]["name"] + (" (default)" if default else "")
    return name, spec.get("controller", ""), parameters, created(obj, now)


RULES = {
    ("networking.k8s.io", "ingresses"): Rules(
        default=_default,
        validate=_validate,
        validate_create=_validate_create,
        generation=spec_changed,
        cells=_cells,
    ),
    ("networking.k8s.io", "ingressclasses"): Rules(generation=spec_changed, cells=_class_cells),
}
