"""Whose a host is, and what may not steer an ingress controller."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.admission.hosts import (
    HOSTS_MAX,
    KINDS,
    Claim,
    claims_of,
    hosts_of,
    judge_hosts,
    reserved_hosts,
)

RESERVED = ("apps.example.org", "moorage.example.org")
NGINX = "nginx.ingress.kubernetes.io/"


def with_domain(name: str, domain: str, **more: str) -> Any:
    return {"metadata": {"name": name}, "spec": {"namespace": name, "ingress": {"domain": domain} | more}}


A, B = with_domain("a", "a.example.org", className="a"), with_domain("b", "b.example.org")
PARENT = with_domain("parent", "example.org")
OPS = {"metadata": {"name": "ops"}, "spec": {"namespace": "ops"}}
TENANTS = [A, B, OPS]


def an_ingress(
    *hosts: str, tls: tuple[str, ...] = (), cls: str | None = None, notes: Any = None, path: str = "/", **spec: Any
) -> Any:
    paths = {"paths": [{"path": path, "pathType": "Prefix", "backend": {"service": {"name": "x"}}}]}
    rules = [({"host": host} if host else {}) | {"http": paths} for host in hosts]
    return {
        "metadata": {"name": "i", "namespace": "x", "annotations": notes or {}},
        "spec": {"rules": rules, "tls": [{"hosts": list(tls)}], "ingressClassName": cls} | spec,
    }


def an_object_with_hosts(spec: Any, notes: Any = None) -> Any:
    return {"metadata": {"name": "x", "namespace": "x", "annotations": notes or {}}, "spec": spec}


def fields(ingress: Any, tenant: Any = None, *, kind: str = "Ingress", **given: Any) -> list[str]:
    namespace = tenant["spec"]["namespace"] if tenant else "loose"
    return [host.field for host in judge_hosts(kind, ingress, namespace=namespace, tenant=tenant, **given)]


@pytest.mark.parametrize(
    ("ingress", "tenant", "is_good"),
    [
        (an_ingress("a.example.org", "x.a.example.org", "*.a.example.org", cls="a"), A, True),
        (an_ingress("x.A.Example.org.", cls="a"), A, True),
        (an_ingress("x.a.example.org", cls="nginx"), A, False),
        (an_ingress("x.a.example.org"), A, False),
        (an_ingress("x.a.example.org", cls="a", notes={"kubernetes.io/ingress.class": "nginx"}), A, False),
        (an_ingress("evil-a.example.org", cls="a"), A, False),
        (an_ingress("b.example.org", cls="a"), A, False),
        (an_ingress("x.a.example.org", tls=("b.example.org",), cls="a"), A, False),
        (an_ingress("", cls="a"), A, False),
        (an_ingress(cls="a", defaultBackend={"service": {}}), A, False),
        (an_ingress("x.b.example.org"), None, False),
        (an_ingress("*.b.example.org"), OPS, False),
        (an_ingress("*.example.org"), OPS, False),  # covers theirs
        (an_ingress(""), OPS, False),
        (an_ingress("other.example.net"), OPS, True),
        (an_ingress("x.example.org"), PARENT, True),
        (an_ingress("x.b.example.org"), PARENT, False),
        (an_ingress("*.example.org"), PARENT, False),
    ],
)
def test_hosts_are_their_teams(ingress: Any, tenant: Any, is_good: bool) -> None:
    assert (fields(ingress, tenant, tenants=[*TENANTS, PARENT]) == []) is is_good


def test_where_nobody_has_a_domain_and_the_platform_no_hosts_they_are_free() -> None:
    assert fields(an_ingress("", "x.example.org"), OPS, tenants=[OPS]) == []


@pytest.mark.parametrize(
    "host",
    [
        "thing--a.apps.example.org",
        "apps.example.org",
        "*.apps.example.org",
        "deep.thing--a.apps.example.org",
        "*.thing--a.apps.example.org",
        "THING--a.Apps.Example.Org",
        "thing--a.apps.example.org.",
        " thing--a.apps.example.org ",
        "*.example.org",
        "*.org",
        "moorage.example.org",
        "x.moorage.example.org",
        "",
        "*",
        "*.",
        "*.*",
        "~^thing.*$",
        "thing--a.apps.example.org:8081",
        "moorage-server.moorage-system.svc.cluster.local",
        "moorage-server.moorage-system.svc",
        "thing--a.apps.ex\u00e4mple.org",  # browsers convert it, each in its own way
        "thing--a\uff0eapps\uff0eexample\uff0eorg",  # full-width dots become dots
    ],
)
@pytest.mark.parametrize("tenant", [A, OPS, PARENT, None], ids=["a", "ops", "parent", "none"])
def test_the_platforms_hosts_are_nobodys(host: str, tenant: Any) -> None:
    cls = "a" if tenant is A else None
    given = {"tenants": TENANTS, "reserved": RESERVED}
    assert fields(an_ingress(host, cls=cls), tenant, **given) == ["spec.rules[0].host"]
    if host:
        assert fields(an_ingress(tls=(host,), cls=cls), tenant, **given) == ["spec.tls[0].hosts[0]"]


def test_without_a_rule_it_is_the_default_of_all_hosts() -> None:
    ingress = an_ingress(defaultBackend={"service": {"name": "x"}})
    assert fields(ingress, OPS, tenants=[OPS], reserved=RESERVED) == ["spec.defaultBackend"]


def test_reserved_hosts_are_read_from_the_platforms_addresses() -> None:
    found = reserved_hosts("apps.example.org", "https://Moorage.Example.org:8443/x", "http://[::1", "")
    assert found == ("apps.example.org", "moorage.example.org")


# --- one namespace owns a host


def claim(host: str, namespace: str = "first", created: str = "2026-01-01T00:00:00Z") -> Claim:
    return Claim(created, namespace, "web", host)


@pytest.mark.parametrize(
    ("host", "taken", "is_free"),
    [
        ("x.example.net", "x.example.net", False),
        ("X.example.net.", "x.example.net", False),
        ("y.example.net", "x.example.net", True),
        ("x.example.net", "*.example.net", False),
        ("deep.x.example.net", "*.example.net", False),
        ("example.net", "*.example.net", True),
        ("deep.x.example.net", "x.example.net", True),
    ],
)
def test_a_host_that_another_namespace_names_is_taken(host: str, taken: str, is_free: bool) -> None:
    found = judge_hosts("Ingress", an_ingress(host), namespace="second", tenant=None, taken=[claim(taken)])
    assert (found == ()) is is_free
    assert not found or "first/web" in found[0].message
    assert not judge_hosts("Ingress", an_ingress(host), namespace="first", tenant=None, taken=[claim(taken)])


def test_a_teams_domain_is_its_own_whoever_else_has_a_wildcard_around_it() -> None:
    given = {"namespace": "b", "tenant": B, "tenants": TENANTS}
    assert not judge_hosts("Ingress", an_ingress("x.b.example.org"), taken=[claim("*.example.org")], **given)
    assert judge_hosts("Ingress", an_ingress("x.b.example.org"), taken=[claim("x.b.example.org")], **given)


def test_what_an_ingress_claims_are_the_hosts_of_its_rules() -> None:
    ingress = an_ingress("X.example.net.", "", "*.example.net", tls=("y.example.net",))
    assert [one.host for one in claims_of(ingress)] == ["*.example.net", "x.example.net"]


LABELS = st.sampled_from(["a", "b", "c"])
HOSTS = st.tuples(st.booleans(), st.lists(LABELS, min_size=1, max_size=3)).map(
    lambda made: ("*." if made[0] else "") + ".".join(made[1])
)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join)


def matches(pattern: str, name: str) -> bool:
    return name.endswith(pattern[1:]) if pattern.startswith("*.") else pattern == name


@given(HOSTS, HOSTS, NAMES)
def test_no_request_is_for_two_namespaces(older: str, younger: str, name: str) -> None:
    taken = claims_of({"metadata": {"namespace": "first"}, "spec": {"rules": [{"host": older}]}})
    is_free = not judge_hosts("Ingress", an_ingress(younger), namespace="second", tenant=None, taken=taken)
    assert not (is_free and matches(older, name) and matches(younger, name))
    if not younger.startswith("*."):
        assert is_free is not matches(older, younger)


def test_only_a_team_with_a_domain_uses_wildcards_and_only_below_it() -> None:
    """One for `*.com` would keep every other team without a domain from all hosts below it."""
    for tenant in (OPS, None):
        (refusal,) = judge_hosts("Ingress", an_ingress("*.com"), namespace="x", tenant=tenant)
        assert "spec.ingress.domain" in refusal.message
    assert fields(an_ingress("*.com", cls="a"), A)
    assert not fields(an_ingress("*.a.example.org", "*.x.a.example.org", cls="a"), A)


def test_a_wildcard_covers_no_deeper_domain_of_another_tenant_whoever_is_above_both() -> None:
    deeper = with_domain("deeper", "deep.b.example.org")
    assert fields(an_ingress("*.b.example.org"), B, tenants=[B, deeper, PARENT])
    assert not fields(an_ingress("*.x.b.example.org"), B, tenants=[B, deeper, PARENT])


def test_a_rule_without_a_host_takes_requests_for_hosts_that_others_have() -> None:
    assert not fields(an_ingress(""), OPS, tenants=[OPS], taken=[claim("x.example.net", namespace="ops")])
    assert fields(an_ingress(""), OPS, tenants=[OPS], taken=[claim("x.example.net")])


@pytest.mark.parametrize("host", ["a." * 120_000 + "a", "a." * 126 + "ab", "x" * 254])
def test_a_host_longer_than_names_can_be_is_refused_before_it_is_read(host: str) -> None:
    """All that stands above a host is compared with others' hosts: that took half a minute of everybody's time."""
    service = {"metadata": {"annotations": {"external-dns.alpha.kubernetes.io/hostname": host}}, "spec": {}}
    refusals = judge_hosts("Service", service, namespace="x", tenant=None, tenants=TENANTS, reserved=RESERVED)
    assert [refusal.message for refusal in refusals] == ["must have at most 253 characters"]
    assert len(str(refusals[0])) < 500
    assert claims_of({"metadata": {}, "spec": {"rules": [{"host": host}]}}) == []


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "2130706433", "127.1", "0x7f.0.0.1", "10.0.0x1"])
def test_an_address_and_the_machines_own_name_are_nobodys_host(host: str) -> None:
    assert fields(an_ingress(host)) == ["spec.rules[0].host"]
    assert fields(an_ingress("x.localhost", "1.example.org")) == []


def test_an_object_names_a_bounded_number_of_hosts() -> None:
    hosts = [f"h{number}.example.net" for number in range(HOSTS_MAX + 1)]
    assert fields(an_ingress(*hosts)) == ["spec"]
    assert not fields(an_ingress(*hosts[:-1]))


# --- other kinds that name hosts

HOST = "thing--a.apps.example.org"
OTHER_SERVICE = {"services": [{"name": "x", "namespace": "a"}]}
OTHER_MIDDLEWARE = {"middlewares": [{"name": "x"}, {"name": "x", "namespace": "a"}]}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("HTTPRoute", {"hostnames": [HOST]}),
        ("HTTPRoute", {}),  # those of its Gateway
        ("GRPCRoute", {"hostnames": ["fine.example.net", HOST]}),
        ("TLSRoute", {"hostnames": ["*.apps.example.org"]}),
        ("Gateway", {"listeners": [{"name": "web", "hostname": HOST}]}),
        ("Gateway", {"listeners": [{"name": "web"}]}),
        ("Gateway", {"addresses": [{"type": "IPAddress", "value": "10.0.0.7"}]}),
        ("Gateway", {"infrastructure": {"annotations": {"metallb.io/loadBalancerIPs": "10.0.0.7"}}}),
        ("Gateway", {"infrastructure": {"annotations": {"external-dns.alpha.kubernetes.io/hostname": HOST}}}),
        ("ListenerSet", {"listeners": [{"name": "web", "hostname": HOST}]}),
        ("Gateway", {"servers": [{"hosts": [f"*/{HOST}"]}]}),
        ("VirtualService", {"hosts": [HOST]}),
        ("VirtualService", {"hosts": ["db.a.svc.cluster.local"]}),
        ("HTTPProxy", {"virtualhost": {"fqdn": HOST}}),
        ("IngressRoute", {"routes": [{"match": "Host(`fine.example.net`)"} | OTHER_SERVICE]}),
        ("IngressRoute", {"routes": [{"match": "Host(`fine.example.net`)"} | OTHER_MIDDLEWARE]}),
        ("IngressRouteTCP", {"routes": [], "tls": {"options": {"name": "x", "namespace": "a"}}}),
        ("IngressRoute", {"routes": [{}]}),
        ("Route", {"host": HOST, "path": "/.moorage"}),
        ("Route", {"path": "/x"}),  # on OpenShift it has one before it is judged
        ("Route", {"subdomain": "lab--alpha.ws"}),
        ("Route", {"host": "fine.example.net", "subdomain": "fine"}),
        ("XListenerSet", {"listeners": [{"name": "web", "hostname": HOST}]}),
        ("ServiceEntry", {"hosts": [HOST]}),
        ("VirtualServer", {"host": HOST}),
        ("VirtualServer", {"host": "fine.example.net", "server-snippets": "x"}),
        ("VirtualServer", {"host": "fine.example.net", "routes": [{"location-snippets": "x"}]}),
        ("VirtualServerRoute", {"host": HOST}),
        ("VirtualServerRoute", {"host": "fine.example.net", "subroutes": [{"location-snippets": "x"}]}),
        ("TransportServer", {"host": HOST}),
        ("TransportServer", {"host": "fine.example.net", "streamSnippets": "x"}),
        ("Mapping", {"hostname": HOST, "prefix": "/.moorage"}),
        ("Mapping", {"hostname": "fine.example.net", "host": HOST}),
        ("Mapping", {"hostname": "fine.example.net", "host_regex": True}),
        ("Mapping", {"hostname": "lab--alpha.*"}),
        ("Mapping", {"prefix": "/.moorage"}),
        ("TCPMapping", {"host": HOST, "port": 443}),
        ("Host", {"hostname": HOST}),
        ("TCPIngress", {"rules": [{"host": HOST, "port": 9000}]}),
        ("TCPIngress", {"rules": [{"port": 9000}], "tls": [{"hosts": [HOST]}]}),
        ("DNSEndpoint", {"endpoints": [{"dnsName": HOST, "recordType": "A", "targets": ["10.0.0.7"]}]}),
        ("Route", {"host": f"any.{HOST.partition('.')[2]}", "wildcardPolicy": "Subdomain"}),
        ("Route", {"host": f"fine.{HOST}", "wildcardPolicy": "Subdomain"}),
        ("IngressRouteTCP", {"routes": [{"match": "HostSNI(`*`)"}]}),
        ("IngressRoute", {"routes": [], "tls": {"domains": [{"main": "x.example.net", "sans": [HOST]}]}}),
    ],
)
def test_other_kinds_that_name_hosts_are_held_to_the_same(kind: str, spec: Any) -> None:
    assert fields(an_object_with_hosts(spec), kind=kind, reserved=RESERVED)


@pytest.mark.parametrize(
    "rule",
    [
        f"Host(`{HOST}`) && PathPrefix(`/.moorage`)",
        f"Host(`fine.example.net`, `{HOST}`)",
        f'Host("{HOST}")',
        f"hostheader(`{HOST}`)",
        f"Host(/*(*/`{HOST}`) /* Host(`fine.example.net`) */",
        f"HostHeader(`{HOST}`) /* Host(`fine.example.net`) */",
        f'Host (`{HOST}`) && PathPrefix(`/`, `/Host("fine.net")`)',
        f"Host(`fine.example.net`) || (Path(`/x`) && Host(`{HOST}`))",
        "(Host(`fine.example.net`) || Path(`/x`)) && Path(`/y`)",
        f"Host(`fine.example.net`) // {HOST}",
        "",
        "PathPrefix(`/.moorage`)",
        "Host(`fine.example.net`) || PathPrefix(`/`)",
        "HostRegexp(`.*`)",
        "!Host(`fine.example.net`)",
    ],
)
def test_rules_of_traefik_that_may_match_a_host_of_the_platform_are_refused(rule: str) -> None:
    assert fields(an_object_with_hosts({"routes": [{"match": rule}]}), kind="IngressRoute", reserved=RESERVED)


OWN_SERVICES = [{"name": "x"}, {"name": "y", "namespace": "x"}]


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("HTTPRoute", {"hostnames": ["fine.example.net"]}),
        ("Gateway", {"listeners": [{"name": "web", "hostname": "fine.example.net"}]}),
        *(
            ("IngressRoute", {"routes": [{"match": rule}]})
            for rule in (
                "Host(`fine.example.net`) && PathPrefix(`/x`)",
                "Host(`fine.example.net`) &&\n (Path(`/x`) || PathRegexp(`^/(y|z)/\\d`))",
                "Host(`fine.example.net`, `b.net`) || Host( `c.net` )",
                "Host(`fine.net`) && Header(`X-A`, `b`) && ClientIP(`10.0.0.7`)",
            )
        ),
        ("IngressRouteTCP", {"routes": [{"match": "HostSNI(`fine.example.net`)"}]}),
        ("ServiceEntry", {"hosts": [HOST], "exportTo": ["."]}),
        ("VirtualServer", {"host": "fine.example.net", "routes": [{"path": "/", "action": {"pass": "x"}}]}),
        ("TransportServer", {"listener": {"name": "tcp-1", "protocol": "TCP"}}),
        ("Mapping", {"hostname": "fine.example.net", "prefix": "/x"}),
        ("Host", {"hostname": "fine.example.net"}),
        ("TCPIngress", {"rules": [{"port": 9000}]}),
        ("DNSEndpoint", {"endpoints": [{"dnsName": "fine.example.net"}]}),
        ("Gateway", {"infrastructure": {"annotations": {"team.example.org/note": "x"}}}),
        ("IngressRoute", {"routes": [{"match": "Host(`fine.net`)", "services": OWN_SERVICES}]}),
        ("Route", {"host": "fine.example.net", "wildcardPolicy": "None"}),
        ("HTTPProxy", {"virtualhost": {"fqdn": "fine.example.net"}}),
        ("HTTPProxy", {"routes": []}),  # included by another
        ("Service", {"ports": [{"port": 80}]}),
    ],
)
def test_other_kinds_with_hosts_of_ones_own_pass(kind: str, spec: Any) -> None:
    assert not fields(an_object_with_hosts(spec), kind=kind, reserved=RESERVED)


# --- what steers a controller


@pytest.mark.parametrize(
    "key",
    [
        f"{NGINX}{name}"
        for name in (
            "server-alias", "server-snippet", "configuration-snippet", "stream-snippet", "auth-snippet",
            "modsecurity-snippet", "auth-url", "auth-secret", "auth-tls-secret", "auth-tls-match-cn",
            "mirror-target", "mirror-host", "permanent-redirect", "temporal-redirect", "from-to-www-redirect",
            "app-root", "upstream-vhost", "proxy-ssl-secret", "x-forwarded-prefix", "not-known-yet",
            "Server-Alias",
        )
    ]
    + [
        "nginx.org/server-snippets", "nginx.org/location-snippets", "haproxy.org/backend-config-snippet",
        "haproxy-ingress.github.io/server-alias", "haproxy-ingress.github.io/auth-url",
        "traefik.ingress.kubernetes.io/router.middlewares", "traefik.ingress.kubernetes.io/router.priority",
        "alb.ingress.kubernetes.io/conditions.x", "alb.ingress.kubernetes.io/actions.x",
        "alb.ingress.kubernetes.io/group.name", "zalando.org/skipper-routes", "zalando.org/skipper-predicate",
        "k8s.apisix.apache.org/svc-namespace", "k8s.apisix.apache.org/plugin-config-name",
        "konghq.com/plugins", "konghq.com/host-aliases",
    ],
)  # fmt: skip
def test_annotations_that_reach_others_are_refused(key: str) -> None:
    assert fields(an_ingress("x.example.net", notes={key: "x"}), OPS) == [f"metadata.annotations[{key}]"]


@pytest.mark.parametrize(
    "notes",
    [
        {f"{NGINX}proxy-body-size": "0", f"{NGINX}proxy-read-timeout": "3600"},
        {f"{NGINX}rewrite-target": "/$2", f"{NGINX}use-regex": "true", f"{NGINX}force-ssl-redirect": "true"},
        {"haproxy.org/ssl-redirect": "true", "alb.ingress.kubernetes.io/scheme": "internal"},
        {"alb.ingress.kubernetes.io/listen-ports": '[{"HTTPS": 443}]'},
        {"traefik.ingress.kubernetes.io/router.entrypoints": "websecure"},
        {
            "ingress.kubernetes.io/backends": '{"x":"HEALTHY"}',
            "ingress.kubernetes.io/static-ip": "x",
        },  # GKE's report
        {"cert-manager.io/cluster-issuer": "letsencrypt", "team.example.org/note": "a; {b}"},
    ],
)
def test_ordinary_annotations_pass(notes: dict[str, str]) -> None:
    ingress = an_ingress("x.example.net", notes=notes, path="/api(/|$)(.*)", tls=("x.example.net",))
    assert fields(ingress, OPS, tenants=TENANTS, reserved=RESERVED) == []


@pytest.mark.parametrize("value", ["1m; } location / { return 200", "1\nserver_name x", '"', "a#b", "\\"])
def test_a_value_that_ends_its_line_is_refused(value: str) -> None:
    assert fields(an_ingress("x.example.net", notes={f"{NGINX}proxy-body-size": value}), OPS)


@pytest.mark.parametrize("path", ["/x;}", "/x {", "/x\nlocation", "/x'", "/#"])
def test_a_path_that_ends_its_line_is_refused(path: str) -> None:
    assert fields(an_ingress("x.example.net", path=path), OPS) == ["spec.rules[0].http.paths[0].path"]


@pytest.mark.parametrize("kind", ["Ingress", "Service"])
@pytest.mark.parametrize(
    "key",
    [
        "external-dns.alpha.kubernetes.io/hostname",
        "external-dns.alpha.kubernetes.io/internal-hostname",
        "dns.alpha.kubernetes.io/external",
        "dns.alpha.kubernetes.io/internal",
        "cert-manager.io/common-name",
        "cert-manager.io/alt-names",
    ],
)
def test_annotations_that_are_hosts_are_judged_as_hosts(kind: str, key: str) -> None:
    for value, wrong in ((f"x.example.net, {HOST}", 1), ("x.example.net,y.example.net", 0), ("", 0)):
        refused = fields(an_object_with_hosts({}, {key: value}), kind=kind, reserved=RESERVED)
        assert refused == [f"metadata.annotations[{key}]"] * wrong


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"externalIPs": ["10.0.0.7"]}, "spec.externalIPs"),
        ({"type": "LoadBalancer", "loadBalancerIP": "10.0.0.7"}, "spec.loadBalancerIP"),
        ({"type": "ExternalName", "externalName": "moorage-server.moorage-system.svc.cluster.local"}, "spec.type"),
        ({"type": "ExternalName", "externalName": "10.0.0.7.nip.io"}, "spec.type"),
    ],
)
def test_a_service_takes_no_address_and_leads_nowhere_else(spec: Any, field: str) -> None:
    assert fields(an_object_with_hosts(spec), kind="Service") == [field]


@pytest.mark.parametrize("spec", [{}, {"type": "LoadBalancer"}])
@pytest.mark.parametrize(
    "key",
    [
        "metallb.io/loadBalancerIPs",
        "metallb.universe.tf/allow-shared-ip",
        "io.cilium/lb-ipam-ips",
        "kubernetes.io/ingress.global-static-ip-name",
        "lbipam.cilium.io/ips",
        "service.beta.kubernetes.io/azure-load-balancer-ipv4",
        "service.beta.kubernetes.io/azure-pip-name",
        "service.beta.kubernetes.io/azure-load-balancer-ipv6",
        "service.beta.kubernetes.io/azure-pip-prefix-id-ipv6",
        "service.beta.kubernetes.io/azure-additional-public-ips",
        "service.beta.kubernetes.io/aws-load-balancer-eip-allocations",
        "service.beta.kubernetes.io/aws-load-balancer-private-ipv4-addresses",
        "service.beta.kubernetes.io/aws-load-balancer-ipv6-addresses",
        "networking.gke.io/load-balancer-ip-addresses",
        "loadbalancer.openstack.org/load-balancer-id",
        "kubernetes.digitalocean.com/load-balancer-id",
    ],
)
def test_annotations_of_a_service_that_take_an_address_are_refused(spec: Any, key: str) -> None:
    assert fields(an_object_with_hosts(spec, {key: "x"}), kind="Service") == [f"metadata.annotations[{key}]"]


@pytest.mark.parametrize("spec", [{}, {"type": "ClusterIP"}, {"type": "NodePort"}, {"type": "LoadBalancer"}])
def test_other_services_pass(spec: Any) -> None:
    assert fields(an_object_with_hosts(spec), kind="Service", reserved=RESERVED) == []


OUTER = [
    "rules",
    "tls",
    "routes",
    "subroutes",
    "hostnames",
    "listeners",
    "servers",
    "hosts",
    "host",
    "hostname",
    "exportTo",
    "endpoints",
    "subdomain",
    "virtualhost",
    "host_regex",
]
INNER = ["http", "paths", "path", "match", "fqdn", "domains", "sans", "dnsName", "snippets"]
KINDS_OF_HOSTS = sorted({kind for kinds in KINDS.values() for _, kind in kinds})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*OUTER, *INNER]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.sampled_from(KINDS_OF_HOSTS), st.dictionaries(st.sampled_from(OUTER), ANYTHING))
def test_nothing_that_can_be_written_fails_it(kind: str, spec: Any) -> None:
    obj = {"metadata": {"name": "x"}, "spec": spec}
    judge_hosts(kind, obj, namespace="x", tenant=B, tenants=TENANTS, reserved=RESERVED, taken=[claim("x.y")])
    assert all(isinstance(host, str) for _, host in hosts_of(kind, obj))
