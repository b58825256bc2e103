"""The webhook's serving certificate, tokens of web page and extender, and the configurations of kube-schedulers.

All are in Secrets: tokens are created once, certificates renewed, configurations updated.

The operator's leader does this, so that the pods of the other services need no rights on Secrets: they mount them,
and their kubelet starts them as soon as the Secrets exist.

Each certificate has a separate authority. Its key is deleted at once and cannot be stolen to sign others.
`ca.crt` in the Secret holds the new authority and the one before it; the API server
trusts both, so pods may serve the old certificate until their kubelet has mounted the new one.

With `ours=False` another product (cert-manager) makes the certificate; it and its trust are not changed. The
token of the audit log is stored in the Secret and in the registrations in both cases.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from moorage.model.manifests import EXTENDER_SERVICE, extender_url
from moorage.model.names import (
    AUDIT_CONFIGURATION,
    AUDIT_TOKEN,
    EXTENDER_SECRET,
    PAGE_SECRET,
    SCHEDULER_CONFIGMAP,
    SCHEDULER_SECRET,
    SYSTEM_NAMESPACE,
    WEBHOOK_CONFIGURATION,
    WEBHOOK_SERVICE,
    WEBHOOK_TLS_SECRET,
)
from moorage.model.schedulerconfig import scheduler_files
from moorage.model.secondscheduler import percentage_of
from moorage_kube.api import Api
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from moorage_kube.remote.objects import make_object
from moorage_kube.resources import (
    CONFIGMAPS,
    MUTATING_WEBHOOKS,
    SECRETS,
    SERVICES,
    VALIDATING_WEBHOOKS,
    Obj,
    Resource,
)

log = logging.getLogger(__name__)

LIFETIME = timedelta(days=365)
RENEW_BEFORE = timedelta(days=30)
CHECK_SECONDS = 60.0  # so long may an `apply` that dropped the caBundle go unmended
TOKEN_BYTES = 24


class Issued(Struct, frozen=True, kw_only=True):
    """A certificate with its key and the authority that signed it, all in PEM."""

    certificate: bytes
    key: bytes
    authority: bytes


def issue(names: Sequence[str], *, now: datetime, lifetime: timedelta = LIFETIME) -> Issued:
    """Make an authority and a server certificate for these DNS names; the authority's key is not stored.

    `cryptography` takes 140 ms to import and is loaded here.
    """
    from moorage_kube.certificates import make_authority, make_server_certificate

    # two authorities of one name in a bundle confuse verifiers: the time makes names unique
    authority = make_authority(f"moorage-webhook-ca-{now:%Y%m%d%H%M%S}", now=now, lifetime=lifetime)
    server = make_server_certificate(authority, names[0], dns_names=names, now=now, lifetime=lifetime)
    return Issued(certificate=server.pem, key=server.key_pem, authority=authority.pem)


def service_names(service: str = WEBHOOK_SERVICE, namespace: str = SYSTEM_NAMESPACE) -> tuple[str, ...]:
    """The DNS names of a Service. The API server uses the first name."""
    return f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local", f"{service}.{namespace}"


def why_renew(data: Mapping[str, bytes], names: Sequence[str], *, now: datetime) -> str | None:
    """The reason to renew the certificate in a Secret; None if it is still good."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization

    for name in ("tls.crt", "tls.key", "ca.crt"):
        if not data.get(name):
            return f"{name} is missing"
    try:
        certificate = x509.load_pem_x509_certificate(data["tls.crt"])
        authorities = x509.load_pem_x509_certificates(data["ca.crt"])
        key = serialization.load_pem_private_key(data["tls.key"], None)
        if key.public_key() != certificate.public_key():
            return "the key is not that of the certificate"
        certificate.verify_directly_issued_by(authorities[0])
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        lacking = set(names) - set(alternatives.get_values_for_type(x509.DNSName))
    except (ValueError, TypeError, x509.ExtensionNotFound) as error:
        return f"it cannot be read: {error}"
    except InvalidSignature:
        return "its authority did not sign it"
    if lacking:
        return f"it does not name {', '.join(sorted(lacking))}"
    if min(certificate.not_valid_after_utc, authorities[0].not_valid_after_utc) - now < RENEW_BEFORE:
        return f"it expires at {certificate.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}"
    return None


def bundle(newest: bytes, before: bytes, *, now: datetime) -> bytes:
    """The trusted authorities: the newest, and the previous one while it is still valid."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    try:
        old = x509.load_pem_x509_certificates(before)[:1] if before else []
    except ValueError:
        old = []
    kept = [
        certificate.public_bytes(serialization.Encoding.PEM)
        for certificate in old
        if certificate.not_valid_after_utc > now
    ]
    return b"".join([newest, *(pem for pem in kept if pem != newest)])


async def keep_certificates(
    api: Api,
    *,
    clock: Clock = SYSTEM,
    namespace: str = SYSTEM_NAMESPACE,
    check_seconds: float = CHECK_SECONDS,
    ours: bool = True,
) -> None:
    """Maintain Secrets and registrations until cancelled; failures are logged and retried."""
    while True:
        try:
            for name in (PAGE_SECRET, EXTENDER_SECRET):
                await ensure_token(api, name, namespace=namespace)
            if ours:
                await ensure_certificate(api, clock=clock, namespace=namespace)
            else:
                await ensure_audit_token(api, namespace=namespace)
            await ensure_scheduler_files(api, namespace=namespace)  # last: the webhook works without
        except (ApiError, OSError) as error:
            log.warning("cannot keep the certificates", extra={"error": str(error)})
        await clock.sleep(check_seconds)


async def ensure_token(api: Api, name: str, *, namespace: str = SYSTEM_NAMESPACE) -> None:
    """Create the token in a Secret if there is none. An existing token never changes, since clients use it."""
    try:
        await api.get(SECRETS, name, namespace)
    except NotFound:
        token = secrets.token_urlsafe(TOKEN_BYTES).encode()
        try:
            await api.create(SECRETS, make_secret(name, namespace, {"token": token}))
        except AlreadyExists:
            return
        log.info("made a token", extra={"secret": name})


async def ensure_scheduler_files(api: Api, *, namespace: str = SYSTEM_NAMESPACE) -> None:
    """Create or update the Secret with kube-schedulers' configurations; see `model.schedulerconfig`."""
    token = contents(await _get(api, SECRETS, EXTENDER_SECRET, namespace)).get("token")
    service = await _get(api, SERVICES, EXTENDER_SERVICE, namespace)
    if not token or service is None:
        return  # not installed yet; the next pass looks again
    address = str((service.get("spec") or {}).get("clusterIP") or "")
    switches = await api.list(CONFIGMAPS, namespace, field_selector=f"metadata.name={SCHEDULER_CONFIGMAP}")
    files = scheduler_files(
        token.decode(),
        name_url=extender_url(),
        address_url=extender_url("" if address == "None" else address),
        percentage=percentage_of(next(iter(switches.items), None)),
    )
    secret = await _get(api, SECRETS, SCHEDULER_SECRET, namespace)
    wanted = make_secret(SCHEDULER_SECRET, namespace, files)
    if secret is None:
        with contextlib.suppress(AlreadyExists):
            await api.create(SECRETS, wanted)
    elif contents(secret) != files:
        with contextlib.suppress(Conflict):  # the next pass reads again
            await api.update(SECRETS, secret | {"data": wanted["data"]})
    else:
        return
    log.info("wrote the configurations of kube-schedulers", extra={"secret": SCHEDULER_SECRET})


async def ensure_certificate(api: Api, *, clock: Clock = SYSTEM, namespace: str = SYSTEM_NAMESPACE) -> None:
    """Run one pass: put a valid certificate into the Secret, and its authority into the registrations."""
    registrations = await _registrations(api)
    names = service_names(namespace=namespace)
    now = clock.now()
    secret = await _get(api, SECRETS, WEBHOOK_TLS_SECRET, namespace)
    data = contents(secret)
    token = data.get(AUDIT_TOKEN) or secrets.token_hex(TOKEN_BYTES).encode()
    # parsing takes 140 ms of imports and a few of work: off the loop
    reason = await asyncio.to_thread(why_renew, data, names, now=now) if secret is not None else "there is none"
    if reason is not None:
        issued = await asyncio.to_thread(issue, names, now=now)
        trusted = await asyncio.to_thread(bundle, issued.authority, data.get("ca.crt", b""), now=now)
        data = {"tls.crt": issued.certificate, "tls.key": issued.key, "ca.crt": trusted, AUDIT_TOKEN: token}
        # trusted before it is used: registrations first, then the Secret that pods mount
        await _trust(api, registrations, trusted, token)
        try:
            await _store(api, secret, data, namespace)
        except (AlreadyExists, Conflict):
            log.info("another wrote the certificate; looking again", extra={"secret": WEBHOOK_TLS_SECRET})
            return
        log.info("made a certificate for the webhook", extra={"reason": reason, "secret": WEBHOOK_TLS_SECRET})
        return
    if AUDIT_TOKEN not in data:  # of an older version
        with contextlib.suppress(Conflict):  # then another wrote one, which the next pass reads
            await _store(api, secret, data | {AUDIT_TOKEN: token}, namespace)
        return
    await _trust(api, registrations, data["ca.crt"], token)


async def ensure_audit_token(api: Api, *, namespace: str = SYSTEM_NAMESPACE) -> None:
    """One pass with cert-manager.

    Once the Secret exists, write the token to it, then to the webhook configurations.
    """
    secret = await _get(api, SECRETS, WEBHOOK_TLS_SECRET, namespace)
    if secret is None:
        return  # its pods wait for it too
    token = contents(secret).get(AUDIT_TOKEN)
    if token is None:
        token = secrets.token_hex(TOKEN_BYTES).encode()
        data = {**(secret.get("data") or {}), AUDIT_TOKEN: base64.b64encode(token).decode()}
        with contextlib.suppress(Conflict):  # the next pass reads the other writer's version
            await api.update(SECRETS, secret | {"data": data})
        return
    await _trust(api, await _registrations(api), None, token)


async def _registrations(api: Api) -> list[tuple[Resource, Obj]]:
    """The webhook registrations that exist."""
    return [
        (resource, registration)
        for resource, name in (
            (MUTATING_WEBHOOKS, WEBHOOK_CONFIGURATION),
            (VALIDATING_WEBHOOKS, WEBHOOK_CONFIGURATION),
            (VALIDATING_WEBHOOKS, AUDIT_CONFIGURATION),
        )
        if (registration := await _get(api, resource, name)) is not None
    ]


def contents(secret: Mapping[str, Any] | None) -> dict[str, bytes]:
    """The data of a Secret, decoded; invalid base64 counts as missing."""
    contents = {}
    for name, text in ((secret or {}).get("data") or {}).items():
        try:
            contents[name] = base64.b64decode(text, validate=True)
        except (binascii.Error, TypeError, ValueError):
            continue
    return contents


def make_secret(name: str, namespace: str, data: Mapping[str, bytes], *, type_: str = "Opaque") -> Obj:
    """A Secret with the labels of Moorage."""
    return make_object(
        SECRETS,
        name,
        namespace,
        labels={"app.kubernetes.io/part-of": "moorage"},
        type=type_,
        data={key: base64.b64encode(value).decode() for key, value in data.items()},
    )


def trusting(registration: Obj, authority: bytes | None, token: bytes) -> Obj | None:
    """A webhook registration that trusts `authority` (None.

    Another product manages the trust) and asks under `token`.

    None when it does already, or asks a URL and not a Service.

    `moor up` gives registrations by URL its own certificate; they are not changed here.
    """
    trust = {"caBundle": base64.b64encode(authority).decode()} if authority is not None else {}
    webhooks = [
        webhook | {"clientConfig": _under(webhook["clientConfig"], token) | trust}
        if "service" in webhook["clientConfig"]
        else webhook
        for webhook in registration.get("webhooks") or ()
    ]
    return registration | {"webhooks": webhooks} if webhooks != (registration.get("webhooks") or []) else None


def _under(client: Obj, token: bytes) -> Obj:
    """`/audit` as `/audit/TOKEN`: by the token the webhook recognises the API server."""
    service = client["service"]
    first = str(service.get("path") or "").strip("/").partition("/")[0]
    return client | {"service": service | {"path": f"/{first}/{token.decode()}"}} if first else client


async def _trust(
    api: Api, registrations: Sequence[tuple[Resource, Obj]], authority: bytes | None, token: bytes
) -> None:
    for resource, registration in registrations:
        if (better := trusting(registration, authority, token)) is not None:
            await api.update(resource, better)  # guarded by its resourceVersion
            log.info("the registration trusts the webhook's certificate", extra={"resource": str(resource)})


async def _store(api: Api, before: Obj | None, data: Mapping[str, bytes], namespace: str) -> None:
    secret = make_secret(WEBHOOK_TLS_SECRET, namespace, data, type_="kubernetes.io/tls")
    if before is None:
        await api.create(SECRETS, secret)
    else:
        await api.update(SECRETS, before | {"data": secret["data"]})


async def _get(api: Api, resource: Resource, name: str, namespace: str | None = None) -> Obj | None:
    try:
        return await api.get(resource, name, namespace)
    except NotFound:
        return None
