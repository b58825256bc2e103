"""Which hosts an object of a guarded namespace may name, and how it may steer the controllers that read it.

A host belongs to one namespace. Hosts of the platform are the operator's alone. Hosts at or below a tenant's
domain are that tenant's. Every other is of the namespace whose Ingress named it first. Who holds a host receives
what browsers send to it, cookies and sign-in codes included: a second namespace must get no path of it.

Annotations of ingress controllers can add hosts, insert configuration and read Secrets of other namespaces
(CVE-2021-25742, CVE-2023-5044, CVE-2025-1097, CVE-2025-1098, CVE-2025-24514). A Service can take addresses that
are another's (CVE-2020-8554), or lead an ingress controller past NetworkPolicies. Those are refused by name.

Total: never raises for an object that the API server let through.
https://kubernetes.io/docs/concepts/services-networking/ingress/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from moorage.apimachinery.meta import annotations_of
from moorage.decide.guardrails import Refusal

GATEWAY_API = "gateway.networking.k8s.io"
KINDS: Mapping[str, tuple[tuple[str, str], ...]] = {  # API group → (plural, kind) of all that names hosts
    "": (("services", "Service"),),
    "networking.k8s.io": (("ingresses", "Ingress"),),
    GATEWAY_API: (
        ("gateways", "Gateway"),
        ("listenersets", "ListenerSet"),
        ("httproutes", "HTTPRoute"),
        ("grpcroutes", "GRPCRoute"),
        ("tlsroutes", "TLSRoute"),
    ),
    "traefik.io": (("ingressroutes", "IngressRoute"), ("ingressroutetcps", "IngressRouteTCP")),
    "projectcontour.io": (("httpproxies", "HTTPProxy"),),
    "networking.istio.io": (("gateways", "Gateway"), ("virtualservices", "VirtualService")),
    "route.openshift.io": (("routes", "Route"),),
}

_LABEL = r"[a-z0-9_](?:[-a-z0-9_]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")
_ANY: frozenset[str] = frozenset({"", "*"})
_INTERNAL = ("svc", "cluster.local")  # below these are names of Services

# annotations whose values are hosts: they make DNS records and certificates
_HOST_ANNOTATIONS = (
    "external-dns.alpha.kubernetes.io/hostname",
    "external-dns.alpha.kubernetes.io/internal-hostname",
    "cert-manager.io/common-name",
    "cert-manager.io/alt-names",
)
# addresses that a load balancer gives to whoever asks for them
_ADDRESS_ANNOTATION = re.compile(
    r"load-?balancer-?ips?$|allow-shared-ip$|static-ip-name$|lb-ipam-(?:ips|sharing-key)", re.IGNORECASE
)

CLASS_ANNOTATION = "kubernetes.io/ingress.class"
_NGINX = "nginx.ingress.kubernetes.io/"
# values are no text of a configuration; the second is where GKE's controller reports what it made
_AS_JSON = ("alb.ingress.kubernetes.io", "ingress.kubernetes.io")
_CONTROLLERS = (  # annotations of these groups, and of groups below them, are read by ingress controllers
    "ingress.kubernetes.io", "nginx.org", "nginx.com", "haproxy.org", "haproxy-ingress.github.io", "konghq.com",
    "getambassador.io", "projectcontour.io", "traefik.io", "voyager.appscode.com", "gateway.envoyproxy.io",
)  # fmt: skip
# of ingress-nginx: what concerns one's own requests alone, by the documentation of 1.12. All others are refused,
# since one that inserts text into the configuration of all tenants comes to light every year.
# https://kubernetes.github.io/ingress-nginx/user-guide/nginx-configuration/annotations/
_OF_NGINX = frozenset(
    """
    affinity affinity-mode affinity-canary-behavior backend-protocol canary canary-by-cookie canary-by-header
    canary-by-header-value canary-weight canary-weight-total client-body-buffer-size connection-proxy-header
    cors-allow-credentials cors-allow-headers cors-allow-methods cors-allow-origin cors-expose-headers cors-max-age
    custom-http-errors denylist-source-range enable-access-log enable-cors force-ssl-redirect http2-push-preload
    limit-burst-multiplier limit-connections limit-rate limit-rate-after limit-rpm limit-rps limit-whitelist
    load-balance preserve-trailing-slash proxy-body-size proxy-buffer-size proxy-buffering proxy-buffers-number
    proxy-busy-buffers-size proxy-connect-timeout proxy-http-version proxy-max-temp-file-size proxy-next-upstream
    proxy-next-upstream-timeout proxy-next-upstream-tries proxy-read-timeout proxy-request-buffering
    proxy-send-timeout rewrite-target service-upstream session-cookie-change-on-failure session-cookie-expires
    session-cookie-max-age session-cookie-name session-cookie-samesite session-cookie-secure ssl-redirect use-regex
    websocket-services whitelist-source-range
    """.split()  # noqa: SIM905  (a column of names is easier to compare with the documentation)
)
# of other controllers: insert text, add hosts, lead elsewhere, read Secrets, share a load balancer's rules
_STEERING = re.compile(
    r"snippet|template|config|custom|alias|host|auth|redirect|mirror|middleware|plugin|secret|modsecurity|lua"
    r"|conditions\.|actions\.|group\.|router\.(?:rule|priority)|path-match",
    re.IGNORECASE,
)
_PLAIN_REDIRECTS = frozenset({"ssl-redirect", "force-ssl-redirect", "http-redirect"})  # to https, of the same host
_INSERTS = re.compile(r"[\x00-\x1f\x7f{};#'\"`\\]")  # what ends a value in a controller's configuration
_INSERTS_IN_PATH = re.compile(r"[\x00-\x20\x7f{};#'\"`]")  # regular expressions of paths may hold a backslash

_TRAEFIK_HOST = re.compile(r"\b(?:Host|HostSNI)\(([^()]*)\)", re.IGNORECASE)
_TRAEFIK_TEXT = re.compile(r"`([^`]*)`|\"([^\"]*)\"")


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """A host that an Ingress names; in order of age, and of name where two are of one second."""

    created: str  # RFC 3339
    namespace: str
    name: str
    host: str


def claims_of(ingress: Mapping[str, Any]) -> list[Claim]:
    """The hosts of an Ingress's rules, as they count for others; rules without a host claim none."""
    meta = ingress["metadata"]
    rules = (ingress.get("spec") or {}).get("rules") or ()
    hosts = sorted({clean(str(rule.get("host") or "")) for rule in rules} - _ANY)
    created, namespace = str(meta.get("creationTimestamp") or ""), str(meta.get("namespace") or "")
    return [Claim(created, namespace, str(meta.get("name") or ""), host) for host in hosts]


def reserved_hosts(domain: str, *urls: str) -> tuple[str, ...]:
    """Hosts at or below which only the operator makes rules: workspaces' domain, the platform's own addresses."""
    found = [clean(domain)]
    for url in urls:
        try:
            found.append(clean(urlsplit(url).hostname or ""))
        except ValueError:  # an address that cannot be one
            continue
    return tuple(dict.fromkeys(one for one in found if one))


def judge_hosts(
    kind: str,
    obj: Mapping[str, Any],
    *,
    namespace: str,
    tenant: Mapping[str, Any] | None,
    tenants: Iterable[Mapping[str, Any]] = (),
    reserved: Iterable[str] = (),
    taken: Iterable[Claim] = (),
) -> tuple[Refusal, ...]:
    """All that must not stand in an object of a guarded namespace that names hosts; `kind` is one of KINDS.

    `reserved`: see `reserved_hosts`. `taken`: what Ingresses claim, this one's own older self among them or not.
    """
    mine, platform = domain_of(tenant), tuple(reserved)
    name = _name(tenant)
    others = {domain_of(one): _name(one) for one in tenants if _name(one) != name and domain_of(one)}
    elsewhere = [one for one in taken if one.namespace != namespace]
    found: list[Refusal] = []
    for where, host in hosts_of(kind, obj):
        told = _judge_host(host, mine=mine, others=others, reserved=platform, taken=elsewhere)
        if told:
            found.append(Refusal(where, repr(host), told))
    if kind == "Ingress":
        found += _judge_class(obj, tenant)
        found += _judge_paths(obj)
    if kind == "Service":
        found += _judge_service(obj)
    found += _judge_annotations(obj)
    if kind in ("IngressRoute", "IngressRouteTCP"):
        found += _judge_matches(obj)
    return tuple(found)


def _judge_host(
    host: str,
    *,
    mine: str,
    others: Mapping[str, str],
    reserved: tuple[str, ...],
    taken: Iterable[Claim],
) -> str:
    """Why this host may not be named; empty when it may."""
    plain = clean(host)
    if plain in _ANY:
        if mine:
            return f"must be {mine} or below it"
        return "must name a host: without one it takes other teams' too" if others or reserved else ""
    if not _HOST.fullmatch(plain):
        return "must be a host name of a-z, 0-9, '-' and '.', or '*.' and one; write other letters as xn--…"
    for one in reserved:
        if _touches(plain, one):
            return f"is the platform's: hosts at, below and around {one} are set by Moorage alone"
    if any(is_below(plain, one) for one in _INTERNAL):
        return "is a name inside the cluster"
    covered = next((one for one in others if plain.startswith("*.") and is_below(one, plain[2:])), "")
    owner = _longest(plain, others) or (covered if covered != mine else "")
    own = bool(mine) and is_below(plain, mine)
    if owner and not (own and len(mine) > len(owner)):
        return f"is a host of tenant {others[owner]}"
    if mine and not own:
        return f"must be {mine} or below it"
    held = sorted(one for one in taken if (one.host == plain if own else overlap(one.host, plain)))
    return f"is taken: Ingress {held[0].namespace}/{held[0].name} names {held[0].host}" if held else ""


# --- hosts


def clean(host: str) -> str:
    """A host as it is compared: lower case, without blanks around it and dots behind it."""
    return host.strip().lower().rstrip(".")


def is_below(host: str, domain: str) -> bool:
    """Whether a host is the domain or below it; `*.example.org` is below example.org."""
    bare = clean(host)
    return bare == domain or bare.endswith(f".{domain}")


def overlap(one: str, other: str) -> bool:
    """Whether some request could be for both. A wildcard stands for one label or more: some controllers say so."""
    if one in _ANY or other in _ANY:
        return True
    bare, other_bare = one.removeprefix("*."), other.removeprefix("*.")
    if bare == other_bare:
        return (one == bare) == (other == other_bare)
    if other_bare.endswith(f".{bare}"):
        return one != bare
    return bare.endswith(f".{other_bare}") and other != other_bare


def _touches(host: str, reserved: str) -> bool:
    """Whether a host is a reserved one, below it, or a wildcard that covers it."""
    bare = host.removeprefix("*.")
    return is_below(host, reserved) or bare == reserved or (host != bare and is_below(reserved, bare))


def hosts_of(kind: str, obj: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every host an object names, with its field path; empty or `*`: all hosts."""
    spec = _mapping(obj.get("spec"))
    match kind:
        case "Ingress":
            for at, rule in enumerate(_list(spec.get("rules"))):
                yield f"spec.rules[{at}].host", str(_mapping(rule).get("host") or "")
            for at, tls in enumerate(_list(spec.get("tls"))):
                yield from _texts(f"spec.tls[{at}].hosts", _mapping(tls).get("hosts"))
            if spec.get("defaultBackend"):
                yield "spec.defaultBackend", ""
        case "HTTPRoute" | "GRPCRoute" | "TLSRoute":
            yield from _texts("spec.hostnames", spec.get("hostnames") or [""])
        case "Gateway" | "ListenerSet":
            for at, listener in enumerate(_list(spec.get("listeners"))):
                yield f"spec.listeners[{at}].hostname", str(_mapping(listener).get("hostname") or "")
            for at, server in enumerate(_list(spec.get("servers"))):  # of Istio: namespace/host
                for where, host in _texts(f"spec.servers[{at}].hosts", _mapping(server).get("hosts") or [""]):
                    yield where, host.rpartition("/")[2]
        case "VirtualService":
            yield from _texts("spec.hosts", spec.get("hosts") or [""])
        case "HTTPProxy":
            if (virtual := spec.get("virtualhost")) is not None:
                yield "spec.virtualhost.fqdn", str(_mapping(virtual).get("fqdn") or "")
        case "Route":  # without a host it gets one that OpenShift makes of its name and namespace
            for where in ("host", "subdomain"):
                if host := str(spec.get(where) or ""):
                    is_wildcard = where == "host" and spec.get("wildcardPolicy") == "Subdomain"
                    yield f"spec.{where}", "*." + host.partition(".")[2] if is_wildcard else host
        case "IngressRoute" | "IngressRouteTCP":
            for at, route in enumerate(_list(spec.get("routes"))):
                named = _TRAEFIK_HOST.findall(str(_mapping(route).get("match") or ""))
                texts = [first or second for text in named for first, second in _TRAEFIK_TEXT.findall(text)]
                yield from ((f"spec.routes[{at}].match", host) for host in texts or [""])
            for at, domain in enumerate(_list(_mapping(spec.get("tls")).get("domains"))):
                yield f"spec.tls.domains[{at}].main", str(_mapping(domain).get("main") or "")
                yield from _texts(f"spec.tls.domains[{at}].sans", _mapping(domain).get("sans"))
    for key in _HOST_ANNOTATIONS:
        for host in str(annotations_of(obj).get(key) or "").split(","):
            if host.strip():
                yield f"metadata.annotations[{key}]", host.strip()


def _texts(where: str, values: Any) -> Iterator[tuple[str, str]]:
    for at, value in enumerate(_list(values)):
        yield f"{where}[{at}]", str(value)


# --- what steers controllers


def _judge_class(ingress: Mapping[str, Any], tenant: Mapping[str, Any] | None) -> Iterator[Refusal]:
    wanted = _mapping(_mapping(_mapping(tenant).get("spec")).get("ingress")).get("className")
    if not wanted:
        return
    chosen = _mapping(ingress.get("spec")).get("ingressClassName")
    if chosen != wanted:
        yield Refusal("spec.ingressClassName", repr(chosen), f"must be {wanted}")
    noted = annotations_of(ingress).get(CLASS_ANNOTATION)
    if noted is not None and noted != wanted:  # some controllers read it first
        yield Refusal(f"metadata.annotations[{CLASS_ANNOTATION}]", repr(noted), f"must be {wanted}")


def _judge_paths(ingress: Mapping[str, Any]) -> Iterator[Refusal]:
    for at, rule in enumerate(_list(_mapping(ingress.get("spec")).get("rules"))):
        for number, path in enumerate(_list(_mapping(_mapping(rule).get("http")).get("paths"))):
            text = str(_mapping(path).get("path") or "")
            if _INSERTS_IN_PATH.search(text):
                told = "must hold no blanks, quotes, braces, '#' and ';': it is written into a configuration"
                yield Refusal(f"spec.rules[{at}].http.paths[{number}].path", repr(text), told)


def _judge_service(service: Mapping[str, Any]) -> Iterator[Refusal]:
    spec = _mapping(service.get("spec"))
    if spec.get("externalIPs"):
        told = "must not be set: whoever names an address gets what the cluster sends to it (CVE-2020-8554)"
        yield Refusal("spec.externalIPs", repr(spec["externalIPs"]), told)
    if spec.get("loadBalancerIP"):
        told = "must not be set: the address may be another team's; leave the choice to the load balancer"
        yield Refusal("spec.loadBalancerIP", repr(spec["loadBalancerIP"]), told)
    if spec.get("type") == "ExternalName":
        told = (
            "must not be ExternalName: an ingress controller follows it past NetworkPolicies; use the name itself"
        )
        yield Refusal("spec.type", repr(spec.get("externalName")), told)


def _judge_annotations(obj: Mapping[str, Any]) -> Iterator[Refusal]:
    for key, value in annotations_of(obj).items():
        group, _, name = key.rpartition("/")
        where = f"metadata.annotations[{key}]"
        if group == "lbipam.cilium.io" or (group and _ADDRESS_ANNOTATION.search(name)):
            yield Refusal(where, repr(value), "must not be set: the address may be another team's")
            continue
        if not any(group == one or group.endswith(f".{one}") for one in _CONTROLLERS):
            continue
        if key.startswith(_NGINX):
            refused = name not in _OF_NGINX
        else:
            refused = name not in _PLAIN_REDIRECTS and _STEERING.search(name) is not None
        if refused:
            told = "must not be set in a guarded namespace: it can reach other teams' hosts, Secrets or requests"
            yield Refusal(where, repr(value), told)
        elif group not in _AS_JSON and _INSERTS.search(str(value)):
            told = "must hold no quotes, braces, '#', ';' and line ends: it is written into a configuration"
            yield Refusal(where, repr(value), told)


def _judge_matches(route: Mapping[str, Any]) -> Iterator[Refusal]:
    """Traefik's rules are expressions: only plain ones can be judged."""
    for at, one in enumerate(_list(_mapping(route.get("spec")).get("routes"))):
        text = str(_mapping(one).get("match") or "")
        if re.search(r"regexp|\|\||!", text, re.IGNORECASE):
            told = "must be joined by && alone, without regular expressions and '!', so that its hosts can be told"
            yield Refusal(f"spec.routes[{at}].match", repr(text), told)


# --- reading


def domain_of(tenant: Mapping[str, Any] | None) -> str:
    """At or below what a tenant's hosts must be; empty: nothing is said."""
    ingress = _mapping(_mapping(_mapping(tenant).get("spec")).get("ingress"))
    return clean(str(ingress.get("domain") or ""))


def _longest(host: str, domains: Iterable[str]) -> str:
    return max((one for one in domains if is_below(host, one)), key=len, default="")


def _name(tenant: Mapping[str, Any] | None) -> str:
    return str(tenant["metadata"]["name"]) if tenant is not None else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
