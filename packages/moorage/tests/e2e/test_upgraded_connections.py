"""`docker exec` and `docker attach` by `Upgrade: tcp`: the output is whole, and the server's log stays quiet."""

from __future__ import annotations

import json
import socket
import sys
from urllib.parse import parse_qs, urlsplit

from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster

PATIENCE = 180.0  # seconds; only bounds a hang


class Server:
    """Raw HTTP to the server of a local cluster, as the owner of its page."""

    def __init__(self, cluster: Cluster) -> None:
        page = urlsplit(
            json.loads(cluster.moor("status", "--data", str(cluster.home), "-o", "json").stdout)["page"]
        )
        self.place, self.token = (page.hostname, page.port), parse_qs(page.query)["token"][0]

    def send(self, method: str, path: str, body: bytes = b"", *headers: str) -> socket.socket:
        connection = socket.create_connection(self.place, PATIENCE)
        lines = [
            f"{method} {path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Authorization: Bearer {self.token}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            *headers,
        ]
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return connection

    def ask(self, method: str, path: str, body: object = None) -> dict:
        data = b"" if body is None else json.dumps(body).encode()
        with self.send(method, path, data, "Connection: close") as connection:
            head, _, rest = read_all(connection).partition(b"\r\n\r\n")
        assert head.split()[1].startswith(b"2"), head + rest
        return json.loads(rest) if rest else {}

    def upgrade(self, path: str, body: object = None) -> tuple[bytes, bytes]:
        """The head of the answer, and what comes after it, to the end."""
        data = b"" if body is None else json.dumps(body).encode()
        with self.send("POST", path, data, "Connection: Upgrade", "Upgrade: tcp") as connection:
            head, _, output = read_all(connection).partition(b"\r\n\r\n")
            return head, output


def read_all(connection: socket.socket) -> bytes:
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


def test_exec_and_attach_leave_no_traceback(own_cluster):
    cluster, server = own_cluster, Server(own_cluster)
    code = "import time; [print(n, flush=True) or time.sleep(0.05) for n in range(1000)]"
    wanted = {"Image": "localhost/host", "Cmd": [sys.executable, "-c", code]}
    there = f"/containers/{server.ask('POST', '/containers/create?name=talks', wanted)['Id']}"
    server.ask("POST", f"{there}/start")
    wait_until("the container to run", lambda: server.ask("GET", f"{there}/json")["State"]["Running"])
    for _ in range(5):
        words = {"AttachStdout": True, "Cmd": ["echo", "hello"]}
        made = server.ask("POST", f"{there}/exec", words)
        head, output = server.upgrade(f"/exec/{made['Id']}/start", {"Detach": False})
        assert head.startswith(b"HTTP/1.1 101 UPGRADED")
        assert output == b"\x01\0\0\0\0\0\0\x06hello\n"
    upgrade = ("Connection: Upgrade", "Upgrade: tcp")
    with server.send("POST", f"{there}/attach?stream=1&stdout=1", b"", *upgrade) as attached:
        received = b""
        while b"\n" not in received.partition(b"\r\n\r\n")[2]:
            received += attached.recv(65536)
    server.ask("POST", f"{there}/kill")
    head, _ = server.upgrade(f"{there}/attach?stream=1&stdout=1&logs=1")
    assert head.startswith(b"HTTP/1.1 101")
    log = "".join(path.read_text() for path in (cluster.home / "log").glob("*.log"))
    assert "Traceback" not in log
    assert "Exception in ASGI" not in log
    audited = json.loads(cluster.moor("audit", "-o", "json").stdout)
    entries = audited["entries"] if isinstance(audited, dict) else audited
    execs = [entry for entry in entries if entry["path"].startswith("/exec/")]
    assert {entry["status"] for entry in execs} == {101}
