"""Users in the cluster: a ServiceAccount for each, in a separate namespace.

docs/design/0009-people.md gives the reasons.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence

from moorage.model.names import GROUP, label_value
from moorage_kube.documents import parse_json
from moorage_kube.meta import annotations_of
from moorage_kube.resources import SERVICEACCOUNTS, Obj
from moorage_kube.texts import hidden_characters, visible

PEOPLE_NAMESPACE = "moorage-users"
USER_LABEL = "moorage.dev/user"  # on a person's ServiceAccount and the objects made for it: label-safe form
TOKENS_LABEL = "moorage.dev/tokens-of"  # on the Secrets that tokens are bound to: which session's
USER_ANNOTATION = "moorage.dev/user"  # the name as it is
GROUPS_ANNOTATION = "moorage.dev/groups"  # JSON list
SOURCE_ANNOTATION = "moorage.dev/source"  # OIDC or LOCAL
SUBJECT_ANNOTATION = "moorage.dev/subject"  # "issuer subject": the provider's subject for the name
DISABLED_ANNOTATION = "moorage.dev/disabled"  # any text: the person is out
OIDC, LOCAL = "oidc", "local"
GROUP_PREFIX = f"{GROUP}:"  # before a person's groups, so that none can be mistaken for one of Kubernetes' own

PASSWORD_KEY = "scrypt"  # in the Secret of `password_secret`
NAME_MAX = 253  # characters of a person's name; RBAC's own limit is higher

_PREFIX = f"system:serviceaccount:{PEOPLE_NAMESPACE}:"
_UNSAFE = re.compile(r"[^a-z0-9]+")


def check_person(name: str) -> None:
    """Raise ValueError for a name that a user cannot have: empty, too long, or one of Kubernetes' own."""
    if not 0 < len(name) <= NAME_MAX:
        raise ValueError(f"a person's name has 1 to {NAME_MAX} characters; this one has {len(name)}")
    if name.startswith("system:") or name == "page":
        raise ValueError(f"{name!r} is not a person's name: it is one of Kubernetes' or of Moorage's own")
    if hidden_characters(name) or name != name.strip():
        problem = f"{visible(name)!r} is not a person's name"
        raise ValueError(f"{problem}: it has characters that cannot be seen, or blanks at an end")


def account_name(person: str) -> str:
    """The name of a user's ServiceAccount: readable, unique for each user, at most 63 characters.

    Raises ValueError for an empty name.
    """
    if not person:
        raise ValueError("a person's name is empty; it has at least one character")
    digest = hashlib.sha256(person.encode()).hexdigest()[:10]
    return f"{_UNSAFE.sub('-', person.lower()).strip('-')[:48].strip('-') or 'x'}-{digest}"


def account_user(person: str) -> str:
    """The user name of that ServiceAccount in the API server."""
    return f"{_PREFIX}{account_name(person)}"


def person_of(username: str, accounts: Iterable[Obj]) -> str:
    """The person behind a Kubernetes user name; the user name itself if it is not the account of a person.

    `accounts` are the ServiceAccounts of PEOPLE_NAMESPACE.
    """
    if not username.startswith(_PREFIX):
        return username
    name = username.removeprefix(_PREFIX)
    for account in accounts:
        if account["metadata"]["name"] == name:
            return person_in(account) or username
    return username


def person_in(account: Mapping[str, object]) -> str:
    """The person of this account; "" if it is not the account of a person, or has an invalid name."""
    person = annotations_of(account).get(USER_ANNOTATION, "")
    return "" if person.startswith("system:") else person


def groups_in(account: Mapping[str, object]) -> tuple[str, ...]:
    """The groups from the last login, unchanged. Empty if they cannot be read."""
    try:
        groups = parse_json(annotations_of(account).get(GROUPS_ANNOTATION) or "[]")
    except ValueError:
        return ()
    return tuple(group for group in groups if isinstance(group, str)) if isinstance(groups, list) else ()


def is_disabled(account: Mapping[str, object]) -> bool:
    return DISABLED_ANNOTATION in annotations_of(account)


def account_in(username: str) -> str:
    """The ServiceAccount of PEOPLE_NAMESPACE in a Kubernetes user name; "" for other user names."""
    return username.removeprefix(_PREFIX) if username.startswith(_PREFIX) else ""


def tokens_secret(account: str, session: str = "") -> str:
    """The Secret that a session's tokens for the cluster are bound to: its deletion revokes them."""
    return f"{account}-tokens-{session}" if session else f"{account}-tokens"


def password_secret(account: str) -> str:
    """The name of the Secret with the password hash of a local account."""
    return f"{account}-password"


def make_account(person: str, groups: Sequence[str], source: str, subject: str = "") -> Obj:
    """The ServiceAccount of a person. Raises ValueError for an invalid name of a person."""
    check_person(person)
    notes = {
        USER_ANNOTATION: person,
        GROUPS_ANNOTATION: json.dumps(sorted(set(groups))),
        SOURCE_ANNOTATION: source,
    } | ({SUBJECT_ANNOTATION: subject} if subject else {})
    return {
        "apiVersion": SERVICEACCOUNTS.api_version,
        "kind": SERVICEACCOUNTS.kind,
        "metadata": {
            "name": account_name(person),
            "namespace": PEOPLE_NAMESPACE,
            "labels": {USER_LABEL: label_value(person)},
            "annotations": notes,
        },
        "automountServiceAccountToken": False,
    }


def is_account(username: str) -> bool:
    return username.startswith(_PREFIX)


def subjects_of(person: str) -> list[Mapping[str, str]]:
    """The subjects of a role binding for this person: the ServiceAccount, and the user of that name."""
    return [
        {"kind": "ServiceAccount", "name": account_name(person), "namespace": PEOPLE_NAMESPACE},
        {"kind": "User", "name": person, "apiGroup": "rbac.authorization.k8s.io"},
    ]
