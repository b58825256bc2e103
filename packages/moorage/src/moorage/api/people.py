"""API types of user accounts and the audit log: `/api/v1/users`, `/api/v1/audit`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from moorage.api.fields import Answer, Query, Request, Time, about

AUDIT_PAGE = 500  # entries in one answer

PersonName = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Password = Annotated[str, msgspec.Meta(max_length=1024)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Groups = list[Annotated[str, msgspec.Meta(min_length=1, max_length=256)]]


class NewAccount(Request):
    """A local account to create."""

    name: Annotated[PersonName, about("Name that the person logs in with.")]
    password: Annotated[Password, about("First password.")]
    groups: Annotated[Groups, about("Groups of the person; RoleBindings can name them.")] = []


class AccountChange(Request):
    """A change of an account. Fields that are left out stay unchanged."""

    password: Annotated[Password | None, about("New password; sessions of the person end.")] = None
    groups: Annotated[Groups | None, about("All groups of the person, in place of the present ones.")] = None
    disabled: Annotated[bool | None, about("true: no login, and all sessions end; false: enabled again.")] = None
    reason: Annotated[
        str, msgspec.Meta(max_length=500), about("Why the account is disabled, shown to administrators.")
    ] = ""


class Account(Answer, frozen=True):
    """A person's account."""

    name: str
    account: Annotated[str, about("ServiceAccount that the person acts as.")]
    source: Annotated[str, about("Where the person logs in: oidc (the identity provider) or local.")] = ""
    groups: Annotated[tuple[str, ...], about("Groups of the person.")] = ()
    disabled: Annotated[bool, about("Whether the person cannot log in.")] = False
    reason: Annotated[str, about("Why the account is disabled; empty: not given.")] = ""
    created: Annotated[Time | None, about("When the account was created.")] = None


class AccountList(Answer, frozen=True):
    users: tuple[Account, ...] = ()


class AuditQuery(Query):
    """Filters for entries of the audit log."""

    user: Annotated[str | None, about("Only entries of this user.")] = None
    action: Annotated[
        str,
        msgspec.Meta(max_length=200),
        about("Only entries with this text in action or path."),
    ] = ""
    namespace: Annotated[
        str,
        msgspec.Meta(max_length=63),
        about("Only entries of objects in this namespace."),
    ] = ""
    since: Annotated[
        str | None, about("Only entries from this moment on: a span before now (24h, 7d), a day or RFC 3339.")
    ] = None
    before: Annotated[Count, about("The `next` of the previous page; 0: the newest entries.")] = 0
    limit: Annotated[Count, about("Entries per page, 1 to 500.")] = 100


class AuditEntry(Answer, frozen=True):
    """A change, or an attempted change."""

    number: Annotated[int, about("Number of the entry; newer entries have higher numbers.")]
    at: Annotated[str, about("When the request came, RFC 3339 with microseconds.")]
    person: Annotated[str, about("Name of the person; empty: not known.")]
    method: Annotated[
        str, about("HTTP method of the request; for the Kubernetes API: create, update, delete or connect.")
    ]
    path: Annotated[str, about("Path of the request; for the Kubernetes API: path of the object.")]
    what: Annotated[str, about("Action, such as start run team/train; empty: see the path.")]
    address: Annotated[str, about("IP address that the request came from; empty: not known.")]
    status: Annotated[int, about("HTTP status of the answer; 0: no single request.")]
    client: Annotated[
        str, about("Program that sent it to the Kubernetes API, as it names itself; empty: not known.")
    ] = ""


class AuditPage(Answer, frozen=True):
    """A page of the audit log."""

    entries: Annotated[tuple[AuditEntry, ...], about("Entries, newest first.")] = ()
    next: Annotated[int | None, about("Send it as `before` for the next page; null: this is the last page.")] = (
        None
    )
