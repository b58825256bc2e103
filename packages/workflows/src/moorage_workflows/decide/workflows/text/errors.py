"""Errors of the text in a workflow's manifest.

TextError           a tag, expression, condition or duration that cannot be read or evaluated
(`decide.evaluation`) ├── UnresolvedTag   it names a variable that is not in scope ├── SyntaxProblem   it
breaks the rules of its language, for any scope └── AbsentValue     it names an output that its step did
not leave, with no default
"""

from __future__ import annotations

from moorage.decide.evaluation import TextError


class SyntaxProblem(TextError):
    """A text that breaks the rules of its language. It is invalid in every scope.

    `position`: index of the wrong character, from 0.
    """

    def __init__(self, message: str, *, position: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.position = position


class UnresolvedTag(TextError):
    """A variable that is not in scope, or not yet. `tag`: its dotted name."""

    def __init__(self, tag: str, message: str | None = None) -> None:
        super().__init__(message or f"variable {tag} is not known here")
        self.tag = tag


class AbsentValue(TextError):
    """An output that its step did not leave (it was skipped or omitted), and that has no default."""

    def __init__(self, tag: str) -> None:
        super().__init__(
            f"output {tag} is an absent optional: its step was skipped or omitted, and it has no default",
            hint="set `valueFrom.default` on the output, set `default` on the input, or use `??` in an expression",
        )
        self.tag = tag
