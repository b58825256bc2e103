"""Killed for memory: what counts as such, what becomes of the replacement, and that no bomb wanders."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from moorage.controllers.memorykill.plan import kill_message, ledger_patch, observe, release_patch
from moorage.decide.admission.order import admit
from moorage.decide.admission.review import Request
from moorage.decide.runs.killanswer import Hold, Known, Pass, Raise, answer, behind_gate, with_more_memory
from moorage.decide.runs.killplan import Release, Renew, Stop, Write, is_outdated, plan
from moorage.decide.runs.memorykills import (
    BombRule,
    Escalation,
    Hit,
    Kill,
    Ledger,
    Owner,
    has_grown,
    is_gated,
    kill_from_json,
    kill_of,
    kill_to_json,
    known_of,
    ledger_from,
    owner_of,
    rule_of,
    slot_of,
)
from moorage.model.policy import Policy
from moorage_kube.moments import rfc3339
from moorage_kube.testing import builders
from moorage_kube.testing.builders import an_owner
from moorage_kube.testing.examples import examples

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
GI = 2**30
HOLDS = BombRule(level="deny")
RAISES = BombRule(level="fill", escalation=Escalation(factor=Fraction(2), most=8 * GI))


def resources(limit: str | None, request: str | None) -> Any:
    out: Any = {}
    if limit is not None:
        out["limits"] = {"memory": limit}
    if request is not None:
        out["requests"] = {"memory": request}
    return out


def a_pod(
    name: str = "web-1", *, kind: str = "ReplicaSet", owner: str = "web", limit: str | None = "2Gi",
    request: str | None = "2Gi", container: str = "c", **meta: Any,
) -> Any:  # fmt: skip
    api_version = "" if kind in ("ReplicaSet", "StatefulSet", "DaemonSet", "Job") else "x.io/v1"
    meta = {"resourceVersion": "1", "creationTimestamp": rfc3339(NOON)} | meta
    parts = [{"name": container, "image": "i", "resources": resources(limit, request)}]
    made: Any = {"owner": an_owner(kind, owner, api_version=api_version), "phase": "Pending", "metadata": meta}
    return builders.a_pod(name, uid=f"u-{name}", containers=parts, **made)


def killed(pod: Any, *, at: datetime = NOON, node: str = "n1") -> Any:
    """Killed at its own limit, as a kubelet says it."""
    pod = copy.deepcopy(pod)
    ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": rfc3339(at)}}
    pod["spec"]["nodeName"] = node
    pod["status"] = {"phase": "Failed", "containerStatuses": [{"name": "c", "state": ended}]}
    return pod


def evicted(
    pod: Any, used: str = "3Gi", *, over: str = "Container c was using {}, request is {}, has larger"
) -> Any:
    pod = copy.deepcopy(pod)
    request = pod["spec"]["containers"][0]["resources"].get("requests", {}).get("memory", "0")
    message = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 40Mi. "
    message += (over.format(used, request) + " consumption of memory. ") if over else ""
    when = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": rfc3339(NOON)}
    pod["status"] = {"phase": "Failed", "reason": "Evicted", "message": message, "conditions": [when]}
    pod["spec"]["nodeName"] = "n1"
    return pod


def a_kill(uid: str = "k", limit: int | None = 2 * GI, *, by: str = "OOMKilled", **more: Any) -> Kill:
    hit = Hit(container="c", limit=limit, request=more.pop("request", limit), used=more.pop("used", limit))
    return Kill(**({"pod": uid, "uid": uid, "slot": "", "at": rfc3339(NOON), "by": by, "hits": (hit,)} | more))


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(
            killed(a_pod()), Hit(container="c", limit=2 * GI, request=2 * GI, used=2 * GI), id="at its limit"
        ),
        pytest.param(
            evicted(a_pod(request="1Gi")),
            Hit(container="c", limit=2 * GI, request=GI, used=3 * GI),
            id="evicted over its request: as the kubelet measured it",
        ),
        pytest.param(
            evicted(a_pod(limit=None, request=None), "123456Ki"),
            Hit(container="c", used=123456 * 1024),
            id="evicted with nothing stated",
        ),
        pytest.param(evicted(a_pod(), over=""), None, id="evicted below its request: a victim"),
        pytest.param(a_pod() | {"status": {"phase": "Failed"}}, None, id="failed otherwise"),
        pytest.param(killed(a_pod()) | {"status": {"phase": "Running"}}, None, id="restarted in place"),
        pytest.param(killed(a_pod(ownerReferences=[])), None, id="a bare pod: nobody makes it again"),
    ],
)
def test_what_counts_as_killed_for_memory(pod, want):
    kill = kill_of(pod)
    assert (kill.hits if kill else None) == ((want,) if want else None)


def test_an_eviction_for_disk_is_none_for_memory():
    pod = evicted(a_pod())
    pod["status"]["message"] = "The node was low on resource: ephemeral-storage. " + (
        "Container c was using 3Gi, request is 0, has larger consumption of ephemeral-storage."
    )
    assert kill_of(pod) is None


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        pytest.param(a_pod("a"), a_pod("b"), True, id="pods of one ReplicaSet"),
        pytest.param(a_pod("w-0", kind="StatefulSet"), a_pod("w-1", kind="StatefulSet"), False, id="two ordinals"),
        pytest.param(
            a_pod("w-0", kind="StatefulSet", labels={"controller-revision-hash": "1"}),
            a_pod("w-0", kind="StatefulSet", labels={"controller-revision-hash": "2"}),
            False,
            id="another template of a StatefulSet",
        ),
        pytest.param(
            a_pod("a", kind="Job", annotations={"batch.kubernetes.io/job-completion-index": "1"}),
            a_pod("b", kind="Job", annotations={"batch.kubernetes.io/job-completion-index": "2"}),
            False,
            id="two indexes of a Job",
        ),
        pytest.param(
            a_pod("a", kind="Workflow"), a_pod("b", kind="Workflow"), True, id="unknown: the same containers"
        ),
        pytest.param(
            a_pod("a", kind="Workflow"), a_pod("b", kind="Workflow", container="d"), False, id="unknown: others"
        ),
        pytest.param(
            a_pod("a", kind="Workflow"), a_pod("b", kind="Workflow", limit="9Gi"), True, id="unknown: memory aside"
        ),
    ],
)
def test_which_pods_stand_for_each_other(one, other, same):
    owners = owner_of(one), owner_of(other)
    assert owners[0] is not None
    assert owners[1] is not None
    assert (slot_of(one, owners[0]) == slot_of(other, owners[1])) is same


@pytest.mark.parametrize(
    ("pod", "kill", "grown"),
    [
        (a_pod(limit="2Gi"), a_kill(), False),
        (a_pod(limit="1Gi", request="1Gi"), a_kill(), False),
        (a_pod(limit="2049Mi"), a_kill(), True),
        (a_pod(limit=None, request="1Gi"), a_kill(), True),
        (a_pod(limit=None, request=None), a_kill(limit=None), False),
        (a_pod(limit="1Gi"), a_kill(limit=None), True),
        (a_pod(limit="4Gi", request="2Gi"), a_kill(limit=4 * GI, by="Evicted", request=GI), True),
        (a_pod(limit="4Gi", request="2Gi"), a_kill(limit=4 * GI, request=GI), False),
        (a_pod(container="other"), a_kill(), True),
    ],
)
def test_what_is_more_memory(pod, kill, grown):
    assert has_grown(pod, kill) is grown


@pytest.mark.parametrize(
    ("kills", "held", "how", "want"),
    [
        pytest.param((), 0, HOLDS, Pass(), id="nobody was killed"),
        pytest.param((a_kill(),), 0, HOLDS, Hold(a_kill()), id="held"),
        pytest.param((a_kill(),), 1, HOLDS, Pass(), id="one is held for it already"),
        pytest.param((a_kill("a"), a_kill("b")), 1, HOLDS, Hold(a_kill("b")), id="one each"),
        pytest.param((a_kill(),), 0, replace(HOLDS, allowed=2), Pass(), id="the first of two allowed"),
        pytest.param((a_kill("a"), a_kill("b")), 0, replace(HOLDS, allowed=2), Hold(a_kill("b")), id="the second"),
        pytest.param((a_kill(limit=GI),), 0, HOLDS, Pass(), id="more memory passes at once"),
        pytest.param((a_kill(),), 0, BombRule(level="warn"), Pass(), id="warn: only told"),
        pytest.param((a_kill(),), 0, RAISES, Raise(a_kill(), {"c": (4 * GI, 4 * GI)}), id="raised"),
        pytest.param(
            (a_kill(),), 1, RAISES, Raise(a_kill(), {"c": (4 * GI, 4 * GI)}), id="all that come are raised"
        ),
        pytest.param(
            (a_kill("a"), a_kill("b", 4 * GI)),
            0,
            RAISES,
            Raise(a_kill("b", 4 * GI), {"c": (8 * GI, 8 * GI)}),
            id="twice",
        ),
        pytest.param((a_kill(limit=8 * GI),), 0, RAISES, Hold(a_kill(limit=8 * GI)), id="at the most: held"),
        pytest.param((a_kill(),), 0, replace(RAISES, level="deny"), Hold(a_kill()), id="deny never raises"),
    ],
)
def test_what_becomes_of_the_replacement(kills, held, how, want):
    assert answer(a_pod(), Known(kills=kills, held=held), how) == want


def test_one_without_any_bound_gets_one_above_what_was_measured():
    kill = a_kill(limit=None, by="Evicted", request=None, used=3 * GI)
    pod = a_pod(limit=None, request=None)
    found = answer(pod, Known(kills=(kill,)), RAISES)
    assert found == Raise(kill, {"c": (6 * GI, 6 * GI)})
    pod, text = with_more_memory(pod, found)
    assert text.startswith("memory of c raised from no limit to 6Gi: pod k was evicted for memory")
    assert pod["spec"]["containers"][0]["resources"] == {
        "requests": {"memory": "6144Mi"},
        "limits": {"memory": "6144Mi"},
    }
    nobody_measured = replace(kill, hits=(Hit(container="c"),))
    assert isinstance(answer(a_pod(limit=None, request=None), Known(kills=(nobody_measured,)), RAISES), Hold)


def test_a_pod_whose_node_is_named_is_not_held():
    pod = a_pod()
    pod["spec"]["nodeName"] = "node-1"
    assert answer(pod, Known(kills=(a_kill(),)), HOLDS) == Pass()


def test_a_limit_over_the_whole_pod_is_not_raised_but_held():
    pod = a_pod()
    pod["spec"]["resources"] = {"limits": {"memory": "2Gi"}}
    assert isinstance(answer(pod, Known(kills=(a_kill(),)), RAISES), Hold)


@pytest.mark.parametrize(
    ("settings_", "want"),
    [
        ({"level": "fill"}, BombRule(level="fill")),
        ({}, BombRule(level="warn")),
        ({"level": False}, BombRule(level="off")),
        ({"level": "fill", "allowed": 3}, BombRule(level="fill", allowed=3)),
        ({"level": "fill", "allowed": 0, "escalation": {"max": "x"}}, BombRule(level="fill")),
        (
            {"level": "fill", "escalation": {"max": "8Gi", "factor": 1.5}},
            BombRule(level="fill", escalation=Escalation(factor=Fraction(3, 2), most=8 * GI)),
        ),
    ],
)
def test_the_rule_as_a_policy_has_it(settings_, want):
    assert rule_of(Policy({"restartBomb": settings_})) == want
    assert rule_of(None) == BombRule()


def a_request(pod: Any, known: Known | None, **rule_: Any) -> Request:
    user = "system:serviceaccount:kube-system:replicaset-controller"
    return Request(
        kind="Pod", operation="CREATE", user=user, obj=pod, known=known, policy=Policy({"restartBomb": rule_})
    )


def patched(verdict: Any) -> dict[str, Any]:
    return {patch["path"]: patch["value"] for patch in verdict.patches}


def test_admission_holds_a_replacement_and_says_why():
    pod = a_pod()
    pod["spec"]["schedulingGates"] = [{"name": "other/gate"}]
    verdict = admit(a_request(pod, Known(kills=(a_kill(),)), level="fill"))
    found = patched(verdict)
    assert found["/spec/schedulingGates"] == [{"name": "other/gate"}, {"name": "moorage.dev/memory"}]
    assert found["/metadata/labels"] == {"moorage.dev/memory": "held"}
    assert "created again with the same memory" in found["/metadata/annotations"]["moorage.dev/memory-held"]
    assert any("(restartBomb)" in warning for warning in verdict.warnings)
    held = copy.deepcopy(pod)
    held = behind_gate(held, a_kill())
    assert (
        admit(a_request(held, Known(kills=(a_kill(),)), level="fill")).patches == ()
    )  # asked twice: once is enough


def test_admission_raises_where_the_policy_allows_it_but_not_for_a_machines_guest():
    escalation = {"max": "8Gi"}
    found = patched(admit(a_request(a_pod(), Known(kills=(a_kill(),)), level="fill", escalation=escalation)))
    assert found["/spec/containers"][0]["resources"]["limits"] == {"memory": "4096Mi"}
    assert "/spec/schedulingGates" not in found
    guest = a_pod(labels={"moorage.dev/machine-type": "t", "moorage.dev/machine-group": "g"})
    assert "/spec/schedulingGates" in patched(
        admit(a_request(guest, Known(kills=(a_kill(),)), level="fill", escalation=escalation))
    )


def test_without_kills_admission_leaves_pods_of_others_alone():
    assert admit(a_request(a_pod(), None, level="deny")).patches == ()


# --- the operator


OWNER = Owner(api_version="apps/v1", kind="ReplicaSet", name="web", uid="uid-web")


NO_LEDGER = Ledger()


def seen_of(
    pods: list[Any], ledger: Ledger = NO_LEDGER, how: BombRule = HOLDS, now: datetime = NOON, **more: Any
) -> Any:
    return observe(more.pop("owner", OWNER), pods, more.pop("keeper", None), ledger, how, now)


def held_pod(name: str, kill: Kill, **more: Any) -> Any:
    return behind_gate(a_pod(name, **more), kill)


DEAD = killed(a_pod("web-1"))
KILL = kill_of(DEAD)
assert KILL is not None
LEDGER = Ledger(kills=(KILL,), count=1)


def test_a_kill_is_noted_before_it_is_told_and_then_waited_for():
    decided = plan(seen_of([DEAD]))
    assert decided.actions == (Write(LEDGER, (KILL,)),)
    assert decided.look_again_in == timedelta(seconds=5)
    assert plan(seen_of([DEAD, held_pod("web-2", KILL)], LEDGER)).actions == ()
    assert plan(seen_of([DEAD, held_pod("web-2", KILL)], LEDGER)).look_again_in is None


def test_what_slipped_past_is_stopped_once_and_only_while_it_is_young():
    slipped = a_pod("web-2")
    (write, stop) = plan(seen_of([DEAD, slipped], LEDGER, now=NOON + timedelta(seconds=3))).actions
    assert isinstance(write, Write)
    assert write.ledger.stopped == {KILL.uid}
    assert write.news == ()
    assert isinstance(stop, Stop)
    assert stop.pod.name == "web-2"
    again = plan(seen_of([DEAD, a_pod("web-3")], write.ledger, now=NOON + timedelta(seconds=6)))
    assert again.actions == ()  # nobody held it a second time: not stopped for ever
    assert plan(seen_of([DEAD, slipped], LEDGER, now=NOON + timedelta(hours=1))).actions == ()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(
            a_pod("web-2", creationTimestamp=rfc3339(NOON - timedelta(seconds=1))), id="older than the kill"
        ),
        pytest.param(a_pod("web-2", limit="3Gi", request="3Gi"), id="with more memory"),
        pytest.param(a_pod("web-2", owner="else"), id="of another owner"),
        pytest.param(a_pod("web-2", deletionTimestamp=rfc3339(NOON)), id="going already"),
    ],
)
def test_others_are_not_stopped(other):
    assert not any(isinstance(action, Stop) for action in plan(seen_of([DEAD, other], LEDGER)).actions)


def test_held_pods_are_let_go_for_good_reasons():
    one, two = (
        held_pod("web-2", KILL),
        held_pod("web-3", KILL, creationTimestamp=rfc3339(NOON + timedelta(seconds=1))),
    )
    (release,) = plan(seen_of([DEAD, one, two], LEDGER)).actions
    assert isinstance(release, Release)
    assert release.pod.name == "web-3"
    assert release.state is None
    assert [type(each) for each in plan(seen_of([one], LEDGER, BombRule())).actions] == [Release]
    assert [type(each) for each in plan(seen_of([one], LEDGER, BombRule(level="warn"))).actions] == [Release]
    one["metadata"]["annotations"]["moorage.dev/memory-release"] = "yes"
    write, release = plan(seen_of([DEAD, one], LEDGER)).actions
    assert write.ledger.forgiven == {KILL.uid}
    assert release.state == "released"
    patch = release_patch(one, release)
    assert patch["spec"] == {"schedulingGates": []}
    assert patch["metadata"]["labels"] == {"moorage.dev/memory": "released"}


def test_a_kill_is_remembered_by_the_held_pod_when_the_killed_one_is_gone():
    held = held_pod("web-2", KILL)
    kills, forgiven, found = known_of([held], Ledger(), "uid-web", "")
    assert (kills, forgiven, found) == ({KILL.uid: KILL}, frozenset(), [held])
    held["spec"]["schedulingGates"] = []  # by hand
    kills, forgiven, found = known_of([held], LEDGER, "uid-web", "")
    assert (set(kills), forgiven, found) == ({KILL.uid}, {KILL.uid}, [])


def test_a_stateful_set_that_moved_on_gets_its_held_pod_made_again():
    labels = {"controller-revision-hash": "old"}
    dead = killed(a_pod("w-0", kind="StatefulSet", owner="w", labels=dict(labels)))
    kill = kill_of(dead)
    held = held_pod("w-0", kill, kind="StatefulSet", owner="w", labels=dict(labels))
    owner = Owner(api_version="apps/v1", kind="StatefulSet", name="w", uid="uid-w")
    status = {"updateRevision": "new", "observedGeneration": 2}
    keeper: Any = {"metadata": {"generation": 2, "uid": "uid-w"}, "spec": {}, "status": status}
    ledger = Ledger(kills=(kill,), count=1)
    (renew,) = plan(seen_of([held], ledger, owner=owner, keeper=keeper)).actions
    assert isinstance(renew, Renew)
    assert not is_outdated(held, keeper | {"status": status | {"observedGeneration": 1}})
    assert not is_outdated(held, keeper | {"status": status | {"updateRevision": "old"}})
    partition = {"updateStrategy": {"rollingUpdate": {"partition": 1}}}
    assert not is_outdated(held, keeper | {"spec": partition})


def test_a_daemon_sets_kill_is_told_and_nothing_else():
    owner = Owner(api_version="apps/v1", kind="DaemonSet", name="d", uid="uid-d")
    dead = killed(a_pod("d-1", kind="DaemonSet", owner="d"))
    decided = plan(seen_of([dead, a_pod("d-2", kind="DaemonSet", owner="d")], owner=owner))
    assert [type(action) for action in decided.actions] == [Write]
    assert kill_message(decided.actions[0].news[0], owner, HOLDS).endswith("its replacement stays on that node")


def test_a_ledger_keeps_the_newest_and_counts_all():
    dead = [killed(a_pod(f"web-{n:02}"), at=NOON + timedelta(minutes=n)) for n in range(14)]
    (write, *_) = plan(seen_of(dead, how=BombRule(level="warn"))).actions
    assert [kill.pod for kill in write.ledger.kills] == [f"web-{n:02}" for n in range(4, 14)]
    assert write.ledger.count == 14
    assert ledger_from(write.ledger.to_text()) == write.ledger
    assert plan(seen_of(dead, write.ledger, BombRule(level="warn"))).actions == ()
    keeper: Any = {"metadata": {"uid": "u", "resourceVersion": "7"}}
    assert ledger_patch(write.ledger, keeper)["metadata"]["resourceVersion"] == "7"


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"kills": 3}', '{"kills": [{"pod": 1}], "forgiven": [2]}'])
def test_what_anybody_may_write_into_an_annotation_harms_nothing(text):
    assert ledger_from(text).kills == ()
    pod = a_pod(annotations={"moorage.dev/memory-kill": text or "x"}, labels={"moorage.dev/memory": "held"})
    assert plan(seen_of([pod])).actions == ()


sizes = st.none() | st.integers(1, 64).map(lambda n: n * GI)
hits = st.builds(Hit, container=st.sampled_from(["c", "d"]), limit=sizes, request=sizes, used=sizes)
kills_ = st.builds(
    Kill,
    pod=st.just("p"),
    uid=st.uuids().map(str),
    slot=st.just(""),
    at=st.just(rfc3339(NOON)),
    by=st.sampled_from(["OOMKilled", "Evicted"]),
    hits=st.lists(hits, min_size=1, max_size=2).map(tuple),
)
rules = st.builds(
    BombRule,
    level=st.sampled_from(["off", "warn", "fill", "deny"]),
    allowed=st.integers(1, 3),
    escalation=st.none()
    | st.builds(
        Escalation,
        factor=st.fractions(min_value=Fraction(11, 10), max_value=10),
        most=st.integers(1, 80).map(lambda n: n * GI),
    ),
)


def text_of(size: int | None) -> str | None:
    return None if size is None else str(size)


@given(st.lists(kills_, max_size=4).map(tuple), st.integers(0, 5), rules, sizes, sizes)
@settings(max_examples=examples(75, full=300))
def test_an_answer_never_holds_what_has_more_memory_and_never_gives_less(kills, held, how, limit, request):
    pod = a_pod(limit=text_of(limit), request=text_of(request))
    found = answer(pod, Known(kills=kills, held=held), how)
    mine = [kill for kill in kills if any(hit.container == "c" for hit in kill.hits)]
    if not how.holds or len(mine) < how.allowed:
        assert found == Pass()
    match found:
        case Hold(kill):
            assert kill in kills
            assert not has_grown(pod, kill)
            assert held < len(kills)
            assert not any(
                hit.limit is not None and (limit is None or limit > hit.limit)
                for hit in kill.hits
                if len(kill.hits) == 1
            )
        case Raise(kill, memory):
            assert how.level == "fill"
            assert how.escalation is not None
            pod, _ = with_more_memory(pod, found)
            (container,) = pod["spec"]["containers"]
            had = limit or request or 0
            given_limit = memory["c"][1]
            assert int(given_limit) >= max(had, limit or 0) or limit is None
            assert memory["c"][0] <= max(how.escalation.most, 0)
            assert all(has_grown(pod, kill) for kill in kills)  # and so it passes when asked again
            assert answer(pod, Known(kills=kills, held=held), how) == Pass()
            assert container["resources"]["limits"]["memory"]


@given(kills_)
def test_a_kill_is_read_back_from_its_annotation(kill):
    assert kill_from_json(kill_to_json(kill)) == kill


class Bomb(RuleBasedStateMachine):
    """An owner of several replicas that keeps making pods, a webhook that sees late, and our operator.

    Bombs explode where they run; the others never do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = NOON
        self.pods: dict[str, Any] = {}
        self.ledger = Ledger()
        self.made = 0
        self.webhook_sees: list[Any] = []
        self.rule = HOLDS
        self.stops = self.releases_asked = self.kills = 0
        for _ in range(3):
            self._make()

    def _make(self) -> None:
        self.made += 1
        pod = a_pod(f"web-{self.made:03}", creationTimestamp=rfc3339(self.now))
        kills, forgiven, held = known_of(self.webhook_sees, self.ledger, "uid-web", "")
        known = Known(kills=tuple(one for uid, one in kills.items() if uid not in forgiven), held=len(held))
        found = answer(pod, known, self.rule)
        if isinstance(found, Hold):
            pod = behind_gate(pod, found.kill)
        self.pods[pod["metadata"]["name"]] = pod

    def _alive(self) -> list[Any]:
        return [pod for pod in self.pods.values() if pod["status"]["phase"] != "Failed"]

    def _replace(self) -> None:
        while len(self._alive()) < 3:
            self._make()

    @rule(which=st.integers(0, 2), late=st.booleans())
    def explode(self, which, late):
        running = [one for one in self._alive() if not is_gated(one)]
        if not running:
            return
        self.now += timedelta(seconds=1)
        pod = running[which % len(running)]
        self.kills += 1
        self.pods[pod["metadata"]["name"]] = killed(pod, at=self.now)
        if not late:
            self.webhook_catches_up()
        self._replace()

    @rule()
    def webhook_catches_up(self):
        self.webhook_sees = copy.deepcopy(list(self.pods.values()))

    @rule()
    def operator_passes(self):
        self.now += timedelta(seconds=1)
        self.webhook_catches_up()
        for action in plan(seen_of(list(self.pods.values()), self.ledger, self.rule, self.now)).actions:
            match action:
                case Write(ledger, _):
                    self.ledger = ledger
                case Release(pod, state, _):
                    obj = self.pods[pod.name]
                    patch = release_patch(obj, action)
                    obj["spec"]["schedulingGates"] = patch["spec"]["schedulingGates"]
                    if state is None:
                        del obj["metadata"]["labels"]["moorage.dev/memory"]
                    else:
                        obj["metadata"]["labels"]["moorage.dev/memory"] = state
                case Stop(pod, _):
                    self.stops += 1
                    del self.pods[pod.name]
                    self._replace()
        self.webhook_catches_up()

    @rule()
    def somebody_cleans_up_failed_pods(self):
        self.operator_passes()
        self.pods = {name: one for name, one in self.pods.items() if one["status"]["phase"] != "Failed"}
        self.webhook_catches_up()

    @invariant()
    def what_settles_holds_one_per_kill_and_no_more(self):
        world = copy.deepcopy((self.pods, self.ledger, self.webhook_sees, self.now, self.made, self.stops))
        for _ in range(8):
            self.operator_passes()
        assert plan(seen_of(list(self.pods.values()), self.ledger, self.rule, self.now)).actions == ()
        kills, forgiven, held = known_of(list(self.pods.values()), self.ledger, "uid-web")
        assert len(held) <= len(set(kills) - forgiven)
        assert self.stops <= self.kills  # each kill stops one pod at most
        self.pods, self.ledger, self.webhook_sees, self.now, self.made, self.stops = world


TestBomb = Bomb.TestCase
TestBomb.settings = settings(max_examples=examples(20, full=60), stateful_step_count=12, deadline=None)


@given(st.integers(1, 3), st.lists(st.booleans(), min_size=12, max_size=12))
def test_a_bomb_visits_as_many_nodes_as_are_allowed_and_one_more_for_each_that_slipped_past(allowed, late):
    """One replica that always explodes, remade on the next node each time."""
    how = replace(HOLDS, allowed=allowed)
    pods: dict[str, Any] = {}
    ledger, sees, exploded, slipped = Ledger(), [], 0, 0
    now = NOON
    for step, is_late in enumerate(late):
        now += timedelta(seconds=30)
        pod = a_pod(f"web-{step}", creationTimestamp=rfc3339(now))
        kills, _, held = known_of(sees, ledger, "uid-web", "")
        found = answer(pod, Known(kills=tuple(kills.values()), held=len(held)), how)
        if isinstance(found, Hold):
            break
        pods[pod["metadata"]["name"]] = pod
        stopped = False
        for action in plan(seen_of(list(pods.values()), ledger, how, now)).actions:
            if isinstance(action, Write):
                ledger = action.ledger
            if isinstance(action, Stop):
                stopped = True
                del pods[action.pod.name]
        if not stopped:
            exploded += 1
            now += timedelta(seconds=30)
            pods[pod["metadata"]["name"]] = killed(pod, at=now)
        sees = sees if is_late else copy.deepcopy(list(pods.values()))
        slipped += is_late
    assert exploded <= allowed + slipped
    if not any(late):
        assert exploded == allowed
