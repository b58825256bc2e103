"""The result of a notice, or of one try."""

from __future__ import annotations

from msgspec import Struct


class Delivery(Struct, frozen=True):
    """The result for one target. `problem` is "" when it was delivered, and never holds a secret."""

    target: str
    tries: int
    problem: str = ""

    @property
    def delivered(self) -> bool:
        return not self.problem


class NotDelivered(Exception):
    """One attempt failed; the message contains no secrets. `again`: a retry may help, after `after` seconds."""

    def __init__(self, problem: str, *, again: bool, after: float = 0.0) -> None:
        super().__init__(problem)
        self.problem, self.again, self.after = problem, again, after
