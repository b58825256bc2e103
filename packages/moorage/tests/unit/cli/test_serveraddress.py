"""The server's address as somebody types it at `moor login`, and what they read when nobody answers there."""

from __future__ import annotations

import http.server
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage.cli.main import main
from moorage.cli.serveraddress import complete_address
from moorage_kube.errors import UsageError
from moorage_kube.testing.ports import dead_port


@pytest.mark.parametrize(
    ("typed", "address"),
    [
        ("https://moorage.example.com/", "https://moorage.example.com"),
        ("moorage.example.com", "https://moorage.example.com"),
        ("moorage.example.com:8443", "https://moorage.example.com:8443"),
        ("https://example.com/moorage/", "https://example.com/moorage"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("localhost:8080", "http://localhost:8080"),
        ("localhost", "http://localhost"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
    ],
)
def test_a_scheme_that_is_not_typed_is_https_and_http_on_this_machine(typed: str, address: str) -> None:
    assert complete_address(typed) == address


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("http://moorage.example.com", "passwords do not go over plain http to another machine"),
        ("ftp://host", "it is not an http address"),
        ("https://", "it is not an http address"),
        ("", "it is not an http address"),
        ("host:port", "Port could not be cast"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_the_forms_that_can(typed: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        complete_address(typed)
    assert "https://" in str(caught.value.hint)


class Silent(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOORAGE_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_COLOR", "1")
    return tmp_path


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A handshake that fails is what is tested."""


def serving(context: ssl.SSLContext | None = None) -> Iterator[int]:
    server = Server(("127.0.0.1", 0), Silent)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def http_port() -> Iterator[int]:
    yield from serving()


@pytest.fixture
def https_port(tmp_path: Path) -> Iterator[int]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*words, "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    yield from serving(context)


def login(address: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["login", address, "--username", "ada", "--password-stdin"]) == 1
    return capsys.readouterr().err


def test_https_where_http_is_served_names_the_right_address(home, http_port, capsys):
    assert login(f"https://127.0.0.1:{http_port}", capsys) == (
        f"error: cannot log in to https://127.0.0.1:{http_port}: it answers plain http only\n"
        f"hint: moor login http://127.0.0.1:{http_port}\n"
    )


def test_http_where_https_is_served_names_the_right_address(home, https_port, capsys):
    assert login(f"127.0.0.1:{https_port}", capsys) == (
        f"error: cannot log in to http://127.0.0.1:{https_port}: it answers https only\n"
        f"hint: moor login https://127.0.0.1:{https_port}\n"
    )


def test_a_certificate_that_is_not_trusted_names_the_option(home, https_port, capsys):
    assert login(f"https://127.0.0.1:{https_port}", capsys) == (
        f"error: cannot log in to https://127.0.0.1:{https_port}: its certificate is not trusted\n"
        "hint: trust the CA of its administrator: --ca FILE\n"
    )


def test_another_web_server_is_not_taken_for_ours(home, http_port, capsys):
    assert login(f"127.0.0.1:{http_port}", capsys) == (
        f"error: http://127.0.0.1:{http_port} is not a Moorage server: it answers HTTP 404\n"
        "hint: check the address and the port\n"
    )


def test_a_port_where_nobody_listens_is_named(home, capsys):
    with dead_port() as port:
        text = login(f"localhost:{port}", capsys)
    assert f"localhost:{port}" in text
    assert "hint: check the address and the port; `moor up` starts a server on this machine\n" in text
