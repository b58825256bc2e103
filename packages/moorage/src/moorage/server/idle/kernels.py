"""The state of a Jupyter server's kernels and terminals.

https://jupyter-server.readthedocs.io/en/latest/developers/rest-api.html
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from moorage.decide.idle.evidence import Kernels
from moorage_kube.errors import ServerError

if TYPE_CHECKING:
    from moorage.server.gateway.forward import Destination

ASK_SECONDS = 5.0
ANSWER_BYTES = 4 << 20


class Kernel(msgspec.Struct, frozen=True):
    """A kernel of Jupyter's /api/kernels, or a terminal, which has only `last_activity`."""

    last_activity: str = ""
    execution_state: str = ""
    connections: int = 0


async def read_kernels(to: Destination) -> Kernels | None:
    """The kernels of an application; None if it is not a Jupyter server. Raises ServerError."""
    kernels = await _ask(to, "/api/kernels?no_track_activity=1")
    if kernels is None:
        return None
    return kernels_of(kernels, await _ask(to, "/api/terminals?no_track_activity=1") or ())


def kernels_of(kernels: Sequence[Kernel], terminals: Sequence[Kernel] = ()) -> Kernels:
    """The combined state of all of them."""
    moments = [at for each in (*kernels, *terminals) if (at := _moment(each.last_activity)) is not None]
    busy = [
        at
        for each in kernels
        if each.execution_state not in ("idle", "dead", "") and (at := _moment(each.last_activity)) is not None
    ]
    return Kernels(last_activity=max(moments, default=None), busy_since_output=max(busy, default=None))


async def _ask(to: Destination, path: str) -> list[Kernel] | None:
    import aiohttp

    headers = {"host": to.host, **dict(to.headers)}
    cookies = "; ".join(f"{name}={value}" for name, value in to.cookies)
    if cookies:
        headers["cookie"] = cookies
    timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False, cookie_jar=aiohttp.DummyCookieJar()) as http,
            http.get(f"http://{to.netloc}{path}", headers=headers, allow_redirects=False) as answer,
        ):
            if answer.status == 404 or 300 <= answer.status < 400:
                return None
            if answer.status != 200:
                raise ServerError(f"its Jupyter server answered {answer.status}", status=502)
            body = await answer.content.read(ANSWER_BYTES)
            is_json = answer.content_type == "application/json"
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ServerError(f"its application does not answer: {type(error).__name__}", status=502) from error
    if not is_json:
        return None
    try:
        return msgspec.json.decode(body, type=list[Kernel])
    except (msgspec.MsgspecError, ValueError) as error:
        raise ServerError("its Jupyter server answered something else than kernels", status=502) from error


def _moment(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
