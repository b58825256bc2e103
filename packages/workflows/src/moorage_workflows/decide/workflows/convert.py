"""Convert documents to workflows with the fields of Argo v4, and report each field.

CronJobs become CronWorkflows. Argo's own documents get the fields of v4: `schedules`, `mutexes`, `semaphores`.
Other documents are not changed. https://argo-workflows.readthedocs.io/en/latest/upgrading/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from moorage.decide.admission.fields import Path, at, mapping, sequence
from moorage.decide.admission.templates import WORKFLOWS
from moorage.model.argo import GROUP, VERSION
from moorage_kube.resources import Obj
from moorage_workflows.decide.workflows.changes import Converted, Ledger
from moorage_workflows.decide.workflows.cronjobs import API_VERSIONS, convert_cronjob
from moorage_workflows.decide.workflows.support import unsupported

_LISTS = {"mutex": "mutexes", "semaphore": "semaphores"}  # of `synchronization`: v3's word → v4's


def convert_documents(documents: Iterable[Any], *, time_zone: str = "") -> Iterator[Converted]:
    """Convert every document of a file; a List gives its items. Never raises, for any content."""
    for document in documents:
        if document is None:
            continue
        if isinstance(document, dict) and document.get("kind") == "List":
            yield from convert_documents(sequence(document.get("items")), time_zone=time_zone)
            continue
        yield convert(document, time_zone=time_zone)


def convert(document: Any, *, time_zone: str = "") -> Converted:
    """Convert one document. The argument is not changed."""
    if not isinstance(document, dict):
        ledger = Ledger()
        ledger.refused((), f"is not a Kubernetes object but a {type(document).__name__}")
        return Converted(kind="", name="", document=None, changes=tuple(ledger.changes))
    kind, version = document.get("kind"), document.get("apiVersion")
    if kind == "CronJob" and version in API_VERSIONS:
        return _with_limits(convert_cronjob(document, time_zone=time_zone))
    name = str(mapping(document.get("metadata")).get("name") or "")
    if isinstance(kind, str) and kind in WORKFLOWS and version == f"{GROUP}/{VERSION}":
        return _respelled(kind, name, document)
    return Converted(kind=str(kind or ""), name=name, document=document, is_changed=False)


def _with_limits(result: Converted) -> Converted:
    """The result, with the features in it that Moorage does not support."""
    if result.document is None:
        return result
    ledger = Ledger()
    for finding in unsupported(result.document):
        ledger.advice(finding.path, f"of the result: {finding.message}. Argo's own controller may run it")
    return replace(result, changes=(*result.changes, *ledger.changes))


def _respelled(kind: str, name: str, document: Obj) -> Converted:
    """Convert an Argo document to the field names of v4."""
    ledger = Ledger()
    made: Obj = _copied(document)
    if kind == "CronWorkflow":
        _schedules(made, ledger)
    root = WORKFLOWS[kind]
    places: list[Path] = [root, (*root, "templateDefaults")]
    places += [(*root, "templates", index) for index in range(len(sequence(at(made, (*root, "templates")))))]
    for place in places:
        synchronization = at(made, (*place, "synchronization"))
        if isinstance(synchronization, dict):
            _plural(synchronization, (*place, "synchronization"), ledger)
    is_changed = bool(ledger.changes)
    return Converted(
        kind=kind,
        name=name,
        document=None if ledger.is_refused else made,
        changes=tuple(ledger.changes),
        is_changed=is_changed,
    )


def _schedules(made: Obj, ledger: Ledger) -> None:
    spec = made.get("spec")
    if not isinstance(spec, dict) or "schedule" not in spec:
        return
    path: Path = ("spec", "schedule")
    schedule, listed = spec["schedule"], spec.get("schedules")
    if not isinstance(schedule, str) or not isinstance(listed, list | None):
        ledger.refused(path, f"must be a string such as '0 19 * * *' (found {schedule!r})")
        return
    schedules = [*(listed or ())]
    if schedule and schedule not in schedules:
        schedules.insert(0, schedule)
    made["spec"] = {
        ("schedules" if key == "schedule" else key): (schedules if key == "schedule" else value)
        for key, value in spec.items()
        if key != "schedules"
    }
    ledger.kept(path, "spec.schedules", "v4 has a list")


def _plural(synchronization: dict[str, Any], path: Path, ledger: Ledger) -> None:
    for old, new in _LISTS.items():
        if old not in synchronization:
            continue
        held, listed = synchronization.pop(old), synchronization.get(new)
        if not isinstance(held, dict | None) or not isinstance(listed, list | None):
            ledger.refused((*path, old), f"must be a mapping, and {new} a list")
            continue
        locks = [*(listed or ())]
        if held is not None and held not in locks:
            locks.insert(0, held)
        if locks:
            synchronization[new] = locks
        ledger.kept((*path, old), f"{new}", "v4 has a list")


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    return value
