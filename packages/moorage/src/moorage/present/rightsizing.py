"""Advice about the requests of work, as text and as JSON."""

from __future__ import annotations

from typing import assert_never

from moorage.api.rightsizing import AskedFor, SizeAdvice, WorkAdvice
from moorage.decide.usage.rightsizing import Advice, Kind, Work
from moorage_kube.quantity import counted, format_bytes, format_milli

DECIMALS = 3


def advice_text(advice: Advice) -> str:
    """Advice as text, such as "memory 16Gi → 2560Mi: 3 runs used 2Gi at most, in 3 h"."""
    runs, used = counted(advice.runs, "run"), advice.used
    hours = f"{advice.hours:,.1f} h" if advice.hours >= 0.1 else f"{advice.hours * 60:,.0f} min"
    match advice.kind:
        case Kind.RAISE_MEMORY_KILLED:
            why = f"{runs} killed for memory at {format_bytes(int(used))}"
        case Kind.RAISE_MEMORY_NEAR:
            why = f"{runs} used up to {format_bytes(int(used))}, which is near the limit"
        case Kind.LOWER_MEMORY:
            why = f"{runs} of {hours} together used {format_bytes(int(used))} at most"
        case Kind.RAISE_CPU:
            why = f"{runs} of {hours} together used all of their CPU, {format_milli(round(used))} on average"
        case Kind.LOWER_CPU:
            why = f"{runs} of {hours} together used {format_milli(round(used))} at most"
        case Kind.NO_GPUS:
            why = f"{runs} with {advice.hours:,.1f} GPU-hours did not use them, {used:.1f} % of the time"
        case Kind.FEWER_GPUS:
            why = f"{runs} with {advice.hours:,.1f} GPU-hours never used more than {used:.0f} at a time"
        case Kind.LITTLE_USED_GPUS:
            why = f"{runs} with {advice.hours:,.1f} GPU-hours used them {used:.0f} % of the time"
        case _:
            assert_never(advice.kind)
    word = {"memory": "memory", "cpu": "CPU", "gpus": "GPUs"}[advice.resource]
    change = amount(advice, advice.asked) + ("" if advice.to is None else f" → {amount(advice, advice.to)}")
    return f"{word} {change}: {why}"


def amount(advice: Advice | SizeAdvice, value: int) -> str:
    """A value of the resource that the advice is about, as an option takes it: 2560Mi, 1500m, 4."""
    if advice.resource == "memory":
        if value % (1 << 30) == 0:
            return f"{value >> 30}Gi"
        return f"{value >> 20}Mi" if value % (1 << 20) == 0 else format_bytes(value)
    return format_milli(value) if advice.resource == "cpu" else str(value)


def option(advice: Advice) -> str:
    """The change as an option of `moor run`; "" if there is none."""
    if advice.to is None:
        return ""
    return f"--{advice.resource} {amount(advice, advice.to)}"


def make_work(work: Work) -> WorkAdvice:
    """Convert a piece of work to an answer."""
    return WorkAdvice(
        namespace=work.namespace,
        owner=work.owner,
        name=work.name,
        runs=len(work.pasts),
        ended=work.ended,
        asked=AskedFor(cpu_milli=work.asked.cpu_milli, memory_bytes=work.asked.memory_bytes, gpus=work.asked.gpus),
        advice=tuple(
            SizeAdvice(
                kind=each.kind.value,
                resource=each.resource,
                asked=each.asked,
                to=each.to,
                used=round(each.used, DECIMALS),
                runs=each.runs,
                hours=round(each.hours, DECIMALS),
                option=option(each),
                text=advice_text(each),
            )
            for each in work.advice
        ),
    )
