"""`--watch` in a pipe: all rows once, then each row that changed; nothing is polled that can be watched."""

from __future__ import annotations

import asyncio

import pytest

from moorage.cli.listing import Listing
from moorage.cli.session import Session
from moorage.cli.watching import Source, can_watch, changed_rows, follow
from moorage_kube.errors import Forbidden
from moorage_kube.resources import PODS
from moorage_kube.testing.builders import a_pod
from moorage_kube.testing.clock import FakeClock
from moorage_testing.commandline import Moor

HEADERS = ("NAME", "STATE", "AGE")
FAILED = {"a": ["a", "Failed", "9s"]}


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        pytest.param({}, {"a": ["a", "Running", "1s"]}, {"a": ["a", "Running", "1s"]}, id="new"),
        pytest.param({"a": ["a", "Running", "1s"]}, {"a": ["a", "Running", "9s"]}, {}, id="older only"),
        pytest.param({"a": ["a", "Running", "1s"]}, FAILED, FAILED, id="another state"),
        pytest.param({"a": ["a", "Running", "1s"]}, {}, {"a": ["a", "Deleted", "1s"]}, id="gone"),
    ],
)
def test_a_row_is_shown_again_if_more_than_time_changed(before, after, want):
    assert changed_rows(HEADERS, before, after) == want


def put_pod(moor: Moor, name: str, phase: str) -> None:
    moor.api.put(PODS, a_pod(name, phase=phase))


def a_listing(headers: tuple[str, ...], rows: list[list[str]]) -> Listing:
    names = [row[0] for row in rows]
    items = [{"name": name} for name in names]
    return Listing(headers=headers, rows=lambda: rows, items=items, names=names, nothing="none")


async def follow_pods(moor, output, steps, capsys):
    """Follow a listing of pods, step by step: each waits until it is shown. Return what was printed."""
    clock = FakeClock()
    session = Session(api=moor.api, namespace="lab", server=moor.server, clock=clock)
    printed = []

    async def read() -> Listing:
        pods = (await session.api.list(PODS, "lab")).items
        return a_listing(HEADERS, [[pod["metadata"]["name"], pod["status"]["phase"], "1s"] for pod in pods])

    async def until(words):
        async with asyncio.timeout(60):
            while words not in "".join(printed):  # noqa: ASYNC110
                clock.advance(1.0)
                await asyncio.sleep(0)
                printed.append(capsys.readouterr().out)

    task = asyncio.create_task(follow(session, [Source(PODS, "lab")], read, output=output))
    for change, words in steps:
        change()
        await until(words)
    task.cancel()
    assert await task == 0  # as Ctrl-C
    return "".join(printed) + capsys.readouterr().out


@pytest.mark.anyio
async def test_changed_rows_are_appended(moor, capsys):
    put_pod(moor, "a", "Pending")
    steps = [
        (lambda: None, "Pending"),
        (lambda: put_pod(moor, "a", "Running"), "Running"),
        (lambda: put_pod(moor, "b", "Succeeded"), "Succeeded"),
        (lambda: moor.api.remove(PODS, "b", "lab"), "Deleted"),
    ]
    out = await follow_pods(moor, "table", steps, capsys)
    assert [line.split() for line in out.splitlines()] == [
        ["NAME", "STATE", "AGE"],
        ["a", "Pending", "1s"],
        ["a", "Running", "1s"],
        ["b", "Succeeded", "1s"],
        ["b", "Deleted", "1s"],
    ]


@pytest.mark.anyio
async def test_names_of_changed_rows_are_appended(moor, capsys):
    put_pod(moor, "a", "Pending")
    steps = [(lambda: None, "a\n"), (lambda: put_pod(moor, "b", "Running"), "b\n")]
    assert await follow_pods(moor, "name", steps, capsys) == "a\nb\n"


@pytest.mark.anyio
async def test_sums_over_time_are_read_again_after_a_while(moor, capsys):
    clock, hours = FakeClock(), [0.5, 0.6, 0.7]
    session = Session(api=moor.api, namespace="lab", server=moor.server, clock=clock)

    async def read() -> Listing:
        value = hours.pop(0)
        users = ["ada"] if hours else ["ada", "bob"]
        return a_listing(("USER", "GPU-HOURS"), [[user, str(value)] for user in users])

    task, printed = asyncio.create_task(follow(session, (), read, output="table")), ""
    async with asyncio.timeout(60):
        while "bob" not in printed:
            clock.advance(1.0)
            await asyncio.sleep(0)
            printed += capsys.readouterr().out
    task.cancel()
    assert await task == 0
    rows = [["USER", "GPU-HOURS"], ["ada", "0.5"], ["bob", "0.7"]]
    assert [line.split() for line in printed.splitlines()] == rows


@pytest.mark.anyio
async def test_a_kind_that_the_user_may_not_list_cannot_be_watched(moor):
    session = Session(api=moor.api, namespace="lab", server=moor.server)
    assert await can_watch(session, [Source(PODS, "lab")])
    moor.api.refuse["list", "pods"] = Forbidden("pods is forbidden", status=403)
    assert not await can_watch(session, [Source(PODS, "lab")])
