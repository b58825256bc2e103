"""GET /api/v1/audit: who did what, newest first; for those who may `get` `audit.moorage.dev` (administrators)."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from moorage.apimachinery.moments import parse_rfc3339, rfc3339_micro
from moorage.model.names import GROUP
from moorage.server.context import Context
from moorage.server.identity.sessions import AUDIT_PAGE
from moorage.server.inputs import whole_number
from moorage.server.problems import Json, Problem


def routes(context: Context) -> list[Route]:
    async def audit(request: Request) -> Response:
        """Who did what, newest first, for administrators; `next` is the `before` of the page that follows."""
        if not await context.auth.may(request.state.user, "get", "audit", group=GROUP):
            raise Problem(
                403,
                "forbidden",
                "the audit log is for administrators",
                "they may `get` audit.moorage.dev",
            )
        query = request.query_params
        person = query.get("person")
        before, limit = whole_number(request, "before") or 0, whole_number(request, "limit")
        try:
            since = parse_rfc3339(query["since"]) if "since" in query else None
        except ValueError as error:
            raise Problem(400, "bad_request", str(error), "write 2026-01-31T08:00:00Z", "since") from error
        await context.audit_log.flush()
        limit = min(max(1, 100 if limit is None else limit), AUDIT_PAGE)
        found = await context.sessions.do(
            lambda store: store.audit(person=person, since=since, before=before, limit=limit)
        )
        entries = [
            {
                "number": one.number,
                "at": rfc3339_micro(one.at),
                "person": one.person,
                "method": one.method,
                "path": one.path,
                "what": one.what,
                "address": one.address,
                "status": one.status,
            }
            for one in found
        ]
        return Json({"entries": entries, "next": found[-1].number if len(found) == limit else None})

    return [Route("/api/v1/audit", audit, methods=["GET"])]
