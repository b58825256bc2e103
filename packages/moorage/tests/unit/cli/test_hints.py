"""Commands in messages bear the options that were typed."""

from __future__ import annotations

import click
import pytest

from moorage.cli.commands import COMMANDS, load
from moorage.cli.hints import GROUPS, WITHOUT_TARGET, with_options


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("follow it with: moor logs -f a", "follow it with: moor logs -n lab -f a", id="a command"),
        pytest.param("list them: moor volume list", "list them: moor volume list -n lab", id="one of a group"),
        pytest.param("moor jobs -n vision", "moor jobs -n vision", id="it names another namespace"),
        pytest.param("moor jobs -A", "moor jobs -A", id="all namespaces"),
        pytest.param("moor run -- python -n", "moor run -n lab -- python -n", id="the command's own words stay"),
        pytest.param("`moor show a`, or `moor jobs`", "`moor show -n lab a`, or `moor jobs -n lab`", id="two"),
        pytest.param("moor up", "moor up", id="a command without a cluster"),
        pytest.param("moor tenant add a --user b", "moor tenant add a --user b", id="what lives in no namespace"),
        pytest.param("moor works", "moor works", id="no command"),
        pytest.param("start one: moor run", "start one: moor run -n lab", id="at the end"),
    ],
)
def test_a_command_bears_the_namespace_that_was_typed(text: str, shown: str) -> None:
    assert with_options(text, {"-n": "lab"}) == shown


def test_other_options_go_to_every_command_of_a_cluster() -> None:
    options = {"-n": "lab", "--data": "/tmp/my data"}
    assert with_options("moor drain a", options) == "moor drain --data '/tmp/my data' a"


def test_the_tables_are_those_of_the_commands() -> None:
    commands = {name: load(target) for _, name, target, _ in COMMANDS}
    assert {name for name, command in commands.items() if isinstance(command, click.Group)} == GROUPS
    targeted = {
        name
        for name, command in commands.items()
        for leaf in (command.commands.values() if isinstance(command, click.Group) else [command])
        if "--as" in {option for parameter in leaf.params for option in parameter.opts}
    }
    assert {name for _, name, _, _ in COMMANDS} - targeted == WITHOUT_TARGET
