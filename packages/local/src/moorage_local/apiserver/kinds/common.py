"""Rules that several kinds share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.types.fields import FieldErrors
from moorage_local.apiserver.types.metadata import label_value_problems, qualified_name_problems

IMMUTABLE = "field is immutable"


def own_spec(obj: Obj) -> Obj:
    """Return the spec of the object, to be changed in place; adds an empty spec if it is missing."""
    spec: Obj = obj.setdefault("spec", {})
    return spec


def immutable(new: Any, old: Any, path: str, errors: FieldErrors) -> None:
    if new != old:
        errors.invalid(path, new, IMMUTABLE)


def fixed(*keys: str) -> Callable[[Obj, Obj, FieldErrors], None]:
    """Return a check that refuses updates of these top-level fields."""

    def check(new: Obj, old: Obj, errors: FieldErrors) -> None:
        for key in keys:
            if new.get(key) != old.get(key):
                if key == "provisioner":
                    immutable(new.get(key), old.get(key), key, errors)
                else:
                    errors.forbidden(key, f"updates to {key} are forbidden.")

    return check


def not_negative(spec: Mapping[str, Any], keys: tuple[str, ...], path: str, errors: FieldErrors) -> None:
    for key in keys:
        value = spec.get(key)
        if value is not None and value < 0:
            errors.invalid(f"{path}.{key}", value, "must be greater than or equal to 0")


def born_with(**status: Any) -> Callable[[Obj], None]:
    """Return a hook that sets the status of a new object and ignores the client's."""

    def prepare(obj: Obj) -> None:
        obj["status"] = dict(status)

    return prepare


def validate_selector(selector: Mapping[str, Any], path: str, errors: FieldErrors) -> bool:
    """Check a `metav1.LabelSelector`. Returns True if it has errors."""
    before = len(errors.causes)
    for key, value in (selector.get("matchLabels") or {}).items():
        for problem in qualified_name_problems(key):
            errors.invalid(f"{path}.matchLabels", key, problem)
        for problem in label_value_problems(value):
            errors.invalid(f"{path}.matchLabels", value, problem)
    for at, expression in enumerate(selector.get("matchExpressions") or ()):
        where = f"{path}.matchExpressions[{at}]"
        operator, values = expression.get("operator", ""), expression.get("values") or ()
        if operator in ("In", "NotIn"):
            if not values:
                errors.required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                errors.forbidden(
                    f"{where}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                )
        else:
            errors.invalid(f"{where}.operator", operator, "not a valid selector operator")
        for problem in qualified_name_problems(expression.get("key", "")):
            errors.invalid(f"{where}.key", expression.get("key", ""), problem)
    return len(errors.causes) > before
