"""Protect the Secret of a run or map: only its owner's Jobs and pods may mount it.

Members of a tenant cannot read Secrets, but a user who creates a pod could have the kubelet read one. The name of
such a Secret contains the owner (`moorage.decide.runs.names`), so nothing is read to judge this. A name counts
anywhere in the pod's spec: volumes, variables, pull secrets, drivers.

Other members may change the templates from which controllers create pods later, so these must not name such a
Secret. The template of a Job cannot be changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from moorage.decide.admission.fields import Path, at, field_of
from moorage.decide.admission.review import MASTERS, OPERATOR, Refusal, Request
from moorage.decide.admission.templates import WORKLOADS
from moorage.decide.runs.names import OwnedSecret, owned_secret
from moorage.model.names import MAP_LABEL, OWNER_ANNOTATION, RUN_LABEL
from moorage.model.people import account_user
from moorage_kube.meta import annotations_of, controller_ref, labels_of


def judge_secrets(request: Request) -> tuple[Refusal, ...]:
    """Refusals of Secrets in a workload: those of another member, and those that its kind may not use."""
    if request.kind not in WORKLOADS or request.is_mirror:
        return ()
    whole = request.kind == "MapJob"  # a user who changes its command makes another program read the mounted files
    path: Path = ("spec",) if whole else (*WORKLOADS[request.kind], "spec")
    spec = at(request.obj, path)
    if request.old is not None and at(request.old, path) == spec:
        return ()
    reason = "must not be the Secret of a run that another user owns"
    return tuple(
        Refusal(field_of(where), name, reason)
        for where, name, secret in _named(spec, path)
        if not _may_name(request, secret)
    )


def _named(spec: Any, path: Path) -> Iterator[tuple[Path, str, OwnedSecret]]:
    waiting: list[tuple[Path, Any]] = [(path, spec)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [((*where, key), item) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [((*where, index), item) for index, item in enumerate(value)]
        elif isinstance(value, str) and (secret := owned_secret(value)) is not None:
            yield where, value, secret


def _may_name(request: Request, secret: OwnedSecret) -> bool:
    if MASTERS in request.groups:
        return True
    if request.kind not in ("Job", "Pod", "MapJob"):
        return False
    if not request.is_copy:
        return _is_of(secret, request.user)
    owner = str(annotations_of(request.obj).get(OWNER_ANNOTATION) or "")
    if request.kind == "Pod":  # the Job was judged
        is_made_from = (controller_ref(request.obj) or {}).get("kind") == "Job"
    else:  # a next attempt of the run, or workers of the map; not Jobs of a CronJob
        names = [labels_of(request.obj).get(label) for label in (RUN_LABEL, MAP_LABEL)]
        is_made_from = request.user == OPERATOR and secret.run in names
    return is_made_from and _is_of(secret, owner)


def _is_of(secret: OwnedSecret, person: str) -> bool:
    """Whether a Secret belongs to a user, by user name or account.

    A client without a server knows only the account.
    """
    return bool(person) and (secret.is_of(person) or secret.is_of(account_user(person)))
