"""Objects sent in protobuf. Whole ones are sent by kubectl in `test_with_kubectl`; here is the wire itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.errors import BadRequest
from moorage_local.apiserver.wire.protobuf import MAGIC, decode


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def envelope(api_version: str, kind: str, body: bytes) -> bytes:
    return MAGIC + field(1, field(1, api_version) + field(2, kind)) + field(2, body)


META = field(1, field(1, "p") + field(2, "") + field(8, b"") + field(11, field(1, "app") + field(2, "x")))


def test_a_pod_is_read_with_its_inlined_parts() -> None:
    quantity = field(1, "500m")
    container = (
        field(1, "c")
        + field(2, "busybox")
        + field(3, "sh")
        + field(3, "-c")
        + field(8, field(1, field(1, "cpu") + field(2, quantity)))
        + field(10, field(1, field(2, field(1, "/ok") + field(2, field(1, 0) + field(2, 80)))) + field(2, 0))
        + field(9, field(1, "v") + field(2, 0) + field(3, "/v"))
    )
    volume = field(1, "v") + field(2, field(2, b""))
    spec = field(1, volume) + field(2, container) + field(4, 30) + field(25, -5) + field(11, 0)
    assert decode(envelope("v1", "Pod", META + field(2, spec) + field(3, field(1, "")))) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "labels": {"app": "x"}},
        "spec": {
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [
                {
                    "name": "c",
                    "image": "busybox",
                    "command": ["sh", "-c"],
                    "resources": {"limits": {"cpu": "500m"}},
                    "livenessProbe": {"httpGet": {"path": "/ok", "port": 80}},
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                }
            ],
            "terminationGracePeriodSeconds": 30,
            "priority": -5,
        },
        "status": {},
    }


def test_bytes_times_and_pointers_to_zero() -> None:
    moment = field(1, 1_767_225_600) + field(2, 500_000_000)
    lease = field(1, field(1, "l")) + field(2, field(2, 15) + field(5, 0) + field(4, moment))
    assert decode(envelope("coordination.k8s.io/v1", "Lease", lease))["spec"] == {
        "leaseDurationSeconds": 15,
        "leaseTransitions": 0,
        "renewTime": "2026-01-01T00:00:00.500000Z",
    }
    secret = field(1, field(1, "s")) + field(2, field(1, "k") + field(2, b"\x00\xff"))
    assert decode(envelope("v1", "Secret", secret))["data"] == {"k": "AP8="}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        MAGIC,
        envelope("v1", "Nope", b""),
        envelope("x.io/v1", "Widget", b""),
        envelope("v1", "Pod", b"\x12\xff"),
    ],
)
def test_what_cannot_be_read_is_a_bad_request(data: bytes) -> None:
    with pytest.raises(BadRequest):
        decode(data)


@given(st.binary(max_size=200))
def test_rubbish_is_refused_and_never_breaks_anything(data: bytes) -> None:
    for body in (MAGIC + data, envelope("v1", "Pod", data), envelope("v1", "Pod", META + field(2, data))):
        try:
            assert isinstance(decode(body), dict)
        except BadRequest:
            continue
