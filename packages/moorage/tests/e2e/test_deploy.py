"""`deploy/` on the cluster that the environment chose: accepted in full, and enough for each service, and no more.

The cluster runs the services of the tests already, registered by URL. So the tree is tried in full as a dry run by
the server, and only what disturbs nobody (definitions, accounts and rights) is applied for good.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster, find_kubectl

DEPLOY = Path(__file__).parents[4] / "deploy"
NAMESPACE = "moorage-system"
REGISTRATIONS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
SAFE = ("Namespace", "CustomResourceDefinition", "ServiceAccount")
RIGHTS = ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")

pytestmark = pytest.mark.cluster("api")


@pytest.fixture
def kubectl(cluster: Cluster) -> Any:
    """Call kubectl on the cluster; its output, or AssertionError with what it said."""
    program = find_kubectl()
    if program is None:
        pytest.skip("kubectl is not installed")

    def call(*args: str, stdin: str | None = None, check: bool = True) -> str:
        words = [program, "--kubeconfig", str(cluster.kubeconfig), *args]
        done = subprocess.run(words, capture_output=True, text=True, input=stdin, timeout=120, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(args)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    return call


@pytest.fixture
def tree(kubectl: Any) -> list[dict[str, Any]]:
    """Every object that kustomize makes of the folder."""
    return [one for one in yaml.safe_load_all(kubectl("kustomize", str(DEPLOY))) if one]


@pytest.fixture
def applied(kubectl: Any, tree: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Definitions, accounts and rights, applied. They stay: nobody else uses those names."""
    # server-side: what the tests' own services made bears no note of an earlier `kubectl apply`
    words = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    kubectl(*words, stdin=yaml.safe_dump_all([one for one in tree if one["kind"] in (*SAFE, *RIGHTS)]))
    return tree


def test_the_api_server_accepts_every_object_of_the_tree(cluster, kubectl, applied, unique):
    for one in applied:
        if one["kind"] in REGISTRATIONS:  # the one of that name here has a URL, and cannot have a Service too
            one["metadata"]["name"] = unique
            if cluster.kind == "local":  # which has no service network, and refuses what could never be reached
                for webhook in one["webhooks"]:
                    webhook["clientConfig"] = {"url": "https://127.0.0.1:1/"}
                    webhook.pop("matchConditions", None)  # nor can it evaluate these
    words = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-o", "name")
    said = kubectl(*words, "-f", "-", stdin=yaml.safe_dump_all(applied)).split()
    assert len(said) == len(applied)


@pytest.mark.parametrize("folder", ["overlays/production", "overlays/example"])
def test_the_api_server_accepts_every_object_that_an_overlay_changes(kubectl, applied, folder):
    base = {(one["kind"], one["metadata"]["name"]): one for one in applied}
    rendered = [one for one in yaml.safe_load_all(kubectl("kustomize", str(DEPLOY / folder))) if one]
    changed = [one for one in rendered if base.get((one["kind"], one["metadata"]["name"])) != one]
    assert {one["kind"] for one in changed} >= {"Deployment", "Ingress"}
    words = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict", "-o", "name")
    names = kubectl(*words, "-f", "-", stdin=yaml.safe_dump_all(changed)).split()
    assert len(names) == len(changed)


def test_the_kinds_are_established_and_shown_and_keep_out_what_they_do_not_know(kubectl, applied, unique):
    names = [one["metadata"]["name"] for one in applied if one["kind"] == "CustomResourceDefinition"]
    kubectl("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{name}" for name in names))
    tenant = {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": unique},
        "spec": {
            "namespace": unique,
            "defaults": {"cpu": 2, "memory": "8Gi"},
            "restartLimit": 3,
            "onDelete": "Keep",
        },
    }
    try:
        kubectl("create", "-f", "-", stdin=json.dumps(tenant))
        assert json.loads(kubectl("get", "tenant", unique, "-o", "json"))["spec"] == tenant["spec"]
        header, row = kubectl("get", "tenants", "--field-selector", f"metadata.name={unique}").splitlines()
        assert header.split() == ["NAME", "NAMESPACE", "PEOPLE", "NODES", "READY", "MEMORY", "AGE"]
        assert row.split()[:2] == [unique, unique]
        assert "8Gi" in row.split()
        for wrong in ({"namespace": "No Name"}, {"restartLimit": -1}, {"defaults": {"memory": "lots"}}):
            said = kubectl(
                "patch", "tenant", unique, "--type=merge", "-p", json.dumps({"spec": wrong}), check=False
            )
            assert said == ""
        assert json.loads(kubectl("get", "tenant", unique, "-o", "json"))["spec"] == tenant["spec"]
    finally:
        kubectl("delete", "tenant", unique, "--ignore-not-found")


# what each service asks of the API: (verb, resource, the namespace or None for all of them, the name or "")
USED = {
    "operator": [
        ("create", "pods", NAMESPACE, ""),  # reservations
        ("patch", "pods", None, ""),
        ("patch", "nodes", None, ""),
        *((verb, "machines.moorage.dev", None, "") for verb in ("list", "watch")),
        ("patch", "machines.moorage.dev/status", None, ""),
        *((verb, "reservations.moorage.dev", None, "") for verb in ("list", "watch")),
        ("patch", "reservations.moorage.dev/status", None, ""),
        *((verb, "machinenodepools.moorage.dev", None, "") for verb in ("list", "watch", "create", "patch")),
        ("patch", "machinenodepools.moorage.dev/status", None, ""),
        *((verb, "jobs.batch", None, "") for verb in ("get", "list", "watch", "create", "patch", "delete")),
        *((verb, "pods", None, "") for verb in ("list", "watch", "delete")),
        ("patch", "pods/status", None, ""),
        *((verb, "nodes", None, "") for verb in ("get", "list", "watch")),
        *((verb, "events", None, "") for verb in ("get", "create", "patch")),
        ("create", "leases.coordination.k8s.io", NAMESPACE, ""),
        *((verb, "leases.coordination.k8s.io", NAMESPACE, "moorage-operator") for verb in ("get", "update")),
        ("create", "secrets", NAMESPACE, ""),
        *((verb, "secrets", NAMESPACE, "moorage-webhook-tls") for verb in ("get", "update")),
        ("get", "secrets", NAMESPACE, "moorage-page"),
        *((verb, "mutatingwebhookconfigurations", None, "moorage") for verb in ("get", "update")),
        *((verb, "validatingwebhookconfigurations", None, "moorage") for verb in ("get", "update")),
    ],
    "webhook": [(verb, what, None, "") for what in ("nodes", "tenants.moorage.dev") for verb in ("list", "watch")],
    "extender": [(verb, what, None, "") for what in ("nodes", "pods") for verb in ("list", "watch")],
    "server": [
        *((verb, what, None, "") for what in ("nodes", "pods") for verb in ("list", "watch")),
        *((verb, "jobs.batch", None, "") for verb in ("get", "list", "watch", "patch")),
        ("list", "persistentvolumeclaims", None, ""),
        ("list", "tenants.moorage.dev", None, ""),
        ("list", "events", None, ""),
        ("create", "tokenreviews.authentication.k8s.io", None, ""),
    ],
}
NEVER = [
    ("get", "secrets", "default", "any"),
    ("list", "secrets", NAMESPACE, ""),
    ("create", "clusterrolebindings.rbac.authorization.k8s.io", None, ""),
    ("impersonate", "users", None, ""),
    ("update", "mutatingwebhookconfigurations", None, "other"),
    ("delete", "nodes", None, ""),
    ("update", "nodes", None, ""),
]
NEVER_BUT_THE_OPERATOR = [
    ("create", "pods", None, ""),  # it makes the steps of workflows
    ("patch", "nodes", None, ""),  # it marks the nodes of machine pools
    ("delete", "jobs.batch", None, ""),  # it takes away the Jobs of maps that are over
]


@pytest.mark.parametrize("service", sorted(USED))
def test_each_service_may_do_what_it_does_and_nothing_dangerous(kubectl, applied, service):
    def may(verb: str, resource: str, namespace: str | None, name: str) -> bool:
        plural, _, subresource = resource.partition("/")
        words = ["auth", "can-i", verb, f"{plural}/{name}" if name else plural]
        words += ["--subresource", subresource] if subresource else []
        words += ["-n", namespace] if namespace else ["-A"]
        user = f"system:serviceaccount:{NAMESPACE}:moorage-{service}"
        return str(kubectl(*words, "--as", user, check=False)).strip() == "yes"

    def all_may() -> bool:
        return all(may(*one) for one in USED[service])

    wait_until(f"the rights of the {service}", all_may)  # the authorizer follows roles at a short distance
    never = NEVER if service == "operator" else NEVER + NEVER_BUT_THE_OPERATOR
    assert [one for one in never if may(*one)] == []


@contextlib.contextmanager
def service_running(cluster: Cluster, kubectl: Any, name: str, folder: Path, *args: str) -> Iterator[Path]:
    """`moor NAME` under the token of its own account; gives the path of its log."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    token = kubectl("create", "token", "-n", NAMESPACE, f"moorage-{name}").strip()
    for user in config["users"]:
        user["user"] = {"token": token}
    kubeconfig, log = folder / f"{name}.kubeconfig", folder / f"{name}.log"
    kubeconfig.write_text(yaml.safe_dump(config))
    words = [sys.executable, "-m", "moorage.cli.main", name, "--kubeconfig", str(kubeconfig), *args]
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file, cwd=folder)
    try:
        yield log
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert process.returncode == 0, log.read_text()


def says(log: Path, *sentences: str) -> bool:
    text = log.read_text()
    assert "orbidden" not in text, text
    assert "Traceback" not in text, text
    return all(one in text for one in sentences)


def secret(kubectl: Any, name: str, key: str) -> bytes:
    import base64

    found = json.loads(kubectl("get", "secret", "-n", NAMESPACE, name, "-o", "json"))
    return base64.b64decode(found["data"][key])


@pytest.mark.timeout(900)
def test_each_service_runs_with_its_own_account_and_is_never_forbidden_anything(
    cluster, kubectl, applied, tmp_path
):
    here = ("--host", "127.0.0.1", "--port", "0")
    with contextlib.ExitStack() as stack:

        def start(name: str, *args: str) -> Path:
            return stack.enter_context(service_running(cluster, kubectl, name, tmp_path, *args))

        operator = start("operator", *here)
        extender = start("extender", *here)
        wait_until("the operator to lead", lambda: says(operator, "leading"))
        known = ("get", "secret", "-n", NAMESPACE, "moorage-webhook-tls", "moorage-page", "-o", "name")
        wait_until("the operator's Secrets", lambda: len(kubectl(*known, check=False).split()) == 2)
        for name, key in (("moorage-webhook-tls", "tls.crt"), ("moorage-webhook-tls", "tls.key")):
            (tmp_path / key).write_bytes(secret(kubectl, name, key))
        (tmp_path / "page").write_bytes(secret(kubectl, "moorage-page", "token"))
        certificate = ("--tls-cert", str(tmp_path / "tls.crt"), "--tls-key", str(tmp_path / "tls.key"))
        webhook = start("webhook", *here, *certificate)
        data = ("--data", str(tmp_path / "data"), "--page-token-file", str(tmp_path / "page"))
        server = start("server", *here, *data)
        logs = (operator, extender, webhook, server)
        for log in logs:
            wait_until(f"{log.stem} to be ready", lambda log=log: says(log, "ready"))
    assert all(says(log, "stopped") for log in logs)
    lease = json.loads(kubectl("get", "lease", "-n", NAMESPACE, "moorage-operator", "-o", "json"))
    assert not lease["spec"].get("holderIdentity"), "the lease is given back at the end"


def test_the_arguments_of_each_deployment_are_options_of_its_command(tree):
    from moorage.cli.commands import COMMANDS, load

    targets = {name: target for _, name, target, _ in COMMANDS}
    for deployment in (one for one in tree if one["kind"] == "Deployment"):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        name, *args = container["args"]
        command = load(targets[name])
        known = {option for parameter in command.params for option in parameter.opts}
        given = {word.partition("=")[0] for word in args if word.startswith("--")}
        assert given <= known, f"moor {name} has no {given - known}"
