"""Read `metav1.DeleteOptions` from a body and from query parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage_kube.errors import BadRequest, NumberError
from moorage_kube.integers import INT64_MAX, parse_integer
from moorage_kube.resources import Obj, Resource
from moorage_local.apiserver.pipeline.calls import DeleteOptions
from moorage_local.apiserver.types.fields import FieldErrors

SHOWN_MAX = 100  # characters of a client's text in a message


def delete_options_of(body: Obj, query: Mapping[str, str]) -> DeleteOptions:
    """Read `metav1.DeleteOptions` from a body and from query parameters. Raises BadRequest."""
    grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    policy: Any = body.get("propagationPolicy") or query.get("propagationPolicy") or None
    orphan = body.get("orphanDependents")
    if orphan is None and "orphanDependents" in query:
        orphan = query["orphanDependents"] == "true"
    if policy is None and orphan is not None:
        policy = "Orphan" if orphan else "Background"
    if policy not in (None, "Background", "Foreground", "Orphan"):
        errors = FieldErrors()
        errors.unsupported("propagationPolicy", policy, ["Foreground", "Background", "Orphan", "nil"])
        errors.raise_if_any(Resource("meta.k8s.io", "v1", "deleteoptions", "DeleteOptions"), "")
    wanted = body.get("preconditions") or {}
    if not isinstance(wanted, dict):
        raise BadRequest("preconditions must be an object")
    seconds = None
    if isinstance(grace, str) and grace:
        try:
            seconds = parse_integer(grace, minimum=-INT64_MAX - 1, name="gracePeriodSeconds")
        except NumberError as error:
            raise BadRequest(error.message) from None
    elif grace not in (None, ""):
        if type(grace) is not int or not -INT64_MAX - 1 <= grace <= INT64_MAX:
            raise BadRequest(f"gracePeriodSeconds must be an integer of 64 bits, not {str(grace)[:SHOWN_MAX]}")
        seconds = grace
    return DeleteOptions(
        grace_period_seconds=seconds,
        uid=wanted.get("uid"),
        resource_version=wanted.get("resourceVersion"),
        propagation=policy,
    )
