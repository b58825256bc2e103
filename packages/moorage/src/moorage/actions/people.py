"""User accounts on a cluster: created, listed, disabled, enabled, deleted; and their tokens.

The pure part is in `moorage.model.people`; docs/design/0009-people.md explains why users are ServiceAccounts.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from moorage.api.errors import ErrorCode
from moorage.api.people import Account, AccountChange, NewAccount
from moorage.model.names import label_value
from moorage.model.people import (
    DISABLED_ANNOTATION,
    GROUPS_ANNOTATION,
    LOCAL,
    PASSWORD_KEY,
    PEOPLE_NAMESPACE,
    SOURCE_ANNOTATION,
    SUBJECT_ANNOTATION,
    TOKENS_LABEL,
    USER_LABEL,
    account_name,
    check_person,
    groups_in,
    is_disabled,
    make_account,
    password_secret,
    person_in,
    tokens_secret,
)
from moorage_kube.api import Api
from moorage_kube.errors import AlreadyExists, Conflict, Forbidden, MoorageError, NotFound, NotReady, UsageError
from moorage_kube.meta import annotations_of
from moorage_kube.moments import moment, parse_rfc3339
from moorage_kube.resources import SECRETS, SERVICEACCOUNTS, Obj

SCRYPT_N, SCRYPT_R, SCRYPT_P = 2**15, 8, 1  # 32 MiB and some 80 ms a try; OWASP's second choice
SCRYPT_N_MAX = 2**18  # a stored hash that asks for more is refused: it would take the server's memory
PASSWORD_MIN, PASSWORD_MAX = 10, 1024  # characters
TOKEN_SECONDS_MIN = 600  # Kubernetes gives none that lives shorter


class NotYours(MoorageError):
    """The name belongs to another person: another way of login, or another subject of the provider."""


class KubeToken(Struct, frozen=True):
    """A token for the Kubernetes API."""

    token: str
    expires: datetime


async def list_accounts(api: Api) -> list[Account]:
    """All accounts, sorted by name. Raises Forbidden."""
    with _for_administrators():
        objs = (await api.list(SERVICEACCOUNTS, PEOPLE_NAMESPACE)).items
    return sorted((account_of(obj) for obj in objs if person_in(obj)), key=lambda account: account.name)


async def create_local_account(api: Api, request: NewAccount) -> Account:
    """Create an account that logs in with a password.

    If the password cannot be stored, the account is deleted again. Raises UsageError for an invalid name or
    password, AlreadyExists, and Forbidden; NotReady if that deletion also fails.
    """
    check_password(request.password)
    with _for_administrators():
        try:
            obj = await create_account(api, request.name, request.groups, LOCAL)
        except AlreadyExists as error:
            raise AlreadyExists(
                f"the name {request.name!r} is taken: another account has it",
                hint=f"choose another name, or set its password: moor user passwd {request.name}",
                code=ErrorCode.EXISTS,
                field="name",
            ) from error
        try:
            await set_password(api, request.name, request.password)
        except BaseException as error:  # an interrupt, too, leaves no account without a password
            await _withdraw(api, request.name, error)
            raise
    return account_of(obj)


async def _withdraw(api: Api, person: str, error: BaseException) -> None:
    """Delete an account whose password could not be stored. Raises NotReady if the deletion also fails."""
    try:
        await delete_account(api, person)
    except MoorageError as left:
        raise NotReady(
            f"account {person!r} is created, but its password is not stored: {error}",
            hint=f"delete the account, then create it again: moor user delete {person}",
        ) from left


async def change_account(api: Api, person: str, change: AccountChange) -> Account:
    """Set password or groups, disable or enable. The caller ends the person's sessions if `ends_sessions`.

    Raises UsageError for an invalid password, Conflict (`no_password`) for an account that logs in elsewhere,
    NotFound, and Forbidden.
    """
    with _for_administrators():
        obj = await get_account(api, person)
        if change.password is not None:
            if annotations_of(obj).get(SOURCE_ANNOTATION) != LOCAL:
                raise Conflict(
                    f"account {person!r} has no password here: it logs in at the identity provider",
                    code=ErrorCode.NO_PASSWORD,
                    field="password",
                )
            await set_password(api, person, change.password)
        if change.groups is not None:
            await set_groups(api, person, change.groups)
        if change.disabled is not None:
            await (disable(api, person, change.reason) if change.disabled else enable(api, person))
        return account_of(await get_account(api, person))


def ends_sessions(change: AccountChange) -> bool:
    """Whether the change ends all sessions of the account."""
    return change.password is not None or bool(change.disabled)


async def forget_account(api: Api, person: str) -> None:
    """Delete an account, its password and its tokens. Raises NotFound, and Forbidden."""
    with _for_administrators():
        await get_account(api, person)
        await delete_account(api, person)


async def get_account(api: Api, person: str) -> Obj:
    """Raises NotFound."""
    obj = await find_account(api, person)
    if obj is None:
        raise NotFound(
            f"account {person!r} not found", hint="list the accounts: moor user list", code=ErrorCode.NOT_FOUND
        )
    return obj


def account_of(obj: Obj) -> Account:
    """Convert the ServiceAccount of a user to an answer."""
    notes = annotations_of(obj)
    return Account(
        name=person_in(obj),
        account=obj["metadata"]["name"],
        source=notes.get(SOURCE_ANNOTATION, ""),
        groups=groups_in(obj),
        disabled=is_disabled(obj),
        reason=notes.get(DISABLED_ANNOTATION, ""),
        created=moment(obj["metadata"].get("creationTimestamp")),
    )


@contextlib.contextmanager
def _for_administrators() -> Iterator[None]:
    """Add a hint about the required role to Forbidden errors."""
    try:
        yield
    except Forbidden as error:
        raise Forbidden(
            error.message,
            hint="accounts are for administrators of the cluster",
            code=ErrorCode.FORBIDDEN,
        ) from error


async def find_account(api: Api, person: str) -> Obj | None:
    try:
        return await api.get(SERVICEACCOUNTS, account_name(person), PEOPLE_NAMESPACE)
    except NotFound:
        return None


async def ensure_account(
    api: Api, person: str, groups: Sequence[str], source: str, *, subject: str = ""
) -> tuple[Obj, bool]:
    """The person's ServiceAccount, created or with its groups updated; and whether it is new.

    `subject`: the provider's subject; after the first login another subject is refused under the name. Raises
    NotYours, and UsageError for an invalid person's name.
    """
    wanted = _account(person, groups, source, subject)
    try:
        return await api.create(SERVICEACCOUNTS, wanted), True
    except AlreadyExists:
        account = await api.get(SERVICEACCOUNTS, account_name(person), PEOPLE_NAMESPACE)
    notes = annotations_of(account)
    if notes.get(SOURCE_ANNOTATION) != source or person_in(account) != person:
        raise NotYours(
            f"the name {person} belongs to another kind of account: {notes.get(SOURCE_ANNOTATION) or 'unknown'}",
            hint="an administrator can delete that account: moor user delete NAME",
        )
    known = notes.get(SUBJECT_ANNOTATION, "")
    if known and subject and known != subject:
        raise NotYours(
            f"the provider has given the name {person} to a different user",
            hint="if that is right, an administrator deletes the old account: moor user delete NAME",
        )
    new: dict[str, str] = {}
    if groups_in(account) != tuple(sorted(set(groups))):
        new[GROUPS_ANNOTATION] = json.dumps(sorted(set(groups)))
    if subject and not known:
        new[SUBJECT_ANNOTATION] = subject
    if new:
        patch = {"metadata": {"annotations": new}}
        account = await api.patch(SERVICEACCOUNTS, account_name(person), patch, PEOPLE_NAMESPACE)
    return account, False


async def create_account(api: Api, person: str, groups: Sequence[str], source: str) -> Obj:
    """Create an account. Raises AlreadyExists, and UsageError for an invalid person's name."""
    return await api.create(SERVICEACCOUNTS, _account(person, groups, source, ""))


async def set_groups(api: Api, person: str, groups: Sequence[str]) -> None:
    patch = {"metadata": {"annotations": {GROUPS_ANNOTATION: json.dumps(sorted(set(groups)))}}}
    await api.patch(SERVICEACCOUNTS, account_name(person), patch, PEOPLE_NAMESPACE)


async def disable(api: Api, person: str, reason: str) -> None:
    """Disable an account: refuse logins, and revoke the user's tokens. Raises NotFound."""
    patch = {"metadata": {"annotations": {DISABLED_ANNOTATION: reason or "disabled"}}}
    await api.patch(SERVICEACCOUNTS, account_name(person), patch, PEOPLE_NAMESPACE)
    await end_tokens(api, person)


async def enable(api: Api, person: str) -> None:
    patch = {"metadata": {"annotations": {DISABLED_ANNOTATION: None}}}
    await api.patch(SERVICEACCOUNTS, account_name(person), patch, PEOPLE_NAMESPACE)


async def delete_account(api: Api, person: str) -> None:
    """Delete an account, its password and its tokens. Raises NotFound."""
    name = account_name(person)
    await api.delete(SERVICEACCOUNTS, name, PEOPLE_NAMESPACE)
    await end_tokens(api, person)
    with contextlib.suppress(NotFound):
        await api.delete(SECRETS, password_secret(name), PEOPLE_NAMESPACE)


async def kube_token(api: Api, person: str, seconds: int, session: str = "") -> KubeToken:
    """A token for the Kubernetes API that ends with the Secret it is bound to, or after `seconds` (600 or more).

    Each session has its own Secret, so that one can be ended without the others.

    https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#bound-service-account-tokens
    """
    name = account_name(person)
    bound = await _tokens_secret(api, person, session)
    spec = {
        "expirationSeconds": max(TOKEN_SECONDS_MIN, seconds),
        "boundObjectRef": {
            "apiVersion": "v1",
            "kind": "Secret",
            "name": bound["metadata"]["name"],
            "uid": bound["metadata"]["uid"],
        },
    }
    wish = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    made = await api.create_subresource(SERVICEACCOUNTS, name, "token", wish, PEOPLE_NAMESPACE)
    status = made["status"]
    return KubeToken(status["token"], parse_rfc3339(status["expirationTimestamp"]))


async def end_tokens(api: Api, person: str, session: str | None = None) -> int:
    """Revoke the tokens of a user, or of one session; return the number of deleted Secrets."""
    if session is not None:
        names = [tokens_secret(account_name(person), session)]
    else:
        label = f"{USER_LABEL}={label_value(person)},{TOKENS_LABEL}"
        token_secrets = await api.list(SECRETS, PEOPLE_NAMESPACE, label_selector=label)
        names = [item["metadata"]["name"] for item in token_secrets.items]
    ended = 0
    for name in names:
        with contextlib.suppress(NotFound):
            await api.delete(SECRETS, name, PEOPLE_NAMESPACE)
            ended += 1
    return ended


def first_password() -> str:
    """Make a first password, to be handed over: 16 characters, 96 bits."""
    return secrets.token_urlsafe(12)


def check_password(password: str) -> None:
    """Raise UsageError if a password is too short or too long."""
    if not PASSWORD_MIN <= len(password) <= PASSWORD_MAX:
        raise UsageError(
            f"invalid password of {len(password)} characters: use {PASSWORD_MIN} to {PASSWORD_MAX}",
            code=ErrorCode.INVALID,
            field="password",
        )


async def set_password(api: Api, person: str, password: str, *, cost: int = SCRYPT_N) -> None:
    """Store the hash of a new password; `cost`: see `hash_password`.

    Raises UsageError for a password that is too short or too long.
    """
    check_password(password)
    made = await asyncio.to_thread(hash_password, password, cost=cost)
    name = password_secret(account_name(person))
    data = {PASSWORD_KEY: base64.b64encode(made.encode()).decode()}
    try:
        await api.create(SECRETS, _secret(name, person) | {"data": data})
    except AlreadyExists:
        await api.patch(SECRETS, name, {"data": data}, PEOPLE_NAMESPACE)


async def password_hash(api: Api, person: str) -> str:
    """The stored hash; empty if the person has none."""
    try:
        secret = await api.get(SECRETS, password_secret(account_name(person)), PEOPLE_NAMESPACE)
        return base64.b64decode((secret.get("data") or {}).get(PASSWORD_KEY) or "").decode()
    except (NotFound, ValueError):
        return ""


def hash_password(password: str, *, cost: int = SCRYPT_N) -> str:
    """`scrypt$N$r$p$salt$hash`, the last two in base64. Takes some 80 ms of a core: keep it off the event loop.

    `cost`: scrypt's N, a power of two.
    """
    salt = secrets.token_bytes(16)
    made = _scrypt(password, salt, cost, SCRYPT_R, SCRYPT_P)
    numbers = f"{cost}${SCRYPT_R}${SCRYPT_P}"
    return f"scrypt${numbers}${base64.b64encode(salt).decode()}${base64.b64encode(made).decode()}"


def is_password(password: str, stored: str) -> bool:
    """Whether a password matches a stored hash. The check of an empty hash takes as long as any other."""
    known = stored or _NOBODY
    try:
        scheme, n, r, p, salt, wanted = known.split("$")
        numbers = int(n), int(r), int(p)
        if scheme != "scrypt" or numbers[0] > SCRYPT_N_MAX or numbers[1] > 16 or numbers[2] > 4:
            return False
        made = _scrypt(password, base64.b64decode(salt), *numbers)
        same = hmac.compare_digest(made, base64.b64decode(wanted))
    except ValueError:
        return False
    return same and bool(stored)


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(
        password.encode()[: 4 * PASSWORD_MAX], salt=salt, n=n, r=r, p=p, maxmem=2 * 128 * n * r + 2**20, dklen=32
    )


_ZEROES = (base64.b64encode(bytes(16)).decode(), base64.b64encode(bytes(32)).decode())
_NOBODY = "$".join(("scrypt", str(SCRYPT_N), str(SCRYPT_R), str(SCRYPT_P), *_ZEROES))


async def _tokens_secret(api: Api, person: str, session: str) -> Obj:
    name = tokens_secret(account_name(person), session)
    try:
        return await api.get(SECRETS, name, PEOPLE_NAMESPACE)
    except NotFound:
        pass
    try:
        return await api.create(SECRETS, _secret(name, person, {TOKENS_LABEL: session or "none"}))
    except AlreadyExists:  # another request was quicker
        return await api.get(SECRETS, name, PEOPLE_NAMESPACE)


def _secret(name: str, person: str, labels: Mapping[str, str] | None = None) -> Obj:
    labels = {USER_LABEL: label_value(person)} | dict(labels or {})
    meta = {"name": name, "namespace": PEOPLE_NAMESPACE, "labels": labels}
    return {"apiVersion": SECRETS.api_version, "kind": SECRETS.kind, "metadata": meta, "type": "Opaque"}


def _account(person: str, groups: Sequence[str], source: str, subject: str) -> Obj:
    try:
        check_person(person)
        return make_account(person, groups, source, subject)
    except ValueError as error:
        raise UsageError(str(error), code=ErrorCode.INVALID, field="name") from error
