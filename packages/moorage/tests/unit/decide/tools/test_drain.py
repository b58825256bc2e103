"""Which pods leave a node, as kubectl decides it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.tools.drain import DrainOptions, Refusal, plan_drain
from moorage_kube.meta import Key, key_of
from moorage_kube.testing import builders
from moorage_kube.testing.builders import an_owner

AGENTS = frozenset({Key("default", "agent")})


def a_pod(
    name: str = "p", *, owner: str | None = "Job", owner_name: str = "train", phase: str = "Running",
    local: bool = False, mirror: bool = False, leaving: bool = False,
) -> dict[str, Any]:  # fmt: skip
    made: Any = {"annotations": {"kubernetes.io/config.mirror": "x"} if mirror else {}, "deleting": leaving}
    made |= {"namespace": "default", "owner": an_owner(owner, owner_name) if owner else None, "phase": phase}
    volumes = [{"name": "scratch", "emptyDir": {}}] if local else []
    return builders.a_pod(name, uid=f"uid-{name}", spec={"volumes": volumes}, **made)


@pytest.mark.parametrize(
    ("owner", "label"),
    [
        ("Job", "moorage.dev/run"),
        ("Job", "moorage.dev/map"),
        ("Job", "moorage.dev/dataset"),
        ("Workflow", "workflows.argoproj.io/workflow"),
        ("StatefulSet", "moorage.dev/workspace"),
    ],
)
def test_scratch_of_what_moorage_starts_again_forbids_no_drain(owner, label):
    pod = a_pod(owner=owner, local=True)
    pod["metadata"]["labels"] = {label: "x"}
    plan = plan_drain([pod], AGENTS)
    assert (plan.evict, plan.refused) == ((pod,), ())
    assert plan.warnings == ("pod default/p loses the data of its emptyDir volumes",)
    del pod["metadata"]["ownerReferences"]  # nothing starts it again, whatever its label says
    assert {refusal.option for refusal in plan_drain([pod], AGENTS).refused} == {
        "--force",
        "--delete-emptydir-data",
    }


def a_daemon(**more: Any) -> dict[str, Any]:
    return a_pod(owner="DaemonSet", owner_name="agent", **more)


@pytest.mark.parametrize(
    ("pod", "options", "where"),
    [
        pytest.param(a_pod(), {}, "evict", id="a run's pod goes"),
        pytest.param(a_pod(owner=None), {}, "--force", id="nothing would make it again"),
        pytest.param(a_pod(owner=None), {"force": True}, "evict", id="forced"),
        pytest.param(a_pod(owner=None, phase="Succeeded"), {}, "evict", id="over: nothing is lost"),
        pytest.param(a_pod(local=True), {}, "--delete-emptydir-data", id="local data"),
        pytest.param(a_pod(local=True), {"delete_emptydir_data": True}, "evict", id="local data given up"),
        pytest.param(a_pod(local=True, phase="Failed"), {}, "evict", id="local data of a pod that is over"),
        pytest.param(a_daemon(), {}, "--ignore-daemonsets", id="of a DaemonSet"),
        pytest.param(a_daemon(), {"ignore_daemonsets": True}, "kept", id="of a DaemonSet, left alone"),
        pytest.param(
            a_daemon(local=True), {"ignore_daemonsets": True}, "kept", id="a DaemonSet's data is not asked"
        ),
        pytest.param(
            a_pod(owner="DaemonSet", owner_name="gone"), {"ignore_daemonsets": True}, "--force", id="an orphan"
        ),
        pytest.param(a_pod(mirror=True, owner=None), {}, "kept", id="a static pod"),
        pytest.param(a_pod(leaving=True, owner=None, local=True), {}, "leaving", id="told to go already"),
    ],
)
def test_a_pod_is_evicted_left_or_forbids_the_drain(pod, options, where):
    plan = plan_drain([pod], AGENTS, DrainOptions(**options))
    found = [
        *("evict" for _ in plan.evict),
        *("leaving" for _ in plan.leaving),
        *("kept" for _ in plan.kept),
        *(one.option for one in plan.refused),
    ]
    assert found == [where]


def test_a_daemonsets_existence_that_may_not_be_read_is_believed():
    plan = plan_drain([a_daemon()], None, DrainOptions(ignore_daemonsets=True))
    assert plan.kept == (Key("default", "p"),)


def test_a_pod_with_two_problems_names_both_options():
    plan = plan_drain([a_pod(owner=None, local=True)], AGENTS)
    assert plan.refused == (
        Refusal(Key("default", "p"), "it keeps data in an emptyDir volume", "--delete-emptydir-data"),
        Refusal(Key("default", "p"), "it has no controller, so nothing would make it again", "--force"),
    )
    assert plan.evict == ()


pods = st.lists(
    st.builds(
        a_pod,
        name=st.sampled_from("abcdef"),
        owner=st.sampled_from([None, "Job", "DaemonSet"]),
        owner_name=st.sampled_from(["agent", "gone"]),
        phase=st.sampled_from(["Pending", "Running", "Succeeded"]),
        local=st.booleans(),
        mirror=st.booleans(),
        leaving=st.booleans(),
    ),
    unique_by=lambda pod: pod["metadata"]["name"],
)
every_option = st.builds(
    DrainOptions, ignore_daemonsets=st.booleans(), delete_emptydir_data=st.booleans(), force=st.booleans()
)


@given(pods, every_option)
def test_every_pod_ends_in_exactly_one_place_and_all_options_together_allow_all(found, options):
    plan = plan_drain(found, AGENTS, options)
    places = [
        *(key_of(pod) for pod in plan.evict),
        *(key_of(pod) for pod in plan.leaving),
        *plan.kept,
        *sorted({one.pod for one in plan.refused}),
    ]
    assert sorted(places) == sorted(key_of(pod) for pod in found)
    allowed = DrainOptions(ignore_daemonsets=True, delete_emptydir_data=True, force=True)
    assert plan_drain(found, AGENTS, allowed).refused == ()
