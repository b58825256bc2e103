"""Proofs for users without a token that can be reviewed, such as an administrator with a client certificate.

The API server writes the name of its creator into a CertificateSigningRequest; its spec never changes. A client
that signs this server's address with the key of the request is that creator. It gets a sealed token with the
creator's name and groups.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from datetime import UTC, datetime
from typing import Any

import msgspec

from moorage.api.errors import ErrorCode
from moorage.model.info import host_of
from moorage.model.proofs import FRESH, LIFETIME, PROOF_NAMES, SIGNER, SIGNING_REQUESTS, proof_text
from moorage.server.addresses import Addresses
from moorage.server.identity.sessions import Sealer
from moorage.server.problems import Problem
from moorage_kube.api import Api
from moorage_kube.clock import SYSTEM, Clock, parse_rfc3339
from moorage_kube.errors import NotFound

PROOF_PREFIX = "mrp_"  # of tokens
_KIND = "proof "  # the kind of a sealed text
_AT_ONCE = 8  # requests of strangers that the API server is asked about
ANONYMOUS = "system:anonymous"


class Identity(msgspec.Struct, frozen=True):
    """The user that the API server named, and the end of the token."""

    name: str
    groups: tuple[str, ...]
    until: float  # seconds since 1970


class Proofs:
    """Checks proofs of identity, and recognizes the tokens that it issued for them."""

    def __init__(self, api: Api, sealer: Sealer, addresses: Addresses, *, clock: Clock = SYSTEM) -> None:
        self._api, self._sealer, self._addresses, self._clock = api, sealer, addresses, clock
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def take(self, name: str, audience: str, signature: str) -> tuple[str, Identity]:
        """Return a token for the creator of a request. Raises Problem 401 or 400, ApiError."""
        if not PROOF_NAMES.fullmatch(name):
            raise _refused(f"{name[:80]!r} is not the name of a proof")
        host = host_of(audience)
        if not host or not self._addresses.is_ours(f"[{host}]" if ":" in host else host):
            raise Problem(
                400,
                ErrorCode.FOREIGN_HOST,
                f"the proof is for {audience[:200]!r}, which is no address of this server",
                "use an address that publicUrl in the ConfigMap moorage names",
            )
        async with self._room:
            try:
                request = await self._api.get(SIGNING_REQUESTS, name)
            except NotFound:
                raise _refused(f"there is no CertificateSigningRequest {name}") from None
        now = self._clock.now()
        if fault := fault_of(request, now):
            raise _refused(fault)
        spec = request["spec"]
        if not is_signed_by(str(spec.get("request") or ""), proof_text(name, audience), signature):
            raise _refused("the signature is not by the key of the request")
        groups = tuple(str(group) for group in spec.get("groups") or ())
        identity = Identity(str(spec["username"]), groups, (now + LIFETIME).timestamp())
        sealed = await self._sealer.seal(_KIND + msgspec.json.encode(identity).decode())
        return PROOF_PREFIX + sealed.decode(), identity

    async def identity(self, token: str) -> Identity | None:
        """The user of a token; None for a token that has expired or is not ours."""
        sealed = token.removeprefix(PROOF_PREFIX)
        if not sealed.isascii():
            return None
        opened = await self._sealer.open(sealed.encode(), from_stranger=True)
        if opened is None or not opened.startswith(_KIND):
            return None
        identity = msgspec.json.decode(opened.removeprefix(_KIND), type=Identity)
        return identity if self._clock.now().timestamp() < identity.until else None


def expires(identity: Identity) -> datetime:
    return datetime.fromtimestamp(identity.until, UTC).replace(microsecond=0)


def fault_of(request: dict[str, Any], now: datetime) -> str:
    """The reason why a CertificateSigningRequest proves nothing; empty if it proves the owner of its key."""
    spec, meta = request.get("spec") or {}, request["metadata"]
    if spec.get("signerName") != SIGNER:
        return f"the request is for the signer {spec.get('signerName')!r}, not for {SIGNER!r}"
    if not spec.get("username") or spec["username"] == ANONYMOUS:
        return "the request has no user"
    try:
        age = now - parse_rfc3339(str(meta.get("creationTimestamp")))
    except ValueError:
        return "the request has no time"
    if not -FRESH < age < FRESH:
        return "the request is too old; or the clocks of this server and the API server differ"
    return ""


def is_signed_by(request: str, text: bytes, signature: str) -> bool:
    """Whether the key of a PKCS #10 request (PEM in base64) has signed a text. The keys are P-256."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = x509.load_pem_x509_csr(base64.b64decode(request)).public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            return False
        key.verify(base64.b64decode(signature, validate=True), text, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True


def _refused(message: str) -> Problem:
    return Problem(401, ErrorCode.UNAUTHORIZED, f"invalid proof: {message}", "try again; or: moor login URL")
