"""HTTP requests with files as bodies, to Moorage's server and to other servers."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moorage_workflows.executor.errors import Missing, Passing, StepError
from moorage_workflows.executor.order import Order

CHUNK = 1024 * 1024
TIMEOUT_SECONDS = 120.0  # without a byte
UNKNOWN_NAME_SECONDS = 30.0  # a name server that has just begun may not know it yet
_PASSING = (408, 425, 429, 500, 502, 503, 504)
_SHOWN = 400  # bytes of an answer that is not JSON


class Server:
    """A client of Moorage's server for a step, with the token of its workflow."""

    def __init__(self, url: str, token: str, order: Order, *, ca: str = "") -> None:
        self._parts = urllib.parse.urlsplit(url.rstrip("/"))
        if self._parts.scheme not in ("http", "https") or not self._parts.hostname:
            raise StepError(f"the address of Moorage's server is {url!r}: it must begin with http:// or https://")
        self._token = token
        self._order = order
        self._ca = ca

    def put_artifact(
        self, name: str, archive: str, file: Path, *, key: str = "", below: str = ""
    ) -> dict[str, Any]:
        """Save a file as an artifact of this pod. Returns the server's Artifact.

        `key`: its place in the namespace's part of the store; "": the server chooses it. `below`: the file is
        one of a folder, with this name below the key.
        """
        order = self._order
        path = f"/api/v1/steps/{_quoted(order.workflow)}/{_quoted(order.pod)}/artifacts/{_quoted(name)}"
        with file.open("rb") as body:
            size = file.stat().st_size
            headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
            query = f"archive={archive}" + (f"&key={_quoted(key)}" if key else "")
            query += f"&below={_quoted(below)}" if below else ""
            answer = self._ask("PUT", f"{path}?{query}", body, headers)
        try:
            artifact = json.loads(answer)
        except ValueError as error:
            raise Passing(f"the answer to the upload of {name!r} is not JSON: {answer[:_SHOWN]!r}") from error
        if not isinstance(artifact, dict):
            raise Passing(f"the answer to the upload of {name!r} is not an artifact: {answer[:_SHOWN]!r}")
        return artifact

    def get_artifact(self, key: str, file: Path) -> None:
        """Write the stored bytes of the artifact to a file."""
        path = f"/api/v1/steps/{_quoted(self._order.workflow)}/artifacts?key={_quoted(key)}"
        self._ask("GET", path, None, {}, into=file)

    def keys_below(self, key: str) -> list[str]:
        """Return the keys of artifacts below "KEY/", relative to it."""
        path = f"/api/v1/steps/{_quoted(self._order.workflow)}/artifacts?below=true&key={_quoted(key)}"
        answer = self._ask("GET", path, None, {})
        try:
            return [str(name) for name in json.loads(answer)]
        except (ValueError, TypeError) as error:
            raise Passing(
                f"the list of artifacts below {key!r} is not a JSON list: {answer[:_SHOWN]!r}"
            ) from error

    def report(self, document: Mapping[str, Any]) -> None:
        """Send the report. A server that has a report of this pod already ignores it."""
        path = f"/api/v1/steps/{_quoted(self._order.workflow)}/{_quoted(self._order.pod)}/report"
        body = json.dumps(document).encode()
        self._ask("POST", path, body, {"Content-Type": "application/json", "Content-Length": str(len(body))})

    def _ask(
        self, method: str, path: str, body: Any, headers: Mapping[str, str], *, into: Path | None = None
    ) -> bytes:
        host, port = self._parts.hostname or "", self._parts.port
        what = f"{method} {self._parts.scheme}://{self._parts.netloc}{self._parts.path}{path}"
        connection: http.client.HTTPConnection
        if self._parts.scheme == "https":
            context = ssl.create_default_context(cadata=self._ca or None)
            connection = http.client.HTTPSConnection(
                host, port, timeout=TIMEOUT_SECONDS, context=context, blocksize=CHUNK
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS, blocksize=CHUNK)
        sent: OSError | None = None
        try:
            try:
                given = {**headers, "Authorization": f"Bearer {self._token}"}
                connection.request(method, self._parts.path + path, body=body, headers=given)
            except (BrokenPipeError, ConnectionResetError) as error:
                sent = error  # the server may have answered before it had read all
            answer = connection.getresponse()
            if answer.status >= 300:
                raise _refused(what, answer.status, answer.read(CHUNK))
            if sent is not None:
                raise sent
            if into is None:
                return answer.read()
            _write(answer, into)
            return b""
        except (OSError, http.client.HTTPException) as error:
            raise Passing(f"{what} failed: {sent or error or type(error).__name__}") from error
        finally:
            connection.close()


def fetch(request: urllib.request.Request, context: ssl.SSLContext | None, into: Path) -> None:
    """Write the answer of any server to a file. Raises StepError, and Passing for temporary errors.

    `context`: with the client certificate; None: without one.
    """
    what = f"GET {request.full_url}"
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=context) as answer:
            _write(answer, into)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(what, error.code, error.read(CHUNK)) from error
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(what, error) from error


def unreachable(what: str, error: Exception) -> Passing:
    """The error for a request without an answer: an unknown name is retried for a shorter time."""
    reason = getattr(error, "reason", error)
    is_unknown = isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_NONAME
    return Passing(f"{what} failed: {reason}", seconds=UNKNOWN_NAME_SECONDS if is_unknown else None)


def send(request: urllib.request.Request, context: ssl.SSLContext | None, file: Path) -> None:
    """Upload a file to any server by PUT. Raises StepError, and Passing for a temporary failure."""
    what = f"PUT {request.full_url}"
    try:
        with file.open("rb") as body:
            request.data = body
            request.add_header("Content-Length", str(file.stat().st_size))
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=context) as answer:
                answer.read(CHUNK)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(what, error.code, error.read(CHUNK)) from error
    except (OSError, http.client.HTTPException) as error:
        raise Passing(f"{what} failed: {getattr(error, 'reason', error)}") from error


def _write(answer: Any, into: Path) -> None:
    """Write the whole body to a file. Raises an error if the connection breaks before the end."""
    length = answer.headers.get("Content-Length")
    written = 0
    with into.open("wb") as file:
        while chunk := answer.read(CHUNK):
            try:
                file.write(chunk)
            except OSError as error:
                raise StepError(f"{written + len(chunk)} bytes cannot be written: {error}") from error
            written += len(chunk)
    if length is not None and written != int(length):
        raise http.client.IncompleteRead(b"", int(length) - written)


def _refused(what: str, status: int, body: bytes) -> StepError:
    message = body[:_SHOWN].decode("utf-8", "replace").strip()
    try:
        document = json.loads(body)
        message = str(document["error"]["message"] if "error" in document else document["message"])
    except (ValueError, KeyError, TypeError):
        pass
    text = f"{what} answered {status}" + (f": {message}" if message else "")
    if status == http.HTTPStatus.NOT_FOUND:
        return Missing(text)
    return Passing(text) if status in _PASSING else StepError(text)


def _quoted(text: str) -> str:
    return urllib.parse.quote(text, safe="")
