from __future__ import annotations

import base64
from typing import Any

import pytest

from moorage_kube.testing import builders
from moorage_local.nodeagent.environment import (
    TEXTS_MAX,
    ConfigError,
    Ref,
    Room,
    expand,
    field_value,
    memory_limit,
    references,
    variables,
)


def a_pod(**container: Any) -> dict[str, Any]:
    return builders.a_pod(
        uid="u", labels={"app": "x", "b": 'quo"te'}, annotations={"note": "n"}, node="n1",
        container={"name": "c"} | container, spec={"serviceAccountName": "sa"},
    )  # fmt: skip


def env_of(*env: dict[str, Any], lookup: Any = None, **container: Any) -> dict[str, str]:
    pod = a_pod(env=list(env), **container)
    return variables(pod, pod["spec"]["containers"][0], lookup or {}, {"cpu": "4", "memory": "8Gi"})


CFG = {
    Ref("ConfigMap", "cfg"): {"data": {"a": "1", "b": "2"}, "binaryData": {"c": base64.b64encode(b"3").decode()}}
}
SEC = {Ref("Secret", "sec"): {"data": {"k": base64.b64encode(b"v").decode()}}}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y2z"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$", "$"),
        ("$()", "$()"),
        ("a$$b", "a$b"),
    ],
)
def test_references_in_text_are_expanded_as_kubernetes_does(text: str, want: str) -> None:
    assert expand(text, {"A": "1", "B": "2"}, Room()) == want


DOUBLED = [{"name": "A0", "value": "x" * 8}]
DOUBLED += [{"name": f"A{at}", "value": f"$(A{at - 1})" * 2} for at in range(1, 40)]
KEY = {"configMapKeyRef": {"name": "large", "key": "k"}}
LARGE = {Ref("ConfigMap", "large"): {"data": {"k": "x" * 900_000}}}


@pytest.mark.parametrize(
    "container",
    [
        pytest.param({"env": DOUBLED}, id="variables that double each other"),
        pytest.param(
            {"env": [{"name": f"V{at}", "valueFrom": KEY} for at in range(300)]}, id="one key again and again"
        ),
        pytest.param(
            {"envFrom": [{"prefix": f"P{at}_", "configMapRef": {"name": "large"}} for at in range(300)]},
            id="one ConfigMap with many prefixes",
        ),
        pytest.param(
            {
                "env": [
                    {"name": f"V{at}", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations"}}}
                    for at in range(300)
                ]
            },
            id="all annotations again and again",
        ),
    ],
)
def test_a_few_lines_do_not_become_variables_without_end(container: dict[str, Any]) -> None:
    pod = a_pod(**container)
    pod["metadata"]["annotations"]["note"] = "n" * 200_000
    with pytest.raises(ConfigError, match="exceed 16 MiB in all"):
        variables(pod, pod["spec"]["containers"][0], LARGE, {})


def test_an_argument_that_refers_to_a_long_variable_many_times_is_an_error() -> None:
    with pytest.raises(ConfigError, match="exceed 16 MiB in all"):
        expand("$(A)" * 20_000, {"A": "x" * 100_000}, Room())


def test_all_containers_of_a_pod_share_one_room() -> None:
    room, pod = Room(), a_pod(env=[{"name": "A", "valueFrom": KEY}])
    container = pod["spec"]["containers"][0]
    for _ in range(TEXTS_MAX // 900_000):
        variables(pod, container, LARGE, {}, room)
    with pytest.raises(ConfigError):
        variables(pod, container, LARGE, {}, room)


def test_variables_see_only_those_before_them() -> None:
    env = env_of({"name": "B", "value": "$(A)"}, {"name": "A", "value": "1"}, {"name": "C", "value": "$(A)"})
    assert env == {"B": "$(A)", "A": "1", "C": "1"}


def test_whole_objects_come_first_and_single_values_win() -> None:
    pod_env = env_of(
        {"name": "P_a", "value": "mine"},
        envFrom=[{"prefix": "P_", "configMapRef": {"name": "cfg"}}, {"secretRef": {"name": "sec"}}],
        lookup=CFG | SEC,
    )
    assert pod_env == {"P_a": "mine", "P_b": "2", "P_c": "3", "k": "v"}


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ({"configMapKeyRef": {"name": "no", "key": "a"}}, 'configmap "no" not found'),
        ({"configMapKeyRef": {"name": "cfg", "key": "z"}}, "couldn't find key z in ConfigMap lab/cfg"),
        ({"secretKeyRef": {"name": "no", "key": "a"}}, 'secret "no" not found'),
        ({"secretKeyRef": {"name": "sec", "key": "z"}}, "couldn't find key z in Secret lab/sec"),
        ({"fieldRef": {"fieldPath": "spec.other"}}, "unsupported fieldPath: spec.other"),
    ],
)
def test_what_is_missing_is_named_in_kubelets_words(ref: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        env_of({"name": "X", "valueFrom": ref}, lookup=CFG | SEC)
    assert (caught.value.message, caught.value.reason) == (message, "CreateContainerConfigError")


@pytest.mark.parametrize(
    "ref",
    [
        {"configMapKeyRef": {"name": "no", "key": "a", "optional": True}},
        {"configMapKeyRef": {"name": "cfg", "key": "z", "optional": True}},
        {"secretKeyRef": {"name": "no", "key": "a", "optional": True}},
    ],
)
def test_optional_values_may_be_missing(ref: dict[str, Any]) -> None:
    assert env_of({"name": "X", "valueFrom": ref}, lookup=CFG) == {}


def test_optional_objects_may_be_missing() -> None:
    assert env_of(envFrom=[{"secretRef": {"name": "no", "optional": True}}]) == {}


@pytest.mark.parametrize(
    ("path", "want"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "lab"),
        ("metadata.uid", "u"),
        ("spec.nodeName", "n1"),
        ("spec.serviceAccountName", "sa"),
        ("status.podIP", "127.0.0.1"),
        ("metadata.labels['app']", "x"),
        ("metadata.annotations['none']", ""),
        ("metadata.labels", 'app="x"\nb="quo\\"te"'),
    ],
)
def test_fields_of_the_pod(path: str, want: str) -> None:
    assert field_value(a_pod(), path) == want


def test_the_pods_address_is_the_one_in_its_status() -> None:
    pod = a_pod() | {"status": {"podIP": "127.64.0.7"}}
    assert [field_value(pod, f"status.{field}") for field in ("podIP", "podIPs", "hostIP")] == [
        "127.64.0.7",
        "127.64.0.7",
        "127.0.0.1",
    ]


@pytest.mark.parametrize(
    ("ref", "want"),
    [
        ({"resource": "limits.memory"}, str(512 << 20)),
        ({"resource": "limits.memory", "divisor": "1Mi"}, "512"),
        ({"resource": "requests.cpu"}, "1"),
        ({"resource": "requests.cpu", "divisor": "1m"}, "250"),
        ({"resource": "requests.memory", "divisor": "1Gi"}, "1"),
        ({"resource": "limits.cpu"}, "4"),
    ],
)
def test_resources_are_rounded_up_in_units_of_the_divisor(ref: dict[str, str], want: str) -> None:
    env = env_of(
        {"name": "R", "valueFrom": {"resourceFieldRef": ref}},
        resources={"limits": {"memory": "512Mi"}, "requests": {"cpu": "250m"}},
    )
    assert env == {"R": want}


def test_objects_referred_to_are_listed() -> None:
    pod = a_pod(
        env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}, {"name": "B", "value": "x"}],
        envFrom=[{"configMapRef": {"name": "c"}}],
    )
    assert references(pod["spec"]) == {Ref("Secret", "s"), Ref("ConfigMap", "c")}


def test_memory_limit_is_in_bytes() -> None:
    assert memory_limit({"resources": {"limits": {"memory": "1.5Gi"}}}) == 3 << 29
    assert memory_limit({}) is None
