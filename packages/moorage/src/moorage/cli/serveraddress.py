"""The address of a Moorage server as a user types it: completed, and explained when the server does not answer."""

from __future__ import annotations

import http.client
import socket
import ssl
from urllib.parse import urlsplit

from moorage.client.errors import LOOPBACK
from moorage_kube.errors import MoorageError, NotFound, NotReady, ServerError, UsageError

PROBE_SECONDS = 3.0  # patience with the other scheme, of a host that is known to answer


def complete_address(typed: str) -> str:
    """Add a missing scheme to an address: https, or http for this machine.

    Raises UsageError for other schemes, for http to another machine, and for an invalid address.
    """
    text = typed
    if "://" not in text:
        text = f"{'http' if urlsplit(f'//{text}').hostname in LOOPBACK else 'https'}://{text}"
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"invalid server {typed!r}: {error}", hint=_FORMS) from error
    if not host or parts.scheme not in ("http", "https"):
        raise UsageError(f"invalid server {typed!r}: it is not an http address", hint=_FORMS)
    if parts.scheme == "http" and host not in LOOPBACK:
        raise UsageError(
            f"invalid server {typed!r}: passwords do not go over plain http to another machine",
            hint=f"use https://{parts.netloc}; plain http is for 127.0.0.1 and localhost",
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


_FORMS = "use https://HOST, HOST, or 127.0.0.1:PORT"


def explain(url: str, error: MoorageError) -> MoorageError:
    """Explain why an address did not answer as a Moorage server, with a hint to the right command."""
    if isinstance(error, NotFound):
        return NotReady(
            f"{url} is not a Moorage server: it answers HTTP 404", hint="check the address and the port"
        )
    if not isinstance(error, ServerError) or error.status:
        return error
    scheme, _, rest = url.partition("://")
    host, port = _place(url)
    if scheme == "http" and _speaks_tls(host, port):
        return NotReady(f"cannot log in to {url}: it answers https only", hint=f"moor login https://{rest}")
    if scheme == "https" and _speaks_http(host, port):
        hint = f"moor login http://{rest}" if host in LOOPBACK else "ask its administrator for an https address"
        return NotReady(f"cannot log in to {url}: it answers plain http only", hint=hint)
    if scheme == "https" and "certificate" in error.message.lower():
        return NotReady(
            f"cannot log in to {url}: its certificate is not trusted",
            hint="trust the CA of its administrator: --ca FILE",
        )
    return NotReady(
        error.message, hint="check the address and the port; `moor up` starts a server on this machine"
    )


def _place(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent: only whether it is TLS
    try:
        with (
            socket.create_connection((host, port), PROBE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False


def _speaks_http(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", "/healthz")
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True
