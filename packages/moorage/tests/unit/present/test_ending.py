"""`moor explain` of a run that is over: how it ended, when, what that means, and what to type next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from moorage.decide.explain.explainer import explain
from moorage.decide.explain.public import as_public
from moorage.decide.interruptions import STOPPED
from moorage.decide.runs.state import PodView, view_run
from moorage.decide.runs.storedruns import Seen, plan, view_deleted
from moorage.present.ending import way_to_start
from moorage.present.explanation import explain_text, short_reason
from moorage.present.explanationanswer import make_explanation
from moorage_kube.moments import rfc3339
from moorage_kube.testing.builders import a_condition, a_container_status
from moorage_testing.builders import a_run_job, a_run_pod, keyed

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def ago(minutes: float) -> str:
    return rfc3339(NOON - timedelta(minutes=minutes))


def a_job(end: str = "Failed", *, reason: str = "", message: str = "", retries: int = 0, **notes: str):
    spec = {"backoffLimit": retries, "suspend": end == "Suspended"}
    made = {"uid": "j1", "created": ago(65), "requests": {"cpu": "1"}, "annotations": keyed(**notes), "spec": spec}
    made |= {"end": end, "reason": reason, "message": message, "finished": ago(5)}
    return a_run_job(attempt=None, user="ada", status={"failed": retries + 1}, **made)


def a_pod(code: int | None = None, why: str = "Error", *, phase: str = "Failed", last_words="", **status: Any):
    ended = a_container_status(exit_code=code, reason=why, message=last_words, started=ago(60), finished=ago(5))
    status = ({"containerStatuses": [ended]} if code is not None else {}) | status
    made = {"uid": "p1", "created": ago(64), "node": "n1", "limits": {"memory": "64Mi"}}
    return a_run_pod(phase=phase, status=status, **made)


def ask(job, *pods, kept=()):
    run = view_run([job], pods, kept=kept)
    pod = pods[-1] if pods else a_pod()
    return explain(pod, nodes=(), pods=pods, now=NOON, run=run, suspended=job["spec"]["suspend"])


def text_of(job, *pods, kept=()) -> str:
    return explain_text(ask(job, *pods, kept=kept))


FAILED = "run lab/train failed at 05 Jan 11:55 UTC (5m ago), after 55m on n1\n"
LOG = "Its last output: `moor logs --tail 20 train`"
AGAIN = "To run it again: `moor rerun train`"


def test_a_run_that_succeeded_says_when():
    assert text_of(a_job("Complete"), a_pod(0, "Completed", phase="Succeeded")) == (
        f"run lab/train succeeded at 05 Jan 11:55 UTC (5m ago), after 55m on n1\n{LOG}"
    )


def test_a_cancelled_run_names_its_canceller_and_the_command_to_run_it_again():
    hour, ended = NOON - timedelta(minutes=60), NOON - timedelta(minutes=5)
    gone = PodView(name="train-x", attempt=1, phase="Failed", node="n1", exit_code=143, gone=True)
    gone = replace(gone, started=hour, ended=ended)
    job = a_job("Suspended", ended="Cancelled by bob", checkpoint="digits", checkpoint_at=ago(7))
    assert text_of(job, kept=[gone]) == (
        "run lab/train was cancelled by bob at 05 Jan 11:55 UTC (5m ago), after 55m on n1\n"
        "A cancelled run does not start again by itself\n"
        f"{LOG}\n"
        f"{AGAIN}; it continues from checkpoint digits"
    )


@pytest.mark.parametrize(
    ("job", "pod", "lines"),
    [
        pytest.param(
            a_job(),
            a_pod(3),
            [
                "Exit code 3: the program itself reported an error; the end of its log usually says which",
                LOG,
                AGAIN,
            ],
            id="by its own exit code",
        ),
        pytest.param(
            a_job(retries=2),
            a_pod(127),
            [
                "It was started 3 times (`--retries`), and failed each time",
                "Exit code 127: the command was not found in the container",
                LOG,
                AGAIN,
            ],
            id="tried three times",
        ),
        pytest.param(
            a_job(),
            a_pod(160),
            ["Exit code 160: the program was killed by signal 32", LOG, AGAIN],
            id="by a signal",
        ),
        pytest.param(
            a_job(),
            a_pod(137, "OOMKilled"),
            [
                "It needed more memory than its limit of 64Mi, and was killed (OOMKilled)",
                LOG,
                "To run it again with more memory: `moor rerun train --memory 128Mi`",
            ],
            id="for its memory",
        ),
        pytest.param(
            a_job(),
            a_pod(143, reason="DeadlineExceeded", message="Pod was active on the node longer than"),
            [
                "It reached its time limit (--time), and was stopped",
                LOG,
                "To run it again with more time: `moor rerun train --time TIME`",
            ],
            id="by its time limit",
        ),
        pytest.param(
            a_job(),
            a_pod(137, reason="Evicted", message="The node was low on resource: memory"),
            [
                "Its node was short of memory or disk, and evicted it",
                "The node was low on resource: memory",
                LOG,
                AGAIN,
            ],
            id="evicted",
        ),
        pytest.param(
            a_job(),
            a_pod(128, "StartError", last_words="exec: no such file"),
            ["Its container could not start: check the command and the image", "exec: no such file", LOG, AGAIN],
            id="its container could not start",
        ),
        pytest.param(
            a_job(ended="RestartLimit: disrupted again after being started again 20 times, its limit"),
            a_pod(143),
            ["It was disrupted again after being started again 20 times, its limit", LOG, AGAIN],
            id="disrupted too often",
        ),
    ],
)
def test_a_failed_run_has_its_cause_and_a_hint(job, pod, lines):
    assert text_of(job, pod) == FAILED + "\n".join(lines)


def test_a_run_between_two_attempts_names_the_disruption():
    disrupted = a_condition("DisruptionTarget", reason="PreemptionByScheduler")
    message = "Pod lab/train-x has condition DisruptionTarget matching FailJob rule at index 0"
    explanation = ask(a_job(reason="PodFailurePolicy", message=message), a_pod(143, conditions=[disrupted]))
    reason = "attempt 1 was disrupted; the next one is about to start"
    assert (explanation.state, short_reason(explanation)) == ("waiting", reason)
    assert explain_text(explanation) == (
        "run lab/train is restarting: attempt 1 was disrupted\n"
        "Its pod was disrupted: a run of a higher priority took its place (PreemptionByScheduler)\n"
        "Its next attempt starts by itself, as soon as there is room"
    )


def test_a_run_that_failed_and_is_retried_would_not_start_now():
    running = a_run_job(attempt=None, uid="j1", created=ago(65), requests={"cpu": "1"}, spec={"backoffLimit": 2})
    explanation = ask(running | {"spec": running["spec"] | {"suspend": False}}, a_pod(3))
    assert short_reason(explanation) == "it failed (exit code 3); it is about to be tried again"
    assert explain_text(explanation) == (
        "run lab/train failed (exit code 3), and is about to be tried again\n"
        "Kubernetes waits longer before each retry (`--retries`): 10 s, 20 s, up to 6 min\n" + LOG
    )


def test_a_run_that_was_asked_to_stop_starts_again():
    message = "Container main for pod lab/train-x failed with exit code 85 matching FailJob rule at index 1"
    explanation = ask(a_job(reason="PodFailurePolicy", message=message), a_pod(STOPPED))
    assert explain_text(explanation) == (
        "run lab/train is restarting: attempt 1 was disrupted\n"
        "Its program ended after it was asked to stop, and has not finished\n"
        "Its next attempt starts by itself, as soon as there is room"
    )


def test_a_deleted_run_says_how_it_ended_before():
    kept = plan(Seen(deleted={"j1": (a_job(), NOON)}, now=NOON))
    run = view_deleted(kept)
    assert run is not None
    text = explain_text(explain(a_pod(), nodes=(), pods=(), now=NOON, run=run))
    assert text == (
        "run lab/train failed at 05 Jan 11:55 UTC (5m ago)\n"
        f"It was deleted later; its facts and the end of its log are stored\n{LOG}"
    )


def test_other_users_see_the_end_without_messages():
    pod = a_pod(128, "StartError", last_words="exec: secret.py")
    public = as_public(ask(a_job(command="python secret.py"), pod))
    assert explain_text(public) == FAILED + "Its container could not start: check the command and the image"
    assert "secret" not in repr(public)


def test_programs_get_state_end_and_exit_code():
    answer = make_explanation(ask(a_job(), a_pod(3)))
    assert (answer.state, answer.run_state, answer.exit_code) == ("finished", "Failed", 3)
    assert (answer.reason, answer.ended) == ("exit code 3", NOON - timedelta(minutes=5))


def test_a_container_that_cannot_start_comes_with_a_hint():
    pod = a_pod(phase="Pending", containerStatuses=[{"state": {"waiting": {"reason": "ImagePullBackOff"}}}])
    text = explain_text(explain(pod, nodes=(), pods=(), now=NOON))
    assert text == (
        "run lab/train does not start on n1: the image cannot be pulled (ImagePullBackOff)\n"
        "Its image cannot be pulled: check its name and tag, and whether its registry needs a login"
    )


@pytest.mark.parametrize(
    ("reason", "message", "run", "begins"),
    [
        pytest.param(
            "CreateContainerConfigError",
            'container has runAsNonRoot and image will run as root (pod: "train_lab", container: main)',
            "train",
            "It may not run as the user of its image, which is root or has no number: start it as another user:"
            " `moor rerun train --user 1000`; an administrator",
            id="a run of an image of root",
        ),
        pytest.param(
            "CreateContainerConfigError",
            "container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root",
            "",
            "It may not run as the user of its image, which is root or has no number: give the pod another user;",
            id="a pod whose image names a user by name",
        ),
        pytest.param(
            "CreateContainerConfigError",
            'secret "keys" not found',
            "train",
            "A Secret or ConfigMap that it names does not exist: create it",
            id="a Secret",
        ),
        pytest.param("Odd", "", "train", "", id="an unknown word"),
    ],
)
def test_hints_for_a_container_that_does_not_start(reason, message, run, begins):
    advice = way_to_start(reason, message, run)
    assert advice.startswith(begins)
    assert bool(advice) == bool(begins)
