"""Forms with files: any bytes in any pieces are read as they were sent; a damaged form is one clear refusal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from moorage.server.multipart import read_parts
from moorage.server.problems import Problem
from moorage_testing.multipart import BOUNDARY, a_form

pytestmark = pytest.mark.anyio
FIELDS = st.lists(
    st.tuples(
        st.text("abc", min_size=1, max_size=3),
        st.none() | st.sampled_from(["a.txt", "", "..", "データ.csv", 'quote".txt', "line\nend"]),
        st.binary(max_size=60) | st.sampled_from([b"\r\n--", b"\r\n--edg", b"--edge--", b"\r\n\r\n"]),
    ),
    max_size=4,
)


def a_request(body: bytes, size: int = 10**9, boundary: str = BOUNDARY) -> Request:
    chunks = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    messages = [
        {"type": "http.request", "body": chunk, "more_body": at < len(chunks) - 1}
        for at, chunk in enumerate(chunks)
    ]
    header = f"multipart/form-data; boundary={boundary}".encode()

    async def receive():
        return messages.pop(0)

    return Request({"type": "http", "method": "POST", "headers": [(b"content-type", header)]}, receive)


async def read(request: Request, most: int = 10**6):
    return [
        (part.name, part.filename, b"".join([piece async for piece in part.content]))
        async for part in read_parts(request, most)
    ]


@given(FIELDS, st.integers(1, 40))
async def test_any_form_in_any_pieces_is_read_as_it_was_sent(fields, size):
    assert await read(a_request(a_form(*fields), size)) == fields


async def test_a_part_that_is_not_read_is_skipped():
    form = a_form(("a", "a.bin", b"x" * 5000), ("b", None, b"text"))
    names = [part.name async for part in read_parts(a_request(form, 100), 10**6)]
    assert names == ["a", "b"]


@pytest.mark.parametrize(
    ("body", "boundary", "status", "says"),
    [
        (a_form(("a", "a", b"x" * 3000)), BOUNDARY, 413, "more than 2000 bytes"),
        (a_form(("a", "a", b"text"))[:-9], BOUNDARY, 400, "not sent to its end"),
        (b"no form", BOUNDARY, 400, "Expected boundary"),
        (b"", "", 400, "no boundary"),
        (b"", "x" * 300, 400, "Boundary length 300"),
        (b"--edge\r\nContent-Type: text/plain\r\n\r\nx\r\n--edge--", BOUNDARY, 400, "a field has no name"),
    ],
)
async def test_a_damaged_form_is_refused(body, boundary, status, says):
    with pytest.raises(Problem, match=says) as refusal:
        await read(a_request(body, 300, boundary), 2000)
    assert refusal.value.status == status


async def test_the_head_of_a_field_and_the_number_of_fields_have_limits():
    with pytest.raises(Problem, match="header size exceeded"):
        await read(a_request(b"--edge\r\nX: " + b"y" * 100_000, 1000))
    with pytest.raises(Problem, match="more than 1000 fields"):
        await read(a_request(a_form(*[("a", None, b"")] * 1001)))
