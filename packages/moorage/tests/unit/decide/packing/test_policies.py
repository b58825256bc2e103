from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.packing.policies import (
    MAX_SCORE,
    WHOLE,
    Ask,
    Room,
    gpus_asked,
    make_ask,
    make_rooms,
    spread,
    take,
)
from moorage.decide.packing.policies import pack as pack_rooms

GPU = "nvidia.com/gpu"


def a_node(total: int = 2, used: int = 0, resource: str = GPU) -> dict[str, Room]:
    return make_rooms({resource: total}, {resource: used}, 64000, 0)


def pack(asked: dict[str, int], rooms: dict[str, Room]) -> int:
    return pack_rooms(make_ask(asked), rooms)


@pytest.mark.parametrize(
    ("asked", "node", "want"),
    [
        pytest.param({GPU: 1}, a_node(2, 1), 10, id="the scene: fills the node in use"),
        pytest.param({GPU: 1}, a_node(2, 0), 5, id="the scene: opens an empty one"),
        pytest.param({GPU: 1}, a_node(8, 2), 3, id="rounded down: 3.75"),
        pytest.param({GPU: 8}, a_node(8, 0), 10, id="a whole node"),
        pytest.param({GPU: 1}, a_node(0), 0, id="no GPUs at all"),
        pytest.param({GPU: 1}, a_node(4, resource="amd.com/gpu"), 0, id="GPUs of another vendor"),
        pytest.param({"amd.com/gpu": 1}, a_node(4, 1, "amd.com/gpu"), 5, id="any vendor's"),
        pytest.param({GPU: 2}, a_node(2, 2), 10, id="one left that we have not seen leave"),
        pytest.param({}, a_node(2), 0, id="no GPU asked: not on a GPU node"),
        pytest.param({}, a_node(0), 10, id="no GPU asked: rather on a node without"),
        pytest.param(
            {GPU: 1, "nvidia.com/mig-1g.5gb": 1},
            make_rooms({GPU: 2, "nvidia.com/mig-1g.5gb": 6}, {GPU: 1}, 64000, 0),
            3,
            id="two kinds: all of them together",
        ),
    ],
)
def test_a_node_scores_by_how_full_its_gpus_would_be(asked, node, want):
    assert pack(asked, node) == want


counts = st.integers(0, 16)


@given(st.dictionaries(st.sampled_from([GPU, "amd.com/gpu"]), st.integers(1, 16)), counts, counts)
def test_points_are_integers_from_0_to_10(asked, total, used):
    points = pack(asked, a_node(total, used))
    assert isinstance(points, int)
    assert 0 <= points <= MAX_SCORE


@given(st.integers(1, 16), st.integers(1, 16), counts, counts)
def test_of_two_like_nodes_the_fuller_never_scores_lower(asked, total, one, other):
    low, high = sorted((one, other))
    assert pack({GPU: asked}, a_node(total, low)) <= pack({GPU: asked}, a_node(total, high))


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 8))
def test_of_nodes_up_to_ten_gpus_the_fuller_scores_strictly_higher(asked, total, used):
    if used + 1 + asked <= total:
        assert pack({GPU: asked}, a_node(total, used)) < pack({GPU: asked}, a_node(total, used + 1))


@given(st.integers(1, 16), st.data())
def test_ten_points_mean_that_the_node_is_filled_exactly(total, data):
    used = data.draw(st.integers(0, total - 1))
    asked = data.draw(st.integers(1, total - used))
    assert (pack({GPU: asked}, a_node(total, used)) == 10) is (asked + used == total)


@given(st.integers(1, 4), st.integers(2, 8), st.lists(st.integers(1, 4), max_size=20))
def test_one_gpu_at_a_time_no_node_is_opened_while_another_has_room(nodes, size, leaving):
    """Arrivals of one GPU on like nodes, chosen by the points alone."""
    used = [0] * nodes
    for _ in range(min(len(leaving), nodes * size)):
        room = [at for at in range(nodes) if used[at] < size]
        at = max(room, key=lambda one: (pack({GPU: 1}, a_node(size, used[one])), -one))
        assert used[at] > 0 or all(used[number] in (0, size) for number in range(nodes))
        used[at] += 1


def test_only_gpus_that_are_asked_for_count():
    assert gpus_asked({"cpu": 1, GPU: 0, "amd.com/gpu": 2, "example.com/fpga": 1}) == {"amd.com/gpu": 2}


def test_spread_prefers_the_emptiest_and_keeps_pods_without_gpus_where_pack_does():
    ask = make_ask({GPU: 1})
    assert [spread(ask, a_node(8, used)) for used in (0, 3, 7)] == [9, 5, 0]
    assert spread(make_ask({}), a_node(2)) == 0
    assert spread(make_ask({}), a_node(0)) == MAX_SCORE
    assert spread(ask, a_node(4, resource="amd.com/gpu")) == 0


def test_shares_of_a_gpu_count_in_thousandths():
    half = Ask(((GPU, 1),), 500, 1000)
    assert pack_rooms(half, {GPU: Room(2, (1000, 500), 64000, 64000, "")}) == 5
    assert pack_rooms(half, {GPU: Room(2, (500,), 64000, 64000, "")}) == 10


devices = st.lists(st.integers(1, WHOLE), max_size=8).map(lambda left: tuple(sorted(left, reverse=True)))


@given(devices, st.integers(1, WHOLE - 1))
def test_a_share_is_taken_from_one_device_that_has_it(free, milli):
    found = take(free, 1, milli)
    assert len(found) == len({left for left in free if left >= milli})
    for rest in found:
        assert sum(free) - sum(rest) == milli
        assert list(rest) == sorted(rest, reverse=True)
        assert all(rest)


@given(devices, st.integers(1, 8))
def test_whole_gpus_are_taken_from_idle_devices_only(free, count):
    idle = free.count(WHOLE)
    assert take(free, count, WHOLE) == ([free[count:]] if idle >= count else [])
