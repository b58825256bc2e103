"""`moor user` asks for passwords."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moorage.cli.users import ask_password
from moorage_kube.errors import UsageError


def typed(*answers: str) -> Iterator[str]:
    return iter(answers)


def test_a_refused_password_is_asked_for_again(capsys):
    answers = typed("short", "correct horse", "correct house", "correct horse", "correct horse")
    assert ask_password(lambda _: next(answers), tries=3) == "correct horse"
    assert capsys.readouterr().err.splitlines() == [
        "invalid password of 5 characters: use 10 to 1024; try again",
        "the two passwords differ; try again",
    ]


def test_the_last_refused_password_ends_the_command():
    answers = typed("a", "b", "c", "correct horse")
    with pytest.raises(UsageError, match="invalid password of 1 characters"):
        ask_password(lambda _: next(answers), tries=3)
    assert list(answers) == ["correct horse"]


def test_a_program_is_not_asked_again():
    answers = typed("short", "correct horse", "correct horse")
    with pytest.raises(UsageError):
        ask_password(lambda _: next(answers), tries=1)
