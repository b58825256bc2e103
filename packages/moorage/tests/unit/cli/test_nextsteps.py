"""What an administrator reads after an account or a team was created."""

from __future__ import annotations

import io

import pytest

from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE
from moorage.model.people import LOCAL, PEOPLE_NAMESPACE, make_account
from moorage.model.tenant import TENANTS
from moorage_kube.resources import CONFIGMAPS, SERVICEACCOUNTS
from moorage_kube.testing.builders import an_object
from moorage_testing.builders import a_tenant

URL = "https://moorage.example.com"


def put_address(moor, **data):
    moor.api.put(CONFIGMAPS, an_object(CONFIGMAPS, INFO_CONFIGMAP, namespace=SYSTEM_NAMESPACE, data=data))


@pytest.mark.parametrize(
    ("data", "address"),
    [
        ({"publicUrl": URL, "serverUrl": "http://moorage-server.moorage-system.svc"}, URL),
        ({"serverUrl": "http://127.0.0.1:8080"}, "http://127.0.0.1:8080"),
        ({"serverUrl": "http://moorage-server.moorage-system.svc"}, "https://HOST"),
    ],
)
def test_a_new_account_comes_with_the_address_for_its_login(moor, monkeypatch, data, address):
    put_address(moor, **data)
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse battery\n"))
    done = moor("user", "create", "ada", "--password-stdin")
    assert done.code == 0
    assert done.err.splitlines() == [
        "account ada created",
        "put ada in a team: moor tenant add TEAM --user ada",
        f"ada logs in: moor login {address} --username ada; in a browser: {address}",
    ]


def test_a_member_of_a_team_gets_no_hint_about_teams(moor, monkeypatch):
    put_address(moor, publicUrl=URL)
    moor.api.put(TENANTS, a_tenant("vision", members={"groups": ["ml"]}))
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse battery\n"))
    done = moor("user", "create", "ada", "--group", "ml", "--password-stdin")
    assert done.err.splitlines()[1:] == [f"ada logs in: moor login {URL} --username ada; in a browser: {URL}"]


def test_a_team_without_people_says_how_to_add_them(moor):
    put_address(moor, publicUrl=URL)
    done = moor("tenant", "create", "vision")
    assert done.code == 0
    assert done.err.splitlines() == [
        "tenant vision created; its namespace is vision",
        "add a member: moor user create NAME, then: moor tenant add vision --user NAME",
        f"its people log in: moor login {URL}",
    ]


def test_a_new_team_names_the_members_without_an_account(moor):
    put_address(moor, publicUrl=URL)
    moor.api.put(SERVICEACCOUNTS, make_account("ada", (), LOCAL), PEOPLE_NAMESPACE)
    done = moor("tenant", "create", "vision", "--admin", "ada", "--member", "alan")
    assert done.err.splitlines()[1:] == [
        "alan has no account yet: moor user create alan (not needed with a login provider)",
        f"its people log in: moor login {URL}",
    ]
