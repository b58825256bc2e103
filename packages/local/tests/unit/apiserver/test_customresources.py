"""CustomResourceDefinitions and the kinds they make. What must be said was compared with the real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.errors import ApiError, Invalid, MethodNotAllowed, NotFound
from moorage_kube.resources import CRDS, Obj, Resource
from moorage_kube.testing import builders
from moorage_local.apiserver.client import InProcessClient
from moorage_local.apiserver.server import ApiServer
from moorage_local.apiserver.types.jsonpath import find
from moorage_local.apiserver.types.structural import StructuralCodec, fill_defaults, prune
from moorage_local.storage import MemoryStorage

pytestmark = pytest.mark.anyio
DEADLINE_SECONDS = 180
WIDGETS = Resource("x.io", "v1", "widgets", "Widget")
WIDGETS_V2 = Resource("x.io", "v2", "widgets", "Widget")
NAMED = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "n": {"type": "integer", "default": 5}},
}
SCHEMA: Obj = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 10},
                "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
                "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                "port": {"x-kubernetes-int-or-string": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "list": {
                    "type": "array",
                    "maxItems": 2,
                    "items": NAMED,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                },
                "set": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
                "map": {"type": "object", "additionalProperties": {"type": "integer"}},
                "maybe": {"type": "string", "nullable": True},
                "when": {"type": "string", "format": "date-time"},
                "template": {
                    "type": "object",
                    "x-kubernetes-embedded-resource": True,
                    "x-kubernetes-preserve-unknown-fields": True,
                },
            },
        },
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}},
    },
}


def a_definition(*versions: str, **more: Any) -> Obj:
    scale = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas"}
    fields = {"schema": {"openAPIV3Schema": SCHEMA}, "subresources": {"status": {}, "scale": scale}} | more
    return builders.a_definition(WIDGETS, *versions, short_names=["wd"], **fields)


def a_widget(called: str = "w", **spec: Any) -> Obj:
    return {"metadata": {"name": called, "namespace": "default"}, "spec": {"size": 1, **spec}}


@pytest.fixture
async def widgets(api: InProcessClient) -> InProcessClient:
    await api.create(CRDS, a_definition())
    return api


async def test_a_definition_is_served_at_once_and_says_so(api: InProcessClient) -> None:
    made = await api.create(CRDS, a_definition())
    conditions = {one["type"]: one["status"] for one in made["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert made["spec"]["names"]["singular"] == "widget"
    assert made["status"]["storedVersions"] == ["v1"]
    assert (await api.list(WIDGETS)).items == []


async def test_an_object_is_pruned_and_gets_its_defaults(widgets: InProcessClient) -> None:
    spec = {
        "unknown": 1,
        "list": [{"name": "x", "unknown": 2}],
        "free": {"anything": [1]},
        "map": {"k": 1},
        "maybe": None,
        "mode": None,
        "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"x": 1}},
    }
    made = await widgets.create(WIDGETS, {**a_widget(**spec), "status": {"phase": "no"}})
    assert made["spec"] == {
        "size": 1,
        "mode": "a",
        "list": [{"name": "x", "n": 5}],
        "free": {"anything": [1]},
        "map": {"k": 1},
        "maybe": None,
        "template": spec["template"],
    }
    assert "status" not in made
    assert made["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        ({"size": 0}, [("spec.size", "Invalid value: 0: spec.size in body should be greater than or equal to 1")]),
        ({"size": 11}, [("spec.size", "Invalid value: 11: spec.size in body should be less than or equal to 10")]),
        (
            {"size": "x"},
            [("spec.size", 'Invalid value: "string": spec.size in body must be of type integer: "string"')],
        ),
        ({"mode": "c"}, [("spec.mode", 'Unsupported value: "c": supported values: "a", "b"')]),
        ({"name": "A"}, [("spec.name", "Invalid value: \"A\": spec.name in body should match '^[a-z]+$'")]),
        ({"name": "aaaaaa"}, [("spec.name", "Too long: may not be more than 5 bytes")]),
        (
            {"port": 1.5},
            [("spec.port", 'Invalid value: "number": spec.port in body must be of type integer,string: "number"')],
        ),
        ({"list": [{"n": 1}]}, [("spec.list[0].name", "Required value")]),
        ({"list": [{"name": "a"}] * 3}, [("spec.list", "Too many: 3: must have at most 2 items")]),
        ({"list": [{"name": "a"}] * 2}, [("spec.list[1]", 'Duplicate value: {"name":"a"}')]),
        ({"set": ["a", "a"]}, [("spec.set[1]", 'Duplicate value: "a"')]),
        (
            {"map": {"k": "x"}},
            [("spec.map.k", 'Invalid value: "string": spec.map.k in body must be of type integer: "string"')],
        ),
        (
            {"when": "soon"},
            [("spec.when", 'Invalid value: "soon": spec.when in body must be of type date-time: "soon"')],
        ),
        (
            {"size": 0, "mode": "z"},
            [
                ("spec.mode", 'Unsupported value: "z": supported values: "a", "b"'),
                ("spec.size", "Invalid value: 0: spec.size in body should be greater than or equal to 1"),
            ],
        ),
    ],
)
async def test_all_that_breaks_the_schema_is_said_at_once_with_its_path(
    widgets: InProcessClient, spec: Obj, want: list[tuple[str, str]]
) -> None:
    with pytest.raises(Invalid) as caught:
        await widgets.create(WIDGETS, a_widget(**spec))
    found = [(one["field"], one["message"]) for one in (caught.value.details or {})["causes"]]
    for cause in want:
        assert cause in found
    assert {field for field, _ in found} >= {field for field, _ in want}


async def test_a_missing_part_is_required(widgets: InProcessClient) -> None:
    with pytest.raises(Invalid, match=r'Widget\.x\.io "w" is invalid: spec: Required value'):
        await widgets.create(WIDGETS, {"metadata": {"name": "w", "namespace": "default"}})


async def test_status_and_scale_are_doors_of_their_own(widgets: InProcessClient) -> None:
    await widgets.create(WIDGETS, a_widget())
    await widgets.patch(WIDGETS, "w", {"status": {"phase": "no"}}, "default")
    patch = {"status": {"phase": "Run", "replicas": 2}, "spec": {"size": 9}, "metadata": {"labels": {"a": "b"}}}
    after = await widgets.patch(WIDGETS, "w", patch, "default", subresource="status")
    assert (after["status"], after["spec"]["size"], after["metadata"].get("labels")) == (patch["status"], 1, None)
    assert after["metadata"]["generation"] == 1
    scale = await widgets.patch(WIDGETS, "w", {"spec": {"replicas": 7}}, "default", subresource="scale")
    assert (scale["spec"], scale["status"]) == ({"replicas": 7}, {"replicas": 2})
    after = await widgets.get(WIDGETS, "w", "default")
    assert (after["spec"]["size"], after["metadata"]["generation"]) == (7, 2)
    with pytest.raises(Invalid, match="should be less than or equal to 10"):
        await widgets.patch(WIDGETS, "w", {"spec": {"replicas": 70}}, "default", subresource="scale")


async def test_an_update_needs_a_resource_version(widgets: InProcessClient) -> None:
    await widgets.create(WIDGETS, a_widget())
    with pytest.raises(
        Invalid, match="metadata.resourceVersion: Invalid value: 0: must be specified for an update"
    ):
        await widgets.update(WIDGETS, a_widget(size=2))


async def test_two_versions_are_the_same_objects(api: InProcessClient) -> None:
    await api.create(CRDS, a_definition("v1", "v2"))
    await api.create(WIDGETS_V2, a_widget())
    assert (await api.get(WIDGETS, "w", "default"))["apiVersion"] == "x.io/v1"
    listed = (await api.list(WIDGETS_V2)).items
    assert [one["apiVersion"] for one in listed] == ["x.io/v2"]
    start = (await api.list(WIDGETS_V2)).resource_version
    await api.patch(WIDGETS, "w", {"spec": {"size": 3}}, "default")
    async with asyncio.timeout(DEADLINE_SECONDS):
        event = await anext(api.watch(WIDGETS_V2, resource_version=start))
    assert (event.object["apiVersion"], event.object["spec"]["size"]) == ("x.io/v2", 3)


async def test_another_schema_holds_from_the_next_write(widgets: InProcessClient) -> None:
    await widgets.create(WIDGETS, a_widget())
    definition = await widgets.get(CRDS, "widgets.x.io")
    size = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][
        "size"
    ]
    size["maximum"] = 100
    await widgets.update(CRDS, definition)
    assert (await widgets.patch(WIDGETS, "w", {"spec": {"size": 50}}, "default"))["spec"]["size"] == 50


async def until_gone(api: InProcessClient, resource: Resource, name: str, namespace: str | None = None) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                await api.get(resource, name, namespace)
            except NotFound:
                return
            await asyncio.sleep(0)


async def test_deleting_a_definition_deletes_its_objects_first(widgets: InProcessClient) -> None:
    await widgets.create(WIDGETS, a_widget("plain"))
    held = a_widget("held")
    held["metadata"]["finalizers"] = ["a.b/x"]
    await widgets.create(WIDGETS, held)
    await widgets.delete(CRDS, "widgets.x.io")
    await until_gone(widgets, WIDGETS, "plain", "default")
    going = await widgets.get(CRDS, "widgets.x.io")
    assert going["status"]["conditions"][-1]["type"] == "Terminating"
    with pytest.raises(MethodNotAllowed):
        await widgets.create(WIDGETS, a_widget("late"))
    await widgets.patch(WIDGETS, "held", {"metadata": {"finalizers": None}}, "default")
    await until_gone(widgets, CRDS, "widgets.x.io")
    with pytest.raises(NotFound):
        await widgets.list(WIDGETS)
    await widgets.create(CRDS, a_definition())
    assert (await widgets.list(WIDGETS)).items == []


async def test_a_restart_serves_what_is_stored_and_goes_on_deleting() -> None:
    storage = MemoryStorage()
    first = ApiServer(storage)
    await first.start()
    api = first.client()
    await api.create(CRDS, a_definition())
    held = a_widget()
    held["metadata"]["finalizers"] = ["a.b/x"]
    await api.create(WIDGETS, held)
    await api.delete(CRDS, "widgets.x.io")
    await first.stop()
    second = ApiServer(storage)
    await second.start()
    again = second.client()
    assert len((await again.list(WIDGETS)).items) == 1
    await again.patch(WIDGETS, "w", {"metadata": {"finalizers": None}}, "default")
    await until_gone(again, CRDS, "widgets.x.io")
    await second.stop()


def wrong(**change: Any) -> Obj:
    made = a_definition()
    made["spec"] |= change
    return made


@pytest.mark.parametrize(
    ("definition", "field"),
    [
        ({**a_definition(), "metadata": {"name": "other.x.io"}}, "metadata.name"),
        (wrong(scope="Both"), "spec.scope"),
        (wrong(versions=[]), "spec.versions"),
        (wrong(conversion={"strategy": "Webhook"}), "spec.conversion.strategy"),
        (a_definition(schema=None), "spec.versions[0].schema.openAPIV3Schema"),
        (a_definition(schema={"openAPIV3Schema": {"type": "string"}}), "spec.validation.openAPIV3Schema.type"),
        (
            a_definition(schema={"openAPIV3Schema": {"type": "object", "properties": {"a": {"type": "array"}}}}),
            "spec.validation.openAPIV3Schema.properties[a].items",
        ),
        (
            a_definition(schema={"openAPIV3Schema": {"type": "object", "properties": {"a": {}}}}),
            "spec.validation.openAPIV3Schema.properties[a].type",
        ),
    ],
)
async def test_a_wrong_definition_is_refused(api: InProcessClient, definition: Obj, field: str) -> None:
    with pytest.raises(ApiError) as caught:
        await api.create(CRDS, definition)
    assert field in [one["field"] for one in (caught.value.details or {})["causes"]]
    with pytest.raises(NotFound):
        await api.list(WIDGETS)


@pytest.mark.parametrize(
    ("path", "want"),
    [
        (".spec.size", [3]),
        (".metadata.annotations.a\\.b/c", ["x"]),
        (".metadata.annotations['a.b/c']", ["x"]),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".status.conditions[0].type", ["Other"]),
        (".status.conditions[*].type", ["Other", "Ready"]),
        (".status.conditions[-1].type", ["Ready"]),
        (".nope.nothing", []),
        (".status.conditions[?(@.type==", []),
        ("nonsense", []),
    ],
)
def test_printer_columns_find_their_value(path: str, want: list[Any]) -> None:
    obj = {
        "metadata": {"annotations": {"a.b/c": "x"}},
        "spec": {"size": 3},
        "status": {"conditions": [{"type": "Other", "status": "False"}, {"type": "Ready", "status": "True"}]},
    }
    assert find(path, obj) == want


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("abc", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["size", "list", "name", "n", "zzz", "free"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(ANYTHING)
def test_pruning_and_filling_in_twice_is_as_doing_it_once(value: Any) -> None:
    schema = SCHEMA["properties"]["spec"]
    once = fill_defaults(prune(value, schema, "", []), schema)
    unknown: list[str] = []
    assert fill_defaults(prune(once, schema, "", unknown), schema) == once
    assert unknown == []


# --- what one value is read as, and what is said of it


def read(properties: Obj, value: Any) -> tuple[Any, list[tuple[str, str]]]:
    """The spec as it is read, and the reasons and paths of what is wrong with it."""
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": properties}}}
    codec = StructuralCodec(schema, preserve=False, kind="Widget", version="v1")
    decoded = codec.decode({"apiVersion": "x.io/v1", "kind": "Widget", "spec": value})
    return decoded.obj["spec"], [(one.reason, one.path) for one in decoded.errors.causes]


COUNT = {"type": "integer"}
WORD = {"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^[a-z]+$"}
EITHER = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
    "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
}


@pytest.mark.parametrize(
    ("properties", "value", "want", "wrong"),
    [
        pytest.param({"n": COUNT}, {"n": None}, {}, [], id="null counts as absent"),
        pytest.param({"n": {**COUNT, "nullable": True}}, {"n": None}, {"n": None}, [], id="unless it may be null"),
        pytest.param({"n": {**COUNT, "default": 3}}, {"n": None}, {"n": 3}, [], id="and is filled in"),
        pytest.param(
            {"w": WORD},
            {"w": "A"},
            {"w": "A"},
            [("FieldValueInvalid", "spec.w")],
            id="of a word's rules the first",
        ),
        pytest.param(
            {"w": WORD},
            {"w": "AAAA"},
            {"w": "AAAA"},
            [("FieldValueTooLong", "spec.w")],
            id="its length before its form",
        ),
        pytest.param(
            {"e": EITHER},
            {"e": {}},
            {"e": {}},
            [("FieldValueInvalid", "<nil>"), ("FieldValueRequired", "spec.e.a")],
            id="none of two: also what the first misses",
        ),
        pytest.param(
            {"e": EITHER},
            {"e": {"a": "1", "b": "2"}},
            {"e": {"a": "1", "b": "2"}},
            [("FieldValueInvalid", "<nil>")],
            id="both of two",
        ),
    ],
)
def test_a_value_is_read_as_the_real_server_reads_it(
    properties: Obj, value: Obj, want: Obj, wrong: list[tuple[str, str]]
) -> None:
    assert read(properties, value) == (want, wrong)


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ("x", "x is of the type string, expected int64"),
        (1.0, "1 is of the type float64, expected int64"),
        (True, "true is of the type bool, expected int64"),
    ],
)
async def test_what_a_scale_reads_must_be_an_integer(widgets: InProcessClient, size: Any, wanted: str) -> None:
    with pytest.raises(Invalid) as refused:
        await widgets.create(WIDGETS, a_widget(size=size), "default")
    causes = (refused.value.details or {})["causes"]
    assert {"reason": "FieldValueInvalid", "field": ".spec.size", "message": causes[-1]["message"]} == causes[-1]
    assert causes[-1]["message"] == f"Invalid value: 0: .spec.size accessor error: {wanted}"


async def test_a_whole_number_is_stored_as_an_integer(widgets: InProcessClient) -> None:
    made = await widgets.create(WIDGETS, a_widget(size=1, map={"a": 2.0}, free={"x": [3.0, 0.5]}), "default")
    assert repr(made["spec"]["map"]) == "{'a': 2}"
    assert repr(made["spec"]["free"]) == "{'x': [3, 0.5]}"


async def test_deleting_a_definition_is_no_new_generation(widgets: InProcessClient) -> None:
    await widgets.create(
        WIDGETS, {**a_widget(size=1), "metadata": {"name": "w", "finalizers": ["x.io/a"]}}, "default"
    )
    before = (await widgets.get(CRDS, "widgets.x.io"))["metadata"]["generation"]
    await widgets.delete(CRDS, "widgets.x.io")
    assert (await widgets.get(CRDS, "widgets.x.io"))["metadata"]["generation"] == before
