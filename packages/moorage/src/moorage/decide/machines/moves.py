"""The states of an offered machine and of a guest, and the legal moves between them.

Every plan follows these tables (`decide.machines.reservation`), and docs/explanation/machines.md draws them.
"""

from __future__ import annotations

from enum import StrEnum

from moorage.model.moves import Moves


class Place(StrEnum):
    """The state of one machine of a type, from its reservation pod until its guest ends."""

    PENDING = "pending"
    UNPLACED = "unplaced"
    RESERVED = "reserved"
    PROMISED = "promised"
    USED = "used"


class Stay(StrEnum):
    """The state of a guest."""

    WAITING = "waiting"
    LET_THROUGH = "let_through"
    USING = "using"


PLACE_MOVES = Moves(
    "a machine",
    {
        (None, Place.PENDING): "the operator creates a reservation pod",
        (Place.PENDING, Place.RESERVED): "the scheduler found room",
        (Place.PENDING, Place.UNPLACED): "it does not fit on any node of the pool",
        (Place.UNPLACED, Place.RESERVED): "a node has room now",
        (Place.RESERVED, Place.PROMISED): "turn of a guest",
        (Place.RESERVED, Place.USED): "turn of a guest, if any machine of the type is suitable",
        (Place.PROMISED, Place.RESERVED): "the guest is deleted, or has another",
        (Place.PROMISED, Place.PROMISED): "the guest is deleted: turn of another",
        (Place.PROMISED, Place.USED): "guest bound",
        (Place.USED, Place.PENDING): "the guest ended",
        (Place.PENDING, None): "fewer are offered",
        (Place.UNPLACED, None): "fewer are offered",
        (Place.RESERVED, None): "fewer are offered, or the node does not offer it any more",
        (Place.PROMISED, None): "fewer are offered, or the node does not offer it any more",
    },
)
STAY_MOVES = Moves(
    "a guest",
    {
        (None, Stay.WAITING): "admitted with the gate moorage.dev/machine",
        (Stay.WAITING, Stay.LET_THROUGH): "a machine was promised, the gate is removed",
        (Stay.LET_THROUGH, Stay.LET_THROUGH): "the machine was lost, another is promised",
        (Stay.LET_THROUGH, Stay.USING): "bound on the node of its machine",
        (Stay.WAITING, None): "deleted",
        (Stay.LET_THROUGH, None): "deleted",
        (Stay.USING, None): "it ended",
    },
)
