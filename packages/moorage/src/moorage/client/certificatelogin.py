"""Tokens of the Moorage server for kubeconfigs that have a client certificate and no token.

The API server checks the certificate; the Moorage server never sees it. The client creates a
CertificateSigningRequest that no controller signs: the API server writes its creator into it. Then the client
proves to the Moorage server that it has the key of the request. See docs/design/0014-server-from-outside.md.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from moorage.api.logins import ByProof, Proved
from moorage.client.connection import QUICK, Connection, at_url
from moorage.client.files import write_private
from moorage.client.logins import logins_file
from moorage.model.proofs import PROOF_NAME, PROOF_ROLE, SIGNER, SIGNING_REQUESTS, proof_text
from moorage_kube.clock import SYSTEM, Clock, parse_rfc3339, rfc3339
from moorage_kube.errors import ApiError, Forbidden
from moorage_kube.resources import Obj

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

    from moorage_kube.api import Api
    from moorage_kube.remote.config import Connection as KubeConnection

SPARE = timedelta(seconds=60)  # before its end a token is not used any more
TOKENS_MAX = 20  # tokens of clusters


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the server for the user that the API server named."""

    text: str = field(repr=False)
    expires: datetime

    def holds(self, now: datetime) -> bool:
        return now + SPARE < self.expires


class Prover:
    """Gets tokens for one kubeconfig, and stores them in a file for the next commands."""

    def __init__(self, api: Api, connection: KubeConnection, *, clock: Clock = SYSTEM) -> None:
        self._api, self._connection, self._clock = api, connection, clock
        self._token: Token | None = None

    @property
    def is_of_use(self) -> bool:
        """Whether the connection has credentials other than a token for the API server."""
        return bool(self._connection.client_cert_pem or self._connection.exec_plugin or self._connection.username)

    async def token(self, url: str, ca: str) -> str:
        """Return a valid token of the server at an address. Raises ApiError."""
        now = self._clock.now()
        key = _key(self._connection, url)
        if self._token is None or not self._token.holds(now):
            self._token = cached_tokens().get(key)
        if self._token is None or not self._token.holds(now):
            self._token = await self._prove(url, ca)
            _keep(key, self._token, now)
        return self._token.text

    def forget(self, url: str) -> bool:
        """Drop the token that the server at an address refused. Returns whether there was one.

        A server that was installed again does not know the tokens of the old one.
        """
        key = _key(self._connection, url)
        was_cached = self._token is not None or key in cached_tokens()
        self._token = None
        _write({other: kept for other, kept in cached_tokens().items() if other != key})
        return was_cached

    async def _prove(self, url: str, ca: str) -> Token:
        from cryptography.hazmat.primitives.asymmetric import ec

        key, name = ec.generate_private_key(ec.SECP256R1()), PROOF_NAME + secrets.token_hex(16)
        async with contextlib.AsyncExitStack() as stack:
            api = await self._own_api(stack)
            try:
                await api.create(SIGNING_REQUESTS, make_request(name, key))
            except Forbidden as error:
                from moorage.present.forbidden import refusal_of

                refusal = refusal_of(error.message)  # a new error, so that our hint is shown
                raise Forbidden(
                    "the Moorage server cannot see your client certificate, and you may not prove who you are: "
                    f"{refusal.sentence('') if refusal else error.message}",
                    hint="log in: moor login URL; or ask an administrator: kubectl create clusterrolebinding "
                    f"{PROOF_ROLE}-NAME --clusterrole {PROOF_ROLE} --user USER",
                ) from error
            connection = Connection(at_url(url, ca=ca), patience=QUICK)
            try:
                body = ByProof(name=name, audience=url, signature=sign(key, name, url))
                answer = await connection.ask(Proved, "POST", "/api/v1/login/proof", body=body)
            finally:
                await connection.close()
                with contextlib.suppress(ApiError):  # without the right to delete it: Kubernetes deletes it later
                    await api.delete(SIGNING_REQUESTS, name)
        return Token(answer.token, answer.expires)

    async def _own_api(self, stack: contextlib.AsyncExitStack) -> Api:
        """Return the API without impersonation: the server itself checks the right to impersonate."""
        if not self._connection.impersonate_user:
            return self._api
        from moorage_kube.remote.client import KubeClient

        own = replace(self._connection, impersonate_user="", impersonate_groups=())
        return await stack.enter_async_context(KubeClient(own))


def make_request(name: str, key: ec.EllipticCurvePrivateKey) -> Obj:
    """Return a CertificateSigningRequest for a key. Its signer is ours, so no controller signs it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    pem = request.public_bytes(serialization.Encoding.PEM)
    return {
        "apiVersion": SIGNING_REQUESTS.api_version,
        "kind": SIGNING_REQUESTS.kind,
        "metadata": {"name": name},
        "spec": {
            "request": base64.b64encode(pem).decode(),
            "signerName": SIGNER,
            "usages": ["client auth"],
            "expirationSeconds": 600,
        },
    }


def sign(key: ec.EllipticCurvePrivateKey, name: str, audience: str) -> str:
    """Return the signature of `proof_text`: ECDSA with SHA-256, in base64."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return base64.b64encode(key.sign(proof_text(name, audience), ec.ECDSA(hashes.SHA256()))).decode()


# --- stored tokens


def _file() -> Path:
    return logins_file().with_name("proofs.json")


def _key(connection: KubeConnection, url: str) -> str:
    """A key that differs by cluster and credentials, and by server.

    Port-forwards of all ports count as one server.
    """
    plugin = connection.exec_plugin
    who = (
        connection.server,
        connection.client_cert_pem.decode("latin-1"),
        repr((plugin.command, plugin.args, sorted(plugin.env.items()))) if plugin is not None else "",
        connection.username,
        "" if url.startswith("http://127.0.0.1:") else url,
    )
    return hashlib.sha256("\n".join(who).encode()).hexdigest()


def cached_tokens() -> dict[str, Token]:
    """Return the tokens of earlier commands; empty where the file is missing or damaged."""
    try:
        rows: Mapping[str, Mapping[str, str]] = json.loads(_file().read_text())
        return {key: Token(row["token"], parse_rfc3339(row["expires"])) for key, row in rows.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def cached_token(connection: KubeConnection, url: str, now: datetime) -> str:
    """Return the stored token of an earlier command for the server at an address; "" without a valid token."""
    token = cached_tokens().get(_key(connection, url))
    return token.text if token is not None and token.holds(now) else ""


def _keep(key: str, token: Token, now: datetime) -> None:
    tokens = {other: kept for other, kept in cached_tokens().items() if kept.holds(now)}
    _write(dict([*tokens.items(), (key, token)][-TOKENS_MAX:]))


def _write(tokens: Mapping[str, Token]) -> None:
    rows = {each: {"token": kept.text, "expires": rfc3339(kept.expires)} for each, kept in tokens.items()}
    with contextlib.suppress(OSError):  # the next command proves it again
        _file().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(_file(), json.dumps(rows) + "\n")
