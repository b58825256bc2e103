"""Any order of events leaves the counters right: by a plain model, and by a ledger that saw only the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from moorage.extender.ledger import Hold, Ledger, Sight
from moorage_kube.meta import Key

GPU = "nvidia.com/gpu"
SECONDS = 10.0
NODES = ("n", "m", "o")
PODS = ("a", "b", "c")

names = st.sampled_from(PODS)
uids = st.sampled_from(["1", "2"])  # a pod made again has another
nodes = st.sampled_from(NODES)
holds = st.builds(
    lambda node, gpus, cpu: Hold(node, {GPU: gpus}, cpu), nodes, st.integers(1, 4), st.integers(0, 3)
)
versions = st.integers(0, 6)


@st.composite
def sights(draw: st.DrawFn) -> Sight:
    uid, version = draw(uids), draw(versions)
    kind = draw(st.sampled_from(["waiting", "refused", "nominated", "bound", "finished", "never ran"]))
    hold = draw(holds) if kind in ("nominated", "bound") else None
    return Sight(
        uid=uid,
        hold=hold,
        bound=kind in ("bound", "finished"),
        finished=kind in ("finished", "never ran"),
        refused=kind == "refused",
        version=version,
    )


events = st.one_of(
    st.tuples(st.just("see"), names, sights()),
    st.tuples(st.just("gone"), names, uids),
    st.tuples(st.just("ask"), names, st.tuples(uids, holds, versions)),
    st.tuples(st.just("wait"), names, st.sampled_from([1.0, 4.0, 11.0])),
)


@dataclass
class Model:
    """The rules written down plainly, counted from scratch each time."""

    now: float = 0.0
    seen: dict[str, Sight] = field(default_factory=dict)
    assumed: dict[str, tuple[str, Hold, int, float]] = field(default_factory=dict)

    def play(self, what: str, name: str, how: object) -> None:
        match what, how:
            case "see", Sight() as sight:
                self.seen[name] = sight
                if name in self.assumed:
                    uid, _, version, _ = self.assumed[name]
                    newer = sight.version > version
                    bound = sight.bound or sight.finished or (newer and (sight.refused or sight.hold is not None))
                    if bound if uid == sight.uid else newer:
                        del self.assumed[name]
            case "gone", str() as uid:
                self.seen.pop(name, None)
                if name in self.assumed and self.assumed[name][0] == uid:
                    del self.assumed[name]
            case "ask", (str() as uid, Hold() as hold, int() as version):
                self.assumed.pop(name, None)
                sight = self.seen.get(name)
                if not (sight is not None and sight.bound and sight.uid == uid):
                    self.assumed[name] = (uid, hold, version, self.now + SECONDS)
            case "wait", float() as seconds:
                self.now += seconds
                self.assumed = {name: one for name, one in self.assumed.items() if one[3] > self.now}

    def held(self) -> dict[str, tuple[int, int]]:
        found = dict.fromkeys(NODES, (0, 0))
        for name in PODS:
            sight, assumed = self.seen.get(name), self.assumed.get(name)
            hold = sight.hold if sight is not None else None
            if assumed is not None and not (sight is not None and sight.bound and sight.uid == assumed[0]):
                hold = assumed[1]
            if hold is not None:
                gpus, cpu = found[hold.node]
                found[hold.node] = (gpus + hold.gpus[GPU], cpu + hold.cpu)
        return found


def play(ledger: Ledger, now: float, what: str, name: str, how: object) -> tuple[float, set[str]]:
    key = Key("lab", name)
    match what, how:
        case "see", Sight() as sight:
            return now, ledger.see(key, sight)
        case "gone", str() as uid:
            return now, ledger.gone(key, uid)
        case "ask", (str() as uid, Hold() as hold, int() as version):
            changed = ledger.asked_again(key)
            return now, changed | ledger.assume(key, uid, hold, version=version, now=now)
        case "wait", float() as seconds:
            return now + seconds, ledger.expire(now + seconds)
    raise AssertionError(what)


def held(ledger: Ledger) -> dict[str, tuple[int, int]]:
    return {node: (ledger.gpus(node).get(GPU, 0), ledger.cpu(node)) for node in NODES}


@given(st.lists(events, max_size=40))
def test_any_order_of_events_counts_as_a_plain_model_does(steps):
    ledger, model, now = Ledger(assume_seconds=SECONDS), Model(), 0.0
    for what, name, how in steps:
        before = held(ledger)
        now, changed = play(ledger, now, what, name, how)
        model.play(what, name, how)
        after = held(ledger)
        assert after == model.held()
        assert len(ledger) == len(model.assumed)
        assert all(gpus >= 0 and cpu >= 0 for gpus, cpu in after.values())
        assert {node for node in NODES if before[node] != after[node]} <= changed


@given(st.lists(events, max_size=30), st.dictionaries(names, sights()))
def test_a_restart_that_reads_the_list_knows_what_the_one_before_knew_in_the_end(steps, last):
    old, now = Ledger(assume_seconds=SECONDS), 0.0
    for what, name, how in steps:
        now, _ = play(old, now, what, name, how)
    old.expire(now + SECONDS)
    for name in PODS:  # what the API shows in the end
        if name in last:
            old.see(Key("lab", name), last[name])
        else:
            old.gone(Key("lab", name), "1")
    fresh = Ledger(assume_seconds=SECONDS)
    for name, sight in last.items():
        fresh.see(Key("lab", name), sight)
    assert held(old) == held(fresh)
    assert len(old) == 0


@given(st.lists(events, max_size=40))
def test_every_assumption_has_one_outcome(steps):
    ledger, now, made = Ledger(assume_seconds=SECONDS), 0.0, 0
    for what, name, how in steps:
        open_before = len(ledger)
        again = what == "ask" and ledger.assumed(Key("lab", name)) is not None
        now, _ = play(ledger, now, what, name, how)
        if what == "ask":
            made += len(ledger) - open_before + again
    assert made == len(ledger) + ledger.outcomes.total()
