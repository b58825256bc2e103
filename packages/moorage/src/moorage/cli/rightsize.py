"""`moor rightsize`, and the advice of `moor run`: what runs should ask for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import click
import msgspec

from moorage.api.rightsizing import Rightsize, SizeAdvice
from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.decide.runs.forecast import work_of
from moorage.model.names import RUN_LABEL
from moorage.present.rightsizing import amount
from moorage.settings import ADVICE
from moorage_kube.errors import MoorageError
from moorage_kube.meta import labels_of
from moorage_kube.resources import Obj
from moorage_kube.scheduling import parse_pod

PATH = "/api/v1/rightsize"
ADVICE_SECONDS = 2.0  # a run is not held up by a server that is slow
HEADERS = ("RUN", "OWNER", "RESOURCE", "ASKED", "ADVISED", "RUNS", "WHY")


@console.command(
    examples={
        "moor rightsize": "runs of your namespace that ask for too much or too little",
        "moor rightsize train-7f3a": "of the work of one run",
        "moor rightsize -A": "in all namespaces that you may read",
    }
)
@click.argument("name", required=False, shell_complete=complete("runs"))
@click.option("-A", "--all-namespaces", is_flag=True, help="Runs of all namespaces that you may read.")
@console.output_option
@target_options
def rightsize(target: Target, name: str | None, all_namespaces: bool, output: str) -> int:
    """Show which runs ask for more or less than they use, by what past runs of the same command used.

    Runs of one user with the same image and command count as one work, under the name of the newest. RUNS is the
    number of past runs that the advice stands on.
    """
    if name and all_namespaces:
        raise click.UsageError("give the name of a run, or --all-namespaces, not both")

    async def work(session: Session) -> int:
        namespace = "" if all_namespaces else session.namespace
        params = {"namespace": namespace, "run": name or ""}
        answer = await session.server.ask(Rightsize, "GET", PATH, params=params)
        works = [work for work in answer.works if work.advice]
        known = f"past runs of the work of {name} give none" if name else "past runs give none"
        console.print_listing(
            output,
            headers=(("NAMESPACE",) if all_namespaces else ()) + HEADERS,
            rows=lambda: [
                [
                    *([work.namespace] if all_namespaces else []),
                    work.name,
                    work.owner,
                    advice.resource,
                    amount(advice, advice.asked),
                    "" if advice.to is None else amount(advice, advice.to),
                    str(advice.runs),
                    advice.text.partition(": ")[2],
                ]
                for work in works
                for advice in work.advice
            ],
            items=[msgspec.to_builtins(work) for work in works],
            names=[work.name for work in works],
            nothing=f"no advice: {known}",
        )
        return 0

    return in_session(target, work)


async def advice_for(session: Session, job: Obj) -> list[str]:
    """Remarks about a Job that is to be submitted, by past runs of its command."""
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
