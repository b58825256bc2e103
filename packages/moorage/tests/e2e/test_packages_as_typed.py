"""Blocks of how-tos with a language, as a member types them on a local cluster."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster
from moorage_testing.docblocks import blocks_of
from tests.e2e.conftest import PASSWORD, is_ready, log_in

ROOT = Path(__file__).parents[4]
PACKAGES = ROOT / "docs/howto/bring-your-packages.md"
SWEEP = ROOT / "docs/howto/map-many-items.md"
WHEEL = "greeting-1.0-py3-none-any.whl"


@pytest.fixture
def member(cluster: Cluster, unique: str) -> Iterator[str]:
    name = f"ada-{unique}"
    cluster.moor("user", "create", name, "--password-stdin", stdin=PASSWORD + "\n")
    cluster.moor("tenant", "create", unique, "--member", name)
    wait_until("the rights of the member", lambda: is_ready(cluster, unique))
    yield name
    cluster.moor("tenant", "delete", unique, check=False)
    cluster.moor("user", "delete", name, check=False)


def write_project(folder: Path) -> None:
    """A program, and requirements that need no network: a wheel in the folder."""
    folder.mkdir()
    (folder / "train.py").write_text("import greeting, sys; print(greeting.TEXT, sys.prefix)")
    (folder / "requirements.txt").write_text(f"./{WHEEL}\n")
    about = "greeting-1.0.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("greeting.py", "TEXT = 'hello from'")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


def test_packages_come_from_an_environment_a_volume_or_the_start_of_a_run(
    typed, type_argv, server, home, member, unique
):
    """Blocks with a language are typed, without images, which a local cluster does not have.

    The others need a registry, Docker or uv.
    """
    log_in(typed, server, member)
    write_project(home / "project")
    printed = []
    for block in blocks_of(PACKAGES, ROOT):
        if block.language != "shell":
            continue
        text = re.sub(r" --image \S+", "", block.text)
        done = type_argv("bash", "-euc", f"cd ~/project\n{text}")
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        printed += re.findall(r"hello from (\S+)", done.stdout)
    own = str(home / "envs/train")
    assert printed == [own, own, "/envs/train", "/tmp/env"]
    assert type_argv(str(home / ".local/bin/moor"), "--version").returncode == 0


def test_a_file_of_settings_becomes_a_sorted_table(typed, type_argv, server, home, member):
    log_in(typed, server, member)
    printed = []
    for block in blocks_of(SWEEP, ROOT):
        if block.place is not None:
            block.apply(home)
        elif block.language == "shell":
            done = type_argv("bash", "-euc", block.text)
            assert done.returncode == 0, f"{block.text}\n{done.stdout}{done.stderr}"
            printed += [line.split(",")[:3] for line in done.stdout.splitlines() if "," in line]
    assert printed == [["item", "lr", "batch"], ["2", "0.01", "64"], ["1", "0.01", "32"], ["0", "0.1", "32"]]
