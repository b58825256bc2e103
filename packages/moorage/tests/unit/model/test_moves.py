"""Tables of moves: what they refuse, and what the pages draw from them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import pytest

from moorage.decide.idle.states import MOVES as IDLE_MOVES
from moorage.decide.machines.moves import PLACE_MOVES, STAY_MOVES
from moorage.decide.maps.leasing import ITEM_MOVES
from moorage.decide.runs.state import RUN_MOVES
from moorage.model.moves import IllegalMove, Moves

DOCS = Path(__file__).parents[5] / "docs"


class Lamp(StrEnum):
    ON = "on"
    OFF = "off"
    BROKEN = "broken"


LAMP_MOVES = Moves(
    "a lamp",
    {
        (None, Lamp.OFF): "",
        (Lamp.OFF, Lamp.ON): "pressed",
        (Lamp.ON, Lamp.OFF): "pressed",
        (Lamp.ON, Lamp.BROKEN): "too old",
        (Lamp.BROKEN, None): "thrown away",
    },
)


def test_a_move_that_is_not_in_the_table_is_an_error_with_the_history():
    LAMP_MOVES.check(Lamp.OFF, Lamp.ON)
    with pytest.raises(IllegalMove, match="^a lamp cannot go from broken to on; its last moves: on, broken$"):
        LAMP_MOVES.check(Lamp.BROKEN, Lamp.ON, ("on", "broken"))
    with pytest.raises(IllegalMove, match=r"from \[\*\] to on; its last moves: none"):
        LAMP_MOVES.check(None, Lamp.ON)


def test_a_state_is_final_when_it_leads_to_no_other():
    assert [state for state in Lamp if not LAMP_MOVES.after(state)] == [Lamp.BROKEN]


def test_a_diagram_has_a_line_for_each_move():
    assert LAMP_MOVES.diagram().splitlines() == [
        "stateDiagram-v2",
        "    [*] --> off",
        "    off --> on: pressed",
        "    on --> off: pressed",
        "    on --> broken: too old",
        "    broken --> [*]: thrown away",
    ]


@pytest.mark.parametrize(
    ("page", "moves"),
    [
        ("explanation/idle.md", IDLE_MOVES),
        ("design/0005-map.md", ITEM_MOVES),
        ("explanation/runs.md", RUN_MOVES),
        ("explanation/machines.md", PLACE_MOVES),
        ("explanation/machines.md", STAY_MOVES),
    ],
)
def test_a_page_draws_the_moves_of_the_table(page, moves):
    assert f"```mermaid\n{moves.diagram()}\n```" in (DOCS / page).read_text()
