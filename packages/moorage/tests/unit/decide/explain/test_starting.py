"""Why a pod that has its node does not run, by its kubelet: what it is, which container, and what to do."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from moorage.decide.explain.explainer import explain
from moorage.decide.explain.public import as_public
from moorage.decide.explain.starting import BEING_STARTED, Starting, starting_of
from moorage.present.explanation import explain_text
from moorage.present.explanationanswer import make_explanation
from moorage_kube.resources import Obj
from moorage_testing.builders import a_run_pod

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
PULL = 'failed to pull image "nope:1": not found'


def waiting(reason: str, message: str = "", name: str = "main", **more: Any) -> Obj:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}, **more}


def a_pod(*statuses: Obj, init: tuple[Obj, ...] = (), phase: str = "Pending") -> Obj:
    spec = {"initContainers": [{"name": "fetch", "image": "fetch:1"}]}
    made: Obj = {"uid": "u", "node": "n1", "image": "nope:1", "started": "2026-11-21T11:50:00Z"}
    return a_run_pod(**made, phase=phase, spec=spec, statuses=statuses, status={"initContainerStatuses": init})


CRASH = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(
            a_pod(waiting("ErrImagePull", PULL)),
            Starting(reason="ErrImagePull", container="main", image="nope:1", message=PULL),
            id="its image cannot be pulled",
        ),
        pytest.param(
            a_pod(waiting("PodInitializing"), init=(waiting("ImagePullBackOff", "back-off", "fetch"),)),
            Starting(
                reason="ImagePullBackOff", container="fetch", image="fetch:1", is_init=True, message="back-off"
            ),
            id="that of an init container, for which the others wait",
        ),
        pytest.param(
            a_pod(waiting("CreateContainerConfigError", 'secret "s" not found')),
            Starting(
                reason="CreateContainerConfigError",
                container="main",
                image="nope:1",
                message='secret "s" not found',
            ),
            id="a Secret is missing",
        ),
        pytest.param(
            a_pod(waiting("CrashLoopBackOff", "back-off 5m0s", lastState=CRASH), phase="Running"),
            Starting(
                reason="CrashLoopBackOff",
                container="main",
                image="nope:1",
                message="it ended with exit code 137 (OOMKilled)",
            ),
            id="it ends after each start: how",
        ),
        pytest.param(
            a_pod(waiting("ContainerCreating")),
            Starting(reason="ContainerCreating", container="main", image="nope:1"),
            id="as every start",
        ),
        pytest.param(a_pod(), Starting(reason=BEING_STARTED), id="the kubelet has said nothing yet"),
        pytest.param(a_pod({"name": "main", "state": {"running": {}}}, phase="Running"), None, id="it runs"),
    ],
)
def test_what_the_first_container_in_trouble_waits_for(pod: Obj, want: Starting | None) -> None:
    assert starting_of(pod) == want


def told(pod: Obj) -> str:
    return explain_text(explain(pod, nodes=(), pods=(), now=NOON))


def test_an_image_that_cannot_be_pulled_is_named_with_the_reason_and_what_to_do() -> None:
    assert told(a_pod(waiting("ErrImagePull", PULL))) == (
        "run lab/train does not start on n1: the image nope:1 of container main cannot be pulled (ErrImagePull)\n"
        f"{PULL}\n"
        "Its image cannot be pulled: check its name and tag, and whether its registry needs a login\n"
        "It has held its place since 21 Nov 11:50 UTC; end unknown"
    )


def test_a_container_that_cannot_be_configured_is_named() -> None:
    assert told(a_pod(waiting("CreateContainerConfigError", 'secret "s" not found'))) == (
        "run lab/train is placed on n1; it does not run yet (CreateContainerConfigError)\n"
        'container main: secret "s" not found\n'
        "The Secret s does not exist: create it with `moor secret create s KEY -n lab`;"
        " the pod then starts by itself\n"
        "It has held its place since 21 Nov 11:50 UTC; end unknown"
    )


def test_a_key_that_a_variable_names_and_the_configmap_lacks_is_told_with_the_command() -> None:
    message = "couldn't find key word in ConfigMap lab/settings"
    assert told(a_pod(waiting("CreateContainerConfigError", message))).splitlines()[2] == (
        "The ConfigMap settings has no key word: add it with `kubectl edit configmap settings -n lab`; the pod"
        " then starts by itself"
    )


def test_everybody_else_learns_that_it_is_being_started_and_no_names() -> None:
    public = as_public(explain(a_pod(waiting("ErrImagePull", PULL)), nodes=(), pods=(), now=NOON))
    assert "nope" not in repr(public)
    assert explain_text(public).startswith("run lab/train is placed on n1; it does not run yet (being started)")


def test_programs_get_the_parts() -> None:
    answer = make_explanation(explain(a_pod(waiting("ErrImagePull", PULL)), nodes=(), pods=(), now=NOON))
    assert (answer.starting, answer.starting_container, answer.starting_image, answer.starting_message) == (
        "ErrImagePull",
        "main",
        "nope:1",
        PULL,
    )
