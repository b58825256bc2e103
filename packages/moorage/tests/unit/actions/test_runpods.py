"""Which pod of a run a command enters."""

from __future__ import annotations

import pytest

from moorage.actions.runpods import choose_pod
from moorage.decide.runs.state import AttemptView, PodView, RunView, State
from moorage_kube.errors import MoorageError, NotFound, NotReady
from moorage_kube.testing.clock import NOON


def a_pod(name: str, attempt: int = 1, phase: str = "Running", *, deleting: bool = False) -> PodView:
    return PodView(name=name, attempt=attempt, phase=phase, deleting=deleting)


def a_run(*pods: PodView, state: State = State.RUNNING, reason: str = "") -> RunView:
    numbers = sorted({pod.attempt for pod in pods} | {1})
    attempts = tuple(
        AttemptView(
            number=number,
            job=f"train-{number}",
            state="Running",
            pods=tuple(pod for pod in pods if pod.attempt == number),
        )
        for number in numbers
    )
    return RunView(
        namespace="lab", name="train", owner="ada", state=state, gpus=0, gpu_type="", node="", created=NOON,
        started=None, ended=None, deadline=None, restarts=0, restart_limit=20, retries=0, checkpoint="",
        checkpoint_at=None, checkpoint_checked_at=None, command="python train.py", requests={}, reason=reason,
        exit_code=None, attempts=attempts,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pods", "options", "want"),
    [
        pytest.param([a_pod("a")], {}, "a", id="the only one"),
        pytest.param([a_pod("a"), a_pod("b", 2)], {}, "b", id="the newest attempt"),
        pytest.param([a_pod("a"), a_pod("b", 2)], {"attempt": 1}, "a", id="the attempt that is named"),
        pytest.param([a_pod("a"), a_pod("b")], {"pod": "a"}, "a", id="the pod that is named"),
        pytest.param([a_pod("a", phase="Failed"), a_pod("b")], {}, "b", id="one that runs"),
        pytest.param([a_pod("a"), a_pod("b", deleting=True)], {}, "a", id="rather one that stays"),
        pytest.param([a_pod("a", deleting=True)], {}, "a", id="one that is being stopped, where no other runs"),
    ],
)
def test_the_newest_pod_that_runs_is_entered(pods, options, want):
    assert choose_pod(a_run(*pods), **options).name == want


WAIT = "see why: moor explain train   Wait for it: moor wait train --for running"
AGAIN = "read its logs: moor logs train   Run it again: moor rerun train"


@pytest.mark.parametrize(
    ("run", "options", "kind", "message", "hint"),
    [
        (
            a_run(state=State.WAITING, reason="Unschedulable"),
            {},
            NotReady,
            "run train is waiting (Unschedulable): none of its pods runs",
            WAIT,
        ),
        (
            a_run(a_pod("a", phase="Pending"), state=State.WAITING),
            {"pod": "a"},
            NotReady,
            "pod a of run train is not running",
            WAIT,
        ),
        (a_run(state=State.RESTARTING), {}, NotReady, "run train is restarting: none of its pods runs", WAIT),
        (
            a_run(a_pod("a", phase="Failed"), state=State.FAILED, reason="exit code 3"),
            {},
            NotReady,
            "run train has ended: Failed (exit code 3)",
            AGAIN,
        ),
        (
            a_run(a_pod("a", phase="Failed"), a_pod("b", 2)),
            {"attempt": 1},
            NotReady,
            "attempt 1 of run train is not running",
            "see moor show train",
        ),
        (a_run(a_pod("a")), {"attempt": 7}, NotFound, "run train has no attempt 7", "it has only 1"),
        (a_run(a_pod("a")), {"pod": "b"}, NotFound, "run train has no pod b", "its pods: a"),
    ],
)
def test_a_run_without_a_running_pod_is_refused_with_what_to_do_next(run, options, kind, message, hint):
    with pytest.raises(MoorageError) as caught:
        choose_pod(run, **options)
    assert (type(caught.value), caught.value.message, caught.value.hint) == (kind, message, hint)
