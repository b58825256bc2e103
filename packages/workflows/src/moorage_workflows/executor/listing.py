"""`data`: lists the keys of a data template's source and transforms the list.

https://argo-workflows.readthedocs.io/en/latest/data-sourcing-and-transformation/
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moorage.decide.evaluation import Budget, TextError
from moorage_workflows.decide.workflows.text.expressions import evaluate
from moorage_workflows.decide.workflows.text.values import json_text
from moorage_workflows.executor.errors import StepError
from moorage_workflows.executor.order import Order
from moorage_workflows.executor.retrying import Retrying
from moorage_workflows.executor.stores import Stores
from moorage_workflows.executor.web import Server

KEYS = 100_000  # of one source, as many as a list of an expression may have
RESULT_BYTES = 256 * 1024


def data_report(order: Order, server: Callable[[], Server], stores: Stores, retrying: Retrying) -> dict[str, Any]:
    """The report, in the form of `moorage_workflows.model.workflow.StepReport`. Raises StepError."""
    location: Mapping[str, Any] = order.data["location"]
    keys = retrying.call("the source", lambda: _keys(location, server, stores))
    if len(keys) > KEYS:
        raise StepError(f"the source has {len(keys)} keys, and at most {KEYS} are listed: use a longer key")
    print(f"moorage: {len(keys)} keys", flush=True)
    data: Any = keys
    for number, expression in enumerate(order.data["expressions"]):
        try:
            data = evaluate(str(expression), {"data": data})
        except TextError as error:
            raise StepError(f"transformation[{number}] {expression!r}: {error.message}") from error
    try:
        text = json_text(data, Budget())
    except TextError as error:
        raise StepError(f"the result of the transformation is not JSON: {error.message}") from error
    size = len(text.encode())
    if size > RESULT_BYTES:
        raise StepError(f"the list has {size} bytes, and a result has at most {RESULT_BYTES}: use a longer key")
    return {"pod": order.pod, "outputs": {"result": text}}


def _keys(location: Mapping[str, Any], server: Callable[[], Server], stores: Stores) -> list[str]:
    """Keys below the source's key, in order; complete keys of the store, so that an artifact can use them."""
    if set(location) <= {"key"}:
        key = str(location.get("key") or "")
        prefix = f"{key}/" if key else ""
        return sorted(prefix + name for name in server().keys_below(key))
    return sorted(stores.keys(location))
