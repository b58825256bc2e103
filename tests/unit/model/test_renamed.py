"""Renamed fields: objects of the last release are read as they were meant, and both names are kept equal."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.admission.fields import with_values
from moorage.decide.admission.renames import rename_fields
from moorage.model.crds import KINDS as CRD_KINDS
from moorage.model.crds import all_crds
from moorage.model.mapjob import parse_mapjob
from moorage.model.renamed import KINDS, RENAMED, Renamed, merge_patch, table_of, with_new_names
from moorage.model.workspace import parse_workspace

ROWS = [pytest.param(row, id=row.old_path) for row in RENAMED]


def an_object(row: Renamed, **fields: Any) -> dict[str, Any]:
    """An object of the row's kind; the table of the field holds these fields, None: left out."""
    obj: dict[str, Any] = {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": row.kind,
        "metadata": {"name": "a", "namespace": "lab", "resourceVersion": "1"},
        "spec": {"type": "jupyterlab"} if row.kind == "Workspace" else {"parallelism": 1, "template": {}},
    }
    table = obj
    for step in row.table:
        table = table.setdefault(step, {})
    table.update({name: value for name, value in fields.items() if value is not None})
    return obj


def patched(obj: dict[str, Any], patches: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    made = copy.deepcopy(obj)
    for patch in patches:
        *path, last = patch["path"].lstrip("/").split("/")
        table = made
        for step in path:
            table = table[step]
        if patch["op"] == "remove":
            del table[last]
        else:
            table[last] = patch["value"]
    return made


def values(row: Renamed, obj: dict[str, Any]) -> tuple[Any, Any]:
    table = table_of(obj, row) or {}
    return table.get(row.old), table.get(row.new)


CASES = [
    pytest.param((None, None), ("a", None), ("a", "a"), id="created by the last release"),
    pytest.param((None, None), (None, "a"), ("a", "a"), id="created by this one"),
    pytest.param((None, None), ("a", "a"), ("a", "a"), id="created with both"),
    pytest.param((None, None), ("a", "b"), None, id="created with two values: refused"),
    pytest.param(("a", "a"), ("b", "a"), ("b", "b"), id="changed by the last release"),
    pytest.param(("a", "a"), ("a", "b"), ("b", "b"), id="changed by this one"),
    pytest.param(("a", "a"), ("b", "c"), None, id="changed to two values: refused"),
    pytest.param(("a", "a"), (None, "a"), (None, None), id="taken out by the last release"),
    pytest.param(("a", "a"), ("a", None), (None, None), id="taken out by this one"),
    pytest.param(("a", "a"), (None, "b"), ("b", "b"), id="renamed in a manifest, and changed"),
    pytest.param(("a", None), ("a", None), ("a", "a"), id="stored by the last release, touched elsewhere"),
    pytest.param(("a", None), (None, "a"), ("a", "a"), id="renamed in a manifest"),
    pytest.param(("a", "b"), ("a", "b"), ("b", "b"), id="differs since the webhook was away: the new name counts"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(("before", "given_now", "want"), CASES)
def test_admission_keeps_both_names_equal(
    row: Renamed, before: tuple[Any, Any], given_now: tuple[Any, Any], want: tuple[Any, Any] | None
) -> None:
    old = None if before == (None, None) else an_object(row, **dict(zip((row.old, row.new), before, strict=True)))
    obj = an_object(row, **dict(zip((row.old, row.new), given_now, strict=True)))
    patches, refusals = rename_fields(row.kind, obj, old)
    if want is None:
        assert ([refusal.field for refusal in refusals], patches) == ([row.old_path], ())
        return
    stored = patched(obj, patches)
    assert (values(row, stored), refusals) == (want, ())
    assert rename_fields(row.kind, stored, old) == ((), ())  # asked again, as the API server may
    assert merge_patch(row.kind, stored) is None


@pytest.mark.parametrize("row", ROWS)
def test_what_is_stored_gets_both_names(row: Renamed) -> None:
    by_old, by_new = an_object(row, **{row.old: 7}), an_object(row, **{row.new: 7})
    for obj in (by_old, by_new):
        patch: Any = merge_patch(row.kind, obj)
        for step in row.table:
            patch, obj = patch[step], obj[step]
        assert {**obj, **patch} == {row.old: 7, row.new: 7}


@pytest.mark.parametrize("row", ROWS)
def test_readers_take_either_name_and_the_new_one_first(row: Renamed) -> None:
    for fields in ({row.old: 7}, {row.new: 7}, {row.old: 5, row.new: 7}):
        read = with_new_names(row.kind, an_object(row, **fields))
        assert values(row, dict(read))[1] == 7


@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner)), st.sampled_from(RENAMED)
)
def test_odd_objects_are_left_alone(odd: Any, row: Renamed) -> None:
    for depth in range(len(row.table)):
        obj = with_values({"kind": row.kind}, [(row.table[: depth + 1], odd)])
        assert with_new_names(row.kind, obj) == obj
        assert merge_patch(row.kind, obj) is None
        assert rename_fields(row.kind, obj, obj) == ((), ())


def test_parsed_objects_of_the_last_release_keep_what_they_said() -> None:
    workspace = an_object(RENAMED[0], start="0 8 * * *", timezone="Asia/Tokyo")
    workspace["spec"]["home"] = {"storageClassName": "fast"}
    spec = parse_workspace(workspace).spec
    assert spec.schedule is not None
    assert (spec.schedule.time_zone, spec.home.storage_class) == ("Asia/Tokyo", "fast")
    policy = parse_mapjob(
        an_object(RENAMED[2], timeoutSeconds=9.5, memoryLimitBytes=64, backoffLimitSeconds=7.0)
    ).spec.policy
    assert (policy.time_seconds, policy.max_memory_bytes, policy.max_backoff_seconds) == (9.5, 64, 7.0)


@pytest.mark.parametrize("row", ROWS)
def test_the_crd_has_both_names_of_one_shape(row: Renamed) -> None:
    [crd] = [crd for crd in all_crds() if crd["spec"]["names"]["kind"] == row.kind]
    table = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for step in row.table:
        table = table["properties"][step]
    old, new = table["properties"][row.old], table["properties"][row.new]
    assert old["description"].startswith(f"Deprecated: the old name of `{row.new}`")
    assert old | {"description": ""} == new | {"description": ""}
    assert row.old not in table.get("required", ())


def test_every_renamed_kind_is_one_of_ours() -> None:
    assert {kind.resource.kind for kind in CRD_KINDS} >= KINDS
