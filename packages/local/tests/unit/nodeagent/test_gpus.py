from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from moorage_local.nodeagent import gpus, machine
from moorage_local.nodeagent.shimspec import container_gpus


@given(st.integers(0, 16), st.sets(st.integers(0, 15)), st.integers(0, 16))
def test_the_lowest_free_gpus_are_given(total: int, taken: set[int], count: int) -> None:
    taken = {index for index in taken if index < total}
    given_out = gpus.assign(total, sorted(taken), count)
    free = sorted(set(range(total)) - taken)
    assert given_out == (tuple(free[:count]) if count <= len(free) else None)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3)),
    st.dictionaries(st.sampled_from("uvwxyz"), st.integers(0, 5)),
)
def test_containers_share_no_gpu_and_all_get_what_they_asked(mains: dict[str, int], inits: dict[str, int]) -> None:
    need = max(sum(mains.values()), max(inits.values(), default=0))
    shared = gpus.share(tuple(range(10, 10 + need)), mains, inits)
    assert {name: len(which) for name, which in shared.items()} == {**mains, **inits}
    mine = [index for name in mains for index in shared[name]]
    assert len(mine) == len(set(mine))


class Assignments(RuleBasedStateMachine):
    """Pods come and go on one node: no GPU is ever held twice, and none is refused while enough are free."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, tuple[int, ...]] = {}
        self.serial = 0

    @rule(count=st.integers(0, 8))
    def come(self, count: int) -> None:
        taken = [index for indices in self.held.values() for index in indices]
        got = gpus.assign(8, taken, count)
        assert (got is None) == (count > 8 - len(taken))
        if got is not None:
            self.serial += 1
            self.held[self.serial] = got

    @rule(which=st.integers(0, 100))
    def go(self, which: int) -> None:
        if self.held:
            del self.held[sorted(self.held)[which % len(self.held)]]

    @invariant()
    def none_is_held_twice(self) -> None:
        taken = [index for indices in self.held.values() for index in indices]
        assert len(taken) == len(set(taken))
        assert all(0 <= index < 8 for index in taken)


TestAssignments = Assignments.TestCase


def test_simulated_gpus_are_seen_by_index_and_named_by_node() -> None:
    assert gpus.environment("n1", None, (0, 2)) == {
        "CUDA_VISIBLE_DEVICES": "0,2",
        "NVIDIA_VISIBLE_DEVICES": "GPU-n1-0,GPU-n1-2",
    }


def test_real_gpus_are_seen_by_uuid() -> None:
    real = ("GPU-aa", "GPU-bb")
    assert gpus.environment("n1", real, (1,)) == {
        "CUDA_VISIBLE_DEVICES": "GPU-bb",
        "NVIDIA_VISIBLE_DEVICES": "GPU-bb",
    }


def test_without_gpus_none_can_be_seen() -> None:
    assert gpus.environment("n1", ("GPU-aa",), ())["CUDA_VISIBLE_DEVICES"] == ""


def test_gpus_are_read_from_limits_or_requests() -> None:
    spec = {
        "containers": [
            {"name": "a", "resources": {"limits": {"nvidia.com/gpu": 1}}},
            {"name": "b"},
            {"name": "c", "resources": {"requests": {"nvidia.com/gpu": "2"}}},
        ],
        "initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    }
    assert container_gpus(spec, (3, 4, 5)) == {"a": (3,), "b": (), "c": (4, 5), "i": (3,)}


@pytest.mark.parametrize(
    ("name", "label"),
    [("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"), ("Tesla T4", "Tesla-T4"), (" A 100 (x) ", "A-100-x")],
)
def test_products_are_labelled_as_gpu_feature_discovery_does(name: str, label: str) -> None:
    assert machine.product_label(name) == label


def test_without_a_library_or_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert machine.find_real() == ()

    class NoDriver:
        class NVMLError(Exception):
            pass

        @classmethod
        def nvmlInit(cls) -> None:
            raise cls.NVMLError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", NoDriver)
    assert machine.find_real() == ()


def fake_nvml(names: list[str]) -> Any:
    class Nvml:
        class NVMLError(Exception):
            pass

        class Memory:
            total = 80 << 30

        nvmlInit = nvmlShutdown = staticmethod(lambda: None)
        nvmlDeviceGetCount = staticmethod(lambda: len(names))
        nvmlDeviceGetHandleByIndex = staticmethod(lambda index: index)
        nvmlDeviceGetName = staticmethod(lambda handle: names[handle])
        nvmlDeviceGetUUID = staticmethod(lambda handle: f"GPU-{handle}")
        nvmlDeviceGetMemoryInfo = staticmethod(lambda handle: Nvml.Memory)

    return Nvml


def test_this_machine_offers_its_commonest_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(["NVIDIA T400", "NVIDIA H100", "NVIDIA H100"]))
    spec = machine.this_machine()
    assert (spec.gpus, spec.gpu_type, spec.gpu_memory_bytes) == (2, "NVIDIA-H100", 80 << 30)
    assert spec.real_gpu_uuids == ("GPU-1", "GPU-2")
    assert spec.cpu_milli >= 1000
    assert spec.memory_bytes > 0
