"""The pytest plugin of all our suites.

The same examples in every run, the order of files, and the reasons of skips.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import uuid
from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from moorage_kube.testing.examples import examples

# Shared machines are slow at times, and tests do not measure time: examples have no deadline. They are the same in
# every run, so that a failure comes from the change and not from chance; MOORAGE_TEST_EXPLORE=1 draws new ones.
settings.register_profile(
    "moorage",
    deadline=None,
    max_examples=examples(30, full=100),
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not os.environ.get("MOORAGE_TEST_EXPLORE"),
)
settings.load_profile("moorage")


# a shell that starts the suite in the background has SIGINT ignored, and so would all that tests interrupt
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "cluster(needs): takes the `cluster` fixture; needs lists the parts that the test uses"
        " (api, scheduler, controllers, kubelet, extender)",
        "browser: drives Chromium",
        "servers_only: a test of the Api contract that FakeApi does not claim to pass",
        "processes: a unit test that starts processes (`make quick` leaves it out)",
    ):
        config.addinivalue_line("markers", marker)


def pytest_collection() -> None:
    """Disable the garbage collector during collection; it would check all tests and modules many times."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files: two files of unit tests after each file of others, and the rest last.

    Unit tests compute, and most others wait: run together they take less time than one after the other. At the end
    all workers have short tests.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    computing = deque(file for file in files if "tests/unit/" in file)
    order = []
    for file in [file for file in files if "tests/unit/" not in file]:
        order += [file, *(computing.popleft() for _ in range(min(2, len(computing))))]
    items[:] = [item for file in (*order, *computing) for item in files[file]]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute tests over the workers, in their order.

    One worker runs a file of unit tests, and makes its fixtures once. One worker runs a group. Each other test
    runs in any worker. pytest-xdist 3.8 counts all earlier tests of a worker after each test: 22 s of CPU in all
    for 13,000 tests. This scheduler drops the units that are complete: 12 s.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadGroupScheduling

    class Files(LoadGroupScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return nodeid.partition("::")[0] if scope == nodeid and "tests/unit/" in nodeid else scope

        def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
            scope = self._split_scope(self.registered_collections[node][item_index])
            super().mark_test_complete(node, item_index, duration)
            if all(self.assigned_work[node][scope].values()):
                del self.assigned_work[node][scope]

    config.option.loadscopereorder = False
    return Files(config, log)


def pytest_collection_finish() -> None:
    """Exclude all collected objects from garbage collection; call `gc.unfreeze()` to inspect them."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the number of skipped tests by reason."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ())
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:5} skipped: {reason}")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def seed() -> int:
    """The seed of a test's random choices: fixed, MOORAGE_TEST_SEED if set, or new when exploring."""
    drawn = int(os.environ.get("MOORAGE_TEST_SEED") or 0)
    if not drawn and os.environ.get("MOORAGE_TEST_EXPLORE"):
        drawn = random.SystemRandom().randrange(1, 2**32)
    print(f"seed {drawn}: MOORAGE_TEST_SEED={drawn} draws the same again")
    return drawn


@pytest.fixture
def unique() -> str:
    """A short name that no other test uses."""
    return "t" + uuid.uuid4().hex[:8]
