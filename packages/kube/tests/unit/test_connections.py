"""Which connections a service takes, and which it closes for another."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.connections import (
    FILES,
    MOST_CONNECTIONS,
    Bounds,
    ClientConnection,
    Connections,
    Refusal,
    bounds,
)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "waits", "works", "leave"]), st.integers(0, 3), st.integers(0, 19)
    ),
    max_size=120,
)


@given(STEPS, st.integers(1, 8), st.integers(1, 8))
def test_the_bounds_hold_and_only_who_waits_is_closed_the_longest_first(steps, total, of_address):
    """Against a plain list, in the order of their last wait."""
    connections = Connections(Bounds(total, min(total, of_address)))
    inside: list[ClientConnection] = []
    waiting: list[ClientConnection] = []
    closed: list[ClientConnection] = []
    for step, address, at in steps:
        if step == "enter":
            connection = ClientConnection(str(address), lambda: None)
            connection.close = lambda connection=connection: closed.append(connection)
            mine = [one for one in inside if one.address == connection.address]
            victims, refusal = [], None
            if len(mine) >= connections.bounds.of_address:
                victims, refusal = [one for one in waiting if one in mine], Refusal.ADDRESS
            elif len(inside) >= total:
                victims, refusal = waiting, Refusal.ALL
            else:
                refusal = None
            expected = None if refusal is None or victims else refusal
            before = len(closed)
            victim = victims[0] if victims else None
            assert connections.enter(connection) == expected
            if victim is not None:
                assert closed[before:] == [victim]
                inside.remove(victim)
                waiting.remove(victim)
            if expected is None:
                inside.append(connection)
                waiting.append(connection)
        elif inside:
            connection = inside[at % len(inside)]
            getattr(connections, step)(connection)
            if connection in waiting:
                waiting.remove(connection)
            if step == "waits":
                waiting.append(connection)
            elif step == "leave":
                inside.remove(connection)
        assert len(connections) == len(inside) <= total
    for connection in list(inside):
        connections.leave(connection)
        connections.leave(connection)
    assert not connections._of_address
    assert not connections._waiting
    assert not connections._waiting_of


@pytest.mark.parametrize(
    ("files", "each", "want"),
    [
        pytest.param(1024, 1, Bounds(768, 576), id="the usual soft limit"),
        pytest.param(1024, 2, Bounds(384, 288), id="a proxy has two for each"),
        pytest.param(65536, 1, Bounds(MOST_CONNECTIONS, 7500), id="never more than memory is meant for"),
        pytest.param(100, 1, Bounds(16, 12), id="a few always"),
    ],
)
def test_bounds_come_from_the_limit_of_open_files(files, each, want):
    assert bounds(files, files_of_connection=each) == want


def test_the_limit_of_open_files_is_raised_as_far_as_it_may():
    from moorage_kube.connections import raise_file_limit

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
        assert raise_file_limit() == min(FILES, before[1])
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
