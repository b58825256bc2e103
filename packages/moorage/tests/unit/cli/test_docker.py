"""Docker's configuration for a server of ours."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

from moorage.cli.docker import point


def test_docker_trusts_the_authority_of_the_login(tmp_path):
    made = point("https://moor.example.org", {"Authorization": "Bearer t"}, tmp_path, ca="PEM")
    assert made == {
        "DOCKER_HOST": "tcp://moor.example.org:443",
        "DOCKER_CONFIG": str(tmp_path),
        "DOCKER_TLS_VERIFY": "1",
        "DOCKER_CERT_PATH": str(tmp_path),
    }
    assert (tmp_path / "ca.pem").read_text() == "PEM"
    assert json.loads((tmp_path / "config.json").read_text()) == {"HttpHeaders": {"Authorization": "Bearer t"}}


def test_docker_trusts_the_authorities_of_this_machine_otherwise(tmp_path):
    point("https://moor.example.org", {}, tmp_path)
    trusted = ssl.get_default_verify_paths().cafile
    if trusted:
        assert (tmp_path / "ca.pem").read_bytes() == Path(trusted).read_bytes()


def test_a_server_of_this_machine_has_no_certificate(tmp_path):
    made = point("http://127.0.0.1:8080", {}, tmp_path)
    assert made == {"DOCKER_HOST": "tcp://127.0.0.1:8080", "DOCKER_CONFIG": str(tmp_path)}
