"""How many workers a map has, by which Jobs, and when it has failed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.controllers.mapjob.plan import (
    FEW,
    PROBE,
    QUOTA_AGAIN,
    JobSeen,
    Plan,
    PodSeen,
    Seen,
    Step,
    Verb,
    Word,
    plan,
)
from moorage.decide.runs.kueue import QueueWait
from moorage.model.mapjob import parse_mapjob
from moorage_kube.moments import rfc3339
from moorage_kube.testing.clock import NOON

LONG_AGO = rfc3339(NOON - timedelta(hours=1))


def a_map(
    *,
    state: str = "running",
    accepted: bool = True,
    heard: bool = True,
    progress: bool = True,
    workers: dict[str, int] | None = None,
    conditions: tuple[dict[str, Any], ...] = (),
    generation: int = 1,
    items: dict[str, Any] | None = None,
    **spec: Any,
) -> Any:
    queue: dict[str, Any] = {"uid": "q", "url": "http://server", "secret": "s"}
    if heard:
        queue["heardAt"] = LONG_AGO
    if progress:
        queue["progressAt"] = LONG_AGO
    accepting = {"type": "Accepted", "status": "True" if accepted else "False", "lastTransitionTime": LONG_AGO}
    return parse_mapjob(
        {
            "metadata": {"name": "m", "namespace": "lab", "uid": "u", "generation": generation},
            "spec": {
                "parallelism": 100,
                "command": ["true"],
                "template": {"spec": {"containers": [{"image": "i"}]}},
            }
            | spec,
            "status": {
                "state": state,
                "queue": queue,
                "items": {"total": 10_000, "ready": 10_000} | (items or {}),
                "workers": workers or {},
                "conditions": [accepting, *conditions],
            },
        }
    )


def a_job(
    number: int = 1, parallelism: int = 100, *, active: int | None = None, ended: int = 0, **more: Any
) -> JobSeen:
    name = "m" if number == 1 else f"m-r{number}"
    active = parallelism if active is None else active
    return JobSeen(
        round=number,
        name=name,
        uid=f"uid-{name}",
        template=more.pop("template", "t"),
        parallelism=parallelism,
        active=active,
        ready=more.pop("ready", active),
        ended=ended,
        **more,
    )


def a_pod(number: int = 0, **more: Any) -> PodSeen:
    given = {"name": f"m-{number}", "job": "uid-m", "created": NOON - timedelta(minutes=5), "ended": NOON} | more
    return PodSeen(**{"phase": "Failed"} | given)


def seen(view: Any, *jobs: JobSeen, pods: tuple[PodSeen, ...] = (), **more: Any) -> Seen:
    return Seen(map=view, template="t", now=NOON, jobs=jobs, pods=pods, **more)


def held(many: int) -> tuple[PodSeen, ...]:
    """Pods behind Kueue's gate."""
    return tuple(a_pod(at, phase="Pending", held=True, ended=None) for at in range(many))


@pytest.mark.parametrize(
    ("jobs", "pods", "wanted"),
    [
        pytest.param((), (), [("make", 1, 10)], id="a few at first"),
        pytest.param((a_job(1, 20),), (), [("scale", 1, 40)], id="twice as many while Kueue admits all"),
        pytest.param((a_job(1, 30),), held(10), [], id="no more while ten wait"),
        pytest.param((a_job(1, 30),), held(2), [("scale", 1, 38)], id="so that ten wait"),
        pytest.param((a_job(1, 60),), held(60), [], id="what was made stays"),
        pytest.param((a_job(1, 99),), (), [("scale", 1, 100)], id="never more than parallelism"),
    ],
)
def test_workers_in_a_queue_of_kueue_grow_by_what_it_admits(
    jobs: tuple[JobSeen, ...], pods: tuple[PodSeen, ...], wanted: list[tuple[str, int, int]]
) -> None:
    view = replace(a_map(), local_queue="team-a")
    assert told(plan(seen(view, *jobs, pods=pods))) == wanted


def test_a_map_whose_workers_wait_in_a_queue_says_why() -> None:
    queue = QueueWait("team-a", "insufficient quota for cpu")
    decided = plan(seen(a_map(), a_job(1, 30), pods=held(10), queue=queue))
    message = "10 of 30 workers wait in Kueue's queue team-a: insufficient quota for cpu"
    assert decided.working == Word(status=True, reason="Queue", message=message)
    assert decided.look_again_in == QUOTA_AGAIN
    assert not plan(seen(a_map(), a_job(1, 10), pods=held(10))).working.status, "none is admitted"


def test_a_worker_whose_quota_kueue_took_back_is_not_lost() -> None:
    job = a_job(1, 20, active=17, ended=3)
    decided = plan(seen(a_map(workers={"excused": 1}), job, taken_back=2))
    assert (decided.workers.excused, decided.workers.lost) == (3, 0)
    assert told(decided)[0] == ("scale", 1, 17)
    assert plan(seen(a_map(), job, taken_back=9)).workers.lost == 0, "never fewer than none"


def told(decided: Plan) -> list[tuple[str, int, int]]:
    return [(step.verb.value, step.round, step.parallelism) for step in decided.steps]


@pytest.mark.parametrize(
    ("view", "jobs", "more", "wanted", "reason"),
    [
        pytest.param(a_map(), (), {}, [("make", 1, 100)], "Parallelism", id="up at once"),
        pytest.param(a_map(slots=4, items={"ready": 41}), (), {}, [("make", 1, 11)], "Working", id="slots"),
        pytest.param(a_map(items={"atOnce": 7}), (), {}, [("make", 1, 7)], "Working", id="named limits and rate"),
        pytest.param(
            a_map(heard=False, progress=False), (), {}, [("make", 1, PROBE)], "Probing", id="nobody was heard"
        ),
        pytest.param(
            a_map(heard=False, progress=False, preflight={"read": ["/d"]}), (), {}, [("make", 1, 1)], "Probing",
            id="the first tries the preflight",
        ),
        pytest.param(a_map(), (), {"hold": 30}, [("make", 1, 40)], "Nodes", id="what nodes hold and a few"),
        pytest.param(a_map(), (), {"quota": 12}, [("make", 1, 12)], "Quota", id="a quota"),
        pytest.param(a_map(), (), {"quota": 0}, [], "Quota", id="a full quota"),
        pytest.param(a_map(accepted=False), (a_job(),), {}, [("scale", 1, 0)], "NotAccepted", id="not accepted"),
        pytest.param(a_map(items={"total": 0, "ready": 0}), (), {}, [], "NoItems", id="no items"),
        pytest.param(
            a_map(items={"ready": 0}), (a_job(1, 1),), {}, [], "Working", id="one waits for what may still come"
        ),
        pytest.param(
            a_map(items={"ready": 0, "large": 3}), (), {}, [("make", 1, 1)], "NeedsMemory", id="items too large"
        ),
        pytest.param(a_map(state="cancelled"), (a_job(),), {}, [("scale", 1, 0)], "Cancelled", id="cancelled"),
        pytest.param(
            a_map(state="paused", items={"leased": 5}), (a_job(ready=80),), {}, [("scale", 1, 80)], "Paused",
            id="paused: who runs ends what it has",
        ),
        pytest.param(a_map(state="paused"), (a_job(),), {}, [("scale", 1, 0)], "Paused", id="paused and idle"),
        pytest.param(a_map(), (a_job(1, 60),), {}, [("scale", 1, 100)], "Parallelism", id="a fresh Job grows"),
        pytest.param(
            a_map(), (a_job(1, 100, active=97, ended=3),), {}, [("scale", 1, 97), ("make", 2, 3)], "Parallelism",
            id="lost ones are a new round",
        ),
        pytest.param(
            a_map(), (a_job(1, 97, ended=3), a_job(2, 2)), {}, [("scale", 2, 3)], "Parallelism",
            id="the newest round grows",
        ),
        pytest.param(
            a_map(restartLimit=1), (a_job(1, 100, active=97, ended=3),), {}, [("scale", 1, 97), ("make", 2, 1)],
            "RestartLimit", id="beyond the limit nobody is replaced",
        ),
        pytest.param(
            a_map(items={"ready": 0, "leased": 90, "meanSeconds": 4}), (a_job(),), {}, [], "Working",
            id="less than a step is left alone",
        ),
        pytest.param(
            a_map(items={"ready": 0, "leased": 10, "meanSeconds": 4}), (a_job(),), {}, [("scale", 1, 80)],
            "Working", id="down by a fifth",
        ),
        pytest.param(
            a_map(items={"ready": 0, "leased": 10, "meanSeconds": 4}), (a_job(scaled_at=NOON),), {}, [], "Working",
            id="no second step before the counts are new",
        ),
        pytest.param(
            a_map(items={"ready": 0, "leased": 10, "meanSeconds": 60}), (a_job(ready=95),), {}, [("scale", 1, 95)],
            "Working", id="nobody who may hold a long item is told to leave",
        ),
        pytest.param(
            a_map(parallelism=40, items={"meanSeconds": 60}), (a_job(scaled_at=NOON),), {}, [("scale", 1, 40)],
            "Parallelism", id="down to what its owner wants at once, whatever the workers hold",
        ),
        pytest.param(
            a_map(), (a_job(1, 100, template="old"),), {}, [("scale", 1, 0), ("make", 2, 100)], "Parallelism",
            id="a changed template",
        ),
        pytest.param(a_map(state="finished"), (a_job(),), {}, [], "Finished", id="who is done leaves by itself"),
    ],
)  # fmt: skip
def test_the_workers_follow_the_queue(view, jobs, more, wanted, reason):
    decided = plan(seen(view, *jobs, **more))
    assert told(decided) == wanted
    assert decided.working.reason == reason


@pytest.mark.parametrize(
    ("dead", "message"),
    [
        (0, "every item is done"),
        (1, "every item has ended; 1 item failed"),
        (2, "every item has ended; 2 items failed"),
    ],
)
def test_a_map_that_is_over_says_how_many_items_failed(dead, message):
    decided = plan(seen(a_map(state="finished", items={"ready": 0, "dead": dead}), a_job()))
    assert (decided.working.reason, decided.working.message) == ("Finished", message)


@pytest.mark.parametrize(
    ("view", "pods", "reason"),
    [
        (a_map(), [a_pod(number, reason="OOMKilled", code=137) for number in range(FEW)], "OutOfMemory"),
        (a_map(), [a_pod(number, code=3, message="no input") for number in range(FEW)], "CannotWork"),
        (a_map(), [a_pod(number, code=127) for number in range(FEW)], "CannotStart"),
        (a_map(), [a_pod(number, code=128, reason="StartError") for number in range(FEW)], "CannotStart"),
        (a_map(), [a_pod(number, code=1) for number in range(FEW)], "WorkerFailed"),
        (
            a_map(heard=False, progress=False),
            [a_pod(number, phase="Pending", ended=None, waiting="ImagePullBackOff") for number in range(FEW)],
            "CannotStart",
        ),
        (a_map(), [a_pod(number, code=137) for number in range(FEW)], None),
        (a_map(), [a_pod(number, code=3) for number in range(FEW - 1)], None),
        (a_map(), [a_pod(number, code=3, ended=NOON - timedelta(hours=2)) for number in range(FEW)], None),
        (a_map(), [a_pod(number, code=3, disrupted=True) for number in range(FEW)], None),
        (a_map(), [a_pod(at, phase="Pending", ended=None, waiting="ImagePullBackOff") for at in range(9)], None),
    ],
)  # fmt: skip
def test_what_more_workers_would_not_mend_stops_the_map(view, pods, reason):
    decided = plan(seen(view, a_job(1, 100, active=90, ended=len(pods)), pods=tuple(pods)))
    assert (decided.failed.reason if decided.failed else None) == reason
    if reason:
        assert told(decided) == [("scale", 1, 0)]
        assert decided.failed.message.count("To fix it: ") == 1


def test_a_map_that_failed_rests_until_it_is_changed():
    failed = {"type": "Failed", "status": "True", "reason": "CannotWork", "observedGeneration": 1}
    failed["lastTransitionTime"] = rfc3339(NOON)
    pods = tuple(a_pod(number, code=3, ended=NOON - timedelta(seconds=9)) for number in range(FEW))
    job = a_job(1, 0, ended=FEW)
    assert told(plan(seen(a_map(conditions=(failed,)), job, pods=pods))) == []
    again = plan(seen(a_map(conditions=(failed,), generation=2), job, pods=pods))
    assert told(again) == [("make", 2, 100)]
    assert again.failed is not None
    assert not again.failed.status
    lifted = failed | {"status": "False", "observedGeneration": 2}
    assert not plan(seen(a_map(conditions=(lifted,), generation=2), job, a_job(2), pods=pods)).failed.status


def test_all_lost_and_none_left_to_replace_is_a_failure():
    lost = plan(seen(a_map(parallelism=4, restartLimit=2), a_job(1, 0, ended=4), a_job(2, 0, ended=2)))
    assert lost.failed is not None
    assert lost.failed.reason == "RestartLimit"


def test_workers_that_left_in_order_are_not_replaced_before_the_news_of_the_end_may_have_come():
    gone = tuple(a_pod(number, phase="Succeeded", code=0) for number in range(4))
    view = a_map(parallelism=4, restartLimit=0, items={"ready": 0, "leased": 4})
    decided = plan(seen(view, a_job(1, 4, active=0, ended=4), pods=gone))
    assert told(decided) == [("scale", 1, 0)]
    assert decided.failed is None
    assert decided.look_again_in is not None
    finished = replace(view, status=parse_mapjob_status(view, "finished"))
    assert plan(seen(finished, a_job(1, 0, ended=4), pods=gone)).workers.lost == 0


def parse_mapjob_status(view: Any, state: str) -> Any:
    import msgspec

    return msgspec.structs.replace(view.status, state=state)


def test_worker_pods_go_some_time_after_the_end():
    over = {"type": "Complete", "status": "True", "lastTransitionTime": rfc3339(NOON - timedelta(seconds=50))}
    view = a_map(state="finished", conditions=(over,), ttlSecondsAfterFinished=60)
    waiting = plan(seen(view, a_job(1, 0, ended=3)))
    assert told(waiting) == []
    assert waiting.look_again_in == timedelta(seconds=10)
    view = a_map(state="finished", conditions=(over,), ttlSecondsAfterFinished=40)
    assert told(plan(seen(view, a_job(1, 0, ended=3), a_job(2, 0, ended=1)))) == [
        ("delete", 1, 0),
        ("delete", 2, 0),
    ]


def played(jobs: tuple[JobSeen, ...], steps: tuple[Step, ...]) -> tuple[JobSeen, ...]:
    """What the API and the Job controller make of the steps."""
    by_round = {job.round: job for job in jobs}
    for step in steps:
        if step.verb is Verb.MAKE:
            by_round[step.round] = a_job(step.round, step.parallelism)
        elif step.verb is Verb.SCALE:
            one = by_round[step.round]
            active = step.parallelism if one.may_grow else min(one.active, step.parallelism)
            by_round[step.round] = replace(one, parallelism=step.parallelism, active=active, ready=active)
    return tuple(by_round[number] for number in sorted(by_round))


@given(
    losses=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=25),
    limit=st.integers(0, 12),
    parallelism=st.integers(1, 12),
    cut=st.integers(0, 3),
)
def test_however_workers_are_lost_no_more_than_the_limit_are_ever_replaced(losses, limit, parallelism, cut):
    view = a_map(parallelism=parallelism, restartLimit=limit)
    jobs: tuple[JobSeen, ...] = ()
    made = 0
    for which, many in [*losses, (0, 0)]:
        decided = plan(seen(view, *jobs))
        # the operator may die between any two steps: the next pass ends what it began
        before = sum(job.active + job.ended for job in jobs)
        jobs = played(jobs, decided.steps[:cut])
        jobs = played(jobs, plan(seen(view, *jobs)).steps)
        assert plan(seen(view, *jobs)).steps == (), "settled"
        made += sum(job.active + job.ended for job in jobs) - before
        active = sum(job.active for job in jobs)
        assert active == max(0, min(parallelism, parallelism + limit - sum(job.ended for job in jobs)))
        if jobs:
            hit = jobs[which % len(jobs)]
            gone = min(many, hit.active)
            left = hit.active - gone
            jobs = tuple(
                replace(job, active=left, ready=left, ended=job.ended + gone) if job is hit else job
                for job in jobs
            )
    assert made <= parallelism + limit


@given(
    changes=st.lists(st.tuples(st.integers(1, 12), st.integers(0, 2)), min_size=1, max_size=30),
    paused=st.integers(0, 30),
)
def test_workers_stopped_because_fewer_were_wanted_are_not_lost(changes, paused):
    jobs: tuple[JobSeen, ...] = ()
    workers: dict[str, int] = {}
    lost = 0
    for at, (parallelism, losses) in enumerate(changes):
        view = a_map(parallelism=parallelism, restartLimit=1000, workers=workers)
        for step in plan(seen(view, *jobs)).steps:
            (job,) = [job for job in jobs if job.round == step.round] or [None]
            stopped = 0 if job is None else max(0, min(job.active, job.parallelism) - step.parallelism)
            released = 0 if job is None else job.released_at(step.parallelism)
            jobs = tuple(  # as the Job controller does: the pods end, and are counted
                replace(job, ended=job.ended + stopped, released=released) if job.round == step.round else job
                for job in played(jobs, (step,))
            )
        if at == paused:  # who ends then is excused, whatever the cause
            view = a_map(state="paused", parallelism=parallelism, workers=workers)
            lost = 0
        reported = plan(seen(view, *jobs)).workers
        assert reported.lost == lost
        workers = {"excused": reported.excused, "released": reported.released}
        if jobs:
            gone = min(losses, jobs[-1].active)
            left = jobs[-1].active - gone
            jobs = (*jobs[:-1], replace(jobs[-1], active=left, ready=left, ended=jobs[-1].ended + gone))
            lost += gone


@given(leased=st.integers(0, 3000), have=st.integers(1, 3000), mean=st.floats(0.1, 14), slots=st.integers(1, 4))
def test_the_tail_never_leaves_items_without_workers(leased, have, mean, slots):
    view = a_map(
        parallelism=3000, slots=slots, items={"total": 9000, "ready": 0, "leased": leased, "meanSeconds": mean}
    )
    jobs = (a_job(1, have),)
    for _ in range(60):
        jobs = played(jobs, plan(seen(view, *jobs)).steps)
        assert jobs[0].parallelism >= min(have, max(1, -(-leased // slots)))
