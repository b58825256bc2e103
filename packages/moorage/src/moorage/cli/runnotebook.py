"""`moor run notebook.ipynb`: the command that runs a notebook in the image."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from moorage_kube.errors import UsageError


def is_notebook(command: Sequence[str]) -> bool:
    return bool(command) and command[0].endswith(".ipynb")


def notebook_command(command: Sequence[str], python: str = "python3") -> tuple[str, ...]:
    """Convert `NOTEBOOK [-p NAME=VALUE]… [-o OUTPUT]` to the command that runs it. Raises UsageError.

    A VALUE that is valid JSON (a number, true, a list) is parsed; any other VALUE is a string.
    """
    source = command[0]
    parameters, output = _options(command)
    script = (Path(str(files("moorage"))) / "worker" / "notebook.py").read_text(encoding="utf-8")
    return (python, "-c", script, source, output, json.dumps(parameters))


def _options(command: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Parse the parameters by name, and the output. Raises UsageError."""
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
    return parameters, output


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def check_source(command: Sequence[str]) -> None:
    """Check a local notebook and its parameters before anything is created. Raises UsageError."""
    source = command[0]
    path = Path(source)
    if not path.is_absolute() and not path.is_file():
        raise UsageError(f"notebook {source} not found", hint="give its path relative to this directory")
    if not path.is_file():
        return
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UsageError(f"{source} is not a notebook: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
        raise UsageError(f"{source} is not a notebook: it has no cells (format 4 is needed)")
    parameters, _ = _options(command)
    _check_parameters(source, document, parameters)


def _check_parameters(source: str, document: dict[str, Any], parameters: dict[str, Any]) -> None:
    """Raise UsageError if the notebook does not define one of the parameters."""
    if not parameters:
        return
    cells = [cell for cell in document["cells"] if isinstance(cell, dict)]
    tagged = next((cell for cell in cells if "parameters" in _tags(cell)), None)
    if tagged is None:
        raise UsageError(
            f"{source} has no cell tagged 'parameters', so -p {next(iter(parameters))} sets nothing",
            hint="tag the cell that assigns the defaults with 'parameters'"
            " (JupyterLab: Property Inspector, Cell Tags)",
        )
    known = _assigned(tagged)
    if known is None:
        return  # the cell is not plain Python: a magic, or another language
    unknown = [name for name in parameters if name not in known]
    if unknown:
        near = get_close_matches(unknown[0], known, n=1)
        names = f"parameters of {source}: {', '.join(known)}" if known else "its cell tagged 'parameters' is empty"
        raise UsageError(
            f"unknown parameter {unknown[0]!r} of {source}",
            hint=f"did you mean {near[0]}? {names}" if near else names,
        )


def _tags(cell: dict[str, Any]) -> Sequence[str]:
    metadata = cell.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, dict) else None
    return tags if isinstance(tags, list) else ()


def _assigned(cell: dict[str, Any]) -> list[str] | None:
    """The names that a cell assigns, in order; None for a cell that Python cannot parse."""
    source = cell.get("source") or ""
    text = source if isinstance(source, str) else "".join(map(str, source))
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return list(dict.fromkeys(names))
