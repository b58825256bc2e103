"""The overlays of `deploy`, rendered by kustomize itself."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from moorage.decide.install.overlay import overlay
from moorage.decide.install.values import InstallValues
from moorage.model.manifests import ALL, SERVER, make_service
from moorage_testing.cluster import find_kubectl

DEPLOY = Path(__file__).parents[6] / "deploy"


@functools.cache
def render(folder: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Objects by kind and name; tests only read them."""
    kubectl = find_kubectl()
    if kubectl is None:
        pytest.skip("kubectl is not installed: it holds kustomize")
    words = [kubectl, "kustomize", str(DEPLOY / folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    objects = yaml.load_all(done.stdout, yaml.CSafeLoader)
    return {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects if obj}


def test_production_changes_deployments_and_adds_an_ingress():
    base, production = render("."), render("overlays/production")
    assert set(base) - set(production) == {("PersistentVolumeClaim", "moorage-usage")}
    assert set(production) - set(base) == {("Ingress", "moorage-server")}
    changed = {key for key in set(base) & set(production) if base[key] != production[key]}
    assert changed == {("Deployment", service.full_name) for service in ALL}


@pytest.mark.parametrize("service", ALL, ids=lambda service: service.name)
def test_in_production_two_pods_of_each_service_stand_on_different_nodes(service):
    rendered = render("overlays/production")
    spec = rendered["Deployment", service.full_name]["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    spread = {
        each["topologyKey"]: each["whenUnsatisfiable"]
        for each in spec["template"]["spec"]["topologySpreadConstraints"]
    }
    assert spread == {
        "kubernetes.io/hostname": "DoNotSchedule",
        "topology.kubernetes.io/zone": "ScheduleAnyway",
    }
    budget = rendered["PodDisruptionBudget", service.full_name]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == spec["selector"]
    assert ("NetworkPolicy", "moorage-closed") in rendered


def test_servers_in_production_write_to_postgresql_and_to_no_volume():
    pod = render("overlays/production")["Deployment", SERVER.full_name]["spec"]["template"]["spec"]
    [data] = [volume for volume in pod["volumes"] if volume["name"] == "data"]
    assert data == {"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}
    [url] = [entry for entry in pod["containers"][0]["env"] if entry["name"] == "MOORAGE_QUEUE_URL"]
    assert url["valueFrom"]["secretKeyRef"] == {"name": "moorage-queue", "key": "url", "optional": False}


def test_the_example_sets_image_host_and_settings_on_top_of_production():
    production, example = render("overlays/production"), render("overlays/example")
    assert set(example) == set(production)
    images = {
        container["image"]
        for (kind, _), obj in example.items()
        if kind == "Deployment"
        for container in obj["spec"]["template"]["spec"]["containers"]
    }
    assert {image.partition(":")[0] for image in images} == {"registry.example.org/moorage"}
    assert example["ConfigMap", "moorage"]["data"]["publicUrl"] == "https://moorage.example.org"
    [rule] = example["Ingress", "moorage-server"]["spec"]["rules"]
    assert rule["host"] == "moorage.example.org"


def test_moor_install_with_a_database_shares_the_server_as_the_overlay_does():
    made = overlay(make_service(SERVER, version="0.1.0"), InstallValues(database_secret="moorage-queue"))
    [deployment] = [obj for obj in made if obj["kind"] == "Deployment"]
    wanted = render("overlays/production")["Deployment", SERVER.full_name]["spec"]
    assert deployment["spec"]["replicas"] == wanted["replicas"]
    assert deployment["spec"]["strategy"] == wanted["strategy"]
    assert deployment["spec"]["template"]["spec"]["volumes"] == wanted["template"]["spec"]["volumes"]
