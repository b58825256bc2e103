"""Accounts made, kept and ended; over a fake API."""

from __future__ import annotations

from typing import Any

import pytest

from moorage.actions import people
from moorage.api.people import AccountChange, NewAccount
from moorage.model.people import (
    LOCAL,
    OIDC,
    PEOPLE_NAMESPACE,
    TOKENS_LABEL,
    USER_LABEL,
    account_name,
    groups_in,
    is_disabled,
    tokens_secret,
)
from moorage_kube.errors import AlreadyExists, Conflict, Forbidden, NotFound, NotReady, UsageError
from moorage_kube.resources import SECRETS, SERVICEACCOUNTS, Obj, Resource
from moorage_kube.testing.builders import an_object
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio


async def test_an_account_is_made_once_and_its_groups_follow_the_login() -> None:
    api = FakeApi()
    _, new = await people.ensure_account(api, "ada@example.org", ["ops"], OIDC, subject="https://idp 1")
    account, again = await people.ensure_account(
        api, "ada@example.org", ["dev", "ops"], OIDC, subject="https://idp 1"
    )
    assert (new, again) == (True, False)
    assert groups_in(account) == ("dev", "ops")


async def test_a_name_of_another_user_at_the_provider_is_refused() -> None:
    api = FakeApi()
    await people.ensure_account(api, "ada@example.org", [], OIDC, subject="https://idp 1")
    with pytest.raises(people.NotYours, match="a different user"):
        await people.ensure_account(api, "ada@example.org", [], OIDC, subject="https://idp 2")


async def test_local_accounts_and_those_of_a_provider_are_never_exchanged() -> None:
    api = FakeApi()
    await people.ensure_account(api, "ada", [], LOCAL)
    with pytest.raises(people.NotYours, match="another kind"):
        await people.ensure_account(api, "ada", [], OIDC, subject="https://idp 1")
    await people.ensure_account(api, "grace", [], OIDC, subject="https://idp 1")
    with pytest.raises(people.NotYours):
        await people.ensure_account(api, "grace", [], LOCAL)


async def test_a_name_of_kubernetes_is_refused() -> None:
    with pytest.raises(UsageError):
        await people.ensure_account(FakeApi(), "system:admin", [], OIDC)


async def test_passwords_are_kept_as_hashes_and_checked() -> None:
    api = FakeApi()
    await people.create_account(api, "ada", [], LOCAL)
    await people.set_password(api, "ada", "correct horse")
    first = await people.password_hash(api, "ada")
    await people.set_password(api, "ada", "battery staple")
    stored = await people.password_hash(api, "ada")
    assert "battery" not in stored
    assert first != stored
    assert people.is_password("battery staple", stored)
    assert not people.is_password("correct horse", stored)
    assert await people.password_hash(api, "nobody") == ""


@pytest.mark.parametrize("password", ["short", "x" * 1025])
async def test_a_password_has_a_length(password: str) -> None:
    with pytest.raises(UsageError):
        await people.set_password(FakeApi(), "ada", password)


@pytest.mark.parametrize("stored", ["", "scrypt$1$2", f"scrypt${2**30}$8$1$AA==$AA==", "md5$1$1$1$AA==$AA=="])
def test_an_odd_hash_fits_no_password(stored: str) -> None:
    assert not people.is_password("anything at all", stored)


async def test_disabling_deletes_tokens_and_deleting_removes_all() -> None:
    api = FakeApi()
    await people.create_account(api, "ada", [], LOCAL)
    await people.set_password(api, "ada", "correct horse")
    name = account_name("ada")
    labels = {USER_LABEL: "ada", TOKENS_LABEL: "s1"}
    api.put(SECRETS, an_object(SECRETS, tokens_secret(name, "s1"), namespace=PEOPLE_NAMESPACE, labels=labels))
    await people.disable(api, "ada", "left")
    assert is_disabled(await api.get(SERVICEACCOUNTS, name, PEOPLE_NAMESPACE))
    with pytest.raises(NotFound):
        await api.get(SECRETS, tokens_secret(name, "s1"), PEOPLE_NAMESPACE)
    await people.enable(api, "ada")
    assert not is_disabled(await api.get(SERVICEACCOUNTS, name, PEOPLE_NAMESPACE))
    await people.delete_account(api, "ada")
    assert await people.find_account(api, "ada") is None
    assert await people.password_hash(api, "ada") == ""


# --- what an administrator does


async def test_no_account_is_left_behind_by_a_password_that_is_refused():
    api = FakeApi()
    with pytest.raises(UsageError) as caught:
        await people.create_local_account(api, NewAccount(name="ada", password="short"))
    assert (caught.value.code, caught.value.field) == ("invalid", "password")
    assert await people.list_accounts(api) == []


async def test_a_name_is_given_once():
    api = FakeApi()
    request = NewAccount(name="ada", password="long enough", groups=["ml"])
    assert (await people.create_local_account(api, request)).groups == ("ml",)
    with pytest.raises(AlreadyExists) as caught:
        await people.create_local_account(api, request)
    assert (caught.value.code, caught.value.field) == ("exists", "name")


async def test_an_account_of_the_provider_gets_no_password():
    api = FakeApi()
    await people.create_account(api, "ada", [], "oidc")
    with pytest.raises(Conflict) as caught:
        await people.change_account(api, "ada", AccountChange(password="long enough"))
    assert caught.value.code == "no_password"


async def test_a_disabled_account_says_why_until_it_is_enabled():
    api = FakeApi()
    await people.create_account(api, "ada", [], "local")
    account = await people.change_account(api, "ada", AccountChange(disabled=True, reason="left"))
    assert (account.disabled, account.reason) == (True, "left")
    account = await people.change_account(api, "ada", AccountChange(disabled=False))
    assert (account.disabled, account.reason) == (False, "")


@pytest.mark.parametrize(
    "act", [people.forget_account, lambda api, name: people.change_account(api, name, AccountChange())]
)
async def test_an_account_that_is_missing_is_named(act):
    with pytest.raises(NotFound, match="account 'ada' not found"):
        await act(FakeApi(), "ada")


class NoSecrets(FakeApi):
    """Refuses to store secrets."""

    async def create(
        self, resource: Resource, obj: Obj, namespace: str | None = None, *, dry_run: bool = False
    ) -> Obj:
        if resource == SECRETS:
            raise Forbidden("secrets is forbidden")
        return await super().create(resource, obj, namespace, dry_run=dry_run)


async def test_an_account_whose_password_is_not_stored_is_not_created() -> None:
    api = NoSecrets()
    with pytest.raises(Forbidden):
        await people.create_local_account(api, NewAccount(name="ada", password="correct horse"))
    assert await people.find_account(api, "ada") is None


class NothingDeleted(NoSecrets):
    """As a server that goes away after the account is created."""

    async def delete(self, *given: Any, **options: Any) -> None:
        raise NotReady("the connection is lost")


async def test_an_account_that_stays_without_a_password_is_reported_with_a_hint() -> None:
    with pytest.raises(NotReady, match="is created, but its password is not stored") as refused:
        await people.create_local_account(NothingDeleted(), NewAccount(name="ada", password="correct horse"))
    assert refused.value.hint == "delete the account, then create it again: moor user delete ada"
