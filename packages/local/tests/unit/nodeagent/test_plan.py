from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_local.nodeagent.plan import (
    Admit,
    Body,
    DeclareLost,
    DeleteObject,
    Publish,
    RemoveFolder,
    Seen,
    Start,
    Stop,
    plan,
)

PHASES = (None, "Pending", "Running", "Succeeded", "Failed")


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        pytest.param(
            Seen(body=Body.NONE, phase="Pending"), (Admit(), Start(), Publish()), id="new: admitted, started"
        ),
        pytest.param(Seen(body=Body.NONE, phase="Pending", shutting_down=True), (), id="new at shutdown: left"),
        pytest.param(
            Seen(body=Body.NONE, phase="Running"), (DeclareLost(), Publish()), id="ran, folder gone: lost"
        ),
        pytest.param(Seen(body=Body.ADMITTED, phase="Pending"), (Start(), Publish()), id="not started: started"),
        pytest.param(Seen(body=Body.REFUSED, phase="Pending"), (Publish(),), id="refused: said"),
        pytest.param(Seen(body=Body.ALIVE, phase="Pending"), (Publish(),), id="adopted before it was published"),
        pytest.param(Seen(body=Body.ALIVE, phase="Failed"), (Stop(30.0),), id="failed by others: ended"),
        pytest.param(Seen(body=Body.ENDED, phase="Running"), (Publish(),), id="ended: said"),
        pytest.param(Seen(body=Body.LOST, phase="Running"), (DeclareLost(), Publish()), id="lost: said"),
        pytest.param(Seen(body=Body.NONE, phase="Failed"), (), id="over and gone"),
        pytest.param(
            Seen(body=Body.ALIVE, phase="Running", deleting=True, grace_seconds=5),
            (Stop(5), Publish()),
            id="deleted: asked to end",
        ),
        pytest.param(
            Seen(body=Body.ENDED, phase="Running", deleting=True), (Publish(), DeleteObject()), id="deleted, ended"
        ),
        pytest.param(
            Seen(body=Body.NONE, phase="Pending", deleting=True),
            (Publish(is_over=True), DeleteObject()),
            id="deleted, not begun: said to have failed",
        ),
        pytest.param(
            Seen(body=Body.ADMITTED, phase="Pending", deleting=True),
            (Publish(is_over=True), DeleteObject()),
            id="deleted, its image cannot be run: said to have failed",
        ),
        pytest.param(
            Seen(body=Body.REFUSED, phase="Pending", deleting=True),
            (Publish(), DeleteObject()),
            id="deleted, refused: said",
        ),
        pytest.param(
            Seen(body=Body.NONE, phase="Running", deleting=True),
            (DeclareLost(), Publish(), DeleteObject()),
            id="deleted, ran, folder gone: lost",
        ),
        pytest.param(Seen(body=Body.NONE, phase="Failed", deleting=True), (DeleteObject(),), id="deleted, over"),
        pytest.param(Seen(body=Body.ALIVE, phase=None), (Stop(1.0),), id="no object: ended at once"),
        pytest.param(Seen(body=Body.ENDED, phase=None), (RemoveFolder(),), id="no object, ended: removed"),
        pytest.param(Seen(body=Body.NONE, phase=None), (), id="nothing at all"),
    ],
)
def test_next_steps(seen: Seen, want: tuple[object, ...]) -> None:
    assert plan(seen) == want


seens = st.builds(
    Seen,
    body=st.sampled_from(Body),
    phase=st.sampled_from(PHASES),
    deleting=st.booleans(),
    grace_seconds=st.floats(1, 100),
    shutting_down=st.booleans(),
)


@given(seens)
def test_nothing_is_started_that_was_started_before(seen: Seen) -> None:
    if Start() in plan(seen):
        assert seen.body in (Body.NONE, Body.ADMITTED)
        assert seen.phase not in (None, "Succeeded", "Failed")
        assert not seen.deleting


@given(seens)
def test_nothing_that_may_run_loses_its_object_or_folder(seen: Seen) -> None:
    steps = plan(seen)
    if DeleteObject() in steps or RemoveFolder() in steps:
        assert seen.body is not Body.ALIVE
    if RemoveFolder() in steps:
        assert seen.phase is None


@given(seens)
def test_final_status_is_published_before_the_object_is_deleted(seen: Seen) -> None:
    steps = plan(seen)
    if DeleteObject() in steps and seen.body in (Body.ENDED, Body.LOST):
        assert steps.index(Publish()) < steps.index(DeleteObject())


@given(seens)
def test_an_object_is_taken_away_when_its_end_is_published(seen: Seen) -> None:
    steps = plan(seen)
    if DeleteObject() in steps and seen.phase not in ("Succeeded", "Failed"):
        assert any(isinstance(step, Publish) for step in steps[: steps.index(DeleteObject())])
