"""Lines that people type, from examples and pages: each is parsed as `moor` parses it, and nothing runs."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator

import click

from moorage.cli.commands import COMMANDS, load

_INSIDE = re.compile(r'^eval "\$\((moor [^)]+)\)"$')
_JOINED = re.compile(r"\s(?:[|<>]|&&)\s|;\s")


@functools.cache
def all_commands() -> dict[str, click.Command]:
    """Each command and sub-command of `moor`, by the words that call it."""

    def below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield path, command
        if isinstance(command, click.Group):
            for name, subcommand in command.commands.items():
                yield from below(f"{path} {name}", subcommand)

    return dict(pair for _, name, target, _ in COMMANDS for pair in below(name, load(target)))


def moor_lines(line: str) -> list[list[str]]:
    """The commands of `moor` in a line, without the word `moor`: alone, joined with others, or in `eval`."""
    inside = _INSIDE.match(line)
    parts = _JOINED.split(inside[1] if inside else line)
    return [words[1:] for words in (shlex.split(part, comments=True) for part in parts) if words[:1] == ["moor"]]


def _without_files(command: click.Command) -> None:
    """Let options take files that this machine lacks: an example's files are the reader's own."""
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            parameter.type.exists = False
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            _without_files(subcommand)


def parse(words: list[str]) -> None:
    """Parse the words behind `moor`, and run nothing. Raises click.UsageError."""
    if words[0] not in all_commands():
        raise click.UsageError(f"no such command {words[0]!r}")
    command, parent = all_commands()[words[0]], None
    path, rest = words[0], words[1:]
    _without_files(command)
    while True:
        parent = command.make_context(path, rest, parent=parent)
        left = parent._protected_args + parent.args
        if not isinstance(command, click.Group) or not left:
            return
        name, subcommand, rest = command.resolve_command(parent, left)
        assert name is not None
        assert subcommand is not None
        command, path = subcommand, name
