"""Authenticate and authorise requests: bearer tokens, service account tokens, impersonation."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from moorage_kube.documents import parse_json
from moorage_kube.errors import Forbidden

MASTERS = "system:masters"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"
ISSUER = "https://kubernetes.default.svc.cluster.local"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """The author of a request, as every later step sees it."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_obj(self) -> dict[str, Any]:
        """Return the user as `userInfo` of a review."""
        out: dict[str, Any] = {"username": self.name, "groups": list(self.groups)}
        if self.uid:
            out["uid"] = self.uid
        if self.extra:
            out["extra"] = {key: list(values) for key, values in self.extra.items()}
        return out


ANONYMOUS = User(name="system:anonymous", groups=(UNAUTHENTICATED,))


def service_user(name: str) -> User:
    """Return the user of a component of the local cluster; this user may do everything."""
    return User(name=name, groups=(MASTERS, AUTHENTICATED))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """The subject of a request for authorisation. A request for a non-resource path has only `verb` and `path`."""

    verb: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    allowed: bool
    reason: str = ""


class Authorizer(Protocol):
    def authorize(self, user: User, asked: Attributes) -> Decision: ...


def refuse(user: User, asked: Attributes, reason: str = "") -> Forbidden:
    """Return the 403 error with the real server's message."""
    if asked.path:
        message = f'forbidden: User "{user.name}" cannot {asked.verb} path "{asked.path}"'
        return Forbidden(message, details={})
    resource = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
    where = f' in the namespace "{asked.namespace}"' if asked.namespace else " at the cluster scope"
    qualified = f"{asked.resource}.{asked.group}" if asked.group else asked.resource
    named = f' "{asked.name}"' if asked.name else ""
    message = (
        f'{qualified}{named} is forbidden: User "{user.name}" cannot {asked.verb} resource "{resource}"'
        f' in API group "{asked.group}"{where}'
    )
    if reason:
        message += f": {reason}"
    details = {"name": asked.name, "group": asked.group, "kind": asked.resource}
    return Forbidden(message, details={key: value for key, value in details.items() if value})


class Tokens:
    """Bearer tokens: a fixed table, and JSON web tokens (HS256) that this server signs for service accounts.

    The table is by hash, so the time of a lookup does not depend on a known prefix of the token.
    """

    def __init__(self, table: Mapping[str, Mapping[str, Any]], signing_key: bytes) -> None:
        """`table`: token → {"user": name, "groups": [...], "uid": …}."""
        self._table = {
            hashlib.sha256(token.encode()).digest(): User(
                name=str(entry["user"]),
                groups=_groups(entry.get("groups") or ()),
                uid=str(entry.get("uid") or ""),
            )
            for token, entry in table.items()
        }
        self._key = signing_key

    def fixed(self, token: str) -> User | None:
        return self._table.get(hashlib.sha256(token.encode()).digest())

    def sign(self, claims: Mapping[str, Any]) -> str:
        head = _b64(msgspec.json.encode({"alg": "HS256", "typ": "JWT"}))
        body = _b64(msgspec.json.encode(claims))
        return f"{head}.{body}.{_b64(self._mac(f'{head}.{body}'))}"

    def claims(self, token: str) -> dict[str, Any] | None:
        """Return the claims of a token that this server signed; None for any other text. Expiry is not checked."""
        parts = token.split(".")
        if len(parts) != 3:
            return None
        try:
            signature = _unb64(parts[2])
            if not hmac.compare_digest(signature, self._mac(f"{parts[0]}.{parts[1]}")):
                return None
            head = parse_json(_unb64(parts[0]))
            claims = parse_json(_unb64(parts[1]))
        except (binascii.Error, ValueError):
            return None
        if not isinstance(head, dict) or head.get("alg") != "HS256" or not isinstance(claims, dict):
            return None
        return claims

    def _mac(self, text: str) -> bytes:
        return hmac.new(self._key, text.encode(), hashlib.sha256).digest()


def certificate_user(certificate: Mapping[str, Any]) -> User | None:
    """Return the user of a client certificate: its common name, with each organization as a group.

    None without a name.

    `certificate`: in the form of `ssl.SSLSocket.getpeercert`.

    https://kubernetes.io/docs/reference/access-authn-authz/authentication/#x509-client-certificates
    """
    parts = [part for names in certificate.get("subject") or () for part in names]
    name = next((value for key, value in parts if key == "commonName"), "")
    groups = tuple(value for key, value in parts if key == "organizationName")
    return User(name=name, groups=_groups(groups)) if name else None


def service_account_user(namespace: str, name: str, uid: str, extra: Mapping[str, tuple[str, ...]]) -> User:
    return User(
        name=f"system:serviceaccount:{namespace}:{name}",
        groups=("system:serviceaccounts", f"system:serviceaccounts:{namespace}", AUTHENTICATED),
        uid=uid,
        extra=extra,
    )


def impersonate(
    user: User,
    name: str,
    groups: tuple[str, ...],
    extra: Mapping[str, tuple[str, ...]],
    authorizer: Authorizer,
) -> User:
    """Return the user that the caller acts as.

    Raises Forbidden if the caller lacks the verb `impersonate` on any part of it.
    """
    parts = name.split(":")
    account = name.startswith("system:serviceaccount:") and len(parts) == 4
    who = Attributes(verb="impersonate", resource="users", name=name)
    if account:
        who = replace(who, resource="serviceaccounts", namespace=parts[2], name=parts[3])
    wanted = [who, *(Attributes(verb="impersonate", resource="groups", name=group) for group in groups)]
    if account and not groups:
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{parts[2]}")
    wanted += [
        Attributes(
            verb="impersonate", group="authentication.k8s.io", resource="userextras", subresource=key, name=value
        )
        for key, values in extra.items()
        for value in values
    ]
    for asked in wanted:
        decision = authorizer.authorize(user, asked)
        if not decision.allowed:
            raise refuse(user, asked, decision.reason)
    if name == ANONYMOUS.name:
        return User(name=name, groups=(*groups, UNAUTHENTICATED), extra=extra)
    return User(name=name, groups=_groups(groups), extra=extra)


def _groups(groups: Any) -> tuple[str, ...]:
    names = tuple(str(group) for group in groups)
    return names if AUTHENTICATED in names else (*names, AUTHENTICATED)


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
