"""Completion in bash, zsh and fish, as pressed: names come from the cluster."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage_testing.cluster import Cluster
from tests.terminals import Terminal

pytestmark = pytest.mark.cluster("scheduler", "controllers", "kubelet")


def shell(name: str) -> str:
    """The shell's program, or a skip with what to install."""
    program = shutil.which(name)
    if program is None:
        pytest.skip(f"{name} is not installed: apt-get install {name}")
    return program


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder whose bin has `moor`."""
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    moor = home / "bin" / "moor"
    moor.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m moorage.cli.main "$@"\n')
    moor.chmod(0o755)
    return home


@pytest.fixture
def environment(cluster: Cluster, home: Path) -> dict[str, str]:
    return cluster.environment() | {
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "MOORAGE_CONFIG": str(home / "config"),
        "TERM": "xterm",
        "MOORAGE_COMPLETION_SECONDS": "60",
    }


@pytest.fixture
def volume(cluster: Cluster, unique: str) -> Iterator[str]:
    name = f"{unique}-completed-by-the-shell"
    cluster.moor("volume", "create", name, "--size", "1Mi")
    yield name
    cluster.moor("volume", "delete", "--yes", name)


@pytest.mark.parametrize(
    ("name", "options", "setup"),
    [
        pytest.param("bash", ["--norc", "--noprofile", "-i"], "", id="bash"),
        pytest.param("zsh", ["-f", "-i"], "autoload -U compinit; compinit -u -D; ", id="zsh"),
    ],
)
def test_a_tab_completes_a_name_of_the_cluster(name, options, setup, volume, environment):
    with Terminal([shell(name), *options], env=environment, columns=120) as terminal:
        terminal.type(f'{setup}eval "$(moor completion {name})"; echo re""ady\n')
        terminal.read_until("ready")
        terminal.type(f"moor volume resize {volume[:5]}\t")
        terminal.read_until(f"resize {volume[:5]}")
        terminal.read_until(volume[5:])


def test_fish_completes_names_of_the_cluster(volume, environment, home):
    program = shell("fish")
    folder = home / ".config" / "fish" / "completions"
    folder.mkdir(parents=True)
    script = subprocess.run(
        ["moor", "completion", "fish"], env=environment, capture_output=True, check=True
    ).stdout
    (folder / "moor.fish").write_bytes(script)
    for typed, want in (("moor volume resize ", volume), ("moor drain node-", "node-1"), ("moor vol rm ", volume)):
        done = subprocess.run(
            [program, "-c", f"complete -C {shlex.quote(typed)}"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert want in [line.split("\t")[0] for line in done.stdout.splitlines()], done
