from __future__ import annotations

from moorage_kube.resources import SERVICES
from moorage_kube.testing.builders import a_container_status, a_job, a_node, a_pod, an_object, an_owner
from moorage_kube.testing.clock import NOON

TIME = "2026-11-21T12:00:00Z"


def test_absent_arguments_leave_their_fields_out():
    assert a_pod() == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "lab"},
        "spec": {"containers": [{"name": "main"}]},
    }
    assert an_object(SERVICES, "web", spec={}, labels={}) == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": "lab"},
    }


def test_a_pod_that_has_ended():
    pod = a_pod(
        "a",
        node="n1",
        gpus=2,
        limits={"cpu": "1"},
        claims=["data"],
        started=NOON,
        exit_code=0,
        owner=an_owner("Job", "train"),
        deleting=True,
        spec={"priority": 5},
        metadata={"labels": {}},
    )
    ended = {"terminated": {"exitCode": 0, "startedAt": TIME}}
    assert pod["metadata"] == {
        "name": "a",
        "namespace": "lab",
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-train", "controller": True}
        ],
        "deletionTimestamp": TIME,
        "labels": {},
    }
    assert pod["spec"] == {
        "nodeName": "n1",
        "containers": [{"name": "main", "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": "2"}}}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "priority": 5,
    }
    assert pod["status"] == {
        "phase": "Succeeded",
        "startTime": TIME,
        "containerStatuses": [{"name": "main", "state": ended}],
    }


def test_a_node_and_its_amounts():
    assert a_node("n2", gpus=8, gpu_type="a100", capacity={"cpu": "5"}, pods="", cordoned=True) == {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n2", "labels": {"nvidia.com/gpu.product": "a100"}},
        "spec": {"unschedulable": True},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "8"},
            "capacity": {"cpu": "5", "memory": "8Gi", "nvidia.com/gpu": "8"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def test_a_job_gives_its_labels_to_its_pods():
    job = a_job(labels={"app": "x"}, suspend=False, end="Complete", finished=NOON, pod={"priority": 1})
    assert job["spec"] == {
        "suspend": False,
        "template": {
            "metadata": {"labels": {"app": "x"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}], "priority": 1},
        },
    }
    assert job["status"] == {
        "conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": TIME}],
        "completionTime": TIME,
    }


def test_the_state_of_a_container():
    assert a_container_status(reason="ErrImagePull")["state"] == {"waiting": {"reason": "ErrImagePull"}}
    assert a_container_status(started=TIME)["state"] == {"running": {"startedAt": TIME}}
    assert a_container_status(devices=["d0"])["allocatedResourcesStatus"] == [
        {"name": "nvidia.com/gpu", "resources": [{"resourceID": "d0"}]}
    ]
