"""Requests that a real API server and the local one must answer alike, told as stories.

A story has a namespace of its own (`{ns}`, with the account `default` in it) and its steps are sent in order to
both servers. A step that is known to be answered differently says in which parts of the answer (`PARTS`) and why;
the suite holds it to exactly that, so an entry goes when the difference goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moorage_kube.resources import Resource
from moorage_kube.testing import builders

JSON = "application/json"
YAML = "application/yaml"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io,application/json"

PARTS = ("status", "reason", "causes", "words", "object", "warnings")
"""Of an answer: HTTP status; reason of a refusal; reason and field of its causes; the words of its message and
causes; the object, list or table (of a refusal: its details); the warnings in the header."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A difference that is there, and why it stays."""

    parts: frozenset[str]
    why: str


@dataclass(frozen=True, slots=True)
class Step:
    """One request. `body` is JSON unless it is bytes."""

    name: str
    method: str
    path: str
    body: Any = None
    content_type: str = JSON
    accept: str = JSON
    token: str | None = None
    user: str | None = None  # impersonated
    known: Known | None = None


@dataclass(frozen=True, slots=True)
class Until:
    """Ask until the answer is 200 with that condition True (if one is named), or, with `gone`, 404.

    With a `body` it is posted, until the status is `status` and the answer holds the words `says`: what limits
    others reaches the real server's admission a little later. Such a path asks for a dry run.
    """

    path: str
    condition: str | None = None
    gone: bool = False
    user: str | None = None  # impersonated; rights reach the real server's authoriser a little later
    body: Any = None
    status: int = 403
    says: str = ""


Steps = list[Step | Until]


def differs(*parts: str, why: str) -> Known:
    assert parts
    assert set(parts) <= set(PARTS)
    return Known(parts=frozenset(parts), why=why)


def get(name: str, path: str, known: Known | None = None, **more: Any) -> Step:
    return Step(name, "GET", path, known=known, **more)


def post(name: str, path: str, body: Any, known: Known | None = None, **more: Any) -> Step:
    return Step(name, "POST", path, body, known=known, **more)


def put(name: str, path: str, body: Any, known: Known | None = None) -> Step:
    return Step(name, "PUT", path, body, known=known)


def merge(name: str, path: str, body: Any, known: Known | None = None, **more: Any) -> Step:
    return Step(name, "PATCH", path, body, MERGE, known=known, **more)


def strategic(name: str, path: str, body: Any, known: Known | None = None) -> Step:
    return Step(name, "PATCH", path, body, STRATEGIC, known=known)


def json_patch(name: str, path: str, body: Any, known: Known | None = None) -> Step:
    return Step(name, "PATCH", path, body, JSON_PATCH, known=known)


def apply(name: str, path: str, body: Any, known: Known | None = None) -> Step:
    return Step(name, "PATCH", path, body, APPLY, known=known)


def delete(name: str, path: str, body: Any = None, known: Known | None = None, **more: Any) -> Step:
    return Step(name, "DELETE", path, body, known=known, **more)


CORE = "/api/v1/namespaces/{ns}"
APPS = "/apis/apps/v1/namespaces/{ns}"
BATCH = "/apis/batch/v1/namespaces/{ns}"
PODS = CORE + "/pods"


def named(name: str, **rest: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **rest}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return builders.a_pod(name, namespace="", container={"name": "a", "image": "busybox:1"}, spec=spec)


def container(**more: Any) -> dict[str, Any]:
    return pod("b", containers=[{"name": "a", "image": "x", **more}])


def limited(limits: Any = None, requests: Any = None) -> dict[str, Any]:
    resources = {key: value for key, value in (("limits", limits), ("requests", requests)) if value is not None}
    return container(resources=resources)


# --- differences that several steps share

GO_DIFF = differs("words", why="the real server appends a diff of its Go structs; ours names the changed fields")
GO_PARSER = differs("words", why="the words of Go's parser, and of where in the text it stopped")
TWICE = differs("causes", "words", why="the real server checks metadata twice and tells each error twice")
BORN_ACCEPTED = differs(
    "object", why="ours serves a definition as soon as it is stored, so its conditions are true from birth"
)
NO_OWNERS = "ours keeps no set of fields for each manager: what is applied wins, what is no longer applied stays"

PODS_CREATED: Steps = [
    post("a pod", PODS, pod("a")),
    post("the same pod again", PODS, pod("a")),
    get("a pod is read", PODS + "/a"),
    get("a pod that is not there", PODS + "/nope"),
    get("a resource that is not there", "/api/v1/nope"),
    get("a subresource that is not there", PODS + "/a/nope"),
    post("a name with capitals", PODS, pod("Bad_Name")),
    post("no containers", PODS, pod("b", containers=[])),
    post("a quantity that is none", PODS, limited({"cpu": "1x"})),
    post("requests above limits", PODS, limited({"cpu": "1"}, {"cpu": 2})),
    post("GPU requests below limits", PODS, limited({"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": 1})),
    post("GPU requests without limits", PODS, limited(None, {"nvidia.com/gpu": 1})),
    post("half a GPU", PODS, limited({"nvidia.com/gpu": "0.5"})),
    post("a resource without a domain", PODS, limited({"gpu": "1"})),
    post("negative memory", PODS, limited({"memory": "-1"})),
    post(
        "two containers of a name",
        PODS,
        pod("b", containers=[{"name": "a", "image": "x"}, {"name": "a", "image": "x"}]),
    ),
    post("a mount without its volume", PODS, container(volumeMounts=[{"name": "v", "mountPath": "/x"}])),
    post("a container without a name", PODS, pod("b", containers=[{"image": "x"}])),
    post("a container without an image", PODS, pod("b", containers=[{"name": "a"}])),
    post("an unknown restart policy", PODS, pod("b", restartPolicy="Sometimes")),
    post(
        "a restart policy that is a number",
        PODS,
        pod("b", restartPolicy=3),
        known=differs(
            "words", why="the real server names its Go type of these strings, which it does not publish"
        ),
    ),
    post("a number of seconds that is a string", PODS, pod("b", activeDeadlineSeconds="1")),
    post("containers that are a map", PODS, pod("b", containers={})),
    post("an unknown field is dropped", PODS, pod("b", foo=1)),
    post("an unknown field, strict", PODS + "?fieldValidation=Strict", pod("b", foo=1)),
    post("an unknown field, ignored", PODS + "?fieldValidation=Ignore&dryRun=All", pod("b2", foo=1)),
    post(
        "every default",
        PODS + "?dryRun=All",
        pod(
            "full",
            volumes=[
                {"name": "e"},
                {"name": "s", "secret": {"secretName": "x"}},
                {"name": "c", "configMap": {"name": "x"}},
                {"name": "h", "hostPath": {"path": "/x"}},
                {"name": "p", "persistentVolumeClaim": {"claimName": "c"}},
                {
                    "name": "pr",
                    "projected": {
                        "sources": [
                            {"serviceAccountToken": {"path": "t"}},
                            {
                                "downwardAPI": {
                                    "items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]
                                }
                            },
                        ]
                    },
                },
            ],
            initContainers=[{"name": "i", "image": "x", "restartPolicy": "Always"}],
            containers=[
                {
                    "name": "a",
                    "image": "reg/x:latest",
                    "ports": [{"containerPort": 80}],
                    "env": [
                        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                        {"name": "B", "value": "1"},
                        {"name": "C", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
                    ],
                    "livenessProbe": {"httpGet": {"port": 80}},
                    "resources": {"limits": {"cpu": "1.5", "memory": "1000Mi", "nvidia.com/gpu": 1}},
                    "lifecycle": {"preStop": {"exec": {"command": ["x"]}}},
                }
            ],
            hostNetwork=True,
            securityContext={"runAsUser": 0},
            nodeSelector={"a": "b"},
            tolerations=[{"operator": "Exists"}],
            activeDeadlineSeconds=10,
            schedulingGates=[{"name": "moorage.dev/machine"}],
        ),
    ),
    post("a system priority", PODS + "?dryRun=All", pod("pc", priorityClassName="system-node-critical")),
    post("an unknown priority class", PODS, pod("pc", priorityClassName="nope")),
    post("a priority of one's own", PODS, pod("pc", priority=5)),
    post("an unknown service account", PODS, pod("sa", serviceAccountName="nope")),
    post("a burstable pod", PODS + "?dryRun=All", limited(None, {"cpu": "100m"}) | {"metadata": {"name": "be"}}),
]

BODIES: Steps = [
    post("another version", PODS, {**pod("q"), "apiVersion": "v2"}),
    post("another kind", PODS, {**pod("q"), "kind": "Node"}),
    post("an unknown kind", PODS, {**pod("q"), "kind": "Nope"}),
    post("JSON that is none", PODS, b"{bad", known=GO_PARSER),
    post("YAML that is none", PODS, b"x: [", content_type=YAML, known=GO_PARSER),
    post("protobuf that is none", PODS, b"x", content_type="application/vnd.kubernetes.protobuf", known=GO_PARSER),
    post("plain text", PODS, b"x", content_type="text/plain"),
    post("a namespace that is not there", "/api/v1/namespaces/missing/pods", pod("x")),
    post("another namespace than the path's", PODS, {**pod("x"), "metadata": {"name": "x", "namespace": "other"}}),
    post("labels that are none", PODS, {**pod("x"), "metadata": {"name": "x", "labels": {"a b": "c", "x": "-"}}}),
    post("a generated name", PODS, {**pod("x"), "metadata": {"generateName": "x-"}}),
    post("no name", PODS, {**pod("x"), "metadata": {}}),
    post("a resource version of one's own", PODS, {**pod("x"), "metadata": {"name": "x", "resourceVersion": "5"}}),
    post(
        "a finalizer and an owner that are none",
        PODS,
        {
            **pod("x"),
            "metadata": {"name": "x", "finalizers": ["nope"], "ownerReferences": [{"kind": "A", "name": "b"}]},
        },
    ),
    put("a method that is not allowed", PODS, pod("a")),
    get("a token nobody has", "/api/v1/namespaces", token="bad"),
]

PODS_CHANGED: Steps = [
    post("a pod", PODS, pod("a")),
    merge("its node by hand", PODS + "/a", {"spec": {"nodeName": "n"}}, known=GO_DIFF),
    strategic("its image", PODS + "/a", {"spec": {"containers": [{"name": "a", "image": "y"}]}}),
    strategic("a second container", PODS + "/a", {"spec": {"containers": [{"name": "b", "image": "y"}]}}),
    strategic("a label", PODS + "/a", {"metadata": {"labels": {"x": "y"}}}),
    merge("a label taken away", PODS + "/a", {"metadata": {"labels": {"x": None}}}),
    json_patch("a test that fails", PODS + "/a", [{"op": "test", "path": "/metadata/name", "value": "b"}]),
    json_patch("removing what is not there", PODS + "/a", [{"op": "remove", "path": "/metadata/nope"}]),
    json_patch("adding labels", PODS + "/a", [{"op": "add", "path": "/metadata/labels", "value": {"q": "1"}}]),
    json_patch("a JSON patch that is an object", PODS + "/a", {"op": 1}),
    json_patch("an operation that is none", PODS + "/a", [{"op": "nop", "path": "/a"}]),
    merge("a merge patch that is a list", PODS + "/a", []),
    merge("its restart policy", PODS + "/a", {"spec": {"restartPolicy": "Never"}}, known=GO_DIFF),
    merge("a deadline", PODS + "/a", {"spec": {"activeDeadlineSeconds": 10}}),
    merge("a later deadline", PODS + "/a", {"spec": {"activeDeadlineSeconds": 20}}),
    merge("no tolerations", PODS + "/a", {"spec": {"tolerations": []}}),
    merge("another name", PODS + "/a", {"metadata": {"name": "z"}}),
    merge("an old resource version", PODS + "/a", {"metadata": {"resourceVersion": "1"}}),
    merge("another uid", PODS + "/a", {"metadata": {"uid": "1"}}, known=TWICE),
    merge(
        "another kind",
        PODS + "/a",
        {"kind": "X"},
        known=differs(
            "causes", "words", why="the real server shows the whole patched object, with its managed fields"
        ),
    ),
    merge("a pod that is not there", PODS + "/nope", {}),
    Step("a patch of an unknown type", "PATCH", PODS + "/a", {}, "application/foo"),
    strategic(
        "its status, and nothing else",
        PODS + "/a/status",
        {
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
            "spec": {"nodeName": "x"},
        },
    ),
    strategic(
        "one more condition", PODS + "/a/status", {"status": {"conditions": [{"type": "X", "status": "True"}]}}
    ),
    strategic(
        "a condition deleted, the others in order",
        PODS + "/a/status",
        {
            "status": {
                "$setElementOrder/conditions": [{"type": "X"}, {"type": "Ready"}],
                "conditions": [{"$patch": "delete", "type": "Ready"}],
            }
        },
    ),
    put("another name than the path's", PODS + "/a", pod("b")),
    put("a pod that is not there, put", PODS + "/nope", pod("nope")),
    put("a pod as it was made", PODS + "/a", pod("a"), known=GO_DIFF),
    post("a pod posted to itself", PODS + "/a", pod("a")),
]

BINDING = {"target": {"kind": "Node", "name": "n1"}}

PODS_BOUND_AND_READ: Steps = [
    post("a pod", PODS, {**pod("a"), "metadata": {"name": "a", "labels": {"q": "1"}}}),
    get("the logs of a pod without a node", PODS + "/a/log"),
    post("bound to a node", PODS + "/a/binding", named("a", **BINDING)),
    post("bound twice", PODS + "/a/binding", named("a", **BINDING)),
    post("bound by another name", PODS + "/a/binding", named("b", **BINDING)),
    post("a pod that is not there, bound", PODS + "/zz/binding", named("zz", **BINDING)),
    get("a bound pod", PODS + "/a"),
    get("the logs of a pod whose node is not there", PODS + "/a/log"),
    get("the logs of a pod that is not there", PODS + "/zz/log"),
    get("the logs of a container that is not there", PODS + "/a/log?container=zz"),
    get("by label and field", PODS + "?fieldSelector=spec.nodeName%3Dn1&labelSelector=q%3D1"),
    get("by a field that is none", PODS + "?fieldSelector=spec.foo%3Dn1"),
    get("a label selector that is none", PODS + "?labelSelector=a%20b%20c", known=GO_PARSER),
    get("a limit that is none", PODS + "?limit=x"),
    get("a continue token that is none", PODS + "?continue=zz", known=GO_PARSER),
    get("a resource version to come", PODS + "?resourceVersion=999999999"),
    get("a resource version that is none", PODS + "?resourceVersion=abc"),
    get("pods as a table", PODS, accept=TABLE),
    get("one pod as a table", PODS + "/a", accept=TABLE),
    get("a pod's metadata", PODS + "/a", accept=PARTIAL),
]

PODS_DELETED: Steps = [
    post("a pod", PODS, pod("a")),
    post("bound to a node", PODS + "/a/binding", named("a", **BINDING)),
    post("evicted", PODS + "/a/eviction", named("a", apiVersion="policy/v1", kind="Eviction")),
    get("an evicted pod", PODS + "/a"),
    delete("deleted", PODS + "/a"),
    delete("deleted within five seconds", PODS + "/a", {"gracePeriodSeconds": 5}),
    delete("another uid", PODS + "/a", {"preconditions": {"uid": "x"}}),
    delete("a propagation policy that is none", PODS + "/a", {"propagationPolicy": "X"}),
    merge("a finalizer on one that goes", PODS + "/a", {"metadata": {"finalizers": ["x.io/y"]}}, known=TWICE),
    delete("deleted at once", PODS + "/a", {"gracePeriodSeconds": 0}),
    get("a deleted pod", PODS + "/a"),
    delete("a pod that is not there, deleted", PODS + "/a"),
    get("a namespaced resource without its namespace", "/api/v1/pods/x"),
]

NAMESPACES: Steps = [
    put("a label", CORE, {"metadata": {"name": "{ns}", "labels": {"q": "r"}}}),
    delete("the default namespace", "/api/v1/namespaces/default"),
    delete("deleted", CORE),
    post("an object for one that goes", CORE + "/configmaps", named("x")),
    get("one that goes", CORE),
    put("finalized", CORE + "/finalize", named("{ns}", kind="Namespace", apiVersion="v1", spec={})),
    get("one that went", CORE),
]

TEMPLATE = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {"containers": [{"name": "a", "image": "x", "resources": {"limits": {"cpu": "1"}}}]},
}
SELECTOR = {"matchLabels": {"a": "b"}}
DEPLOYMENTS = APPS + "/deployments"
CONTAINERS_AB = [{"name": "a", "image": "z"}, {"name": "b", "image": "z"}]


def deployment(name: str, **spec: Any) -> dict[str, Any]:
    return named(name, spec={"selector": SELECTOR, "template": TEMPLATE, **spec})


WORKLOADS: Steps = [
    post("a deployment", DEPLOYMENTS, deployment("d")),
    post("a selector that misses", DEPLOYMENTS, deployment("d2", selector={"matchLabels": {"a": "c"}})),
    post("no selector", DEPLOYMENTS, named("d2", spec={"template": TEMPLATE})),
    post("an empty selector", DEPLOYMENTS, deployment("d2", selector={}, replicas=-1)),
    post(
        "two strategies",
        DEPLOYMENTS,
        deployment("d2", strategy={"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}),
    ),
    post("the strategy Recreate", DEPLOYMENTS, deployment("d3", strategy={"type": "Recreate"})),
    get("a scale", DEPLOYMENTS + "/d/scale"),
    merge("scaled", DEPLOYMENTS + "/d/scale", {"spec": {"replicas": 3}}),
    get("a scaled deployment", DEPLOYMENTS + "/d"),
    put(
        "a negative scale",
        DEPLOYMENTS + "/d/scale",
        {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {"name": "d", "namespace": "{ns}"},
            "spec": {"replicas": -1},
        },
    ),
    merge("another selector", DEPLOYMENTS + "/d", {"spec": {"selector": {"matchLabels": {"x": "y"}}}}),
    merge("an annotation", DEPLOYMENTS + "/d", {"metadata": {"annotations": {"x": "y"}}}),
    merge("a status", DEPLOYMENTS + "/d/status", {"status": {"replicas": 3, "observedGeneration": 2}}),
    strategic(
        "an order that contradicts its list",
        DEPLOYMENTS + "/d",
        {
            "spec": {
                "template": {
                    "spec": {
                        "containers": CONTAINERS_AB,
                        "$setElementOrder/containers": [{"name": "b"}, {"name": "a"}],
                    }
                }
            }
        },
    ),
    strategic(
        "an order that agrees with its list",
        DEPLOYMENTS + "/d",
        {
            "spec": {
                "template": {
                    "spec": {
                        "containers": CONTAINERS_AB,
                        "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
                    }
                }
            }
        },
    ),
    post("a replica set", APPS + "/replicasets", deployment("r")),
    post(
        "a stateful set",
        APPS + "/statefulsets",
        deployment(
            "s",
            serviceName="x",
            volumeClaimTemplates=[
                named(
                    "v",
                    spec={"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
                )
            ],
        ),
    ),
    merge("a stateful set's service", APPS + "/statefulsets/s", {"spec": {"serviceName": "y"}}),
    post("a daemon set", APPS + "/daemonsets", deployment("s")),
    get("deployments as a table", DEPLOYMENTS, accept=TABLE),
    get("replica sets as a table", APPS + "/replicasets", accept=TABLE),
    get("stateful sets as a table", APPS + "/statefulsets", accept=TABLE),
    get(
        "daemon sets as a table",
        APPS + "/daemonsets",
        accept=TABLE,
        known=differs(
            "object", why="the real server's table leaves out an annotation that is a field of its internal form"
        ),
    ),
]

ONCE = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "x"}]}}
JOBS = BATCH + "/jobs"


def job(name: str, **spec: Any) -> dict[str, Any]:
    return named(name, spec={"template": ONCE, **spec})


DISRUPTED = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}

JOBS_STORY: Steps = [
    post("a job", JOBS, job("j")),
    post("pods that restart always", JOBS, job("j1", template=TEMPLATE)),
    post("indexed without completions", JOBS, job("j1", parallelism=-1, completionMode="Indexed")),
    post(
        "a failure policy",
        JOBS,
        job(
            "j1",
            backoffLimit=0,
            podFailurePolicy={
                "rules": [DISRUPTED, {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [137]}}]
            },
        ),
    ),
    post(
        "a failure policy that is none",
        JOBS,
        job(
            "j2",
            podFailurePolicy={
                "rules": [
                    {"action": "FailJob"},
                    {"action": "Count", "onExitCodes": {"operator": "In", "values": [0, 3, 1]}},
                ]
            },
        ),
    ),
    post("a selector of one's own", JOBS, job("j2", selector={"matchLabels": {"x": "y"}})),
    post("a suspended job", JOBS, job("j3", suspend=True, completions=3)),
    merge("its parallelism", JOBS + "/j", {"spec": {"parallelism": 2, "backoffLimit": 1}}),
    merge("its completions", JOBS + "/j", {"spec": {"completions": 5}}),
    merge("a suspended job's node", JOBS + "/j3", {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}}),
    merge(
        "its status",
        JOBS + "/j/status",
        {"status": {"active": 1, "startTime": "2026-01-01T00:00:00+02:00", "ready": 0}},
    ),
    get("a job is read", JOBS + "/j"),
    get("jobs as a table", JOBS, accept=TABLE),
    delete("deleted, its pods orphaned", JOBS + "/j"),
    get("a job that waits for its pods to be orphaned", JOBS + "/j"),
    delete("deleted in the foreground", JOBS + "/j1?propagationPolicy=Foreground"),
    delete("deleted in the background", JOBS + "/j3?propagationPolicy=Background"),
    post(
        "a cron job",
        BATCH + "/cronjobs",
        named("c", spec={"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": ONCE}}}),
    ),
    post(
        "a schedule that is none",
        BATCH + "/cronjobs",
        named("c2", spec={"schedule": "x", "jobTemplate": {"spec": {"template": ONCE}}}),
    ),
    post(
        "a zone that is none",
        BATCH + "/cronjobs",
        named(
            "c2", spec={"schedule": "1 99 * * *", "timeZone": "Nope", "jobTemplate": {"spec": {"template": ONCE}}}
        ),
    ),
    get("cron jobs as a table", BATCH + "/cronjobs", accept=TABLE),
]

CONFIGURATION: Steps = [
    post("a config map", CORE + "/configmaps", named("c", data={"a": "b"}, immutable=True)),
    post("a key that is none", CORE + "/configmaps", named("c2", data={"a b": "b"})),
    post("an empty config map", CORE + "/configmaps", named("e")),
    merge("an immutable config map", CORE + "/configmaps/c", {"data": {"a": "c"}}),
    get("config maps as a table", CORE + "/configmaps", accept=TABLE),
    get("config maps, the first", CORE + "/configmaps?limit=500"),
    post("a secret", CORE + "/secrets", named("c", stringData={"a": "b"}, data={"b": "Yg=="})),
    post("a secret that is no base64", CORE + "/secrets", named("c2", data={"b": "!!"})),
    post("a certificate without its parts", CORE + "/secrets", named("c3", type="kubernetes.io/tls")),
    merge("a secret's type", CORE + "/secrets/c", {"type": "x"}),
    merge("a secret's text", CORE + "/secrets/c", {"stringData": {"q": "z"}}),
    get("secrets as a table", CORE + "/secrets", accept=TABLE),
    post(
        "a limit range",
        CORE + "/limitranges",
        named("l", spec={"limits": [{"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}}]}),
    ),
    post("a quota", CORE + "/resourcequotas", named("l", spec={"hard": {"pods": "2"}})),
    get("limit ranges as a table", CORE + "/limitranges", accept=TABLE),
    get("quotas as a table", CORE + "/resourcequotas", accept=TABLE),
    get("service accounts as a table", CORE + "/serviceaccounts", accept=TABLE),
]

SERVICES = CORE + "/services"


def service(name: str, **spec: Any) -> dict[str, Any]:
    return named(name, spec=spec)


NETWORK: Steps = [
    post("a service", SERVICES, service("s", ports=[{"port": 80}], selector={"a": "b"})),
    post("a headless service", SERVICES, service("s2", clusterIP="None")),
    post("no ports", SERVICES, service("s3")),
    post("a name elsewhere", SERVICES, service("s4", type="ExternalName", externalName="x.y")),
    post("two ports without names", SERVICES, service("s5", ports=[{"port": 80}, {"port": 81}])),
    post("a name with capitals, a port of none", SERVICES, service("S6", ports=[{"port": 0}])),
    post("an address out of range", SERVICES, service("s7", clusterIP="1.2.3.4", ports=[{"port": 1}])),
    merge(
        "its ports",
        SERVICES + "/s",
        {"spec": {"ports": [{"port": 80, "targetPort": 99}, {"port": 81, "name": "x"}]}},
    ),
    merge("its address", SERVICES + "/s", {"spec": {"clusterIP": "10.96.1.1"}}),
    get("services as a table", SERVICES, accept=TABLE),
    post(
        "endpoints",
        CORE + "/endpoints",
        named("l", subsets=[{"addresses": [{"ip": "1.2.3.4"}], "ports": [{"port": 80}]}]),
    ),
    get("endpoints as a table", CORE + "/endpoints", accept=TABLE),
    post(
        "an endpoint slice",
        "/apis/discovery.k8s.io/v1/namespaces/{ns}/endpointslices",
        named("l", addressType="IPv4", endpoints=[{"addresses": ["1.2.3.4"]}], ports=[{"port": 80}]),
    ),
    post(
        "a network policy",
        "/apis/networking.k8s.io/v1/namespaces/{ns}/networkpolicies",
        named(
            "n", spec={"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 80}]}]}
        ),
    ),
    post(
        "an ingress",
        "/apis/networking.k8s.io/v1/namespaces/{ns}/ingresses",
        named(
            "n",
            spec={
                "rules": [
                    {
                        "host": "a.b",
                        "http": {
                            "paths": [
                                {
                                    "path": "/",
                                    "pathType": "Prefix",
                                    "backend": {"service": {"name": "s", "port": {"number": 80}}},
                                }
                            ]
                        },
                    }
                ]
            },
        ),
    ),
    post(
        "an autoscaler",
        "/apis/autoscaling/v2/namespaces/{ns}/horizontalpodautoscalers",
        named(
            "h",
            spec={
                "maxReplicas": 3,
                "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
            },
        ),
    ),
]

CLAIMS = CORE + "/persistentvolumeclaims"
VOLUMES = "/api/v1/persistentvolumes"
STORAGE_CLASSES = "/apis/storage.k8s.io/v1/storageclasses"

STORAGE: Steps = [
    post(
        "a claim",
        CLAIMS,
        named("p", spec={"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}),
    ),
    post("an empty claim", CLAIMS, named("p2", spec={})),
    post(
        "a mode that is none, a size of none",
        CLAIMS,
        named("p2", spec={"accessModes": ["X"], "resources": {"requests": {"storage": "0"}}}),
    ),
    merge(
        "a claim resized unbound",
        CLAIMS + "/p",
        {"spec": {"resources": {"requests": {"storage": "2Gi"}}}},
        known=GO_DIFF,
    ),
    merge("a claim bound", CLAIMS + "/p/status", {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}),
    merge("a bound claim resized", CLAIMS + "/p", {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}),
    merge("a claim's mode", CLAIMS + "/p", {"spec": {"accessModes": ["ReadWriteMany"]}}, known=GO_DIFF),
    get("claims as a table", CLAIMS, accept=TABLE),
    delete("a claim deleted", CLAIMS + "/p"),
    post(
        "a volume",
        VOLUMES,
        named(
            "pv-{ns}",
            spec={
                "capacity": {"storage": "1024Mi"},
                "accessModes": ["ReadWriteOnce"],
                "hostPath": {"path": "/x"},
                "claimRef": {"name": "p", "namespace": "{ns}"},
            },
        ),
    ),
    post("an empty volume", VOLUMES, named("pv2-{ns}", spec={})),
    delete("a volume deleted", VOLUMES + "/pv-{ns}"),
    post("a storage class", STORAGE_CLASSES, named("sc-{ns}", provisioner="x.y/z")),
    post("a storage class without a provisioner", STORAGE_CLASSES, named("sc2-{ns}")),
    merge("another provisioner", STORAGE_CLASSES + "/sc-{ns}", {"provisioner": "q"}),
]

NODES = "/api/v1/nodes"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"

NODES_AND_PRIORITIES: Steps = [
    post(
        "a node",
        NODES,
        named("n-{ns}", status={"capacity": {"cpu": "4", "nvidia.com/gpu": "2"}}),
        known=differs("object", why="ours puts no not-ready taint on a new node: nothing here would take it back"),
    ),
    post(
        "taints that are none",
        NODES,
        named("n2-{ns}", spec={"taints": [{"key": "a", "effect": "X"}, {"key": "b b", "effect": "NoExecute"}]}),
    ),
    strategic(
        "cordoned and tainted",
        NODES + "/n-{ns}",
        {"spec": {"unschedulable": True, "taints": [{"key": "a", "effect": "NoExecute"}]}},
    ),
    strategic(
        "a node's status",
        NODES + "/n-{ns}/status",
        {
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "1.2.3.4"}],
            }
        },
    ),
    delete("a node deleted", NODES + "/n-{ns}"),
    post("a priority", PRIORITIES, named("p-{ns}", value=5)),
    post("a priority too high", PRIORITIES, named("p2-{ns}", value=2000000000)),
    post("a priority of the system", PRIORITIES, named("system-x", value=2)),
    merge("a priority changed", PRIORITIES + "/p-{ns}", {"value": 6}),
    delete("a priority deleted", PRIORITIES + "/p-{ns}"),
]

BUDGETS = "/apis/policy/v1/namespaces/{ns}/poddisruptionbudgets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"
EVENTS = "/apis/events.k8s.io/v1/namespaces/{ns}/events"
ABOUT_X = {"kind": "Pod", "name": "x", "namespace": "{ns}"}
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"

POLICY_AND_EVENTS: Steps = [
    post("a budget", BUDGETS, named("p", spec={"minAvailable": 1, "selector": SELECTOR})),
    post(
        "a budget of both kinds",
        BUDGETS,
        named("p2", spec={"minAvailable": 1, "maxUnavailable": "5x"}),
        known=differs("words", why="the real server shows its Go struct"),
    ),
    post(
        "a lease",
        LEASES,
        named(
            "l",
            spec={
                "holderIdentity": "me",
                "acquireTime": "2026-01-01T00:00:00.000000Z",
                "leaseDurationSeconds": 15,
            },
        ),
    ),
    put("a lease put without its version", LEASES + "/l", named("l", spec={})),
    put("a lease put where none is", LEASES + "/new", named("new", spec={"leaseDurationSeconds": 0})),
    post(
        "an event",
        CORE + "/events",
        named(
            "e",
            involvedObject=ABOUT_X,
            reason="R",
            message="m",
            type="Normal",
            count=1,
            firstTimestamp="2026-01-01T00:00:00Z",
        ),
    ),
    post(
        "an event about another namespace",
        CORE + "/events",
        named("e2", involvedObject={**ABOUT_X, "namespace": "other"}),
    ),
    get("an old event as a new one", EVENTS + "/e"),
    post(
        "a time with one decimal",
        EVENTS,
        named(
            "e3",
            regarding=ABOUT_X,
            reason="R",
            note="m",
            type="Normal",
            eventTime="2026-01-01T00:00:00.5Z",
            reportingController="a/b",
            reportingInstance="c",
            action="d",
        ),
    ),
    post(
        "a new event",
        EVENTS,
        named(
            "e3",
            regarding=ABOUT_X,
            reason="R",
            note="m",
            type="Normal",
            eventTime="2026-01-01T00:00:00.500000Z",
            reportingController="a/b",
            reportingInstance="c",
            action="d",
        ),
    ),
    get("a new event as an old one", CORE + "/events/e3"),
    get("events by field", CORE + "/events?fieldSelector=involvedObject.name%3Dx,type%3DNormal"),
    get("events as a table", CORE + "/events", accept=TABLE),
    post(
        "a role",
        RBAC + "/roles",
        named("a:b", rules=[{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]),
    ),
    post(
        "a role binding",
        RBAC + "/rolebindings",
        named(
            "rb",
            roleRef={"kind": "Role", "name": "a:b", "apiGroup": "rbac.authorization.k8s.io"},
            subjects=[{"kind": "User", "name": "x"}, {"kind": "ServiceAccount", "name": "x", "namespace": "y"}],
        ),
    ),
    post(
        "a webhook",
        HOOKS,
        named(
            "w-{ns}",
            webhooks=[
                {
                    "name": "a.b.c",
                    "clientConfig": {"url": "https://127.0.0.1:1/x"},
                    "sideEffects": "None",
                    "admissionReviewVersions": ["v1"],
                    "rules": [
                        {
                            "apiGroups": ["nope.x"],
                            "apiVersions": ["v1"],
                            "operations": ["CREATE"],
                            "resources": ["pods"],
                        }
                    ],
                }
            ],
        ),
    ),
    post(
        "a webhook that is none",
        HOOKS,
        named("w2-{ns}", webhooks=[{"name": "a", "clientConfig": {"url": "http://127.0.0.1:1/x"}}]),
    ),
    delete("a webhook deleted", HOOKS + "/w-{ns}"),
]

AUTHN = "/apis/authentication.k8s.io/v1"
AUTHZ = "/apis/authorization.k8s.io/v1"
GET_PODS = {"resourceAttributes": {"verb": "get", "resource": "pods"}}

REVIEWS: Steps = [
    post("who am I", AUTHN + "/selfsubjectreviews", {}),
    post("whose token", AUTHN + "/tokenreviews", {"spec": {"token": "{token}"}}),
    post("nobody's token", AUTHN + "/tokenreviews", {"spec": {"token": "bad"}}),
    post("may I", AUTHZ + "/selfsubjectaccessreviews", {"spec": GET_PODS}),
    post(
        "may the admin",
        AUTHZ + "/subjectaccessreviews",
        {"spec": {"user": "admin", "groups": ["system:masters"], **GET_PODS}},
    ),
    post("may nobody do nothing", AUTHZ + "/subjectaccessreviews", {"spec": {}}),
    get(
        "the version",
        "/version",
        known=differs("object", why="ours says that it is Moorage's, and which Kubernetes it follows"),
    ),
    get("a path that is none", "/nope"),
    get("health", "/healthz"),
]

RBAC_GROUP = "rbac.authorization.k8s.io"
CLUSTER_RBAC = f"/apis/{RBAC_GROUP}/v1"
ADA, ACCOUNT = "ada", "system:serviceaccount:{ns}:default"


def rule(verbs: str, resources: str, group: str = "", **more: Any) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split(), **more}


def bound(name: str, kind: str, role: str, *users: str) -> dict[str, Any]:
    subjects = [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user} for user in users]
    ref = {"kind": kind, "name": role, "apiGroup": "rbac.authorization.k8s.io"}
    return named(name, roleRef=ref, subjects=subjects)


def may(user: str, verb: str, resource: str, **more: Any) -> dict[str, Any]:
    asked = {"namespace": "{ns}", "verb": verb, "resource": resource, **more}
    return {"spec": {"user": user, "groups": ["system:authenticated"], "resourceAttributes": asked}}


ACCESS_REVIEWS = AUTHZ + "/subjectaccessreviews"

RIGHTS: Steps = [
    get("nobody's list", PODS, user=ADA),
    get("nobody's list everywhere", "/api/v1/pods", user=ADA),
    get("a namespace of others", "/api/v1/namespaces/{ns}", user=ADA),
    post("a pod by nobody", PODS, pod("p"), user=ADA),
    get("a path by nobody", "/metrics", user=ADA),
    get("groups for everybody", "/apis", user=ADA, known=differs("object", why="other groups are served")),
    post("a reader's role", RBAC + "/roles", named("reader", rules=[rule("get list", "pods")])),
    post("a reader", RBAC + "/rolebindings", bound("reader", "Role", "reader", ADA)),
    Until(PODS, user=ADA),
    get("a reader's list", PODS, user=ADA),
    get("a reader's log", PODS + "/p/log", user=ADA),
    delete("a reader's delete", PODS + "/p", user=ADA),
    post("may the reader read", ACCESS_REVIEWS, may(ADA, "list", "pods")),
    post("may the reader read elsewhere", ACCESS_REVIEWS, may(ADA, "list", "pods", namespace="default")),
    post("may the reader read logs", ACCESS_REVIEWS, may(ADA, "get", "pods", subresource="log")),
    post(
        "one secret's role",
        RBAC + "/roles",
        named(
            "one",
            rules=[rule("get watch list create", "secrets", resourceNames=["mine"]), rule("get", "*/status")],
        ),
    ),
    post("one secret's reader", RBAC + "/rolebindings", bound("one", "Role", "one", ADA)),
    Until(CORE + "/secrets?fieldSelector=metadata.name%3Dmine", user=ADA),
    get("my secret", CORE + "/secrets/mine", user=ADA),
    get("another secret", CORE + "/secrets/yours", user=ADA),
    get("all secrets", CORE + "/secrets", user=ADA),
    get("the list of my secret", CORE + "/secrets?fieldSelector=metadata.name%3Dmine", user=ADA),
    post("a secret of the right name", CORE + "/secrets", named("mine"), user=ADA),
    get("a status by its wildcard", APPS + "/deployments/none/status", user=ADA),
    post("who binds to nothing", RBAC + "/rolebindings", bound("nothing", "Role", "nope", "carl")),
    post(
        "the role of who makes roles",
        CLUSTER_RBAC + "/clusterroles",
        named("{ns}-maker", rules=[rule("get create update patch", "roles rolebindings", RBAC_GROUP)]),
    ),
    post("who makes roles", RBAC + "/rolebindings", bound("maker", "ClusterRole", "{ns}-maker", ADA)),
    Until(RBAC + "/roles/reader", user=ADA),
    post("less than I may", RBAC + "/roles", named("less", rules=[rule("get", "pods")]), user=ADA),
    post(
        "more than I may",
        RBAC + "/roles",
        named("more", rules=[rule("get delete", "pods secrets"), rule("get", "secrets", resourceNames=["mine"])]),
        user=ADA,
    ),
    post("unlike me", RBAC + "/roles", named("wide", rules=[rule("delete", "pods")])),
    merge("a role widened", RBAC + "/roles/less", {"rules": [rule("*", "pods")]}, user=ADA),
    merge("a role labelled", RBAC + "/roles/wide", {"metadata": {"labels": {"a": "b"}}}, user=ADA),
    get("bound to nothing", PODS, user="carl"),
    post("my rights for bob", RBAC + "/rolebindings", bound("b1", "Role", "reader", "bob"), user=ADA),
    post("no such rights for bob", RBAC + "/rolebindings", bound("b2", "Role", "none", "bob"), user=ADA),
    post(
        "an admin's rights for bob",
        RBAC + "/rolebindings",
        bound("b3", "ClusterRole", "cluster-admin", "bob"),
        user=ADA,
    ),
    post(
        "everybody's rights for bob",
        CLUSTER_RBAC + "/clusterrolebindings",
        bound("b4", "ClusterRole", "{ns}-maker", "bob"),
        user=ADA,
    ),
    post(
        "an account's rights",
        RBAC + "/rolebindings",
        {
            **bound("account", "Role", "reader"),
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "{ns}"}],
        },
    ),
    Until(PODS, user=ACCOUNT),
    post("may the account", ACCESS_REVIEWS, may(ACCOUNT, "get", "pods")),
    get("the account's list", PODS, user=ACCOUNT),
    post(
        "my rules",
        AUTHZ + "/selfsubjectrulesreviews",
        {"spec": {"namespace": "{ns}"}},
        user=ADA,
        known=differs("object", why="the real build shows more paths to everybody"),
    ),
    get("the role that aggregates", CLUSTER_RBAC + "/clusterroles/system:aggregate-to-edit"),
    get("what all may do", CLUSTER_RBAC + "/clusterroles/system:basic-user"),
    get("who may do all", CLUSTER_RBAC + "/clusterrolebindings/cluster-admin"),
]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
GROUP = "{ns}.example.com"


def crd(plural: str, kind: str, schema: Any, scope: str = "Namespaced", **version: Any) -> dict[str, Any]:
    resource = Resource(GROUP, "v1", plural, kind, namespaced=scope == "Namespaced")
    fields = {"schema": {"openAPIV3Schema": schema}} | version
    return builders.a_definition(resource, short_names=["wx" + plural], **fields)


TEXT = {"type": "string"}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 10},
                "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
                "name": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
                "q": {"x-kubernetes-int-or-string": True},
                "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "list": {
                    "type": "array",
                    "maxItems": 2,
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": TEXT, "n": {"type": "integer", "default": 5}},
                    },
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
                "set": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
                "m": {"type": "object", "additionalProperties": {"type": "integer"}},
                "nul": {"type": "string", "nullable": True},
                "when": {"type": "string", "format": "date-time"},
                "one": {
                    "type": "object",
                    "properties": {"a": TEXT, "b": TEXT},
                    "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
                },
                "ex": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
                "count": {"type": "integer"},
            },
        },
        "status": {
            "type": "object",
            "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}},
        },
    },
}
WITH_SUBRESOURCES: dict[str, Any] = {
    "subresources": {
        "status": {},
        "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas"},
    },
    "additionalPrinterColumns": [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
        {"name": "Since", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ],
}
WIDGETS = f"/apis/{GROUP}/v1/namespaces/{{ns}}/widgets"
PLAINS = f"/apis/{GROUP}/v1/plains"
DEFINED: Steps = [
    post("a definition", CRDS, crd("widgets", "Widget", SCHEMA, **WITH_SUBRESOURCES), known=BORN_ACCEPTED),
    Until(CRDS + f"/widgets.{GROUP}", condition="Established"),
    Until(WIDGETS),
]


def widget(name: str, /, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec}


DEFINITIONS: Steps = [
    *DEFINED,
    post("a definition under another name", CRDS, {**crd("bads", "Bad", SCHEMA), "metadata": {"name": "x"}}),
    post("fields without a type", CRDS, crd("bads", "Bad", {"properties": {"a": {}}})),
    post(
        "a list without items",
        CRDS,
        crd("bads", "Bad", {"type": "object", "properties": {"a": {"type": "array"}}}),
    ),
    get("an established definition", CRDS + f"/widgets.{GROUP}"),
    get("its group", f"/apis/{GROUP}"),
    get("its version", f"/apis/{GROUP}/v1"),
    get("no objects yet", WIDGETS),
    merge("another scope", CRDS + f"/widgets.{GROUP}", {"spec": {"scope": "Cluster"}}),
    post(
        "a definition without a schema",
        CRDS,
        crd("plains", "Plain", {"type": "object", "x-kubernetes-preserve-unknown-fields": True}, scope="Cluster"),
        known=BORN_ACCEPTED,
    ),
    Until(CRDS + f"/plains.{GROUP}", condition="Established"),
    Until(PLAINS),
    post(
        "any fields",
        PLAINS,
        {
            "apiVersion": f"{GROUP}/v1",
            "kind": "Plain",
            "metadata": {"name": "a"},
            "x": {"y": [1, {"z": None}]},
            "status": {"q": 1},
        },
    ),
    merge("any field changed", PLAINS + "/a", {"x": {"y": 2}}),
    merge("a status that is not served", PLAINS + "/a/status", {"x": {"y": 2}}),
    get("a table without columns of one's own", PLAINS, accept=TABLE),
    delete("a definition deleted", CRDS + f"/widgets.{GROUP}"),
    Until(CRDS + f"/widgets.{GROUP}", gone=True),
    get("objects of a definition that is gone", WIDGETS),
    get("a definition that is gone", CRDS + f"/widgets.{GROUP}"),
]

OBJECTS_REFUSED: Steps = [
    *DEFINED,
    post(
        "an unknown field, strict",
        WIDGETS + "?fieldValidation=Strict",
        widget("b", size=1, foo=2, list=[{"name": "x", "zz": 1}]),
    ),
    post("no spec", WIDGETS, {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "b"}}),
    post("a count that is a string", WIDGETS, widget("b", size=1, count="x")),
    post("a scale that is a string", WIDGETS, widget("b", size="x")),
    post("too little", WIDGETS, widget("b", size=0)),
    post("too much", WIDGETS, widget("b", size=11)),
    post("none of the enum", WIDGETS, widget("b", size=1, mode="c")),
    post("too short, and of another form", WIDGETS, widget("b", size=1, name="A")),
    post("too long", WIDGETS, widget("b", size=1, name="aaaaaaaa")),
    post("neither integer nor string", WIDGETS, widget("b", size=1, q=1.5)),
    post("two of a key", WIDGETS, widget("b", size=1, list=[{"name": "x"}, {"name": "x"}])),
    post(
        "too many, one without its key",
        WIDGETS,
        widget("b", size=1, list=[{"n": 1}, {"name": "b"}, {"name": "c"}]),
    ),
    post("twice in a set", WIDGETS, widget("b", size=1, set=["a", "a"])),
    post("a map's value", WIDGETS, widget("b", size=1, m={"a": "x"})),
    post("a time that is none", WIDGETS, widget("b", size=1, when="nope")),
    post("none of one", WIDGETS, widget("b", size=1, one={})),
    post("both of one", WIDGETS, widget("b", size=1, one={"a": "1", "b": "2"})),
    post("not above", WIDGETS, widget("b", size=1, ex=0)),
    post("null for what is required", WIDGETS, widget("b", size=None)),
    post("null where it is not allowed", WIDGETS, widget("b", size=1, count=None) | {"metadata": {"name": "c"}}),
    post("several at once", WIDGETS, widget("b", size=0, mode="z", name="A")),
    post("an integer as 1.0", WIDGETS, widget("d", size=1, count=1.0)),
    post("a scale as 1.0", WIDGETS, widget("b", size=1.0)),
    post(
        "a finalizer without a domain, a label that is a number",
        WIDGETS,
        {**widget("b", size=1), "metadata": {"name": "b", "finalizers": ["nope"], "labels": {"a": 1}}},
    ),
    post("a spec that is a string", WIDGETS, {**widget("b", size=1), "spec": "x"}),
]

OBJECTS_KEPT: Steps = [
    *DEFINED,
    post(
        "an object",
        WIDGETS,
        widget(
            "a",
            size=1,
            list=[{"name": "x"}],
            status={"x": 1},
            nul=None,
            m={"a": 1},
            any={"z": 1},
            q="5%",
            unknown=1,
        ),
    ),
    merge("its size", WIDGETS + "/a", {"spec": {"size": 3}}),
    strategic("a strategic patch", WIDGETS + "/a", {"spec": {"size": 3}}),
    merge("a status beside the point", WIDGETS + "/a", {"status": {"phase": "x"}}),
    merge(
        "its status, and nothing else",
        WIDGETS + "/a/status",
        {"status": {"phase": "Run", "replicas": 2}, "spec": {"size": 9}, "metadata": {"labels": {"a": "b"}}},
    ),
    merge("a label", WIDGETS + "/a", {"metadata": {"labels": {"a": "b"}}}),
    merge("a default taken away", WIDGETS + "/a", {"spec": {"mode": None}}),
    put("put without its version", WIDGETS + "/a", widget("a", size=4)),
    get("an object is read", WIDGETS + "/a"),
    get("its scale", WIDGETS + "/a/scale"),
    merge("scaled", WIDGETS + "/a/scale", {"spec": {"replicas": 7}}),
    get("a scaled object", WIDGETS + "/a"),
    get("objects as a table", WIDGETS, accept=TABLE),
    get("a list", WIDGETS),
    get("its metadata", WIDGETS + "/a", accept=PARTIAL),
    delete("deleted", WIDGETS + "/a"),
    get("a deleted object", WIDGETS + "/a"),
]

APPLIED: Steps = [
    *DEFINED,
    apply(
        "applied where none is",
        WIDGETS + "/new?fieldManager=me",
        widget("new", size=2, list=[{"name": "a", "n": 1}]),
    ),
    apply("applied again", WIDGETS + "/new?fieldManager=me", widget("new", size=2, list=[{"name": "a", "n": 2}])),
    apply("applied by nobody", WIDGETS + "/new", widget("new", size=2)),
    apply("applied by another, the same", WIDGETS + "/new?fieldManager=you", widget("new", size=2)),
    apply(
        "applied by another, one more item",
        WIDGETS + "/new?fieldManager=you",
        widget("new", size=2, list=[{"name": "b"}]),
    ),
    apply(
        "a config map",
        CORE + "/configmaps/c?fieldManager=me",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}},
    ),
    apply(
        "a config map by another",
        CORE + "/configmaps/c?fieldManager=you",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"b": "1"}},
    ),
    apply(
        "a value that another holds",
        CORE + "/configmaps/c?fieldManager=you",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "2", "b": "1"}},
        known=differs("status", why=NO_OWNERS),
    ),
    apply(
        "a value taken by force",
        CORE + "/configmaps/c?fieldManager=you&force=true",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "3", "b": "1"}},
    ),
    apply(
        "a value no longer applied",
        CORE + "/configmaps/c?fieldManager=you",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "3"}},
        known=differs("object", why=NO_OWNERS),
    ),
]

LIMITS = CORE + "/limitranges"
CLAIMS = CORE + "/persistentvolumeclaims"


def sized(name: str, *, limits: Any = None, requests: Any = None, **spec: Any) -> dict[str, Any]:
    """A pod whose one container has such resources."""
    made = limited(limits, requests)
    return {**made, "metadata": {"name": name}, "spec": {**made["spec"], **spec}}


def claim(name: str, storage: str, storage_class: str = "none") -> dict[str, Any]:
    resources = {"requests": {"storage": storage}}
    return named(
        name, spec={"accessModes": ["ReadWriteOnce"], "resources": resources, "storageClassName": storage_class}
    )


def bounded(kind: str, **bounds: Any) -> dict[str, Any]:
    return named(kind.lower(), spec={"limits": [{"type": kind, **bounds}]})


LIMITED: Steps = [
    post(
        "defaults for containers",
        LIMITS,
        bounded(
            "Container",
            default={"cpu": "1", "memory": "512Mi"},
            defaultRequest={"cpu": "500m", "memory": "256Mi"},
            max={"cpu": "2", "memory": "1Gi"},
            min={"cpu": "100m"},
            maxLimitRequestRatio={"memory": "2"},
        ),
    ),
    Until(PODS + "?dryRun=All", body=sized("z", limits={"cpu": "9"}), says="maximum cpu"),
    post("a pod filled in", PODS, pod("filled")),
    post("a request below the default limit", PODS, sized("half", requests={"cpu": "200m"})),
    post("a limit above the default request", PODS, sized("more", limits={"cpu": "1500m"})),
    post(
        "an init container filled in",
        PODS,
        {
            **pod("init", initContainers=[{"name": "i", "image": "x"}]),
            "metadata": {"name": "init", "annotations": {"a": "b"}},
        },
    ),
    post("more than the most", PODS, sized("a", limits={"cpu": "3"})),
    post("less than the least", PODS, sized("a", requests={"cpu": "50m"})),
    post("a limit below the least", PODS, sized("a", limits={"cpu": "50m"})),
    post("a ratio too wide", PODS, sized("a", limits={"memory": "1Gi"}, requests={"memory": "100Mi"})),
    post("nothing requested of what has a ratio", PODS, sized("a", requests={"memory": "0"})),
    post("a default limit below the request", PODS, sized("a", requests={"cpu": "1500m"})),
    merge("a pod changed, whatever its limits", PODS + "/filled", {"metadata": {"labels": {"a": "b"}}}),
    delete("no more defaults", LIMITS + "/container"),
    Until(PODS + "?dryRun=All", body=sized("z", limits={"cpu": "9"}), status=201),
    post("bounds of pods", LIMITS, bounded("Pod", max={"cpu": "2"})),
    Until(PODS + "?dryRun=All", body=sized("z", limits={"cpu": "9"}), says="maximum cpu"),
    post("a pod without limits", PODS, pod("a")),
    post(
        "two containers beyond the most",
        PODS,
        pod(
            "a",
            containers=[
                {"name": one, "image": "x", "resources": {"limits": {"cpu": "1500m"}}} for one in ("a", "b")
            ],
        ),
    ),
    post("two containers within", PODS, sized("two", limits={"cpu": "2"})),
    delete("no more bounds of pods", LIMITS + "/pod"),
    post(
        "bounds of claims",
        LIMITS,
        bounded("PersistentVolumeClaim", min={"storage": "1Gi"}, max={"storage": "10Gi"}),
    ),
    Until(CLAIMS + "?dryRun=All", body=claim("z", "99Gi"), says="maximum storage"),
    post("a claim too small", CLAIMS, claim("c", "500Mi")),
    post("a claim too large", CLAIMS, claim("c", "11Gi")),
    post("a claim within", CLAIMS, claim("c", "10Gi")),
]

QUOTAS = CORE + "/resourcequotas"


def quota(name: str, hard: Any, **spec: Any) -> dict[str, Any]:
    return named(name, spec={"hard": hard, **spec})


def counted(hard: Any, used: Any) -> dict[str, Any]:
    return {"status": {"hard": hard, "used": used}}


COMPUTE = {"requests.cpu": "2", "limits.memory": "2Gi", "pods": "4", "requests.nvidia.com/gpu": "2"}
COUNTS = {
    "count/configmaps": "1",
    "count/jobs.batch": "1",
    "secrets": "1",
    "services": "2",
    "services.nodeports": "1",
    "persistentvolumeclaims": "2",
    "requests.storage": "10Gi",
    "gold.storageclass.storage.k8s.io/requests.storage": "3Gi",
    "count/widgets.example.org": "3",
}


def taking(name: str, cpu: str = "500m", memory: str = "512Mi", gpus: int = 0, **spec: Any) -> dict[str, Any]:
    devices = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return sized(name, requests={"cpu": cpu, **devices}, limits={"memory": memory, **devices}, **spec)


WITHIN_QUOTAS: Steps = [
    post("a quota of computing", QUOTAS, quota("compute", COMPUTE)),
    merge("what it says before anything is counted", QUOTAS + "/compute/status", {"status": {"hard": COMPUTE}}),
    Until(PODS + "?dryRun=All", body=taking("z"), says="status unknown"),
    post("a pod while nothing is counted", PODS, taking("a")),
    merge("counted", QUOTAS + "/compute/status", counted(COMPUTE, dict.fromkeys(COMPUTE, "0"))),
    Until(PODS + "?dryRun=All", body=taking("z"), status=201),
    post("a pod that does not say what it needs", PODS, pod("silent")),
    post(
        "two containers, one silent, one half",
        PODS,
        pod(
            "silent",
            containers=[
                {"name": "a", "image": "x", "resources": {"requests": {"cpu": "1"}}},
                {"name": "b", "image": "x"},
            ],
        ),
    ),
    post("a pod within", PODS, taking("a", gpus=1)),
    get("used by one", QUOTAS + "/compute"),
    post("too much cpu", PODS, taking("b", cpu="1600m")),
    post("too much of everything", PODS, taking("b", cpu="3", memory="4Gi", gpus=2)),
    post("too many devices", PODS, taking("b", gpus=2)),
    post("a dry run within", PODS + "?dryRun=All", taking("b")),
    post(
        "an init container that wants more",
        PODS,
        taking(
            "init",
            initContainers=[
                {
                    "name": "i",
                    "image": "x",
                    "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1G"}},
                }
            ],
        ),
    ),
    get("used by two", QUOTAS + "/compute"),
    post("the name is taken", PODS, taking("a")),
    post("a last one, with a sidecar", PODS, taking("c", cpu="100m", memory="1Mi")),
    post("too many pods", PODS, taking("d", cpu="100m", memory="1Mi")),
    post("a quota of counts", QUOTAS, quota("counts", COUNTS)),
    merge("counts counted", QUOTAS + "/counts/status", counted(COUNTS, dict.fromkeys(COUNTS, "0"))),
    Until(CLAIMS + "?dryRun=All", body=claim("z", "99Gi"), says="exceeded quota"),
    post("a config map within", CORE + "/configmaps", named("a")),
    post("a config map too many", CORE + "/configmaps", named("b")),
    post("a secret within", CORE + "/secrets", named("a")),
    post("a secret too many", CORE + "/secrets", named("b")),
    post("a service", CORE + "/services", service("a", ports=[{"port": 80}])),
    post(
        "two node ports too many",
        CORE + "/services",
        service("b", type="NodePort", ports=[{"name": "a", "port": 80}, {"name": "b", "port": 81}]),
    ),
    merge(
        "a service that becomes one of node ports",
        CORE + "/services/a",
        {"spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30123}]}},
    ),
    post("a balancer", CORE + "/services", service("b", type="LoadBalancer", ports=[{"port": 80}])),
    post("a claim within the quota", CLAIMS, claim("a", "2Gi", "gold")),
    post("a claim of gold too much", CLAIMS, claim("b", "2Gi", "gold")),
    post("a claim too large for the quota", CLAIMS, claim("b", "9Gi")),
    post("a second claim", CLAIMS, claim("b", "8Gi")),
    post("a third claim", CLAIMS, claim("c", "1Mi")),
    get("counts used", QUOTAS + "/counts"),
    delete("an object deleted", CORE + "/configmaps/a"),
    get("used until it is counted anew", QUOTAS + "/counts"),
    get("used quotas as a table", QUOTAS, accept=TABLE),
]


def scoped(name: str, hard: Any, *scopes: str, **selector: Any) -> list[Step]:
    spec: dict[str, Any] = {"scopes": list(scopes)} if scopes else {}
    if selector:
        spec["scopeSelector"] = {"matchExpressions": [selector]}
    return [
        post(f"a quota {name}", QUOTAS, quota(name, hard, **spec)),
        merge(f"a quota {name} counted", QUOTAS + f"/{name}/status", counted(hard, dict.fromkeys(hard, "0"))),
    ]


IN_SCOPES: Steps = [
    *scoped("of-ending", {"pods": "0"}, "Terminating"),
    Until(PODS + "?dryRun=All", body=pod("z", activeDeadlineSeconds=5), says="exceeded quota"),
    post("a pod that ends by itself", PODS, pod("a", activeDeadlineSeconds=5)),
    post("a pod that does not", PODS, pod("lasting")),
    delete("no quota of ending ones", QUOTAS + "/of-ending"),
    Until(PODS + "?dryRun=All", body=pod("z", activeDeadlineSeconds=5), status=201),
    *scoped("of-lasting", {"pods": "0", "requests.cpu": "1"}, "NotTerminating"),
    Until(PODS + "?dryRun=All", body=pod("z"), says="must specify"),
    post("a lasting pod", PODS, sized("a", requests={"cpu": "1"})),
    post("an ending pod", PODS, pod("ending", activeDeadlineSeconds=5)),
    delete("no quota of lasting ones", QUOTAS + "/of-lasting"),
    Until(PODS + "?dryRun=All", body=pod("z"), status=201),
    *scoped("of-best-effort", {"pods": "0"}, "BestEffort"),
    Until(PODS + "?dryRun=All", body=pod("z"), says="exceeded quota"),
    post("a pod without requests", PODS, pod("a")),
    post("a pod with requests", PODS, sized("wanting", requests={"cpu": "1"})),
    delete("no quota of best effort", QUOTAS + "/of-best-effort"),
    Until(PODS + "?dryRun=All", body=pod("z"), status=201),
    *scoped(
        "of-priority",
        {"pods": "0"},
        scopeName="PriorityClass",
        operator="In",
        values=["system-node-critical", "other"],
    ),
    Until(PODS + "?dryRun=All", body=pod("z", priorityClassName="system-node-critical"), says="exceeded quota"),
    post("a pod of that priority", PODS, pod("a", priorityClassName="system-node-critical")),
    post("a pod of another", PODS, pod("other", priorityClassName="system-cluster-critical")),
    post("a pod of none", PODS, pod("none")),
]

INGRESSES = "/apis/networking.k8s.io/v1/namespaces/{ns}/ingresses"
A_BACKEND = {"service": {"name": "s", "port": {"number": 80}}}


def ingress(
    host: str = "a.b", *, backend: Any = A_BACKEND, kind: Any = "Prefix", path: str = "/"
) -> dict[str, Any]:
    one = {"path": path, "pathType": kind, "backend": backend}
    rule = {"host": host, "http": {"paths": [{name: value for name, value in one.items() if value is not None}]}}
    return named("i", spec={"rules": [rule]})


def to(name: str = "s", port: Any = None) -> dict[str, Any]:
    return {"service": {"name": name, "port": port or {}}}


def by_default(**spec: Any) -> dict[str, Any]:
    return named("i", spec={"defaultBackend": A_BACKEND} | spec)


INGRESSES_REFUSED: Steps = [
    post("neither rules nor a default", INGRESSES, named("i", spec={})),
    post("a default alone", INGRESSES, named("d", spec={"defaultBackend": A_BACKEND})),
    post("a host with capitals", INGRESSES, ingress("A.b")),
    post("a host with a port", INGRESSES, ingress("a.b:80")),
    post("a host that is an address", INGRESSES, ingress("127.0.0.1")),
    post("a wildcard", INGRESSES, ingress("*.a.b")),
    post("a wildcard of two labels", INGRESSES, ingress("*.*.b")),
    post("a wildcard alone", INGRESSES, ingress("*")),
    post("no kind of path", INGRESSES, ingress(kind=None)),
    post("an unknown kind of path", INGRESSES, ingress(kind="Regex")),
    post("a path without a slash", INGRESSES, ingress(path="a")),
    post("a path with dots", INGRESSES, ingress(path="/a/../b")),
    post("a path that ends with dots", INGRESSES, ingress(path="/a/..")),
    post("a path with an encoded slash", INGRESSES, ingress(path="/a%2fb")),
    post("no paths", INGRESSES, named("i", spec={"rules": [{"host": "a", "http": {"paths": []}}]})),
    post("no backend", INGRESSES, ingress(backend={})),
    post("a backend without a port", INGRESSES, ingress(backend=to())),
    post("a backend with two ports", INGRESSES, ingress(backend=to(port={"number": 80, "name": "a"}))),
    post("a backend with a port beyond", INGRESSES, ingress(backend=to(port={"number": 70_000}))),
    post("a backend with an odd port name", INGRESSES, ingress(backend=to(port={"name": "A--1"}))),
    post("a backend without a name", INGRESSES, ingress(backend=to("", {"number": 80}))),
    post(
        "a class with capitals", INGRESSES, named("i", spec={"ingressClassName": "A", "defaultBackend": A_BACKEND})
    ),
    post(
        "an odd host of a certificate",
        INGRESSES,
        named("i", spec={"tls": [{"hosts": ["A"]}], "defaultBackend": A_BACKEND}),
    ),
    post(
        "two classes",
        INGRESSES,
        {
            "metadata": {"name": "i", "annotations": {"kubernetes.io/ingress.class": "a"}},
            "spec": {"ingressClassName": "b", "defaultBackend": A_BACKEND},
        },
    ),
]

CERTIFICATES = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
KEY_REQUEST = (
    "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIRk1HNENBUUF3RERFS01BZ0dBMVVFQXd3QllUQlpNQk1H"
    "QnlxR1NNNDlBZ0VHQ0NxR1NNNDlBd0VIQTBJQQpCR3NrMnZtKzkvdGwrQ2dOZ0c1SE9xcSt2ckpKNGxtNXdhZnBLV1VuenhV"
    "cGRBMzVmNWZ6QS8vN2RHdmFxeWRDCmxxRXFyNkw2VXVmZUtJQ3N0QUIwdlFLZ0FEQUtCZ2dxaGtqT1BRUURBZ05IQURCRUFp"
    "Qm91aWM2OVRvSXVDMW0Kdmd5U0diRk5XWkFjYlU3SFdCdUZ1NnMrOGkva1VBSWdLRGVTNEx5UjJXcGgxbDN5ZGt3SEV3SWcw"
    "MjlhOE8xRgpYcE1RWnlFc3p6RT0KLS0tLS1FTkQgQ0VSVElGSUNBVEUgUkVRVUVTVC0tLS0tCg=="
)  # a PKCS #10 request, PEM in base64


def signing_request(name: str, **spec: Any) -> dict[str, Any]:
    base = {"request": KEY_REQUEST, "signerName": "example.com/login", "usages": ["client auth"]}
    return named(name, spec=base | spec)


def refused_request(name: str, **spec: Any) -> Step:
    return post(name, CERTIFICATES, signing_request("{ns}-no", **spec))


ONE_REQUEST = CERTIFICATES + "/{ns}-a"
SIGNING_REQUESTS: Steps = [
    post("a request bears who made it", CERTIFICATES, signing_request("{ns}-a", expirationSeconds=600)),
    post(
        "whatever it says itself",
        CERTIFICATES,
        signing_request("{ns}-b", username="mallory", uid="x", groups=["g"], extra={"k": ["v"]})
        | {"status": {"certificate": "YQ==", "conditions": [{"type": "Approved", "status": "True"}]}},
    ),
    merge(
        "its spec does not change", ONE_REQUEST, {"spec": {"username": "mallory", "signerName": "example.com/x"}}
    ),
    merge("nor its status but by its own path", ONE_REQUEST, {"status": {"certificate": "YQ=="}}),
    merge("a label does", ONE_REQUEST, {"metadata": {"labels": {"story": "{ns}"}}}),
    merge("a status that is no certificate", ONE_REQUEST + "/status", {"status": {"certificate": "YQ=="}}),
    refused_request("no signer", signerName=""),
    refused_request("a signer without a domain", signerName="login"),
    refused_request("a signer of the past", signerName="kubernetes.io/legacy-unknown"),
    refused_request("no usages", usages=[]),
    refused_request("a usage that nobody knows", usages=["flying"]),
    refused_request("a usage twice", usages=["client auth", "client auth"]),
    refused_request("too short", expirationSeconds=599),
    refused_request("no request in it", request="YWJj"),
    get("a table", CERTIFICATES + "?labelSelector=story%3D{ns}", accept=TABLE),
    get("by signer", CERTIFICATES + "?labelSelector=story%3D{ns}&fieldSelector=spec.signerName%3Dexample.com/y"),
    delete("gone", ONE_REQUEST),
    delete("the other, too", CERTIFICATES + "/{ns}-b"),
]


STORIES: dict[str, Steps] = {
    "pods made and refused": PODS_CREATED,
    "bodies": BODIES,
    "certificates are asked for": SIGNING_REQUESTS,
    "pods changed": PODS_CHANGED,
    "pods bound and read": PODS_BOUND_AND_READ,
    "pods deleted": PODS_DELETED,
    "namespaces": NAMESPACES,
    "deployments and their like": WORKLOADS,
    "jobs": JOBS_STORY,
    "configuration": CONFIGURATION,
    "network": NETWORK,
    "ingresses refused": INGRESSES_REFUSED,
    "storage": STORAGE,
    "nodes and priorities": NODES_AND_PRIORITIES,
    "policy and events": POLICY_AND_EVENTS,
    "reviews": REVIEWS,
    "rights": RIGHTS,
    "definitions": DEFINITIONS,
    "custom objects refused": OBJECTS_REFUSED,
    "custom objects kept": OBJECTS_KEPT,
    "server-side apply": APPLIED,
    "limit ranges": LIMITED,
    "quotas": WITHIN_QUOTAS,
    "quotas in scopes": IN_SCOPES,
}


# --- what a mutating webhook is shown, and what becomes of its patch


@dataclass(frozen=True, slots=True)
class Mutated:
    """A creation that a webhook of the test is asked about, and answers with these JSON patches."""

    name: str
    path: str
    body: Any
    patch: tuple[Any, ...] = ()


_HOOKED_CONTAINER = {"name": "c", "image": "example.test/none:1"}
_HOOKED_POD = {"containers": [_HOOKED_CONTAINER]}
_HOOKED_LABELS = {"app": "x"}
_HOOKED_JOB = {"template": {"spec": _HOOKED_POD | {"restartPolicy": "Never"}}}
_FAIL_ON_137 = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [137]}}]}


def _add(path: str, value: Any) -> Any:
    return {"op": "add", "path": path, "value": value}


MUTATED = (
    Mutated("a job", "/apis/batch/v1/namespaces/{ns}/jobs", {"metadata": {"name": "plain"}, "spec": _HOOKED_JOB}),
    Mutated(
        "a job that gets a failure policy beside the default replacement policy",
        "/apis/batch/v1/namespaces/{ns}/jobs",
        {"metadata": {"name": "refused"}, "spec": _HOOKED_JOB},
        (_add("/spec/podFailurePolicy", _FAIL_ON_137),),
    ),
    Mutated(
        "a job that gets both policies",
        "/apis/batch/v1/namespaces/{ns}/jobs",
        {"metadata": {"name": "both"}, "spec": _HOOKED_JOB},
        (_add("/spec/podFailurePolicy", _FAIL_ON_137), _add("/spec/podReplacementPolicy", "Failed")),
    ),
    Mutated(
        "a cron job that gets a failure policy",
        "/apis/batch/v1/namespaces/{ns}/cronjobs",
        {"metadata": {"name": "nightly"}, "spec": {"schedule": "0 3 * * *", "jobTemplate": {"spec": _HOOKED_JOB}}},
        (_add("/spec/jobTemplate/spec/podFailurePolicy", _FAIL_ON_137),),
    ),
    Mutated(
        "a pod that gets a limit: its request follows",
        "/api/v1/namespaces/{ns}/pods",
        {"metadata": {"name": "limited"}, "spec": _HOOKED_POD},
        (_add("/spec/containers/0/resources", {"limits": {"memory": "1Gi"}}),),
    ),
    Mutated(
        "a pod that has a limit: its request was there, and stays",
        "/api/v1/namespaces/{ns}/pods",
        {
            "metadata": {"name": "raised"},
            "spec": {"containers": [_HOOKED_CONTAINER | {"resources": {"limits": {"memory": "1Gi"}}}]},
        },
        (_add("/spec/containers/0/resources/limits", {"memory": "2Gi"}),),
    ),
    Mutated(
        "a pod that gets another class of the same value",
        "/api/v1/namespaces/{ns}/pods",
        {"metadata": {"name": "calm"}, "spec": _HOOKED_POD},
        (_add("/spec/priorityClassName", "calm"), _add("/spec/preemptionPolicy", "Never")),
    ),
    Mutated(
        "a pod that gets another class, and keeps what the first one said",
        "/api/v1/namespaces/{ns}/pods",
        {"metadata": {"name": "torn"}, "spec": _HOOKED_POD},
        (_add("/spec/priorityClassName", "calm"),),
    ),
    Mutated(
        "a deployment",
        "/apis/apps/v1/namespaces/{ns}/deployments",
        {
            "metadata": {"name": "web"},
            "spec": {
                "selector": {"matchLabels": _HOOKED_LABELS},
                "template": {"metadata": {"labels": _HOOKED_LABELS}, "spec": _HOOKED_POD},
            },
        },
        (_add("/spec/template/spec/containers/0/ports", [{"containerPort": 80}]),),
    ),
    Mutated(
        "a claim",
        "/api/v1/namespaces/{ns}/persistentvolumeclaims",
        {
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        },
        (_add("/metadata/labels", _HOOKED_LABELS),),
    ),
)
