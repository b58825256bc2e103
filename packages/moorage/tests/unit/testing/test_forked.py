"""Commands in forked processes end as those of a fresh interpreter do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from moorage_testing.forked import ForkServer

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def server():
    forking = ForkServer()
    yield forking
    forking.close()


def test_a_forked_command_prints_and_ends_as_one_of_a_fresh_interpreter_does(server, tmp_path):
    env = os.environ | {"MOORAGE_DATA": str(tmp_path / "none"), "NO_COLOR": "1", "HOME": str(tmp_path)}
    env |= {"KUBECONFIG": str(tmp_path / "none")}
    # what looks for a cluster names those that other tests run just then
    for words in (
        ["--version"],
        ["nonsense"],
        ["run"],
        ["workflow", "lint", "missing"],
        ["manifests", "--write", "made"],
    ):
        folders = (tmp_path / "fresh", tmp_path / "forked")
        for folder in folders:
            folder.mkdir(exist_ok=True)
        fresh = subprocess.run(
            [sys.executable, "-m", "moorage.cli.main", *words],
            env=env,
            cwd=folders[0],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        forked = server.run(words, env=env, cwd=folders[1], timeout=120)
        assert (forked.returncode, forked.stdout, forked.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)
    made = [sorted(path.relative_to(folder) for path in folder.rglob("*")) for folder in folders]
    assert made[0] == made[1] != []


def test_what_every_request_needs_is_imported_before_commands_are_forked(server):
    assert server.run(["--version"], env=os.environ, timeout=120).returncode == 0
    assert b"/aiohttp/_http_parser" in Path(f"/proc/{server.pid}/maps").read_bytes()


def test_a_command_reads_what_it_is_given_and_has_an_environment_of_its_own(server, tmp_path):
    text = "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {name: w}\n"
    linted = server.run(["workflow", "lint", "-"], env=os.environ, stdin=text, timeout=120)
    assert linted.returncode != 0
    assert "spec" in linted.stdout + linted.stderr
    completed = {"_MOOR_COMPLETE": "bash_complete", "COMP_WORDS": "moor j", "COMP_CWORD": "1"}
    assert server.run([], env=os.environ | completed, timeout=120).stdout == "plain,jobs\n"
    assert server.run(["--version"], env=os.environ, timeout=120).stdout.startswith("moor ")


def test_commands_run_beside_each_other(server):
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: server.run(["--help"], env=os.environ, timeout=120), range(24)))
    assert {(each.returncode, each.stdout) for each in done} == {(0, done[0].stdout)}


def test_a_command_ends_though_one_that_began_later_goes_on(server):
    with ThreadPoolExecutor(1) as pool, socket.create_server(("127.0.0.1", 0)) as silent:
        env = os.environ | {"MOORAGE_SERVER": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        waiting = pool.submit(server.run, ["login", env["MOORAGE_SERVER"]], env=env, timeout=1)
        assert server.run(["--help"], env=os.environ, timeout=120).returncode == 0
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.result()


def test_a_command_that_takes_too_long_is_killed(server):
    with pytest.raises(subprocess.TimeoutExpired):
        server.run(["jobs"], env=os.environ, timeout=0)
    assert server.run(["--version"], env=os.environ, timeout=120).returncode == 0
