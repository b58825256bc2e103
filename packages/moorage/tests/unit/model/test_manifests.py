"""What is deployed: only the verbs that are used, nothing that is root, one copy of everything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from moorage.cli.manifests import objects
from moorage.cli.services import LONG_GRACE_SECONDS
from moorage.controllers.manager import LEASE
from moorage.decide.install.overlay import overlay
from moorage.decide.install.values import parse_values
from moorage.model.manifests import ALL, OPERATOR_LEASE, Service, make_service
from moorage.model.people import PEOPLE_NAMESPACE
from moorage.settings import DRAIN_SECONDS, QUEUE_URL
from moorage_kube.podsecurity import violations
from moorage_kube.resources import Obj

DEPLOY = Path(__file__).parents[5] / "deploy"
EVERYTHING = [obj for found in objects().values() for obj in found]
WRITES = {"create", "update", "patch", "delete", "deletecollection"}


def of_kind(*kinds: str) -> list[Obj]:
    return [obj for obj in EVERYTHING if obj["kind"] in kinds]


OF_SERVICES = [
    one for one in of_kind("ClusterRole", "Role") if not one["metadata"]["name"].startswith("moorage:tenant-")
]


def test_no_object_is_made_twice() -> None:
    names = [(obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"]) for obj in EVERYTHING]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("role", OF_SERVICES, ids=lambda role: role["metadata"]["name"])
def test_no_role_has_a_wildcard_or_reads_secrets_at_large(role: Obj) -> None:
    for rule in role["rules"]:
        if "nonResourceURLs" in rule:
            assert rule == {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
            continue
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        if "secrets" in rule["resources"]:
            among_people = (
                role["metadata"].get("namespace") == PEOPLE_NAMESPACE
            )  # nothing but what is ours is there
            only_named = role["kind"] == "Role" and rule.get("resourceNames")
            assert set(rule["verbs"]) == {"create"} or among_people or only_named


@pytest.mark.parametrize("role", of_kind("ClusterRole", "Role"), ids=lambda role: role["metadata"]["name"])
def test_nobody_may_act_for_others_than_people(role: Obj) -> None:
    for rule in role["rules"]:
        if "impersonate" in rule["verbs"]:
            assert (role["metadata"]["namespace"], rule["resources"]) == (PEOPLE_NAMESPACE, ["serviceaccounts"])


@pytest.mark.parametrize("service", ["webhook", "extender"])
def test_services_that_only_answer_write_nothing(service: str) -> None:
    for role in of_kind("ClusterRole", "Role"):
        if role["metadata"]["name"] == f"moorage-{service}":
            assert not {verb for rule in role["rules"] for verb in rule["verbs"]} & WRITES


def test_every_binding_binds_a_role_that_is_there_to_an_account_that_is_there() -> None:
    accounts = {obj["metadata"]["name"] for obj in of_kind("ServiceAccount")}
    roles = {(obj["kind"], obj["metadata"]["name"]) for obj in of_kind("ClusterRole", "Role")}
    for binding in of_kind("ClusterRoleBinding", "RoleBinding"):
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles
        for subject in binding["subjects"]:
            assert subject["kind"] == "Group" or subject["name"] in accounts


@pytest.mark.parametrize("service", ALL, ids=lambda service: service.name)
def test_pods_run_without_root_and_without_a_writable_root(service: Service) -> None:
    (deployment,) = [obj for obj in make_service(service, version="1") if obj["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert set(container["resources"]["limits"]) == {"memory"}
        assert (service.port is None) or {"readinessProbe", "livenessProbe"} <= container.keys()
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("shared", [False, True], ids=["one server", "two on a database"])
def test_every_pod_that_we_ship_passes_the_restricted_level(shared: bool) -> None:
    values = parse_values({"databaseSecret": "postgres"} if shared else {})
    deployments = [obj for obj in overlay(EVERYTHING, values) if obj["kind"] == "Deployment"]
    assert len(deployments) >= len(ALL)
    for deployment in deployments:
        template = deployment["spec"]["template"]
        assert violations("restricted", template["metadata"], template["spec"]) == []
        writable = [volume for volume in template["spec"].get("volumes") or () if "emptyDir" in volume]
        assert all(volume["emptyDir"].get("sizeLimit") for volume in writable)
        for container in template["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("shared", [False, True], ids=["one server", "two on a database"])
def test_the_server_has_a_writable_folder_for_uploads(shared: bool) -> None:
    values = parse_values({"databaseSecret": "postgres"} if shared else {})
    (server,) = (obj for obj in overlay(EVERYTHING, values) if obj["metadata"]["name"] == "moorage-server"
                 and obj["kind"] == "Deployment")  # fmt: skip
    (container,) = server["spec"]["template"]["spec"]["containers"]
    (folder,) = (one["value"] for one in container["env"] if one["name"] == "TMPDIR")
    (mount,) = (one for one in container["volumeMounts"] if one["mountPath"] == folder)
    assert not mount.get("readOnly")


def test_pods_that_are_asked_have_time_to_send_their_clients_elsewhere() -> None:
    for service in ALL:
        (deployment,) = [obj for obj in make_service(service, version="1") if obj["kind"] == "Deployment"]
        seconds = deployment["spec"]["template"]["spec"].get("terminationGracePeriodSeconds")
        if service.port is not None:
            assert seconds >= DRAIN_SECONDS.default + LONG_GRACE_SECONDS + 30


def test_the_server_uses_a_postgresql_where_a_secret_names_one_and_starts_without() -> None:
    (server,) = (obj for obj in of_kind("Deployment") if obj["metadata"]["name"] == "moorage-server")
    (container,) = server["spec"]["template"]["spec"]["containers"]
    (given,) = (one for one in container["env"] if one["name"] == QUEUE_URL.name)
    assert given["valueFrom"]["secretKeyRef"] == {"name": "moorage-queue", "key": "url", "optional": True}
    assert "--extra postgres" in (DEPLOY.parent / "Containerfile").read_text()


def test_the_operator_may_renew_the_lease_it_asks_for() -> None:
    assert OPERATOR_LEASE == LEASE


@pytest.mark.processes
def test_kubectl_renders_the_tree() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run([kubectl, "kustomize", str(DEPLOY)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nkind: ") == len(EVERYTHING)


def test_the_namespace_is_closed_but_for_the_ports_that_are_served() -> None:
    policies = [one for one in of_kind("NetworkPolicy") if one["metadata"]["namespace"] == "moorage-system"]
    assert any(policy["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]} for policy in policies)
    opened = {
        policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"]: policy["spec"]["ingress"]
        for policy in policies
        if policy["spec"].get("ingress")
    }
    assert opened == {
        service.full_name: [{"ports": [{"protocol": "TCP", "port": service.port}]}]
        for service in ALL
        if service.port is not None
    }


def test_only_the_scheduler_knows_the_extenders_token() -> None:
    (extender,) = (obj for obj in of_kind("Deployment") if obj["metadata"]["name"] == "moorage-extender")
    (container,) = extender["spec"]["template"]["spec"]["containers"]
    assert container["args"][-2:] == ["--token-file", "/token/token"]
    assert "token" not in str(of_kind("ConfigMap")).lower(), "a ConfigMap holds no secret"
