"""Reading objects as the Go types would: quantities, times, unknown fields, wrong types."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.errors import QuantityError
from moorage_kube.quantity import parse_quantity
from moorage_local.apiserver.types.schema import Reading, WrongType, builtin, canonical_quantity, read

POD = "io.k8s.api.core.v1.Pod"
LEASE = "io.k8s.api.coordination.v1.Lease"


@pytest.mark.parametrize(
    ("given_text", "want"),
    [
        ("0.5", "500m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("2", "2"),
        ("1.5Gi", "1536Mi"),
        ("1024Mi", "1Gi"),
        ("1Gi", "1Gi"),
        ("0", "0"),
        ("0Gi", "0"),
        ("1000", "1k"),
        ("1e3", "1e3"),
        ("100e-3", "100e-3"),
        ("1000k", "1M"),
        ("0.5Gi", "512Mi"),
        ("512", "512"),
        ("-1500m", "-1500m"),
        ("1000Ki", "1000Ki"),
        ("1312.5Ki", "1344k"),
        ("0.5Ki", "512"),
    ],
)
def test_quantities_are_written_back_as_the_real_server_does(given_text: str, want: str) -> None:
    assert canonical_quantity(given_text) == want


@given(
    st.integers(-10_000, 10_000),
    st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi"]),
    st.sampled_from(["", ".5"]),
)
def test_writing_a_quantity_back_keeps_its_value_and_is_stable(whole: int, suffix: str, fraction: str) -> None:
    text = f"{whole}{fraction}{suffix}"
    once = canonical_quantity(text)
    assert canonical_quantity(once) == once
    if suffix.endswith("i") or fraction == "":
        assert parse_quantity(once) == parse_quantity(text)


def test_what_is_no_quantity_is_refused() -> None:
    with pytest.raises(QuantityError):
        canonical_quantity("1x")


def reading_of(obj: Any, kind: str = POD) -> tuple[Any, Reading]:
    reading = Reading()
    return read(kind, obj, reading), reading


def test_unknown_fields_are_dropped_and_named_by_their_path() -> None:
    obj, reading = reading_of({"spec": {"containers": [{"name": "a", "foo": 1}], "bar": {}}, "zap": 1})
    assert obj == {"spec": {"containers": [{"name": "a"}]}}
    assert reading.unknown == ["spec.containers[0].foo", "spec.bar", "zap"]


def test_nulls_empty_lists_and_empty_maps_are_left_out_but_empty_objects_stay() -> None:
    obj, _ = reading_of(
        {
            "metadata": {"labels": {}, "annotations": None, "finalizers": []},
            "spec": {"volumes": [{"name": "v", "emptyDir": {}}], "nodeSelector": {}},
        }
    )
    assert obj == {"metadata": {}, "spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"hostNetwork": "yes"},
            "cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool",
        ),
        ({"containers": "x"}, "cannot unmarshal string into Go struct field PodSpec.spec.containers of type []"),
        (
            {"containers": [{"ports": [{"containerPort": "80"}]}]},
            "cannot unmarshal string into Go struct field ContainerPort.spec.containers.ports.containerPort",
        ),
        (
            {"nodeSelector": {"a": True}},
            "cannot unmarshal bool into Go struct field PodSpec.spec.nodeSelector of type string",
        ),
        (
            {"containers": [{"resources": {"limits": {"cpu": "1x"}}}]},
            "quantities must match the regular expression",
        ),
        ("x", "cannot unmarshal string into Go value of type PodSpec"),
        (
            {"priority": 1 << 31},
            "cannot unmarshal number 2147483648 into Go struct field PodSpec.spec.priority of type int32",
        ),
        (
            {"priority": -(1 << 31) - 1},
            "cannot unmarshal number -2147483649 into Go struct field PodSpec.spec.priority of type int32",
        ),
        (
            {"activeDeadlineSeconds": 1 << 63},
            "number 9223372036854775808 into Go struct field PodSpec.spec.activeDeadlineSeconds of type int64",
        ),
        (
            {"activeDeadlineSeconds": 1.5},
            "cannot unmarshal number 1.5 into Go struct field PodSpec.spec.activeDeadlineSeconds of type int64",
        ),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_as_go_would(spec: Any, said: str) -> None:
    with pytest.raises(WrongType) as caught:
        reading_of({"spec": spec})
    assert said in str(caught.value)


def test_integers_are_as_wide_as_in_go() -> None:
    spec = {"priority": (1 << 31) - 1, "activeDeadlineSeconds": (1 << 63) - 1}
    assert reading_of({"spec": spec})[0] == {"spec": spec}


def test_moments_are_written_in_utc_and_micro_times_need_six_decimals() -> None:
    obj, _ = reading_of({"metadata": {"creationTimestamp": "2026-01-01T02:00:00.5+02:00"}})
    assert obj["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"
    obj, _ = reading_of({"spec": {"renewTime": "2026-01-01T02:00:00.500000+02:00"}}, LEASE)
    assert obj["spec"]["renewTime"] == "2026-01-01T00:00:00.500000Z"
    with pytest.raises(WrongType):
        reading_of({"spec": {"renewTime": "2026-01-01T00:00:00Z"}}, LEASE)


def test_the_distilled_data_is_whole() -> None:
    data = builtin()
    types = data["types"]

    def references(code: Any) -> list[str]:
        while isinstance(code, list) and code[0] in "lmo":
            code = code[1]
        return [code[1:]] if isinstance(code, str) and code.startswith("#") else []

    for name, entry in types.items():
        for code in entry.get("f", {}).values():
            for reference in references(code):
                assert reference in types, f"{name} refers to {reference}"
    assert all(one["type"] in types for one in data["resources"])
