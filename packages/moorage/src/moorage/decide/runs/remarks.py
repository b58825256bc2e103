"""Problems and notes about a request, collected while it is planned."""

from __future__ import annotations

from moorage.decide.runs.request import Problem
from moorage_kube.errors import QuantityError
from moorage_kube.quantity import parse_quantity, problem_of_bytes


class Remarks:
    """Collects problems and notes of one request, in the order in which they occur."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.notes: list[str] = []

    def refuse(self, field: str, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(field, message, hint))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def quantity(self, field: str, resource: str, text: str, *, noun: str = "") -> str | None:
        """The text if it is an amount above zero. Otherwise None, and a problem. `noun`: the name in messages."""
        noun = noun or field
        try:
            value = parse_quantity(text)
        except QuantityError:
            examples = "500m, 2 or 1.5" if resource == "cpu" else "512Mi, 8Gi or 1.5G"
            self.refuse(field, f"invalid {noun} {text!r}: use a quantity such as {examples}")
            return None
        if value <= 0:
            self.refuse(field, f"invalid {noun} {text!r}: use more than zero")
            return None
        if resource == "memory" and (slip := problem_of_bytes(text)):
            self.refuse(field, f"invalid {noun} {text!r}: {slip[0]}", slip[1])
            return None
        return text
