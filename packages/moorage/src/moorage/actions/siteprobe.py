"""Check whether an address answers from this machine, and with which certificate."""

from __future__ import annotations

import asyncio
import socket
import ssl
from datetime import UTC, datetime

from moorage.decide.installcheck.facts import Reading, Site, Unread

ANSWER_SECONDS = 10.0


async def look_at_site(url: str, path: str, *, ca: str = "") -> Site:
    """Send one GET to URL + path, without redirects, and verify the certificate.

    `ca`: PEM of the trusted authority; "" for the authorities of this machine.
    """
    import aiohttp

    try:
        trusted = ssl.create_default_context(cadata=ca) if ca else True
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
            session.get(url + path, allow_redirects=False, ssl=trusted) as answer,
        ):
            return Site(url=url, status=answer.status, expires=_expiry(answer.connection))
    except aiohttp.ClientConnectorCertificateError as error:
        return Site(url=url, untrusted=True, error=_reason(error.certificate_error))
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Site(url=url, error=_reason(error))
    except TimeoutError:
        return Site(url=url, error=f"no answer within {ANSWER_SECONDS:.0f} s")


async def resolve(host: str) -> Reading[tuple[str, ...]]:
    """The IP addresses of a host, in order."""
    try:
        answers = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return Unread(error.strerror or str(error))
    return tuple(sorted({str(address[4][0]) for address in answers}))


def _expiry(connection: object) -> datetime | None:
    """The expiry of a connection's certificate; None if it has none, or the connection is closed."""
    transport = getattr(connection, "transport", None)
    certificate = transport.get_extra_info("peercert") if transport is not None else None
    if not certificate or "notAfter" not in certificate:
        return None
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)


def _reason(error: BaseException) -> str:
    text = getattr(error, "verify_message", "") or getattr(error, "strerror", "") or str(error)
    return str(text) or type(error).__name__
