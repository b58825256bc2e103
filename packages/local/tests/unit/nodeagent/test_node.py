"""The conditions of a node."""

from __future__ import annotations

import pytest

from moorage_local.nodeagent.node import NodeSpec, is_disk_pressure, is_doubted, node_status

GIB = 1 << 30


@pytest.mark.parametrize(
    ("free", "total", "before", "want"),
    [
        pytest.param(2 * GIB, 1000 * GIB, False, False, id="a large disk: 1 GiB is the limit"),
        pytest.param(GIB - 1, 1000 * GIB, False, True, id="a large disk below 1 GiB"),
        pytest.param(GIB + 1, 1000 * GIB, True, True, id="under pressure, until half as much again is free"),
        pytest.param(2 * GIB, 1000 * GIB, True, False, id="the pressure ends"),
        pytest.param(GIB // 2, 4 * GIB, False, False, id="a small disk: 10 % is the limit"),
        pytest.param(GIB // 4, 4 * GIB, False, True, id="a small disk below 10 %"),
        pytest.param(0, 0, False, False, id="a size that is not known"),
    ],
)
def test_a_disk_is_under_pressure(free, total, before, want):
    assert is_disk_pressure(free_bytes=free, total_bytes=total, before=before) is want


def test_the_node_reports_pressure_of_its_disk_and_its_end():
    spec, status = NodeSpec(name="n1", cpu_milli=1000, memory_bytes=GIB), {}
    for minute, pressure in enumerate([True, True, False]):
        now = f"2026-01-05T12:0{minute}:00Z"
        status = node_status(spec, status, now=now, storage_bytes=GIB, pressure=pressure)
        node = {"status": status}
        [condition] = [each for each in status["conditions"] if each["type"] == "DiskPressure"]
        assert condition["status"] == str(pressure)
        assert condition["lastTransitionTime"] == (
            "2026-01-05T12:02:00Z" if minute == 2 else "2026-01-05T12:00:00Z"
        )
        assert not is_doubted(node, pressure=pressure)
        assert is_doubted(node, pressure=not pressure)
