"""What others have written reaches the terminal as text, never as commands to it."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import yaml

import moorage.cli
from moorage.cli import console
from moorage.cli.main import _say_error
from moorage_kube.errors import UsageError
from moorage_kube.texts import hidden_characters

FORGED = "ada\n2026-01-31T08:00:00Z   root   10.0.0.1   delete tenant   200\x1b[2A\x9b2J\u202eevil\x07"


@pytest.mark.parametrize("output", console.OUTPUTS)
def test_a_name_that_is_full_of_controls_is_one_harmless_line(output, capsys):
    items = [{"name": FORGED}, {"name": "grace"}]
    console.print_listing(
        output,
        headers=("NAME", "STATE"),
        rows=lambda: [[item["name"], "open"] for item in items],
        items=items,
        names=[item["name"] for item in items],
        nothing="none",
    )
    shown = capsys.readouterr().out
    assert not set(hidden_characters(shown)) - {"\n"}
    match output:
        case "json":
            assert json.loads(shown) == items
        case "yaml":
            assert yaml.safe_load(shown) == items
        case "name":
            assert len(shown.splitlines()) == 2
        case _:
            assert len(shown.splitlines()) == 3


def test_messages_and_errors_are_one_line_each_without_controls(capsys):
    console.say(FORGED, FORGED)
    console.note(FORGED)
    console.show(FORGED, FORGED)
    _say_error(FORGED, None)
    shown = "".join(capsys.readouterr())
    assert set(hidden_characters(shown)) == {"\n"}
    assert len(shown.splitlines()) == 6


def test_names_of_people_everywhere_stay_readable(capsys):
    console.print_listing("yaml", headers=(), rows=list, items=[{"name": "Zoë 数据"}], names=(), nothing="none")
    assert "Zoë 数据" in capsys.readouterr().out


def test_nothing_else_of_the_command_line_writes_to_the_terminal():
    """`console` escapes; a module that prints past it would not."""
    past = []
    for path in Path(moorage.cli.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and path.name != "console.py":
                called = ast.unparse(node.func)
                if called in {"click.echo", "click.secho", "print"} and path.name not in OWN_WORDS:
                    past.append(f"{path.name}: {ast.unparse(node)}")
    assert past == []


OWN_WORDS = {"reference.py", "supervisor.py"}  # for `make docs`; a log of its own


def test_a_hidden_question_at_the_end_of_input_is_one_error(monkeypatch):
    def ended(text: str) -> str:
        raise EOFError

    monkeypatch.setattr("getpass.getpass", ended)
    with pytest.raises(UsageError, match="password missing: the input has ended") as refused:
        console.ask_hidden("Password: ")
    assert refused.value.hint == "in a script, send it to --password-stdin"
