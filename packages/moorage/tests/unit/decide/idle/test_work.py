"""Which work there is, read again and again while it changes."""

from __future__ import annotations

import random

from moorage.decide.idle.work import HeldWork
from moorage_kube.testing.builders import a_container_status
from moorage_kube.testing.clock import NOON
from moorage_testing.builders import a_run_job, a_run_pod, a_tenant, keyed

NAMES = ("a", "b")
SEED = 20261127


def a_job(name, *, suspended=False, deleting=False, record=""):
    made = {"uid": f"job-{name}", "annotations": keyed(idle=record), "deleting": deleting and NOON}
    return a_run_job(name, None, suspend=suspended, **made)


def a_pod(name, *, gpus="1", phase="Running"):
    statuses = [a_container_status(started=NOON)]
    return a_run_pod(name, run=name, uid=f"pod-{name}", node="n1", gpus=gpus, phase=phase, statuses=statuses)


def a_change(rng):
    """An object that is there from now on."""
    name = rng.choice(NAMES)
    return rng.choice(
        [
            a_job(name, suspended=rng.random() < 0.5, deleting=rng.random() < 0.2, record=rng.choice(["", "{}"])),
            a_pod(name, gpus=rng.choice(["0", "2", "many"]), phase=rng.choice(["Running", "Failed"])),
            a_tenant(rng.choice("xy"), "lab"),
        ]
    )


def test_work_that_was_read_before_is_as_if_read_for_the_first_time():
    rng, works, known = random.Random(SEED), HeldWork(), {}
    for _ in range(500):
        obj = a_change(rng)
        known[obj["metadata"]["uid"]] = obj
        if rng.random() < 0.3:
            del known[rng.choice(list(known))]
        pods, jobs, tenants = (
            [obj for uid, obj in known.items() if uid.startswith(kind)] for kind in ("pod", "job", "tenant")
        )
        assert works.of(pods, jobs, [], [], [], tenants) == HeldWork().of(pods, jobs, [], [], [], tenants)


def test_only_work_whose_objects_changed_is_read_anew():
    works, same, changed = HeldWork(), (a_job("a"), a_pod("a")), a_job("b")
    before = works.of([same[1], a_pod("b")], [same[0], changed], [], [], [])
    after = works.of([same[1], a_pod("b", gpus="4")], [same[0], changed], [], [], [])
    assert [held.work.gpus for held in after] == [1, 4]
    assert after[0] is before[0]
    assert works.of([same[1]], [same[0]], [], [], []) == [before[0]]
