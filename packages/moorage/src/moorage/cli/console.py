"""Output for people and programs: tables, JSON, YAML or names on stdout; all else on stderr.

Only this module of `cli` writes to a terminal. Texts of others (names, messages, reasons) cannot move the
cursor or fake a line: their control characters are shown as escapes. Only `raw` passes bytes on unchanged:
logs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import click

from moorage.cli.hints import as_typed
from moorage.cli.tables import KEPT, format_table
from moorage_kube.texts import as_lines, hidden_characters, visible, visible_lines

# other words for commands of a group, and the names they stand for, the first that the group has
SUBCOMMAND_ALIASES = {
    "ls": ("list",),
    "rm": ("delete",),
    "get": ("show", "status", "list"),
    "describe": ("show", "status"),
}
OUTPUTS = ("table", "wide", "json", "yaml", "name")
TABLES = ("table", "wide")  # for people; `wide` has every column, and every cell whole
COLOURED_COLUMNS = KEPT
COLOURS = {
    **dict.fromkeys(("running", "ready", "true", "free", "done", "complete", "active", "bound"), "green"),
    **dict.fromkeys(
        ("waiting", "pending", "restarting", "starting", "stopping", "filling", "publishing", "preparing"),
        "yellow",
    ),
    **dict.fromkeys(("accepted", "working", "leased", "reserved", "cordoned", "paused", "unknown"), "yellow"),
    **dict.fromkeys(("failed", "oomkilled", "dead", "refused", "notready", "false", "lost", "unavailable"), "red"),
}
HEADS = {"warning": "yellow", "note": "cyan", "hint": "cyan", "error": "red"}  # words that begin a line on stderr

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(OUTPUTS),
    default="table",
    show_default=True,
    help="Output format; wide: every column.",
)
document_option = click.option(
    "-o",
    "--output",
    type=click.Choice(("text", "json", "yaml")),
    default="text",
    show_default=True,
    help="Output format.",
)


class Command(click.Command):
    """A command with examples at the end of its help: a line to type, and its purpose."""

    def __init__(self, *args: Any, examples: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = dict(examples or {})

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        write_examples(self.examples, formatter)


class Group(click.Group):
    """A group of these commands. It also accepts kubectl's aliases and adds shell completion for them."""

    command_class = Command

    def __init__(self, *args: Any, examples: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = dict(examples or {})

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        write_examples(self.examples, formatter)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = cmd_name if cmd_name in self.commands else self.aliases().get(cmd_name, cmd_name)
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, and `get` as kubectl.

        With a name it shows one object, without arguments it lists all.

        In a group that has its own command `get`, only the single word `get` lists.
        """
        is_alone = not args[1:] or (args[1].startswith("-") and "get" not in self.commands)
        if args[:1] == ["get"] and "list" in self.commands and is_alone:
            args = ["list", *args[1:]]
        _, subcommand, rest = super().resolve_command(ctx, args)
        return subcommand.name if subcommand else None, subcommand, rest

    def aliases(self) -> dict[str, str]:
        """The aliases of the group's commands."""
        return {
            word: next(name for name in names if name in self.commands)
            for word, names in SUBCOMMAND_ALIASES.items()
            if word not in self.commands and not self.commands.keys().isdisjoint(names)
        }

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_commands(ctx, formatter)
        if aliases := self.aliases():
            words = ", ".join(f"{word} = {name}" for word, name in aliases.items())
            formatter.write(f"\nOther words: {words}\n")


Group.group_class = Group


def command(
    name: str | None = None, *, examples: Mapping[str, str] | None = None, **attributes: Any
) -> Callable[[Callable[..., Any]], Command]:
    """`click.command` with examples: each line to type, with a comment on its purpose.

    The line may end with a redirection or a pipe. A test parses every example.
    """
    return click.command(name, cls=Command, examples=examples, **attributes)


def group(
    name: str | None = None, *, examples: Mapping[str, str] | None = None, **attributes: Any
) -> Callable[[Callable[..., Any]], Group]:
    """`click.group` with examples for the group and its commands."""
    return click.group(name, cls=Group, examples=examples, **attributes)


def write_examples(examples: Mapping[str, str], formatter: click.HelpFormatter) -> None:
    """Write the last section of a help. Lines are not wrapped, so that each can be copied."""
    if not examples:
        return
    formatter.write("\nExamples:\n")
    for line, comment in examples.items():
        formatter.write(f"  # {comment}\n  {line}\n")


def show(*lines: str) -> None:
    """Print lines on stdout. Line ends inside a line are escaped, as all control characters."""
    show_text(as_lines(lines))


def show_text(text: str, *, nl: bool = True) -> None:
    """Print a text of several lines on stdout: a document, or the result of `as_lines` or a table.

    Line ends and tabs remain; other control characters are shown as escapes.
    """
    click.echo(visible_lines(text), nl=nl)


def say(*lines: str) -> None:
    """Print lines for the user on stderr. Commands in them get the cluster options that the user typed.

    Each remains one line, as with `show`. On a terminal, the head of an error has a colour.
    """
    text = as_lines(as_typed(line) for line in lines)
    head, colon, rest = text.partition(":")
    if colon and head in HEADS and has_colour(sys.stderr):
        text = click.style(head + colon, fg=HEADS[head], bold=True) + rest
    click.echo(text, err=True, color=True if has_colour(sys.stderr) else None)


def ask_hidden(
    text: str, *, noun: str = "password", hint: str = "in a script, send it to --password-stdin"
) -> str:
    """Read a line without showing it. Raises UsageError when the input ends first, as with Ctrl-D."""
    import getpass

    from moorage_kube.errors import UsageError

    try:
        return getpass.getpass(text)
    except EOFError:
        raise UsageError(f"{noun} missing: the input has ended", hint=hint) from None


def confirm(question: str) -> None:
    """Ask for confirmation. Raises Abort if the user declines, UsageError if the input ends first."""
    try:
        is_agreed = click.confirm(question, err=True)
    except click.exceptions.Abort:
        if sys.stdin.isatty():
            raise
        from moorage_kube.errors import UsageError

        click.echo(err=True)  # the question has no line end
        raise UsageError(
            "nothing was removed: the question needs an answer, and the input has ended",
            hint="without a terminal, add --yes",
        ) from None
    if not is_agreed:
        raise click.exceptions.Abort


def raw(data: bytes | str, *, nl: bool = True) -> None:
    """Print unchanged on stdout: the output of a program, or our own codes for cursor and colour."""
    click.echo(data, nl=nl, color=True if has_colour(sys.stdout) else None)


def note(message: str) -> None:
    """Print a note on stderr, for facts that are not errors."""
    say(f"note: {message}")


def has_colour(stream: TextIO) -> bool:
    """Whether to print colours: on a terminal or if CLICOLOR_FORCE is set, but not if NO_COLOR is set.

    https://no-color.org
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("CLICOLOR_FORCE", "0") != "0":
        return True
    return os.environ.get("TERM") != "dumb" and stream.isatty()


def terminal_width(stream: TextIO) -> int | None:
    """Return the columns of the terminal of a stream; None if it is not a terminal: then cells are not cut."""
    import shutil

    return max(1, shutil.get_terminal_size().columns) if stream.isatty() else None


def terminal_height() -> int:
    """The number of lines of the terminal behind stdout."""
    import shutil

    return max(3, shutil.get_terminal_size().lines)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table like kubectl, with complete cells and without colour. "" is shown as "-"."""
    return format_table(headers, _visible_rows(rows))


def table_for_terminal(headers: Sequence[str], rows: Sequence[Sequence[str]], *, whole: bool = False) -> str:
    """Format a table for stdout.

    With colour if stdout has colour, and cut to the terminal's width unless `whole`.
    """
    return format_table(
        headers,
        _visible_rows(rows),
        width=None if whole else terminal_width(sys.stdout),
        paint=paint if has_colour(sys.stdout) else None,
    )


def plain_table_for_terminal(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    indent: str = "",
    kept: frozenset[str] = KEPT,
) -> str:
    """Format a table for `show` inside other text.

    Cut to the terminal's width, without colour, indented by `indent`.

    `kept`: the headers of columns that a narrow terminal shows before others.
    """
    width = terminal_width(sys.stdout)
    fitted = format_table(
        headers,
        _visible_rows(rows),
        width=None if width is None else max(1, width - len(indent)),
        kept=kept,
    )
    return "\n".join(indent + line for line in fitted.splitlines())


def paint(header: str, text: str) -> str:
    """Colour a cell of a state column by its first word: good, pending or bad."""
    if header not in COLOURED_COLUMNS:
        return text
    colour = COLOURS.get(text.split("…")[0].split(" ")[0].split(",")[0].lower())
    return click.style(text, fg=colour) if colour else text


def _visible_rows(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[visible(cell) or "-" for cell in row] for row in rows]


def print_listing(
    output: str,
    *,
    headers: Sequence[str],
    rows: Callable[[], Sequence[Sequence[str]]],
    items: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    nothing: str,
) -> None:
    """Print a listing in the chosen format.

    For an empty table, `nothing` is printed on stderr; other formats are empty.
    """
    match output:
        case "json" | "yaml":
            print_document(list(items), output)
        case "name":
            for name in names:
                show(visible(name))
        case _ if not items:
            say(nothing)
        case _:
            raw(table_for_terminal(headers, rows(), whole=output == "wide"))


def print_document(document: Any, output: str) -> None:
    """Print one document as `json` or `yaml`."""
    if output == "json":
        import json

        show_text(json.dumps(document, indent=2))  # in ASCII: all else is escaped in it
        return
    show_text(as_yaml(document), nl=False)


def as_yaml(document: Any) -> str:
    """Return YAML in the given order, without aliases. Characters that are not plain text are escaped."""
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, _data: Any) -> bool:
            return True

    def dump(*, allow_unicode: bool) -> str:
        return str(yaml.dump(document, Dumper=Plain, sort_keys=False, allow_unicode=allow_unicode, width=110))

    text = dump(allow_unicode=True)
    return dump(allow_unicode=False) if set(hidden_characters(text)) - {"\n"} else text
