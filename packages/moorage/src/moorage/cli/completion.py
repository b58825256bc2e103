"""`moor completion`: scripts for bash, zsh and fish, and the completions that these scripts request."""

from __future__ import annotations

import os

import click
from click.shell_completion import get_completion_class

from moorage.cli import console
from moorage.cli.commands import ALIASES, COMMANDS, load

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_MOOR_COMPLETE"


@console.command(
    examples={
        'eval "$(moor completion bash)"': "in ~/.bashrc",
        'eval "$(moor completion zsh)"': "in ~/.zshrc",
        "moor completion fish > ~/.config/fish/completions/moor.fish": "once, for fish",
    }
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a completion script for your shell."""
    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise click.UsageError(f"no completion for {shell}")
    console.raw(completion_class(_Moor(name="moor"), {}, "moor", VARIABLE).source())


def complete() -> int:
    """Answer the shell; called when $_MOOR_COMPLETE is set.

    Errors are not printed: they would land in the line.
    """
    from click.shell_completion import shell_complete

    try:
        return shell_complete(_Moor(name="moor"), {}, "moor", VARIABLE, os.environ[VARIABLE])
    except Exception:
        return 1


class _Moor(click.Group):
    """The table of commands as a click group; imports a module only to complete its own options."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return [name for _, name, _, _ in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        row = next((row for row in COMMANDS if row[1] == name), None)
        if row is None:
            return None
        if ctx.resilient_parsing and not ctx.args and ctx.invoked_subcommand is None and _names_only():
            return click.Command(cmd_name, short_help=row[3])
        return load(row[2])


def _names_only() -> bool:
    """Whether the shell completes the command's own name, which needs no import of its module.

    COMP_CWORD is the number of the word to complete; fish puts the word itself there.
    """
    words, current = os.environ.get("COMP_WORDS", "").split(), os.environ.get("COMP_CWORD", "")
    if os.environ.get(VARIABLE, "").startswith("fish"):
        return len(words) - bool(current) <= 1
    return int(current or len(words)) <= 1
