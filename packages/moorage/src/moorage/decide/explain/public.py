"""The part of an explanation that all users may see."""

from __future__ import annotations

from msgspec.structs import replace

from moorage.decide.explain.starting import BEING_STARTED, Starting
from moorage.decide.explain.storage import Trouble
from moorage.decide.explain.types import Explanation, Refusal, Verdict
from moorage.decide.runs.kueue import QueueWait
from moorage.decide.runs.state import RunView
from moorage.model.names import MACHINE_GATE
from moorage_kube.scheduling import is_gpu


def as_public(full: Explanation) -> Explanation:
    """Reduce an explanation to the part that all users may see: owners, GPUs, nodes and times.

    Removed: amounts of CPU and memory, names of volumes, values of labels, taints and selectors, messages of the
    scheduler, of quotas and of admission.
    """
    # texts that may quote volumes, labels or messages are replaced by general ones
    hidden = Trouble("", "a volume is not ready")
    codes = {
        "no_gpus": "no node of this cluster has GPUs",
        "unknown_gpu_type": f"GPU type {' or '.join(full.gpu_types)} is not in the cluster",
        "more_than_any_node": "it asks for more than any node has",
    }
    # GPUs, nodes and times are public; all other amounts and texts are removed
    return replace(
        full,
        public=True,
        asks={name: value for name, value in full.asks.items() if is_gpu(name)},
        missing=tuple(resource_missing for resource_missing in full.missing if is_gpu(resource_missing.resource)),
        held_by=tuple(held for held in full.held_by if is_gpu(held.resource)),
        verdicts=tuple(
            replace(verdict, reasons=_public_reasons(verdict, full.gpus) if verdict.reasons else ())
            for verdict in full.verdicts
        ),
        obstacles=tuple(
            obstacle for obstacle in full.obstacles if obstacle.endswith((" is cordoned", " is not Ready"))
        ),
        missing_claims=(),
        troubles=(hidden,) if full.troubles else (),
        quota="its namespace's quota is used up" if full.quota else "",
        not_made="its pod could not be created" if full.not_made else "",
        scheduler_says="",
        queue=QueueWait(full.queue.queue, "") if full.queue is not None else None,
        gates=tuple(gate if gate == MACHINE_GATE else "of another part" for gate in full.gates),
        killed="",
        smaller=(),
        starting=Starting(reason=BEING_STARTED) if full.starting else None,
        ended=_public_run(full.ended) if full.ended is not None else None,
        refusals=tuple(
            Refusal(code=refusal.code, message=codes.get(refusal.code, "no node accepts it as it is"), hint="")
            for refusal in full.refusals
        ),
    )


def _public_run(run: RunView) -> RunView:
    """A copy of a run without its command, labels, memory and messages."""
    return replace(
        run,
        command="",
        requests={},
        labels={},
        attempts=tuple(
            replace(
                attempt,
                message="",
                pods=tuple(
                    replace(pod, message="", memory_limit_bytes=None, peak_memory_bytes=None)
                    for pod in attempt.pods
                ),
            )
            for attempt in run.attempts
        ),
    )


def _public_reasons(verdict: Verdict, gpus: int) -> tuple[str, ...]:
    open_to_all = [
        text for text in verdict.reasons if text in ("it is not Ready", "it is cordoned (unschedulable)")
    ]
    if open_to_all:
        return tuple(open_to_all)
    return ("too few GPUs free",) if gpus and verdict.gpus_free < gpus else ("it does not suit",)
