"""Which Service a request is for."""

from __future__ import annotations

from typing import Any

import pytest

from moorage_kube.resources import INGRESSES
from moorage_kube.testing import builders
from moorage_local.ingress.table import (
    INGRESS_CLASS,
    Observed,
    Router,
    is_ours,
    make_table,
    services_of,
    slices_by_service,
)


def to(service: str, port: Any = 80) -> dict[str, Any]:
    return {"service": {"name": service, "port": {"name" if isinstance(port, str) else "number": port}}}


def a_path(path: str, service: str, kind: str = "Prefix") -> dict[str, Any]:
    return {"path": path, "pathType": kind, "backend": to(service)}


def an_ingress(
    name: str = "i", *, rules: Any = (), created: str = "2026-01-01T00:00:00Z", namespace: str = "lab", **spec: Any
) -> Any:
    made = [{"host": host, "http": {"paths": paths}} for host, *paths in rules]
    spec = {"ingressClassName": "moorage-local", "rules": made} | spec
    return builders.an_object(INGRESSES, name, namespace=namespace, created=created, spec=spec)


def a_service(name: str, *ports: Any) -> Any:
    return {"metadata": {"name": name, "namespace": "lab"}, "spec": {"ports": list(ports) or [{"port": 80}]}}


def a_slice(service: str, *addresses: str, port: int = 8000, name: str = "", ready: bool | None = True) -> Any:
    return {
        "metadata": {"name": service, "namespace": "lab", "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": name, "port": port, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": ready}} for address in addresses],
    }


def a_router(*ingresses: Any, services: Any = None, slices: Any = None) -> Router:
    names = {name for ingress in ingresses for name in services_of(ingress)}
    made = services or [a_service(name) for name in names]
    endpoint_slices = slices
    if endpoint_slices is None:
        endpoint_slices = [a_slice(name, f"10.0.0.{at}") for at, name in enumerate(sorted(names))]
    return Router(
        make_table(
            Observed(
                ingresses=ingresses,
                classes=[INGRESS_CLASS],
                services={f"lab/{service['metadata']['name']}": service for service in made},
                slices=slices_by_service(endpoint_slices),
            )
        )
    )


UNREADY = a_slice("a", "10.0.0.1", ready=False)
RULES = [
    ("web.localhost", a_path("/", "a"), a_path("/api", "b"), a_path("/api/x", "c", "Exact"), a_path("/img/", "d")),
    ("*.localhost", a_path("/", "e")),
    ("*.deep.localhost", a_path("/only", "f")),
    (None, a_path("/", "g")),
]
SERVICES = "abcdefg"


@pytest.mark.parametrize(
    ("host", "path", "want"),
    [
        ("web.localhost", "/", "a"),
        ("WEB.localhost", "/", "a"),
        ("web.localhost.", "/", "a"),
        ("web.localhost", "/apis", "a"),
        ("web.localhost", "/api", "b"),
        ("web.localhost", "/api/", "b"),
        ("web.localhost", "/api/x", "c"),
        ("web.localhost", "/api/x/y", "b"),
        ("web.localhost", "/img", "d"),
        ("web.localhost", "/img/1", "d"),
        ("other.localhost", "/img", "e"),
        ("a.b.localhost", "/", "g"),
        ("x.deep.localhost", "/only", "f"),
        ("x.deep.localhost", "/other", None),
        ("localhost", "/", "g"),
        ("", "/", "g"),
        ("127.0.0.1", "/", "g"),
    ],
)
def test_the_most_particular_host_and_then_the_longest_path_wins(host: str, path: str, want: str | None) -> None:
    backend = a_router(an_ingress(rules=RULES)).find(host, path)
    assert (backend.addresses if backend else None) == (
        [(f"10.0.0.{SERVICES.index(want)}", 8000)] if want else None
    )


def test_what_no_rule_claims_goes_to_the_default_backend() -> None:
    ingress = an_ingress(rules=[("web.localhost", a_path("/a", "a"))], defaultBackend=to("z"))
    router = a_router(ingress, slices=[a_slice("z", "10.0.0.9")])
    for host, path in (("web.localhost", "/b"), ("other", "/")):
        backend = router.find(host, path)
        assert backend is not None
        assert backend.addresses == [("10.0.0.9", 8000)]


def test_of_two_that_claim_the_same_the_older_has_it() -> None:
    new = an_ingress("a", rules=[("x", a_path("/", "new"))], created="2026-02-01T00:00:00Z")
    old = an_ingress("b", rules=[("x", a_path("/", "old"))])
    backend = a_router(new, old, slices=[a_slice("new", "10.0.0.1"), a_slice("old", "10.0.0.2")]).find("x", "/")
    assert backend is not None
    assert backend.addresses == [("10.0.0.2", 8000)]


OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"


def served_by(*ingresses: Any, host: str, path: str) -> str | None:
    """The namespace of the Ingress that serves a request; None: nobody does."""
    table = make_table(Observed(ingresses=ingresses, classes=[INGRESS_CLASS], services={}, slices={}))
    backend = Router(table).find(host, path)
    return None if backend is None else backend.problem.partition("Service ")[2].partition("/")[0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    ("theirs", "path"),
    [
        ("x.example", "/.moorage"),
        ("x.example", "/.moorage/enter"),
        ("X.example.", "/login"),
        ("x.example", "/"),
    ],
)
def test_a_host_is_one_namespaces_whatever_path_another_asks_for(
    theirs: str, path: str, order: tuple[int, int]
) -> None:
    mine = an_ingress(rules=[("x.example", a_path("/", "a"))], created=OLD, namespace="alpha")
    other = an_ingress(rules=[(theirs, a_path(path, "b"))], created=NEW, namespace="beta")
    both = [(mine, other)[at] for at in order]
    for asked in (path, f"{path.rstrip('/')}/x", "/"):
        assert served_by(*both, host="x.example", path=asked) == "alpha"


def test_of_one_second_the_namespace_that_comes_first_has_it_whichever_was_stored_first() -> None:
    both = [an_ingress(rules=[("x", a_path(f"/{name}", "a"))], namespace=name) for name in ("beta", "alpha")]
    for made in (both, both[::-1]):
        assert served_by(*made, host="x", path="/alpha") == "alpha"
        assert served_by(*made, host="x", path="/beta") is None


def test_neither_a_default_nor_a_rule_without_a_host_nor_a_wildcard_gets_what_a_host_leaves_open() -> None:
    mine = an_ingress(rules=[("x.example", a_path("/api", "a"))], created=NEW, namespace="alpha")
    catches = {
        "default": an_ingress("d", created=OLD, namespace="beta", defaultBackend=to("b")),
        "no host": an_ingress("n", rules=[(None, a_path("/", "b"))], created=OLD, namespace="beta"),
        "younger wildcard": an_ingress(
            "w", rules=[("*.example", a_path("/", "b"))], created="2026-03-01T00:00:00Z", namespace="beta"
        ),
    }
    for name, theirs in catches.items():
        assert served_by(mine, theirs, host="x.example", path="/other") is None, name
        assert served_by(mine, theirs, host="x.example", path="/api") == "alpha", name
        assert served_by(mine, theirs, host="y.example", path="/") == "beta", name


def test_a_host_below_an_older_wildcard_is_the_wildcards() -> None:
    wild = an_ingress(rules=[("*.example", a_path("/", "a"))], created=OLD, namespace="alpha")
    theirs = an_ingress(rules=[("x.example", a_path("/", "b"))], created=NEW, namespace="beta")
    mine = an_ingress("m", rules=[("x.example", a_path("/mine", "m"))], created=NEW, namespace="alpha")
    assert served_by(wild, theirs, host="x.example", path="/") == "alpha"
    assert served_by(wild, theirs, mine, host="x.example", path="/mine") == "alpha"


def test_rules_without_a_host_are_shared() -> None:
    made = [an_ingress(rules=[(None, a_path(f"/{name}", "a"))], namespace=name) for name in ("alpha", "beta")]
    assert [served_by(*made, host="any", path=f"/{name}") for name in ("alpha", "beta")] == ["alpha", "beta"]


@pytest.mark.parametrize(
    ("services", "slices", "backend", "why"),
    [
        ([a_service("x")], [], to("a"), "Service lab/a, which Ingress lab/i names, does not exist"),
        ([a_service("a")], [], to("a"), "no pod behind Service lab/a is ready"),
        (
            [a_service("a")],
            [a_slice("a", "10.0.0.1", ready=False)],
            to("a"),
            "no pod behind Service lab/a is ready",
        ),
        ([a_service("a")], [], to("a", 81), "Service lab/a has no port 81, which Ingress lab/i names"),
        ([a_service("a")], [], to("a", "web"), "Service lab/a has no port web, which Ingress lab/i names"),
        ([a_service("a")], [], {"resource": {}}, "Ingress lab/i names a backend that is not a Service"),
    ],
)
def test_what_is_missing_is_said(services: Any, slices: Any, backend: Any, why: str) -> None:
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    routed = a_router(an_ingress(rules=[("x", path)]), services=services, slices=slices).find("x", "/")
    assert routed is not None
    assert (routed.addresses, routed.problem) == ([], why)


def test_the_port_of_a_service_is_found_by_name_in_its_slices() -> None:
    service = a_service("a", {"name": "web", "port": 80}, {"name": "admin", "port": 81})
    slices = [a_slice("a", "10.0.0.1", port=8000, name="web"), a_slice("a", "10.0.0.1", port=9000, name="admin")]
    for port in (81, "admin"):
        ingress = an_ingress(rules=[("x", {"path": "/", "pathType": "Prefix", "backend": to("a", port)})])
        backend = a_router(ingress, services=[service], slices=slices).find("x", "/")
        assert backend is not None
        assert backend.addresses == [("10.0.0.1", 9000)]


def test_addresses_are_given_out_in_turn() -> None:
    ingress = an_ingress(rules=[("x", a_path("/", "a"))])
    backend = a_router(ingress, slices=[a_slice("a", "10.0.0.1", "10.0.0.2", "10.0.0.3")]).find("x", "/")
    assert backend is not None
    firsts = [backend.in_turn()[0][0] for _ in range(6)]
    assert sorted(firsts[:3]) == sorted(firsts[3:]) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert len(backend.in_turn()) == 3


def test_classes_are_known_by_their_controller() -> None:
    other = {"metadata": {"name": "nginx"}, "spec": {"controller": "k8s.io/ingress-nginx"}}
    mine = {"metadata": {"name": "team"}, "spec": {"controller": "localcluster.moorage.dev/ingress"}}
    classes = [INGRESS_CLASS, other, mine]
    assert is_ours(an_ingress(), classes)
    assert is_ours(an_ingress(ingressClassName="team"), classes)
    assert not is_ours(an_ingress(ingressClassName="nginx"), classes)
    assert not is_ours(an_ingress(ingressClassName=None), classes)
    old = an_ingress(ingressClassName=None)
    old["metadata"]["annotations"] = {"kubernetes.io/ingress.class": "moorage-local"}
    assert is_ours(old, classes)
