"""Files under /static: read from the package once, served from memory with an ETag."""

from __future__ import annotations

import hashlib
from importlib import resources

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class StaticFolder:
    """An ASGI application over `pages/static`. Only files of TYPES are served."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"allow": "GET, HEAD"})
        path = scope["path"].removeprefix(scope.get("root_path", "")).lstrip("/")
        body, etag = self._read(path)
        headers = {"etag": etag, "cache-control": "no-cache", "content-type": TYPES[path[path.rindex(".") :]]}
        if Headers(scope=scope).get("if-none-match") == etag:
            await Response(None, 304, headers)(scope, receive, send)
            return
        await Response(b"" if scope["method"] == "HEAD" else body, headers=headers)(scope, receive, send)

    def _read(self, path: str) -> tuple[bytes, str]:
        if path not in self._files:
            parts = path.split("/")
            dot = path.rfind(".")
            if dot < 0 or path[dot:] not in TYPES or any(part in ("", ".", "..") for part in parts):
                raise HTTPException(404)
            file = resources.files("moorage.server.pages").joinpath("static", *parts)
            if not file.is_file():
                raise HTTPException(404)
            body = file.read_bytes()
            self._files[path] = (body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
        return self._files[path]
