"""Whether a map's command takes its item."""

from __future__ import annotations

import pytest

from moorage.decide.maps.mapjob import takes_item


@pytest.mark.parametrize(
    "command",
    [
        ["python", "square.py", "{item}"],
        ["python", "square.py", "--day={item.day}"],
        ["python", "square.py", "part-{index}"],
        ["sh", "-c", 'echo "$MOORAGE_ITEM"'],
        ["python", "-c", "import os; print(os.environ['MOORAGE_INDEX'])"],
    ],
)
def test_a_command_that_names_the_item_takes_it(command):
    assert takes_item(command)


@pytest.mark.parametrize("command", [["python", "square.py"], ["echo", "{items}"], ["echo", "{ item }"]])
def test_a_command_that_does_not_name_the_item_may_miss_it(command):
    assert not takes_item(command)
