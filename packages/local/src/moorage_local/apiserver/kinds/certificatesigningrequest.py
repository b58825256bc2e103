"""CertificateSigningRequests: each stores its author, which never changes. They are not signed here.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from moorage_kube.clock import format_duration
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import NONE, created, spec_of, status_of
from moorage_local.apiserver.kinds.kind import Rules
from moorage_local.apiserver.types.fields import FieldErrors

SECONDS_MIN = 600
LEGACY = "kubernetes.io/legacy-unknown"
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SIGNER = re.compile(rf"{_LABEL}(\.{_LABEL})+/{_LABEL}([./]{_LABEL})*")
_REQUESTER = ("username", "uid", "groups", "extra")
_PEM = "-----BEGIN {}-----"


def _prepare_create(obj: Obj) -> None:
    obj["status"] = {}


def _requested_by(obj: Obj, user: Obj) -> None:
    """Set the author of the request; values that the client sent are replaced."""
    spec = obj.setdefault("spec", {})
    for field in _REQUESTER:
        spec.pop(field, None)
    spec |= {field: user[field] for field in _REQUESTER if user.get(field)}


def _prepare_update(new: Obj, old: Obj) -> None:
    new["spec"], new["status"] = old.get("spec") or {}, old.get("status") or {}


def _prepare_status(new: Obj, old: Obj) -> None:
    new["spec"] = old.get("spec") or {}


def _validate(obj: Obj, errors: FieldErrors) -> None:
    spec = spec_of(obj)
    if _PEM.format("CERTIFICATE REQUEST") not in _text(spec.get("request")):
        errors.invalid("spec.request", spec.get("request"), "PEM block type must be CERTIFICATE REQUEST")
    usages = spec.get("usages") or ()
    if not usages:
        errors.required("spec.usages")
    for index, usage in enumerate(usages):
        if usage in usages[:index]:
            errors.duplicate(f"spec.usages[{index}]", usage)
    signer = spec.get("signerName") or ""
    if not signer:
        errors.required("spec.signerName")
    elif signer == LEGACY:
        errors.invalid("spec.signerName", signer, "the legacy signerName is not allowed via this API version")
    elif not _SIGNER.fullmatch(signer):
        form = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        errors.invalid("spec.signerName", signer, form)
    seconds = spec.get("expirationSeconds")
    if seconds is not None and seconds < SECONDS_MIN:
        least = "may not specify a duration less than 600 seconds (10 minutes)"
        errors.invalid("spec.expirationSeconds", seconds, least)


def _validate_status(new: Obj, _old: Obj, errors: FieldErrors) -> None:
    certificate = status_of(new).get("certificate")
    if certificate and _PEM.format("CERTIFICATE") not in _text(certificate):
        errors.invalid(
            "status.certificate", "<certificate data>", "must contain at least one CERTIFICATE PEM block"
        )


def _text(encoded: Any) -> str:
    try:
        return base64.b64decode(str(encoded or ""), validate=True).decode("ascii", "replace")
    except (binascii.Error, ValueError):
        return ""


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = spec_of(obj), status_of(obj)
    seconds = spec.get("expirationSeconds")
    words = [str(each.get("type")) for each in status.get("conditions") or ()]
    state = ",".join(words or ["Pending"]) + (",Issued" if status.get("certificate") else "")
    return (
        obj["metadata"]["name"],
        created(obj, now),
        spec.get("signerName") or NONE,
        spec.get("username") or "",
        NONE if seconds is None else format_duration(timedelta(seconds=seconds)),
        state,
    )


RULES = {
    ("certificates.k8s.io", "certificatesigningrequests"): Rules(
        prepare_create=_prepare_create,
        requested_by=_requested_by,
        prepare_update=_prepare_update,
        prepare_status=_prepare_status,
        validate=_validate,
        validate_status=_validate_status,
        generation=None,
        field_selectors=frozenset({"spec.signerName"}),
        cells=_cells,
    ),
}
