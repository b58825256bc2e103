"""What an administrator reads after an account or a team was created."""

from __future__ import annotations

import io

import pytest

from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE
from moorage.model.people import LOCAL, PEOPLE_NAMESPACE, make_account
from moorage.model.tenant import TENANTS
from moorage_kube.resources import CONFIGMAPS, SERVICEACCOUNTS

URL = "https://moorage.example.com"


def names_address(moor, **data):
    meta = {"name": INFO_CONFIGMAP, "namespace": SYSTEM_NAMESPACE}
    moor.api.put(CONFIGMAPS, {"metadata": meta, "data": data}, SYSTEM_NAMESPACE)


@pytest.mark.parametrize(
    ("data", "address"),
    [
        ({"publicUrl": URL, "serverUrl": "http://moorage-server.moorage-system.svc"}, URL),
        ({"serverUrl": "http://127.0.0.1:8080"}, "http://127.0.0.1:8080"),
        ({"serverUrl": "http://moorage-server.moorage-system.svc"}, "https://HOST"),
    ],
)
def test_a_new_account_says_where_its_person_logs_in(moor, monkeypatch, data, address):
    names_address(moor, **data)
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse battery\n"))
    done = moor("user", "create", "ada", "--password-stdin")
    assert (done.code, done.err.splitlines()) == (
        0,
        [
            "account ada created",
            "put ada in a team: moor tenant add TEAM --user ada",
            f"ada logs in: moor login {address} --username ada; in a browser: {address}",
        ],
    )


def test_who_is_in_a_team_needs_none(moor, monkeypatch):
    names_address(moor, publicUrl=URL)
    tenant = {"metadata": {"name": "vision"}, "spec": {"namespace": "vision", "members": {"groups": ["ml"]}}}
    moor.api.put(TENANTS, tenant)
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse battery\n"))
    done = moor("user", "create", "ada", "--group", "ml", "--password-stdin")
    assert done.err.splitlines()[1:] == [f"ada logs in: moor login {URL} --username ada; in a browser: {URL}"]


def test_a_team_without_people_says_how_to_add_them(moor):
    names_address(moor, publicUrl=URL)
    done = moor("tenant", "create", "vision")
    assert (done.code, done.err.splitlines()) == (
        0,
        [
            "tenant vision created; its namespace is vision",
            "add a member: moor user create NAME, then: moor tenant add vision --user NAME",
            f"its people log in: moor login {URL}",
        ],
    )


def test_a_team_names_who_has_no_account_yet(moor):
    names_address(moor, publicUrl=URL)
    moor.api.put(SERVICEACCOUNTS, make_account("ada", (), LOCAL), PEOPLE_NAMESPACE)
    done = moor("tenant", "create", "vision", "--admin", "ada", "--member", "alan")
    assert done.err.splitlines()[1:] == [
        "alan has no account yet: moor user create alan (not needed with a login provider)",
        f"its people log in: moor login {URL}",
    ]
