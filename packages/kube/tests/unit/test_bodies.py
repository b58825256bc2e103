"""Bodies are counted while they are read: what is too long is refused before it has come whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.bodies import BodyTooLong, ClientLeft, read_body

pytestmark = pytest.mark.anyio


@given(st.lists(st.binary(max_size=20), max_size=20), st.integers(0, 200))
async def test_a_body_is_whole_or_refused_at_the_first_byte_too_many(parts, most):
    taken = 0

    async def receive() -> dict[str, Any]:
        nonlocal taken
        taken += 1
        body = parts[taken - 1] if taken <= len(parts) else b""
        return {"type": "http.request", "body": body, "more_body": taken < len(parts)}

    whole = b"".join(parts)
    if len(whole) <= most:
        assert await read_body(receive, most) == whole
        return
    with pytest.raises(BodyTooLong, match=f"more than {most} bytes"):
        await read_body(receive, most)
    assert len(b"".join(parts[:taken])) > most >= len(b"".join(parts[: taken - 1]))


async def test_a_client_that_has_left_is_told_apart():
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientLeft):
        await read_body(receive, 10)
