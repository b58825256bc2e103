"""Shared parts of commands that set fields of an object of the cluster: `moor budget set`, `moor tenant set`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import click

from moorage.actions.specs import Set, delete_object
from moorage.cli import console
from moorage.cli.session import Session, Target, in_session
from moorage_kube.api import Api
from moorage_kube.resources import Resource

NONE = "none"  # as the value of an option: remove the field
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print the object that would result; change nothing."
)


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields whose options were typed; `none` becomes None."""
    typed = {key: list(value) if isinstance(value, tuple) else value for key, value in fields.items()}
    return {
        key: None if value in (NONE, [NONE]) else value for key, value in typed.items() if value not in (None, [])
    }


def run_set(target: Target, change: Callable[[Api], Awaitable[Set]], *, output: str, dry_run: bool) -> int:
    """Set the fields, and print the object, or a line about it."""

    async def work(session: Session) -> int:
        done = await change(session.api)
        if output != "text" or dry_run:
            console.print_document(done.document, "yaml" if output == "text" else output)
        else:
            kind, name = done.document["kind"], done.document["metadata"]["name"]
            console.say(f"{kind} {name} {'created' if done.is_new else 'changed'}")
        return 0

    return in_session(target, work)


def run_delete(target: Target, resource: Resource, name: str) -> int:
    async def work(session: Session) -> int:
        await delete_object(session.api, resource, name)
        console.say(f"{resource.kind} {name} deleted")
        return 0

    return in_session(target, work)
