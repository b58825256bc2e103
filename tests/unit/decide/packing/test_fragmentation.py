from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.packing.fragmentation import MAX_POINTS, Fragmentation, Mix
from moorage.decide.packing.policies import WHOLE, Ask, Room, make_rooms
from moorage.extender.policies import make_policy
from moorage.extender.scoreboard import Scoreboard

GPU = "nvidia.com/gpu"


def an_ask(gpus: int = 1, cpu: int = 8000, kinds: tuple[str, ...] = (), milli: int = WHOLE) -> Ask:
    return Ask(((GPU, gpus),) if gpus else (), milli, cpu, kinds)


def rooms(gpus: int = 8, used: int = 0, cpu_per_gpu: int = 12000, kind: str = "a100", cpu_used: int = 0):
    taken = cpu_used or used * cpu_per_gpu
    return make_rooms({GPU: gpus}, {GPU: used}, gpus * cpu_per_gpu, taken, kind)


def a_policy(*nodes: dict[str, Room], learnt: tuple[Ask, ...] = ()) -> Fragmentation:
    policy = Fragmentation()
    for at, one in enumerate(nodes):
        policy.offer(f"n{at}", one)
    for ask in learnt:
        policy.learn(ask)
    return policy


def test_a_whole_node_is_not_broken_while_a_broken_one_has_room():
    policy = a_policy(*[rooms()] * 4)
    assert policy.points(an_ask(), rooms(used=3)) > policy.points(an_ask(), rooms())


def test_gpus_without_cpu_are_not_made():
    policy = a_policy(rooms(), learnt=(an_ask(1, 11000),) * 200)
    hungry = an_ask(1, 40000)
    poor, rich = rooms(used=4), rooms(2, used=0, cpu_per_gpu=52000)
    assert policy.points(hungry, rich) > policy.points(hungry, poor)


def test_rare_types_are_kept_for_those_who_ask_for_them():
    policy = a_policy(*[rooms(kind="t4")], *[rooms()] * 9, learnt=(an_ask(kinds=("t4",)), *(an_ask(),) * 9) * 20)
    assert policy.points(an_ask(), rooms(used=4)) > policy.points(an_ask(), rooms(used=4, kind="t4"))


def test_nodes_without_the_gpus_asked_for_get_nothing():
    policy = a_policy(rooms())
    assert policy.points(an_ask(), {}) == 0
    assert policy.points(an_ask(0), {}) == MAX_POINTS
    assert policy.points(an_ask(0), rooms()) < MAX_POINTS


def test_a_share_takes_the_device_on_which_it_loses_least():
    policy = a_policy(rooms(2), learnt=(an_ask(milli=500), an_ask()) * 200)
    assert policy.device(an_ask(milli=500), GPU, Room(2, (1000, 500), 24000, 24000, "a100")) == (1000,)


def test_the_mix_is_renewed_now_and_then_and_forgets():
    policy = a_policy(rooms(), learnt=(an_ask(8, 64000),) * 64)
    version = policy.version
    before = policy.mix(GPU).lost("a100", (WHOLE,) * 4, 48000)
    for _ in range(30_000):
        policy.learn(an_ask(1, 1000))
    assert version < policy.version < version + 200
    assert policy.mix(GPU).lost("a100", (WHOLE,) * 4, 48000) < before / 3


def test_a_type_is_dear_while_little_of_it_is_free_and_cheap_while_there_is_plenty():
    def advantage(t4_used: int) -> int:
        policy = a_policy(*[rooms(kind="t4")] * 4, *[rooms()] * 6)
        board: Scoreboard[int] = Scoreboard(policy, lambda _, points: points)
        for at in range(10):
            board.put(f"n{at}", rooms(kind="t4", used=t4_used) if at < 4 else rooms())
        for ask in (an_ask(kinds=("t4",)), *(an_ask(),) * 5) * 32:
            policy.learn(ask)
        return policy.points(an_ask(), rooms(used=4)) - policy.points(an_ask(), rooms(used=4, kind="t4"))

    assert advantage(7) > 3 * advantage(0) > 0


devices = st.lists(st.integers(1, WHOLE), max_size=8).map(lambda left: tuple(sorted(left, reverse=True)))
asks = st.builds(
    an_ask,
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 96000),
    st.sampled_from([(), ("a100",), ("t4",)]),
)


@given(st.dictionaries(asks, st.floats(0.1, 100), min_size=1), devices, st.integers(0, 96000))
def test_what_is_lost_is_between_nothing_and_all_of_it(weights, free, cpu):
    mix = Mix(weights, {room: 1 for room in rooms().values()}, stranded=0)
    assert -1e-9 <= mix.lost("a100", free, cpu) <= sum(free) / WHOLE + 1e-9


@given(asks, st.integers(1, 8), st.integers(0, 8), st.integers(0, 96000))
def test_points_are_integers_in_range_even_where_the_pod_does_not_fit(ask, gpus, used, cpu_used):
    points = a_policy(rooms()).points(ask, rooms(gpus, min(gpus, used), cpu_used=cpu_used))
    assert isinstance(points, int)
    assert 0 <= points <= MAX_POINTS


changes = st.lists(
    st.tuples(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 8)), st.integers(1, 2)), max_size=25
)


@given(st.sampled_from(["pack", "fragmentation", "spread", "none"]), changes)
def test_the_scoreboard_answers_what_the_policy_says_now(name, steps):
    policy = make_policy(name)
    board: Scoreboard[int] = Scoreboard(policy, lambda _, points: points)
    present: dict[str, dict[str, Room]] = {}
    for node, used, gpus in steps:
        if used is None:
            present.pop(node, None)
            policy.offer(node, None)
            board.put(node, None)
        else:
            present[node] = rooms(used=used)
            policy.offer(node, rooms())
            board.put(node, present[node])
        ask = an_ask(gpus)
        policy.learn(ask)
        assert dict(board.table(ask)) == {name: policy.points(ask, one) for name, one in present.items()}
