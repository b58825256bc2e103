"""Find the running pod of a run or a workspace, for commands and port forwarding."""

from __future__ import annotations

from msgspec import Struct

from moorage.actions.objects import get_object
from moorage.actions.runs import jobs_of_run, missing_attempt, pods_of_run
from moorage.actions.workspaces import WORKSPACE
from moorage.api.errors import ErrorCode
from moorage.decide.runs.state import PodView, RunView, State, view_run
from moorage.decide.runs.storedruns import shown_container
from moorage.model.names import WORKSPACE_LABEL
from moorage_kube.api import Api
from moorage_kube.errors import NotFound, NotReady
from moorage_kube.meta import is_deleting
from moorage_kube.resources import PODS, Obj

NAMES_SHOWN = 5  # in a hint


class PodPlace(Struct, frozen=True):
    """A running pod and its main container; `container` is "" if none has a known name."""

    pod: str
    container: str


async def running_pod_of_run(
    api: Api, namespace: str, name: str, *, attempt: int | None = None, pod: str | None = None
) -> PodPlace:
    """The newest running pod of a run or of one attempt, or the named pod. Raises NotFound, NotReady, ApiError."""
    jobs = await jobs_of_run(api, namespace, name)
    pods = await pods_of_run(api, namespace, name)
    chosen = choose_pod(view_run(jobs, pods), attempt=attempt, pod=pod)
    return PodPlace(chosen.name, _container(pods, chosen.name))


async def running_pod_of_workspace(api: Api, namespace: str, name: str) -> PodPlace:
    """The running pod of a workspace. Raises NotFound, NotReady, ApiError."""
    pods = (await api.list(PODS, namespace, label_selector=f"{WORKSPACE_LABEL}={name}")).items
    running = [pod for pod in pods if _phase(pod) == "Running" and not is_deleting(pod)]
    if not running:
        await get_object(api, WORKSPACE, namespace, name)
        raise NotReady(f"workspace {name} is not running", hint=f"start it: moor workspace start {name}")
    pod_name = str(running[-1]["metadata"]["name"])
    return PodPlace(pod_name, _container(running, pod_name))


def choose_pod(run: RunView, *, attempt: int | None = None, pod: str | None = None) -> PodView:
    """The newest running pod of a run.

    Raises NotFound for an attempt or pod that the run does not have, NotReady if none of its pods runs.
    """
    if attempt is not None and attempt not in [known.number for known in run.attempts]:
        raise missing_attempt(run, attempt)
    names = [known.name for known in run.pods]
    if pod is not None and pod not in names:
        raise NotFound(
            f"run {run.name} has no pod {pod}",
            hint=f"its pods: {', '.join(names[-NAMES_SHOWN:])}" if names else f"see moor show {run.name}",
            code=ErrorCode.NOT_FOUND,
        )
    wanted = [known for known in run.pods if attempt in (None, known.attempt) and pod in (None, known.name)]
    running = [known for known in wanted if known.phase == "Running"]  # oldest first
    if running:
        return next((known for known in reversed(running) if not known.deleting), running[-1])
    raise _not_running(run, attempt=attempt, pod=pod)


def _not_running(run: RunView, *, attempt: int | None, pod: str | None) -> NotReady:
    """Why there is no pod to enter, with a hint."""
    reason = f" ({run.reason})" if run.reason and run.reason != str(run.state) else ""
    if run.state.ended:
        return NotReady(
            f"run {run.name} has ended: {run.state}{reason}",
            hint=f"read its logs: moor logs {run.name}   Run it again: moor rerun {run.name}",
        )
    if pod is not None or (attempt is not None and attempt != run.attempts[-1].number):
        what = f"pod {pod}" if pod is not None else f"attempt {attempt}"
        is_pending = any(known.name == pod and known.phase == "Pending" for known in run.pods)
        hint = _wait_hint(run) if is_pending else f"see moor show {run.name}"
        return NotReady(f"{what} of run {run.name} is not running", hint=hint)
    state = {
        State.RESTARTING: "is restarting",
        State.RUNNING: "is about to end",
        State.SUSPENDED: "is suspended",
    }.get(run.state, "is waiting")
    return NotReady(f"run {run.name} {state}{reason}: none of its pods runs", hint=_wait_hint(run))


def _wait_hint(run: RunView) -> str:
    return f"see why: moor explain {run.name}   Wait for it: moor wait {run.name} --for running"


def _container(pods: list[Obj], name: str) -> str:
    return next((shown_container(pod) or "" for pod in pods if pod["metadata"]["name"] == name), "")


def _phase(pod: Obj) -> str:
    return str((pod.get("status") or {}).get("phase") or "")
