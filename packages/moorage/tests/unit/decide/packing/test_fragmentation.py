from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.packing.fragmentation import MAX_POINTS, Mix, devices_left, make_mix, make_prior, points
from moorage.decide.packing.policies import WHOLE, Ask, Room, Rooms, make_rooms

GPU = "nvidia.com/gpu"


def an_ask(gpus: int = 1, cpu: int = 8000, kinds: tuple[str, ...] = (), milli: int = WHOLE) -> Ask:
    return Ask(((GPU, gpus),) if gpus else (), milli, cpu, kinds)


def rooms(gpus: int = 8, used: int = 0, cpu_per_gpu: int = 12000, kind: str = "a100", cpu_used: int = 0):
    taken = cpu_used or used * cpu_per_gpu
    return make_rooms({GPU: gpus}, {GPU: used}, gpus * cpu_per_gpu, taken, kind)


def a_mix(*nodes: Rooms, learnt: tuple[Ask, ...] = (), now: tuple[Rooms, ...] = ()) -> Mix:
    """The mix on such nodes after these pods; `now`: the rooms of the nodes, none held when left out."""
    offered = Counter(node[GPU] for node in nodes)
    weights = Counter(make_prior(GPU, offered))
    weights.update(learnt)
    return make_mix(weights, offered, Counter(node[GPU] for node in now or nodes))


def points_of(ask: Ask, rooms: Rooms, mix: Mix) -> int:
    return points(ask, rooms, {GPU: mix}.__getitem__)


def test_a_whole_node_is_not_broken_while_a_broken_one_has_room():
    mix = a_mix(*[rooms()] * 4)
    assert points_of(an_ask(), rooms(used=3), mix) > points_of(an_ask(), rooms(), mix)


def test_gpus_without_cpu_are_not_made():
    mix = a_mix(rooms(), learnt=(an_ask(1, 11000),) * 200)
    hungry = an_ask(1, 40000)
    poor, rich = rooms(used=4), rooms(2, used=0, cpu_per_gpu=52000)
    assert points_of(hungry, rich, mix) > points_of(hungry, poor, mix)


def test_rare_types_are_kept_for_those_who_ask_for_them():
    mix = a_mix(*[rooms(kind="t4")], *[rooms()] * 9, learnt=(an_ask(kinds=("t4",)), *(an_ask(),) * 9) * 20)
    assert points_of(an_ask(), rooms(used=4), mix) > points_of(an_ask(), rooms(used=4, kind="t4"), mix)


def test_nodes_without_the_gpus_asked_for_get_nothing():
    mix = a_mix(rooms())
    assert points_of(an_ask(), {}, mix) == 0
    assert points_of(an_ask(0), {}, mix) == MAX_POINTS
    assert points_of(an_ask(0), rooms(), mix) < MAX_POINTS


def test_a_share_takes_the_device_on_which_it_loses_least():
    mix = a_mix(rooms(2), learnt=(an_ask(milli=500), an_ask()) * 200)
    room = Room(2, (1000, 500), 24000, 24000, "a100")
    assert devices_left(an_ask(milli=500), GPU, room, mix) == (1000,)
    assert devices_left(an_ask(4), GPU, room, mix) is None


def test_a_type_is_dear_while_little_of_it_is_free_and_cheap_while_there_is_plenty():
    def advantage(t4_used: int) -> int:
        others = (rooms(),) * 6
        mix = a_mix(
            *(rooms(kind="t4"),) * 4,
            *others,
            learnt=(an_ask(kinds=("t4",)), *(an_ask(),) * 5) * 32,
            now=(*(rooms(kind="t4", used=t4_used),) * 4, *others),
        )
        return points_of(an_ask(), rooms(used=4), mix) - points_of(an_ask(), rooms(used=4, kind="t4"), mix)

    assert advantage(7) > 3 * advantage(0) > 0


devices = st.lists(st.integers(1, WHOLE), max_size=8).map(lambda left: tuple(sorted(left, reverse=True)))
asks = st.builds(
    an_ask, st.sampled_from([1, 2, 4, 8]), st.integers(0, 96000), st.sampled_from([(), ("a100",), ("t4",)])
)


@given(st.dictionaries(asks, st.floats(0.1, 100), min_size=1), devices, st.integers(0, 96000))
def test_what_is_lost_is_between_nothing_and_all_of_it(weights, free, cpu):
    mix = make_mix(weights, {room: 1 for room in rooms().values()}, stranded=0)
    assert -1e-9 <= mix.lost("a100", free, cpu) <= sum(free) / WHOLE + 1e-9


@given(asks, st.integers(1, 8), st.integers(0, 8), st.integers(0, 96000))
def test_points_are_integers_in_range_even_where_the_pod_does_not_fit(ask, gpus, used, cpu_used):
    answer = points_of(ask, rooms(gpus, min(gpus, used), cpu_used=cpu_used), a_mix(rooms()))
    assert isinstance(answer, int)
    assert 0 <= answer <= MAX_POINTS
