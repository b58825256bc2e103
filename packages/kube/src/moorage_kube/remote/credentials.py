"""The credentials for the API server, renewed as they expire."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import ssl
import tempfile
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from moorage_kube.clock import Clock, parse_rfc3339
from moorage_kube.documents import parse_json
from moorage_kube.errors import NotReady, UsageError
from moorage_kube.remote.config import Connection, ExecPlugin

TOKEN_FILE_SECONDS = 60.0  # kubelets renew projected tokens at 80 % of an hour; client-go too looks each minute
_TOKEN_OF_MOOR = frozenset({"token", "--server"})  # arguments of the plugin that `moor login` writes
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_MOOR_ERROR = re.compile(r"^error: (?P<message>.+)(?:\nhint: (?P<hint>.+))?", re.MULTILINE)
EXEC_SECONDS = 60.0  # a plugin that takes longer is waiting for a person who is not there
EARLY = timedelta(seconds=30)  # renewed this long before they expire


@dataclass(frozen=True, slots=True)
class _Issued:
    """The output of an exec plugin."""

    token: str
    cert_pem: bytes
    key_pem: bytes
    expires: datetime | None


class Credentials:
    """Headers and TLS settings for one connection."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._issued: _Issued | None = None
        self._file_token = ""
        self._file_read_at: float | None = None
        self._lock = asyncio.Lock()

    @property
    def renewable(self) -> bool:
        """Whether new credentials may help after a 401."""
        return self._connection.exec_plugin is not None or self._connection.token_file is not None

    def forget(self) -> None:
        """Discard credentials that the server refused: the next use reads them again."""
        self._issued = None
        self._file_read_at = None

    async def authorization(self) -> str | None:
        """Return the Authorization header, or None.

        Raises UsageError or NotReady if the credentials are not available.
        """
        own = self._connection
        if own.token_file is not None:
            return f"Bearer {self._read_token_file(own.token_file)}"
        if own.token:
            return f"Bearer {own.token}"
        if own.username:
            pair = f"{own.username}:{own.password}".encode()
            return "Basic " + base64.b64encode(pair).decode()
        if own.exec_plugin is not None:
            issued = await self._from_plugin(own.exec_plugin)
            return f"Bearer {issued.token}" if issued.token else None
        return None

    async def tls(self) -> ssl.SSLContext | None:
        """Return the TLS settings, with the client certificate if there is one; None for plain HTTP."""
        own = self._connection
        if not own.server.startswith("https:"):
            return None
        context = make_tls_context(own)
        cert, key = own.client_cert_pem, own.client_key_pem
        if not cert and own.exec_plugin is not None:
            issued = await self._from_plugin(own.exec_plugin)
            cert, key = issued.cert_pem, issued.key_pem
        if cert:
            try:
                _load_cert_chain(context, cert, key)
            except (ssl.SSLError, ValueError) as error:
                raise UsageError(
                    f"kubeconfig {own.source}, context {own.context!r}: the client certificate or its key"
                    f" cannot be used: {error}"
                ) from error
        return context

    def _read_token_file(self, path: Path) -> str:
        now = self._clock.monotonic()
        if self._file_read_at is None or now - self._file_read_at >= TOKEN_FILE_SECONDS:
            try:
                self._file_token = path.read_text().strip()
            except OSError as error:
                if not self._file_token:
                    raise UsageError(f"token file {path} cannot be read: {error.strerror}") from error
            self._file_read_at = now
        return self._file_token

    async def _from_plugin(self, plugin: ExecPlugin) -> _Issued:
        async with self._lock:
            known = self._issued
            if known is not None and (known.expires is None or self._clock.now() < known.expires - EARLY):
                return known
            self._issued = await _run_plugin(plugin, self._connection)
            return self._issued


def make_tls_context(connection: Connection) -> ssl.SSLContext:
    """Make the TLS context that trusts the connection's CA; without the client certificate.

    Raises UsageError for an invalid CA.
    """
    try:
        text = connection.ca_pem.decode("ascii") if connection.ca_pem else None
        context = ssl.create_default_context(cadata=text)
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise UsageError(
            f"kubeconfig {connection.source}, context {connection.context!r}: the certificate authority is not a"
            f" PEM certificate: {error}"
        ) from error
    if hasattr(ssl, "VERIFY_X509_STRICT"):
        # clusters made years ago have authorities without a key identifier, which strict mode refuses
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if connection.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _load_cert_chain(context: ssl.SSLContext, cert: bytes, key: bytes) -> None:
    # the ssl module reads client certificates from files only; this one is private and deleted at once
    with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
        path = Path(folder) / "client.pem"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(cert.rstrip() + b"\n" + key)
        context.load_cert_chain(path)


async def _run_plugin(plugin: ExecPlugin, connection: Connection) -> _Issued:
    where = f"kubeconfig {connection.source}, context {connection.context!r}: exec plugin {plugin.command}"
    spec: dict[str, Any] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = {"server": connection.server, "insecure-skip-tls-verify": connection.insecure}
        if connection.ca_pem:
            spec["cluster"]["certificate-authority-data"] = base64.b64encode(connection.ca_pem).decode()
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    env = os.environ | dict(plugin.env) | {"KUBERNETES_EXEC_INFO": json.dumps(info)}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise UsageError(f"{where} cannot be run: {error.strerror}", hint=plugin.install_hint or None) from error
    try:
        out, err = await asyncio.wait_for(process.communicate(), EXEC_SECONDS)
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise NotReady(f"{where} did not answer within {EXEC_SECONDS:g} s") from error
    if process.returncode != 0:
        message = _COLOURS.sub("", err.decode(errors="replace")).strip()
        sentence = _MOOR_ERROR.search(message) if set(plugin.args) >= _TOKEN_OF_MOOR else None
        if sentence is not None:  # from `moor token` itself, as after a logout: show its message unchanged
            raise NotReady(sentence["message"], hint=sentence["hint"])
        raise NotReady(f"{where} failed with exit code {process.returncode}: {message}")
    return _parse_credential(out, where)


def _parse_credential(out: bytes, where: str) -> _Issued:
    try:
        status = parse_json(out)["status"]
        expires = status.get("expirationTimestamp")
        return _Issued(
            token=str(status.get("token") or ""),
            cert_pem=str(status.get("clientCertificateData") or "").encode(),
            key_pem=str(status.get("clientKeyData") or "").encode(),
            expires=parse_rfc3339(expires) if expires else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotReady(f"{where} printed no ExecCredential") from error
