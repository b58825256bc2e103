"""Certificates and the signing key of the local cluster, in one folder.

    ca.crt ca.key           the cluster's own authority, ten years
    server.crt server.key   for localhost and 127.0.0.1, signed by it
    tokens.key              signs service account tokens; 32 random bytes

    expiry.json             when the certificates expire, and the SHA-256 of tokens.key

Only the owner can read the keys. All files are created at the first start, `expiry.json` last. Later, a missing or
damaged authority or signing key is an error. A new authority would invalidate all kubeconfigs. A new signing key
would invalidate the tokens of all running pods. A server certificate that is damaged, or expires within
RENEW_BEFORE, is created again. If the authority expires within RENEW_BEFORE, the authority and the server
certificate are created again. `cryptography` takes 140 ms to import. It is imported only to create certificates,
or if `expiry.json` is unreadable.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import secrets
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from moorage_kube.clock import SYSTEM, Clock, parse_rfc3339, rfc3339
from moorage_kube.databasefile import HINT
from moorage_kube.errors import DataFolderError, StorageDamaged

LIFETIME = timedelta(days=3653)
RENEW_BEFORE = timedelta(days=30)
SIGNING_KEY_BYTES = 32
DNS_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
ADDRESSES = ("127.0.0.1", "::1", "10.96.0.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pki:
    """Paths of the server's certificate and key, the authority that clients must trust, and the token key."""

    certificate: Path
    key: Path
    ca: Path
    ca_pem: str
    signing_key: bytes


def ensure_pki(folder: Path, *, clock: Clock = SYSTEM) -> Pki:
    """Load the files of the folder; create all at the first start, and those that are about to expire.

    Raises StorageDamaged for files that are missing or damaged after the first start, DataFolderError for other
    trouble.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        now = clock.now()
        signing = folder / "tokens.key"
        if not signing.exists() and not (folder / "expiry.json").exists():
            expiry = _make(folder, now, new_ca=True)
            _write(signing, secrets.token_bytes(SIGNING_KEY_BYTES), secret=True)
            _note(folder, expiry)
        elif problems := find_pki_problems(folder):
            described = "; ".join(f"{folder / name} {problem}" for name, problem in problems.items())
            raise StorageDamaged(described, hint=HINT)
        expiry = _expiry(folder)
        if "tokens.key" not in _noted(folder):  # a folder of an older version
            _note(folder, expiry)
        if expiry["ca.crt"] - now < RENEW_BEFORE:
            _note(folder, _make(folder, now, new_ca=True))
        elif expiry["server.crt"] - now < RENEW_BEFORE or not _fit(folder / "server.crt", folder / "server.key"):
            _note(folder, _make(folder, now, new_ca=False))
        return Pki(
            certificate=folder / "server.crt",
            key=folder / "server.key",
            ca=folder / "ca.crt",
            ca_pem=(folder / "ca.crt").read_text(),
            signing_key=signing.read_bytes(),
        )
    except OSError as error:
        raise DataFolderError(f"could not keep certificates in {folder}: {error}") from error


def find_pki_problems(folder: Path) -> dict[str, str]:
    """Return the problems of the files in a folder that was once complete: name → the end of a sentence.

    Raises PermissionError for a file that may not be read.
    """
    kept = ("ca.crt", "ca.key", "tokens.key")
    problems = {name: "is missing" for name in kept if not (folder / name).is_file()}
    if "tokens.key" not in problems and (size := (folder / "tokens.key").stat().st_size) != SIGNING_KEY_BYTES:
        problems["tokens.key"] = f"holds {size} bytes instead of {SIGNING_KEY_BYTES}"
    if "tokens.key" not in problems and _noted(folder).get("tokens.key", digest := _digest(folder)) != digest:
        problems["tokens.key"] = "is not the key that was made here"
    for name in ("ca.crt", "ca.key"):
        if name not in problems and not _is_pem(folder / name):
            problems[name] = "is damaged" if (folder / name).stat().st_size else "is empty"
    if not problems.keys() - {"tokens.key"} and not _fit(folder / "ca.crt", folder / "ca.key"):
        problems["ca.crt"] = "does not match ca.key; one of them is damaged"
    return problems


def _is_pem(path: Path) -> bool:
    try:
        lines = path.read_bytes().decode("ascii").strip().splitlines()
        base64.b64decode("".join(lines[1:-1]), validate=True)
    except PermissionError:
        raise
    except (OSError, ValueError):
        return False
    return len(lines) > 2 and lines[0].startswith("-----BEGIN ") and lines[-1].startswith("-----END ")


def _fit(certificate: Path, key: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError):
        return False
    return True


def _expiry(folder: Path) -> dict[str, datetime]:
    """Return the expiry dates of the certificates.

    They are read from the note, or from the files if the note is missing or damaged.
    """
    with contextlib.suppress(ValueError, AttributeError, TypeError, KeyError):
        noted = _noted(folder)
        return {name: parse_rfc3339(noted[name]) for name in ("ca.crt", "server.crt")}
    from cryptography import x509

    expiry = {}
    for name in ("ca.crt", "server.crt"):
        try:
            expiry[name] = x509.load_pem_x509_certificate((folder / name).read_bytes()).not_valid_after_utc
        except (FileNotFoundError, ValueError) as error:
            if name == "ca.crt":
                raise StorageDamaged(f"{folder / name} is damaged: {error}", hint=HINT) from error
            expiry[name] = datetime.fromtimestamp(0, UTC)  # created again
    _note(folder, expiry)
    return expiry


def _noted(folder: Path) -> dict[str, Any]:
    """The content of expiry.json; empty if it is missing or damaged."""
    try:
        noted = json.loads((folder / "expiry.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return noted if isinstance(noted, dict) else {}


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / "tokens.key").read_bytes()).hexdigest()


def _note(folder: Path, expiry: dict[str, datetime]) -> None:
    noted = {name: rfc3339(moment) for name, moment in expiry.items()} | {"tokens.key": _digest(folder)}
    _write(folder / "expiry.json", json.dumps(noted).encode(), secret=False)


def _make(folder: Path, now: datetime, *, new_ca: bool) -> dict[str, datetime]:
    """Create the server's certificate, with a new authority if `new_ca`; return the expiry dates."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    from moorage_kube.certificates import Certificate, make_authority, make_server_certificate

    if new_ca:
        ca = make_authority("moorage-local-ca", now=now, lifetime=LIFETIME)
        _write(folder / "ca.key", ca.key_pem, secret=True)
        _write(folder / "ca.crt", ca.pem, secret=False)
    else:
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise DataFolderError(
                f"{folder / 'ca.key'} is not a key that this program made", hint="remove the pki folder"
            )
        ca = Certificate(certificate=x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()), key=key)
    server = make_server_certificate(
        ca, "moorage-local-api", dns_names=DNS_NAMES, addresses=ADDRESSES, now=now, lifetime=LIFETIME
    )
    _write(folder / "server.key", server.key_pem, secret=True)
    _write(folder / "server.crt", server.pem, secret=False)
    return {"ca.crt": ca.certificate.not_valid_after_utc, "server.crt": server.certificate.not_valid_after_utc}


def _write(path: Path, data: bytes, *, secret: bool) -> None:
    """Write a file completely or not at all. Other users can never read a secret, not even for a moment."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
