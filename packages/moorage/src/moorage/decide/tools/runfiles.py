"""Convert files of `moor run -f` to Jobs, with the fields that target rules check."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from moorage.decide.admission.fields import Path
from moorage.decide.runs.request import DEFAULT_CPU, DEFAULT_MEMORY
from moorage.decide.tools.targetrules import TargetFinding
from moorage_kube.resources import Obj

# of a Job's container → the option of a run's file
_OPTIONS: Mapping[str, str] = {"cpu": "cpu", "memory": "memory", "nvidia.com/gpu": "gpus"}
_COMMANDS = ("command", "args", "cmd")


def is_run_file(document: Mapping[Any, Any]) -> bool:
    """Whether the document has options of a run, and is not a Kubernetes object."""
    return not {"kind", "apiVersion"} & document.keys() and any(key in document for key in _COMMANDS)


def job_of_run_file(document: Mapping[Any, Any]) -> Obj:
    """A Job with the amounts of the file, or else the defaults of `moor run`. Requests equal limits."""
    amounts: dict[str, Any] = {"cpu": DEFAULT_CPU, "memory": DEFAULT_MEMORY}
    amounts |= {name: document[name] for name in amounts if document.get(name) is not None}
    if document.get("machine") is not None:
        amounts = dict.fromkeys(amounts, "as the machine has it")  # no quantity: nothing is judged
    if str(amounts["memory"]).lower() == "none":
        del amounts["memory"]
    gpus = document.get("gpus")
    limits = amounts | ({"nvidia.com/gpu": gpus} if isinstance(gpus, int) and gpus > 0 else {})
    container = {"name": "run", "command": ["run"], "resources": {"requests": amounts, "limits": limits}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": document.get("name"), "namespace": document.get("namespace")},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


def run_file_finding(finding: TargetFinding) -> TargetFinding | None:
    """Move a finding to the option of the run file. None if the file has no such option, for example for disk."""
    option = _OPTIONS.get(str(finding.finding.path[-1]))
    if option is None:
        return None
    path: Path = (option,)
    return replace(finding, finding=replace(finding.finding, path=path), edit=None)
