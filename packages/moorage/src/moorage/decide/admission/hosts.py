"""The hosts that an object of a guarded namespace may name, and the ways it may steer ingress controllers.

Hosts of the platform belong to the operator only. Hosts at or below a tenant's domain belong to that tenant. Any
other host belongs to the namespace of the first Ingress that named it. Hosts of other kinds are compared with
these, and not recorded. The owner of a host receives the requests of browsers for it, cookies and sign-in codes
included: a second namespace must not get any path of it. Wildcards are for tenants with a domain, or one tenant
could take all of `*.com`.

Annotations of ingress controllers can add hosts, insert configuration and read Secrets of other namespaces
(CVE-2021-25742, CVE-2023-5044, CVE-2025-1097, CVE-2025-1098, CVE-2025-24514). A Service can take addresses of
others (CVE-2020-8554), or lead an ingress controller past NetworkPolicies. Those are refused by name.

Total: never raises for an object that the API server accepted.
https://kubernetes.io/docs/concepts/services-networking/ingress/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from moorage.decide.admission.fields import mapping, sequence
from moorage.decide.admission.review import Refusal
from moorage.decide.admission.traefik import hosts_of_rule
from moorage_kube.meta import annotations_of
from moorage_kube.resources import INGRESSES, Obj

GATEWAY_API = "gateway.networking.k8s.io"
_OF_TRAEFIK = (("ingressroutes", "IngressRoute"), ("ingressroutetcps", "IngressRouteTCP"))
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
    "gateway.networking.x-k8s.io": (("xlistenersets", "XListenerSet"),),
    "traefik.io": _OF_TRAEFIK,
    "traefik.containo.us": _OF_TRAEFIK,  # the group of version 2
    "projectcontour.io": (("httpproxies", "HTTPProxy"),),
    "networking.istio.io": (
        ("gateways", "Gateway"),
        ("virtualservices", "VirtualService"),
        ("serviceentries", "ServiceEntry"),
    ),
    "route.openshift.io": (("routes", "Route"),),
    "k8s.nginx.org": (
        ("virtualservers", "VirtualServer"),
        ("virtualserverroutes", "VirtualServerRoute"),
        ("transportservers", "TransportServer"),
    ),
    "getambassador.io": (("mappings", "Mapping"), ("tcpmappings", "TCPMapping"), ("hosts", "Host")),
    "configuration.konghq.com": (("tcpingresses", "TCPIngress"),),
    "externaldns.k8s.io": (("dnsendpoints", "DNSEndpoint"),),
}
HOSTS_MAX = 500  # of one object: each is compared with all tenants' domains, and others wait for their answers

HOST_LENGTH_MAX = 253  # characters (RFC 1123); a longer one is not parsed

_LABEL = r"[a-z0-9_](?:[-a-z0-9_]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")
# a host whose last label is a number is an address: https://url.spec.whatwg.org/#ends-in-a-number-checker
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_ANY: frozenset[str] = frozenset({"", "*"})
_INTERNAL = ("svc", "cluster.local")  # below these are names of Services

# annotations whose values are hosts: they make DNS records and certificates
_HOST_ANNOTATIONS = (
    "external-dns.alpha.kubernetes.io/hostname",
    "external-dns.alpha.kubernetes.io/internal-hostname",
    "dns.alpha.kubernetes.io/external",  # of kOps
    "dns.alpha.kubernetes.io/internal",
    "cert-manager.io/common-name",
    "cert-manager.io/alt-names",
)
# addresses that a load balancer gives to any Service that asks for them
_ADDRESS_ANNOTATION = re.compile(
    r"load-?balancer-?ip(?:s|v[46]|-addresses)?$|load-?balancer-(?:id|name)$|vpc-lb-name$|allow-shared-ip$"
    r"|static-ip-name$"
    r"|lb-ipam-(?:ips|sharing-key)|azure-pip-|additional-public-ips$|eip-allocations$|-ipv[46]-addresses$",
    re.IGNORECASE,
)
_ADDRESS_GROUPS = frozenset({"lbipam.cilium.io", "purelb.io"})
_ADDRESS_KEYS = frozenset({"load-balancer.hetzner.cloud/name"})

CLASS_ANNOTATION = "kubernetes.io/ingress.class"
_NGINX = "nginx.ingress.kubernetes.io/"
# values are not text of a configuration; in the second, GKE's controller reports its objects
_AS_JSON = ("alb.ingress.kubernetes.io", "ingress.kubernetes.io")
_CONTROLLERS = (  # annotations of these groups, and of groups below them, are read by ingress controllers
    "ingress.kubernetes.io", "nginx.org", "nginx.com", "haproxy.org", "haproxy-ingress.github.io", "konghq.com",
    "getambassador.io", "projectcontour.io", "traefik.io", "voyager.appscode.com", "gateway.envoyproxy.io",
    "router.openshift.io", "apisix.apache.org", "zalando.org",
)  # fmt: skip
# of ingress-nginx: annotations that affect only requests to the Ingress itself, by the documentation of 1.12. All
# others are refused: every year one is found that inserts text into the configuration of all tenants.
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
    r"|namespace|skipper-(?:filter|predicate|routes)|conditions\.|actions\.|group\.|path-match"
    r"|router\.(?:rule|priority|tls\.(?:domains|options))|server-(?:crt|ca)$",
    re.IGNORECASE,
)
_PLAIN_REDIRECTS = frozenset({"ssl-redirect", "force-ssl-redirect", "http-redirect"})  # to https, of the same host
_CHOOSES_ADDRESS = "must not be set: the address may be another team's; leave the choice to the load balancer"
_REACHES_OTHERS = "must not be set in a guarded namespace: it can reach other teams' hosts, Secrets or requests"
_PLAIN_RULE = (
    "must consist of calls such as Host(`a.example.org`) && PathPrefix(`/x`), joined by && and ||, so that its"
    " hosts can be checked: no '!', no HostRegexp, no comments, no blank before '(', every text in backticks"
)
_INSERTS = re.compile(r"[\x00-\x1f\x7f{};#'\"`\\]")  # characters that end a value in a controller's configuration
_INSERTS_IN_PATH = re.compile(r"[\x00-\x20\x7f{};#'\"`]")  # regular expressions of paths may hold a backslash


class Claim(Struct, frozen=True, order=True):
    """A host that an Ingress names. Claims are ordered by age, and by name if they have the same second."""

    created: str  # RFC 3339
    namespace: str
    name: str
    host: str


def claims_of(ingress: Mapping[str, Any]) -> list[Claim]:
    """The hosts that the rules of an Ingress claim. A rule without a host claims none."""
    meta = ingress["metadata"]
    rules = (ingress.get("spec") or {}).get("rules") or ()
    named = {clean(str(rule.get("host") or "")) for rule in rules} - _ANY
    hosts = sorted(host for host in named if len(host) <= HOST_LENGTH_MAX)
    created, namespace = str(meta.get("creationTimestamp") or ""), str(meta.get("namespace") or "")
    return [Claim(created, namespace, str(meta.get("name") or ""), host) for host in hosts]


def slim_ingress(ingress: Mapping[str, Any]) -> Obj:
    """The fields of an Ingress that claims and Events need; an informer stores only these."""
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    rules = (ingress.get("spec") or {}).get("rules") or ()
    return {
        "apiVersion": INGRESSES.api_version,
        "kind": INGRESSES.kind,
        "metadata": {key: ingress["metadata"].get(key) for key in kept},
        "spec": {"rules": [{"host": rule.get("host") or ""} for rule in rules]},
    }


def reserved_hosts(domain: str, *urls: str) -> tuple[str, ...]:
    """The hosts that only the operator may use, with all hosts below them.

    They are the domain of the workspaces and the addresses of the platform.
    """
    hosts = [clean(domain)]
    for url in urls:
        try:
            hosts.append(clean(urlsplit(url).hostname or ""))
        except ValueError:  # not a valid address
            continue
    return tuple(dict.fromkeys(host for host in hosts if host))


def names_records(pod: Mapping[str, Any]) -> bool:
    """Whether a pod asks for its own DNS records, as ExternalDNS and kOps create them."""
    return not annotations_of(pod).keys().isdisjoint(_HOST_ANNOTATIONS)


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
    """All forbidden fields of an object of a guarded namespace that names hosts: one of KINDS, or a Pod.

    `reserved`: see `reserved_hosts`. `taken`: the claims of Ingresses, with or without those of this one's old
    version.
    """
    # claims of this namespace are its own, so they refuse nothing
    name = _name(tenant)
    rights = _Rights(
        mine=domain_of(tenant),
        others={
            domain_of(tenant): _name(tenant) for tenant in tenants if _name(tenant) != name and domain_of(tenant)
        },
        reserved=tuple(reserved),
        taken=_by_host(claim for claim in taken if claim.namespace != namespace),
    )
    # an object may name very many hosts: read no more than the limit
    hosts = list(islice(hosts_of(kind, obj), HOSTS_MAX + 1))
    if len(hosts) > HOSTS_MAX:
        reason = f"must name at most {HOSTS_MAX} hosts: divide it into several objects"
        return (Refusal("spec", "", reason),)
    refusals = [
        Refusal(where, repr(host[:HOST_LENGTH_MAX]), reason)
        for where, host in hosts
        if (reason := rights.why_not(host))
    ]
    # fields that steer controllers can add hosts that the list above does not show
    refusals += _judge_shape(kind, obj)
    if kind == "Ingress":
        refusals += _judge_class(obj, tenant)
        refusals += _judge_paths(obj)
    if kind == "Service":
        refusals += _judge_service(obj)
    for where, table in _annotations(kind, obj):
        refusals += _judge_annotations(where, table)
    return tuple(refusals)


def _by_host(claims: Iterable[Claim]) -> dict[str, Claim]:
    """The oldest claim of each host."""
    oldest: dict[str, Claim] = {}
    for claim in claims:
        oldest[claim.host] = min(claim, oldest.get(claim.host, claim))
    return oldest


class _Rights(Struct, frozen=True, kw_only=True):
    """The owners of hosts, seen from one namespace. `others`: domain → tenant; `taken`: host → claim elsewhere."""

    mine: str
    others: Mapping[str, str]
    reserved: tuple[str, ...]
    taken: Mapping[str, Claim]

    def why_not(self, host: str) -> str:
        """The reason why this host is refused; "" if it is allowed."""
        plain, mine = clean(host), self.mine
        if plain in _ANY:
            return self._why_not_any()
        if len(plain) > HOST_LENGTH_MAX:
            return f"must have at most {HOST_LENGTH_MAX} characters"
        if not _HOST.fullmatch(plain):
            return "must be a host name of a-z, 0-9, '-' and '.', or '*.' before one; write other letters as xn--…"
        if plain == "localhost" or _NUMBER.fullmatch(plain.rpartition(".")[2]):
            return "must not be an address, or the machine's own name"
        for reserved in self.reserved:
            if _touches(plain, reserved):
                return (
                    f"is reserved for Moorage: hosts at, below and around {reserved} are set only by the operator"
                )
        if any(is_below(plain, domain) for domain in _INTERNAL):
            return "must not be a name inside the cluster"
        owner = next((domain for domain in _upwards(plain.removeprefix("*.")) if domain in self.others), "")
        own = bool(mine) and is_below(plain, mine)
        if owner and own and len(mine) > len(owner):
            owner = ""
        if not owner and plain.startswith("*."):
            owner = next((below for below in self.others if below != mine and is_below(below, plain[2:])), "")
        if owner:
            return f"is a host of tenant {self.others[owner]}"
        if mine and not own:
            return f"must be {mine} or below it"
        if plain.startswith("*.") and not mine:
            return (
                "must not be a wildcard, which would keep other teams from all hosts below it: name each host, or"
                " ask an administrator for a domain, spec.ingress.domain of the Tenant"
            )
        held = self.taken.get(plain) or (None if own else self._wildcard_around(plain))
        return f"is taken: Ingress {held.namespace}/{held.name} names {held.host}" if held else ""

    def _why_not_any(self) -> str:
        if self.mine:
            return f"must be {self.mine} or below it"
        if self.others or self.reserved or self.taken:
            return "must name a host: a rule without one takes requests for other teams' hosts"
        return ""

    def _wildcard_around(self, host: str) -> Claim | None:
        """The claim of a wildcard that covers the host.

        A wildcard may cover several labels: some controllers allow this.
        """
        above = (self.taken.get(f"*.{domain}") for domain in islice(_upwards(host), 1, None))
        return next((claim for claim in above if claim), None)


# --- hosts


def clean(host: str) -> str:
    """Normalize a host for comparison: lower case, without surrounding blanks and trailing dots."""
    return host.strip().lower().rstrip(".")


def is_below(host: str, domain: str) -> bool:
    """Whether a host is the domain itself or below it. `*.example.org` counts as below example.org."""
    bare = clean(host)
    return bare == domain or bare.endswith(f".{domain}")


def _upwards(host: str) -> Iterator[str]:
    """The host itself and all domains above it, nearest first."""
    while host:
        yield host
        host = host.partition(".")[2]


def _touches(host: str, reserved: str) -> bool:
    """Whether a host is a reserved one, below it, or a wildcard that covers it."""
    bare = host.removeprefix("*.")
    return is_below(host, reserved) or bare == reserved or (host != bare and is_below(reserved, bare))


def hosts_of(kind: str, obj: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every host that an object names, with its field path. An empty host or `*` means all hosts."""
    yield from _hosts_of_spec(kind, mapping(obj.get("spec")))
    for where, table in _annotations(kind, obj):
        for key in _HOST_ANNOTATIONS:
            for host in str(table.get(key) or "").split(","):
                if host.strip():
                    yield f"{where}[{key}]", host.strip()


def _hosts_of_spec(kind: str, spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    match kind:
        case "Ingress":
            yield from _of_ingress(spec)
        case "HTTPRoute" | "GRPCRoute" | "TLSRoute":
            yield from _texts("spec.hostnames", spec.get("hostnames") or [""])
        case "Gateway" | "ListenerSet" | "XListenerSet":
            yield from _of_gateway(spec)
        case "VirtualService":
            yield from _texts("spec.hosts", spec.get("hosts") or [""])
        case "HTTPProxy":
            if (virtual := spec.get("virtualhost")) is not None:
                yield "spec.virtualhost.fqdn", str(mapping(virtual).get("fqdn") or "")
        case "ServiceEntry" if spec.get("exportTo") != ["."]:  # else it is for its own namespace only
            yield from _texts("spec.hosts", spec.get("hosts") or [""])
        case "Route":  # OpenShift has given a host to a Route without before it is judged
            host = str(spec.get("host") or "")
            yield "spec.host", "*." + host.partition(".")[2] if spec.get("wildcardPolicy") == "Subdomain" else host
        case "IngressRoute" | "IngressRouteTCP":
            yield from _of_traefik(spec)
        case "VirtualServer" | "VirtualServerRoute":
            yield "spec.host", str(spec.get("host") or "")
        case "TransportServer" | "TCPMapping":  # without a host they have a separate port
            if spec.get("host"):
                yield "spec.host", str(spec["host"])
        case "Mapping" | "Host":
            names = [name for name in ("hostname", "host") if spec.get(name)]
            yield from ((f"spec.{name}", str(spec.get(name) or "")) for name in names or ["hostname"])
        case "TCPIngress":  # without a host a rule has a separate port
            rules = (field for field in _of_rules(spec) if field[1])
            yield from (*rules, *_of_tls(spec))
        case "DNSEndpoint":
            for at, record in enumerate(sequence(spec.get("endpoints"))):
                yield f"spec.endpoints[{at}].dnsName", str(mapping(record).get("dnsName") or "")


def _of_ingress(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _of_rules(spec)
    yield from _of_tls(spec)
    if spec.get("defaultBackend"):
        yield "spec.defaultBackend", ""


def _of_rules(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for at, rule in enumerate(sequence(spec.get("rules"))):
        yield f"spec.rules[{at}].host", str(mapping(rule).get("host") or "")


def _of_tls(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for at, tls in enumerate(sequence(spec.get("tls"))):
        yield from _texts(f"spec.tls[{at}].hosts", mapping(tls).get("hosts"))


def _of_gateway(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for at, listener in enumerate(sequence(spec.get("listeners"))):
        yield f"spec.listeners[{at}].hostname", str(mapping(listener).get("hostname") or "")
    for at, server in enumerate(sequence(spec.get("servers"))):  # of Istio: namespace/host
        for where, host in _texts(f"spec.servers[{at}].hosts", mapping(server).get("hosts") or [""]):
            yield where, host.rpartition("/")[2]


def _of_traefik(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for at, route in enumerate(sequence(spec.get("routes"))):
        hosts = hosts_of_rule(str(mapping(route).get("match") or ""))
        if hosts is not None:  # else it is refused as a whole
            yield from ((f"spec.routes[{at}].match", host) for host in hosts or [""])
    for at, domain in enumerate(sequence(mapping(spec.get("tls")).get("domains"))):
        yield f"spec.tls.domains[{at}].main", str(mapping(domain).get("main") or "")
        yield from _texts(f"spec.tls.domains[{at}].sans", mapping(domain).get("sans"))


def _annotations(kind: str, obj: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The annotations of the object, and for a Gateway also those of its Service; each with the field path."""
    yield "metadata.annotations", annotations_of(obj)
    if kind == "Gateway":
        infrastructure = mapping(mapping(obj.get("spec")).get("infrastructure"))
        yield "spec.infrastructure.annotations", mapping(infrastructure.get("annotations"))


def _texts(where: str, values: Any) -> Iterator[tuple[str, str]]:
    for at, value in enumerate(sequence(values)):
        yield f"{where}[{at}]", str(value)


# --- fields that steer controllers


def _judge_shape(kind: str, obj: Mapping[str, Any]) -> Iterator[Refusal]:
    """Fields that make the hosts of an object unreadable, or add others to them."""
    spec = mapping(obj.get("spec"))
    if kind in ("IngressRoute", "IngressRouteTCP"):
        for at, route in enumerate(sequence(spec.get("routes"))):
            rule = str(mapping(route).get("match") or "")
            if hosts_of_rule(rule) is None:
                yield Refusal(f"spec.routes[{at}].match", repr(rule), _PLAIN_RULE)
            for table in ("services", "middlewares"):
                for number, target in enumerate(sequence(mapping(route).get(table))):
                    yield from _judge_namespace(f"spec.routes[{at}].{table}[{number}]", target, obj)
        yield from _judge_namespace("spec.tls.options", mapping(spec.get("tls")).get("options"), obj)
    elif kind == "Gateway" and spec.get("addresses"):
        yield Refusal("spec.addresses", repr(spec["addresses"]), _CHOOSES_ADDRESS)
    elif kind == "Route" and spec.get("subdomain"):
        reason = "must not be set: write the whole host into spec.host"
        yield Refusal("spec.subdomain", repr(spec["subdomain"]), reason)
    elif kind == "Mapping" and spec.get("host_regex"):
        reason = "must not be set: write each host into spec.hostname, so that it can be checked"
        yield Refusal("spec.host_regex", repr(spec["host_regex"]), reason)
    elif kind in ("VirtualServer", "VirtualServerRoute", "TransportServer"):
        for where, part in (
            ("spec", spec),
            *((f"spec.routes[{at}]", part) for at, part in enumerate(sequence(spec.get("routes")))),
            *((f"spec.subroutes[{at}]", part) for at, part in enumerate(sequence(spec.get("subroutes")))),
        ):
            for key, value in mapping(part).items():
                if value and key.lower().endswith("snippets"):
                    yield Refusal(f"{where}.{key}", repr(value), _REACHES_OTHERS)


def _judge_namespace(where: str, target: Any, obj: Mapping[str, Any]) -> Iterator[Refusal]:
    """Refuse references to other namespaces: Traefik can be configured to follow them past NetworkPolicies."""
    namespace, own = mapping(target).get("namespace"), mapping(obj.get("metadata")).get("namespace")
    if namespace and namespace != own:
        yield Refusal(f"{where}.namespace", repr(namespace), f"must be {own}, or left empty")


def _judge_class(ingress: Mapping[str, Any], tenant: Mapping[str, Any] | None) -> Iterator[Refusal]:
    wanted = mapping(mapping(mapping(tenant).get("spec")).get("ingress")).get("className")
    if not wanted:
        return
    chosen = mapping(ingress.get("spec")).get("ingressClassName")
    if chosen != wanted:
        yield Refusal("spec.ingressClassName", repr(chosen), f"must be {wanted}")
    noted = annotations_of(ingress).get(CLASS_ANNOTATION)
    if noted is not None and noted != wanted:  # some controllers read it first
        yield Refusal(f"metadata.annotations[{CLASS_ANNOTATION}]", repr(noted), f"must be {wanted}")


def _judge_paths(ingress: Mapping[str, Any]) -> Iterator[Refusal]:
    for at, rule in enumerate(sequence(mapping(ingress.get("spec")).get("rules"))):
        for number, path in enumerate(sequence(mapping(mapping(rule).get("http")).get("paths"))):
            text = str(mapping(path).get("path") or "")
            if _INSERTS_IN_PATH.search(text):
                reason = "must not contain blanks, quotes, braces, '#' or ';': it is written into a configuration"
                yield Refusal(f"spec.rules[{at}].http.paths[{number}].path", repr(text), reason)


def _judge_service(service: Mapping[str, Any]) -> Iterator[Refusal]:
    spec = mapping(service.get("spec"))
    if spec.get("externalIPs"):
        reason = (
            "must not be set: a user who names an address receives the cluster's traffic to it (CVE-2020-8554)"
        )
        yield Refusal("spec.externalIPs", repr(spec["externalIPs"]), reason)
    if spec.get("loadBalancerIP"):
        yield Refusal("spec.loadBalancerIP", repr(spec["loadBalancerIP"]), _CHOOSES_ADDRESS)
    if spec.get("type") == "ExternalName":
        reason = (
            "must not be ExternalName: an ingress controller follows it past NetworkPolicies; use the name itself"
        )
        yield Refusal("spec.type", repr(spec.get("externalName")), reason)


def _judge_annotations(table: str, annotations: Mapping[str, Any]) -> Iterator[Refusal]:
    for key, value in annotations.items():
        group, _, name = key.rpartition("/")
        where = f"{table}[{key}]"
        if group in _ADDRESS_GROUPS or key in _ADDRESS_KEYS or (group and _ADDRESS_ANNOTATION.search(name)):
            yield Refusal(where, repr(value), "must not be set: the address may be another team's")
            continue
        if not any(group == known or group.endswith(f".{known}") for known in _CONTROLLERS):
            continue
        if key.startswith(_NGINX):
            refused = name not in _OF_NGINX
        else:
            refused = name not in _PLAIN_REDIRECTS and _STEERING.search(name) is not None
        if refused:
            yield Refusal(where, repr(value), _REACHES_OTHERS)
        elif group not in _AS_JSON and _INSERTS.search(str(value)):
            reason = "must not contain quotes, braces, '#', ';' or line ends: it is written into a configuration"
            yield Refusal(where, repr(value), reason)


# --- reading


def domain_of(tenant: Mapping[str, Any] | None) -> str:
    """The domain of a tenant: its hosts must be at or below it. Empty if it has none."""
    ingress = mapping(mapping(mapping(tenant).get("spec")).get("ingress"))
    return clean(str(ingress.get("domain") or ""))


def _name(tenant: Mapping[str, Any] | None) -> str:
    return str(tenant["metadata"]["name"]) if tenant is not None else ""
