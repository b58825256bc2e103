"""`moor rightsize`: advice on the requests of runs."""

from __future__ import annotations

import click
import msgspec

from moorage.api.rightsizing import Rightsize
from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.present.rightsizing import amount

PATH = "/api/v1/rightsize"
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
    """Show which runs ask for more or less than past runs of the same command used.

    Runs of one user with the same image and command count as one work, under the name of the newest. RUNS is the
    number of past runs behind the advice.
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

    return in_session(target, work, asks_once=True)
