"""Which runs a list has, and in which order: the same for the command, REST and Python."""

from __future__ import annotations

from datetime import datetime

import pytest

from moorage.actions.runs import select_runs
from moorage.decide.runs.state import view_runs
from moorage_kube.errors import UsageError
from moorage_testing.builders import a_run_job


def a_job(name: str, *, gpus: int, hour: int, kind: str, **labels: str) -> dict:
    made = {"created": f"2026-11-21T{hour:02}:00:00Z", "pod": {"nodeSelector": {"nvidia.com/gpu.product": kind}}}
    return a_run_job(name, None, gpus=gpus, labels=labels, **made)


def at(hour: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-21T{hour}:00:00Z")


JOBS = [
    a_job("c", gpus=1, hour=9, kind="a100", project="vision", stage="test"),
    a_job("a", gpus=8, hour=8, kind="h100", project="vision"),
    a_job("b", gpus=2, hour=10, kind="a100"),
]


@pytest.mark.parametrize(
    ("choice", "want"),
    [
        ({"sort": "age"}, ["b", "c", "a"]),
        ({"sort": "gpus"}, ["a", "b", "c"]),
        ({"sort": "name"}, ["a", "b", "c"]),
        ({"sort": "gpus", "limit": 1}, ["a"]),
        ({"gpu_type": "a100", "sort": "age"}, ["b", "c"]),
        ({"state": "Running"}, []),
        ({"since": at("09")}, ["b", "c"]),
        ({"since": at("11")}, []),
        ({"selector": ""}, ["b", "c", "a"]),
        ({"selector": "project=vision,stage!=test"}, ["a"]),
        ({"selector": "project in (vision,speech)", "sort": "name"}, ["a", "c"]),
        ({"selector": "!project"}, ["b"]),
        ({"selector": "moorage.dev/run"}, []),
        ({"state": "Waiting", "sort": "name"}, ["a", "b", "c"]),
    ],
)
def test_runs_are_chosen_and_sorted(choice, want):
    runs = view_runs(JOBS, [])
    assert [run.name for run in select_runs(runs, **choice)] == want


def test_an_invalid_selector_is_refused_by_its_field():
    with pytest.raises(UsageError, match="'project=a b' is not a label requirement") as caught:
        select_runs([], selector="project=a b")
    assert (caught.value.code, caught.value.field) == ("bad_request", "selector")


def test_an_unknown_order_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match="invalid sort 'size': use age, gpus, name"):
        select_runs([], sort="size")
