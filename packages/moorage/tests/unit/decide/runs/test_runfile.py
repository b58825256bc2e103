"""A run's options in a file, and as a run keeps them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.runs.request import RunRequest, expanded, unexpanded
from moorage.decide.runs.runfile import FIELDS, OPTIONS_MAX, options_of, parse_run_file, stored_request
from moorage_kube.errors import MoorageError, Problems


def test_every_option_of_a_run_may_stand_in_a_file():
    assert set(RunRequest.__struct_fields__) - {"shown"} == set(FIELDS)


def test_a_file_has_the_names_of_the_rest_api_in_any_spelling():
    document = {
        "name": "train",
        "command": "python train.py --text 'a b'",
        "gpus": 2,
        "gpu-type": "a100",
        "memory": "8Gi",
        "cpu": 4,
        "time": "2h",
        "volumes": "data:/data",
        "datasets": ["lab/images:/images"],
        "env": {"STEPS": 30, "HOME_TOKEN": None, "EMPTY": ""},
        "labels": {"project": "vision", "epochs": 30},
        "priorityClass": "low",
        "user": "1000",
        "restart_limit": 3,
        "host-env": True,
        "share": False,
        "image": None,
    }
    assert parse_run_file(document) == {
        "name": "train",
        "command": ("python", "train.py", "--text", "a b"),
        "gpus": 2,
        "gpu_type": "a100",
        "memory": "8Gi",
        "cpu": "4",
        "time": "2h",
        "volumes": ("data:/data",),
        "datasets": ("lab/images:/images",),
        "env": ("STEPS=30", "HOME_TOKEN", "EMPTY="),
        "labels": ("project=vision", "epochs=30"),
        "priority_class": "low",
        "user": "1000",
        "restart_limit": 3,
        "host_env": True,
        "share": False,
    }


def test_all_that_is_wrong_is_named_with_its_path_and_the_nearest_name():
    with pytest.raises(Problems) as caught:
        parse_run_file(
            {
                "gpu": 1,
                "gpus": "x",
                "env": {"A": [1]},
                "command": ["a", ["b"]],
                "gpu_resource": "a",
                "gpuResource": "b",
            }
            | {"labels": {"a": True}}
        )
    assert caught.value.problems == [
        ("unknown field 'gpu'", "did you mean gpus?"),
        ("gpus: invalid value 'x': use a whole number", None),
        ("env.A: invalid value [1]: use a string", "put it in quotes"),
        ("command[1]: invalid value ['b']: use a string", None),
        ("gpuResource: gpuResource is given twice", None),
        ("labels.a: invalid value True: use a string", "put it in quotes"),
    ]


@pytest.mark.parametrize(("key", "name"), [("args", "command"), ("cmd", "command")])
def test_another_name_of_an_option_is_refused_with_its_name(key, name):
    with pytest.raises(Problems) as caught:
        parse_run_file({key: "x"})
    assert caught.value.problems == [(f"unknown field {key!r}: use {name!r}", None)]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([1], "a run's file holds its options, such as `gpus: 1` and `command: python train.py`"),
        (
            {"apiVersion": "batch/v1", "kind": "Job"},
            "the file is a manifest of kind Job, not the options of a run",
        ),
    ],
)
def test_what_is_no_file_of_options_is_refused(document, message):
    with pytest.raises(MoorageError) as caught:
        parse_run_file(document)
    assert caught.value.message == message


def a_job(options: str, **env: str) -> dict[str, Any]:
    variables = [{"name": name, "value": unexpanded(value)} for name, value in env.items()]
    pod = {"containers": [{"name": "main", "env": variables}]}
    return {"metadata": {"annotations": {"moorage.dev/options": options}}, "spec": {"template": {"spec": pod}}}


def test_a_run_keeps_its_options_and_no_values_of_variables():
    request = RunRequest(
        command=("python", "train.py"),
        name="train",
        namespace="lab",
        gpus=1,
        volumes=("data:/data",),
        env=("TOKEN=secret", "HOME"),
    )
    options = options_of(request)
    assert options == '{"command":["python","train.py"],"gpus":1,"volumes":["data:/data"],"env":["TOKEN","HOME"]}'
    assert stored_request(a_job(options, TOKEN="se$(c)ret", HOME="/home/ada", PATH="/bin")) == RunRequest(
        command=("python", "train.py"),
        gpus=1,
        volumes=("data:/data",),
        env=("TOKEN=se$(c)ret", "HOME=/home/ada"),
        shown=("python", "train.py"),
    )


def test_a_run_keeps_its_labels():
    request = RunRequest(command=("true",), labels=("project=vision",))
    assert stored_request(a_job(options_of(request))) == RunRequest(
        command=("true",), shown=("true",), labels=("project=vision",)
    )


@pytest.mark.parametrize(
    "options",
    ["", "{", "[]", "{}", '{"command":"x"}', '{"command":["x"],"gpus":"1"}', '{"command":["x"],"new":1}'],
)
def test_options_that_somebody_changed_are_not_used(options):
    assert stored_request(a_job(options)) is None


def test_options_that_are_too_long_are_not_kept():
    assert options_of(RunRequest(command=("x" * OPTIONS_MAX,))) == ""


@given(st.text(alphabet="$()a", max_size=12))
def test_a_value_comes_back_from_the_pod_as_it_was(text):
    assert expanded(unexpanded(text)) == text
