from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moorage_kube.meta import Key
from moorage_kube.testing.examples import examples
from moorage_local.scheduler.queue import FLUSH_SECONDS, Queued, SchedulingQueue


def a_key(name: str) -> Key:
    return Key("lab", name)


def taken(queue: SchedulingQueue, now: float = 0.0) -> str | None:
    item = queue.pop(now)
    return item.key.name if item else None


def popped(queue: SchedulingQueue, now: float) -> Queued:
    item = queue.pop(now)
    assert item is not None
    return item


def test_higher_priority_goes_first_then_the_older_then_the_earlier_seen():
    queue = SchedulingQueue()
    queue.add(a_key("young"), priority=0, created=9)
    queue.add(a_key("old"), priority=0, created=1)
    queue.add(a_key("twin"), priority=0, created=1)
    queue.add(a_key("high"), priority=5, created=20)
    assert [taken(queue) for _ in range(5)] == ["high", "old", "twin", "young", None]


def test_a_pod_that_fits_nowhere_rests_until_something_changes():
    queue = SchedulingQueue()
    queue.add(a_key("a"), priority=0, created=0)
    queue.fail(popped(queue, 0), 0, error=False)
    assert taken(queue, 100) is None
    queue.wake(100)
    assert taken(queue, 100) == "a"


def test_a_pod_that_rests_is_tried_again_after_five_minutes_without_a_change():
    queue = SchedulingQueue()
    queue.add(a_key("a"), priority=0, created=0)
    queue.fail(popped(queue, 0), 10, error=False)
    assert queue.next_due() == 10 + FLUSH_SECONDS
    assert taken(queue, 9 + FLUSH_SECONDS) is None
    assert taken(queue, 10 + FLUSH_SECONDS) == "a"


def test_a_change_during_the_try_is_not_lost():
    queue = SchedulingQueue()
    queue.add(a_key("a"), priority=0, created=0)
    item = popped(queue, 0)
    queue.wake(0)
    queue.fail(item, 0, error=False)
    assert taken(queue, 0) == "a"


def test_a_change_that_does_not_concern_a_pod_leaves_it_at_rest():
    queue = SchedulingQueue()
    for name in "ab":
        queue.add(a_key(name), priority=0, created=0)
    for _ in range(2):
        queue.fail(popped(queue, 0), 0, error=False)
    queue.wake(50, lambda key: key.name == "b")
    assert [taken(queue, 50) for _ in range(2)] == ["b", None]


def test_after_errors_the_wait_doubles_from_one_second_to_ten():
    queue = SchedulingQueue()
    queue.add(a_key("a"), priority=0, created=0)
    now, waits = 0.0, []
    for _ in range(6):
        queue.fail(popped(queue, now), now, error=True)
        due = queue.next_due()
        assert due is not None
        waits.append(due - now)
        assert taken(queue, due - 0.01) is None
        now = due
    assert waits == [1, 2, 4, 8, 10, 10]


def test_a_woken_pod_lets_ready_ones_go_before_it_but_does_not_wait_when_there_are_none():
    queue = SchedulingQueue()
    queue.add(a_key("woken"), priority=9, created=0)
    queue.fail(popped(queue, 0), 0, error=False)
    queue.wake(0.1)
    queue.add(a_key("fresh"), priority=0, created=5)
    assert [taken(queue, 0.1) for _ in range(3)] == ["fresh", "woken", None]


def test_a_pod_that_changed_while_being_tried_is_tried_again():
    queue = SchedulingQueue()
    queue.add(a_key("a"), priority=0, created=0)
    item = popped(queue, 0)
    queue.add(a_key("a"), priority=0, created=0)
    assert taken(queue, 0) is None
    queue.fail(item, 0, error=False)
    assert taken(queue, 0) == "a"


def test_a_pod_taken_out_does_not_come_back():
    queue = SchedulingQueue()
    queue.add(a_key("a"), priority=0, created=0)
    item = popped(queue, 0)
    queue.remove(a_key("a"))
    queue.fail(item, 0, error=True)
    assert taken(queue, 1000) is None
    assert len(queue) == 0


def test_a_changed_priority_changes_the_order():
    queue = SchedulingQueue()
    queue.add(a_key("a"), priority=5, created=0)
    queue.add(a_key("b"), priority=3, created=0)
    queue.add(a_key("a"), priority=1, created=0)
    assert [taken(queue) for _ in range(3)] == ["b", "a", None]


def rested(queue: SchedulingQueue, *names: str, shape: str = "small", now: float = 0.0) -> None:
    """Add pods that fit nowhere, the oldest first."""
    for at, name in enumerate(names):
        queue.add(a_key(name), priority=0, created=at)
        queue.fail(popped(queue, now), now, error=False, shape=shape)


def test_after_a_change_only_the_oldest_of_each_shape_is_tried_while_none_fits():
    queue = SchedulingQueue()
    rested(queue, "a", "b", "c")
    rested(queue, "x", "y", shape="large")
    queue.wake(100)
    tried = []
    while (item := queue.pop(100)) is not None:
        tried.append(item.key.name)
        queue.fail(item, 100, error=False, shape="small" if item.key.name in "abc" else "large")
    assert tried == ["a", "x"]
    assert queue.counts()["unschedulable"] == 5


def test_the_next_of_a_shape_is_tried_when_the_one_before_it_got_a_node_or_went():
    queue = SchedulingQueue()
    rested(queue, "a", "b", "c", "d")
    queue.wake(100)
    assert taken(queue, 100) == "a"
    assert taken(queue, 100) is None
    queue.remove(a_key("a"))
    assert taken(queue, 100) == "b"
    queue.remove(a_key("b"))
    queue.fail(popped(queue, 100), 100, error=False, shape="small")
    assert taken(queue, 100) is None
    assert queue.counts()["unschedulable"] == 2


def test_an_error_with_one_pod_does_not_keep_others_of_its_shape_from_being_tried():
    queue = SchedulingQueue()
    rested(queue, "a", "b")
    queue.wake(100)
    queue.fail(popped(queue, 100), 100, error=True)
    assert taken(queue, 100) == "b"


def test_a_pod_that_room_is_made_for_leaves_its_shape_and_the_next_one_is_tried():
    queue = SchedulingQueue()
    rested(queue, "a", "b")
    queue.wake(100)
    queue.fail(popped(queue, 100), 100, error=False, shape=None)
    assert taken(queue, 100) == "b"


def test_a_change_while_the_first_of_a_shape_is_tried_brings_it_back():
    queue = SchedulingQueue()
    rested(queue, "a", "b")
    queue.wake(100)
    item = popped(queue, 100)
    queue.wake(100)
    queue.fail(item, 100, error=False, shape="small")
    assert taken(queue, 100) == "a"


def test_the_first_of_a_shape_is_tried_after_five_minutes_without_a_change():
    queue = SchedulingQueue()
    rested(queue, "a", "b", now=10)
    assert taken(queue, 9 + FLUSH_SECONDS) is None
    queue.fail(popped(queue, 10 + FLUSH_SECONDS), 10 + FLUSH_SECONDS, error=False, shape="small")
    assert taken(queue, 11 + FLUSH_SECONDS) is None
    assert taken(queue, 10 + 2 * FLUSH_SECONDS) == "a"


class QueueMachine(RuleBasedStateMachine):
    """Every pod is in exactly one state, is never handed out twice at a time, and is never lost."""

    keys = st.sampled_from([a_key(name) for name in "abcd"])

    def __init__(self) -> None:
        super().__init__()
        self.queue = SchedulingQueue()
        self.now = 0.0
        self.known: set[Key] = set()
        self.trying: dict[Key, Queued] = {}

    @rule(key=keys, priority=st.integers(-1, 1))
    def add(self, key: Key, priority: int) -> None:
        self.queue.add(key, priority=priority, created=0.0)
        self.known.add(key)

    @rule(key=keys)
    def remove(self, key: Key) -> None:
        self.queue.remove(key)
        self.known.discard(key)
        self.trying.pop(key, None)

    @rule()
    def pop(self) -> None:
        item = self.queue.pop(self.now)
        if item is not None:
            assert item.key in self.known
            assert item.key not in self.trying
            self.trying[item.key] = item

    @precondition(lambda self: self.trying)
    @rule(data=st.data(), error=st.booleans(), shape=st.sampled_from([None, "small", "large"]))
    def fail(self, data: st.DataObject, error: bool, shape: str | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.trying)))
        self.queue.fail(self.trying.pop(key), self.now, error=error, shape=shape)

    @rule()
    def wake(self) -> None:
        self.queue.wake(self.now)

    @rule(seconds=st.floats(0, 400))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def nothing_is_lost(self) -> None:
        counts = self.queue.counts()
        assert sum(counts.values()) == len(self.known) == len(self.queue)
        assert counts["trying"] == len(self.trying)

    @invariant()
    def what_waits_has_a_time(self) -> None:
        if self.queue.counts()["backoff"] or self.queue.counts()["unschedulable"]:
            assert self.queue.next_due() is not None

    def teardown(self) -> None:
        handed = set()
        while (item := self.queue.pop(self.now + 2 * FLUSH_SECONDS)) is not None:
            handed.add(item.key)
            self.queue.remove(item.key)  # it got a node: the next of its shape follows
        assert handed == self.known - self.trying.keys()


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=examples(20, full=60), stateful_step_count=30, deadline=None)


class Nodes(RuleBasedStateMachine):
    """Whatever happens, a pod that would fit does not rest when all that is to be tried was tried."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = SchedulingQueue()
        self.now = 0.0
        self.free = 0
        self.sizes: dict[Key, int] = {}
        self.serial = 0

    @rule(size=st.integers(1, 3), priority=st.integers(0, 1))
    def add(self, size: int, priority: int) -> None:
        self.serial += 1
        key = a_key(str(self.serial))
        self.sizes[key] = size
        self.queue.add(key, priority=priority, created=0.0)

    @precondition(lambda self: self.sizes)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.sizes)))
        del self.sizes[key]
        self.queue.remove(key)

    @rule(size=st.integers(1, 4))
    def free_room(self, size: int) -> None:
        self.free += size
        self.queue.wake(self.now)

    @rule(seconds=st.floats(0, 20))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(error=st.booleans())
    def try_one(self, error: bool) -> None:
        if (item := self.queue.pop(self.now)) is not None:
            self.decide(item, error=error)

    def decide(self, item: Queued, *, error: bool) -> None:
        size = self.sizes[item.key]
        if error:
            self.queue.fail(item, self.now, error=True)
        elif size <= self.free:
            self.free -= size
            del self.sizes[item.key]
            self.queue.remove(item.key)
        else:
            self.queue.fail(item, self.now, error=False, shape=size)

    def teardown(self) -> None:
        self.now += 20  # longer than any wait after an error
        while (item := self.queue.pop(self.now)) is not None:
            self.decide(item, error=False)
        assert [key.name for key, size in self.sizes.items() if size <= self.free] == []
        assert self.queue.counts()["unschedulable"] == len(self.sizes)


TestNodes = Nodes.TestCase
TestNodes.settings = settings(max_examples=examples(30, full=200), stateful_step_count=30, deadline=None)
