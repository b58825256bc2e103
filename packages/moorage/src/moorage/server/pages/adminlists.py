"""Shared parts of the list pages of administrators: the page, and its part that changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from moorage.server.pages.adminview import Form, Line, Table, state_of, words_of
from moorage.server.pages.clusterpages import fragment
from moorage.server.pages.paging import Shown, page_of, wanted_of
from moorage.server.pages.site import Site
from moorage.server.problems import Problem
from moorage_kube.errors import Forbidden


class AdminList(Struct, frozen=True, kw_only=True):
    """A kind of list. `title` is a plural with an s; `nothing` is the sentence for an empty list."""

    here: str
    title: str
    table: Table
    nothing: str
    states: tuple[str, ...] = ()


def wanted_lines(kind: AdminList, request: Request, lines: Sequence[Line]) -> Shown[Line]:
    """The lines of the list page that a request selects."""
    wanted = wanted_of(request.query_params)
    return page_of(lines, wanted, kind.here, words=words_of, state=state_of, states=kind.states)


def live_part(kind: AdminList, listed: Shown[Line], notes: Iterable[str] = ()) -> str:
    """The part of a list page that changes. `notes` are below the table."""
    return fragment(
        "admin_list_live.html",
        list=listed,
        table=kind.table,
        title=kind.title,
        nothing=kind.nothing,
        notes=tuple(notes),
    )


def list_page(
    site: Site, request: Request, kind: AdminList, listed: Shown[Line], *,
    notes: Iterable[str] = (), forms: tuple[Form, ...] = (), make: tuple[str, str] | None = None,
    problem: Problem | None = None, given: Mapping[str, str] | None = None,
) -> Response:  # fmt: skip
    """A list page with its search, its table and its forms. `make`: the page of a form, and words of its link.

    `given`: the typed values of a form with a problem.
    """
    return site.page(
        request,
        "admin_list.html",
        kind.here,
        problem=problem,
        title=kind.title,
        list=listed,
        live_part=live_part(kind, listed, notes),
        forms=forms,
        make=make,
        given=given or {},
    )


async def require(site: Site, request: Request, control: str, what: str) -> None:
    """Raise Forbidden if the user may not see this; for pages with data that the server reads with its own
    rights.
    """
    if not (await site.allowed(request, (control,))).may(control):
        raise Forbidden(f"you may not see {what}", hint="this page is for administrators")
