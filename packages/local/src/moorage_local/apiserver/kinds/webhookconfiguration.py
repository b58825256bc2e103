"""Mutating and validating webhook configurations.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.resources import Obj
from moorage_local.apiserver.admission.conditions import Unsupported, parse_condition
from moorage_local.apiserver.kinds.cells import created, size
from moorage_local.apiserver.kinds.kind import Rules
from moorage_local.apiserver.types.fields import FieldErrors
from moorage_local.apiserver.types.metadata import name_problems

CONDITIONS_MAX = 64  # as in kube-apiserver


def _default(obj: Obj) -> None:
    for hook in obj.get("webhooks") or ():
        hook.setdefault("failurePolicy", "Fail")
        hook.setdefault("matchPolicy", "Equivalent")
        hook.setdefault("namespaceSelector", {})
        hook.setdefault("objectSelector", {})
        hook.setdefault("timeoutSeconds", 10)
        if obj.get("kind") == "MutatingWebhookConfiguration":
            hook.setdefault("reinvocationPolicy", "Never")
        for rule in hook.get("rules") or ():
            rule.setdefault("scope", "*")
        if "service" in (hook.get("clientConfig") or {}):
            hook["clientConfig"]["service"].setdefault("port", 443)


def _validate(obj: Obj, errors: FieldErrors) -> None:
    seen: set[str] = set()
    for at, hook in enumerate(obj.get("webhooks") or ()):
        path = f"webhooks[{at}]"
        # a name, once
        name = hook.get("name", "")
        if name in seen:
            errors.duplicate(f"{path}.name", name)
        seen.add(name)
        problems = name_problems(name, "subdomain")
        if not problems and name.count(".") < 2:
            problems = ["should be a domain with at least three segments separated by dots"]
        for problem in problems:
            errors.invalid(f"{path}.name", name, problem)
        # how it is called
        if not hook.get("sideEffects"):
            errors.required(f"{path}.sideEffects", "must specify one of None, NoneOnDryRun")
        elif hook["sideEffects"] not in ("None", "NoneOnDryRun"):
            errors.unsupported(f"{path}.sideEffects", hook["sideEffects"], ["None", "NoneOnDryRun"])
        versions = hook.get("admissionReviewVersions")
        if not versions:
            errors.required(f"{path}.admissionReviewVersions", "must specify one of v1, v1beta1")
        elif "v1" not in versions:
            errors.invalid(f"{path}.admissionReviewVersions", versions, "must include at least one of v1, v1beta1")
        if not 1 <= hook.get("timeoutSeconds", 10) <= 30:
            errors.invalid(
                f"{path}.timeoutSeconds",
                hook["timeoutSeconds"],
                "the timeout value must be between 1 and 30 seconds",
            )
        _check_conditions(f"{path}.matchConditions", hook.get("matchConditions") or [], errors)
        # where it is: an https URL
        config = hook.get("clientConfig") or {}
        if ("url" in config) == ("service" in config):
            errors.required(f"{path}.clientConfig", "exactly one of url or service is required")
        elif "service" in config:
            errors.invalid(
                f"{path}.clientConfig.service",
                config["service"],
                "the local cluster has no service network; use `url`",
            )
        elif not config["url"].startswith("https://"):
            errors.invalid(
                f"{path}.clientConfig.url",
                config["url"].partition(":")[0],
                "'https' is the only allowed URL scheme; desired format: https://host[/path]",
            )


def _check_conditions(path: str, conditions: Sequence[Obj], errors: FieldErrors) -> None:
    if len(conditions) > CONDITIONS_MAX:
        errors.invalid(path, len(conditions), f"must have at most {CONDITIONS_MAX} items")
    names = set()
    for at, condition in enumerate(conditions):
        where, name = f"{path}[{at}]", condition.get("name") or ""
        if not name:
            errors.required(f"{where}.name")
        elif name in names:
            errors.duplicate(f"{where}.name", name)
        names.add(name)
        expression = condition.get("expression") or ""
        if not expression:
            errors.required(f"{where}.expression")
            continue
        try:
            parse_condition(expression)
        except Unsupported as error:
            errors.invalid(f"{where}.expression", expression, f"the local cluster cannot evaluate it: {error}")


def _webhooks_changed(new: Obj, old: Obj) -> bool:
    return bool(new.get("webhooks") != old.get("webhooks"))


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    return obj["metadata"]["name"], size(obj, "webhooks"), created(obj, now)


_RULES = Rules(
    default=_default,
    validate=_validate,
    generation=_webhooks_changed,
    unconditional_update=False,
    cells=_cells,
)

RULES = {
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): _RULES,
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): _RULES,
}
