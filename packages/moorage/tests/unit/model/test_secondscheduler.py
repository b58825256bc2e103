"""A second kube-scheduler: nothing of the first one's is shared, and nothing secret stands in a file."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from moorage.cli.manifests import tree
from moorage.model.manifests import extender_url
from moorage.model.schedulerconfig import scheduler_files
from moorage.model.secondscheduler import (
    make_kubeadm_patch,
    make_scheduler_switch,
    make_second_scheduler,
    percentage_of,
    scheduler_image,
    scheduler_name,
    takes_over,
)
from moorage_kube.podsecurity import violations
from moorage_kube.resources import Obj

DEPLOY = Path(__file__).parents[5] / "deploy" / "scheduler"
OBJECTS = make_second_scheduler("v1.36.2")


def of_kind(*kinds: str) -> list[Obj]:
    return [obj for obj in OBJECTS if obj["kind"] in kinds]


def the_pod() -> Obj:
    (deployment,) = of_kind("Deployment")
    pod: Obj = deployment["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize(
    ("version", "tag"),
    [
        ("v1.36.2", "v1.36.2"),
        ("1.30.0", "v1.30.0"),
        ("v1.33.5-gke.1080000", "v1.33.5"),
        ("v1.32.9-eks-113cf36", "v1.32.9"),
        ("v1.31.4+k3s1", "v1.31.4"),
    ],
)
def test_its_image_has_the_version_of_the_cluster(version: str, tag: str) -> None:
    assert scheduler_image(version) == f"registry.k8s.io/kube-scheduler:{tag}"
    assert scheduler_image(version, "mirror:5000/ks") == f"mirror:5000/ks:{tag}"


@pytest.mark.parametrize("version", ["", "latest", "v1", "1.30"])
def test_a_text_that_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r"is no version of Kubernetes; write it as v1\.34\.0"):
        scheduler_image(version)


def test_the_second_shares_neither_name_nor_lease_with_the_first() -> None:
    files = scheduler_files(
        "t" * 32, name_url=extender_url(), address_url=extender_url("10.96.0.9"), percentage=10
    )
    second, first = (json.loads(files[key]) for key in ("scheduler.yaml", "first-scheduler.yaml"))
    assert [profile["schedulerName"] for profile in second["profiles"]] == ["moorage-scheduler"]
    assert second["leaderElection"] == {
        "leaderElect": True,
        "resourceLock": "leases",
        "resourceName": "moorage-scheduler",
        "resourceNamespace": "moorage-system",
    }
    assert "clientConnection" not in second  # its pod's own account
    assert [profile["schedulerName"] for profile in first["profiles"]] == ["default-scheduler"]
    assert first["leaderElection"] == {"leaderElect": True}
    assert first["clientConnection"] == {"kubeconfig": "/etc/kubernetes/scheduler.conf"}
    urls = [config["extenders"][0]["urlPrefix"] for config in (second, first)]
    assert urls == [
        f"http://moorage-extender.moorage-system.svc:8888/scheduler/{'t' * 32}",
        f"http://10.96.0.9:8888/scheduler/{'t' * 32}",
    ]


def test_an_address_of_ipv6_stands_in_brackets() -> None:
    assert extender_url("fd00::9") == "http://[fd00::9]:8888"


def test_its_pods_meet_the_restricted_standard() -> None:
    assert violations("restricted", {}, the_pod()) == []
    (container,) = the_pod()["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()


def test_its_configuration_is_a_secret_that_the_operator_writes() -> None:
    (volume,) = the_pod()["volumes"]
    assert volume == {"name": "configuration", "secret": {"secretName": "moorage-scheduler"}}
    assert not of_kind("Secret")
    (container,) = the_pod()["containers"]
    assert "--config=/etc/moorage/scheduler.yaml" in container["command"]


def test_it_has_the_rights_of_a_scheduler_and_its_own_lease() -> None:
    bound = {
        (obj["roleRef"]["name"], obj["metadata"].get("namespace"))
        for obj in of_kind("ClusterRoleBinding", "RoleBinding")
    }
    assert bound == {
        ("system:kube-scheduler", None),
        ("system:volume-scheduler", None),
        ("extension-apiserver-authentication-reader", "kube-system"),
        ("moorage-scheduler", "moorage-system"),
    }
    (role,) = of_kind("Role")
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in role["rules"]] == [
        (["create"], None),
        (["get", "update"], ["moorage-scheduler"]),
    ]


def test_the_folder_stands_alone_and_sets_the_version_in_one_place() -> None:
    files = {path: text for path, text in tree().items() if path.startswith("scheduler/")}
    assert {path: (DEPLOY.parent / path).read_text() for path in files} == files
    kustomization = yaml.safe_load(files["scheduler/kustomization.yaml"])
    assert kustomization["resources"] == ["scheduler.yaml"]
    assert kustomization["images"] == [{"name": "registry.k8s.io/kube-scheduler", "newTag": "v1.34.0"}]
    assert not any("scheduler/" in path for path in yaml.safe_load(tree()["kustomization.yaml"])["resources"])


@pytest.mark.processes
def test_kubectl_renders_the_folder() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run([kubectl, "kustomize", str(DEPLOY)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nkind: ") == len(OBJECTS)


def test_kubeadms_patch_adds_and_replaces_nothing() -> None:
    assert {step["op"] for step in make_kubeadm_patch()} == {"add"}
    assert [step["path"].rpartition("/")[2] for step in make_kubeadm_patch()] == ["-", "-", "-"]


@pytest.mark.parametrize(
    ("switch", "name", "percentage"),
    [
        pytest.param(make_scheduler_switch(), "moorage-scheduler", 10, id="as we ship it"),
        pytest.param(None, "", 10, id="none: off"),
        pytest.param({"data": {}}, "", 10, id="an older version's, which held a configuration: off"),
        pytest.param(
            {"data": {"schedulerName": " mine ", "percentageOfNodesToScore": "100"}}, "mine", 100, id="set"
        ),
        pytest.param({"data": {"percentageOfNodesToScore": "101"}}, "", 10, id="above 100: ours"),
        pytest.param({"data": {"percentageOfNodesToScore": "-1"}}, "", 10, id="no number: ours"),
        pytest.param({"data": {"percentageOfNodesToScore": "0"}}, "", 0, id="kube-scheduler's own choice"),
    ],
)
def test_the_switch_is_read(switch: Obj | None, name: str, percentage: int) -> None:
    assert (scheduler_name(switch), percentage_of(switch)) == (name, percentage)


@pytest.mark.parametrize(
    ("spec", "open_"),
    [({}, True), ({"schedulerName": "default-scheduler"}, True), ({"schedulerName": "volcano"}, False)],
)
def test_a_pod_that_names_a_scheduler_keeps_it(spec: Obj, open_: bool) -> None:
    assert takes_over(spec) is open_
