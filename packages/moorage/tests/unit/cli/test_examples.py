"""Every command's help ends with examples, and each example is a command line that parses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from moorage.cli.commands import COMMANDS, load
from moorage.cli.main import main

WIDTH = 80  # of the terminal in which a help can be read without wrapped lines
INSIDE = re.compile(r'^eval "\$\((moor [^)]+)\)"$')
JOINED = re.compile(r"\s(?:[|<>])\s")


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Each command and sub-command, with the words that call it."""

    def below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        yield path, command
        if isinstance(command, click.Group):
            for name, subcommand in command.commands.items():
                yield from below(f"{path} {name}", subcommand)

    for _, name, target, _ in COMMANDS:
        yield from below(name, load(target))


EVERY = dict(all_commands())


def moor_lines(line: str) -> list[list[str]]:
    """The command lines of `moor` in an example: alone, beside a pipe or a redirection, or in `eval`."""
    inside = INSIDE.match(line)
    parts = JOINED.split(inside[1] if inside else line)
    return [words[1:] for words in map(shlex.split, parts) if words[0] == "moor"]


def without_files(command: click.Command) -> None:
    """Let options take files that this machine lacks: an example's files are the reader's own."""
    for parameter in command.params:
        if isinstance(parameter.type, click.Path):
            parameter.type.exists = False
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            without_files(subcommand)


def parse(words: list[str]) -> None:
    """Parse a command line as `moor` would, and run nothing. Raises click.UsageError."""
    command, parent = EVERY[words[0]], None
    path, rest = words[0], words[1:]
    without_files(command)
    while True:
        parent = command.make_context(path, rest, parent=parent)
        left = parent._protected_args + parent.args
        if not isinstance(command, click.Group) or not left:
            return
        name, subcommand, rest = command.resolve_command(parent, left)
        assert name is not None
        assert subcommand is not None
        command, path = subcommand, name


@pytest.mark.parametrize("path", sorted(EVERY))
def test_the_help_of_every_command_ends_with_two_to_four_examples(path, capsys):
    assert main([*path.split(), "--help"]) == 0
    text = capsys.readouterr().out
    head, _, examples = text.partition("\nExamples:\n")
    assert head
    lines = examples.splitlines()
    assert 2 <= len(lines) / 2 <= 4
    for comment, line in zip(lines[::2], lines[1::2], strict=True):
        assert comment.startswith("  # ")
        assert max(len(comment), len(line)) <= WIDTH


@pytest.mark.parametrize("path", sorted(EVERY))
def test_every_example_parses(path):
    for line in getattr(EVERY[path], "examples", {}):
        parsed = moor_lines(line)
        assert parsed, line
        for words in parsed:
            parse(words)


@pytest.mark.parametrize(
    "line", ["moor jobs --nope", "moor volume make data", "moor show", "moor gpus --by colour | less"]
)
def test_an_example_with_a_wrong_word_would_be_caught(line):
    (words,) = moor_lines(line)
    with pytest.raises(click.UsageError):
        parse(words)
