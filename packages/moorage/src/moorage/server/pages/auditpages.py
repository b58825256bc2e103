"""The web page /admin/audit: logged actions, newest first, for users who may `get` `audit.moorage.dev`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from moorage.api.errors import ErrorCode
from moorage.api.people import AuditEntry
from moorage.present.audit import deed, way
from moorage.server.identity.auditroutes import read_audit
from moorage.server.inputs import number
from moorage.server.pages.adminview import Cell, Line, Table
from moorage.server.pages.board import ago
from moorage.server.pages.paging import PAGE_SIZE, TEXT_MAX, address
from moorage.server.pages.sentences import in_words
from moorage.server.pages.site import Page, Site
from moorage.server.pages.texts import language, say
from moorage_kube.errors import UsageError
from moorage_kube.moments import parse_rfc3339

HERE = "/admin/audit"
TABLE = Table(caption="Changes, newest first", headers=("When", "User", "Action", "Answer", "From"))


async def show(site: Site, request: Request) -> Response:
    """The web page of the audit log, by user, action and time."""
    asked = request.query_params
    person, action = asked.get("user", "").strip()[:253], asked.get("q", "").strip()[:TEXT_MAX]
    since, until = asked.get("since", ""), asked.get("until", "")
    namespace = asked.get("namespace", "").strip()[:63]
    page = await read_audit(
        site.context,
        request.state.user,
        person=person or None,
        action=action,
        namespace=namespace,
        since=time_of(since, "since"),
        until=time_of(until, "until"),
        before=number(asked.get("before") or "0", "before"),
        limit=PAGE_SIZE,
    )
    fields = [("user", person), ("q", action), ("namespace", namespace), ("since", since), ("until", until)]
    return site.page(
        request,
        "audit.html",
        HERE,
        live=False,
        table=TABLE,
        lines=lines_of(page.entries, site.context.now()),
        given=dict(fields),
        newest=address(HERE, fields) if asked.get("before") else "",
        older=address(HERE, [*fields, ("before", str(page.next))]) if page.next is not None else "",
        is_filtered=any(value for _, value in fields),
    )


PAGES = (Page(method="GET", path=HERE, handler=show),)


def time_of(text: str, field: str) -> datetime | None:
    """Parse a time from a browser's field (UTC) or RFC 3339; None if the text is empty. Raises UsageError."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text[:40])
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"invalid time {text[:40]!r}", hint="use 2026-01-31T08:00", code=ErrorCode.BAD_REQUEST, field=field
        ) from error


def lines_of(entries: Iterable[AuditEntry], now: datetime) -> list[Line]:
    """A line for each entry."""
    return [
        Line(
            head=Cell(when=ago(parse_rfc3339(entry.at), now)),
            cells=(
                Cell(
                    text=entry.person or say("unknown"),
                    href=f"{HERE}?user={quote(entry.person)}" if entry.person else "",
                ),
                Cell(
                    text=in_words(deed(entry), language()),
                    note=f"{way(entry)}: {entry.method} {entry.path}" if entry.status else "",
                ),
                Cell(text=str(entry.status or ""), tone="" if entry.status < 400 else "bad"),
                Cell(text=entry.address or entry.client),
            ),
        )
        for entry in entries
    ]
