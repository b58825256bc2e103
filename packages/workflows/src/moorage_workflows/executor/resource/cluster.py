"""Requests to the API server of this pod's cluster, with the pod's service account."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from moorage_kube.resources import Obj
from moorage_workflows.executor.errors import Passing, StepError

TIMEOUT_SECONDS = 60.0  # without a byte
ANSWER_BYTES = 64 * 1024 * 1024  # a list of all pods of a large namespace
_PASSING = (401, 408, 425, 429, 500, 502, 503, 504)  # 401: the token may have been replaced a moment ago


class Refused(StepError):
    """An error answer of the API server that another attempt cannot change.

    `reason`: one word, such as NotFound.
    """

    def __init__(self, message: str, *, status: int, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class Lost(Passing):
    """The connection broke after the request was sent: the server may have processed it."""


class Asks(Protocol):
    """The API server as the actions use it."""

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Obj:
        """Raises Refused; Passing for temporary errors; Lost where the request may have been carried out."""
        ...  # pragma: no cover


class Cluster:
    """The API server of this cluster. `account`: the folder with `token` and `ca.crt`.

    Both files are read for each request, because tokens are renewed.
    """

    def __init__(self, env: Mapping[str, str], account: Path) -> None:
        self._host = env.get("KUBERNETES_SERVICE_HOST") or ""
        self._port = int(env.get("KUBERNETES_SERVICE_PORT_HTTPS") or env.get("KUBERNETES_SERVICE_PORT") or 443)
        self._account = account
        if not self._host:
            raise StepError("KUBERNETES_SERVICE_HOST is not set: this pod cannot reach the API server")

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Obj:
        """Send one request, as the protocol `Asks` describes."""
        # the token is read again for each request: kubelets renew it
        try:
            token = (self._account / "token").read_text(encoding="utf-8").strip()
            context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        except (OSError, ssl.SSLError) as error:
            raise Passing(
                f"the service account of this pod cannot be read from {self._account}: {error}"
            ) from error
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # authorities of clusters often lack a key identifier
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/json",
            "User-Agent": "moorage-executor",
        }
        # the request
        data = None
        if body is not None:
            data = json.dumps(body, ensure_ascii=False).encode()
            headers["Content-Type"] = content_type
        url = path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_SECONDS, context=context)
        # after the first byte it is unknown whether the server carried it out
        is_sent = False
        try:
            connection.connect()
            is_sent = True
            connection.request(method, url, body=data, headers=headers)
            answer = connection.getresponse()
            text = answer.read(ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            where = f"{method} {path} at the API server {self._host}:{self._port}"
            what = f"{where} failed: {error or type(error).__name__}"
            raise Lost(what) if is_sent else Passing(what) from error
        finally:
            connection.close()
        # a very large answer is not parsed
        if len(text) > ANSWER_BYTES:
            raise StepError(f"{method} {path}: the answer has more than {ANSWER_BYTES} bytes")
        return _read(f"{method} {path}", answer.status, text)


def _read(what: str, status: int, text: bytes) -> Obj:
    """Return the document of an answer. Raises Refused with the server's whole message, or Passing."""
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("no object")
    except ValueError as error:
        if status < 300:
            raise Lost(f"{what}: the answer is not a JSON object: {text[:200]!r}") from error
        document = {"message": text[:400].decode("utf-8", "replace").strip()}
    if status < 300:
        return document
    message = str(document.get("message") or f"{what} answered {status}")
    if status in _PASSING:
        raise Passing(f"the API server answered {status}: {message}")
    raise Refused(message, status=status, reason=str(document.get("reason") or ""))
