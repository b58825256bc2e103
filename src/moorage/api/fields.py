"""Types of fields that several requests have."""

from __future__ import annotations

from typing import Annotated

import msgspec

PAGE_MOST = 500  # objects in one answer of a listing

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Text64 = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Text = Annotated[str, msgspec.Meta(max_length=1024)]


class Request(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """Base of all bodies: a field that is not known is refused."""


class Query(msgspec.Struct, rename="camel", kw_only=True):
    """Base of all queries. Parameters that are not known are left out."""


class Page(Query):
    """A listing in pages: at most `limit` objects, from the one that `continue` of the last answer names."""

    namespace: Text = ""  # empty: all that the asker may list
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MOST)] | None = None
    after: Text | None = msgspec.field(default=None, name="continue")


class Force(Query):
    """`force`: also while it is in use."""

    force: bool = False


class Answer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of all answers. A reader ignores fields that it does not know; times are aware."""
