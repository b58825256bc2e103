"""What strangers and members of one namespace may send: refused before it costs anything, and never a defect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from moorage_kube.resources import CONFIGMAPS, NAMESPACES, NODES, PODS, SERVICEACCOUNTS, Obj
from moorage_kube.testing import builders
from moorage_local.apiserver.auth.rbac import ROLEBINDINGS, ROLES
from moorage_local.apiserver.client import InProcessClient
from moorage_local.apiserver.server import ApiServer

pytestmark = pytest.mark.anyio

ALICE = "alice-token"
RBAC = "rbac.authorization.k8s.io/v1"
ADMISSION = "admissionregistration.k8s.io/v1"
EXTENSIONS = "apiextensions.k8s.io/v1"
CLUSTER_SCOPED = [
    ("/api/v1/namespaces", "v1", "Namespace"),
    ("/api/v1/nodes", "v1", "Node"),
    ("/api/v1/persistentvolumes", "v1", "PersistentVolume"),
    (f"/apis/{EXTENSIONS}/customresourcedefinitions", EXTENSIONS, "CustomResourceDefinition"),
    (f"/apis/{RBAC}/clusterroles", RBAC, "ClusterRole"),
    (f"/apis/{RBAC}/clusterrolebindings", RBAC, "ClusterRoleBinding"),
    ("/apis/scheduling.k8s.io/v1/priorityclasses", "scheduling.k8s.io/v1", "PriorityClass"),
    ("/apis/storage.k8s.io/v1/storageclasses", "storage.k8s.io/v1", "StorageClass"),
    (f"/apis/{ADMISSION}/validatingwebhookconfigurations", ADMISSION, "ValidatingWebhookConfiguration"),
]


@dataclass(frozen=True)
class Reply:
    status: int
    body: Any
    reads: int  # how often the server asked for a part of the request's body

    @property
    def message(self) -> str:
        return str(self.body["message"])


async def ask(
    server: ApiServer,
    method: str,
    target: str,
    body: Any = None,
    *,
    token: str | None = "admin-token",
    content_type: str = "application/json",
) -> Reply:
    """One request, given to the ASGI application as it is."""
    path, _, query = target.partition("?")
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    reads, sent = 0, []

    async def receive() -> dict[str, Any]:
        nonlocal reads
        reads += 1
        return {"type": "http.request", "body": data, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", content_type.encode())]
    if token is not None:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": headers}
    await server.app(scope, receive, send)
    answered = b"".join(one.get("body", b"") for one in sent[1:])
    return Reply(sent[0]["status"], json.loads(answered) if answered[:1] == b"{" else answered, reads)


@pytest.fixture
async def team(api: InProcessClient) -> str:
    """A namespace in which alice may do everything, and one in which she may do nothing."""
    for name in ("team", "other"):
        await api.create(NAMESPACES, {"metadata": {"name": name}})
    every = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
    await api.create(ROLES, {"metadata": {"name": "all", "namespace": "team"}, "rules": [every]})
    subject = {"kind": "User", "name": "alice", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "Role", "name": "all", "apiGroup": "rbac.authorization.k8s.io"}
    await api.create(
        ROLEBINDINGS,
        {"metadata": {"name": "alice", "namespace": "team"}, "subjects": [subject], "roleRef": reference},
    )
    return "team"


def a_pod(name: str, namespace: str, **meta: Any) -> Obj:
    return {
        "metadata": {"name": name, "namespace": namespace, **meta},
        "spec": {"containers": [{"name": "c", "image": "busybox:1"}]},
    }


# --- who may not, is not read


@pytest.mark.parametrize("token", [None, ALICE])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/namespaces/default/configmaps"),
        ("PUT", "/api/v1/namespaces/default/configmaps/x"),
        ("PATCH", "/api/v1/namespaces/default/configmaps/x?fieldManager=x"),
        ("DELETE", "/api/v1/namespaces/default/configmaps/x"),
        ("DELETE", "/api/v1/namespaces/default/configmaps"),
        ("POST", "/api/v1/namespaces/default/pods/p/eviction"),
        ("POST", "/api/v1/namespaces/default/pods/p/binding"),
        ("POST", "/api/v1/namespaces/default/bindings"),
        ("POST", "/api/v1/namespaces/default/serviceaccounts/default/token"),
        ("PUT", "/apis/apps/v1/namespaces/default/deployments/d/scale"),
        ("PUT", "/api/v1/namespaces/default/finalize"),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"),
    ],
)
async def test_the_body_of_who_may_not_is_never_read(
    server: ApiServer, method: str, path: str, token: str | None
) -> None:
    reply = await ask(
        server, method, path, b"[" * 100_000, token=token, content_type="application/apply-patch+yaml"
    )
    assert (reply.status, reply.reads) == (403, 0)


YAML_BOMBS = {
    "deep": b"[" * 100_000,
    "deep mappings": b"{a: " * 25_000,
    "aliases": b"a0: &a0 [x]\n"
    + b"\n".join(f"a{at}: &a{at} [{','.join([f'*a{at - 1}'] * 9)}]".encode() for at in range(1, 9)),
    "holds itself": b"a: &a [*a]",
    "300 levels": b"a: " + b"[" * 300 + b"]" * 300,
}


@pytest.mark.parametrize("bomb", YAML_BOMBS)
@pytest.mark.parametrize(
    ("method", "path", "content_type"),
    [
        ("POST", "/api/v1/namespaces/default/configmaps", "application/yaml"),
        ("PATCH", "/api/v1/namespaces/default/configmaps/x?fieldManager=x", "application/apply-patch+yaml"),
        ("DELETE", "/api/v1/namespaces/default/configmaps/x", "application/yaml"),
    ],
)
async def test_yaml_beyond_the_bounds_is_refused(
    server: ApiServer, bomb: str, method: str, path: str, content_type: str
) -> None:
    reply = await ask(server, method, path, YAML_BOMBS[bomb], content_type=content_type)
    assert reply.status == 400
    assert "nested" in reply.message or "aliases" in reply.message or "itself" in reply.message


@pytest.mark.parametrize("levels", [101, 300, 100_000])
@pytest.mark.parametrize(
    ("method", "path", "content_type"),
    [
        ("POST", "/api/v1/namespaces/default/configmaps", "application/json"),
        ("PUT", "/api/v1/namespaces/default/configmaps/kube-root-ca.crt", "application/json"),
        ("PATCH", "/api/v1/namespaces/default", "application/merge-patch+json"),
        ("PATCH", "/api/v1/namespaces/default", "application/json-patch+json"),
        ("PATCH", "/api/v1/namespaces/default", "application/strategic-merge-patch+json"),
        ("DELETE", "/api/v1/namespaces/default", "application/json"),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "application/json"),
    ],
)
async def test_json_that_is_too_deep_is_refused(
    server: ApiServer, method: str, path: str, content_type: str, levels: int
) -> None:
    body = b'{"metadata":{"name":"x"},"spec":' + b'{"a":[' * levels + b"1" + b"]}" * levels + b"}"
    reply = await ask(server, method, path, body, content_type=content_type)
    assert reply.status == 400
    assert "nested more than 100 levels deep" in reply.message


async def test_a_token_of_deep_json_is_no_token(server: ApiServer) -> None:
    import base64

    deep = base64.urlsafe_b64encode(b"[" * 4000).decode().rstrip("=")
    for token in (f"{deep}.{deep}.{deep}", "é.é.é", "a.b.c", ".."):
        assert (await ask(server, "GET", "/api/v1/pods", token=token)).status == 401


# --- whose namespace counts: the URL's


@pytest.mark.parametrize(("path", "version", "kind"), CLUSTER_SCOPED, ids=[one[2] for one in CLUSTER_SCOPED])
async def test_a_role_of_a_namespace_writes_nothing_beyond_it(
    server: ApiServer, team: str, path: str, version: str, kind: str
) -> None:
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": "x", "namespace": team}}
    for method, target, content_type in (
        ("POST", path, "application/json"),
        ("PUT", f"{path}/x", "application/json"),
        ("PATCH", f"{path}/x?fieldManager=alice", "application/apply-patch+yaml"),
        ("PATCH", f"{path}/x", "application/merge-patch+json"),
        ("DELETE", f"{path}/x", "application/json"),
        ("DELETE", path, "application/json"),
    ):
        reply = await ask(server, method, target, body, token=ALICE, content_type=content_type)
        assert (reply.status, reply.reads) == (403, 0), (method, target)
        assert "at the cluster scope" in reply.message or "namespaces" in path


@pytest.mark.parametrize("plural", ["nodes", "persistentvolumes"])
async def test_the_namespace_in_the_body_of_a_cluster_scoped_object_is_left_out(
    server: ApiServer, api: InProcessClient, plural: str
) -> None:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/tmp"}}
    body = {"metadata": {"name": "x", "namespace": "default"}, "spec": spec if plural != "nodes" else {}}
    reply = await ask(server, "POST", f"/api/v1/{plural}", body)
    assert reply.status == 201
    assert "namespace" not in reply.body["metadata"]
    reply.body["metadata"]["namespace"] = "default"
    assert (await ask(server, "PUT", f"/api/v1/{plural}/x", reply.body)).status == 200


async def test_an_object_of_another_namespace_than_the_urls_is_a_bad_request(
    server: ApiServer, api: InProcessClient, team: str
) -> None:
    await api.create(PODS, a_pod("p", "team"))
    await api.create(SERVICEACCOUNTS, {"metadata": {"name": "s", "namespace": "team"}})
    await api.create(NODES, {"metadata": {"name": "n"}})
    pods = "/api/v1/namespaces/team/pods"
    named = {"metadata": {"name": "p", "namespace": "other"}}
    deployment = builders.a_deployment("d", namespace="team", image="busybox:1")
    assert (await ask(server, "POST", "/apis/apps/v1/namespaces/team/deployments", deployment)).status == 201
    for method, path, body, content_type in (
        ("POST", pods, a_pod("q", "other"), "application/json"),
        ("PUT", f"{pods}/p", a_pod("p", "other"), "application/json"),
        ("PUT", f"{pods}/p/status", a_pod("p", "other"), "application/json"),
        ("PATCH", f"{pods}/p", named, "application/merge-patch+json"),
        ("PATCH", f"{pods}/p", named, "application/strategic-merge-patch+json"),
        (
            "PATCH",
            f"{pods}/p",
            [{"op": "add", "path": "/metadata/namespace", "value": "other"}],
            "application/json-patch+json",
        ),
        ("PATCH", f"{pods}/p?fieldManager=x", a_pod("p", "other"), "application/apply-patch+yaml"),
        ("PATCH", f"{pods}/new?fieldManager=x", a_pod("new", "other"), "application/apply-patch+yaml"),
        ("POST", f"{pods}/p/eviction", named, "application/json"),
        ("POST", f"{pods}/p/binding", {**named, "target": {"name": "n"}}, "application/json"),
        ("POST", "/api/v1/namespaces/team/bindings", {**named, "target": {"name": "n"}}, "application/json"),
        (
            "POST",
            "/api/v1/namespaces/team/serviceaccounts/s/token",
            {"metadata": {"namespace": "other"}},
            "application/json",
        ),
        (
            "PUT",
            "/apis/apps/v1/namespaces/team/deployments/d/scale",
            {"metadata": {"name": "d", "namespace": "other"}, "spec": {"replicas": 1}},
            "application/json",
        ),
        (
            "POST",
            "/apis/authorization.k8s.io/v1/namespaces/team/localsubjectaccessreviews",
            {
                "metadata": {"namespace": "other"},
                "spec": {"user": "x", "resourceAttributes": {"verb": "get", "resource": "pods"}},
            },
            "application/json",
        ),
    ):
        reply = await ask(server, method, path, body, content_type=content_type)
        assert reply.status == 400, (method, path, content_type, reply.body)
        assert "namespace" in reply.message
    assert (await ask(server, "GET", f"{pods}/p")).body["spec"].get("nodeName") is None


async def test_an_object_of_a_namespace_is_created_through_its_namespace(server: ApiServer, team: str) -> None:
    for method, path in (
        ("POST", "/api/v1/pods"),
        ("POST", "/api/v1/namespaces//pods"),
        ("DELETE", "/api/v1/pods"),
        ("POST", "/api/v1/bindings"),
    ):
        allowed = await ask(server, method, path, a_pod("p", "team"))
        assert allowed.status == 405, path
        refused = await ask(server, method, path, a_pod("p", "team"), token=ALICE)
        assert (refused.status, refused.reads) == (403, 0), path


async def test_a_role_of_a_namespace_still_writes_in_it(server: ApiServer, team: str) -> None:
    pods = "/api/v1/namespaces/team/pods"
    assert (await ask(server, "POST", pods, a_pod("p", "team"), token=ALICE)).status == 201
    assert (await ask(server, "POST", pods, {**a_pod("q", ""), "kind": "Pod"}, token=ALICE)).status == 201
    assert (
        await ask(server, "PUT", "/api/v1/namespaces/team", {"metadata": {"name": "team"}}, token=ALICE)
    ).status == 200
    assert (await ask(server, "DELETE", pods, token=ALICE)).status == 200


# --- odd numbers


ODD = ["-1", "²", "٣", "1e3", "+5", "1_0", " 1", "9" * 30, "9" * 5000, "0", "-" + "9" * 25, "NaN", "0x10", ""]


@pytest.mark.parametrize("number", ODD, ids=range(len(ODD)))
async def test_odd_numbers_are_no_defect(server: ApiServer, api: InProcessClient, number: str) -> None:
    from urllib.parse import quote

    odd = quote(number)
    for method, target in (
        ("GET", f"/api/v1/pods?limit={odd}"),
        ("GET", f"/api/v1/pods?resourceVersion={odd}"),
        ("GET", f"/api/v1/pods?resourceVersion={odd}&resourceVersionMatch=Exact"),
        ("GET", f"/api/v1/pods?resourceVersion={odd}&resourceVersionMatch=NotOlderThan"),
        ("GET", f"/api/v1/pods?watch=1&resourceVersion={odd}&timeoutSeconds=0.1"),
        ("GET", f"/api/v1/pods?continue={odd}"),
        ("DELETE", f"/api/v1/namespaces/default/configmaps?limit={odd}"),
        ("DELETE", f"/api/v1/namespaces/default/configmaps/x?gracePeriodSeconds={odd}"),
        ("GET", f"/api/v1/namespaces/default/pods/x/log?tailLines={odd}"),
    ):
        reply = await ask(server, method, target)
        assert reply.status < 500 or reply.body.get("reason") == "Timeout", (target[:80], reply.body)


@pytest.mark.parametrize(
    "token",
    [
        {"v": 1, "rv": "²", "after": "x"},
        {"v": 1, "rv": 1e300, "after": "x"},
        {"v": 1, "rv": -5, "after": "x"},
        {"v": 1, "rv": True, "after": "x"},
        {"v": 1, "rv": 10**30, "after": "x"},
        {"v": 1, "rv": 1, "after": ["x"]},
        {"v": 1, "rv": 1, "after": "a" * 10_000},
        [],
        1,
        b"[" * 3000,
        b"\xff",
    ],
    ids=range(11),
)
async def test_a_made_up_continue_token_is_no_defect(server: ApiServer, token: Any) -> None:
    import base64

    text = base64.urlsafe_b64encode(token if isinstance(token, bytes) else json.dumps(token).encode()).decode()
    assert (await ask(server, "GET", f"/api/v1/pods?continue={text}")).status in (400, 410)


async def test_a_list_without_a_positive_limit_is_whole(server: ApiServer, api: InProcessClient) -> None:
    for number in range(3):
        await api.create(CONFIGMAPS, {"metadata": {"name": f"c{number}", "namespace": "default"}})
    for limit in ("-1", "0", ""):
        reply = await ask(server, "GET", f"/api/v1/namespaces/default/configmaps?limit={limit}")
        assert len(reply.body["items"]) >= 3


@pytest.mark.parametrize("grace", [10**30, 2**63 - 1, -1, 1.5, "²", True, [1], {"a": 1}])
async def test_an_odd_grace_period_is_no_defect(server: ApiServer, api: InProcessClient, grace: Any) -> None:
    await api.create(PODS, a_pod("p", "default"))
    path = "/api/v1/namespaces/default/pods/p"
    options = {"gracePeriodSeconds": grace}
    for method, target, body in (
        ("DELETE", path, options),
        ("POST", f"{path}/eviction", {"deleteOptions": options}),
    ):
        assert (await ask(server, method, target, body)).status < 500


@pytest.mark.parametrize("seconds", [2**63 - 1, 10**30, -1])
async def test_an_odd_number_in_a_spec_is_no_defect(server: ApiServer, seconds: int) -> None:
    pod = a_pod("p", "default")
    pod["spec"] |= {"terminationGracePeriodSeconds": seconds, "activeDeadlineSeconds": seconds}
    made = await ask(server, "POST", "/api/v1/namespaces/default/pods", pod)
    assert made.status < 500
    del pod["spec"]["activeDeadlineSeconds"]
    made = await ask(server, "POST", "/api/v1/namespaces/default/pods", pod)
    assert made.status < 500
    if made.status == 201:
        bound = {"metadata": {"name": "p"}, "target": {"name": "n"}}
        assert (await ask(server, "POST", "/api/v1/namespaces/default/pods/p/binding", bound)).status == 201
        assert (await ask(server, "DELETE", "/api/v1/namespaces/default/pods/p")).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"1" * 5000,
        b'{"metadata":1}',
        b'{"metadata":{"name":5}}',
        b'{"metadata":{"name":["x"],"namespace":{"a":1}}}',
        b'{"metadata":{"name":"x","labels":[1]}}',
        b'{"metadata":{"name":"x"},"data":{"a":' + b"9" * 400 + b"}}",
        b'{"metadata":{"name":"x","generateName":7,"resourceVersion":5,"uid":{}}}',
        b'{"apiVersion":5,"kind":[]}',
        b'{"apiVersion":{"a":1},"kind":{}}',
        b'"\\ud800"',
        b"null",
        b"",
    ],
    ids=range(12),
)
async def test_an_odd_body_is_no_defect(server: ApiServer, body: bytes) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    for method, target, content_type in (
        ("POST", path, "application/json"),
        ("POST", path, "application/yaml"),
        ("POST", path, "application/vnd.kubernetes.protobuf"),
        ("PUT", f"{path}/x", "application/json"),
        ("PATCH", f"{path}/x?fieldManager=x", "application/apply-patch+yaml"),
        ("PATCH", "/api/v1/namespaces/default", "application/merge-patch+json"),
        ("PATCH", "/api/v1/namespaces/default", "application/strategic-merge-patch+json"),
        ("PATCH", "/api/v1/namespaces/default", "application/json-patch+json"),
        ("DELETE", f"{path}/x", "application/json"),
        ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "application/json"),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", "application/json"),
        ("POST", "/api/v1/namespaces/default/bindings", "application/json"),
        ("POST", "/api/v1/namespaces/default/serviceaccounts/default/token", "application/json"),
    ):
        reply = await ask(server, method, target, body, content_type=content_type)
        assert reply.status < 500, (method, target, content_type, reply.body)


@pytest.mark.parametrize("number", ["²", "٣", "9" * 5000, "-1", "", "1_0"])
async def test_an_odd_number_in_a_text_of_a_spec_is_no_defect(server: ApiServer, number: str) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": a_pod("p", "default")["spec"]}
    selector = {"matchLabels": {"a": "b"}}
    job = {"spec": {"template": {"spec": {**template["spec"], "restartPolicy": "Never"}}}}
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": f"{number}%", "maxUnavailable": number}}
    for path, body in (
        ("policy/v1/namespaces/default/poddisruptionbudgets", {"spec": {"minAvailable": f"{number}%"}}),
        (
            "batch/v1/namespaces/default/cronjobs",
            {"spec": {"schedule": f"*/{number} * * * *", "jobTemplate": job}},
        ),
        ("batch/v1/namespaces/default/cronjobs", {"spec": {"schedule": f"{number} 1-{number} * * *"}}),
        (
            "apps/v1/namespaces/default/deployments",
            {"spec": {"selector": selector, "template": template, "strategy": rolling}},
        ),
    ):
        reply = await ask(server, "POST", f"/apis/{path}", {"metadata": {"name": "x"}, **body})
        assert reply.status < 500, (path, reply.body)
    path = "/apis/apps/v1/namespaces/default/daemonsets"
    daemons = {"metadata": {"name": "d"}, "spec": {"selector": selector, "template": template}}
    assert (await ask(server, "POST", path, daemons)).status == 201
    annotations = {"metadata": {"annotations": {"deprecated.daemonset.template.generation": number}}}
    for _ in range(2):
        reply = await ask(server, "PATCH", f"{path}/d", annotations, content_type="application/merge-patch+json")
        assert reply.status < 500


async def test_a_percentage_with_a_sign_is_refused_as_by_the_real_server(server: ApiServer) -> None:
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    for text, status in (("+5%", 422), ("-0%", 422), ("101%", 422), ("5%", 201)):
        reply = await ask(server, "POST", path, {"metadata": {"name": "b"}, "spec": {"minAvailable": text}})
        assert reply.status == status, (text, reply.body)


# --- bodies of subresources

APPS = "/apis/apps/v1/namespaces/default/deployments/d/scale"
CORE = "/api/v1/namespaces/default"
SUBRESOURCES = {
    "scale": ("PUT", APPS, {"metadata": {"name": "d"}, "spec": {"replicas": 1}}),
    "scale by patch": ("PATCH", APPS, {"metadata": {"name": "d"}, "spec": {"replicas": 1}}),
    "binding": ("POST", f"{CORE}/pods/p/binding", {"metadata": {"labels": {"a": "b"}}, "target": {"name": "n"}}),
    "bindings": ("POST", f"{CORE}/bindings", {"metadata": {"name": "p"}, "target": {"name": "n"}}),
    "eviction": (
        "POST",
        f"{CORE}/pods/p/eviction",
        {"metadata": {"name": "p"}, "deleteOptions": {"dryRun": ["All"], "preconditions": {"uid": "u"}}},
    ),
    "token": (
        "POST",
        f"{CORE}/serviceaccounts/default/token",
        {
            "metadata": {},
            "spec": {
                "audiences": ["a"],
                "expirationSeconds": 3600,
                "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"},
            },
        },
    ),
    "finalize": (
        "PUT",
        "/api/v1/namespaces/default/finalize",
        {"metadata": {"labels": {"a": "b"}}, "spec": {"finalizers": ["kubernetes"]}},
    ),
    "delete options": (
        "DELETE",
        f"{CORE}/configmaps/x",
        {"preconditions": {"uid": "u"}, "dryRun": ["All"], "propagationPolicy": "Orphan", "orphanDependents": 1},
    ),
}
SHAPES: list[Any] = ["x", "", 5, -1, 1.5, True, None, [], [1], ["x"], [None], [[]], {}, {"a": 1}, {"name": [1]}]


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every value of a body, the whole one first."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))


def with_value(body: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    first, *rest = path
    return {**body, first: with_value(body[first], tuple(rest), value)}


@pytest.fixture
async def targets(server: ApiServer, api: InProcessClient) -> None:
    await api.create(NODES, {"metadata": {"name": "n"}})
    await api.create(SERVICEACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}})
    labels = {"a": "b"}
    template = {"metadata": {"labels": labels}, "spec": a_pod("p", "default")["spec"]}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    deployment = {"metadata": {"name": "d"}, "spec": spec}
    path = "/apis/apps/v1/namespaces/default/deployments"
    assert (await ask(server, "POST", path, deployment)).status == 201


@pytest.mark.usefixtures("targets")
@pytest.mark.parametrize("name", SUBRESOURCES)
async def test_a_subresources_body_of_any_shape_is_no_defect(server: ApiServer, name: str) -> None:
    method, path, body = SUBRESOURCES[name]
    content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
    for place in places(body):
        for shape in SHAPES:
            await ask(server, "POST", f"{CORE}/pods", a_pod("p", "default"))
            reply = await ask(server, method, path, with_value(body, place, shape), content_type=content_type)
            assert reply.status < 500, (place, shape, reply.body)
            assert reply.status < 300 or reply.body["kind"] == "Status"


@pytest.mark.usefixtures("targets")
@pytest.mark.parametrize(
    ("name", "place", "shape", "message"),
    [
        ("scale", ("spec",), [1], "json: cannot unmarshal array into Go value of type ScaleSpec"),
        ("scale", ("spec", "replicas"), "x", "unmarshal string into Go struct field ScaleSpec.spec.replicas"),
        ("scale by patch", ("metadata",), "x", "json: cannot unmarshal string into Go value of type ObjectMeta"),
        ("binding", ("target",), "x", "cannot unmarshal string into Go value of type ObjectReference"),
        ("eviction", ("deleteOptions",), "x", "cannot unmarshal string into Go value of type DeleteOptions"),
        ("token", ("spec",), "x", "cannot unmarshal string into Go value of type TokenRequestSpec"),
        ("token", ("spec", "audiences"), 5, "cannot unmarshal number into Go struct field"),
        ("finalize", ("spec",), [1], "cannot unmarshal array into Go value of type NamespaceSpec"),
    ],
)
async def test_a_subresources_body_of_a_wrong_type_is_a_bad_request(
    server: ApiServer, name: str, place: tuple[str, ...], shape: Any, message: str
) -> None:
    method, path, body = SUBRESOURCES[name]
    await ask(server, "POST", f"{CORE}/pods", a_pod("p", "default"))
    content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
    reply = await ask(server, method, path, with_value(body, place, shape), content_type=content_type)
    assert reply.status == 400, reply.body
    assert message in reply.message
