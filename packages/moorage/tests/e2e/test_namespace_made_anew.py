"""A namespace is deleted and created anew under another team: the team sees nothing of the old one, as typed."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib import error, request

import pytest
import yaml

from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster

pytestmark = pytest.mark.timeout(900)
PASSWORD = "correct horse battery"
SECRET = "ada-keeps-this"
MEMOIZED = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {{name: {name}}}
spec:
  entrypoint: make
  templates:
  - name: make
    memoize: {{key: one, maxAge: 1h, cache: {{configMap: {{name: made}}}}}}
    container: {{image: python, command: [sh, -c, 'echo {text}; echo {text} > /tmp/{name}']}}
    outputs:
      artifacts: [{{name: model, path: /tmp/{name}, s3: {{key: {name}.txt}}, archive: {{none: {{}}}}}}]
      parameters: [{{name: made, valueFrom: {{path: /tmp/{name}}}}}]
"""
READS_A_KEY = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: reads}
spec:
  entrypoint: read
  templates:
  - name: read
    inputs: {artifacts: [{name: old, path: /tmp/old, s3: {key: ada.txt}}]}
    container: {image: python, command: [cat, /tmp/old]}
"""


@dataclass
class Person:
    """Types commands in a home of their own, logged in by password, and asks the server as the same."""

    home: Path
    server: str
    namespace: str
    token: str = ""

    def moor(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        hidden = ("KUBECONFIG", "MOORAGE_", "XDG_", "BROWSER", "DISPLAY", "WAYLAND_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        scripts = str(Path(sys.executable).parent)
        env |= {"HOME": str(self.home), "PATH": f"{scripts}:{env['PATH']}", "NO_COLOR": "1"}
        argv = [sys.executable, "-m", "moorage.cli.main", *words]
        return subprocess.run(
            argv, env=env, cwd=self.home, input=stdin, capture_output=True, text=True, timeout=300, check=False
        )

    def types(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.moor(*words, "-n", self.namespace)

    def submits(self, manifest: str) -> str:
        """The workflow, once it has ended."""
        (self.home / "workflow.yaml").write_text(manifest)
        name = str(yaml.safe_load(manifest)["metadata"]["name"])
        done = self.types("workflow", "submit", "--host-env", "workflow.yaml", "--wait")
        shown = self.types("workflow", "get", name, "-o", "json")
        return done.stdout + done.stderr + shown.stdout + shown.stderr

    def asks(self, path: str, method: str = "GET", body: Any = None) -> tuple[int, str]:
        data = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        asked = request.Request(self.server + path, data=data, headers=headers, method=method)
        try:
            with request.urlopen(asked, timeout=120) as answer:
                return answer.status, answer.read().decode(errors="replace")
        except error.HTTPError as answer:
            return answer.code, answer.read().decode(errors="replace")


@pytest.fixture
def server(cluster: Cluster) -> str:
    if cluster.kind != "local":
        pytest.skip("needs a local cluster, whose runs run")
    info = cluster.moor("status", "-o", "json", "--data", str(cluster.home))
    return str(yaml.safe_load(info.stdout)["page"]).partition("/?")[0]


@pytest.fixture
def people(cluster: Cluster, unique: str, server: str, tmp_path: Path) -> Iterator[list[Person]]:
    """Ada, whose team has the namespace, and Mallory, whose team gets it."""
    persons = []
    for who in ("ada", "mallory"):
        cluster.moor("user", "create", f"{who}-{unique}", "--password-stdin", stdin=PASSWORD + "\n")
        (tmp_path / who).mkdir()
        persons.append(Person(tmp_path / who, server, unique))
    yield persons
    for who in ("ada", "mallory"):
        cluster.moor("tenant", "delete", f"{unique}-{who}", check=False)
        cluster.moor("user", "delete", f"{who}-{unique}", check=False)
    kubectl(cluster, "DELETE", f"/api/v1/namespaces/{unique}")


def kubectl(cluster: Cluster, method: str, path: str) -> int:
    """One request to the API server, as its administrator."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    token = config["users"][0]["user"]["token"]
    url = config["clusters"][0]["cluster"]["server"] + path
    asked = request.Request(url, headers={"authorization": f"Bearer {token}"}, method=method)
    context = ssl._create_unverified_context()
    try:
        with request.urlopen(asked, timeout=60, context=context) as answer:
            return int(answer.status)
    except error.HTTPError as answer:
        return answer.code


def begin_team(cluster: Cluster, person: Person, who: str) -> None:
    """Give a person a tenant with the namespace, and log them in."""
    name = f"{person.namespace}-{who}"
    cluster.moor("tenant", "create", name, "--in", person.namespace, "--admin", f"{who}-{person.namespace}")

    def is_ready() -> bool:
        return bool(json.loads(cluster.moor("tenant", "show", name, "-o", "json").stdout)["ready"])

    wait_until("the team's rights", is_ready)
    login = f"{who}-{person.namespace}"
    done = person.moor("login", person.server, "--username", login, "--password-stdin", stdin=PASSWORD + "\n")
    assert done.returncode == 0, done.stderr
    status, text = person.asks(
        "/api/v1/login", "POST", {"username": login, "password": PASSWORD, "client": "test"}
    )
    assert status == 201, text
    person.token = json.loads(text)["token"]


def test_a_team_sees_nothing_of_the_team_that_had_its_namespace(cluster, people, unique):
    ada, mallory = people
    begin_team(cluster, ada, "ada")
    size = ("--cpu", "100m", "--memory", "64Mi")
    run = ada.types("run", "--name", "train", *size, "--", sys.executable, "-c", f"print('{SECRET}')")
    assert run.returncode == 0, run.stderr
    kept = f"/api/v1/jobs/{unique}/train/records"
    wait_until("the run to be kept", lambda: "Succeeded" in ada.asks(kept)[1])
    assert SECRET in ada.submits(MEMOIZED.format(name="ada", text=SECRET))
    maps = f"/api/v1/maps/{unique}"
    assert ada.asks(maps, "POST", {"name": "squares", "request": "r"})[0] == 201
    assert ada.asks(f"{maps}/squares/items", "POST", json.dumps({"value": SECRET}))[0] == 200
    seen = [
        f"{maps}", f"{maps}/squares", f"{maps}/squares/items", f"/maps/{unique}/squares", "/maps",
        f"/maps/{unique}/squares/items",
        f"/api/v1/workflows/{unique}", f"/api/v1/workflows/{unique}/ada", f"/workflows/{unique}/ada",
        f"/workflows?namespace={unique}", "/workflows", f"/api/v1/workflows/{unique}/ada/artifacts",
        f"/api/v1/workflows/{unique}/ada/artifacts/ada/model", f"/api/v1/workflows/{unique}/ada/records",
        f"/api/v1/jobs/{unique}/train", f"/api/v1/jobs/{unique}/train/logs",
        f"/api/v1/jobs/{unique}/train/records", f"/jobs/{unique}/train", f"/api/v1/rightsize?namespace={unique}",
    ]  # fmt: skip
    told = [text for path in seen for status, text in (ada.asks(path),) if status < 300]
    assert len(told) == len(seen)
    assert sum(SECRET in text for text in told) >= 5

    cluster.moor("tenant", "delete", f"{unique}-ada")
    kubectl(cluster, "DELETE", f"/api/v1/namespaces/{unique}")
    wait_until("the namespace to go", lambda: kubectl(cluster, "GET", f"/api/v1/namespaces/{unique}") == 404)
    begin_team(cluster, mallory, "mallory")

    for path in seen:
        status, text = mallory.asks(path)
        assert status < 500, path
        assert SECRET not in text, path
        if path not in ("/maps", "/workflows", f"/workflows?namespace={unique}"):
            assert not {"squares", "ada"} & set(text.replace(f"/{unique}", " ").split('"')) or status == 404, path
    for words in (
        ("map", "list"), ("map", "items", "squares"), ("map", "results", "squares"), ("workflow", "list"),
        ("workflow", "get", "ada"), ("workflow", "logs", "ada"), ("workflow", "artifacts", "list", "ada"),
        ("jobs",), ("logs", "train"), ("show", "train"),
    ):  # fmt: skip
        done = mallory.types(*words)
        assert SECRET not in done.stdout + done.stderr, words
        assert not {"squares", "train", "ada"} & set(done.stdout.split()), words
    assert SECRET not in mallory.submits(MEMOIZED.format(name="mine", text="not-recalled"))
    read = mallory.submits(READS_A_KEY)
    assert SECRET not in read
    assert "there is no artifact" in read
    assert mallory.asks(maps, "POST", {"name": "squares", "request": "r"})[0] == 201  # the name is free
    assert SECRET not in mallory.asks(f"{maps}/squares/items")[1]
    for path in (f"/api/v1/jobs/{unique}/train/records", f"/api/v1/workflows/{unique}/ada/records"):
        assert mallory.asks(path, "DELETE") == (200, '{"pods":0}')

    admin = cluster.moor
    assert "ada" in admin("workflow", "list", "-n", unique).stdout.split()
    assert SECRET in admin("workflow", "artifacts", "get", "ada", "ada/model", "--file", "-", "-n", unique).stdout
    assert SECRET in admin("logs", "train", "-n", unique).stdout
    listed = json.loads(admin("map", "list", "-A", "-o", "json").stdout)
    (old,) = [one["namespace"] for one in listed if one["namespace"].startswith(f"{unique}@")]
    assert SECRET in admin("map", "items", "squares", "-n", old).stdout
