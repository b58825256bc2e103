"""`moor reserve`: times in the user's zone, refusals with a reservation that fits, and the state."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from moorage.cli.reserve import parse_span, parse_when, show
from moorage.model.machine import MACHINES
from moorage.model.reservation import RESERVATIONS
from moorage_kube.errors import UsageError
from moorage_kube.testing.builders import an_object
from moorage_kube.testing.clock import NOON, FakeClock

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("now", "2026-11-21T12:00:00"),
        ("+3d", "2026-11-24T12:00:00"),
        ("+1d12h30m", "2026-11-23T00:30:00"),
        ("2026-12-01T09:00", "2026-12-01T08:00:00"),
        ("2026-12-01 09:00", "2026-12-01T08:00:00"),
        ("2026-12-01", "2026-11-30T23:00:00"),
        ("2026-12-01T09:00Z", "2026-12-01T09:00:00"),
        ("2026-12-01T09:00-05:00", "2026-12-01T14:00:00"),
        ("2026-07-01T09:00", "2026-07-01T07:00:00"),
    ],
)
def test_a_moment_is_read_in_the_zone_and_kept_in_utc(text: str, want: str) -> None:
    assert parse_when(text, NOON, BERLIN) == datetime.fromisoformat(want).replace(tzinfo=UTC)


@pytest.mark.parametrize("text", ["tomorrow", "+", "+3", "+3y", "2026-13-01", "2026-03-29T02:30"])
def test_an_invalid_moment_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_when(text, NOON, BERLIN)


def test_moments_are_shown_with_their_zone() -> None:
    assert show(NOON, BERLIN) == "2026-11-21 13:00 CET"
    assert parse_span("1w2d") == timedelta(days=9)


@pytest.fixture
def gpus(moor: Any) -> Any:
    """Four machines `two` with two GPUs each."""
    moor.clock = FakeClock()
    size = {"cpu": 1, "memory": "1Gi", "gpu": {"type": "nvidia.com/gpu", "num": 2, "family": "a100"}}
    kinds = [{"name": "two", "spec": size, "available": 4}]
    moor.api.put(MACHINES, an_object(MACHINES, "gpu", spec={"machineTypes": kinds}))
    return moor


def make(gpus: Any, *words: str) -> Any:
    return gpus("reserve", "create", *words, "--time-zone", "Europe/Berlin")


def spec_of(gpus: Any, name: str = "course", namespace: str = "default") -> Any:
    return gpus.api.objects["reservations", namespace, name]["spec"]


def test_machines_are_reserved_as_typed(gpus: Any) -> None:
    done = make(gpus, "course", "--machine", "two", "--count", "4", "--from", "2026-12-01T09:00", "--to", "+3d")
    assert (done.code, done.out) == (0, "course\n")
    assert done.err == (
        "note: 4 gpu/two will be reserved for namespace default from 2026-12-01 09:00 CET to 2026-12-04 09:00 CET"
        " (3d)\n"
    )
    size = {"machineGroup": "gpu", "machineType": "two", "count": 4}
    assert spec_of(gpus) == size | {"from": "2026-12-01T08:00:00Z", "to": "2026-12-04T08:00:00Z"}


def test_gpus_for_a_user_with_a_lead_of_their_own(gpus: Any) -> None:
    words = ("--gpus", "4", "--gpu-type", "a100", "--to", "+1h", "--user", "ada@lab.org", "--lead", "2h")
    assert make(gpus, "course", *words).code == 0
    spec = spec_of(gpus)
    assert (spec["count"], spec["user"], spec["leadSeconds"]) == (2, "ada@lab.org", 7200)


def test_a_reservation_for_a_tenant_is_in_its_namespace(gpus: Any) -> None:
    assert make(gpus, "course", "--machine", "gpu/two", "--to", "+1h", "--tenant", "lab").code == 0
    assert spec_of(gpus, namespace="lab")["count"] == 1


def test_a_dry_run_prints_the_manifest_and_reserves_nothing(gpus: Any) -> None:
    done = make(gpus, "course", "--machine", "two", "--to", "+1h", "--dry-run")
    assert done.code == 0
    assert "kind: Reservation\n" in done.out
    assert "would be reserved" in done.err
    assert gpus.api.named(RESERVATIONS) == []


def test_a_reservation_that_does_not_fit_is_refused_with_one_that_fits(gpus: Any) -> None:
    make(gpus, "course", "--machine", "two", "--count", "3", "--from", "+1h", "--to", "+3h")
    done = make(gpus, "more", "--machine", "two", "--count", "2", "--from", "+2h", "--to", "+2h")
    assert done.code == 1
    assert done.err == (
        "error: 2 of 4 two are not free from 2026-11-21 15:00 CET to 2026-11-21 17:00 CET: default/course has 3"
        " from 2026-11-21 14:00 CET to 2026-11-21 17:00 CET; free all the time: 1; 2 for as long from"
        " 2026-11-21 17:00 CET\n"
        "hint: `moor reserve list` shows who has them\n"
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "+1h"), "machines missing"),
        (("--machine", "nosuch", "--to", "+1h"), "machine type 'nosuch' not found"),
        (("--gpus", "3", "--gpu-type", "a100", "--to", "+1h"), "no number of machines has exactly 3 GPUs"),
        (("--gpus", "2", "--to", "+1h"), "--gpus needs --gpu-type"),
        (("--machine", "two", "--from", "+2h", "--to", "2026-11-21T14:00"), "must be after spec.from"),
        (("--machine", "two", "--from", "2026-11-01", "--to", "2026-11-02"), "must lie ahead"),
        (("--machine", "two", "--to", "+1h", "--user", "ada", "--tenant", "lab"), "cannot be used together"),
    ],
)
def test_wrong_usage_is_refused(gpus: Any, words: tuple[str, ...], message: str) -> None:
    done = make(gpus, "course", *words)
    assert done.code == 2
    assert message in done.err


def a_reservation(name: str = "course", **status: Any) -> Any:
    size = {"machineGroup": "gpu", "machineType": "two", "count": 4}
    spec = size | {"from": "2026-11-21T11:00:00Z", "to": "2026-11-23T11:00:00Z"}
    status = {"phase": "Active", "held": 3, "inUse": 1, "shortfall": 1} | status
    return an_object(RESERVATIONS, name, spec=spec, status=status)


def test_the_calendar_lists_all_namespaces_without_expired_reservations(gpus: Any) -> None:
    gpus.api.put(RESERVATIONS, a_reservation())
    gpus.api.put(RESERVATIONS, a_reservation("old", phase="Expired"))
    assert gpus("reserve", "list", "--time-zone", "UTC").out == (
        "NAMESPACE   NAME     MACHINE   COUNT   FOR   FROM                   TO                     PHASE    HELD"
        "   SHORT\n"
        "lab         course   gpu/two   4       lab   2026-11-21 11:00 UTC   2026-11-23 11:00 UTC   Active   3"
        "      1\n"
    )
    assert gpus("reserve", "list", "--all", "-o", "name").out.split() == ["lab/course", "lab/old"]


def test_a_reservation_is_shown_with_its_blockers(gpus: Any) -> None:
    blocker = {"owner": "bob", "namespace": "other", "pod": "train", "until": "2026-11-21T13:00:00Z"}
    gpus.api.put(RESERVATIONS, a_reservation(fullAt="2026-11-21T13:00:00Z", blockedBy=[blocker]))
    done = gpus("reserve", "show", "course", "-n", "lab", "--time-zone", "UTC")
    assert "Held:        3, of which 1 in use by their owner\n" in done.out
    assert "Short:       1, until 2026-11-21 13:00 UTC\n" in done.out
    assert "  bob     other       train   2026-11-21 13:00 UTC\n" in done.out
    reservation = json.loads(gpus("reserve", "show", "course", "-n", "lab", "-o", "json").out)
    assert reservation["blockedBy"] == [blocker]


def test_a_deletion_names_the_reservation_and_unknown_names_are_refused(gpus: Any) -> None:
    gpus.api.put(RESERVATIONS, a_reservation())
    assert gpus("reserve", "delete", "course", "-n", "lab", "--dry-run").out == "course would be deleted\n"
    assert gpus("reserve", "delete", "course", "-n", "lab").out == "course deleted\n"
    done = gpus("reserve", "delete", "course", "-n", "lab")
    assert (done.code, "reservation 'course' not found in namespace lab" in done.err) == (1, True)


def test_machines_lists_the_number_that_is_reserved_now(gpus: Any) -> None:
    gpus.server.serves = gpus.api
    gpus.api.put(RESERVATIONS, a_reservation())
    gpus.api.put(RESERVATIONS, a_reservation("b", phase="Preparing"))
    (row,) = json.loads(gpus("machines", "-o", "json").out)
    assert row["booked"] == 3
    assert "BOOKED" in gpus("machines", "gpu").out
