"""Output of `moor status`, for a running and for a stopped cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from moorage.cli.status import cluster_lines, disk_facts, login_lines, status_text
from moorage.client.datafolder import way_to

STOPPED = {"data": "/d", "running": False, "version": "1.2.3"}
DISK = {"usedBytes": 3 * 2**20, "freeBytes": 5 * 2**30}
RUNNING = {
    "data": "/d",
    "running": True,
    "version": "1.2.3",
    "disk": DISK,
    "page": "http://127.0.0.1:8080/?token=t",
    "ingress": "http://127.0.0.1:8081",
    "kubeconfig": "/d/kubeconfig",
    "logs": "/d/log",
    "processes": {"supervisor": 1, "services": None},
}


def test_a_running_cluster_shows_its_addresses_its_nodes_and_how_to_stop_it():
    nodes = [{"name": "node-1", "state": "Ready", "gpus": 2, "gpuType": "a100", "pods": 1}]
    shown = status_text(RUNNING | {"nodes": nodes, "pods": {"Running": 1}}, option="")
    assert (
        shown
        == """\
running     /d, version 1.2.3
web page    http://127.0.0.1:8080/?token=t
pages       /jobs /maps /workspaces /volumes /datasets
ingress     http://127.0.0.1:8081
kubeconfig  /d/kubeconfig
processes   supervisor 1, services -
logs        /d/log
node        node-1: Ready, 2 GPUs a100, 1 pod
pods        1 Running
disk        3.0 MiB in the data folder, 5.0 GiB free
stop        moor down"""
    )


def test_a_stopped_cluster_shows_its_disk_use_and_the_command_to_remove_it():
    facts = STOPPED | {"disk": DISK}
    assert (
        status_text(facts, option=" --data /d")
        == """\
not running (/d); `moor up --data /d` starts it
disk        3.0 MiB in the data folder, 5.0 GiB free; remove it: moor down --erase --data /d"""
    )


def test_a_folder_that_was_never_used_has_no_line_about_the_disk():
    assert status_text(STOPPED, option="") == "not running (/d); `moor up` starts it"


LOGIN = {
    "server": "https://moorage.example.com",
    "user": "ada",
    "namespace": "vision",
    "teams": [{"name": "vision", "role": "member", "namespace": "vision"}],
    "runs": {"Waiting": 1, "Running": 2},
}


def test_a_login_shows_its_server_user_team_and_runs():
    facts = STOPPED | {"login": LOGIN}
    assert (
        status_text(facts, option="")
        == """\
logged in   https://moorage.example.com as ada
team        vision: member, namespace vision
runs        2 Running, 1 Waiting in namespace vision; list them: moor jobs
local       no cluster runs in /d; `moor up` starts one"""
    )
    assert status_text(RUNNING | {"login": LOGIN}, option="").splitlines()[-4:-2] == [
        "stop        moor down",
        "logged in   https://moorage.example.com as ada",
    ]


def test_a_login_that_has_ended_or_has_no_team_comes_with_a_hint():
    ended = LOGIN | {"error": "the session has ended", "hint": "log in again: moor login https://h"}
    assert login_lines(ended)[1:] == ["problem     the session has ended; log in again: moor login https://h"]
    assert login_lines(LOGIN | {"teams": [], "namespace": "", "runs": {}})[1:] == [
        "team        none; ask an admin of a team: moor tenant add TEAM --user ada"
    ]


def test_clusters_in_other_folders_are_named_with_the_way_to_them():
    facts = STOPPED | {"others": ["/tmp/a b"]}
    assert status_text(facts, option="").splitlines() == [
        "not running (/d); `moor up` starts it",
        "also        a cluster runs in /tmp/a b: export MOORAGE_DATA='/tmp/a b'",
    ]


@pytest.mark.parametrize(
    ("folders", "way"),
    [
        ([], ""),
        (["/tmp/try"], "a local cluster runs in /tmp/try: export MOORAGE_DATA=/tmp/try"),
        (
            ["/tmp/a", "/tmp/b"],
            "local clusters run in /tmp/a, /tmp/b: choose one of them, such as: export MOORAGE_DATA=/tmp/a",
        ),
    ],
)
def test_the_way_to_clusters_that_run_is_one_line(folders, way):
    assert way_to([Path(folder) for folder in folders]) == way


def test_the_disk_that_files_take_is_counted_in_all_folders(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(os.urandom(100_000))
    (tmp_path / "gone").symlink_to("nowhere")
    assert 100_000 <= disk_facts(tmp_path)["usedBytes"] < 200_000


CLUSTER = {"kubernetes": "https://k.example:6443", "kubeconfig": "/home/ada/.kube/config", "context": "prod"}


def test_the_cluster_of_the_kubeconfig_is_shown_with_the_way_to_its_server():
    way = "a port-forward through the Kubernetes API, to pod p/s"
    facts = STOPPED | {"cluster": CLUSTER | {"server": "http://127.0.0.1:4711", "reachedBy": way}}
    assert status_text(facts, option="").splitlines() == [
        "cluster     https://k.example:6443 by /home/ada/.kube/config, context prod",
        f"server      http://127.0.0.1:4711, by {way}",
        "local       no cluster runs in /d; `moor up` starts one",
    ]
    failed = {"error": "it is out of reach", "hint": "ask an administrator"}
    assert cluster_lines(CLUSTER | failed)[1] == "problem     it is out of reach; ask an administrator"
    assert cluster_lines({}) == []
