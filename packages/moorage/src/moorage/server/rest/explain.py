"""GET /api/v1/explain/{namespace}/{name}: why a run or a pod waits, or how it ended. POST: why a new
one would wait.

Users who may read the pods of its namespace get everything; all others, its owner too, only the
public part.
"""

from __future__ import annotations

from typing import Any

from moorage.api.errors import ErrorCode
from moorage.api.explain import Explanation as ExplanationAnswer
from moorage.api.explain import PodQuestion
from moorage.present.explanationanswer import make_explanation
from moorage.server.endpoint import Call, Endpoint
from moorage.server.explaining import explained, explained_new
from moorage_kube.errors import QuantityError, UsageError

ALL = "/api/v1/explain"
BODY_BYTES = 3 * 1024 * 1024  # etcd's own limit on an object is half of it


async def explain(call: Call[None, None]) -> ExplanationAnswer:
    """Explain why a run or a pod waits, how long, and how it could start sooner; or how it ended."""
    return make_explanation(await explained(call.context, call.namespace, call.name, call.user))


async def explain_new(call: Call[PodQuestion, None]) -> ExplanationAnswer:
    """Explain why a pod that does not exist yet would wait."""
    question = call.body
    meta = question.pod.get("metadata")
    if not isinstance(meta, dict) or meta.get("uid"):
        raise UsageError(
            "the pod has no metadata, or exists already",
            hint="explain a pod that exists: GET /api/v1/explain/NAMESPACE/NAME",
            code=ErrorCode.INVALID,
            field="pod",
        )
    try:
        return make_explanation(await explained_new(call.context, question))
    except (QuantityError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(
            f"the pod cannot be read: {error}", hint="send a v1 Pod", code=ErrorCode.INVALID, field="pod"
        ) from error


ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (
    Endpoint(method="GET", path=f"{ALL}/{{namespace}}/{{name}}", handler=explain, answer=ExplanationAnswer),
    Endpoint(
        method="POST",
        path=ALL,
        handler=explain_new,
        body=PodQuestion,
        body_bytes=BODY_BYTES,
        any_media_type=True,
        answer=ExplanationAnswer,
    ),
)
