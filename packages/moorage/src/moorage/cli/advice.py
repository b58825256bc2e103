"""The advice of `moor run`, from the measured use of past runs of the same command."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from moorage.api.rightsizing import Rightsize, SizeAdvice
from moorage.cli.rightsize import PATH
from moorage.cli.session import Session
from moorage.decide.runs.forecast import work_of
from moorage.model.names import RUN_LABEL
from moorage.settings import ADVICE
from moorage_kube.errors import MoorageError
from moorage_kube.meta import labels_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import parse_pod

ADVICE_SECONDS = 2.0  # a run is not held up by a server that is slow


async def advice_for(session: Session, job: Obj) -> list[str]:
    """Remarks about a Job before it is submitted, from past runs of its command."""
    template = (job.get("spec") or {}).get("template") or {}
    spec = template.get("spec") or {}
    work = work_of(spec)
    if not work:
        return []
    pod = parse_pod({"metadata": {"name": "p", "namespace": session.namespace}, "spec": spec})
    params: dict[str, object] = {
        "namespace": session.namespace,
        "run": labels_of(job).get(RUN_LABEL) or str(job["metadata"].get("name") or ""),
        "work": work,
        "cpuMilli": pod.requests.get("cpu", 0),
        "memoryBytes": pod.requests.get("memory", 0) if _has_limit(spec) else 0,
        "gpus": pod.gpus,
    }
    return [_remark(advice) for advice in await _ask(session, params)]


def _has_limit(spec: Obj) -> bool:
    containers: Sequence[Obj] = spec.get("containers") or ()
    return any("memory" in ((each.get("resources") or {}).get("limits") or {}) for each in containers)


def _remark(advice: SizeAdvice) -> str:
    way = f"; to follow it: {advice.option}" if advice.option else ""
    return f"past runs of this command advise {advice.text}{way}"


async def _ask(session: Session, params: dict[str, object]) -> tuple[SizeAdvice, ...]:
    if not ADVICE.read(os.environ):
        return ()
    try:
        async with asyncio.timeout(ADVICE_SECONDS):
            answer = await session.server.ask(Rightsize, "GET", PATH, params=params)
    except (MoorageError, TimeoutError):
        return ()  # advice is never worth a failure
    return answer.works[0].advice if answer.works else ()
