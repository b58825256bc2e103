"""A schema change is two: what the last release uses stays until a release later.

These fail for a migration or a CRD that drops, renames or narrows something which the last release's code uses.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dumps
import pytest
import schemas
import yaml
from releases import FIXTURES, ROOT, running

from moorage.model.crds import all_crds
from moorage.model.dataset import parse_dataset
from moorage.model.mapjob import check_mapjob, parse_mapjob
from moorage.model.renamed import RENAMED, merge_patch
from moorage.model.workspace import check_workspace, parse_workspace

pytestmark = pytest.mark.xdist_group("upgrade")
OLD_CRDS = {
    crd["spec"]["names"]["kind"]: crd
    for path in sorted((FIXTURES / "crds").glob("*.yaml"))
    for crd in yaml.load_all(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
}
NEW_CRDS = {crd["spec"]["names"]["kind"]: crd for crd in all_crds()}
OBJECTS: dict[str, dict[str, Any]] = json.loads((FIXTURES / "objects.json").read_text(encoding="utf-8"))
KINDS = sorted(OLD_CRDS)


def schema_of(crd: dict[str, Any], version: str = "v1alpha1") -> dict[str, Any]:
    [served] = [entry for entry in crd["spec"]["versions"] if entry["name"] == version and entry["served"]]
    return dict(served["schema"]["openAPIV3Schema"])


def content(obj: dict[str, Any]) -> dict[str, Any]:
    return {key: obj[key] for key in ("spec", "status") if key in obj}


# --- kinds


@pytest.mark.parametrize("kind", KINDS)
def test_a_crd_takes_all_that_the_last_release_has_stored(kind: str) -> None:
    assert list(schemas.crd_losses(schema_of(OLD_CRDS[kind]), schema_of(NEW_CRDS[kind]))) == []
    old, new = OLD_CRDS[kind]["spec"], NEW_CRDS[kind]["spec"]
    assert (old["names"], old["scope"], old["group"]) == (new["names"], new["scope"], new["group"])


def test_there_is_a_stored_object_of_every_kind() -> None:
    assert {obj["kind"] for obj in OBJECTS.values()} == set(OLD_CRDS)


@pytest.mark.parametrize("key", sorted(OBJECTS))
def test_stored_objects_lose_no_field_by_the_new_crd_nor_by_the_old_one_again(key: str) -> None:
    obj = content(OBJECTS[key])
    kind = OBJECTS[key]["kind"]
    assert schemas.prune(obj, schema_of(NEW_CRDS[kind])) == obj
    renewed = with_merged(obj, merge_patch(kind, obj) or {})  # what the operator makes of it
    assert schemas.prune(renewed, schema_of(NEW_CRDS[kind])) == renewed
    assert schemas.prune(renewed, schema_of(OLD_CRDS[kind])) == obj  # after a way back


def with_merged(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(obj)
    for key, value in patch.items():
        made[key] = with_merged(made.get(key) or {}, value) if isinstance(value, dict) else value
    return made


def test_stored_objects_mean_what_they_meant() -> None:
    by_kind = {obj["kind"]: obj for key, obj in OBJECTS.items() if not key.endswith("/m1")}
    workspace = parse_workspace(by_kind["Workspace"])
    assert workspace.spec.schedule is not None
    assert (workspace.spec.schedule.time_zone, workspace.spec.home.storage_class) == ("Europe/Berlin", "standard")
    policy = parse_mapjob(by_kind["MapJob"]).spec.policy
    assert (policy.time_seconds, policy.max_memory_bytes, policy.max_backoff_seconds) == (45, 2**33, 90)
    assert parse_dataset(by_kind["Dataset"]).spec.readers == ["vision"]
    assert (check_workspace(by_kind["Workspace"]), check_mapjob(by_kind["MapJob"])) == ([], [])


def test_the_table_of_renamed_fields_names_what_the_last_release_has() -> None:
    """A row that the last release does not know is of a rename that is over, or was never released."""
    for row in RENAMED:
        table = schema_of(OLD_CRDS[row.kind])
        for step in row.table:
            table = table["properties"][step]
        assert row.old in table["properties"], row


@pytest.mark.parametrize(
    ("change", "loss"),
    [
        pytest.param(lambda spec: spec["properties"].pop("home"), ".spec.home is gone", id="dropped"),
        pytest.param(
            lambda spec: spec["properties"]["image"].update(maxLength=10),
            ".spec.image: maxLength was 1024 and is 10", id="narrowed",
        ),
        pytest.param(
            lambda spec: spec.update(required=["home"]), ".spec: required was None and is ['home']", id="required"
        ),
        pytest.param(
            lambda spec: spec["properties"]["image"].update(type="object"),
            ".spec.image: type was 'string' and is 'object'", id="another type",
        ),
    ],
)  # fmt: skip
def test_a_crd_that_loses_something_is_noticed(change: Callable[[Any], Any], loss: str) -> None:
    old, new = schema_of(OLD_CRDS["Workspace"]), copy.deepcopy(schema_of(NEW_CRDS["Workspace"]))
    change(new["properties"]["spec"])
    assert list(schemas.crd_losses(old, new)) == [loss]


# --- databases


def read_tables(folder: Path, url: str) -> dict[str, schemas.Tables]:
    tables = {
        name: schemas.read_sqlite(folder / name)
        for name in (dumps.KEPT_IN_FILES if url else dumps.FILES)
    }  # fmt: skip
    return tables | ({"postgres": schemas.read_postgres(url)} if url else {})


def test_migrations_keep_all_that_the_last_release_uses(url: str, tmp_path: Path) -> None:
    dumps.load_fixtures(tmp_path, url)
    before = read_tables(tmp_path, url)
    with running(ROOT / "src", tmp_path, url) as release:
        for step in (("secret",), ("audit",), ("held",), ("outputs", 1)):  # opens, and so migrates, every database
            release.do(*step)
    after = read_tables(tmp_path, url)
    assert {name: list(schemas.table_losses(before[name], after[name])) for name in before} == dict.fromkeys(
        before, []
    )


@pytest.mark.parametrize(
    ("statement", "loss"),
    [
        ("ALTER TABLE audit_log DROP COLUMN what", "column audit_log.what is gone"),
        ("ALTER TABLE audit_log RENAME COLUMN what TO action", "column audit_log.what is gone"),
        ("DROP TABLE login_codes", "table login_codes is gone"),
        ("ALTER TABLE login_codes RENAME TO codes", "table login_codes is gone"),
        ("CREATE UNIQUE INDEX x ON audit_log (person)", "table audit_log has a new rule"),
        ("ALTER TABLE audit_log ADD COLUMN extra text", None),
        ("ALTER TABLE audit_log ADD COLUMN extra text NOT NULL DEFAULT ''", None),
        ("CREATE TABLE more (id bigint NOT NULL UNIQUE)", None),
    ],
)
def test_a_migration_that_the_last_release_could_not_live_with_is_noticed(
    url: str, tmp_path: Path, statement: str, loss: str | None
) -> None:
    dumps.load_fixtures(tmp_path, url)
    name = "postgres" if url else "people.db"
    before = read_tables(tmp_path, url)[name]
    if url:
        dumps.load_postgres(statement, url)
    else:
        dumps.load_sqlite(statement, tmp_path / name)
    losses = list(schemas.table_losses(before, read_tables(tmp_path, url)[name]))
    assert [entry.partition(":")[0] for entry in losses[:1]] == ([loss] if loss else [])
