"""Every command's help ends with examples, and each example is a command line that parses."""

from __future__ import annotations

import click
import pytest

from moorage.cli.main import main
from moorage_testing.typedlines import all_commands, moor_lines, parse

WIDTH = 80  # of the terminal in which a help can be read without wrapped lines


@pytest.mark.parametrize("path", sorted(all_commands()))
def test_the_help_of_every_command_ends_with_two_to_four_examples(path, capsys):
    assert main([*path.split(), "--help"]) == 0
    text = capsys.readouterr().out
    head, _, examples = text.partition("\nExamples:\n")
    assert head
    lines = examples.splitlines()
    assert 2 <= len(lines) / 2 <= 4
    for comment, line in zip(lines[::2], lines[1::2], strict=True):
        assert comment.startswith("  # ")
        assert max(len(comment), len(line)) <= WIDTH


@pytest.mark.parametrize("path", sorted(all_commands()))
def test_every_example_parses(path):
    for line in getattr(all_commands()[path], "examples", {}):
        parsed = moor_lines(line)
        assert parsed, line
        for words in parsed:
            parse(words)


@pytest.mark.parametrize(
    "line", ["moor jobs --nope", "moor volume make data", "moor show", "moor gpus --by colour | less"]
)
def test_an_example_with_a_wrong_word_would_be_caught(line):
    (words,) = moor_lines(line)
    with pytest.raises(click.UsageError):
        parse(words)
