"""Runs on machines of fixed sizes. An administrator offers the machines, and `moor machines` lists them."""

from __future__ import annotations

from collections.abc import Mapping

from moorage.decide.runs.remarks import Remarks
from moorage.decide.runs.request import ClusterFacts, RunRequest
from moorage.model.names import GUARD_LABEL, MACHINE_CONTAINER_LABEL, MACHINE_GROUP_LABEL, MACHINE_TYPE_LABEL


def machine_labels(
    request: RunRequest, facts: ClusterFacts, remarks: Remarks, *, container: str
) -> Mapping[str, str]:
    """The labels of a pod that asks for the machine of a request; none without one. Faults are refused.

    Admission gives such a pod the machine's size, its nodes, and its place in line.
    """
    if request.machine is None:
        return {}
    machine = request.machine
    group, slash, kind = machine.partition("/")
    given = {
        "gpus": request.gpus or None,
        "gpuType": request.gpu_type,
        "gpuResource": request.gpu_resource,
        "gpuClaim": request.gpu_claim,
        "cpu": request.cpu,
        "memory": request.memory,
    }
    if beside := [name for name, value in given.items() if value is not None]:
        hint = f"a machine has its size: leave out {', '.join(beside)}"
        remarks.refuse("machine", f"machine {machine!r} together with {', '.join(beside)}", hint)
    elif not (group and slash and kind):
        remarks.refuse("machine", f"invalid machine {machine!r}: use GROUP/TYPE", "list them: moor machines")
    elif facts.machines is not None and machine not in facts.machines:
        known = ", ".join(sorted(facts.machines))
        hint = f"available: {known}" if known else "an administrator has to offer machines first"
        remarks.refuse("machine", f"machine {machine!r} not found", hint)
    elif facts.is_guarded is False:
        remarks.refuse(
            "machine",
            f"machine {machine!r} not possible: namespace {request.namespace} is not guarded",
            f"an administrator can label it: kubectl label namespace {request.namespace} {GUARD_LABEL}=enabled",
        )
    return {MACHINE_GROUP_LABEL: group, MACHINE_TYPE_LABEL: kind, MACHINE_CONTAINER_LABEL: container}
