"""The pipeline as the local cluster's own parts meet it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from moorage_kube.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    ServerError,
    StorageFull,
    TooManyRequests,
    UnsupportedMediaType,
)
from moorage_kube.resources import (
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PDBS,
    PODS,
    PRIORITYCLASSES,
    PVCS,
    SECRETS,
    SERVICEACCOUNTS,
    SERVICES,
    STATEFULSETS,
    STORAGECLASSES,
    Obj,
    Resource,
)
from moorage_kube.testing import builders
from moorage_local.apiserver.client import InProcessClient
from moorage_local.apiserver.server import ApiServer
from moorage_local.storage import MemoryStorage

pytestmark = pytest.mark.anyio
DEADLINE_SECONDS = 180
NEW_EVENTS = Resource("events.k8s.io", "v1", "events", "Event")


def a_pod(name: str = "p", *, labels: dict[str, str] | None = None, **spec: Any) -> Obj:
    container = {"name": "c", "image": "busybox:1"}
    return builders.a_pod(name, namespace="default", labels=labels, container=container, spec=spec)


def a_job(name: str = "j", **spec: Any) -> Obj:
    return builders.a_job(name, namespace="default", image="x", spec=spec)


async def bind(api: InProcessClient, name: str = "p", node: str = "n") -> None:
    await api.create_subresource(PODS, name, "binding", {"target": {"kind": "Node", "name": node}}, "default")


def causes(error: ApiError) -> list[tuple[str, str]]:
    return [(one["field"], one["message"]) for one in (error.details or {}).get("causes", [])]


# --- create, get, names


async def test_what_every_cluster_has_is_there_from_the_start(api: InProcessClient) -> None:
    names = [one["metadata"]["name"] for one in (await api.list(NAMESPACES)).items]
    assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]
    classes = {one["metadata"]["name"]: one["value"] for one in (await api.list(PRIORITYCLASSES)).items}
    assert classes == {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
    assert (await api.get(SERVICES, "kubernetes", "default"))["spec"]["clusterIP"] == "10.96.0.1"


async def test_a_new_object_gets_what_only_the_server_gives(api: InProcessClient) -> None:
    given = {**a_pod(), "status": {"phase": "Running"}}
    given["metadata"] |= {"uid": "mine", "generation": 9, "creationTimestamp": "2001-01-01T00:00:00Z"}
    made = await api.create(PODS, given)
    meta = made["metadata"]
    assert re.fullmatch(r"[0-9a-f-]{36}", meta["uid"])
    assert meta["creationTimestamp"] == "2026-01-01T12:00:00Z"
    assert (meta["generation"], meta["resourceVersion"].isdigit()) == (1, True)
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert await api.get(PODS, "p", "default") == made


async def test_a_pod_gets_the_defaults_of_the_real_server(api: InProcessClient) -> None:
    container = {"name": "c", "image": "x", "resources": {"limits": {"cpu": "1.5", "nvidia.com/gpu": 1}}}
    made = await api.create(PODS, a_pod(containers=[container]))
    assert made["spec"] == {
        "containers": [
            {
                "name": "c",
                "image": "x",
                "imagePullPolicy": "Always",
                "resources": {
                    "limits": {"cpu": "1500m", "nvidia.com/gpu": "1"},
                    "requests": {"cpu": "1500m", "nvidia.com/gpu": "1"},
                },
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }
        ],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "serviceAccount": "default",
        "serviceAccountName": "default",
        "terminationGracePeriodSeconds": 30,
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{taint}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for taint in ("not-ready", "unreachable")
        ],
    }


@pytest.mark.parametrize(
    ("resources", "want"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        (
            {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1024Mi"}},
            "Guaranteed",
        ),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
        ({"limits": {"nvidia.com/gpu": "1"}}, "BestEffort"),
    ],
)
async def test_quality_of_service_follows_requests_and_limits(
    api: InProcessClient, resources: Obj, want: str
) -> None:
    made = await api.create(PODS, a_pod(containers=[{"name": "c", "image": "x", "resources": resources}]))
    assert made["status"]["qosClass"] == want


async def test_a_name_that_is_taken_is_refused(api: InProcessClient) -> None:
    await api.create(PODS, a_pod())
    with pytest.raises(AlreadyExists) as caught:
        await api.create(PODS, a_pod())
    assert caught.value.message == 'pods "p" already exists'
    assert caught.value.details == {"name": "p", "kind": "pods"}


async def test_generate_name_makes_names_that_differ(api: InProcessClient) -> None:
    pod = {**a_pod(), "metadata": {"generateName": "run-"}}
    names = {(await api.create(PODS, pod, "default"))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(re.fullmatch(r"run-[a-z0-9]{5}", name) for name in names)


async def test_a_dry_run_stores_nothing(api: InProcessClient, server: ApiServer) -> None:
    before = server.storage.revision
    made = await api.create(PODS, a_pod(), dry_run=True)
    assert made["spec"]["restartPolicy"] == "Always"
    assert server.storage.revision == before
    await api.create(PODS, a_pod())
    with pytest.raises(AlreadyExists):
        await api.create(PODS, a_pod(), dry_run=True)


async def test_what_is_given_and_what_is_returned_are_the_callers_own(api: InProcessClient) -> None:
    given = a_pod()
    made = await api.create(PODS, given)
    assert given == a_pod()
    made["spec"]["containers"].clear()
    read = await api.get(PODS, "p", "default")
    read["metadata"]["labels"] = {"x": "y"}
    assert (await api.get(PODS, "p", "default"))["metadata"].get("labels") is None


async def test_an_unknown_resource_and_an_unknown_name_are_not_found(api: InProcessClient) -> None:
    with pytest.raises(NotFound):
        await api.list(Resource("nope.io", "v1", "things", "Thing"))
    with pytest.raises(NotFound) as caught:
        await api.get(JOBS, "x", "default")
    assert caught.value.message == 'jobs.batch "x" not found'
    assert caught.value.details == {"name": "x", "kind": "jobs", "group": "batch"}


# --- what is refused


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        pytest.param({"containers": []}, [("spec.containers", "Required value")], id="no containers"),
        pytest.param(
            {"containers": [{"name": "A_", "image": "x"}]},
            [("spec.containers[0].name", r'Invalid value: "A_": a lowercase RFC 1123 label')],
            id="bad container name",
        ),
        pytest.param(
            {"containers": [{"name": "c", "image": "x"}, {"name": "c", "image": "x"}]},
            [("spec.containers[1].name", 'Duplicate value: "c"')],
            id="same name twice",
        ),
        pytest.param(
            {"containers": [{"name": "c"}]}, [("spec.containers[0].image", "Required value")], id="no image"
        ),
        pytest.param(
            {"containers": [{"name": "c", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
            [("spec.containers[0].volumeMounts[0].name", 'Not found: "v"')],
            id="mount of no volume",
        ),
        pytest.param(
            {"restartPolicy": "Maybe"},
            [("spec.restartPolicy", 'Unsupported value: "Maybe"')],
            id="unknown restart policy",
        ),
    ],
)
async def test_a_wrong_pod_is_refused_with_the_path_of_each_field(
    api: InProcessClient, spec: Obj, want: list[tuple[str, str]]
) -> None:
    with pytest.raises(Invalid) as caught:
        await api.create(PODS, a_pod(**spec))
    found = causes(caught.value)
    assert [field for field, _ in found] == [field for field, _ in want]
    assert all(message.startswith(start) for (_, message), (_, start) in zip(found, want, strict=True))


async def test_pods_of_a_stateful_set_mount_its_claims_by_name(api: InProcessClient) -> None:
    pod = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {
            "containers": [{"name": "c", "image": "x", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]
        },
    }
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    spec = {"serviceName": "s", "selector": {"matchLabels": {"a": "b"}}, "template": pod}
    obj: Obj = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "s"}, "spec": spec}
    with pytest.raises(Invalid, match=r"volumeMounts\[0\].name: Not found: \"data\""):
        await api.create(STATEFULSETS, obj, "default")
    made = await api.create(STATEFULSETS, {**obj, "spec": {**spec, "volumeClaimTemplates": [claim]}}, "default")
    assert "volumes" not in made["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("resources", "field", "said"),
    [
        (
            {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}},
            "requests",
            "must be less than or equal to cpu limit of 1",
        ),
        (
            {"limits": {"a.b/gpu": "2"}, "requests": {"a.b/gpu": "1"}},
            "requests",
            "must be equal to a.b/gpu limit of 2",
        ),
        ({"requests": {"a.b/gpu": "1"}}, "limits", "Limit must be set for non overcommitable resources"),
        ({"limits": {"a.b/gpu": "500m"}}, "limits[a.b/gpu]", "must be an integer"),
        ({"limits": {"gpu": "1"}}, "limits[gpu]", "must be a standard resource type or fully qualified"),
        ({"limits": {"memory": "-1"}}, "limits[memory]", "must be greater than or equal to 0"),
    ],
)
async def test_wrong_requests_and_limits_are_refused(
    api: InProcessClient, resources: Obj, field: str, said: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await api.create(PODS, a_pod(containers=[{"name": "c", "image": "x", "resources": resources}]))
    found = causes(caught.value)
    assert any(path == f"spec.containers[0].resources.{field}" and said in message for path, message in found), (
        found
    )


async def test_what_is_no_quantity_is_a_bad_request(api: InProcessClient) -> None:
    with pytest.raises(BadRequest, match="quantities must match the regular expression"):
        await api.create(
            PODS, a_pod(containers=[{"name": "c", "image": "x", "resources": {"limits": {"cpu": "many"}}}])
        )


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"apiVersion": "v2"}, BadRequest),
        ({"kind": "Node"}, BadRequest),
        ({"metadata": {"name": "p", "namespace": "missing"}}, NotFound),
        ({"metadata": {"namespace": "default"}}, Invalid),
        ({"metadata": {"name": "P", "namespace": "default"}}, Invalid),
        ({"metadata": {"name": "p", "namespace": "default", "labels": {"a b": "x"}}}, Invalid),
        ({"metadata": {"name": "p", "namespace": "default", "resourceVersion": "3"}}, ServerError),
        ({"metadata": "x"}, BadRequest),
    ],
)
async def test_a_body_that_does_not_fit_its_address_is_refused(
    api: InProcessClient, change: Obj, error: type[ApiError]
) -> None:
    with pytest.raises(error):
        await api.create(PODS, {**a_pod(), **change})


async def test_unknown_field_selectors_are_refused(api: InProcessClient) -> None:
    with pytest.raises(BadRequest, match=r"field label not supported: spec\.foo"):
        await api.list(PODS, field_selector="spec.foo=1")
    with pytest.raises(BadRequest):
        await api.list(PODS, label_selector="a b c")


# --- updates


async def test_an_update_of_what_changed_meanwhile_is_a_conflict(api: InProcessClient) -> None:
    first = await api.create(CONFIGMAPS, {"metadata": {"name": "c", "namespace": "default"}, "data": {"a": "1"}})
    await api.update(CONFIGMAPS, {**first, "data": {"a": "2"}})
    with pytest.raises(Conflict, match="the object has been modified"):
        await api.update(CONFIGMAPS, {**first, "data": {"a": "3"}})
    del first["metadata"]["resourceVersion"]
    assert (await api.update(CONFIGMAPS, {**first, "data": {"a": "4"}}))["data"] == {"a": "4"}


async def test_an_update_that_changes_nothing_writes_nothing(api: InProcessClient, server: ApiServer) -> None:
    made = await api.create(PODS, a_pod())
    before = server.storage.revision
    assert await api.update(PODS, made) == made
    assert await api.patch(PODS, "p", {"metadata": {"labels": None}}, "default") == made
    assert server.storage.revision == before


async def test_many_patches_at_once_all_arrive(api: InProcessClient) -> None:
    await api.create(CONFIGMAPS, {"metadata": {"name": "c", "namespace": "default"}})
    await asyncio.gather(*(api.patch(CONFIGMAPS, "c", {"data": {f"k{n}": str(n)}}, "default") for n in range(50)))
    assert (await api.get(CONFIGMAPS, "c", "default"))["data"] == {f"k{n}": str(n) for n in range(50)}


async def test_a_patch_with_an_old_resource_version_is_a_conflict(api: InProcessClient) -> None:
    await api.create(PODS, a_pod())
    with pytest.raises(Conflict):
        await api.patch(PODS, "p", {"metadata": {"resourceVersion": "1", "labels": {"a": "b"}}}, "default")


async def test_spec_and_status_are_written_through_their_own_doors(api: InProcessClient) -> None:
    made = await api.create(PODS, a_pod())
    await api.patch(PODS, "p", {"status": {"phase": "Running"}, "metadata": {"labels": {"a": "b"}}}, "default")
    assert (await api.get(PODS, "p", "default"))["status"]["phase"] == "Pending"
    made["status"] = {"phase": "Running"}
    made["spec"]["nodeName"] = "sneaky"
    made["metadata"].pop("resourceVersion")
    after = await api.update(PODS, made, subresource="status")
    assert (after["status"]["phase"], after["spec"].get("nodeName")) == ("Running", None)
    assert after["metadata"]["generation"] == 1


async def test_the_generation_counts_changes_of_the_spec(api: InProcessClient) -> None:
    await api.create(JOBS, a_job())

    async def generation(patch: Obj, **more: Any) -> int:
        return int((await api.patch(JOBS, "j", patch, "default", **more))["metadata"]["generation"])

    assert await generation({"metadata": {"labels": {"a": "b"}}}) == 1
    assert await generation({"spec": {"parallelism": 2}}) == 2
    assert await generation({"status": {"active": 1}}, subresource="status") == 2


@pytest.mark.parametrize(
    ("patch", "allowed"),
    [
        ({"containers": [{"name": "c", "image": "new"}]}, True),
        ({"activeDeadlineSeconds": 5}, True),
        ({"tolerations": [{"key": "x", "operator": "Exists"}]}, True),
        ({"nodeName": "n"}, False),
        ({"restartPolicy": "Never"}, False),
        ({"containers": [{"name": "d", "image": "x"}]}, False),
        ({"priority": 7}, False),
        ({"schedulingGates": [{"name": "a/b"}]}, False),
        ({"nodeSelector": {"a": "b"}}, False),
    ],
)
async def test_hardly_anything_of_a_pods_spec_can_change(api: InProcessClient, patch: Obj, allowed: bool) -> None:
    await api.create(PODS, a_pod())
    if allowed:
        await api.patch(PODS, "p", {"spec": patch}, "default", kind="strategic")
        return
    with pytest.raises(Invalid) as caught:
        await api.patch(PODS, "p", {"spec": patch}, "default", kind="strategic")
    assert causes(caught.value)[-1][0].startswith("spec")


NODE_TERM = {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a100"]}]}
TIGHTER = {"matchExpressions": [*NODE_TERM["matchExpressions"], {"key": "z", "operator": "Exists"}]}


def node_affinity(*terms: Obj) -> Obj:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"nodeAffinity": required}


@pytest.mark.parametrize(
    ("start", "patch", "allowed"),
    [
        ({}, {"nodeSelector": {"a": "b"}}, True),
        ({"nodeSelector": {"a": "b"}}, {"nodeSelector": {"c": "d"}}, True),
        ({"nodeSelector": {"a": "b"}}, {"nodeSelector": {"a": "x"}}, False),
        ({"nodeSelector": {"a": "b"}}, {"nodeSelector": {"a": None}}, False),
        ({}, {"affinity": node_affinity(NODE_TERM)}, True),
        ({"affinity": node_affinity(NODE_TERM)}, {"affinity": node_affinity(TIGHTER)}, True),
        ({"affinity": node_affinity(TIGHTER)}, {"affinity": node_affinity(NODE_TERM)}, False),
        ({"affinity": node_affinity(NODE_TERM)}, {"affinity": node_affinity(NODE_TERM, NODE_TERM)}, False),
        ({}, {"schedulingGates": None, "affinity": node_affinity(NODE_TERM)}, True),
        ({}, {"schedulingGates": [{"name": "a/b"}, {"name": "a/c"}]}, False),
        ({}, {"priority": 5}, False),
    ],
)
async def test_a_gated_pod_can_be_bound_tighter_but_not_looser(
    api: InProcessClient, start: Obj, patch: Obj, allowed: bool
) -> None:
    made = await api.create(PODS, a_pod(schedulingGates=[{"name": "a/b"}], **start))
    assert made["status"]["conditions"][0]["reason"] == "SchedulingGated"
    if allowed:
        await api.patch(PODS, "p", {"spec": patch}, "default")
        return
    with pytest.raises(Invalid):
        await api.patch(PODS, "p", {"spec": patch}, "default")


@pytest.mark.parametrize(
    ("patch", "allowed"),
    [
        ({"parallelism": 3}, True),
        ({"suspend": True}, True),
        ({"backoffLimit": 1}, True),
        ({"completions": 3}, False),
        ({"template": {"spec": {"restartPolicy": "OnFailure"}}}, False),
        ({"selector": {"matchLabels": {"a": "b"}}}, False),
        ({"completionMode": "Indexed"}, False),
    ],
)
async def test_a_jobs_template_and_selector_do_not_change(api: InProcessClient, patch: Obj, allowed: bool) -> None:
    await api.create(JOBS, a_job())
    if allowed:
        await api.patch(JOBS, "j", {"spec": patch}, "default")
        return
    with pytest.raises(Invalid):
        await api.patch(JOBS, "j", {"spec": patch}, "default")


async def test_a_job_selects_its_pods_by_its_own_uid(api: InProcessClient) -> None:
    made = await api.create(JOBS, a_job())
    uid = made["metadata"]["uid"]
    assert made["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert made["spec"]["template"]["metadata"]["labels"] == {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": "j",
        "controller-uid": uid,
        "job-name": "j",
    }


async def test_a_job_that_restarts_for_ever_is_refused(api: InProcessClient) -> None:
    job = a_job()
    job["spec"]["template"]["spec"]["restartPolicy"] = "Always"
    with pytest.raises(Invalid, match='valid values: "OnFailure", "Never"'):
        await api.create(JOBS, job)


async def test_strategic_merge_is_for_built_in_kinds_and_apply_needs_a_manager(api: InProcessClient) -> None:
    with pytest.raises(Invalid, match="fieldManager: Required value"):
        await api.patch(PODS, "p", a_pod(), "default", kind="apply")
    made = await api.patch(PODS, "p", a_pod(), "default", kind="apply", field_manager="me")
    assert made["metadata"]["managedFields"][0]["manager"] == "me"
    again = await api.patch(PODS, "p", a_pod(), "default", kind="apply", field_manager="me")
    assert again == made


async def test_leases_need_a_resource_version_and_may_be_made_by_put(api: InProcessClient) -> None:
    lease = {"metadata": {"name": "l", "namespace": "default"}, "spec": {"holderIdentity": "a"}}
    made = await api.update(LEASES, lease)
    with pytest.raises(Invalid, match="must be specified for an update"):
        await api.update(LEASES, lease)
    await api.update(LEASES, {**made, "spec": {"holderIdentity": "b"}})
    with pytest.raises(Conflict):
        await api.update(LEASES, {**made, "spec": {"holderIdentity": "c"}})


# --- priority, accounts, classes, services


async def test_priority_comes_from_the_class_and_from_the_default_class(api: InProcessClient) -> None:
    await api.create(PRIORITYCLASSES, {"metadata": {"name": "low"}, "value": -10, "preemptionPolicy": "Never"})
    pod = (await api.create(PODS, a_pod("a", priorityClassName="low")))["spec"]
    assert (pod["priority"], pod["preemptionPolicy"]) == (-10, "Never")
    await api.create(PRIORITYCLASSES, {"metadata": {"name": "usual"}, "value": 5, "globalDefault": True})
    pod = (await api.create(PODS, a_pod("b")))["spec"]
    assert (pod["priority"], pod["priorityClassName"]) == (5, "usual")
    with pytest.raises(Forbidden, match="no PriorityClass with name nope was found"):
        await api.create(PODS, a_pod("c", priorityClassName="nope"))
    with pytest.raises(Forbidden, match="must not be provided in pod spec"):
        await api.create(PODS, a_pod("c", priority=99))
    with pytest.raises(Forbidden, match="already marked as default"):
        await api.create(PRIORITYCLASSES, {"metadata": {"name": "two"}, "value": 5, "globalDefault": True})
    with pytest.raises(Forbidden, match="already marked as default"):
        await api.create(PRIORITYCLASSES, {"metadata": {"name": "usual"}, "value": 5, "globalDefault": True})
    await api.patch(PRIORITYCLASSES, "usual", {"globalDefault": True, "description": "What most take."})
    with pytest.raises(Forbidden, match="already marked as default"):
        await api.patch(PRIORITYCLASSES, "low", {"globalDefault": True})


async def test_a_pod_needs_its_service_account(api: InProcessClient) -> None:
    with pytest.raises(Forbidden, match="error looking up service account default/robot"):
        await api.create(PODS, a_pod(serviceAccountName="robot"))
    await api.create(SERVICEACCOUNTS, {"metadata": {"name": "robot", "namespace": "default"}})
    assert (await api.create(PODS, a_pod(serviceAccountName="robot")))["spec"]["serviceAccount"] == "robot"


async def test_a_claim_gets_the_default_class_and_grows_only_where_the_class_allows(api: InProcessClient) -> None:
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    storage_class = {"metadata": {"name": "local", "annotations": default}, "provisioner": "x/y"}
    await api.create(STORAGECLASSES, storage_class)
    claim = {
        "metadata": {"name": "c", "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    made = await api.create(PVCS, claim)
    assert made["spec"]["storageClassName"] == "local"
    assert made["status"] == {"phase": "Pending"}
    grow = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    with pytest.raises(Invalid, match="spec is immutable after creation"):
        await api.patch(PVCS, "c", grow, "default")
    await api.patch(PVCS, "c", {"status": {"phase": "Bound"}}, "default", subresource="status")
    with pytest.raises(Forbidden, match="must support resize"):
        await api.patch(PVCS, "c", grow, "default")
    await api.patch(STORAGECLASSES, "local", {"allowVolumeExpansion": True})
    assert (await api.patch(PVCS, "c", grow, "default"))["spec"]["resources"]["requests"] == {"storage": "2Gi"}


async def test_services_get_different_addresses_and_keep_them(api: InProcessClient) -> None:
    def service(name: str) -> Obj:
        return {"metadata": {"name": name, "namespace": "default"}, "spec": {"ports": [{"port": 80}]}}

    made = [await api.create(SERVICES, service(f"s{n}")) for n in range(20)]
    addresses = {one["spec"]["clusterIP"] for one in made}
    assert len(addresses) == 20
    assert all(address.startswith("10.96.") for address in addresses)
    again = await api.update(SERVICES, service("s0"))
    assert again["spec"]["clusterIP"] == made[0]["spec"]["clusterIP"]
    assert again["spec"]["ports"] == [{"port": 80, "protocol": "TCP", "targetPort": 80}]


async def test_plain_secrets_are_stored_encoded(api: InProcessClient) -> None:
    secret = {"metadata": {"name": "s", "namespace": "default"}, "stringData": {"a": "b"}}
    made = await api.create(SECRETS, secret)
    assert (made["data"], made["type"], made.get("stringData")) == ({"a": "Yg=="}, "Opaque", None)


async def test_events_are_one_thing_in_two_forms(api: InProcessClient) -> None:
    target = {"kind": "Pod", "name": "p", "namespace": "default"}
    await api.create(
        EVENTS,
        {
            "metadata": {"name": "e", "namespace": "default"},
            "involvedObject": target,
            "message": "m",
            "reason": "R",
        },
    )
    seen = await api.get(NEW_EVENTS, "e", "default")
    assert (seen["apiVersion"], seen["regarding"], seen["note"]) == ("events.k8s.io/v1", target, "m")
    found = await api.list(EVENTS, "default", field_selector="involvedObject.name=p,reason=R")
    assert [one["metadata"]["name"] for one in found.items] == ["e"]


# --- deleting


async def test_a_pod_that_runs_nowhere_goes_at_once(api: InProcessClient) -> None:
    await api.create(PODS, a_pod())
    await api.delete(PODS, "p", "default")
    with pytest.raises(NotFound):
        await api.get(PODS, "p", "default")


async def test_a_bound_pod_gets_its_grace_and_its_node_ends_it(api: InProcessClient) -> None:
    await api.create(PODS, a_pod())
    await bind(api)
    await api.delete(PODS, "p", "default")
    meta = (await api.get(PODS, "p", "default"))["metadata"]
    assert (meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"]) == ("2026-01-01T12:00:30Z", 30)
    assert meta["generation"] == 2
    await api.delete(PODS, "p", "default", grace_period_seconds=60)
    assert (await api.get(PODS, "p", "default"))["metadata"] == meta
    await api.delete(PODS, "p", "default", grace_period_seconds=5)
    meta = (await api.get(PODS, "p", "default"))["metadata"]
    assert (meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"]) == ("2026-01-01T12:00:05Z", 5)
    await api.delete(PODS, "p", "default", grace_period_seconds=0)
    with pytest.raises(NotFound):
        await api.get(PODS, "p", "default")


async def test_a_finished_pod_goes_at_once(api: InProcessClient) -> None:
    await api.create(PODS, a_pod())
    await bind(api)
    await api.patch(PODS, "p", {"status": {"phase": "Succeeded"}}, "default", subresource="status")
    await api.delete(PODS, "p", "default")
    with pytest.raises(NotFound):
        await api.get(PODS, "p", "default")


async def test_finalizers_hold_an_object_until_the_last_is_gone(api: InProcessClient) -> None:
    made = {"metadata": {"name": "c", "namespace": "default", "finalizers": ["a.b/x", "a.b/y"]}}
    await api.create(CONFIGMAPS, made)
    await api.delete(CONFIGMAPS, "c", "default")
    meta = (await api.get(CONFIGMAPS, "c", "default"))["metadata"]
    assert (meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"]) == ("2026-01-01T12:00:00Z", 0)
    with pytest.raises(Invalid, match="no new finalizers can be added"):
        await api.patch(CONFIGMAPS, "c", {"metadata": {"finalizers": ["a.b/x", "a.b/y", "a.b/z"]}}, "default")
    await api.patch(CONFIGMAPS, "c", {"metadata": {"finalizers": ["a.b/y"]}}, "default")
    await api.get(CONFIGMAPS, "c", "default")
    await api.patch(CONFIGMAPS, "c", {"metadata": {"finalizers": None}}, "default")
    with pytest.raises(NotFound):
        await api.get(CONFIGMAPS, "c", "default")


async def test_a_bound_pod_with_a_finalizer_waits_for_both(api: InProcessClient) -> None:
    pod = a_pod()
    pod["metadata"]["finalizers"] = ["a.b/x"]
    await api.create(PODS, pod)
    await bind(api)
    await api.delete(PODS, "p", "default")
    await api.patch(PODS, "p", {"metadata": {"finalizers": None}}, "default")
    await api.get(PODS, "p", "default")  # its node has not let it go yet
    await api.delete(PODS, "p", "default", grace_period_seconds=0)
    with pytest.raises(NotFound):
        await api.get(PODS, "p", "default")


@pytest.mark.parametrize(
    ("propagation", "want"),
    [("Foreground", ["foregroundDeletion"]), ("Orphan", ["orphan"]), ("Background", None), (None, ["orphan"])],
)
async def test_propagation_becomes_a_finalizer_and_jobs_orphan_by_default(
    api: InProcessClient, propagation: Any, want: list[str] | None
) -> None:
    await api.create(JOBS, a_job())
    await api.delete(JOBS, "j", "default", propagation=propagation)
    if want is None:
        with pytest.raises(NotFound):
            await api.get(JOBS, "j", "default")
    else:
        meta = (await api.get(JOBS, "j", "default"))["metadata"]
        assert (meta["finalizers"], "deletionTimestamp" in meta) == (want, True)


async def test_deleting_another_object_of_the_name_is_a_conflict(api: InProcessClient) -> None:
    await api.create(PODS, a_pod())
    with pytest.raises(Conflict, match="the UID in the precondition"):
        await api.delete(PODS, "p", "default", uid="another")
    await api.get(PODS, "p", "default")


# --- namespaces


async def test_a_namespace_goes_when_it_is_finalized_and_takes_nothing_new(api: InProcessClient) -> None:
    made = await api.create(NAMESPACES, {"metadata": {"name": "lab"}})
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "lab"}
    assert (made["spec"], made["status"]) == ({"finalizers": ["kubernetes"]}, {"phase": "Active"})
    await api.delete(NAMESPACES, "lab")
    going = await api.get(NAMESPACES, "lab")
    assert going["status"]["phase"] == "Terminating"
    with pytest.raises(Forbidden, match="because it is being terminated") as caught:
        await api.create(CONFIGMAPS, {"metadata": {"name": "c", "namespace": "lab"}})
    assert caught.value.details is not None
    assert caught.value.details["causes"][0]["reason"] == "NamespaceTerminating"
    going["spec"] = {}
    await api.update(NAMESPACES, going, subresource="finalize")
    with pytest.raises(NotFound):
        await api.get(NAMESPACES, "lab")


async def test_the_default_namespace_stays(api: InProcessClient) -> None:
    with pytest.raises(Forbidden, match="this namespace may not be deleted"):
        await api.delete(NAMESPACES, "default")


# --- binding, eviction, scale


async def test_a_pod_is_bound_once(api: InProcessClient) -> None:
    await api.create(PODS, a_pod())
    await bind(api, node="first")
    pod = await api.get(PODS, "p", "default")
    assert pod["spec"]["nodeName"] == "first"
    assert pod["status"]["conditions"] == [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T12:00:00Z"}
    ]
    with pytest.raises(Conflict, match='pod p is already assigned to node "first"'):
        await bind(api, node="second")


async def test_a_gated_or_going_pod_is_not_bound(api: InProcessClient) -> None:
    await api.create(PODS, a_pod("gated", schedulingGates=[{"name": "a/b"}]))
    with pytest.raises(Conflict, match="has non-empty .spec.schedulingGates"):
        await bind(api, "gated")
    going = a_pod("going")
    going["metadata"]["finalizers"] = ["a.b/x"]
    await api.create(PODS, going)
    await api.delete(PODS, "going", "default")
    with pytest.raises(Conflict, match="is being deleted"):
        await bind(api, "going")


async def evict(api: InProcessClient, name: str = "p") -> None:
    await api.create_subresource(PODS, name, "eviction", {"metadata": {"name": name}}, "default")


async def a_running_pod(api: InProcessClient, name: str = "p") -> None:
    await api.create(PODS, a_pod(name, labels={"app": "x"}))
    await bind(api, name)
    ready = {"type": "Ready", "status": "True"}
    await api.patch(
        PODS, name, {"status": {"phase": "Running", "conditions": [ready]}}, "default", subresource="status"
    )


async def a_budget(api: InProcessClient, allowed: int, *, observed: int = 1) -> None:
    selector = {"matchLabels": {"app": "x"}}
    budget = {"metadata": {"name": "b", "namespace": "default"}, "spec": {"minAvailable": 1, "selector": selector}}
    await api.create(PDBS, budget)
    status = {
        "disruptionsAllowed": allowed,
        "observedGeneration": observed,
        "desiredHealthy": 1,
        "currentHealthy": 1,
    }
    await api.patch(PDBS, "b", {"status": status}, "default", subresource="status")


async def test_an_eviction_marks_the_pod_and_deletes_it_with_grace(api: InProcessClient) -> None:
    await a_running_pod(api)
    await evict(api)
    pod = await api.get(PODS, "p", "default")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 30
    mark = next(one for one in pod["status"]["conditions"] if one["type"] == "DisruptionTarget")
    assert (mark["status"], mark["reason"]) == ("True", "EvictionByEvictionAPI")


async def test_a_budget_that_is_used_up_refuses_the_eviction(api: InProcessClient) -> None:
    await a_running_pod(api)
    await a_budget(api, 0)
    with pytest.raises(TooManyRequests) as caught:
        await evict(api)
    assert caught.value.message == "Cannot evict pod as it would violate the pod's disruption budget."
    assert caught.value.details == {
        "causes": [
            {
                "reason": "DisruptionBudget",
                "message": "The disruption budget b needs 1 healthy pods and has 1 currently",
            }
        ]
    }
    assert "deletionTimestamp" not in (await api.get(PODS, "p", "default"))["metadata"]


async def test_an_eviction_spends_the_budget(api: InProcessClient) -> None:
    await a_running_pod(api, "p")
    await a_running_pod(api, "q")
    await a_budget(api, 1)
    await evict(api, "p")
    budget = (await api.get(PDBS, "b", "default"))["status"]
    assert (budget["disruptionsAllowed"], list(budget["disruptedPods"])) == (0, ["p"])
    with pytest.raises(TooManyRequests):
        await evict(api, "q")


async def test_a_budget_not_yet_seen_by_its_controller_makes_the_eviction_wait(api: InProcessClient) -> None:
    await a_running_pod(api)
    await a_budget(api, 1, observed=0)
    with pytest.raises(TooManyRequests) as caught:
        await evict(api)
    assert caught.value.details is not None
    assert caught.value.details["retryAfterSeconds"] == 10


async def test_a_budget_does_not_protect_a_pod_that_runs_nowhere(api: InProcessClient) -> None:
    await api.create(PODS, a_pod(labels={"app": "x"}))
    await a_budget(api, 0)
    await evict(api)
    with pytest.raises(NotFound):
        await api.get(PODS, "p", "default")


async def test_a_deployment_is_scaled_through_its_subresource(api: InProcessClient) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    await api.create(
        DEPLOYMENTS,
        {
            "metadata": {"name": "d", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
        },
    )
    scale = await api.patch(DEPLOYMENTS, "d", {"spec": {"replicas": 3}}, "default", subresource="scale")
    assert (scale["kind"], scale["spec"], scale["status"]) == (
        "Scale",
        {"replicas": 3},
        {"replicas": 0, "selector": "a=b"},
    )
    deployment = await api.get(DEPLOYMENTS, "d", "default")
    assert (deployment["spec"]["replicas"], deployment["metadata"]["generation"]) == (3, 2)


# --- lists and watches


async def test_a_list_in_pages_is_one_moment(api: InProcessClient) -> None:
    for number in range(5):
        await api.create(PODS, a_pod(f"p{number}"))
    first = await api.list(PODS, "default", limit=2)
    await api.delete(PODS, "p3", "default")
    await api.create(PODS, a_pod("p9"))
    rest = await api.list(PODS, "default", limit=9, cont=first.cont)
    names = [one["metadata"]["name"] for one in [*first.items, *rest.items]]
    assert names == ["p0", "p1", "p2", "p3", "p4"]
    assert rest.resource_version == first.resource_version


async def test_a_page_of_a_compacted_moment_is_expired(api: InProcessClient, server: ApiServer) -> None:
    for number in range(3):
        await api.create(PODS, a_pod(f"p{number}"))
    first = await api.list(PODS, "default", limit=1)
    await api.create(PODS, a_pod("p9"))
    server.storage.compact(server.storage.revision)
    with pytest.raises(Expired):
        await api.list(PODS, "default", limit=1, cont=first.cont)


async def test_lists_select_by_labels_and_fields(api: InProcessClient) -> None:
    await api.create(PODS, a_pod("a", labels={"app": "x"}))
    await api.create(PODS, a_pod("b", labels={"app": "y"}))
    await bind(api, "b", "n1")

    async def names(**selectors: str) -> list[str]:
        return [one["metadata"]["name"] for one in (await api.list(PODS, **selectors)).items]

    assert await names(label_selector="app=x") == ["a"]
    assert await names(label_selector="app in (x,y)") == ["a", "b"]
    assert await names(field_selector="spec.nodeName=n1") == ["b"]
    assert await names(field_selector="spec.nodeName=") == ["a"]
    assert await names(field_selector="status.phase!=Running,metadata.name=b") == ["b"]


async def test_a_watch_tells_every_change_in_order(api: InProcessClient) -> None:
    start = (await api.list(PODS)).resource_version
    await api.create(PODS, a_pod("a"))
    await api.patch(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    await api.delete(PODS, "a", "default")
    seen = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for event in api.watch(PODS, resource_version=start):
            seen.append(
                (event.type, event.object["metadata"].get("labels"), event.object["metadata"]["resourceVersion"])
            )
            if event.type == "DELETED":
                break
    assert [(kind, labels) for kind, labels, _ in seen] == [
        ("ADDED", None),
        ("MODIFIED", {"x": "y"}),
        ("DELETED", {"x": "y"}),
    ]
    versions = [int(version) for _, _, version in seen]
    assert versions == sorted(set(versions))


async def test_a_watch_with_a_selector_sees_objects_come_and_go(api: InProcessClient) -> None:
    start = (await api.list(PODS)).resource_version
    await api.create(PODS, a_pod("a"))
    await api.patch(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
    await api.patch(PODS, "a", {"metadata": {"labels": {"z": "1"}}}, "default")
    await api.patch(PODS, "a", {"metadata": {"labels": {"x": None}}}, "default")
    seen = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        async for event in api.watch(PODS, resource_version=start, label_selector="x=y"):
            if event.type != "BOOKMARK":
                seen.append(event.type)
            if event.type == "DELETED":
                break
    assert seen == ["ADDED", "MODIFIED", "DELETED"]


async def test_a_watch_that_matches_nothing_still_moves_on(api: InProcessClient) -> None:
    start = (await api.list(PODS)).resource_version
    made = await api.create(PODS, a_pod("a"))
    async with asyncio.timeout(DEADLINE_SECONDS):
        event = await anext(api.watch(PODS, resource_version=start, label_selector="never=1"))
    assert event.type == "BOOKMARK"
    assert event.object["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_a_watch_from_too_long_ago_is_expired(api: InProcessClient, server: ApiServer) -> None:
    await api.create(PODS, a_pod("a"))
    server.storage.compact(server.storage.revision)
    with pytest.raises(Expired, match="too old resource version"):
        await anext(api.watch(PODS, resource_version="1"))


# --- the store's troubles


class FullStorage(MemoryStorage):
    full = False

    async def put(self, key: str, value: bytes, *, expected: int | None = None) -> Any:
        if self.full:
            raise StorageFull("no room left", hint="free some")
        return await super().put(key, value, expected=expected)


async def test_a_full_disk_is_an_error_of_the_server_and_leaves_everything_as_it_was() -> None:
    storage = FullStorage()
    server = ApiServer(storage)
    await server.start()
    api = server.client()
    made = await api.create(PODS, a_pod())
    storage.full = True
    with pytest.raises(ServerError, match="no room left"):
        await api.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}, "default")
    with pytest.raises(ServerError):
        await api.create(PODS, a_pod("q"))
    storage.full = False
    assert await api.get(PODS, "p", "default") == made
    assert (await api.list(PODS)).items == [made]
    await server.stop()


async def test_nodes_bring_their_status_and_taints_are_checked(api: InProcessClient) -> None:
    made = await api.create(NODES, {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "4"}}})
    assert made["status"]["allocatable"] == {"cpu": "4"}
    with pytest.raises(Invalid):
        await api.patch(NODES, "n", {"spec": {"taints": [{"key": "a b", "effect": "NoExecute"}]}})


async def test_strategic_merge_of_custom_kinds_is_an_unsupported_media_type(api: InProcessClient) -> None:
    things = Resource("x.io", "v1", "things", "Thing", namespaced=False)
    await api.create(CRDS, builders.a_definition(things))
    await api.create(things, {"metadata": {"name": "t"}})
    with pytest.raises(UnsupportedMediaType):
        await api.patch(things, "t", {}, kind="strategic")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"overhead": {"cpu": "-11900m"}}, "Pod Overhead set without corresponding RuntimeClass"),
        ({"resources": {"requests": {"cpu": "1"}}}, "greater than or equal to aggregate container requests of 12"),
        ({"resources": {"limits": {"cpu": "1"}}}, "less than or equal to pod limits of 1"),
        ({"resources": {"requests": {"cpu": "-1"}}}, "must be greater than or equal to 0"),
    ],
)
async def test_a_pod_makes_no_room_in_quotas_by_what_it_says_of_itself(api: InProcessClient, spec, words):
    amounts = {"requests": {"cpu": "12"}, "limits": {"cpu": "12"}}
    pod = a_pod(**spec)
    pod["spec"]["containers"][0]["resources"] = amounts
    with pytest.raises(ApiError, match=words):
        await api.create(PODS, pod)
    larger = {"requests": {"cpu": "12"}, "limits": {"cpu": "13"}}
    await api.create(PODS, {**pod, "spec": {"containers": pod["spec"]["containers"], "resources": larger}})
