"""Owners and dependents, left-over pods, old events, disruption budgets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from moorage_kube.clock import rfc3339
from moorage_kube.resources import PODS
from moorage_kube.testing import builders
from moorage_local.controllers import disruption
from moorage_local.controllers.catalogue import KNOWN, Catalogue, resource_of_crd
from moorage_local.controllers.garbage import leftovers, owners
from moorage_local.controllers.garbage.leftovers import Remove, expired
from moorage_local.controllers.garbage.owners import (
    FOREGROUND,
    ORPHAN,
    Delete,
    DropOwners,
    OrphanDependents,
    Owner,
    RemoveFinalizer,
    Unblock,
    Visit,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def an_object(name="x", *, refs=(), blocks=True, **more):
    owners = {"ownerReferences": [{"uid": uid, "blockOwnerDeletion": blocks} for uid in refs]}
    return builders.an_object(PODS, name, namespace="", uid=name, metadata=owners, **more)


SOLID, ABSENT, WAITING = Owner.SOLID, Owner.ABSENT, Owner.WAITING
CHILD = an_object("child", refs=["x"])
LOOSE = an_object("loose", refs=["x"], blocks=False)
LEAVING = an_object("leaving", refs=["x"], deleting=True)
CIRCLE = an_object("circle", refs=["x"], deleting=True, finalizers=[FOREGROUND])


@pytest.mark.parametrize(
    ("obj", "states", "dependents", "want"),
    [
        pytest.param(an_object(), {}, (), (), id="owned by nobody"),
        pytest.param(an_object(refs="a"), {"a": SOLID}, (), (), id="its owner is there"),
        pytest.param(an_object(refs="a"), {}, (), (), id="unknown is not absent"),
        pytest.param(an_object(refs="a"), {"a": ABSENT}, (), (Delete("Background"),), id="owner gone"),
        pytest.param(
            an_object(refs="ab"), {"a": ABSENT, "b": SOLID}, (), (DropOwners(frozenset("a")),), id="one left"
        ),
        pytest.param(
            an_object(refs="ab"), {"a": ABSENT, "b": ABSENT}, (), (Delete("Background"),), id="both gone"
        ),
        pytest.param(
            an_object(refs="a", finalizers=[ORPHAN]), {"a": ABSENT}, (), (Delete("Orphan"),), id="orphan"
        ),
        pytest.param(
            an_object(refs="a", finalizers=[FOREGROUND]),
            {"a": ABSENT},
            (),
            (Delete("Foreground"),),
            id="foreground",
        ),
        pytest.param(an_object(refs="a"), {"a": WAITING}, (), (Delete("Background"),), id="owner waits for it"),
        pytest.param(
            an_object(refs="a"), {"a": WAITING}, (CHILD,), (Delete("Foreground"),), id="owner waits, deep"
        ),
        pytest.param(
            an_object(refs="a"),
            {"a": WAITING},
            (CIRCLE,),
            (Unblock(), Delete("Foreground")),
            id="a circle is opened",
        ),
        pytest.param(an_object(refs="a", deleting=True), {"a": ABSENT}, (), (), id="going already"),
        pytest.param(
            an_object(deleting=True, finalizers=[FOREGROUND]),
            {},
            (),
            (RemoveFinalizer(FOREGROUND),),
            id="last one",
        ),
        pytest.param(
            an_object(deleting=True, finalizers=[FOREGROUND]),
            {},
            (LOOSE,),
            (RemoveFinalizer(FOREGROUND),),
            id="does not block",
        ),
        pytest.param(
            an_object(deleting=True, finalizers=[FOREGROUND]),
            {},
            (CHILD, LEAVING),
            (Visit((CHILD,)),),
            id="waits for those that block",
        ),
        pytest.param(
            an_object(deleting=True, finalizers=[ORPHAN]),
            {},
            (CHILD,),
            (OrphanDependents((CHILD,)), RemoveFinalizer(ORPHAN)),
            id="its dependents are let go first",
        ),
    ],
)
def test_what_happens_for_the_owners_sake(obj, states, dependents, want):
    assert owners.plan(owners.Observed(obj=obj, owners=states, dependents=dependents)) == want


def a_pod(name, phase="Running", *, node="n1", deleting=False, age=0, grace=30, **more):
    more["metadata"] = {"deletionGracePeriodSeconds": grace} if deleting else {}
    more["created"] = NOON - timedelta(seconds=age)
    return builders.a_pod(name, uid=name, phase=phase, node=node, deleting=deleting, **more)


@pytest.mark.parametrize(
    ("pods", "limit", "want"),
    [
        pytest.param([a_pod("a")], 9, {}, id="its node is there"),
        pytest.param([a_pod("a", node="gone")], 9, {"a": "PodGC: node no longer exists"}, id="its node is gone"),
        pytest.param([a_pod("a", node="", deleting=True)], 9, {"a": ""}, id="deleted before it had a node"),
        pytest.param(
            [a_pod("a", node="", deleting=True, grace=0, finalizers=["f"])],
            9,
            {},
            id="forced already: held by others",
        ),
        pytest.param([a_pod("a", node="")], 9, {}, id="waiting for a node"),
        pytest.param(
            [a_pod("a", "Failed", age=1), a_pod("b", "Succeeded", age=3), a_pod("c", "Failed", age=2)],
            1,
            {"b": "", "c": ""},
            id="the oldest finished ones beyond the limit",
        ),
    ],
)
def test_which_pods_are_left_over(pods, limit, want):
    actions = leftovers.plan(leftovers.Observed(pods=pods, nodes={"n1"}, finished_max=limit))
    assert {action.pod["metadata"]["name"]: action.message for action in actions} == want
    assert all(isinstance(action, Remove) for action in actions)


@pytest.mark.parametrize(
    ("event", "want"),
    [
        ({"lastTimestamp": rfc3339(NOON - timedelta(minutes=59))}, False),
        ({"lastTimestamp": rfc3339(NOON - timedelta(minutes=61))}, True),
        ({"eventTime": rfc3339(NOON - timedelta(hours=2))}, True),
        ({"eventTime": rfc3339(NOON - timedelta(hours=2)), "series": {"lastObservedTime": rfc3339(NOON)}}, False),
        ({}, False),
    ],
)
def test_an_event_lives_an_hour_after_it_was_last_seen(event, want):
    assert expired({"metadata": {"name": "e"}} | event, NOON) is want


def a_budget(status=None, **spec):
    return {"metadata": {"name": "b", "generation": 2}, "spec": spec, "status": status or {}}


def ready(name, *, is_ready=True, deleting=False):
    pod = a_pod(name, deleting=deleting)
    pod["status"]["conditions"] = [{"type": "Ready", "status": "True" if is_ready else "False"}]
    return pod


THREE = [ready("a"), ready("b"), ready("c", is_ready=False)]


@pytest.mark.parametrize(
    ("spec", "scale", "want"),
    [
        ({"minAvailable": 1}, None, (1, 2, 1, 3)),
        ({"minAvailable": 3}, None, (0, 2, 3, 3)),
        ({"minAvailable": "50%"}, 4, (0, 2, 2, 4)),
        ({"maxUnavailable": 2}, 3, (1, 2, 1, 3)),
        ({"maxUnavailable": "34%"}, 3, (1, 2, 1, 3)),
        ({"maxUnavailable": 9}, 3, (2, 2, 0, 3)),
        ({}, None, (1, 2, 1, 3)),
    ],
)
def test_how_many_pods_may_go(spec, scale, want):
    status, again = disruption.plan(disruption.Observed(pdb=a_budget(**spec), pods=THREE, scale=scale, now=NOON))
    names = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")
    assert tuple(status[name] for name in names) == want
    assert again is None
    reason = status["conditions"][0]["reason"]
    assert reason == ("SufficientPods" if want[0] else "InsufficientPods")


def test_pods_without_a_known_controller_allow_nothing_where_the_number_matters():
    seen = disruption.Observed(pdb=a_budget(maxUnavailable=1), pods=THREE, scale=None, now=NOON)
    status, _ = disruption.plan(seen)
    assert status["disruptionsAllowed"] == 0
    assert status["conditions"][0]["reason"] == "SyncFailed"


def test_a_granted_eviction_counts_until_it_is_seen_or_two_minutes_are_over():
    since = {
        "a": rfc3339(NOON - timedelta(seconds=30)),
        "b": rfc3339(NOON - timedelta(seconds=130)),
        "z": rfc3339(NOON),
    }
    budget = a_budget({"disruptedPods": since}, minAvailable=1)
    status, again = disruption.plan(disruption.Observed(pdb=budget, pods=THREE, scale=None, now=NOON))
    assert status["disruptedPods"] == {"a": since["a"]}
    assert status["disruptionsAllowed"] == 0
    assert again == timedelta(seconds=90)


def test_collections_are_found_by_group_and_kind_whatever_the_version():
    catalogue = Catalogue()
    assert str(catalogue.of("batch/v1beta1", "Job")) == "jobs.batch"
    assert catalogue.of("v1", "Pod").plural == "pods"
    assert catalogue.of("v1", "Job") is None
    assert len({(resource.group, resource.plural) for resource in KNOWN}) == len(KNOWN)


def test_a_definition_counts_once_it_is_established():
    crd = {
        "spec": {
            "group": "sea.test",
            "scope": "Cluster",
            "names": {"plural": "boats", "kind": "Boat"},
            "versions": [{"name": "v1", "served": True}, {"name": "v2", "served": True, "storage": True}],
        }
    }
    assert resource_of_crd(crd) is None
    crd["status"] = {"conditions": [{"type": "Established", "status": "True"}]}
    resource = resource_of_crd(crd)
    assert (resource.api_version, resource.plural, resource.namespaced) == ("sea.test/v2", "boats", False)
