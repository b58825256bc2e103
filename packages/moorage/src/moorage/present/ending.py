"""The end of a run as text: in `moor explain` and on its page. Pure.

The headline has the result, the time and the duration. The lines explain it, and suggest the next command.
"""

from __future__ import annotations

import re
from datetime import datetime

from moorage.decide.interruptions import STOPPED
from moorage.decide.runs.restarts import INTERRUPTED
from moorage.decide.runs.state import PodView, RunView, State
from moorage.model.names import RUN_AS_USER_ANNOTATION
from moorage.present.reasons import DISRUPTIONS, REASONS, START_FAILURES, WAITING, reason_words
from moorage_kube.moments import format_duration
from moorage_kube.quantity import format_bytes

LINES_SHOWN = 20  # of the log, by the command that is offered
SIGNALLED = 128  # a shell, and the kubelet, add the number of the signal
MEANINGS = {
    STOPPED: "the program was asked to stop, and did not report that it had finished ($MOORAGE_DONE_FILE)",
    126: "the command exists, and cannot be executed: it has no execute permission, or is not a program",
    127: "the command was not found in the container",
    130: "a user or a program interrupted it (SIGINT)",
    134: "the program aborted itself (SIGABRT), often after a failed check in native code",
    135: "the program was killed by SIGBUS, often because /dev/shm or a disk is full",
    137: "the program was killed from outside (SIGKILL), often because its node had no memory left",
    139: "the program crashed in native code (SIGSEGV)",
    143: "the program was asked to stop (SIGTERM)",
}
ROOT_FORBIDDEN = "runAsNonRoot"  # the kubelet names it where an image's user is root, or no number
_CANCELLED_BY = re.compile(r"Cancelled by (?P<user>.+)", re.DOTALL)


def way_to_start(reason: str, message: str, run: str) -> str:
    """How to repair a container that does not start; "" if unknown. `run`: "" for other pods.

    `message` is the kubelet's.
    """
    if ROOT_FORBIDDEN not in message:
        return _sentence(WAITING[reason].ours) if reason in WAITING else ""
    how = f"start it as another user: `moor rerun {run} --user 1000`" if run else "give the pod another user"
    return (
        f"It may not run as the user of its image, which is root or has no number: {how}; an administrator can"
        f" choose a user for the namespace: the annotation {RUN_AS_USER_ANNOTATION}"
    )


def ending_headline(run: RunView, now: datetime) -> str:
    """The result of the run, its time, and its duration.

    For a run that restarts or is retried: the result of its last attempt.
    """
    who = f"run {run.namespace}/{run.name}"
    if run.is_retrying:
        return f"{who} failed ({reason_words(run.reason)}), and is about to be tried again"
    if run.state is State.RESTARTING:
        return f"{who} is restarting: attempt {run.attempts[-1].number} was disrupted"
    by = _CANCELLED_BY.fullmatch(run.reason) if run.state is State.CANCELLED else None
    verb = _verb(run) + (f" by {by['user']}" if by else "")
    at = f" at {moment_text(run.ended)} ({format_duration(now - run.ended)} ago)" if run.ended else ""
    return f"{who} {verb}{at}{_where(run, now)}"


def ending_lines(run: RunView, *, public: bool) -> list[str]:
    """The meaning of the end and the next steps.

    `public`: without commands that need the right to read its log.
    """
    if run.state is State.RESTARTING:
        return [
            _disrupted(run),
            "Its next attempt starts by itself, as soon as there is room",
        ]
    log = [] if public else [f"Its last output: `moor logs --tail {LINES_SHOWN} {run.name}`"]
    if run.is_retrying:
        return ["Kubernetes waits longer before each retry (`--retries`): 10 s, 20 s, up to 6 min", *log]
    match run.state:
        case State.SUCCEEDED:
            return log
        case State.DELETED if _verb(run) == "was deleted":
            return log
        case State.DELETED:
            return ["It was deleted later; its facts and the end of its log are stored", *log]
        case State.CANCELLED:
            return ["A cancelled run does not start again by itself", *log, *_again(run, public=public)]
    return [*_tries(run), *_why_failed(run), *log, *_again(run, public=public)]


def _verb(run: RunView) -> str:
    """The verb for a run's end.

    A deleted run may have a reason such as "was Succeeded"; then that state counts.
    """
    state: str = run.state
    if run.state is State.DELETED and run.reason.startswith("was "):
        state = run.reason.removeprefix("was ")
    words = {State.SUCCEEDED: "succeeded", State.CANCELLED: "was cancelled", State.DELETED: "was deleted"}
    return next((word for known, word in words.items() if known == state), "failed")


def _where(run: RunView, now: datetime) -> str:
    node = f" on {run.node}" if run.node else ""
    if (ran := run.ran(now)) is not None:
        return f", after {format_duration(ran)}{node}"
    return f", on {run.node}" if run.node else ""


def _tries(run: RunView) -> list[str]:
    if not run.retries:
        return []
    return [f"It was started {run.retries + 1} times (`--retries`), and failed each time"]


def _why_failed(run: RunView) -> list[str]:
    """The reasons why a run failed, in words; the cause comes before its consequence."""
    pod = _newest(run)
    reason = pod.reason if pod else ""
    message = [pod.message] if pod and pod.message and pod.message != reason else []
    if run.state is State.OOM_KILLED:
        return [_memory(pod)]
    if ended := _ended_by_operator(run.reason):
        return [ended]
    if "DeadlineExceeded" in (reason, run.reason):
        return [_sentence(REASONS["DeadlineExceeded"].ours)]
    if reason == "Evicted" or reason in START_FAILURES:
        return [_sentence(REASONS[reason].ours), *message]
    if pod is not None and (pod.disrupted or reason in DISRUPTIONS):
        return [_disrupted(run), *message]
    if run.exit_code:
        return [f"Exit code {run.exit_code}: {_meaning(run.exit_code)}"]
    why = _sentence(reason_words(run.reason)) if run.reason else "The reason is not known"
    of_job = run.attempts[-1].message if run.reason not in REASONS else ""
    return [why, *message, *([of_job] if of_job else [])]


def _ended_by_operator(reason: str) -> str:
    """The sentence in the operator's reason, "Reason.

    Sentence", which it writes if there is no further attempt.
    """
    word, colon, sentence = reason.partition(": ")
    if not colon or word not in ("RestartLimit", "TimeLimit", "Evicted", "Deleted"):
        return ""
    return f"It was {sentence}" if not sentence.startswith("attempt ") else sentence.capitalize()


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _meaning(code: int) -> str:
    if code in MEANINGS:
        return MEANINGS[code]
    if SIGNALLED < code <= SIGNALLED + 64:
        return f"the program was killed by signal {code - SIGNALLED}"
    return "the program itself reported an error; the end of its log usually says which"


def _memory(pod: PodView | None) -> str:
    limit = f" of {format_bytes(pod.memory_limit_bytes)}" if pod and pod.memory_limit_bytes else ""
    return f"It needed more memory than its limit{limit}, and was killed (OOMKilled)"


def _disrupted(run: RunView) -> str:
    pod = _newest(run)
    is_interrupted = run.attempts[-1].reason == INTERRUPTED or (pod is not None and pod.exit_code == STOPPED)
    if is_interrupted and (pod is None or pod.reason not in DISRUPTIONS):
        return _sentence(REASONS[INTERRUPTED].ours)
    if pod is None or not pod.reason:
        return "Its pod was disrupted"
    if pod.reason in DISRUPTIONS:
        return f"Its pod was disrupted: {DISRUPTIONS[pod.reason].ours} ({pod.reason})"
    return f"Its pod was disrupted: {pod.reason}"


def _again(run: RunView, *, public: bool) -> list[str]:
    if public:
        return []
    options, pod = "", _newest(run)
    if run.state is State.OOM_KILLED:
        limit = pod.memory_limit_bytes if pod else None
        options = f" --memory {format_bytes(2 * limit)}" if limit else " --memory 8Gi"
    elif "DeadlineExceeded" in (run.reason, pod.reason if pod else "") or run.reason.startswith("TimeLimit"):
        options = " --time TIME"
    goes_on = f"; it continues from checkpoint {run.checkpoint}" if run.checkpoint and run.checkpoint_at else ""
    how = {" --time TIME": " with more time", "": ""}.get(options, " with more memory")
    return [f"To run it again{how}: `moor rerun {run.name}{options}`{goes_on}"]


def _newest(run: RunView) -> PodView | None:
    pods = run.attempts[-1].pods
    return pods[-1] if pods else None


def moment_text(moment: datetime) -> str:
    """Format a date and time to the minute: "20 Nov 14:05 UTC"."""
    return moment.strftime("%d %b %H:%M UTC")
