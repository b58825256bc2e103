"""The table of the fields of pods, compared with the schema of Kubernetes."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from moorage_local.nodeagent.podfields import FIELDS, ignored_fields

TYPES = json.loads(files("moorage_local.apiserver.types").joinpath("builtin.json").read_bytes())["types"]


@pytest.mark.parametrize("kind", FIELDS)
def test_each_field_of_the_schema_is_in_the_table(kind: str) -> None:
    assert set(FIELDS[kind]) == set(TYPES[f"io.k8s.api.core.v1.{kind}"]["f"])


def test_the_type_of_a_field_is_in_the_table() -> None:
    assert {field.of for fields in FIELDS.values() for field in fields.values()} <= {"", *FIELDS}


@pytest.mark.parametrize(
    ("spec", "ignored"),
    [
        pytest.param({"containers": [{"name": "c", "image": "x", "command": ["true"]}]}, [], id="a plain pod"),
        pytest.param(
            {
                "dnsPolicy": "ClusterFirst",
                "securityContext": {},
                "enableServiceLinks": True,
                "containers": [{"name": "c", "imagePullPolicy": "Always", "stdin": False}],
            },
            [],
            id="defaults of the API server",
        ),
        pytest.param(
            {
                "hostAliases": [{"ip": "1.2.3.4"}],
                "securityContext": {"runAsUser": 0},
                "initContainers": [{"name": "i", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}],
                "containers": [
                    {"name": "c", "tty": True, "lifecycle": {"stopSignal": "SIGINT", "preStop": {"sleep": {}}}}
                ],
                "volumes": [
                    {"name": "v", "nfs": {"server": "s"}},
                    {"name": "w", "emptyDir": {"medium": "Memory"}},
                ],
            },
            [
                "hostAliases",
                "securityContext.runAsUser",
                "initContainers[i].securityContext.capabilities",
                "containers[c].tty",
                "containers[c].lifecycle.stopSignal",
                "volumes[v].nfs",
                "volumes[w].emptyDir.medium",
            ],
            id="ignored fields at each level",
        ),
    ],
)
def test_ignored_fields_are_named_by_their_paths(spec: dict, ignored: list[str]) -> None:
    assert ignored_fields(spec) == ignored
