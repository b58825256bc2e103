"""Ask the REST routes from inside: what a page's form does is what the API does, with the same checks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.routing import Match, Route
from starlette.types import Message

from moorage.server.problems import Problem


class Inner:
    """Calls endpoints as the user of another request."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = routes

    async def __call__(
        self,
        request: Request,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """The decoded answer; None where it has no body. Raises what the endpoint raises: Problem or MoorageError.

        The user and what the audit log is told are the request's own.
        """
        scope = {
            **request.scope,
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": urlencode(query or {}).encode(),
            "headers": [(b"content-type", b"application/json")] if body is not None else [],
        }
        for route in self._routes:
            match, more = route.matches(scope)
            if match is Match.FULL:
                break
        else:
            raise Problem(404, "not_found", f"there is no {path}")
        sent = json.dumps(body).encode() if body is not None else b""

        async def receive() -> Message:
            return {"type": "http.request", "body": sent, "more_body": False}

        answer = await route.endpoint(Request({**scope, **more}, receive))
        return json.loads(answer.body) if answer.body else None
