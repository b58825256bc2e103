"""The table of environment variables: what it reads, what it refuses, and that nothing is read beside it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import moorage_workflows
from moorage import settings
from moorage.cli.commands import COMMANDS, load
from moorage.settings import TABLE, Setting
from moorage_kube.errors import UsageError

SRC = Path(settings.__file__).parent
FILES = [*SRC.rglob("*.py"), *Path(moorage_workflows.__file__).parent.rglob("*.py")]
NAMES = {setting.name for setting in TABLE}
LITERAL = re.compile(r"MOORAGE_[A-Z][A-Z0-9_]*[A-Z0-9]")


@pytest.mark.parametrize(
    ("setting", "text", "value"),
    [
        (settings.RATE_LIMIT, "", 50.0),
        (settings.RATE_LIMIT, "0.5", 0.5),
        (settings.RATE_BURST, "7", 7),
        (settings.LOCAL_ACCOUNTS, "", True),
        (settings.LOCAL_ACCOUNTS, "Off", False),
        (settings.BEHIND_PROXY, "1", True),
        (settings.BYTES_PER_NAMESPACE, "1.5Gi", 3 << 29),
        (settings.OIDC_SCOPES, "openid  email", ("openid", "email")),
        (settings.OIDC_CLIENT_SECRET_FILE, "/run/secret", Path("/run/secret")),
        (settings.PACKING_POLICY, "spread", "spread"),
        (settings.QUEUE_URL, "postgresql://db/moor", "postgresql://db/moor"),
    ],
)
def test_a_value_is_read_as_its_type(setting: Setting[Any], text: str, value: Any) -> None:
    assert setting.read({setting.name: text}) == value


@pytest.mark.parametrize(
    ("setting", "text", "allowed"),
    [
        (settings.RATE_LIMIT, "-1", "use a number from 0 to 1000000"),
        (settings.RATE_LIMIT, "nan", "use a number"),
        (settings.RATE_BURST, "1.5", "use a whole number from 1 to 1000000"),
        (settings.BEHIND_PROXY, "maybe", "use true or false"),
        (settings.BYTES_PER_NAMESPACE, "much", "use bytes such as 5Gi"),
        (settings.BYTES_PER_NAMESPACE, "2Pi", "at most 1Pi"),
        (settings.PACKING_POLICY, "tight", "use pack, fragmentation or spread"),
    ],
)
def test_a_wrong_value_names_the_variable_the_value_and_what_is_allowed(
    setting: Setting[Any], text: str, allowed: str
) -> None:
    with pytest.raises(UsageError, match=f"invalid {setting.name} '{text}': .*{allowed}") as caught:
        setting.read({setting.name: text})
    assert setting.meaning in str(caught.value.hint)


def test_a_secret_is_never_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        settings.QUEUE_URL.read({"MOORAGE_QUEUE_URL": "mysql://moor:hunter2@db"})
    assert "hunter2" not in f"{caught.value}{caught.value.hint}{caught.value.__cause__}"


def test_every_default_is_one_that_may_be_written() -> None:
    for setting in TABLE:
        assert setting.meaning.endswith(".")
        if isinstance(setting.default, (bool, int, float)):
            assert setting.read({setting.name: str(setting.default)}) == setting.default, setting.name


def literals() -> Iterator[tuple[str, str]]:
    """(file, name) of each variable of ours that stands whole in a text of the source, docstrings left out."""
    for file in FILES:
        if file.name == "settings.py" or "testing" in file.parts:
            continue
        text = file.read_text()
        if "MOORAGE_" not in text:
            continue  # parsing all files takes seconds
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and LITERAL.fullmatch(str(node.value)):
                yield str(file), str(node.value)


def test_every_variable_in_the_source_stands_in_the_table() -> None:
    known = NAMES | settings.GIVEN.keys()
    assert {(file, name) for file, name in literals() if name not in known} == set()


def test_every_variable_of_an_option_stands_in_the_table() -> None:
    def options(command: click.Command) -> Iterator[click.Parameter]:
        yield from command.params
        if isinstance(command, click.Group):
            for child in command.commands.values():
                yield from options(child)

    every = [option for _, _, target, _ in COMMANDS for option in options(load(target))]
    found = {option.envvar for option in every if option.envvar is not None}
    assert found <= NAMES
    assert len(found) > 10


def read_directly() -> Iterator[tuple[str, str]]:
    """(file, name) of each `os.environ.get("X")`, `os.environ["X"]` and `os.getenv("X")`."""
    for file in FILES:
        parts = file.relative_to(SRC).parts if SRC in file.parents else file.parts
        if parts[0] in ("testing", "worker", "localcluster"):
            continue  # they import nothing of ours above their room
        if parts[:3] == ("cli", "demo", "files"):
            continue  # programs of the demo's user: they run in pods
        for found in re.findall(r"(?:environ(?:\.get)?[(\[]|getenv\()\s*\"([A-Z_]+)\"", file.read_text()):
            yield str(file), found


def test_only_variables_of_other_tools_are_read_without_the_table() -> None:
    assert {name for _, name in read_directly()} <= settings.OTHERS.keys()
