"""Refusals by RBAC, as sentences."""

from __future__ import annotations

import pytest

from moorage.model.tenant import Membership
from moorage.present.forbidden import Refusal, plain, refusal_of, way_out

ACCOUNT = "system:serviceaccount:moorage-users:ada-1"
VIEWER = Membership(tenant="vision", namespace="vision", role="viewer", admins=("linus",))
MEMBER = Membership(tenant="vision", namespace="vision", role="member", admins=("linus",))


def refusal(verb: str, resource: str, *, namespace: str = "", name: str = "") -> str:
    subject = f'{resource} "{name}"' if name else resource
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    refused = f'User "{ACCOUNT}" cannot {verb} resource "{resource}" in API group "batch" {where}'
    return f"{subject} is forbidden: {refused}"


def read_refusal(message: str) -> Refusal:
    read = refusal_of(message)
    assert read is not None
    return read


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        pytest.param(refusal("list", "jobs", namespace="a"), "ada may not list runs in namespace a", id="a list"),
        pytest.param(refusal("list", "jobs"), "ada may not list runs in all namespaces", id="of all namespaces"),
        pytest.param(refusal("get", "nodes", name="n-1"), "ada may not read node n-1", id="one object"),
        pytest.param(
            refusal("patch", "persistentvolumeclaims", namespace="a", name="data"),
            "ada may not change volume data in namespace a",
            id="a change",
        ),
        pytest.param(
            refusal("create", "pods/exec", namespace="a", name="p"),
            "ada may not create commands in pods of p in namespace a",
            id="a subresource",
        ),
        pytest.param(
            refusal("list", "serviceaccounts", namespace="moorage-users"),
            "ada may not list user accounts",
            id="people",
        ),
    ],
)
def test_a_refusal_is_a_sentence(message: str, sentence: str) -> None:
    read = read_refusal(message)
    assert read.sentence("ada") == sentence
    assert plain(message) == sentence.replace("ada may", "you may", 1)


@pytest.mark.parametrize(
    ("message", "command", "sentence"),
    [
        pytest.param(
            refusal("list", "jobs", namespace="a"), "run", "ada may not start runs in namespace a", id="moor run"
        ),
        pytest.param(
            refusal("list", "pods"), "jobs", "ada may not list runs in all namespaces", id="moor jobs -A"
        ),
        pytest.param(refusal("get", "nodes", name="n-1"), "drain", "ada may not drain nodes", id="moor drain"),
        pytest.param(
            refusal("create", "secrets", namespace="a"),
            "run",
            "ada may not create secrets in namespace a",
            id="what the command is not about",
        ),
    ],
)
def test_a_refusal_names_the_typed_action(message: str, command: str, sentence: str) -> None:
    read = read_refusal(message)
    assert read.sentence("ada", command=command) == sentence


def test_only_administrators_may_drain() -> None:
    read = read_refusal(refusal("get", "nodes", name="n"))
    hint = "only administrators of the cluster may drain nodes: ask one of them"
    assert way_out(read, "ada", [MEMBER], command="drain") == hint


def test_a_refusal_by_admission_stays_as_it_is() -> None:
    message = 'pods "a" is forbidden: violates PodSecurity "baseline:latest": privileged'
    assert refusal_of(message) is None
    assert plain(message) == message


@pytest.mark.parametrize(
    ("message", "teams", "hint"),
    [
        pytest.param(
            refusal("create", "jobs", namespace="vision"),
            [VIEWER],
            "your role in team vision is viewer; as a member you may. An admin of the team (linus)"
            " makes you one: moor tenant add vision --user ada --role member",
            id="a viewer who would work",
        ),
        pytest.param(
            refusal("create", "reservations", namespace="vision"),
            [MEMBER],
            "your role in team vision is member; ask an administrator of team vision (linus),"
            " or one of the cluster",
            id="a member who would rule",
        ),
        pytest.param(
            refusal("list", "jobs", namespace="speech"),
            [MEMBER],
            "you work in vision: give -n vision, or for all commands: moor kubeconfig --save -n vision."
            " An administrator of the cluster grants rights in speech",
            id="another team's namespace",
        ),
        pytest.param(
            refusal("list", "jobs", namespace="default"),
            [],
            "you are in no team yet: ask an admin of a team, or of the cluster, for"
            " `moor tenant add TEAM --user ada`, then run `moor kubeconfig --save`",
            id="no team",
        ),
        pytest.param(
            refusal("get", "nodes", name="n"),
            [MEMBER],
            "this is for administrators of the cluster: ask one of them",
            id="what lives in no namespace",
        ),
        pytest.param(
            refusal("list", "jobs"),
            [MEMBER],
            "only administrators of the cluster may: leave out -A; you work in vision",
            id="all namespaces",
        ),
    ],
)
def test_the_hint_names_the_users_who_can_help(message: str, teams: list[Membership], hint: str) -> None:
    read = read_refusal(message)
    assert way_out(read, "ada", teams) == hint
