"""Errors of fetching inputs and saving outputs. Their messages become the message of the step."""

from __future__ import annotations

from moorage_kube.errors import MoorageError


class StepError(MoorageError):
    """An input cannot be fetched or an output cannot be saved, and another attempt does not help."""


class Passing(StepError):
    """A temporary failure of a store or the server.

    `seconds`: the maximum time for more attempts; None: the default.
    """

    def __init__(self, message: str, *, seconds: float | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds


class Missing(StepError):
    """The object does not exist; more attempts do not help."""
