"""CRDs come from the kinds, are what Kubernetes demands, and the files in `deploy/` are theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import jsonschema_rs
import msgspec
import pytest

from moorage.cli.manifests import CHART_NOTE, chart_files, stale_files, tree, write_tree
from moorage.model.crds import all_crds, structural
from moorage.model.tenant import (
    Membership,
    Tenant,
    TenantDefaults,
    defaults_of,
    memberships,
    tenant_names,
    tenant_of,
)
from moorage_kube.resources import Obj

DEPLOY = Path(__file__).parents[5] / "deploy"


def test_the_tree_in_deploy_is_up_to_date() -> None:
    assert stale_files(DEPLOY, tree()) == [], "renew it: moor manifests --write deploy"


def test_stale_missing_and_leftover_files_are_named(tmp_path: Path) -> None:
    write_tree(tmp_path, tree())
    (tmp_path / "mine.yaml").write_text("a: 1")
    assert stale_files(tmp_path, tree()) == []
    (tmp_path / "base" / "crds" / "tenants.moorage.dev.yaml").write_text("old")
    (tmp_path / "base" / "crds" / "left.yaml").write_text("over")
    (tmp_path / "base" / "operator.yaml").unlink()
    assert stale_files(tmp_path, tree()) == [
        "base/crds/left.yaml",
        "base/crds/tenants.moorage.dev.yaml",
        "base/operator.yaml",
    ]
    write_tree(tmp_path, tree())
    assert stale_files(tmp_path, tree()) == []
    assert (tmp_path / "mine.yaml").read_text() == "a: 1", "what others wrote is left"


def test_a_chart_inside_the_tree_is_neither_stale_nor_removed(tmp_path: Path) -> None:
    write_tree(tmp_path / "chart", chart_files(), option="--chart")
    (tmp_path / "chart" / "templates" / "left.yaml").write_text(CHART_NOTE)
    write_tree(tmp_path, tree())
    assert stale_files(tmp_path, tree()) == []
    write_tree(tmp_path / "chart", chart_files(), option="--chart")
    chart = tmp_path / "chart"
    left = {path.relative_to(chart).as_posix() for path in chart.rglob("*") if path.is_file()}
    assert left == set(chart_files())


def walk(schema: Any, path: str = "") -> list[tuple[str, Obj]]:
    found = []
    if isinstance(schema, dict):
        found.append((path, schema))
        for name, one in (schema.get("properties") or {}).items():
            found += walk(one, f"{path}.{name}")
        found += walk(schema.get("items"), f"{path}[]")
        if isinstance(schema.get("additionalProperties"), dict):
            found += walk(schema["additionalProperties"], f"{path}{{}}")
    return found


@pytest.mark.parametrize("crd", all_crds(), ids=lambda crd: crd["metadata"]["name"])
def test_schemas_are_structural(crd: Obj) -> None:
    (version,) = crd["spec"]["versions"]
    for path, schema in walk(version["schema"]["openAPIV3Schema"]):
        typed = "type" in schema or schema.get("x-kubernetes-int-or-string") or path.endswith("}")
        assert typed, f"{path} has no type"
        assert not {"$ref", "anyOf", "title", "$defs", "definitions"} & schema.keys(), path
        assert schema.get("required", ["one"]), f"{path}: an empty list of required fields"
    assert crd["metadata"]["name"] == f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"


@pytest.mark.parametrize(
    ("spec", "good"),
    [
        pytest.param({"namespace": "lab"}, True, id="least"),
        pytest.param(
            {"namespace": "lab", "defaults": {"cpu": 2, "memory": "4Gi", "timeSeconds": 60}}, True, id="all"
        ),
        pytest.param({}, False, id="no namespace"),
        pytest.param({"namespace": "Lab"}, False, id="no name"),
        pytest.param({"namespace": "lab", "defaults": {"timeSeconds": 0}}, False, id="no time"),
        pytest.param({"namespace": "lab", "restartLimit": 999}, False, id="too many restarts"),
    ],
)
def test_the_schema_and_the_struct_refuse_the_same(spec: Obj, good: bool) -> None:
    (crd,) = [crd for crd in all_crds() if crd["spec"]["names"]["kind"] == "Tenant"]
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert jsonschema_rs.is_valid(schema, {"spec": spec}) is good
    if good:
        msgspec.convert({"spec": spec}, Tenant)
    else:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"spec": spec}, Tenant)


class Inner(msgspec.Struct):
    amount: Annotated[int | None, msgspec.Meta(description="how many")] = None


class Outer(msgspec.Struct):
    inner: Annotated[Inner, msgspec.Meta(description="what")]
    either: int | Annotated[str, msgspec.Meta(pattern="x")]
    free: dict[str, Any]
    many: list[Inner]
    name: str = ""


def test_a_description_has_no_indent_of_python_before_3_13() -> None:
    """Python 3.13 takes the indent from docstrings; the manifests are the same for all versions."""
    kept = {"type": "string", "description": "One line.\n\n    More of it:\n      and a part.\n    "}
    taken = {"type": "string", "description": "One line.\n\nMore of it:\n  and a part.\n"}
    assert structural(kept) == structural(taken) == taken


def test_what_msgspec_says_becomes_what_kubernetes_takes() -> None:
    found = structural(msgspec.json.schema(Outer))
    inner = {
        "type": "object",
        "properties": {"amount": {"type": "integer", "format": "int64", "description": "how many"}},
    }
    assert found == {
        "type": "object",
        "required": ["inner", "either", "free", "many"],
        "properties": {
            "inner": inner | {"description": "what"},
            "either": {"x-kubernetes-int-or-string": True, "pattern": "x"},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            "many": {"type": "array", "items": inner},
            "name": {"type": "string"},
        },
    }


class Node(msgspec.Struct):
    children: list[Node] = []


class Mixed(msgspec.Struct):
    either: int | list[str]


@pytest.mark.parametrize("struct", [Node, Mixed])
def test_what_a_structural_schema_cannot_say_is_refused(struct: type[msgspec.Struct]) -> None:
    with pytest.raises(ValueError, match="cannot say"):
        structural(msgspec.json.schema(struct))


# --- tenants


def a_tenant(name: str, namespace: str, **defaults: Any) -> Obj:
    return {"metadata": {"name": name}, "spec": {"namespace": namespace, "defaults": defaults}}


def test_a_namespace_belongs_to_the_first_tenant_that_names_it() -> None:
    tenants = [a_tenant("b", "lab"), a_tenant("a", "lab"), a_tenant("c", "other"), {"metadata": {"name": "0"}}]
    tenant = tenant_of("lab", tenants)
    assert tenant is not None
    assert tenant["metadata"]["name"] == "a"
    assert tenant_of("nowhere", tenants) is None
    assert tenant_names(tenants) == {"lab": "a", "other": "c"}


def test_defaults_are_texts_whatever_was_written() -> None:
    tenant = a_tenant("a", "lab", cpu=2, memory="4Gi", timeSeconds=60)
    assert defaults_of(tenant) == TenantDefaults(cpu="2", memory="4Gi", time_seconds=60)
    assert defaults_of(None) == TenantDefaults()


def test_memberships_name_the_highest_role_by_name_or_group():
    tenants = [
        {"metadata": {"name": "vision"}, "spec": {"namespace": "v", "admins": {"people": ["linus"]}}},
        {
            "metadata": {"name": "speech"},
            "spec": {"namespace": "s", "members": {"people": ["ada"]}, "viewers": {"groups": ["ml"]}},
        },
        {"metadata": {"name": "maps"}, "spec": {"namespace": "m", "viewers": {"groups": ["ml"]}}},
    ]
    assert memberships("ada", ("ml",), tenants) == (
        Membership(tenant="maps", namespace="m", role="viewer"),
        Membership(tenant="speech", namespace="s", role="member"),
    )
    assert memberships("linus", (), tenants) == (
        Membership(tenant="vision", namespace="v", role="admin", admins=("linus",)),
    )


def test_a_bound_that_is_excluded_is_said_as_openapi_3_0_does() -> None:
    bounds = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 9}
    assert structural(bounds) == {
        "type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": True,
    }  # fmt: skip
