from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.packing.policies import WHOLE, Ask, Room, make_rooms
from moorage.extender.policies import LOSSES_KEPT, Fragmentation, RememberedMix, make_policy
from moorage.extender.scoreboard import Scoreboard

GPU = "nvidia.com/gpu"


def an_ask(gpus: int = 1, cpu: int = 8000, kinds: tuple[str, ...] = (), milli: int = WHOLE) -> Ask:
    return Ask(((GPU, gpus),) if gpus else (), milli, cpu, kinds)


def rooms(gpus: int = 8, used: int = 0, cpu_per_gpu: int = 12000, kind: str = "a100", cpu_used: int = 0):
    taken = cpu_used or used * cpu_per_gpu
    return make_rooms({GPU: gpus}, {GPU: used}, gpus * cpu_per_gpu, taken, kind)


def a_policy(*nodes: dict[str, Room], learnt: tuple[Ask, ...] = ()) -> Fragmentation:
    policy = Fragmentation()
    for at, node in enumerate(nodes):
        policy.offer(f"n{at}", node)
    for ask in learnt:
        policy.learn(ask)
    return policy


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


def test_a_mix_keeps_a_bounded_number_of_its_answers():
    mix = a_policy(rooms()).mix(GPU)
    assert isinstance(mix, RememberedMix)
    first = [mix.lost("a100", (WHOLE,), cpu) for cpu in range(5)]
    for cpu in range(LOSSES_KEPT):
        mix.lost("a100", (WHOLE,), cpu)
    assert len(mix._answers) <= LOSSES_KEPT
    assert [mix.lost("a100", (WHOLE,), cpu) for cpu in range(5)] == first


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
        assert dict(board.table(ask)) == {name: policy.points(ask, here) for name, here in present.items()}
