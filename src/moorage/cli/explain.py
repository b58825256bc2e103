"""`moor explain`: why a run waits, and who holds what it needs."""

from __future__ import annotations

from typing import Any

import click

from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.errors import Forbidden, NotFound, NotReady, ServerError, Unauthorized


@click.command()
@click.argument("name")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True)
@target_options
def explain(target: Target, name: str, output: str) -> int:
    """Say why a run (or a pod) waits: what is missing, who holds it and until when, its place in line, and what
    would start now.

    Of other users' runs it says what everybody may know.
    """

    async def work(session: Session) -> int:
        try:
            body = await session.server.get(f"/api/v1/explain/{session.namespace}/{name}")
        except (NotReady, ServerError, Unauthorized, Forbidden):
            body = await _explain_here(session, name)
        except NotFound as missing:
            try:
                body = await _explain_here(
                    session, name
                )  # newer than the server's cache, or it names the near ones
            except Forbidden:
                raise missing from None
        text = str(body.pop("text"))
        if output == "text":
            console.show(text)
        else:
            console.print_document(body, output)
        return 0

    return in_session(target, work)


async def _explain_here(session: Session, name: str) -> dict[str, Any]:
    """The same answer from what this user may read. Raises NotFound; Forbidden if nodes are hidden."""
    from moorage.actions.explain import explain_run
    from moorage.present.explanation import explain_text
    from moorage.present.explanationanswer import to_json

    explanation = await explain_run(session.api, session.namespace, name, session.clock.now)
    return to_json(explanation) | {"text": explain_text(explanation)}
