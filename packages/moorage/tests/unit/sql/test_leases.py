"""What a server remembers while another one records."""

from __future__ import annotations

from datetime import timedelta

from moorage.sql.leases import DIRTY_MOST, WATCHED, leave_to_another
from moorage_kube.testing.clock import NOON

MOMENT = timedelta(seconds=1)


def test_what_the_other_has_had_time_to_see_is_forgotten() -> None:
    deleted = {
        "long ago": ({}, NOON - WATCHED - 2 * MOMENT),
        "seen": ({}, NOON - WATCHED - MOMENT),
        "perhaps not": ({}, NOON - WATCHED),
        "just now": ({}, NOON),
    }
    dirty = {"a"}
    leave_to_another(deleted, dirty, now=NOON)
    assert (list(deleted), dirty) == (["perhaps not", "just now"], {"a"})


def test_changes_beyond_a_bound_are_forgotten_for_all_are_looked_at_later() -> None:
    most, beyond = set(range(DIRTY_MOST)), set(range(DIRTY_MOST + 1))
    leave_to_another({}, most, now=NOON)
    leave_to_another({}, beyond, now=NOON)
    assert (len(most), len(beyond)) == (DIRTY_MOST, 0)
