"""Old names of options: hidden, and otherwise as the options that they name."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from moorage.cli.commands import COMMANDS, load
from moorage.cli.renamed import RenamedOption


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, subcommand in command.commands.items():
            yield from commands(subcommand, f"{path} {name}")


OLD = [
    pytest.param(command, option, id=f"{path} {option.old}")
    for _, name, target, _ in COMMANDS
    for path, command in commands(load(target), name)
    for option in command.params
    if isinstance(option, RenamedOption)
]


@pytest.mark.parametrize(("command", "option"), OLD)
def test_an_old_name_takes_what_the_new_one_takes(command, option):
    [new] = [param for param in command.params if option.new in param.opts]
    assert isinstance(new, click.Option)
    assert (option.is_flag, option.multiple, option.nargs) == (new.is_flag, new.multiple, new.nargs)
    assert not any(option.old in param.opts for param in command.params if param is not option)


@pytest.mark.parametrize(("command", "option"), OLD)
def test_no_help_shows_an_old_name(command, option):
    text = command.get_help(click.Context(command, info_name="moor"))
    assert f"{option.old} " not in text.replace(option.new, "")
