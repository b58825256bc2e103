"""The pod of a run that a command enters."""

from __future__ import annotations

import pytest

from moorage.actions.runpods import choose_pod
from moorage.decide.runs.state import PodView, State
from moorage_kube.errors import NotFound, NotReady
from moorage_testing.builders import a_run


def a_pod(name: str, attempt: int = 1, phase: str = "Running", *, deleting: bool = False) -> PodView:
    return PodView(name=name, attempt=attempt, phase=phase, deleting=deleting)


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
    assert choose_pod(a_run("train", *pods), **options).name == want


WAIT = "see why: moor explain train   Wait for it: moor wait train --for running"
AGAIN = "read its logs: moor logs train   Run it again: moor rerun train"
SHOW = "see moor show train"
FAILED = a_pod("a", phase="Failed")


@pytest.mark.parametrize(
    ("state", "reason", "pods", "options", "message", "hint"),
    [
        ("Waiting", "Unschedulable", [], {}, "run train is waiting (Unschedulable): none of its pods runs", WAIT),
        ("Waiting", "", [a_pod("a", phase="Pending")], {"pod": "a"}, "pod a of run train is not running", WAIT),
        ("Restarting", "", [], {}, "run train is restarting: none of its pods runs", WAIT),
        ("Failed", "exit code 3", [FAILED], {}, "run train has ended: Failed (exit code 3)", AGAIN),
        ("Running", "", [FAILED, a_pod("b", 2)], {"attempt": 1}, "attempt 1 of run train is not running", SHOW),
    ],
)
def test_a_run_without_a_running_pod_is_refused_with_a_hint(state, reason, pods, options, message, hint):
    with pytest.raises(NotReady) as caught:
        choose_pod(a_run("train", *pods, state=State(state), reason=reason), **options)
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"attempt": 7}, "run train has no attempt 7", "it has only 1"),
        ({"pod": "b"}, "run train has no pod b", "its pods: a"),
    ],
)
def test_an_attempt_or_pod_that_does_not_exist_is_refused(options, message, hint):
    with pytest.raises(NotFound) as caught:
        choose_pod(a_run("train", a_pod("a")), **options)
    assert (caught.value.message, caught.value.hint) == (message, hint)
