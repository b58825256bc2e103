"""Who gives its place to whom, and that over hours everybody gets the same."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage.decide.sharing.plan import Holding, Observed, Rule, Waiting, Yield, plan, rule_of
from moorage.decide.sharing.use import faded_seconds
from moorage_kube.scheduling import NodeInfo, PodInfo, parse_node, parse_pod, refusals
from moorage_kube.testing import builders
from moorage_kube.testing.examples import examples

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
STEP = examples(5 * MINUTE, full=MINUTE)  # of the hours on a fake clock
RULE = Rule(guaranteed=2 * HOUR, half_life=24 * HOUR, fresh=15 * MINUTE)
GPU = "nvidia.com/gpu"


@functools.cache
def a_node(name: str = "n1", gpus: int = 1) -> NodeInfo:
    return parse_node(builders.a_node(name, gpus=gpus, cpu="64", memory="512Gi", pods="100"))


@functools.cache
def a_pod(name: str, gpus: int = 1, node: str = "") -> PodInfo:
    sizes = {"cpu": "1", "memory": "1Gi", GPU: str(gpus)}
    return parse_pod(builders.a_pod(name, node=node, limits=sizes, requests=sizes, phase="Running"))


def holds(name: str = "a", owner: str = "ada", *, gpus: int = 1, node: str = "n1", **more: object) -> Holding:
    known = {"since": NOON - 3 * HOUR, "checkpoint_at": NOON - MINUTE}
    return Holding(run=("lab", name), owner=owner, pod=a_pod(name, gpus, node), **(known | more))  # type: ignore[arg-type]


def waits(name: str = "b", owner: str = "bob", *, gpus: int = 1) -> Waiting:
    return Waiting(run=("lab", name), owner=owner, pod=a_pod(name, gpus), since=NOON - HOUR)


def seen(
    holdings: list[Holding], waiting: list[Waiting], nodes: list[NodeInfo] | None = None, **more: object
) -> Observed:
    nodes = nodes or [a_node()]
    on_node = {node.name: [held.pod for held in holdings if held.pod.node == node.name] for node in nodes}
    use = {"use_of_owner": {"ada": 100.0, "bob": 10.0}}
    return Observed(
        rule=RULE,
        holdings=holdings,
        waiting=waiting,
        nodes=nodes,
        on_node=on_node,
        now=NOON,
        **(use | more),  # type: ignore[arg-type]
    )


YIELDS = (Yield(("lab", "a"), ("lab", "b")),)


@pytest.mark.parametrize(
    ("world", "want"),
    [
        pytest.param(seen([holds()], [waits()]), YIELDS, id="its time is over: it yields"),
        pytest.param(seen([holds(since=NOON - HOUR)], [waits()]), (), id="within its guaranteed time"),
        pytest.param(seen([holds(checkpoint_at=None)], [waits()]), (), id="no checkpoint"),
        pytest.param(seen([holds(checkpoint_at=NOON - HOUR)], [waits()]), (), id="its checkpoint is old"),
        pytest.param(
            seen([holds(since=NOON - 3 * HOUR, checkpoint_at=NOON - 4 * HOUR)], [waits()]),
            (),
            id="of a turn before",
        ),
        pytest.param(
            seen([holds()], [waits()], use_of_owner={"ada": 10.0, "bob": 100.0}), (), id="who waits used more"
        ),
        pytest.param(seen([holds()], [waits(gpus=2)]), (), id="who waits does not fit in the place"),
        pytest.param(
            seen([holds()], [waits()], nodes=[a_node(gpus=2)]),
            (),
            id="there is a free place: the scheduler's work",
        ),
        pytest.param(seen([holds(yields_to=("lab", "b"))], [waits()]), (), id="asked already"),
        pytest.param(seen([holds(yields_to=("lab", "c"))], [waits()]), (), id="it yields to another already"),
        pytest.param(
            seen([holds(owner="ada")], [waits(owner="ada")], use_of_run={("lab", "a"): 9.0, ("lab", "b"): 1.0}),
            YIELDS,
            id="of one owner's runs, the one that used more",
        ),
        pytest.param(
            seen([holds(owner="ada")], [waits(owner="ada")], use_of_run={("lab", "a"): 1.0, ("lab", "b"): 9.0}),
            (),
            id="of one owner's runs, the one that used less stays",
        ),
        pytest.param(
            seen(
                [holds("a"), holds("c", "cy")], [waits()], nodes=[a_node(gpus=2)], use_of_owner={"ada": 5, "cy": 9}
            ),
            (Yield(("lab", "c"), ("lab", "b")),),
            id="who used most yields",
        ),
        pytest.param(
            seen(
                [holds("a"), holds("c", "cy")],
                [waits(gpus=2)],
                nodes=[a_node(gpus=2)],
                use_of_owner={"ada": 5, "cy": 9},
            ),
            (Yield(("lab", "c"), ("lab", "b")), Yield(("lab", "a"), ("lab", "b"))),
            id="two make room for one that is larger",
        ),
        pytest.param(
            seen(
                [holds("a", node="n1"), holds("c", "ada", node="n2")],
                [waits(gpus=2)],
                nodes=[a_node("n1"), a_node("n2")],
            ),
            (),
            id="places on two nodes are of no use",
        ),
    ],
)
def test_who_yields_to_whom(world, want):
    assert plan(world) == want


def test_a_tenant_without_the_field_has_no_turns():
    assert rule_of({"spec": {"namespace": "lab"}}) is None
    rule = rule_of(
        {"spec": {"namespace": "lab", "timeSharing": {"guaranteedSeconds": 60, "runs": "Checkpointed"}}}
    )
    assert rule is not None
    assert (rule.rule.guaranteed, rule.everybody) == (MINUTE, True)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_use_fades_and_adds_up(first, second, age):
    """A stretch counts as the sum of its parts, and half as much after each half-life."""
    start = NOON - timedelta(minutes=first + second + age)
    middle, end = start + timedelta(minutes=first), NOON - timedelta(minutes=age)

    def used(begin: datetime, until: datetime, now: datetime = NOON) -> float:
        return faded_seconds(2, begin, until, now=now, half_life=HOUR)

    assert used(start, end) == pytest.approx(used(start, middle) + used(middle, end))
    assert used(start, end, NOON + HOUR) == pytest.approx(used(start, end) / 2)
    assert used(start, end) <= 2 * (end - start).total_seconds() + 1e-6


# --- hours on a fake clock


@dataclass
class Site:
    """Runs of several owners on few GPUs: a scheduler that takes who waited longest, and the plan at each step."""

    gpus: int
    owners: dict[str, str]  # run → owner
    now: datetime = NOON
    running: dict[str, datetime] = field(default_factory=dict)  # since
    queue: list[str] = field(default_factory=list)
    promised: list[str] = field(default_factory=list)  # whose turn it is
    steps: Counter[str] = field(default_factory=Counter)  # in which a run ran
    faded: dict[str, float] = field(default_factory=dict)  # run → seconds as they count now
    turns: list[timedelta] = field(default_factory=list)

    def pass_time(self) -> None:
        """Use adds up and fades, as `test_use_fades_and_adds_up` holds."""
        self.now += STEP
        seconds = faded_seconds(1, self.now - STEP, self.now, now=self.now, half_life=RULE.half_life)
        self.faded = {run: used * 0.5 ** (STEP / RULE.half_life) for run, used in self.faded.items()}
        for run in self.running:
            self.faded[run] = self.faded.get(run, 0.0) + seconds
        self.steps.update(list(self.running))

    def use_of_owner(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        for run, used in self.faded.items():
            sums[self.owners[run]] = sums.get(self.owners[run], 0.0) + used
        return sums

    def place(self) -> None:
        for run in [*self.promised, *self.queue]:
            if run in self.queue and len(self.running) < self.gpus:
                self.queue.remove(run)
                self.running[run] = self.now
        self.promised = [run for run in self.promised if run in self.queue]

    def step(self) -> None:
        self.place()
        self.pass_time()
        holdings = [
            holds(run, self.owners[run], since=since, checkpoint_at=self.now)
            for run, since in self.running.items()
        ]
        waiting = [replace(waits(run, self.owners[run]), since=self.now) for run in self.queue]
        world = seen(
            holdings,
            waiting,
            nodes=[a_node(gpus=self.gpus)],
            use_of_owner=self.use_of_owner(),
            use_of_run={("lab", run): used for run, used in self.faded.items()},
        )
        for decided in plan(replace(world, now=self.now)):
            self.turns.append(self.now - self.running.pop(decided.run[1]))
            self.queue.append(decided.run[1])
            self.promised.append(decided.to[1])

    def hours(self, key: dict[str, str]) -> dict[str, float]:
        sums = dict.fromkeys(key.values(), 0.0)
        for run, steps in self.steps.items():
            sums[key[run]] += steps * STEP / HOUR
        return sums


@settings(max_examples=12, deadline=None)
@given(gpus=st.integers(1, 3), owners=st.integers(2, 4), extra=st.integers(0, 3))
def test_shares_of_owners_become_equal_whatever_many_runs_they_have(gpus, owners, extra):
    """The first owner has more runs than the others; all of them together get what the others get."""
    names = {f"run-{number}-{copy}": f"owner-{number}" for number in range(owners) for copy in range(gpus)}
    names |= {f"more-{number}": "owner-0" for number in range(extra)}
    site = Site(gpus=gpus, owners=names, queue=list(names))
    for _ in range(96 * HOUR // STEP):
        site.step()
        assert len(site.running) <= gpus
        assert sorted([*site.running, *site.queue]) == sorted(names)  # none is lost, none runs twice
    hours = site.hours(names)
    fair = gpus * 96 / owners
    assert all(abs(had - fair) <= 0.1 * fair + 2 for had in hours.values()), hours
    assert min(site.turns, default=RULE.guaranteed) >= RULE.guaranteed


def test_two_runs_of_one_owner_take_turns():
    names = {"a": "ada", "b": "ada"}
    site = Site(gpus=1, owners=names, queue=["a", "b"])
    for _ in range(24 * HOUR // STEP):
        site.step()
    hours = site.hours({run: run for run in names})
    assert abs(hours["a"] - hours["b"]) <= 2.1
    assert len(site.turns) >= 10


def test_the_site_of_these_tests_judges_places_as_the_plan_does():
    node = a_node()
    assert refusals(a_pod("x"), node, [a_pod("y", node="n1")])
    assert not refusals(a_pod("x"), node, [])
