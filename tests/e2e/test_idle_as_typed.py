"""Idle work, as typed: found, warned about by webhook and mail, snoozed, suspended, and brought back as it was."""

from __future__ import annotations

import asyncio
import json
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

from moorage.apimachinery.resources import Obj
from moorage.kube.client import KubeClient
from moorage.model.idle import IDLE_POLICIES
from moorage.testing import waiting
from moorage.testing.cluster import Cluster, local_cluster

pytestmark = [pytest.mark.timeout(1200), pytest.mark.xdist_group("idle")]

until = partial(waiting.read_until, patience=600.0)  # readings come every half minute
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


async def create(cluster: Cluster, policy: Obj) -> None:
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        await api.create(IDLE_POLICIES, policy)


def idle_of(cluster: Cluster, work: str) -> dict[str, Any]:
    listed = json.loads(cluster.moor("idle", "-o", "json").stdout)
    return next((row for row in listed if f"{row['kind']}/{row['name']}" == work), {"state": "active"})


def test_idle_work_is_warned_about_snoozed_suspended_and_brought_back(cluster, receivers, tmp_path):
    spec = {
        "warnAfter": "1m",
        "remindAfter": "30s",
        "suspendAfter": "1m",
        "idle": {"window": "30s"},
        "snooze": {"longest": "2m", "times": 1},
        "notify": {
            "targets": [f"http://127.0.0.1:{receivers.hook.server_address[1]}/hook"],
            "mailDomain": "example.com",
        },
    }
    document = {"apiVersion": "moorage.dev/v1alpha1", "kind": "IdlePolicy", "metadata": {"name": "short"}}
    asyncio.run(create(cluster, document | {"spec": spec}))
    (tmp_path / "stalls.py").write_text(STALLS)
    cluster.moor(
        "run", "--name", "stalls", "--gpus", "1", "--cpu", "100m", "--memory", "128Mi", "--checkpoint", "steps",
        "--", sys.executable, "stalls.py", cwd=tmp_path,
    )  # fmt: skip
    cluster.moor("run", "--name", "plain", "--gpus", "1", "--", "sleep", "100000", cwd=tmp_path)

    until(lambda: idle_of(cluster, "run/stalls"), lambda row: row["state"] in ("warned", "reminded"))
    warning = until(lambda: receivers.text_about("stalls", "holds 1 GPU"), bool)
    assert "GPU below 5 % and CPU below 200m in each 30s window since" in warning
    assert "moor snooze run/stalls -n default --for 4h" in warning
    until(lambda: [mail for mail in receivers.mails if "run default/stalls" in mail], bool)
    refused = cluster.moor("snooze", "stalls", "--for", "3m", check=False)
    assert "cannot snooze for 3m: policy short allows 2m at most" in refused.stderr
    cluster.moor("snooze", "stalls", "--for", "1m")
    assert idle_of(cluster, "run/stalls")["state"] == "snoozed"

    until(lambda: idle_of(cluster, "run/stalls"), lambda row: row["state"] == "suspended")
    shown = until(
        lambda: json.loads(cluster.moor("show", "stalls", "-o", "json").stdout),
        lambda run: run["state"] == "Suspended",
    )
    assert shown["reason"].startswith("suspended by the idle policy: idle: GPU below 5 %")
    until(lambda: receivers.text_about("stalls", "was suspended"), lambda text: "moor resume stalls" in text)
    plain = until(lambda: idle_of(cluster, "run/plain"), lambda row: row["state"] == "reminded")
    assert plain["outlook"] == "It is not suspended: it has no checkpoint."

    resumed = cluster.moor("resume", "stalls").stdout
    assert resumed.startswith("stalls resumes from its checkpoint of ")
    until(lambda: cluster.moor("logs", "stalls", check=False).stdout, lambda log: "resumed at 3" in log)
    report = json.loads(cluster.moor("idle", "report", "--since", "1h", "-o", "json").stdout)
    assert report["policy"] == "short"
