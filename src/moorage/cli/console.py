"""What people and programs get to read: tables, JSON, YAML or names on stdout; all else on stderr."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import click

OUTPUTS = ("table", "json", "yaml", "name")

output_option = click.option(
    "-o", "--output", type=click.Choice(OUTPUTS), default="table", show_default=True, help="What to print."
)


def say(message: str) -> None:
    """One line to the person, on stderr."""
    click.echo(message, err=True)


def note(message: str) -> None:
    """Something worth knowing that is no error."""
    say(f"note: {message}")


def has_colour(stream: TextIO) -> bool:
    """Colour only on a terminal, and never against https://no-color.org."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as kubectl writes them: upper-case heads, three blanks between, no lines. "" is shown as "-"."""
    cells = [list(headers), *([cell or "-" for cell in row] for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(headers))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
    )


def print_listing(
    output: str,
    *,
    headers: Sequence[str],
    rows: Callable[[], Sequence[Sequence[str]]],
    items: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    nothing: str,
) -> None:
    """Print a listing in the chosen form. An empty table says `nothing` on stderr; the other forms stay empty."""
    match output:
        case "json" | "yaml":
            print_document(list(items), output)
        case "name":
            for name in names:
                click.echo(name)
        case _ if not items:
            say(nothing)
        case _:
            click.echo(table(headers, rows()))


def print_document(document: Any, output: str) -> None:
    """Print one document as `json` or `yaml`."""
    if output == "json":
        import json

        click.echo(json.dumps(document, indent=2))
        return
    click.echo(as_yaml(document), nl=False)


def as_yaml(document: Any) -> str:
    """YAML in the order given, without aliases."""
    import yaml

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, _data: Any) -> bool:
            return True

    return yaml.dump(document, Dumper=Plain, sort_keys=False, allow_unicode=True, width=110)
