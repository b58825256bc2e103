"""Workspaces on any cluster: what is made, kept, said and taken away, through the Kubernetes API."""

from __future__ import annotations

import json
import subprocess

import pytest
import yaml

from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import find_kubectl

pytestmark = pytest.mark.skipif(find_kubectl() is None, reason="kubectl is not installed")


class Kube:
    """kubectl in one namespace."""

    def __init__(self, cluster, namespace):
        self.cluster, self.namespace = cluster, namespace

    def run(self, *args, check=True, stdin=None):
        done = subprocess.run(
            [find_kubectl(), "--kubeconfig", str(self.cluster.kubeconfig), "-n", self.namespace, *args],
            capture_output=True,
            text=True,
            input=stdin,
            check=False,
            timeout=120,
        )
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(args)}: {done.stdout}{done.stderr}")
        return done

    def apply(self, obj):
        return self.run("apply", "-f", "-", stdin=yaml.safe_dump(obj))

    def get(self, kind, name):
        done = self.run("get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def status(self, name="lab"):
        return (self.get("workspace", name) or {}).get("status") or {}


@pytest.fixture
def kube(cluster, unique):
    kube = Kube(cluster, unique)
    kube.run("create", "namespace", unique)
    yield kube
    kube.run("delete", "namespace", unique, "--wait=false", check=False)


def a_workspace(name="lab", **spec):
    base = {"type": "jupyterlab", "resources": {"cpu": "100m", "memory": "128Mi"}}
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Workspace",
        "metadata": {"name": name},
        "spec": base | spec,
    }


@pytest.mark.cluster("api")
def test_one_resource_makes_deployment_service_secret_and_home_and_says_how_it_stands(kube):
    kube.apply(a_workspace(image="example.org/lab:1", access="token"))
    deployment = wait_until("the Deployment", lambda: kube.get("deployment", "ws-lab"))
    assert deployment["spec"]["strategy"]["type"] == "Recreate"
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "example.org/lab:1"
    assert container["resources"]["limits"] == container["resources"]["requests"]
    service = wait_until("the Service", lambda: kube.get("service", "ws-lab"))
    assert service["spec"]["ports"][0]["targetPort"] == 8888
    assert wait_until("the home", lambda: kube.get("pvc", "lab-home"))["metadata"].get("ownerReferences") is None
    status = wait_until("the status", lambda: kube.status() if kube.status().get("secret") else None)
    assert kube.get("secret", status["secret"])["immutable"] is True
    assert status["phase"] in ("Starting", "Waiting", "Failed")
    assert status["access"] == "token"
    assert [one["type"] for one in status["conditions"]] == ["Ready"]


@pytest.mark.cluster("api")
def test_what_somebody_deletes_comes_back_and_what_is_changed_is_followed(kube):
    kube.apply(a_workspace(image="example.org/lab:1"))
    wait_until("the Deployment", lambda: kube.get("deployment", "ws-lab"))
    kube.run("delete", "service", "ws-lab")
    wait_until("the Service again", lambda: kube.get("service", "ws-lab"))
    kube.apply(a_workspace(image="example.org/lab:2"))
    wait_until(
        "the other image",
        lambda: (
            kube.get("deployment", "ws-lab")["spec"]["template"]["spec"]["containers"][0]["image"]
            == "example.org/lab:2"
        ),
    )
    kube.run("patch", "workspace", "lab", "--type=merge", "-p", '{"spec":{"running":false}}')
    wait_until("no replicas", lambda: kube.get("deployment", "ws-lab")["spec"]["replicas"] == 0)
    wait_until("Stopped", lambda: kube.status().get("phase") == "Stopped")


@pytest.mark.cluster("controllers")
def test_a_deleted_workspace_takes_all_with_it_but_its_home(kube):
    kube.apply(a_workspace(running=False))
    kube.run("patch", "workspace", "lab", "--type=merge", "-p", '{"spec":{"running":true}}')
    wait_until("the Deployment", lambda: kube.get("deployment", "ws-lab"))
    wait_until("the home", lambda: kube.get("pvc", "lab-home"))
    kube.run("delete", "workspace", "lab")
    for kind in ("deployment", "service"):
        wait_until(f"no {kind}", lambda kind=kind: kube.get(kind, "ws-lab") is None)
    assert kube.get("pvc", "lab-home") is not None


@pytest.mark.cluster("controllers")
def test_a_quota_that_is_full_is_what_it_waits_for(kube):
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small"},
        "spec": {"hard": {"limits.memory": "64Mi"}},
    }
    kube.apply(quota)
    wait_until("the quota", lambda: (kube.get("resourcequota", "small").get("status") or {}).get("hard"))
    kube.apply(a_workspace())
    waiting = wait_until(
        "the reason",
        lambda: one if (one := kube.status().get("waitingFor") or {}).get("reason") == "Quota" else None,
    )
    assert "exceeded quota" in waiting["message"]


@pytest.mark.cluster("api")
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        pytest.param({"type": ""}, "spec.type", id="nothing to run"),
        pytest.param({"machine": {"group": "g", "type": "t"}}, "spec.resources", id="a machine and a size"),
        pytest.param({"schedule": {"start": "8 o'clock"}}, "spec.schedule.start", id="no cron expression"),
        pytest.param(
            {"schedule": {"stop": "0 8 * * *", "timeZone": "Mars/X"}}, "spec.schedule.timeZone", id="no zone"
        ),
        pytest.param(
            {"env": [{"name": "MOORAGE_TOKEN", "value": "x"}]}, "spec.env[0].name", id="a variable of ours"
        ),
        pytest.param(
            {"volumes": [{"claimName": "a", "mountPath": "/x/../etc"}]},
            "spec.volumes[0].mountPath",
            id="a way out",
        ),
        pytest.param({"access": "everybody"}, "spec.access", id="unknown access"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(kube, spec, field):
    done = kube.run("apply", "-f", "-", stdin=yaml.safe_dump(a_workspace(**spec)), check=False)
    assert done.returncode != 0
    assert field in done.stderr
    assert kube.get("workspace", "lab") is None


@pytest.mark.cluster("api")
def test_a_type_that_is_not_there_and_a_name_that_is_taken_are_said(kube):
    kube.apply(a_workspace("odd", type="matlab"))
    waiting = wait_until("the reason", lambda: kube.status("odd").get("waitingFor"))
    assert waiting["reason"] == "UnknownType"
    assert "codeserver, jupyterlab" in waiting["message"]
    kube.run("create", "service", "clusterip", "ws-mine", "--tcp=80")
    kube.apply(a_workspace("mine"))
    waiting = wait_until(
        "the reason",
        lambda: one if (one := kube.status("mine").get("waitingFor") or {}).get("reason") == "NameTaken" else None,
    )
    assert "ws-mine" in waiting["message"]


@pytest.mark.cluster("kubelet")
def test_any_http_application_runs_and_keeps_its_files(kube):
    serve = "cd $(HOME) && date >> started && exec python3 -m http.server --bind $(POD_IP) $(MOORAGE_PORT)"
    app = {"command": ["sh", "-c", serve], "port": 8123, "home": "/home/any", "ready": "/"}
    kube.apply(a_workspace(type="", app=app, image=kube.cluster.image))
    wait_until("it runs", lambda: kube.status().get("phase") == "Running")
    kube.run("patch", "workspace", "lab", "--type=merge", "-p", '{"spec":{"running":false}}')
    wait_until("it is stopped", lambda: kube.status().get("phase") == "Stopped")
    kube.run("patch", "workspace", "lab", "--type=merge", "-p", '{"spec":{"running":true}}')
    wait_until("it runs again", lambda: kube.status().get("phase") == "Running")
    claim = kube.get("pvc", "lab-home")
    volume = kube.get("pv", claim["spec"]["volumeName"])
    path = (volume["spec"].get("hostPath") or volume["spec"].get("local") or {}).get("path")
    if path and kube.cluster.kind == "local":
        with open(f"{path}/started") as file:
            assert len(file.readlines()) == 2


@pytest.mark.cluster("kubelet")
def test_an_admins_template_is_a_type_of_its_own(kube, unique):
    app = {"command": ["sh", "-c", "exec python3 -m http.server --bind $(POD_IP) $(MOORAGE_PORT)"], "port": 8124}
    app["image"] = kube.cluster.image
    template = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"template-{unique}",
            "namespace": "moorage-system",
            "labels": {"moorage.dev/workspace-template": f"web-{unique}"},
        },
        "data": {"template.yaml": yaml.safe_dump(app)},
    }
    kube.run("apply", "-n", "moorage-system", "-f", "-", stdin=yaml.safe_dump(template))
    try:
        kube.apply(a_workspace(type=f"web-{unique}"))
        wait_until("it runs", lambda: kube.status().get("phase") == "Running")
    finally:
        kube.run("delete", "configmap", "-n", "moorage-system", f"template-{unique}", check=False)
