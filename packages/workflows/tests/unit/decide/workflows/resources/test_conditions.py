from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.errors import SelectorError
from moorage_workflows.decide.workflows.resources.conditions import (
    Conditions,
    failed,
    parse_condition,
    state_of,
    succeeded,
)

JOB: dict[str, Any] = {
    "metadata": {"labels": {"app.kubernetes.io/name": "x", "app/part": "y"}},
    "status": {
        "succeeded": 3,
        "ratio": 2.0,
        "ready": True,
        "nothing": None,
        "phase": "Running",
        "conditions": [{"type": "Complete", "status": "False"}],
    },
}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        pytest.param("status.succeeded > 2", True, id="more than"),
        pytest.param("status.succeeded > 3", False, id="not more than itself"),
        pytest.param("status.failed < 1", False, id="what is missing is less than nothing"),
        pytest.param("status.failed != 1", True, id="what is missing is another value"),
        pytest.param("!status.failed", True, id="is missing"),
        pytest.param("status.nothing", True, id="null is there"),
        pytest.param("status.phase == Running", True, id="two equals signs"),
        pytest.param("status.phase = Running", True, id="one equals sign"),
        pytest.param("status.phase in (Failed, Error)", False, id="none of these"),
        pytest.param("status.phase notin (Failed, Error)", True, id="not one of these"),
        pytest.param("status.ready == true", True, id="truth values are texts"),
        pytest.param("status.ratio == 2", True, id="whole floats are whole"),
        pytest.param("status.conditions.0.type == Complete", True, id="index of a list"),
        pytest.param("status.conditions.1.type == Complete", False, id="index beyond the list"),
        pytest.param("status.succeeded > 2, status.phase == Succeeded", False, id="all must hold"),
        pytest.param("metadata.labels.app/part == y", True, id="a name with a slash"),
        pytest.param("metadata.labels.app.kubernetes.io/name == x", False, id="dots always part names"),
        pytest.param("", True, id="no condition"),
    ],
)
def test_a_success_condition_holds_when_all_its_requirements_do(condition: str, holds: bool) -> None:
    assert succeeded(Conditions(success=parse_condition(condition)), JOB) is holds


def test_a_failure_condition_holds_when_one_of_its_requirements_does() -> None:
    conditions = Conditions(failure=parse_condition("status.failed > 0, status.phase in (Running)"))
    assert str(failed(conditions, JOB)) == "status.phase=Running"
    assert failed(conditions, {"status": {"phase": "Succeeded"}}) is None


@pytest.mark.parametrize(
    "condition", ["status.succeeded >", "a === b", "status.succeeded > x", "a[0] == b", "(a)"]
)
def test_what_is_no_condition_is_refused(condition: str) -> None:
    with pytest.raises(SelectorError):
        parse_condition(condition)


def test_the_state_is_told_with_what_is_missing() -> None:
    keys = Conditions(parse_condition("status.succeeded > 9"), parse_condition("status.failed > 1")).keys
    assert state_of(JOB, keys) == "status.succeeded is 3, status.failed is not set"


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                    | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_no_object_breaks_a_look(status: Any) -> None:
    conditions = Conditions(parse_condition("status.a.0 > 1"), parse_condition("status in (a), !status.b"))
    state_of({"status": status}, conditions.keys)
    succeeded(conditions, {"status": status})
    failed(conditions, {"status": status})
