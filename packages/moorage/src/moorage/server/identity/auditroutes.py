"""GET /api/v1/audit: logged actions, newest first; for those who may `get` `audit.moorage.dev`
(administrators).

POST /api/v1/audit/records: changes in the Kubernetes API, from the ServiceAccount of the admission
webhook. All other users are refused, administrators too.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from moorage.api.auditrecords import RECORDS_PATH, AuditRecords
from moorage.api.errors import ErrorCode
from moorage.api.people import AUDIT_PAGE, AuditEntry, AuditPage, AuditQuery
from moorage.decide.timetext import moment_before
from moorage.model.names import GROUP, WEBHOOK_USER
from moorage.server.context import Context
from moorage.server.endpoint import Call, Endpoint
from moorage.server.identity.auth import User
from moorage_kube.errors import Forbidden
from moorage_kube.moments import rfc3339_micro


async def show_audit(call: Call[None, AuditQuery]) -> AuditPage:
    """List actions with user, time and outcome, newest first, for administrators.

    `next` is the `before` of the next page.
    """
    query = call.query
    return await read_audit(
        call.context,
        call.user,
        person=query.user,
        action=query.action,
        namespace=query.namespace,
        since=moment_before(query.since, call.context.now(), "since") if query.since else None,
        before=query.before,
        limit=min(max(1, query.limit), AUDIT_PAGE),
    )


async def read_audit(
    context: Context, user: User, *, limit: int, person: str | None = None, action: str = "", before: int = 0,
    since: datetime | None = None, until: datetime | None = None, namespace: str = "",
) -> AuditPage:  # fmt: skip
    """A page of the log, for REST and pages. `action`: a part of the action, in any case. Raises Forbidden."""
    if not await context.auth.may(user, "get", "audit", group=GROUP):
        raise Forbidden(
            "only administrators of the cluster may read the audit log",
            hint="ask one of them",
            code=ErrorCode.FORBIDDEN,
        )
    await context.audit_log.flush()
    rows = await context.sessions.do(
        lambda store: store.audit(
            person=person, action=action, since=since, until=until, before=before, limit=limit, namespace=namespace
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
            client=row.client,
        )
        # a record of the Kubernetes API comes some moments after it was made; pages go by numbers all the same
        for row in sorted(rows, key=lambda row: row.at, reverse=True)
    )
    return AuditPage(entries=entries, next=rows[-1].number if len(rows) == limit else None)


async def take_records(call: Call[AuditRecords, None]) -> None:
    """Take records of changes in the Kubernetes API from the admission webhook; all other callers are refused."""
    if call.user.account != WEBHOOK_USER or call.user.borrowed:
        raise Forbidden(
            "only the admission webhook may send audit records",
            hint="your changes are recorded automatically",
            code=ErrorCode.FORBIDDEN,
        )
    await call.context.changes.take(call.body)


RECORDS_BYTES = 1024 * 1024  # RECORDS_MAX records

ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path="/api/v1/audit", handler=show_audit, query=AuditQuery, answer=AuditPage),
    Endpoint(
        method="POST",
        path=RECORDS_PATH,
        handler=take_records,
        body=AuditRecords,
        status=204,
        body_bytes=RECORDS_BYTES,
    ),
)
