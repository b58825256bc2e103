"""The file of code that a command starts with, where its words name one."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence

from moorage.decide.runs.code import SCRIPTS

TEXT_OPTIONS = ("-c", "-m")  # the word after it is no file
INTERPRETERS = ("python", "python3", "bash", "sh", "Rscript", "julia", "torchrun")


def script_of(command: Sequence[str]) -> str:
    """The relative path of the file that a command runs first, such as train.py; empty: none, or not known."""
    words = list(command)
    if words[:2] == ["sh", "-c"] and len(words) == 3:
        lexer = shlex.shlex(words[2].partition("\n")[0], posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        try:
            words = list(lexer)
        except ValueError:  # a quotation that ends on a later line
            return ""
    program, *rest = words or [""]
    name = program if "/" in program and "=" not in program else ""
    if program in INTERPRETERS:
        name = next((word for word in rest if not word.startswith("-") or word in TEXT_OPTIONS), "")
        name = name if name.endswith(SCRIPTS) else ""
    path = posixpath.normpath(name) if name else ""
    return "" if path.startswith(("/", "..", "~")) or any(mark in path for mark in "$`*?{\0") else path
