"""Requests as command lines, and command lines as words."""

from __future__ import annotations

import shlex

import pytest

from moorage.api.datasets import NewDataset
from moorage.api.jobs import NewJob
from moorage.api.maps import MapPolicy, MapWorkers, NewMap
from moorage.present.commandlines import command_words, dataset_line, map_line, run_line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python train.py --name 'two words'", ("python", "train.py", "--name", "two words")),
        ("  python train.py \r\n", ("python", "train.py")),
        ("", ()),
        ("python a.py | tee log", ("sh", "-c", "python a.py | tee log")),
        ("echo $HOME", ("sh", "-c", "echo $HOME")),
        ("pip install x\r\npython a.py", ("sh", "-c", "pip install x\npython a.py")),
        ("python a.py *.csv", ("sh", "-c", "python a.py *.csv")),
    ],
)
def test_a_command_is_split_as_a_shell_does_and_run_in_one_where_it_needs_one(text, words):
    assert command_words(text) == words


@pytest.mark.parametrize("text", ["python 'a.py", "echo $HOME 'x"])
def test_an_open_quotation_is_an_error(text):
    with pytest.raises(ValueError, match="No closing quotation"):
        command_words(text)


def test_a_run_is_the_command_that_starts_it():
    body = NewJob(
        command=["python", "train.py", "two words"],
        namespace="team",
        name="train",
        gpus=2,
        gpu_type="a100",
        memory="8Gi",
        time="2h",
        checkpoint="ckpt:20Gi",
        volumes=["data:/data"],
        datasets=["images:/images"],
        env={"A": "1 2"},
        labels={"project": "vision"},
        retries=1,
        restart_limit=0,
    )
    assert run_line(body) == (
        "moor run -n team --name train --gpus 2 --gpu-type a100 --memory 8Gi --time 2h --checkpoint ckpt:20Gi"
        " --retries 1 --restart-limit 0 --volume data:/data --dataset images:/images --env 'A=1 2'"
        " --label project=vision -- python train.py 'two words'"
    )
    assert run_line(NewJob(command=["true"], namespace="team")) == "moor run -n team -- true"


def test_a_map_is_the_command_that_makes_it():
    workers = MapWorkers(command=["python", "a.py", "{item}"], parallelism=4, memory="1Gi")
    body = NewMap(name="squares", request="r", policy=MapPolicy(retries=1, time_seconds=90), workers=workers)
    assert map_line("team", body, workers, ["--range", "0:9"]) == (
        "moor map create squares -n team --range 0:9 --parallelism 4 --memory 1Gi --retries 1 --time 90s"
        " -- python a.py '{item}'"
    )


def test_a_dataset_is_the_command_that_fills_it():
    spec = {"source": {"url": "s3://b/x", "secret": "keys", "unpack": True}, "size": "10Gi", "readers": ["vision"]}
    line = dataset_line(NewDataset(name="images", namespace="team", spec=spec))
    assert shlex.split(line) == [
        "moor", "dataset", "create", "images", "-n", "team", "--source", "s3://b/x", "--size", "10Gi",
        "--secret", "keys", "--unpack", "--reader", "vision",
    ]  # fmt: skip
