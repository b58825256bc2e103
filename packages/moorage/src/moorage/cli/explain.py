"""`moor explain`: why a run waits, which pods hold the missing resources, and how it ended."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from moorage.api.explain import Explanation
from moorage.cli import console
from moorage.cli.hints import as_typed
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, ask_about_run, in_session, target_options
from moorage.features import load_all
from moorage_kube.errors import Forbidden, NotFound, NotReady


@console.command(
    examples={
        "moor explain train-7f3a": "why a run waits or failed, and how to fix it",
        "moor explain train-7f3a -o json": "the same for a program",
        "moor explain nightly-x7k2p": "which steps of a workflow run, and why the others wait",
        "moor explain nightly-x7k2p/fit": "why one step of a workflow waits",
    }
)
@click.argument("name", shell_complete=complete("runs"))
@console.document_option
@target_options
def explain(target: Target, name: str, output: str) -> int:
    """Explain why a run or a pod waits.

    The missing resources, the pods that hold them and until when, its place in the queue, and requests that
    would start now. Of a run that has ended: how it ended, the cause, and how to fix it.

    NAME may be a workflow (`@latest`: the newest one), or WORKFLOW/STEP: which steps run, and why the others
    wait. For other users' runs, it prints only the facts that every user may read.
    """

    async def work(session: Session) -> int:
        whole, _, part = name.partition("/")
        if part or whole.startswith("@"):
            explanation = await _explain_by_feature(session, whole, part)
        else:
            try:
                explanation = await ask_about_run(session, Explanation, "/api/v1/explain/{namespace}/{name}", name)
            except NotFound as missing:
                try:
                    explanation = await _explain_by_feature(session, name, "")
                except (NotFound, NotReady, Forbidden):
                    raise missing from None
        if output == "text":
            console.show_text(as_typed(explanation.text))
        else:
            document = msgspec.to_builtins(explanation)
            del document["text"]
            console.print_document(document, output)
        return 0

    return in_session(target, work, asks_once=True)


async def _explain_by_feature(session: Session, name: str, part: str) -> Any:
    """The first explanation that a feature finds, a Struct of `api` with a `text`. Raises NotFound."""
    missing = NotFound(f"no object {name} was found")
    for explain_object in load_all("explain"):
        try:
            return await explain_object(session, name, part)
        except NotFound as error:
            missing = error
    raise missing
