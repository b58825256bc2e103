"""Responses of the admission endpoints in the format of the API server."""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping

import msgspec
from starlette.responses import PlainTextResponse, Response

from moorage.decide.admission.review import Verdict
from moorage_kube.documents import without_depth
from moorage_kube.errors import DocumentError
from moorage_kube.resources import Obj

log = logging.getLogger(__name__)

_WARNING_MAX = 256  # characters; longer ones may be cut on their way


class _AnyReview(msgspec.Struct, frozen=True):
    """The fields of a review with an unreadable object."""

    request: _AnyRequest


class _AnyRequest(msgspec.Struct, frozen=True):
    uid: str


def unreadable(body: bytes, error: DocumentError) -> Response:
    """The response to an invalid review: a refusal, because the failure policy may let failed calls pass."""
    try:
        uid = msgspec.json.decode(without_depth(body), type=_AnyReview).request.uid
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return PlainTextResponse(f"invalid AdmissionReview: {error}", 400)
    log.info("refused: the object cannot be read", extra={"error": str(error)})
    return review(refusal(uid, 422, "Invalid", f"the object cannot be checked: {error}"))


def review(answer: Obj) -> Response:
    made = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}
    return Response(msgspec.json.encode(made), media_type="application/json")


def refusal(uid: str, code: int, reason: str, message: str) -> Obj:
    return {"uid": uid, "allowed": False, "status": {"code": code, "reason": reason, "message": message}}


def response(uid: str, verdict: Verdict, fields: Mapping[str, str]) -> Obj:
    answer: Obj = {"uid": uid, "allowed": not verdict.refusals}
    if verdict.refusals:
        # the API server passes code, reason and causes on to the caller, and puts our name before the message
        causes = [
            {
                "reason": "FieldValueInvalid",
                "message": each.message + (f" (found {each.value})" if each.value else ""),
                "field": each.field,
            }
            for each in verdict.refusals
        ]
        answer["status"] = {
            "code": 422,
            "reason": "Invalid",
            "message": "; ".join(str(each) for each in verdict.refusals),
            "details": {"causes": causes},
        }
        log.info("refused", extra=fields)
    elif verdict.patches:
        answer["patchType"] = "JSONPatch"
        answer["patch"] = base64.b64encode(msgspec.json.encode(verdict.patches)).decode()
    if verdict.warnings:
        answer["warnings"] = [text[:_WARNING_MAX] for text in verdict.warnings]
    return answer
