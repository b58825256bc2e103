"""`moor run notebook.ipynb`: the words of a command that runs a notebook, for the image to carry out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from moorage.errors import UsageError


def is_notebook(command: Sequence[str]) -> bool:
    return bool(command) and command[0].endswith(".ipynb")


def notebook_command(command: Sequence[str], python: str = "python3") -> tuple[str, ...]:
    """`NOTEBOOK [-p NAME=VALUE]… [-o OUTPUT]` as the command that runs it. Raises UsageError.

    A value that is JSON (a number, true, a list) is that; another is a text.
    """
    source, words = command[0], list(command[1:])
    parameters: dict[str, Any] = {}
    output = ""
    while words:
        word = words.pop(0)
        if word in ("-p", "--parameter", "-o", "--output") and not words:
            raise UsageError(f"{word} needs a value")
        if word in ("-p", "--parameter"):
            name, equals, value = words.pop(0).partition("=")
            if not equals or not name.isidentifier():
                raise UsageError(
                    f"invalid -p {name!r}: use NAME=VALUE", hint="such as -p epochs=3 -p data='\"a\"'"
                )
            parameters[name] = _value(value)
        elif word in ("-o", "--output"):
            output = words.pop(0)
        else:
            raise UsageError(
                f"unknown option {word!r} after the notebook",
                hint=f"moor run {source} -p NAME=VALUE -o OUTPUT.ipynb",
            )
    script = (Path(str(files("moorage"))) / "worker" / "notebook.py").read_text(encoding="utf-8")
    return (python, "-c", script, source, output, json.dumps(parameters))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def check_source(source: str) -> None:
    """Raise UsageError for a notebook that is not here, before anything is made of it."""
    path = Path(source)
    if not path.is_absolute() and not path.is_file():
        raise UsageError(f"notebook {source} not found", hint="give its path relative to this directory")
    if path.is_file():
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise UsageError(f"{source} is not a notebook: {error}") from error
        if not isinstance(document, dict) or "cells" not in document:
            raise UsageError(f"{source} is not a notebook: it has no cells (format 4 is needed)")
