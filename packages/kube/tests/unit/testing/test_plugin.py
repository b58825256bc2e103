"""How the plugin distributes tests over workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TEST = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(4))
def test_a(number):
    with pathlib.Path("{log}").open("a") as log:
        log.write("{name} " + os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


@pytest.mark.processes
def test_a_file_of_unit_tests_runs_in_one_worker(tmp_path: Path) -> None:
    log = tmp_path / "log"
    folder = tmp_path / "tests" / "unit"
    folder.mkdir(parents=True)
    names = [f"test_{number}" for number in range(6)]
    for name in names:
        (folder / f"{name}.py").write_text(TEST.format(name=name, log=log))
    options = ["-p", "moorage_kube.testing.plugin", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/unit"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    lines = log.read_text().splitlines()
    assert len(lines) == 24
    workers = {name: {line.split()[1] for line in lines if line.startswith(f"{name} ")} for name in names}
    assert all(len(each) == 1 for each in workers.values()), workers
