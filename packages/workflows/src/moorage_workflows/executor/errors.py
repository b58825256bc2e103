"""Why inputs could not be fetched or outputs not saved. The messages are shown as those of the step."""

from __future__ import annotations

from moorage_kube.errors import MoorageError


class StepError(MoorageError):
    """An input or output that cannot be had: trying again does not help."""


class Passing(StepError):
    """A store or the server failed for now. `seconds`: how long it may be tried again at most; None: as usual."""

    def __init__(self, message: str, *, seconds: float | None = None) -> None:
        super().__init__(message)
        self.seconds = seconds


class Missing(StepError):
    """Nothing is there: neither another try nor waiting helps."""
