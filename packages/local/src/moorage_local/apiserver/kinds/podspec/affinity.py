"""Checks of the affinity of pods and pod templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moorage_local.apiserver.types.fields import FieldErrors
from moorage_local.apiserver.types.metadata import qualified_name_problems


def validate_affinity(affinity: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    node = affinity.get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        where = f"{path}.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        terms = required.get("nodeSelectorTerms") or ()
        if not terms:
            errors.required(f"{where}.nodeSelectorTerms", "must have at least one node selector term")
        for at, term in enumerate(terms):
            validate_node_term(term, f"{where}.nodeSelectorTerms[{at}]", errors)
    for at, preferred in enumerate(node.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
        where = f"{path}.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[{at}]"
        _validate_weight(preferred.get("weight", 0), f"{where}.weight", errors)
        validate_node_term(preferred.get("preference") or {}, f"{where}.preference", errors)
    for sort in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(sort) or {}
        for at, term in enumerate(rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ()):
            where = f"{path}.{sort}.requiredDuringSchedulingIgnoredDuringExecution[{at}]"
            if not term.get("topologyKey"):
                errors.required(f"{where}.topologyKey", "can not be empty")
        for at, weighted in enumerate(rules.get("preferredDuringSchedulingIgnoredDuringExecution") or ()):
            where = f"{path}.{sort}.preferredDuringSchedulingIgnoredDuringExecution[{at}]"
            _validate_weight(weighted.get("weight", 0), f"{where}.weight", errors)
            if not (weighted.get("podAffinityTerm") or {}).get("topologyKey"):
                errors.required(f"{where}.podAffinityTerm.topologyKey", "can not be empty")


def _validate_weight(weight: int, path: str, errors: FieldErrors) -> None:
    if not 1 <= weight <= 100:
        errors.invalid(path, weight, "must be in the range 1-100")


def validate_node_term(term: Mapping[str, Any], path: str, errors: FieldErrors) -> None:
    for at, expression in enumerate(term.get("matchExpressions") or ()):
        where = f"{path}.matchExpressions[{at}]"
        operator, values = expression.get("operator", ""), expression.get("values") or ()
        match operator:
            case "In" | "NotIn":
                if not values:
                    errors.required(f"{where}.values", "must be specified when `operator` is 'In' or 'NotIn'")
            case "Exists" | "DoesNotExist":
                if values:
                    errors.forbidden(
                        f"{where}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                    )
            case "Gt" | "Lt":
                if len(values) != 1:
                    errors.required(
                        f"{where}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"
                    )
            case _:
                errors.invalid(f"{where}.operator", operator, "not a valid selector operator")
        for problem in qualified_name_problems(expression.get("key", "")):
            errors.invalid(f"{where}.key", expression.get("key", ""), problem)
    for at, field in enumerate(term.get("matchFields") or ()):
        where = f"{path}.matchFields[{at}]"
        if field.get("key") != "metadata.name":
            errors.invalid(f"{where}.key", field.get("key", ""), "not a valid field selector key")
        if field.get("operator") not in ("In", "NotIn"):
            errors.invalid(f"{where}.operator", field.get("operator", ""), "not a valid selector operator")
        elif len(field.get("values") or ()) != 1:
            errors.required(
                f"{where}.values",
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            )
