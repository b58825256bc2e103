"""What `moor status` says, for a cluster that runs and for one that does not."""

from __future__ import annotations

import os

from moorage.cli.status import disk_facts, status_text

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
node        node-1: Ready, 2 GPUs a100, 1 pods
pods        1 Running
disk        3.0 MiB in the data folder, 5.0 GiB free
stop        moor down"""
    )


def test_a_stopped_cluster_shows_what_is_kept_and_how_to_remove_it():
    facts = {"data": "/d", "running": False, "version": "1.2.3", "disk": DISK}
    assert (
        status_text(facts, option=" --data /d")
        == """\
not running (/d); `moor up --data /d` starts it
disk        3.0 MiB in the data folder, 5.0 GiB free; remove it: moor down --erase --data /d"""
    )


def test_a_folder_that_was_never_used_has_no_line_about_the_disk():
    facts = {"data": "/d", "running": False, "version": "1.2.3"}
    assert status_text(facts, option="") == "not running (/d); `moor up` starts it"


def test_the_disk_that_files_take_is_counted_in_all_folders(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(os.urandom(100_000))
    (tmp_path / "gone").symlink_to("nowhere")
    assert 100_000 <= disk_facts(tmp_path)["usedBytes"] < 200_000
