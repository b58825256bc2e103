"""A server certificate is accepted by a TLS client that trusts the authority, for its names alone."""

from __future__ import annotations

import ssl
from datetime import timedelta

import pytest

from moorage_kube.certificates import Certificate, make_authority, make_server_certificate
from moorage_kube.clock import SYSTEM

HOUR = timedelta(hours=1)


def a_server(authority: Certificate, *, lifetime: timedelta = HOUR) -> Certificate:
    names = {"dns_names": ["api.example.org"], "addresses": ["127.0.0.1"]}
    return make_server_certificate(authority, "api", now=SYSTEM.now(), lifetime=lifetime, **names)


def shake_hands(tmp_path, server: Certificate, authority: Certificate, host: str) -> None:
    """A TLS handshake in memory. Raises ssl.SSLCertVerificationError when the client refuses the server."""
    file = tmp_path / "server.pem"
    file.write_bytes(server.key_pem + server.pem)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(file)
    trusting = ssl.create_default_context(cadata=authority.pem.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname=host)
    answering = serving.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(2):
        for side in (client, answering):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue


@pytest.mark.parametrize("host", ["api.example.org", "127.0.0.1"])
def test_a_client_that_trusts_the_authority_accepts_the_server_under_its_names(tmp_path, host):
    authority = make_authority("ours", now=SYSTEM.now(), lifetime=HOUR)
    shake_hands(tmp_path, a_server(authority), authority, host)


@pytest.mark.parametrize("host", ["other.example.org", "127.0.0.2"])
def test_another_name_is_refused(tmp_path, host):
    authority = make_authority("ours", now=SYSTEM.now(), lifetime=HOUR)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch|not valid for"):
        shake_hands(tmp_path, a_server(authority), authority, host)


def test_another_authority_of_the_same_name_is_refused(tmp_path):
    ours, other = (make_authority("ours", now=SYSTEM.now(), lifetime=HOUR) for _ in range(2))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(tmp_path, a_server(ours), other, "api.example.org")


def test_a_certificate_is_refused_after_its_lifetime(tmp_path):
    authority = make_authority("ours", now=SYSTEM.now(), lifetime=HOUR)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake_hands(tmp_path, a_server(authority, lifetime=-HOUR / 2), authority, "api.example.org")
