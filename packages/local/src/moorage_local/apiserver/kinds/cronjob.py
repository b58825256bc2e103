"""CronJobs.

Defaults and checks are those of the real server's `defaults.go`, `validation.go` and `strategy.go`. The table
cells are those of its `printers.go`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from moorage_kube.integers import INT32_MAX, integer_or
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.cells import (
    NONE,
    age,
    created,
    selector_text,
    spec_of,
    status_of,
    template_containers,
)
from moorage_local.apiserver.kinds.common import born_with, not_negative, own_spec
from moorage_local.apiserver.kinds.job import default_failure_policy, validate_job_spec
from moorage_local.apiserver.kinds.kind import Rules, spec_changed
from moorage_local.apiserver.kinds.podspec.defaults import default_template
from moorage_local.apiserver.types.fields import FieldErrors

_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MACROS = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly")
_NAMES: tuple[tuple[str, ...], ...] = (
    (),
    (),
    (),
    ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
)


def _default(obj: Obj) -> None:
    spec = own_spec(obj)
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)
    job = spec.setdefault("jobTemplate", {})
    job.setdefault("metadata", {})
    inner = job.setdefault("spec", {})
    default_template(inner.setdefault("template", {}))
    default_failure_policy(inner.get("podFailurePolicy"))


def _validate(obj: Obj, errors: FieldErrors) -> None:
    spec = own_spec(obj)
    schedule = spec.get("schedule")
    if not schedule:
        errors.required("spec.schedule")
    elif problem := schedule_problem(schedule):
        errors.invalid("spec.schedule", schedule, problem)
    zone = spec.get("timeZone")
    if zone is not None and (problem := _zone_problem(zone)):
        errors.invalid("spec.timeZone", zone, problem)
    not_negative(
        spec, ("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit"), "spec", errors
    )
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    validate_job_spec(job, "spec.jobTemplate.spec", errors)
    name = obj["metadata"].get("name") or ""
    if len(name) > 52:
        errors.invalid("metadata.name", name, "must be no more than 52 characters")


def schedule_problem(text: str) -> str | None:
    """Return the error in a cron line of five fields or a macro; None if it is valid."""
    if "TZ" in text:
        return "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
    if text.startswith("@"):
        if text in _MACROS or text.startswith("@every "):
            return None
        return f"unrecognized descriptor: {text}"
    fields = text.split()
    if len(fields) != 5:
        return f"expected exactly 5 fields, found {len(fields)}: [{' '.join(fields)}]"
    for field, (low, high), names in zip(fields, _RANGES, _NAMES, strict=True):
        for part in field.split(","):
            span, _, step = part.partition("/")
            if step and not integer_or(step, 0, maximum=INT32_MAX):
                return f"step of range should be a positive number: {part}"
            if span in ("*", "?"):
                continue
            ends = span.split("-")
            if len(ends) > 2:
                return f"too many hyphens: {part}"
            numbers = []
            for end in ends:
                if end.lower() in names:
                    numbers.append(names.index(end.lower()) + (low if low else 0))
                elif (number := integer_or(end, -1, maximum=INT32_MAX)) >= 0:
                    numbers.append(number)
                else:
                    return f"failed to parse int from {end}"
            if numbers[0] < low:
                return f"beginning of range ({numbers[0]}) below minimum ({low}): {part}"
            if numbers[-1] > high:
                return f"end of range ({numbers[-1]}) above maximum ({high}): {part}"
            if numbers[0] > numbers[-1]:
                return f"beginning of range ({numbers[0]}) beyond end of range ({numbers[-1]}): {part}"
    return None


def _zone_problem(zone: str) -> str | None:
    import zoneinfo

    if not zone:
        return "timeZone must be nil or non-empty string"
    if zone.lower() == "local":
        return "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return f"unknown time zone {zone}"
    return None


def _cells(obj: Obj, now: datetime) -> Sequence[Any]:
    spec, status = spec_of(obj), status_of(obj)
    job = (spec.get("jobTemplate") or {}).get("spec") or {}
    names, images = template_containers(job.get("template"))
    last = status.get("lastScheduleTime")
    return (
        obj["metadata"]["name"],
        spec.get("schedule", ""),
        spec.get("timeZone") or NONE,
        "True" if spec.get("suspend") else "False",
        len(status.get("active") or ()),
        age(last, now) if last else NONE,
        created(obj, now),
        names,
        images,
        selector_text(job.get("selector")),
    )


RULES = {
    ("batch", "cronjobs"): Rules(
        default=_default, prepare_create=born_with(), validate=_validate, generation=spec_changed, cells=_cells
    ),
}
