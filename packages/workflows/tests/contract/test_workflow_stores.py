"""What is kept of workflows: one suite for SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.workflowrecords import a_node_record, a_workflow_record

from moorage_kube.clock import rfc3339
from moorage_kube.errors import BadRequest, Conflict, NotFound, QuotaExceeded
from moorage_kube.selectors import parse_label_selector
from moorage_kube.testing.clock import NOON
from moorage_testing.postgres import new_database
from moorage_workflows.decide.workflows.metrics import SERIES_MAX
from moorage_workflows.model.workflow import (
    Artifact,
    Memo,
    MetricPoint,
    NodePhase,
    NodeRecord,
    Outputs,
    StepReport,
    WorkflowRecord,
)
from moorage_workflows.workflows.query import RunQuery
from moorage_workflows.workflows.store import WorkflowStore, open_workflows

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path | str]:
    """Call it for a new place of a database."""
    if request.param == "sqlite":
        return lambda: tmp_path_factory.mktemp("workflows") / "workflows.db"
    server = request.getfixturevalue("postgres_server")
    return lambda: new_database(server.url)


@pytest.fixture
def where(places) -> Path | str:
    return places()


@pytest.fixture
def store(where: Path | str) -> Iterator[WorkflowStore]:
    store = open_workflows(where)
    yield store
    store.close()


def a_run(
    uid: str = "u1", *, name: str = "train", hours: int = 0, labels=None, **fields: object
) -> WorkflowRecord:
    metadata = {"name": name, "namespace": "lab", "labels": labels or {}}
    document = {"metadata": metadata, "spec": {"entrypoint": "100% ? main"}}
    of_run = {"phase": "Running", "owner": "ada", "token_digest": "sha256:00"}
    of_run |= {"created_at": rfc3339(NOON + hours * HOUR), "document": document}
    return a_workflow_record(uid, name, **of_run | fields)


def a_node(node_id: str = "train-1", phase: NodePhase = NodePhase.PENDING, **fields: object) -> NodeRecord:
    artifact = Artifact(name="model", key="k", size_bytes=2**40)
    of_node = {
        "id": node_id,
        "pod_name": f"pod-{node_id}",
        "inputs": {"parameters": {"lr": "0.1\0é"}},
        "outputs": Outputs(parameters={"loss": "1 %"}, artifacts=(artifact,), result="x"),
        "locks": ("mutex/lab/a",),
        "resources_seconds": {"cpu": 3},
    }
    return a_node_record(f"train.{node_id}", phase=phase, **of_node | fields)


def begun(store: WorkflowStore, record: WorkflowRecord | None = None, holder: str = "op-1") -> WorkflowRecord:
    kept = store.begin(record or a_run())
    store.load(kept.uid, holder)
    return kept


def uids(store: WorkflowStore, **query: object) -> list[str]:
    return [run.uid for run in store.list(RunQuery(**query)).runs]


def test_what_is_saved_is_loaded_whole(store: WorkflowStore) -> None:
    run = begun(store)
    nodes = (a_node("a"), a_node("b", NodePhase.OMITTED, outputs=None))
    newer = msgspec.structs.replace(run, message="1 of 2", done=1, total=2, parameters={"out": "é"})
    store.save("u1", "op-1", nodes, newer)
    report = StepReport(pod="pod-a", outputs=Outputs(result="hi\n"), error="")
    assert store.report("u1", "pod-a", report)
    loaded = store.load("u1", "op-2")
    assert (loaded.workflow, sorted(loaded.nodes, key=lambda node: node.id)) == (newer, list(nodes))
    assert loaded.reports == (report,)


def test_beginning_twice_keeps_the_first(store: WorkflowStore) -> None:
    first = store.begin(a_run())
    assert store.begin(a_run(message="later", document={})) == first
    assert uids(store) == ["u1"]


def test_an_older_run_of_the_same_name_becomes_history(store: WorkflowStore) -> None:
    store.begin(a_run("u1"))
    store.begin(a_run("u2", hours=1))
    assert store.unfinished() == ("u2",)
    assert store.get("lab", "train").uid == "u2"
    assert [(run.uid, run.gone_at) for run in store.history("lab", "train")] == [
        ("u2", ""),
        ("u1", rfc3339(NOON + HOUR)),
    ]


def test_a_final_node_is_never_overwritten(store: WorkflowStore) -> None:
    begun(store)
    done = a_node("a", NodePhase.SUCCEEDED)
    store.save("u1", "op-1", [done])
    store.save("u1", "op-1", [a_node("a", NodePhase.FAILED), a_node("b")])
    assert store.load("u1", "op-1").nodes == (done, a_node("b"))


def test_of_two_records_of_a_node_in_one_save_the_last_counts(store: WorkflowStore) -> None:
    begun(store)
    store.save("u1", "op-1", [a_node("a"), a_node("a", NodePhase.SUCCEEDED)])
    assert store.load("u1", "op-1").nodes == (a_node("a", NodePhase.SUCCEEDED),)


def test_an_earlier_holder_writes_nothing(store: WorkflowStore) -> None:
    run = begun(store, holder="op-1")
    store.load("u1", "op-2")
    ended = msgspec.structs.replace(run, phase="Failed")
    with pytest.raises(Conflict, match="held by op-2, not by 'op-1'"):
        store.save("u1", "op-1", [a_node()], ended)
    with pytest.raises(Conflict):
        store.forget_nodes("u1", "op-1", ["train-1"], ended)
    assert store.load("u1", "op-2").nodes == ()
    assert store.load("u1", "op-2").workflow == run


@pytest.mark.parametrize("holder", [pytest.param("", id="a holder without a name"), pytest.param("x", id="any")])
def test_nobody_writes_before_the_run_is_loaded(store: WorkflowStore, holder: str) -> None:
    store.begin(a_run())
    with pytest.raises(Conflict, match="held by nobody"):
        store.save("u1", holder, [a_node()])


def test_of_an_unknown_run_nothing_is_kept(store: WorkflowStore) -> None:
    for write in (
        lambda: store.load("u9", "op"),
        lambda: store.save("u9", "op", [a_node()]),
        lambda: store.forget_nodes("u9", "op", ["a"]),
        lambda: store.report("u9", "p", StepReport(pod="p")),
    ):
        with pytest.raises(NotFound, match="there are no records of workflow u9"):
            write()
    store.gone("u9", NOON)
    assert store.run("u9") is None
    assert store.by_uid("u9") is None
    assert store.get("lab", "train") is None


def test_the_document_stays_as_it_began(store: WorkflowStore) -> None:
    run = begun(store)
    store.save("u1", "op-1", (), msgspec.structs.replace(run, document={}, phase="Succeeded"))
    kept = store.by_uid("u1")
    assert (kept.document, kept.phase) == (run.document, "Succeeded")


def test_the_first_report_of_a_pod_counts(store: WorkflowStore) -> None:
    begun(store)
    assert store.report("u1", "p1", StepReport(pod="p1", outputs=Outputs(result="1")))
    assert not store.report("u1", "p1", StepReport(pod="p1", outputs=Outputs(result="2")))
    assert store.report("u1", "p2", StepReport(pod="another"))
    assert store.reports("u1", ["p1", "p3"]) == (StepReport(pod="p1", outputs=Outputs(result="1")),)
    assert store.reports("u1", ["p2"]) == (StepReport(pod="p2"),)


def test_a_retry_forgets_nodes_with_their_reports_and_writes_the_run(store: WorkflowStore) -> None:
    run = begun(store)
    store.save("u1", "op-1", [a_node("a", NodePhase.SUCCEEDED), a_node("b", NodePhase.FAILED)])
    for pod in ("pod-a", "pod-b"):
        store.report("u1", pod, StepReport(pod=pod))
    again = msgspec.structs.replace(run, retries=1)
    store.forget_nodes("u1", "op-1", ["b", "never there"], again)
    loaded = store.load("u1", "op-1")
    assert (loaded.workflow, loaded.nodes) == (again, (a_node("a", NodePhase.SUCCEEDED),))
    assert [report.pod for report in loaded.reports] == ["pod-a"]
    store.save("u1", "op-1", [a_node("b")])
    assert len(store.load("u1", "op-1").nodes) == 2


def test_a_run_is_unfinished_until_its_phase_is_final_or_its_object_is_gone(store: WorkflowStore) -> None:
    run = begun(store, a_run("u1", name="one"))
    store.begin(a_run("u2", name="two", hours=-1, phase=""))
    store.begin(a_run("u3", name="three", phase="Error"))
    assert store.unfinished() == ("u2", "u1")
    store.save("u1", "op-1", (), msgspec.structs.replace(run, phase="Succeeded"))
    assert store.unfinished() == ("u2",)
    store.save("u1", "op-1", (), run)
    assert store.unfinished() == ("u2", "u1")
    store.gone("u2", NOON)
    store.gone("u2", NOON + HOUR)
    assert store.unfinished() == ("u1",)
    assert store.history("lab", "two")[0].gone_at == rfc3339(NOON)


def test_runs_are_listed_by_what_is_asked(store: WorkflowStore) -> None:
    store.begin(a_run("u1", name="nightly-1", labels={"team": "a"}, cron="nightly", phase="Failed"))
    store.begin(a_run("u2", name="nightly-2", hours=1, labels={"team": "b"}, cron="nightly"))
    store.begin(a_run("u3", name="train", hours=2, labels={"team": "a"}, namespace="other"))
    store.gone("u1", NOON)
    assert uids(store) == ["u3", "u2", "u1"]
    assert uids(store, namespaces=["lab"]) == ["u2", "u1"]
    assert uids(store, namespaces=[]) == []
    assert uids(store, namespaces=["lab", "other"], phases=["Running"]) == ["u3", "u2"]
    assert uids(store, labels=parse_label_selector("team=a")) == ["u3", "u1"]
    assert uids(store, cron="nightly", present=True) == ["u2"]
    assert uids(store, prefix="night") == ["u2", "u1"]


def test_a_list_has_documents_when_they_are_asked_for(store: WorkflowStore) -> None:
    run = store.begin(a_run(labels={"team": "a"}))
    assert store.list(RunQuery(documents=True)).runs == (run,)
    (light,) = store.list(RunQuery()).runs
    assert light.document == {"metadata": {"name": "train", "namespace": "lab", "labels": {"team": "a"}}}


def test_pages_of_runs_have_each_run_of_a_long_list_once(store: WorkflowStore) -> None:
    """More than are read at a time, many of one moment, a third of them meant."""
    wanted = []
    for number in range(1203):
        uid = f"u{number:04}"
        store.begin(a_run(uid, name=uid, hours=number // 300, labels={"third": str(number % 3)}))
        wanted += [uid] if number % 3 == 0 else []
    seen: list[str] = []
    query = RunQuery(labels=parse_label_selector("third=0"), limit=97)
    while True:
        page = store.list(query)
        seen += [run.uid for run in page.runs]
        if not page.after:
            break
        query = RunQuery(labels=query.labels, limit=97, after=page.after)
    assert seen == sorted(wanted, key=lambda uid: (int(uid[1:]) // 300, uid), reverse=True)


@pytest.mark.parametrize("after", ["x", "12", "12.", "-1.u", "1e3.u"])
def test_a_place_in_the_list_that_no_page_gave_is_refused(store: WorkflowStore, after: str) -> None:
    with pytest.raises(BadRequest, match="not a place in the list"):
        store.list(RunQuery(after=after))


def test_pages_of_nodes_have_each_node_once(store: WorkflowStore) -> None:
    begun(store)
    store.save("u1", "op-1", [a_node(f"n{number}") for number in range(25)])
    seen, after = [], ""
    while True:
        page = store.nodes("u1", after=after, limit=10)
        seen += [node.id for node in page.nodes]
        if not (after := page.after):
            break
    assert sorted(seen) == sorted(f"n{number}" for number in range(25))
    assert store.node("u1", "n7") == a_node("n7")
    assert store.node("u1", "n70") is None
    assert store.nodes("u9").nodes == ()


def test_ten_thousand_nodes_in_one_save_are_all_there(store: WorkflowStore) -> None:
    begun(store)
    store.save("u1", "op-1", [a_node(f"n{number}") for number in range(10_000)])
    store.save("u1", "op-1", [a_node(f"n{number}", NodePhase.SUCCEEDED) for number in range(10_000)])
    assert {node.phase for node in store.load("u1", "op-1").nodes} == {NodePhase.SUCCEEDED}
    assert len(store.load("u1", "op-1").nodes) == 10_000


def test_memos_are_kept_by_namespace_cache_and_key(store: WorkflowStore) -> None:
    memo = Memo(outputs=Outputs(parameters={"a": "1"}), at=rfc3339(NOON), node_id="n")
    store.remember("lab", "cache", "k", memo)
    assert store.recall("lab", "cache", "k") == memo
    assert store.recall("lab", "cache", "k", since=NOON) == memo
    assert store.recall("lab", "cache", "k", since=NOON + HOUR) is None
    assert store.recall("other", "cache", "k") is None
    newer = Memo(outputs=Outputs(), at=rfc3339(NOON + HOUR))
    store.remember("lab", "cache", "k", newer)
    assert store.recall("lab", "cache", "k", since=NOON + HOUR) == newer


def test_runs_that_were_gone_long_are_forgotten(store: WorkflowStore) -> None:
    for uid in ("gone long", "gone lately", "there", "nobody saw it go", "never ended"):
        run = begun(store, a_run(uid, name=uid.replace(" ", "-"), phase="Succeeded", finished_at=rfc3339(NOON)))
        store.save(uid, "op-1", [a_node()])
        store.report(uid, "pod-train-1", StepReport(pod="pod-train-1"))
        if uid == "never ended":
            store.save(uid, "op-1", (), msgspec.structs.replace(run, phase="Running", finished_at=""))
    store.gone("gone long", NOON + DAY)
    store.gone("gone lately", NOON + 5 * DAY)
    store.remember("lab", "c", "old", Memo(outputs=Outputs(), at=rfc3339(NOON)))
    store.remember("lab", "c", "new", Memo(outputs=Outputs(), at=rfc3339(NOON + 3 * DAY)))
    assert store.forget(NOON + 2 * DAY) == 1
    assert store.nodes("gone long").nodes == ()
    assert store.run("gone long") is None
    assert store.reports("gone long", ["pod-train-1"]) == ()
    assert (store.recall("lab", "c", "old"), store.recall("lab", "c", "new") is None) == (None, False)
    assert store.forget(NOON + 2 * DAY, present={"there"}) == 1
    assert sorted(uids(store)) == ["gone lately", "never ended", "there"]


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda store: store.begin(a_run(created_at="yesterday")), id="of a run"),
        pytest.param(
            lambda store: store.remember("a", "b", "c", Memo(outputs=Outputs(), at="2026-01-01")), id="of a memo"
        ),
    ],
)
def test_a_time_that_is_none_is_refused_with_its_field(store: WorkflowStore, write) -> None:
    with pytest.raises(BadRequest, match="invalid time") as refused:
        write(store)
    assert refused.value.field in ("createdAt", "at")
    assert uids(store) == []


def test_a_store_takes_over_what_another_has_and_it_lacks(store: WorkflowStore, tmp_path: Path) -> None:
    """As when a server that kept files gets a PostgreSQL; again, it changes nothing."""
    files = open_workflows(tmp_path / "files.db")
    begun(files, a_run("u1", name="one"))
    files.save("u1", "op-1", [a_node(f"n{number}") for number in range(20)])
    files.report("u1", "pod-n1", StepReport(pod="pod-n1"))
    files.begin(a_run("u2", name="two", message="of the files"))
    files.gone("u2", NOON)
    memos = {key: Memo(outputs=Outputs(result=key), at=rfc3339(NOON)) for key in ("a", "b")}
    for key, memo in memos.items():
        files.remember("lab", "c", key, memo)
    store.begin(a_run("u2", name="two", message="newer"))
    store.remember("lab", "c", "b", newer := Memo(outputs=Outputs(result="newer"), at=rfc3339(NOON)))
    assert [store.take_over(files) for _ in range(2)] == [1, 0]
    assert sorted(store.load("u1", "op-2").nodes, key=str) == sorted(files.load("u1", "op-2").nodes, key=str)
    assert store.reports("u1", ["pod-n1"]) == (StepReport(pod="pod-n1"),)
    assert [run.message for run in store.history("lab", "two")] == ["newer"]
    assert (store.recall("lab", "c", "a"), store.recall("lab", "c", "b")) == (memos["a"], newer)
    files.close()


# --- the quota of a namespace


LARGE = "é" * 5_000  # 10 kB
HEAVY = {"metadata": {"name": "train"}, "spec": {"description": LARGE}}


@pytest.fixture
def full(where: Path | str) -> Iterator[WorkflowStore]:
    """A namespace may have 35 kB; a run with LARGE fits three times, and u1 is there."""
    store = open_workflows(where, 35_000)
    begun(store, a_run("u1", name="one", document=HEAVY))
    yield store
    store.close()


def test_a_run_beyond_the_quota_of_its_namespace_is_refused(full: WorkflowStore) -> None:
    for uid in ("u2", "u3"):
        full.begin(a_run(uid, name=uid, document=HEAVY))
    with pytest.raises(
        QuotaExceeded, match="namespace lab have 31,[0-9]+ bytes; 10,[0-9]+ more exceed the"
    ) as told:
        full.begin(a_run("u4", name="four", document=HEAVY))
    assert "MOORAGE_WORKFLOW_BYTES_PER_NAMESPACE" in str(told.value.hint)
    assert sorted(uids(full)) == ["u1", "u2", "u3"]
    assert full.begin(a_run("u3", name="u3", document=HEAVY)).uid == "u3"  # is there already
    full.begin(a_run("u5", name="five", namespace="other", document=HEAVY))


def test_where_a_quota_is_used_up_the_oldest_deleted_run_makes_room(full: WorkflowStore) -> None:
    for hour, uid in enumerate(("u2", "u3")):
        full.begin(a_run(uid, name=uid, document=HEAVY))
        full.gone(uid, NOON + hour * HOUR)
    full.begin(a_run("u4", name="four", document=HEAVY))
    assert sorted(uids(full)) == ["u1", "u3", "u4"]


def test_reports_and_memos_count_and_memos_go_before_a_run_is_refused(full: WorkflowStore) -> None:
    large = Outputs(result=LARGE)
    full.report("u1", "p1", StepReport(pod="p1", outputs=large))
    full.remember("lab", "c", "a", Memo(outputs=large, at=rfc3339(NOON)))
    full.remember("lab", "c", "a", Memo(outputs=large, at=rfc3339(NOON)))  # in place of the first
    assert full.recall("lab", "c", "a") is not None
    full.report("u1", "p2", StepReport(pod="p2", outputs=large))
    assert full.recall("lab", "c", "a") is None
    with pytest.raises(QuotaExceeded):
        full.report("u1", "p3", StepReport(pod="p3", outputs=large))
    with pytest.raises(QuotaExceeded):
        full.remember("lab", "c", "b", Memo(outputs=large, at=rfc3339(NOON)))
    assert not full.report("u1", "p2", StepReport(pod="p2", outputs=large))
    assert full.reports("u1", ["p1", "p2", "p3"]) == tuple(
        StepReport(pod=pod, outputs=large) for pod in ("p1", "p2")
    )


def test_nodes_are_always_kept_and_count_until_they_are_forgotten(full: WorkflowStore) -> None:
    """What runs is lost to no quota: an operator could not go on without its nodes."""
    nodes = [a_node(name, NodePhase.SUCCEEDED, outputs=Outputs(result=LARGE)) for name in "abc"]
    full.save("u1", "op-1", [msgspec.structs.replace(node, phase=NodePhase.RUNNING) for node in nodes])
    full.save("u1", "op-1", nodes)
    full.save("u1", "op-1", nodes)
    with pytest.raises(QuotaExceeded, match="have 4[0-9],"):
        full.begin(a_run("u2", name="two"))
    full.forget_nodes("u1", "op-1", "abc")
    full.begin(a_run("u2", name="two", document=HEAVY))


def test_what_was_kept_before_the_quota_came_counts(where: Path | str) -> None:
    with contextlib.closing(open_workflows(where)) as before:
        for uid in ("u1", "u2", "u3"):
            begun(before, a_run(uid, name=uid, document=HEAVY))
        before.save("u3", "op-1", (), a_run("u3", name="u3", phase="Succeeded", parameters={"out": LARGE}))
    with (
        contextlib.closing(open_workflows(where, 35_000)) as store,
        pytest.raises(QuotaExceeded, match="have 41,"),
    ):
        store.begin(a_run("u4", name="four"))


def test_what_is_taken_over_counts_and_what_is_forgotten_does_not(full: WorkflowStore, tmp_path: Path) -> None:
    with contextlib.closing(open_workflows(tmp_path / "files.db")) as files:
        for uid in ("u2", "u3"):
            files.begin(a_run(uid, name=uid, document=HEAVY))
            files.gone(uid, NOON)
        files.remember("lab", "c", "a", Memo(outputs=Outputs(result=LARGE), at=rfc3339(NOON)))
        full.take_over(files)
    with pytest.raises(QuotaExceeded, match="have 4[0-9],"):
        full.begin(a_run("u4", name="four", document=HEAVY | {"more": LARGE * 2}))
    full.forget(NOON + DAY)
    full.begin(a_run("u4", name="four", document=HEAVY | {"more": LARGE}))


PHASES = st.sampled_from(list(NodePhase))
SAVES = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.sampled_from("abc"), st.lists(st.tuples(st.sampled_from("12345"), PHASES))),
        st.tuples(st.just("load"), st.sampled_from("abc"), st.none()),
        st.tuples(st.just("forget"), st.sampled_from("abc"), st.lists(st.sampled_from("12345"))),
    ),
    max_size=20,
)


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(SAVES)
def test_whatever_operators_do_the_store_does_what_a_simple_model_does(places, steps) -> None:
    store = open_workflows(places())
    try:
        store.begin(a_run())
        holder, nodes = "", {}
        for verb, who, what in steps:
            if verb == "load":
                store.load("u1", who)
                holder = who
                continue
            write = (
                (lambda who=who, what=what: store.save("u1", who, [a_node(name, phase) for name, phase in what]))
                if verb == "save"
                else (lambda who=who, what=what: store.forget_nodes("u1", who, what))
            )
            if who != holder:
                with pytest.raises(Conflict):
                    write()
                continue
            write()
            if verb == "forget":
                nodes = {name: phase for name, phase in nodes.items() if name not in what}
                continue
            for name, phase in dict(what).items():
                if not (name in nodes and nodes[name].is_fulfilled):
                    nodes[name] = phase
        assert {node.id: node.phase for node in store.nodes("u1").nodes} == nodes
    finally:
        store.close()


# --- metrics


def a_point(node: str = "train-1", **fields: object) -> MetricPoint:
    point = MetricPoint(name="ends", help="Ends", kind="counter", operation="Add", value=1.0, node=node)
    return msgspec.structs.replace(point, **fields)


def shown(store: WorkflowStore) -> dict[tuple[str, str], float]:
    return {(one.namespace, one.name): one.value for one in store.metrics() if one.namespace}


def test_a_value_counts_with_the_save_that_ends_its_node_and_not_again(store: WorkflowStore) -> None:
    begun(store)
    ended = a_node(phase=NodePhase.SUCCEEDED)
    for _ in range(3):  # the answer to the first was lost
        assert store.save("u1", "op-1", [ended], metrics=[a_point()], at=NOON) == ()
    assert shown(store) == {("lab", "ends"): 1.0}


def test_a_value_of_a_run_counts_with_its_end(store: WorkflowStore) -> None:
    run = begun(store)
    over = msgspec.structs.replace(run, phase="Failed", finished_at=rfc3339(NOON))
    for _ in range(2):
        store.save("u1", "op-1", (), over, metrics=[a_point(node="")], at=NOON)
    assert shown(store) == {("lab", "ends"): 1.0}


def test_a_metric_cannot_change_its_kind_and_a_namespace_has_so_many(store: WorkflowStore) -> None:
    begun(store)
    points = [
        a_point("a"),
        a_point("b", kind="gauge", operation="Set", labels={"x": "1"}),
        *(a_point(f"c{number}", labels={"x": f"{number}"}) for number in range(2, SERIES_MAX + 2)),
    ]
    kind, room = store.save("u1", "op-1", [a_node(point.node) for point in points], metrics=points, at=NOON)
    assert "the kind of metric ends is 'counter'" in kind
    assert f"the namespace lab has {SERIES_MAX} series" in room
    assert sum(bool(one.namespace) for one in store.metrics()) == SERIES_MAX


def test_phases_and_runs_of_schedules_are_counted_once(store: WorkflowStore) -> None:
    run = begun(store, a_run(cron="nightly", phase=""))
    for _ in range(2):
        store.begin(run)
        for phase in ("Running", "Failed"):
            store.save("u1", "op-1", (), msgspec.structs.replace(run, phase=phase), at=NOON)
        store.save("u1", "op-1", [a_node()], at=NOON)
    counts = {(one.name, *sorted(one.labels.items())): one.value for one in store.metrics()}
    assert counts == {
        ("total_count", ("namespace", "lab"), ("phase", "Pending")): 1.0,
        ("total_count", ("namespace", "lab"), ("phase", "Running")): 2.0,
        ("total_count", ("namespace", "lab"), ("phase", "Failed")): 2.0,
        ("cronworkflows_triggered_total", ("name", "nightly"), ("namespace", "lab")): 1.0,
    }
    assert store.phases() == {"Failed": 1}


def test_the_name_of_a_metric_of_every_installation_is_taken(store: WorkflowStore) -> None:
    begun(store)
    (problem,) = store.save("u1", "op-1", [a_node()], metrics=[a_point(name="total_count")], at=NOON)
    assert "the name of a metric of every installation" in problem


def test_what_a_run_shows_in_real_time_goes_with_it_and_old_metrics_go(store: WorkflowStore) -> None:
    begun(store)
    live = a_point("", name="seconds", kind="gauge", since=rfc3339(NOON))
    store.save("u1", "op-1", (), metrics=[live, a_point("a")], at=NOON)
    store.gone("u1", NOON)
    assert set(shown(store)) == {("lab", "ends")}
    store.forget(NOON + HOUR)
    assert shown(store) == {}


def test_metrics_move_with_the_runs(store: WorkflowStore, places) -> None:
    begun(store)
    store.save("u1", "op-1", (), metrics=[a_point("a")], at=NOON)
    with contextlib.closing(open_workflows(places())) as other:
        other.take_over(store)
        assert shown(other) == {("lab", "ends"): 1.0}


def test_who_holds_a_lock_is_found_among_runs_that_go_on(store: WorkflowStore) -> None:
    begun(store)
    free = a_node("free", phase=NodePhase.RUNNING, locks=())
    store.save("u1", "op-1", [a_node("holds", phase=NodePhase.RUNNING), free, a_node("done", NodePhase.SUCCEEDED)])
    begun(store, a_run("u2", name="ended"))
    store.save(
        "u2", "op-1", [a_node("other")], a_run("u2", name="ended", phase="Failed", finished_at=rfc3339(NOON))
    )
    held = store.holders({"mutex/lab/a", "mutex/lab/b"})
    assert [(run.name, node and node.id) for run, node in held] == [("train", "holds")]
    assert store.holders({"mutex/lab/b"}) == ()


def test_a_run_that_holds_a_lock_as_a_whole_is_its_holder(store: WorkflowStore) -> None:
    begun(store)
    store.save("u1", "op-1", [], a_run(locks=("mutex/lab/b",)))
    held = store.holders({"mutex/lab/a", "mutex/lab/b"})
    assert [(run.name, node) for run, node in held] == [("train", None)]
