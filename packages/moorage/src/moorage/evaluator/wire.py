"""Requests and answers of an evaluating process: a length of four bytes, then a pickle.

Only the parent process and its child use these pipes.
"""

from __future__ import annotations

import importlib
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from moorage.decide.evaluation import Budget
from moorage_kube.errors import MoorageError

LENGTH = struct.Struct(">I")
ANSWER_BYTES = 256 * 1024 * 1024  # of one frame
MEMORY_BYTES = 1024**3  # addresses of one process; a fresh one has some 200 MiB of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A function of ours at the top of a module, and its arguments. `seconds`: of processor time."""

    module: str
    name: str
    arguments: Sequence[Any]
    named: Mapping[str, Any] = field(default_factory=dict)
    budget: Budget = field(default_factory=Budget)
    seconds: int

    def function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(importlib.import_module(self.module), self.name)
        return function


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """`error`: the class and the fields of the raised error.

    `is_last`: memory is used up, and the process ends.
    """

    value: Any = None
    error: tuple[type[MoorageError], tuple[Any, ...], Mapping[str, Any]] | None = None
    budget: Budget = field(default_factory=Budget)
    is_last: bool = False


def frame(message: Request | Answer) -> bytes:
    written = pickle.dumps(message, protocol=5)
    return LENGTH.pack(len(written)) + written


def error_of(error: MoorageError) -> tuple[type[MoorageError], tuple[Any, ...], Mapping[str, Any]]:
    return type(error), error.args, dict(vars(error))


def made_again(error: tuple[type[MoorageError], tuple[Any, ...], Mapping[str, Any]]) -> MoorageError:
    """Rebuild an error of the other process, without its constructor, which may take other arguments."""
    kind, arguments, fields = error
    made = kind.__new__(kind)
    made.args = arguments
    vars(made).update(fields)
    return made
