"""People as the cluster knows them: a ServiceAccount for each, in a namespace of their own.

docs/design/0009-people.md says why.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

from moorage.apimachinery.meta import annotations_of
from moorage.apimachinery.resources import Obj
from moorage.model.names import GROUP

PEOPLE_NAMESPACE = "moorage-users"
USER_LABEL = "moorage.dev/user"  # on a person's ServiceAccount and on what is made for it: label-safe form
USER_ANNOTATION = "moorage.dev/user"  # the name as it is
GROUPS_ANNOTATION = "moorage.dev/groups"  # JSON list
SOURCE_ANNOTATION = "moorage.dev/source"  # OIDC or LOCAL
DISABLED_ANNOTATION = "moorage.dev/disabled"  # any text: the person is out
OIDC, LOCAL = "oidc", "local"
GROUP_PREFIX = f"{GROUP}:"  # before a person's groups, so that none can be mistaken for one of Kubernetes' own

_PREFIX = f"system:serviceaccount:{PEOPLE_NAMESPACE}:"
_UNSAFE = re.compile(r"[^a-z0-9]+")


def account_name(person: str) -> str:
    """Name of a person's ServiceAccount: readable, at most 63 characters, and no two people share one.

    Raises ValueError for an empty name.
    """
    if not person:
        raise ValueError("a person's name is empty; it has at least one character")
    digest = hashlib.sha256(person.encode()).hexdigest()[:10]
    return f"{_UNSAFE.sub('-', person.lower()).strip('-')[:48].strip('-') or 'x'}-{digest}"


def account_user(person: str) -> str:
    """How the API server names that ServiceAccount, as a user."""
    return f"{_PREFIX}{account_name(person)}"


def account_groups() -> tuple[str, ...]:
    """The groups that the API server gives to such a user."""
    return ("system:serviceaccounts", f"system:serviceaccounts:{PEOPLE_NAMESPACE}", "system:authenticated")


def person_of(username: str, accounts: Iterable[Obj]) -> str:
    """The person behind a Kubernetes user name; the user name itself where it is nobody's account.

    `accounts` are the ServiceAccounts of PEOPLE_NAMESPACE.
    """
    if not username.startswith(_PREFIX):
        return username
    name = username.removeprefix(_PREFIX)
    for one in accounts:
        if one["metadata"]["name"] == name:
            return annotations_of(one).get(USER_ANNOTATION) or username
    return username


def is_account(username: str) -> bool:
    return username.startswith(_PREFIX)


def subjects_of(person: str) -> list[Mapping[str, str]]:
    """Whom to bind a role to, so that it is this person's: the ServiceAccount, and the user of that name."""
    return [
        {"kind": "ServiceAccount", "name": account_name(person), "namespace": PEOPLE_NAMESPACE},
        {"kind": "User", "name": person, "apiGroup": "rbac.authorization.k8s.io"},
    ]
