"""Which errors are worth another request."""

from __future__ import annotations

import socket
import ssl

import pytest

from moorage.client.errors import decode_error, is_transient, no_answer


@pytest.mark.parametrize(
    ("cause", "want"),
    [
        pytest.param(ConnectionRefusedError(), True, id="the server may be starting"),
        pytest.param(socket.gaierror(socket.EAI_AGAIN, "try again"), True, id="DNS is away"),
        pytest.param(socket.gaierror(socket.EAI_NONAME, "unknown"), False, id="the host does not exist"),
        pytest.param(ssl.SSLCertVerificationError(), False, id="the certificate is refused"),
    ],
)
def test_a_request_is_repeated_unless_the_address_is_wrong(cause, want):
    broken = OSError("as aiohttp wraps it")
    broken.__cause__ = cause
    error = no_answer("https://moor.example.org", broken)
    error.__cause__ = broken
    assert is_transient(error) is want


@pytest.mark.parametrize(("status", "want"), [(400, False), (401, False), (404, False), (429, True), (503, True)])
def test_refusals_are_final(status, want):
    assert is_transient(decode_error(status, None)) is want
