"""GET /api/v1/audit: who did what, newest first; for those who may `get` `audit.moorage.dev` (administrators)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from moorage.api.errors import ErrorCode
from moorage.api.people import AUDIT_PAGE, AuditEntry, AuditPage, AuditQuery
from moorage.apimachinery.moments import rfc3339_micro
from moorage.decide.since import moment_before
from moorage.errors import Forbidden
from moorage.model.names import GROUP
from moorage.server.context import Context
from moorage.server.endpoint import Call, Endpoint
from moorage.server.identity.auth import User


async def show_audit(call: Call[None, AuditQuery]) -> AuditPage:
    """Who did what, newest first, for administrators; `next` is the `before` of the page that follows."""
    query = call.query
    return await read_audit(
        call.context,
        call.user,
        person=query.user,
        action=query.action,
        since=moment_before(query.since, call.context.now(), "since") if query.since else None,
        before=query.before,
        limit=min(max(1, query.limit), AUDIT_PAGE),
    )


async def read_audit(
    context: Context, user: User, *, limit: int, person: str | None = None, action: str = "", before: int = 0,
    since: datetime | None = None, until: datetime | None = None,
) -> AuditPage:  # fmt: skip
    """A page of the log, for REST and pages. `action`: a text in what was done, in any case. Raises Forbidden."""
    if not await context.auth.may(user, "get", "audit", group=GROUP):
        raise Forbidden(
            "only administrators of the cluster may read the audit log",
            hint="ask one of them",
            code=ErrorCode.FORBIDDEN,
        )
    await context.audit_log.flush()
    rows = await context.sessions.do(
        lambda store: store.audit(
            person=person, action=action, since=since, until=until, before=before, limit=limit
        )
    )
    entries = tuple(
        AuditEntry(
            number=row.number,
            at=rfc3339_micro(row.at),
            person=row.person,
            method=row.method,
            path=row.path,
            what=row.what,
            address=row.address,
            status=row.status,
        )
        for row in rows
    )
    return AuditPage(entries=entries, next=entries[-1].number if len(entries) == limit else None)


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path="/api/v1/audit", handler=show_audit, query=AuditQuery, answer=AuditPage),
)
