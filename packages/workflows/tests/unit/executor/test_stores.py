"""What buckets and HTTP servers are asked for: buckets that are made, encryption, roles, certificates, tokens."""

from __future__ import annotations

import base64
import json
import logging
import ssl
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from moorage_kube.certificates import make_authority, make_client_certificate, make_server_certificate
from moorage_kube.clock import SYSTEM
from moorage_workflows.executor.errors import Passing, StepError
from moorage_workflows.executor.stores import Stores

SECRETS = {"MOORAGE_SECRET_0": "id", "MOORAGE_SECRET_1": "key"}


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[Any, dict[str, Any]]]:
    """(a client, a location without a bucket) of a server of this process."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    keys = {"aws_access_key_id": "id", "aws_secret_access_key": "key", "region_name": "eu-central-1"}
    place = {
        "endpoint": f"{host}:{port}",
        "insecure": True,
        "region": "eu-central-1",
        "accessKeySecret": {"secret": 0},
        "secretKeySecret": {"secret": 1},
    }
    yield boto3.client("s3", endpoint_url=url, **keys), place
    server.stop()


def test_a_bucket_is_made_where_it_is_missing_and_may_be(s3: Any, tmp_path: Path) -> None:
    client, place = s3
    stores, file = Stores(SECRETS, tmp_path), Path(__file__)
    with pytest.raises(StepError):
        stores.write({"s3": {**place, "bucket": "made", "key": "k"}}, file)
    for key in ("a", "b"):
        stores.write({"s3": {**place, "bucket": "made", "key": key, "createBucketIfNotPresent": {}}}, file)
    assert [each["Key"] for each in client.list_objects_v2(Bucket="made")["Contents"]] == ["a", "b"]
    assert client.get_bucket_location(Bucket="made")["LocationConstraint"] == "eu-central-1"
    locked = {**place, "bucket": "locked", "key": "a", "createBucketIfNotPresent": {"objectLocking": True}}
    stores.write({"s3": locked}, file)
    lock = client.get_object_lock_configuration(Bucket="locked")["ObjectLockConfiguration"]
    assert lock["ObjectLockEnabled"] == "Enabled"


@pytest.mark.parametrize(
    ("options", "want"),
    [
        pytest.param({"enableEncryption": True}, ("AES256", None), id="the bucket's keys"),
        pytest.param(
            {"enableEncryption": True, "kmsKeyId": "k1", "kmsEncryptionContext": '{"team": "lab"}'},
            ("aws:kms", "k1"),
            id="a key of the key service",
        ),
        pytest.param({"kmsKeyId": "k1"}, (None, None), id="off"),
    ],
)
def test_what_is_written_is_encrypted_as_the_location_says(s3, tmp_path, options, want) -> None:
    client, place = s3
    location = {"s3": {**place, "bucket": "safe", "key": "k", "encryptionOptions": options}}
    location["s3"]["createBucketIfNotPresent"] = {}
    Stores(SECRETS, tmp_path).write(location, Path(__file__))
    head = client.head_object(Bucket="safe", Key="k")
    assert (head.get("ServerSideEncryption"), head.get("SSEKMSKeyId")) == want
    Stores(SECRETS, tmp_path).read(location, tmp_path / "in")
    assert (tmp_path / "in").read_bytes() == Path(__file__).read_bytes()


def test_the_keys_of_a_role_are_used(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, place = s3
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://{place['endpoint']}")
    role = "arn:aws:iam::123456789012:role/steps"
    location = {"s3": {**place, "bucket": "role", "key": "k", "roleARN": role, "createBucketIfNotPresent": {}}}
    stores = Stores(SECRETS, tmp_path)
    options = stores._s3(location["s3"])
    assert options["key"] not in (None, "id")
    assert options["token"]
    stores.write(location, Path(__file__))
    stores.read(location, tmp_path / "in")
    assert (tmp_path / "in").read_bytes() == Path(__file__).read_bytes()


class Site:
    """A server that keeps what was asked. With `tls`, only for those who show a certificate."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.asked: list[tuple[str, str, str]] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                self._answer(json.dumps({"access_token": "t0ken", "token_type": "bearer"}).encode())

            def do_GET(self) -> None:
                self._answer(b"content")

            def do_PUT(self) -> None:
                self._answer(b"")

            def _answer(self, data: bytes) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
                site.asked.append((self.command, self.headers["Authorization"] or "", body))
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def test_a_token_is_asked_for_and_shown(tmp_path: Path) -> None:
    site = Site()
    env = {"MOORAGE_SECRET_0": "me", "MOORAGE_SECRET_1": "pass word", "MOORAGE_SECRET_2": f"{site.url}/token\n"}
    oauth2 = {
        "clientIDSecret": {"secret": 0},
        "clientSecretSecret": {"secret": 1},
        "tokenURLSecret": {"secret": 2},
        "scopes": ["read", "write"],
        "endpointParams": [{"key": "audience", "value": "files"}],
    }
    location = {"http": {"url": f"{site.url}/file", "auth": {"oauth2": oauth2}}}
    stores = Stores(env, tmp_path)
    try:
        stores.read(location, tmp_path / "in")
        stores.write(location, tmp_path / "in")
    finally:
        site.stop()
    assert (tmp_path / "in").read_text() == "content"
    (_, basic, form), get, _, put = site.asked
    assert base64.b64decode(basic.removeprefix("Basic ")) == b"me:pass+word"
    assert parse_qs(form) == {"grant_type": ["client_credentials"], "scope": ["read write"], "audience": ["files"]}
    assert [each[:2] for each in (get, put)] == [("GET", "Bearer t0ken"), ("PUT", "Bearer t0ken")]
    assert [path.name for path in tmp_path.iterdir()] == ["in"], "the token is not left on the disk"


def test_a_server_is_shown_the_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"now": SYSTEM.now(), "lifetime": timedelta(hours=2)}
    authority = make_authority("test", **times)
    server = make_server_certificate(
        authority, "server", dns_names=["localhost"], addresses=["127.0.0.1"], **times
    )
    client = make_client_certificate(authority, "step", **times)
    for name, pem in (("ca.crt", authority.pem), ("server.crt", server.pem), ("server.key", server.key_pem)):
        (tmp_path / name).write_bytes(pem)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    tls.load_verify_locations(tmp_path / "ca.crt")
    tls.verify_mode = ssl.CERT_REQUIRED
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.crt"))
    site = Site(tls)
    env = {"MOORAGE_SECRET_0": client.pem.decode(), "MOORAGE_SECRET_1": client.key_pem.decode()}
    shown = {"clientCert": {"clientCertSecret": {"secret": 0}, "clientKeySecret": {"secret": 1}}}
    stores, into = Stores(env, tmp_path), tmp_path / "in"
    try:
        stores.read({"http": {"url": f"{site.url}/file", "auth": shown}}, into)
        assert into.read_text() == "content"
        stores.write({"http": {"url": f"{site.url}/file", "auth": shown}}, into)
        with pytest.raises(StepError):
            stores.read({"http": {"url": f"{site.url}/file"}}, into)
        swapped = {"clientCert": {"clientCertSecret": {"secret": 1}, "clientKeySecret": {"secret": 0}}}
        with pytest.raises(StepError, match="no certificate with its key"):
            stores.read({"http": {"url": f"{site.url}/file", "auth": swapped}}, into)
    finally:
        site.stop()
    assert [method for method, _, _ in site.asked] == ["GET", "PUT"]


def test_a_bucket_without_keys_is_an_error_and_not_waited_for(s3, tmp_path, monkeypatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    place = {name: value for name, value in s3[1].items() if not name.endswith("Secret")}
    with pytest.raises(StepError, match="needs keys, and there are none: name a Secret") as refused:
        Stores({}, tmp_path).write({"s3": {**place, "bucket": "b", "key": "k"}}, Path(__file__))
    assert not isinstance(refused.value, Passing)
