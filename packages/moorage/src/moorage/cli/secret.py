"""`moor secret`: tokens, keys and passwords of a team, for runs, maps and workspaces. No command shows a value."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from moorage.actions import secrets
from moorage.actions.secrets import NewValues
from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage_kube.errors import UsageError
from moorage_kube.moments import format_duration


@console.group(
    examples={
        "moor secret create hf HF_TOKEN": "ask for the value of one key, and do not show it",
        "moor run --secret hf -- python train.py": "a run gets all its keys as environment variables",
        "moor secret list": "names and keys; values are never shown",
    }
)
def secret() -> None:
    """Create, list and delete secrets: tokens, keys and passwords for runs.

    All members of the namespace may use them. Values are never shown.
    """


@secret.command(
    examples={
        "moor secret create hf HF_TOKEN": "type the value; it is not shown",
        "moor secret create hf HF_TOKEN < token.txt": "read the value from a file or a program",
        "moor secret create s3 --from-env S3_KEY --from-env S3_PASSWORD": "your own variables",
        "moor secret create gcs --from-file key.json=./key.json": "a whole file as one value",
    }
)
@click.argument("name")
@click.argument("keys", nargs=-1, metavar="[KEY[=VALUE]]...")
@click.option("--from-env", multiple=True, metavar="KEY", help="Take the value of your variable KEY. Repeatable.")
@click.option(
    "--from-file", "files", multiple=True, metavar="KEY=PATH", help="Take the content of a file. Repeatable."
)
@click.option("--replace", is_flag=True, help="Replace all keys and values of a secret that exists.")
@target_options
def create(
    target: Target,
    name: str,
    keys: tuple[str, ...],
    from_env: tuple[str, ...],
    files: tuple[str, ...],
    replace: bool,
) -> int:
    """Create a secret. The value of a KEY is typed without being shown, or read from standard input.

    KEY=VALUE works too, but the value is then in the history of your shell.
    """
    values = _of_environment(from_env) | _of_files(files) | _typed(keys)

    async def work(session: Session) -> int:
        request = NewValues(name=name, namespace=session.namespace, values=values, replace=replace)
        await secrets.create_secret(session.api, request, await session.user(), session.clock)
        console.show(name)
        console.say(f"use it in a run: moor run --secret {name} -- COMMAND")
        return 0

    return in_session(target, work)


@secret.command(
    "list",
    examples={
        "moor secret list": "the secrets of your namespace, with their keys",
        "moor secret list -n lab -o name": "the names of those of another one",
    },
)
@console.output_option
@target_options
def list_(target: Target, output: str) -> int:
    """List the secrets of a namespace: names, keys and users, without values."""

    async def work(session: Session) -> int:
        rows = await secrets.list_secrets(session.api, session.namespace)
        now = session.clock.now()
        console.print_listing(
            output,
            headers=("NAME", "KEYS", "OWNER", "USED-BY", "AGE"),
            rows=lambda: [
                [
                    row.name,
                    ", ".join(row.keys),
                    row.owner,
                    ", ".join(row.used_by),
                    format_duration(now - row.created) if row.created else "",
                ]
                for row in rows
            ],
            items=[msgspec.to_builtins(row) for row in rows],
            names=[row.name for row in rows],
            nothing=f"no secrets in namespace {session.namespace}; create one: moor secret create NAME KEY",
        )
        return 0

    return in_session(target, work)


@secret.command(
    examples={
        "moor secret delete hf": "delete a secret that is not in use",
        "moor secret delete hf --force": "delete it even while runs use it",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("secrets"))
@click.option("--force", is_flag=True, help="Also delete secrets in use: pods that start later do not find them.")
@target_options
def delete(target: Target, names: tuple[str, ...], force: bool) -> int:
    """Delete secrets. Secrets in use need --force."""

    async def work(session: Session) -> int:
        for name in dict.fromkeys(names):
            users = await secrets.delete_secret(session.api, session.namespace, name, force=force)
            for user in users:
                console.note(f"{user} uses secret {name}: its pods that start later do not find it")
            console.show(f"{name} deleted")
        return 0

    return in_session(target, work)


def _of_environment(names: Sequence[str]) -> dict[str, bytes]:
    for name in names:
        if name not in os.environ:
            raise UsageError(f"--from-env: {name!r} is not set in your environment")
    return {name: os.environb[os.fsencode(name)] for name in names}


def _of_files(texts: Sequence[str]) -> dict[str, bytes]:
    values = {}
    for text in texts:
        key, given, path = text.partition("=")
        if not given:
            raise UsageError(
                f"invalid --from-file {text!r}: use KEY=PATH", hint=f"--from-file {Path(text).name}={text}"
            )
        try:
            values[key] = Path(path).expanduser().read_bytes()
        except OSError as error:
            raise UsageError(f"--from-file: cannot read {path}: {error.strerror}") from error
    return values


def _typed(words: Sequence[str]) -> dict[str, bytes]:
    """The values of the keys in the command line: after `=`, else typed without echo, else standard input."""
    asked = [word for word in words if "=" not in word]
    values = {key: value.encode() for key, _, value in (word.partition("=") for word in words if "=" in word)}
    if values:
        console.note(
            f"the value of {', '.join(values)} is in the history of your shell now; next time leave out =VALUE"
        )
    if not sys.stdin.isatty():
        if len(asked) > 1:
            raise UsageError(
                f"standard input has one value, and the keys are {', '.join(asked)}",
                hint="use --from-env KEY or --from-file KEY=PATH for the others",
            )
        return values | {key: sys.stdin.buffer.read().rstrip(b"\r\n") for key in asked}
    hint = "without a terminal, send it on standard input"
    return values | {
        key: console.ask_hidden(f"Value of {key} (not shown): ", noun=f"value of {key}", hint=hint).encode()
        for key in asked
    }
