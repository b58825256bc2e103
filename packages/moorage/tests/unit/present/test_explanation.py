"""Explanations: the past, volumes, machines, refusals, and smaller requests that fit."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.decide.explain.explainer import explain
from moorage.decide.explain.public import as_public
from moorage.decide.explain.snapshot import concerning
from moorage.decide.explain.storage import storage_of
from moorage.decide.runs.forecast import Like, Stay, history_of
from moorage.model.machine import MACHINES
from moorage.present.explanation import about, explain_text, explanation_view, short_reason
from moorage_kube.resources import PVCS, PVS, STORAGECLASSES
from moorage_kube.scheduling import parse_node, parse_pod, refusals
from moorage_kube.testing.builders import GPU, an_object
from moorage_kube.testing.builders import given as fields_of
from moorage_kube.testing.examples import examples
from moorage_testing.builders import a_gpu_node, a_run_pod

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def a_node(name="n1", gpus=2, **more):
    return a_gpu_node(name, gpus, labels={"kubernetes.io/hostname": name}, **more)


def a_pod(name="me", gpus=1, *, node="", owner="ada", cpu="1", memory="1Gi", ago=1.0, labels=None, **more):
    at, marks = (NOON - ago * HOUR).isoformat(), {"moorage.dev/owner": owner} | (labels or {})
    made = {"created": at, "uid": f"uid-{name}", "image": "py", "command": ["x"], "node": node, "gpus": gpus}
    made |= {"limits": {"cpu": cpu, "memory": memory}, "spec": {"nodeSelector": more.pop("selector", {})}}
    made |= {"started": at} if node else {"phase": "Pending"}
    return a_run_pod(name, run=name, user=owner, labels=marks, **made | more)


def ask(pod, nodes, pods=(), **more):
    return explain(pod, nodes=nodes, pods=pods, now=NOON, **more)


def past(*hours, owner="ada", name="x"):
    like = Like(owner=owner, name=name, gpu_type="a100")
    return history_of([Stay(like=like, ended=NOON, took=hour * HOUR) for hour in hours])


# -- the past


def test_the_usual_end_is_shown_with_the_limit_and_its_evidence():
    pods = [a_pod("x", 2, node="n1", expected=5 * 3600)]
    found = ask(a_pod(), [a_node()], pods, history=past(1, 2, 2, 2, 3, 3, 3, 3, 3, 9))
    [held] = found.held_by
    assert (held.sure, held.usual_until) == ("limit", NOON + 2 * HOUR)
    assert (found.likely.at, found.earliest.at) == (NOON + 2 * HOUR, NOON + 4 * HOUR)
    text = explain_text(found)
    like = "(8 of 9 like it: same name)"
    assert f"usually done by about 14:00 UTC {like}, until 05 Jan 16:00 UTC at the latest" in text
    assert f"It will usually start by about 14:00 UTC on n1, when ada's x is usually done {like}" in text


def test_the_text_is_the_view_laid_out():
    pods = [a_pod(f"x{number}", 2, node="n1", expected=3600 * number) for number in range(1, 21)]
    explanation = ask(a_pod(), [a_node(), a_node("n2", cordoned=True)], pods)
    view, text = explanation_view(explanation), explain_text(explanation)
    assert text.startswith("\n".join((view.headline, *view.advice, "", "")))
    assert [section.heading for section in view.sections] == ["Missing resources", "Current holders", "", "Nodes"]
    holders = view.sections[1]
    assert (len(holders.rows), holders.more) == (15, "and 25 more")
    for section in view.sections:
        assert len({len(row) for row in section.rows}) <= 1
        cells = (cell for row in section.rows for cell in row)
        for words in (section.heading, *section.lines, *cells, section.more):
            assert words in text


def test_a_run_longer_than_all_like_it_has_an_unknown_end():
    found = ask(a_pod(), [a_node()], [a_pod("x", 2, node="n1", ago=50)], history=past(1, 2, 3, 4, 5))
    assert (found.likely, found.earliest) == (None, None)
    assert "has run longer than 5 of 5 like it, end unknown" in explain_text(found)


def test_a_running_run_has_its_usual_and_latest_end():
    found = ask(a_pod(node="n1", expected=7200), [a_node()], history=past(1.5, 1.5, 1.5, 1.5, 1.5, name="me"))
    assert explain_text(found).splitlines()[1] == (
        "It has run since 05 Jan 11:00 UTC; usually done by about 12:30 UTC (5 of 5 like it: same name),"
        " until 05 Jan 13:00 UTC at the latest (in 60m)"
    )


@given(st.integers(0, 10 * 86400))
def test_a_time_is_never_told_finer_than_a_tenth_of_how_far_away_it_is(seconds):
    moment = NOON + timedelta(seconds=seconds)
    text = about(moment, NOON).removeprefix("about ").removesuffix(" UTC")
    day = moment.date() if ":" in text and " " not in text else None
    told = (
        datetime.combine(day, datetime.strptime(text, "%H:%M").time(), UTC)
        if day
        else datetime.strptime(f"2026 {text}", "%Y %d %b %H:%M").replace(tzinfo=UTC)
    )
    assert timedelta() <= told - moment <= max(timedelta(minutes=1), timedelta(seconds=seconds) / 10)


# -- volumes

ON_N2 = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}]}
LOCAL = an_object(PVS, "pv", spec={"nodeAffinity": {"required": {"nodeSelectorTerms": [ON_N2]}}})


def a_claim(phase="Pending", volume="", **spec):
    spec = {"storageClassName": "fast"} | fields_of(volumeName=volume) | spec
    return an_object(PVCS, "data", spec=spec, status={"phase": phase})


def a_class(mode="Immediate", provisioner="csi.example.com"):
    return an_object(STORAGECLASSES, "fast", volumeBindingMode=mode, provisioner=provisioner)


NO_PROVISIONER = a_class("WaitForFirstConsumer", "kubernetes.io/no-provisioner")


@pytest.mark.parametrize(
    ("claims", "volumes", "classes", "said"),
    [
        ([], [], [a_class()], "does not exist"),
        ([a_claim()], [], [a_class()], "has no storage yet: StorageClass fast has not made it"),
        ([a_claim()], [], [], "StorageClass 'fast' not found (available: none)"),
        ([a_claim(storageClassName="")], [], [a_class()], "it names no StorageClass"),
        ([a_claim("Lost", "pv")], [], [], "has lost the storage behind it"),
        ([a_claim("Bound", "pv")], [], [a_class()], "has lost the storage behind it"),
        ([a_claim()], [], [NO_PROVISIONER], "StorageClass fast has no volume left for it"),
        ([a_claim()], [], [a_class("WaitForFirstConsumer")], None),
        ([a_claim()], None, None, None),
        ([a_claim("Bound", "pv")], [an_object(PVS, "pv", spec={})], [a_class()], None),
    ],
)
def test_a_volume_that_cannot_be_used_keeps_the_pod_waiting(claims, volumes, classes, said):
    found = ask(a_pod(claims=["data"]), [a_node()], storage=storage_of(claims, volumes, classes))
    if said is None:
        assert found.state == "fits"
        return
    assert (found.state, found.earliest, found.node) == ("waiting", None, "")
    text = explain_text(found)
    assert said in text
    assert text.startswith("run lab/me waits: volume data ")
    assert "It cannot start until this is fixed" in text


def test_the_reason_of_the_provisioner_is_shown():
    def failed(message, at, claim="data"):
        about = {"kind": "PersistentVolumeClaim", "name": claim}
        return {"reason": "ProvisioningFailed", "message": message, "lastTimestamp": at, "involvedObject": about}

    events = [
        failed("the disk has 2Gi free", "2026-01-01T10:00:00Z"),
        failed("the disk has 1Gi free", "2026-01-01T11:00:00Z"),
        failed("another claim", "2026-01-01T12:00:00Z", claim="other"),
    ]
    storage = storage_of([a_claim()], [], [a_class("WaitForFirstConsumer")])
    explanation = ask(a_pod(claims=["data"]), [a_node()], storage=storage, events=events)
    assert "volume lab/data has no storage yet: the disk has 1Gi free" in explain_text(explanation).splitlines()


def test_a_volume_that_is_on_one_node_draws_the_pod_there():
    storage = storage_of([a_claim("Bound", "pv")], [LOCAL], [a_class()])
    nodes = [a_node("n1"), a_node("n2")]
    assert ask(a_pod(claims=["data"]), nodes, storage=storage).node == "n2"
    found = ask(a_pod(claims=["data"]), nodes, [a_pod("x", 2, node="n2", expected=7200)], storage=storage)
    assert (found.state, found.earliest.node) == ("waiting", "n2")
    assert [verdict.reasons for verdict in found.verdicts][0] == ("volume data cannot be reached from it",)
    assert found.smaller == ()


def test_a_pod_that_waits_for_a_volume_is_not_ahead_in_line():
    blocked = a_pod("old", ago=5, says='persistentvolumeclaim "x" not found')
    assert ask(a_pod(), [a_node(gpus=1)], [blocked]).state == "fits"


# -- machines


def a_machine(available=1, order="fifo", shares=()):
    size = {"cpu": "1", "memory": "1Gi", "gpu": {"type": GPU, "num": "1"}}
    pool = [{"name": "n1", "mode": "ready", "machineType": [{"name": "one"}]}]
    types = [{"name": "one", "available": available, "spec": size}]
    used = [{"owner": owner, "used": seconds} for owner, seconds in shares]
    spec = {"nodePool": pool, "order": order, "machineTypes": types}
    return an_object(MACHINES, "vision", spec=spec, status={"shares": used, "sharesAt": NOON.isoformat()})


GUEST = {"moorage.dev/machine-group": "vision", "moorage.dev/machine-type": "one"}
GATE = ["moorage.dev/machine"]


def a_guest(name="me", **more):
    more = {"gates": [] if more.get("node") else GATE, "labels": GUEST} | more
    return a_pod(name, **more)


def test_a_guest_sees_the_holders_of_the_machines_its_turn_and_the_time():
    pods = [
        a_guest("x", node="n1", expected=3 * 3600, owner="bob"),
        a_guest("old", ago=0.5, expected=3600, owner="eve"),
    ]
    found = ask(a_guest(ago=0.1), [a_node()], pods, machines=[a_machine()])
    assert (found.state, found.machine.available, found.machine.used) == ("gated", 1, 1)
    assert ([one.run for one in found.line], found.position) == (["old"], 2)
    assert found.earliest.at == NOON + 3 * HOUR
    text = explain_text(found)
    assert text.startswith("run lab/me waits for a machine: all 1 machines of type vision/one are in use")
    assert "In line: 1 ahead of it (the earliest is first)" in text
    assert "moorage.dev/machine" not in text


def test_under_fair_order_the_user_with_less_use_goes_first():
    waiting = [a_guest("old", ago=0.9, owner="greedy"), a_guest("young", ago=0.1, owner="modest")]
    machine = a_machine(order="fair", shares=[("greedy", 90_000), ("ada", 500), ("modest", 10)])
    found = ask(a_guest(ago=0.5), [a_node()], waiting, machines=[machine])
    assert [one.run for one in found.line] == ["young"]
    assert ask(a_guest(ago=0.5), [a_node()], waiting, machines=[a_machine()]).line[0].run == "old"


@settings(max_examples=examples(37, full=150), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "vision", "other"]),
            st.sampled_from(["", "n1", "n2"]),
            st.booleans(),
            st.sampled_from(["ada", "bob"]),
            st.sampled_from([None, 3600]),
            st.integers(1, 9),
        ),
        max_size=12,
    ),
    st.sampled_from(["vision", "other", ""]),
    st.booleans(),
)
def test_pods_that_do_not_concern_a_pod_change_nothing_of_what_it_is_told(others, group, is_gated):
    pods = [
        a_pod(
            f"p{number}",
            node=node,
            owner=owner,
            ago=ago / 10,
            expected=expected,
            gates=GATE if behind and not node else [],
            labels=GUEST | {"moorage.dev/machine-group": kind} if kind else None,
        )
        for number, (kind, node, behind, owner, expected, ago) in enumerate(others)
    ]
    labels = GUEST | {"moorage.dev/machine-group": group} if group else None
    pod = a_pod(ago=0.35, gates=GATE if is_gated else [], labels=labels)
    nodes, more = [a_node(), a_node("n2")], {"machines": [a_machine(order="fair")], "history": past(1, 2, 3)}
    few = concerning(pod, pods)
    assert ask(pod, nodes, few, **more) == ask(pod, nodes, pods, **more)
    if group and is_gated:
        assert all(one["spec"].get("nodeName") or group in one["metadata"]["labels"].values() for one in few)


def test_an_unknown_machine_type_is_named():
    pod = a_guest(labels=GUEST | {"moorage.dev/machine-type": "two"})
    found = ask(pod, [a_node()], machines=[a_machine()])
    assert short_reason(found) == "machine type vision/two not found"


# -- what is said when nothing can be made of it


def test_the_cause_is_shown_when_a_job_creates_no_pod():
    pod = a_pod()
    del pod["metadata"]["uid"]
    message = 'admission webhook "moorage" denied the request: no memory limit'
    found = ask(pod, [a_node()], events=[{"reason": "FailedCreate", "message": message}])
    assert (found.state, short_reason(found)) == ("waiting", "its pod cannot be created")
    assert message in explain_text(found)
    assert "suspend" in explain_text(ask(pod, [a_node()], suspended=True))


def test_nodes_that_fit_but_are_cordoned_are_named():
    found = ask(a_pod(), [a_node(cordoned=True), a_node("n2", 0)])
    assert short_reason(found) == "node n1 is cordoned"
    assert "It can start when such a node takes pods again" in explain_text(found)


def test_a_pod_ahead_that_does_not_fit_does_not_hold_up_one_that_does():
    found = ask(a_pod(), [a_node(gpus=1)], [a_pod("large", 2, ago=9), a_pod("held", 1, ago=9, claims=["c"])])
    assert found.state == "waiting"
    nodes = [a_node(gpus=1), a_node("n2", 2, cordoned=True)]
    assert ask(a_pod(), nodes, [a_pod("large", 2, ago=9)]).state == "fits"


def test_a_reservation_is_said_to_be_one():
    place = a_pod("place", 2, node="n1", labels=GUEST | {"moorage.dev/reservation": "kept"})
    place["metadata"]["namespace"] = "moorage-system"
    text = explain_text(ask(a_pod(), [a_node()], [place]))
    assert "reserved  machine vision/one" in text
    assert "held for that machine's guests" in text


# -- smaller requests


@pytest.mark.parametrize(
    ("pod", "nodes", "changes"),
    [
        (a_pod(gpus=4), [a_node(gpus=3), a_node("n2", 8, cordoned=True)], ["3 GPUs"]),
        (a_pod(cpu="15"), [a_node(cpu="32"), a_node("n2", 0)], ["12 cpu"]),
        (a_pod(memory="60Gi", cpu="1"), [a_node(memory="64Gi", cpu="32")], ["44Gi memory"]),
        (
            a_pod(selector={"nvidia.com/gpu.product": "a100"}, gpus=2),
            [a_node(gpus=2, cordoned=True), a_node("n2", 2, kind="t4")],
            ["2 GPUs of type t4"],
        ),
        (
            a_pod(),
            [a_node(cordoned=True), a_node("n2", 0, gpu_type="a100", allocatable={"nvidia.com/mig-1g.10gb": "2"})],
            ["1 × nvidia.com/mig-1g.10gb"],
        ),
        (
            a_pod(selector={"kubernetes.io/hostname": "n1"}),
            [a_node(cordoned=True), a_node("n2")],
            ["no node selector kubernetes.io/hostname=n1"],
        ),
    ],
)
def test_the_least_change_that_would_start_now_is_offered(pod, nodes, changes):
    many_cpus = nodes[0]["status"]["allocatable"]["cpu"] == "32"
    busy = [a_pod("x", 0, node="n1", cpu="20", memory="20Gi")] if many_cpus else []
    found = ask(pod, nodes, busy)
    assert [one.change for one in found.smaller][: len(changes)] == changes


def test_another_type_is_offered_for_one_that_does_not_exist():
    found = ask(a_pod(selector={"nvidia.com/gpu.product": "h100"}), [a_node()])
    assert found.state == "never"
    assert [(one.change, one.options) for one in found.smaller] == [("1 GPU of type a100", "--gpu-type a100")]


small = st.integers(0, 4)


@settings(max_examples=examples(50, full=200))
@given(
    st.lists(st.tuples(small, st.sampled_from(["a100", "t4"]), st.integers(1, 16), st.booleans()), max_size=4),
    st.lists(st.tuples(st.integers(0, 3), small, st.integers(1, 8)), max_size=5),
    st.tuples(st.integers(1, 4), st.sampled_from(["", "a100", "h100"]), st.integers(1, 12)),
)
def test_every_wish_that_is_offered_fits_by_the_schedulers_own_rules(nodes, running, wish):
    gpus, kind, cpu = wish
    every = [
        a_node(f"n{at}", many, kind=what, cpu=str(cores), cordoned=shut)
        for at, (many, what, cores, shut) in enumerate(nodes)
    ]
    there = [
        a_pod(f"r{at}", many, node=f"n{where}", cpu=str(cores))
        for at, (where, many, cores) in enumerate(running)
        if where < len(every)
    ]
    pod = a_pod(gpus=gpus, cpu=str(cpu), selector={"nvidia.com/gpu.product": kind} if kind else None)
    found = ask(pod, every, there)
    by_name = {one["metadata"]["name"]: one for one in every}
    assert [one.cost for one in found.smaller] == sorted(one.cost for one in found.smaller)
    for one in found.smaller:
        lesser = copy.deepcopy(pod)
        limits = lesser["spec"]["containers"][0]["resources"]["limits"]
        words = one.options.split()
        for option, value in zip(words[::2], words[1::2], strict=True):
            match option:
                case "--gpus":
                    limits[GPU] = value
                case "--gpu-type":
                    lesser["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": value}
                case "--cpu" | "--memory":
                    limits[option[2:]] = value
        on_node = [parse_pod(other) for other in there if other["spec"]["nodeName"] == one.node]
        assert refusals(parse_pod(lesser), parse_node(by_name[one.node]), on_node) == []
    if found.state == "fits":
        assert found.smaller == ()


def test_the_public_explanation_has_gpus_and_hides_the_rest():
    found = ask(
        a_pod(gpus=2, cpu="7", selector={"zone": "secret"}, says="secret"),
        [a_node(gpus=1)],
        events=[{"message": "exceeded quota: secret"}],
        storage=storage_of([], [], []),
    )
    public = as_public(found)
    assert public.public
    assert set(public.asks) == {GPU}
    assert "secret" not in explain_text(public)
    assert "cpu" not in explain_text(public)
