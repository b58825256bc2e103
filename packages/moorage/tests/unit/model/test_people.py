"""Names of people, and of their accounts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.model.names import is_dns_label
from moorage.model.people import (
    GROUPS_ANNOTATION,
    account_in,
    account_name,
    account_user,
    check_person,
    groups_in,
    make_account,
    person_of,
)


@given(st.text(min_size=1), st.text(min_size=1))
def test_every_name_has_an_account_of_its_own_that_kubernetes_takes(one: str, other: str) -> None:
    assert is_dns_label(account_name(one))
    assert account_in(account_user(one)) == account_name(one)
    assert (account_name(one) == account_name(other)) == (one == other)


@pytest.mark.parametrize(
    "name", ["", "system:masters", "system:serviceaccount:lab:x", "page", " ada", "ada\n", "a\x00b", "x" * 254]
)
def test_names_that_nobody_may_bear_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="person"):
        check_person(name)


@pytest.mark.parametrize("name", ["ada@example.org", "Ada Lovelace", "ада", "o'neil", "x" * 253, "DOMAIN\\ada"])
def test_names_that_directories_use_are_taken(name: str) -> None:
    account = make_account(name, ["b", "a", "a"], "oidc")
    assert person_of(account_user(name), [account]) == name
    assert groups_in(account) == ("a", "b")


@pytest.mark.parametrize("text", ["", "{}", "[1]", "no json", '"ops"'])
def test_groups_that_cannot_be_read_are_none(text: str) -> None:
    account = make_account("ada", [], "local")
    account["metadata"]["annotations"][GROUPS_ANNOTATION] = text
    assert groups_in(account) == ()


def test_an_account_cannot_pass_for_one_of_kubernetes_own_users() -> None:
    account = make_account("ada", [], "local")
    account["metadata"]["annotations"]["moorage.dev/user"] = "system:kube-controller-manager"
    assert person_of(account_user("ada"), [account]) == account_user("ada")
