"""Requests to an address from a user, without access to addresses that the user could not reach.

The name is resolved once, by us; every address must be allowed, and the connection uses these
addresses, so a name that changes between check and use gains nothing. Redirects are not followed, proxies of the
environment not used, and only the status of the answer is reported.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from moorage.notify.delivery import NotDelivered

if TYPE_CHECKING:
    from aiohttp.abc import ResolveResult

    from moorage.decide.maps.notices import Notice
    from moorage.model.targets import Webhook
    from moorage.notify.outbound import Outbound

TEXT_MAX = 3000  # characters; Slack cuts at 40,000 and advises 4,000
_MENTIONS = ("channel", "all", "here", "everyone")  # that Slack's imitators call people by, without brackets


async def post(notice: Notice, target: Webhook, outbound: Outbound) -> None:
    """Raises NotDelivered."""
    await request(
        "POST",
        target.url,
        outbound,
        what="webhook",
        headers={"Idempotency-Key": notice.key},
        json={"text": slack_text(notice)},
    )


async def request(
    method: str,
    url: str,
    outbound: Outbound,
    *,
    what: str,
    headers: Mapping[str, str] | None = None,
    json: object = None,
) -> None:
    """Send one request to a user's address. `what` names the address in messages. Raises NotDelivered."""
    # imported here: only a process that sends needs it
    import aiohttp
    from aiohttp.abc import AbstractResolver

    # users write these addresses: internal ones must not be reachable through us
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https" and not outbound.plain_http:
        raise NotDelivered(f"the {what} is not https, and plain http is not allowed here", again=False)
    # check the resolved addresses themselves, so that a second lookup cannot differ
    refused: list[str] = []

    class Guarded(AbstractResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            entries = await asyncio.get_running_loop().getaddrinfo(
                host, port, type=socket.SOCK_STREAM, family=family
            )
            results: list[ResolveResult] = []
            for kind, _, proto, _, where in entries:
                address = str(where[0])
                if not outbound.allows(ipaddress.ip_address(address.partition("%")[0])):
                    refused.append(host)
                    raise OSError("refused")
                results.append(
                    {"hostname": host, "host": address, "port": port, "family": kind, "proto": proto, "flags": 0}
                )
            return results

        async def close(self) -> None:
            return None

    try:  # a literal address never meets the resolver
        literal = ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        if not outbound.allows(literal):
            raise NotDelivered(_not_allowed(host), again=False)
    # no proxy, no cookies and no redirects: each would lead past the check
    timeout = aiohttp.ClientTimeout(total=outbound.seconds)
    connector = aiohttp.TCPConnector(resolver=Guarded(), use_dns_cache=False, force_close=True)
    try:
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()
        ) as http:
            async with http.request(
                method, url, json=json, allow_redirects=False, headers={"User-Agent": "moorage", **(headers or {})}
            ) as answer:
                status, retry_after = answer.status, answer.headers.get("Retry-After", "")
    # errors of the network are tried again, wrong addresses and certificates are not
    except TimeoutError:
        raise NotDelivered(f"{host} did not answer within {outbound.seconds:g} s", again=True) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        if refused:
            raise NotDelivered(_not_allowed(host), again=False) from None
        again = not isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.InvalidURL | ValueError)
        raise NotDelivered(f"{host} cannot be reached: {type(error).__name__}", again=again) from None
    # answers that may change later are tried again
    if 300 <= status < 400:
        raise NotDelivered(f"{host} answered {status}; redirects are not followed", again=False)
    if status >= 400:
        after = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0.0
        raise NotDelivered(
            f"{host} answered {status}", again=status in (408, 425, 429) or status >= 500, after=after
        )


def slack_text(notice: Notice) -> str:
    """The text with Slack's markup escaped, so that it mentions no users.

    https://api.slack.com/reference/surfaces/formatting#escaping
    """
    text = notice.text
    if len(text) > TEXT_MAX:
        text = text[:TEXT_MAX] + " …"
    for word in _MENTIONS:
        text = text.replace(f"@{word}", f"@\u200b{word}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _not_allowed(host: str) -> str:
    return f"{host} is not a public address, and the administrator does not allow it"
