"""Accounts of people, and the audit log, on the wire: `/api/v1/users`, `/api/v1/audit`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from moorage.api.fields import Answer, Query, Request

AUDIT_PAGE = 500  # entries in one answer

PersonName = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Password = Annotated[str, msgspec.Meta(max_length=1024)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Groups = list[Annotated[str, msgspec.Meta(min_length=1, max_length=256)]]


class NewAccount(Request):
    """A local account to create."""

    name: PersonName
    password: Password
    groups: Groups = []


class AccountChange(Request):
    """What is left out stays as it is. `reason`: why the account is disabled."""

    password: Password | None = None
    groups: Groups | None = None
    disabled: bool | None = None
    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""


class Account(Answer, frozen=True):
    """A person's account. `source`: where the person logs in; `account`: its ServiceAccount."""

    name: str
    account: str
    source: str = ""
    groups: tuple[str, ...] = ()
    disabled: bool = False
    reason: str = ""
    created: datetime | None = None


class AccountList(Answer, frozen=True):
    users: tuple[Account, ...] = ()


class AuditQuery(Query):
    """Entries of `person` from `since` on. `before`: the `next` of another page; `limit`: at most AUDIT_PAGE."""

    person: str | None = None
    since: str | None = None
    before: Count = 0
    limit: Count = 100


class AuditEntry(Answer, frozen=True):
    """A change, or a try at one. `at`: RFC 3339 with microseconds; `status`: of the answer."""

    number: int
    at: str
    person: str
    method: str
    path: str
    what: str
    address: str
    status: int


class AuditPage(Answer, frozen=True):
    """`next`: the `before` of the page that follows; None at the end."""

    entries: tuple[AuditEntry, ...] = ()
    next: int | None = None
