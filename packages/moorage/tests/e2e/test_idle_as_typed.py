"""Idle work, as typed: found, warned about by webhook and mail, snoozed, suspended, and brought back as it was."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socketserver
import sys
import textwrap
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from moorage.model.idle import IDLE_POLICIES
from moorage_kube.remote.client import KubeClient
from moorage_kube.testing import waiting
from moorage_testing.cluster import Cluster, local_cluster

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("idle")]

until = partial(waiting.read_until, patience=600.0)  # readings come every half minute
WARNS = {"warnAfter": "1m", "idle": {"window": "30s"}, "snooze": {"longest": "2h", "times": 1}}
SUSPENDS = {"remindAfter": "5s", "suspendAfter": "10s", "snooze": {"longest": "5s", "times": 1}}
STALLS = textwrap.dedent(
    """
    import os, pathlib, time
    step = pathlib.Path(os.environ["MOORAGE_CHECKPOINT_DIR"], "step")
    print("resumed at", step.read_text() if step.exists() else "nothing", flush=True)
    time.sleep(2)
    step.write_text("3")
    time.sleep(100000)
    """
)


class Receivers:
    """A webhook and a mail server that keep what comes."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.mails: list[str] = []
        texts, mails = self.texts, self.mails

        class Hook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                texts.append(json.loads(body)["text"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return None

        class Mail(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                lines: list[str] | None = None
                self.wfile.write(b"220 test\r\n")
                for raw in self.rfile:
                    line = raw.decode().rstrip("\r\n")
                    if lines is not None and line != ".":
                        lines.append(line)
                        continue
                    if lines is not None:
                        mails.append("\n".join(lines))
                        lines = None
                    elif line.upper() == "DATA":
                        lines = []
                        self.wfile.write(b"354 go\r\n")
                        continue
                    self.wfile.write(b"221 bye\r\n" if line.upper() == "QUIT" else b"250 ok\r\n")

        self.hook, self.mail = HTTPServer(("127.0.0.1", 0), Hook), socketserver.TCPServer(("127.0.0.1", 0), Mail)
        for server in (self.hook, self.mail):
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def close(self) -> None:
        for server in (self.hook, self.mail):
            server.shutdown()
            server.server_close()

    def spec(self) -> dict[str, Any]:
        """The part of a policy that names these."""
        targets = [f"http://127.0.0.1:{self.hook.server_address[1]}/hook"]
        return {"notify": {"targets": targets, "mailDomain": "example.com"}}

    def mail_about(self, name: str, words: str) -> str:
        return next((mail for mail in self.mails if f"/{name} " in mail and words in mail), "")

    def text_about(self, name: str, words: str) -> str:
        return next((text for text in self.texts if f"/{name} " in text and words in text.splitlines()[0]), "")


@pytest.fixture
def receivers() -> Iterator[Receivers]:
    receivers = Receivers()
    try:
        yield receivers
    finally:
        receivers.close()


@pytest.fixture
def cluster(tmp_path: Path, receivers: Receivers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("MOORAGE_NOTIFY_NETWORKS", "127.0.0.0/8")
    monkeypatch.setenv("MOORAGE_SMTP_URL", f"smtp+plain://127.0.0.1:{receivers.mail.server_address[1]}")
    monkeypatch.setenv("MOORAGE_SMTP_FROM", "moorage@example.com")
    with local_cluster(tmp_path / "data") as cluster:
        yield cluster


async def create(cluster: Cluster, spec: dict[str, Any]) -> None:
    document = {"apiVersion": "moorage.dev/v1alpha1", "kind": "IdlePolicy", "metadata": {"name": "short"}}
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        await api.create(IDLE_POLICIES, document | {"spec": spec})


async def change(cluster: Cluster, spec: dict[str, Any]) -> None:
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        await api.patch(IDLE_POLICIES, "short", {"spec": spec})


def idle_of(cluster: Cluster, work: str) -> dict[str, Any]:
    listed = json.loads(cluster.moor("idle", "-o", "json").stdout)
    return next((row for row in listed if f"{row['kind']}/{row['name']}" == work), {"state": "active"})


def state_of(cluster: Cluster, *command: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(cluster.moor(*command, "-o", "json").stdout)
    return shown


@pytest.mark.skipif(importlib.util.find_spec("jupyterlab") is None, reason="jupyterlab is not installed")
def test_idle_work_is_warned_about_snoozed_suspended_and_brought_back(cluster, receivers, tmp_path):
    asyncio.run(create(cluster, WARNS | receivers.spec()))
    (tmp_path / "stalls.py").write_text(STALLS)
    (tmp_path / "thesis.txt").write_text("four months of work")
    with_jupyter = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    cluster.moor(
        "workspace", "create", "lab", "--gpus", "1", "--cpu", "500m", "--memory", "1Gi", env=with_jupyter
    )  # fmt: skip
    cluster.moor(
        "run", "--name", "stalls", "--gpus", "1", "--cpu", "100m", "--memory", "128Mi", "--checkpoint", "steps",
        "--", sys.executable, "stalls.py", cwd=tmp_path,
    )  # fmt: skip
    cluster.moor("run", "--name", "plain", "--gpus", "1", "--", "sleep", "100000", cwd=tmp_path)
    until(lambda: state_of(cluster, "workspace", "show", "lab"), lambda lab: lab["phase"] == "Running")
    cluster.moor("volume", "cp", "thesis.txt", "lab-home:/", cwd=tmp_path)

    # warned, by webhook and by mail
    for kind, name, command in (
        ("workspace", "lab", "moor workspace snooze lab -n default --for"),
        ("run", "stalls", "moor snooze run/stalls -n default --for"),
    ):
        until(lambda work=f"{kind}/{name}": idle_of(cluster, work), lambda row: row["state"] == "warned")
        warning = until(lambda name=name: receivers.text_about(name, "holds 1 GPU"), bool)
        assert "GPU below 5 % and CPU below 200m in each 30s window since" in warning
        assert command in warning
        mail = until(lambda name=name: receivers.mail_about(name, "holds 1 GPU"), bool)
        assert "@example.com" in mail
    lab = receivers.text_about("lab", "holds 1 GPU")
    assert "no kernel" in lab
    assert "no browser was connected" in lab

    # snoozed, within the limits
    refused = cluster.moor("snooze", "stalls", "--for", "3h", check=False)
    assert "cannot snooze for 3h: policy short allows 2h at most" in refused.stderr
    assert "workspace/lab is snoozed until" in cluster.moor("workspace", "snooze", "lab", "--for", "1h").stdout
    cluster.moor("snooze", "stalls", "--for", "1h")
    for work in ("workspace/lab", "run/stalls"):
        until(lambda work=work: idle_of(cluster, work), lambda row: row["state"] == "snoozed")

    # the administrator lets it suspend, and shortens all snoozes
    asyncio.run(change(cluster, SUSPENDS))
    for work in ("workspace/lab", "run/stalls"):
        until(lambda work=work: idle_of(cluster, work), lambda row: row["state"] == "suspended")
    until(lambda: state_of(cluster, "workspace", "show", "lab"), lambda lab: lab["phase"] == "Stopped")
    shown = until(lambda: state_of(cluster, "show", "stalls"), lambda run: run["state"] == "Suspended")
    assert shown["reason"].startswith("suspended by the idle policy: idle: GPU below 5 %")
    for name, command in (("stalls", "moor resume stalls"), ("lab", "moor workspace start lab")):
        until(lambda name=name: receivers.text_about(name, "was suspended"), lambda text, c=command: c in text)
        until(lambda name=name: receivers.mail_about(name, "was suspended"), lambda mail, c=command: c in mail)

    # others get the GPUs, and the list says who
    others = [f"next-{number}" for number in range(3)]  # as many as are free now
    for name in others:
        cluster.moor("run", "--name", name, "--gpus", "1", "--", "sleep", "100000", cwd=tmp_path)
    for work in ("workspace/lab", "run/stalls"):
        row = until(lambda work=work: idle_of(cluster, work), lambda row: row.get("wentTo"))
        assert row["wentTo"].startswith("run default/next-")
    assert "GPUs now used by run default/next-" in cluster.moor("idle").stdout
    cluster.moor("cancel", *others)
    plain = until(lambda: idle_of(cluster, "run/plain"), lambda row: row["state"] == "reminded")
    assert plain["outlook"] == "It is not suspended: it has no checkpoint."

    # back with one command each, as it was
    cluster.moor("workspace", "start", "lab", "--wait", env=with_jupyter, timeout=300)
    cluster.moor("volume", "cp", "lab-home:/thesis.txt", "back", cwd=tmp_path)
    (kept,) = [file for file in (tmp_path / "back").rglob("*") if file.is_file()] or [tmp_path / "back"]
    assert kept.read_text() == "four months of work"
    assert cluster.moor("resume", "stalls").stdout.startswith("stalls resumes from its checkpoint of ")
    until(lambda: cluster.moor("logs", "stalls", check=False).stdout, lambda log: "resumed at 3" in log)
    report = json.loads(cluster.moor("idle", "report", "--since", "1h", "-o", "json").stdout)
    assert report["policy"] == "short"
    assert {"workspace/lab", "run/stalls"} <= {f"{row['kind']}/{row['name']}" for row in report["rows"]}
