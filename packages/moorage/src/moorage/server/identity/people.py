"""The people of this cluster, as the server knows them: their accounts, always current."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from moorage.actions.people import ensure_account
from moorage.model.people import GROUP_PREFIX, PEOPLE_NAMESPACE, account_in, account_name, groups_in, person_in
from moorage_kube.api import Api
from moorage_kube.errors import NotFound
from moorage_kube.informers import Informers
from moorage_kube.resources import SERVICEACCOUNTS, Obj

log = logging.getLogger(__name__)

Changed = Callable[[str, Obj | None], None]
"""Hears of an account that was changed or deleted (None): the person's name, and the account."""


class People:
    """Accounts by name. `run` follows them; before the first list, each request reads the account from the API."""

    def __init__(self, api: Api, *, informers: Informers | None = None) -> None:
        shared = informers or Informers()
        self._api = api
        self._accounts = shared.of(api, SERVICEACCOUNTS, PEOPLE_NAMESPACE)

    async def run(self) -> None:
        await self._accounts.run()

    def on_change(self, handler: Changed) -> None:
        def changed(before: Obj | None, after: Obj | None) -> None:
            if before is not None and (person := person_in(before)):
                handler(person, after)

        self._accounts.on_change(changed)

    async def account(self, person: str) -> Obj | None:
        """A person's account; None if there is none. Raises ApiError if it cannot be read."""
        return await self._account(account_name(person))

    async def behind(self, username: str) -> Obj | None:
        """The account of a Kubernetes user name; None if it is not one of ours, or was deleted."""
        name = account_in(username)
        return await self._account(name) if name else None

    async def ensure(self, person: str, groups: Sequence[str], source: str, *, subject: str = "") -> Obj:
        """See `moorage.actions.people.ensure_account`."""
        account, is_new = await ensure_account(self._api, person, groups, source, subject=subject)
        if is_new:
            log.info("a person came for the first time", extra={"person": person, "source": source})
        return account

    def all(self) -> list[Obj]:
        return [account for account in self._accounts.all() if person_in(account)]

    async def _account(self, name: str) -> Obj | None:
        if (known := self._accounts.get(name, PEOPLE_NAMESPACE)) is not None:
            return known
        try:  # it may be newer than our copy
            return await self._api.get(SERVICEACCOUNTS, name, PEOPLE_NAMESPACE)
        except NotFound:
            return None


def groups_of(account: Obj) -> tuple[str, ...]:
    """The groups of an account, with Moorage's prefix."""
    return tuple(GROUP_PREFIX + group for group in groups_in(account))
