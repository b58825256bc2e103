"""Mutexes and semaphores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_testing.workflowplayer import Player
from moorage_workflows.decide.workflows.graph.events import Locks
from moorage_workflows.decide.workflows.graph.locks import Limit, LockTable, limit_of, lock_name, locks_held
from moorage_workflows.decide.workflows.graph.tasks import locks_of


def asked(node: str, *locks: str, priority: int = 0, created: str = "2026-03-01T12:00:00Z") -> Locks:
    return Locks(node=node, priority=priority, created_at=created, locks=locks)


def granted(table: LockTable, limits: dict[str, int] | None = None) -> list[str]:
    return [row.asked.node for row in table.grant(limits or {})]


def test_a_mutex_has_one_holder() -> None:
    table = LockTable()
    for node in ("a", "b"):
        table.ask("u1", asked(node, "Mutex/ns/m"))
    assert granted(table) == ["a"]
    assert granted(table) == []
    table.release("u1", "a")
    assert granted(table) == ["b"]


def test_a_holder_that_asks_again_has_its_locks_whoever_asks_before_it() -> None:
    """Its record was not saved: those that wait for the holder must not hold it up."""
    table = LockTable()
    table.restore("u2", "holder", ["Mutex/ns/a", "Mutex/ns/b"])
    table.ask("u1", asked("waits", "Mutex/ns/b", priority=5))
    table.ask("u2", asked("holder", "Mutex/ns/a", "Mutex/ns/b"))
    assert granted(table) == ["holder"]
    assert granted(table) == []
    table.release("u2", "holder")
    assert granted(table) == ["waits"]


def test_a_semaphore_has_as_many_as_its_limit() -> None:
    table = LockTable()
    for node in "abc":
        table.ask("u1", asked(node, "Semaphore/ns/c/k"))
    assert granted(table, {"Semaphore/ns/c/k": 2}) == ["a", "b"]
    assert granted(table, {"Semaphore/ns/c/k": 3}) == ["c"]


def test_a_semaphore_whose_limit_has_not_been_read_has_no_holder() -> None:
    """Its query may come while the limits of others are read."""
    table = LockTable()
    table.ask("u1", asked("a", "Semaphore/ns/c/k"))
    assert granted(table, {"Semaphore/ns/c/other": 2}) == []
    assert granted(table, {"Semaphore/ns/c/k": 1}) == ["a"]


def test_priority_comes_before_age_and_age_before_order() -> None:
    table = LockTable()
    table.ask("u1", asked("late", "Mutex/ns/m", created="2026-03-01T13:00:00Z"))
    table.ask("u2", asked("early", "Mutex/ns/m"))
    table.ask("u3", asked("important", "Mutex/ns/m", priority=5, created="2026-03-01T14:00:00Z"))
    order = []
    for _ in range(3):
        (row,) = table.grant({})
        order.append(row.asked.node)
        table.release(row.workflow, row.asked.node)
    assert order == ["important", "early", "late"]


def test_nobody_passes_one_that_waits_for_several() -> None:
    table = LockTable()
    table.restore("u0", "x", ["Mutex/ns/b"])
    table.ask("u1", asked("both", "Mutex/ns/a", "Mutex/ns/b"))
    table.ask("u2", asked("one", "Mutex/ns/a"))
    assert granted(table) == []
    table.release("u0")
    assert granted(table) == ["both"]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sets(st.sampled_from("abcd"), min_size=1)), max_size=20),
    st.lists(st.integers(0, 5), max_size=20),
)
def test_no_lock_ever_has_two_holders(asks: list[tuple[int, set[str]]], releases: list[int]) -> None:
    table = LockTable()
    for number, (workflow, locks) in enumerate(asks):
        table.ask(f"u{workflow}", asked(f"n{number}", *sorted(locks)))
    for workflow in [*releases, *range(6)]:
        table.grant({})
        assert all(len(table.holders(lock)) <= 1 for lock in "abcd")
        table.release(f"u{workflow}")
    assert table.wanted() == set()


def test_a_run_that_holds_a_lock_as_a_whole_says_so_in_its_record_until_it_ends() -> None:
    manifest = """
      spec:
        entrypoint: main
        synchronization: {mutexes: [{name: m}]}
        templates: [{name: main, container: {image: busybox}}]
    """
    player = Player(manifest)
    player.decide()
    player.decide()
    assert player.workflow.locks == ("Mutex/default/m",)
    assert list(locks_held(player.workflow, ())) == [("wf", ("Mutex/default/m",))]
    player.play()
    assert (player.workflow.phase, player.workflow.locks) == ("Succeeded", ())


def test_locks_with_a_database_are_others_than_those_without() -> None:
    asked_for = {
        "mutexes": [{"name": "m"}, {"name": "m", "database": True}, {"name": "m", "namespace": "all"}],
        "semaphores": [{"database": {"key": "{{workflow.name}}"}}, {"configMapKeyRef": {"name": "c", "key": "k"}}],
    }
    locks = locks_of(asked_for, {"workflow.namespace": "ns", "workflow.name": "wf"})
    assert {lock: lock_name(lock) for lock in locks} == {
        "Mutex/ns/m": "ns/Mutex/m",
        "Mutex/all/m": "all/Mutex/m",
        "DatabaseMutex/ns/m": "mtx/ns/m",
        "Semaphore/ns/workflow-limits/wf": "sem/ns/wf",
        "Semaphore/ns/c/k": "ns/ConfigMap/c/k",
    }


def test_the_status_of_a_workflow_has_what_it_holds_and_waits_for() -> None:
    table = LockTable()
    table.restore("u1", "a", ["Mutex/ns/m", "Semaphore/ns/c/k"])
    table.restore("u1", "b", ["Semaphore/ns/c/k"])
    table.restore("u2", "z", ["Mutex/ns/n"])
    table.ask("u1", asked("c", "Mutex/ns/n"))
    assert table.status_of("u1") == {
        "mutex": {
            "holding": [{"mutex": "ns/Mutex/m", "holder": "a"}],
            "waiting": [{"mutex": "ns/Mutex/n", "holder": "c"}],
        },
        "semaphore": {"holding": [{"semaphore": "ns/ConfigMap/c/k", "holders": ["a", "b"]}]},
    }
    assert table.status_of("u3") == {}


@pytest.mark.parametrize(
    ("data", "want"),
    [
        pytest.param({"train": " 2\n"}, Limit(2), id="a number"),
        pytest.param({"train": "0"}, "is 0: the semaphore cannot be held", id="none"),
        pytest.param({"train": "two"}, "has an invalid value: use a whole number", id="not a number"),
        pytest.param({"train": "-1"}, "has an invalid value: use a whole number", id="less than none"),
        pytest.param({"other": "1"}, "has no key train", id="no such key"),
        pytest.param(None, "the ConfigMap limits does not exist", id="no ConfigMap"),
    ],
)
def test_a_limit_that_cannot_be_had_says_why(data: dict[str, str] | None, want: Limit | str) -> None:
    limit = limit_of("limits", "train", data)
    if isinstance(want, Limit):
        assert limit == want
    else:
        assert limit.count == 0
        assert want in limit.fault
