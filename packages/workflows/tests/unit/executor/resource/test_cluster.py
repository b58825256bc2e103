"""Requests of a resource step, against a real small HTTPS server."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from moorage_local.apiserver.pki import ensure_pki
from moorage_workflows.executor.errors import Passing, StepError
from moorage_workflows.executor.resource.cluster import Cluster, Lost, Refused


@dataclass
class Site:
    """Answers in order: (status, document), or None for a connection that breaks."""

    port: int = 0
    answers: list[tuple[int, Any] | None] = field(default_factory=list)
    seen: list[tuple[str, str, str, Any]] = field(default_factory=list)  # method, path, token, body


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            made.seen.append((self.command, self.path, self.headers["Authorization"], body))
            answer = made.answers.pop(0)
            if answer is None:
                self.close_connection = True
                return
            data = json.dumps(answer[1]).encode() if not isinstance(answer[1], bytes) else answer[1]
            self.send_response(answer[0])
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _answer

    pki = ensure_pki(tmp_path / "pki")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki.certificate, pki.key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    made.port = server.server_address[1]
    (tmp_path / "ca.crt").write_bytes(Path(pki.ca).read_bytes())
    (tmp_path / "token").write_text("first\n")
    yield made
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cluster(site: Site, tmp_path: Path) -> Cluster:
    env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(site.port)}
    return Cluster(env, tmp_path)


def test_each_request_has_the_token_that_is_there_now(site: Site, cluster: Cluster, tmp_path: Path) -> None:
    site.answers = [(200, {"kind": "Pod"}), (201, {"kind": "Pod"})]
    assert cluster.ask("GET", "/api/v1/pods", query={"labelSelector": "a=b"}) == {"kind": "Pod"}
    (tmp_path / "token").write_text("second\n")
    cluster.ask("POST", "/api/v1/pods", body={"a": "ä"})
    assert site.seen == [
        ("GET", "/api/v1/pods?labelSelector=a%3Db", "Bearer first", None),
        ("POST", "/api/v1/pods", "Bearer second", {"a": "ä"}),
    ]


@pytest.mark.parametrize("status", [401, 429, 500, 503])
def test_what_may_pass_is_told_as_such(site: Site, cluster: Cluster, status: int) -> None:
    site.answers = [(status, {"message": "wait"})]
    with pytest.raises(Passing, match=f"answered {status}: wait"):
        cluster.ask("GET", "/x")


def test_a_refusal_has_the_whole_message_of_the_server(site: Site, cluster: Cluster) -> None:
    message = "Job.batch is invalid: " + ", ".join(f"spec.field{number}: Required value" for number in range(100))
    site.answers = [(422, {"kind": "Status", "reason": "Invalid", "message": message})]
    with pytest.raises(Refused) as caught:
        cluster.ask("POST", "/x", body={})
    assert (caught.value.status, caught.value.reason, caught.value.message) == (422, "Invalid", message)


def test_a_connection_that_breaks_after_the_request_may_have_done_it(site: Site, cluster: Cluster) -> None:
    site.answers = [None, (200, b"not JSON")]
    with pytest.raises(Lost, match="PATCH /x at the API server 127.0.0.1"):
        cluster.ask("PATCH", "/x", body={})
    with pytest.raises(Lost, match="not a JSON object"):
        cluster.ask("PATCH", "/x", body={})


def test_a_server_that_is_away_or_an_account_that_is_not_there_may_come(tmp_path: Path) -> None:
    env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    with pytest.raises(Passing, match="the service account of this pod cannot be read"):
        Cluster(env, tmp_path).ask("GET", "/x")
    with pytest.raises(StepError, match="KUBERNETES_SERVICE_HOST is not set"):
        Cluster({}, tmp_path)
