"""An incoming request: path, query, headers, and its body in JSON, YAML or protobuf."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from moorage_kube.bodies import BodyTooLong, ClientLeft, read_body
from moorage_kube.connections import CLIENT_CERTIFICATE
from moorage_kube.documents import parse_document, parse_json
from moorage_kube.errors import BadRequest, DocumentError, NumberError, TooLarge, UnsupportedMediaType
from moorage_kube.integers import INT64_MAX, parse_integer
from moorage_kube.texts import header_text
from moorage_local.apiserver.wire import protobuf
from moorage_local.apiserver.wire.options import SHOWN_MAX
from moorage_local.apiserver.wire.websocket import Receive, Scope

MAX_BODY_BYTES = 3 * 1024 * 1024  # as the real server's limit on resource requests
THREAD_BYTES = 64 * 1024  # YAML longer than this is read in a thread: a megabyte takes a second
YAML_TYPES = ("application/yaml", "application/apply-patch+yaml", "text/yaml", "application/x-yaml")


class Request:
    """A received request; its body is not yet read."""

    __slots__ = ("_receive", "client_certificate", "headers", "method", "path", "query")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: dict[str, str] = dict(
            parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        )
        self.headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            self.headers.setdefault(name.decode("latin-1").lower(), []).append(header_text(value))
        # as `ssl.SSLSocket.getpeercert` gives it; None: the client showed none
        self.client_certificate: Mapping[str, Any] | None = (scope.get("state") or {}).get(CLIENT_CERTIFICATE)
        self._receive = receive

    def header(self, name: str) -> str:
        return self.headers.get(name, [""])[0]

    @property
    def content_type(self) -> str:
        """The content type of the body, without parameters."""
        return self.header("content-type").split(";")[0].strip().lower()

    def flag(self, name: str) -> bool:
        return self.query.get(name, "") in ("true", "1")

    def number(self, name: str) -> int | None:
        """Raises BadRequest."""
        text = self.query.get(name, "")
        if not text:
            return None
        try:
            return parse_integer(text, minimum=-INT64_MAX - 1)
        except NumberError:
            raise BadRequest(f"strconv.ParseInt: parsing {json.dumps(text[:SHOWN_MAX])}: invalid syntax") from None

    async def body(self) -> bytes:
        """Raises TooLarge."""
        try:
            return await read_body(self._receive, MAX_BODY_BYTES)
        except BodyTooLong as error:
            raise TooLarge(f"Request entity too large: limit is {error.most}") from error
        except ClientLeft:
            raise Disconnected from None

    async def obj(self) -> Any:
        """Return the decoded body. Raises BadRequest, UnsupportedMediaType, TooLarge."""
        kind = self.content_type
        data = await self.body()
        if kind in YAML_TYPES:
            return await read_yaml(data)
        if kind == protobuf.CONTENT_TYPE:
            return protobuf.decode(data)
        if kind and not (kind == "application/json" or kind.endswith("+json")):
            raise UnsupportedMediaType(
                "the body of the request was in an unknown format - accepted media types"
                " include: application/json,"
                " application/yaml, application/vnd.kubernetes.protobuf"
            )
        return read_json(data)

    async def gone(self) -> None:
        """Return after the client has disconnected."""
        while (await self._receive())["type"] != "http.disconnect":
            continue


class Disconnected(Exception):
    """The client has disconnected."""


def read_json(data: bytes) -> Any:
    try:
        return parse_json(data, bytes_max=MAX_BODY_BYTES)
    except DocumentError as error:
        raise BadRequest(
            f"the object provided is unrecognized: couldn't get version/kind; json parse error: {error}"
        ) from None


async def read_yaml(data: bytes) -> Any:
    try:
        if len(data) <= THREAD_BYTES:
            return parse_document(data, bytes_max=MAX_BODY_BYTES)
        return await asyncio.to_thread(parse_document, data, bytes_max=MAX_BODY_BYTES)
    except DocumentError as error:
        raise BadRequest(f"error converting YAML to JSON: {error.located}") from None
