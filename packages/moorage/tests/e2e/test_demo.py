"""`moor demo` as `make demo` types it: interrupted, whole, and the commands that it tells to try."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from moorage_kube.testing.examples import examples
from moorage_testing.docblocks import blocks_of

ROOT = Path(__file__).parents[4]
TUTORIAL = ROOT / "docs/tutorial/first-training.md"
LEFT_BY_CTRL_C = re.compile(r"^(moor (?:logs -f|map status --watch) .+)$", re.MULTILINE)
MOOR = Path(sys.executable).with_name("moor")


def processes_of(folder: Path) -> list[str]:
    """Command lines of the processes that name the folder."""
    listed = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if any(str(folder).encode() in word for word in words):
            listed.append(b" ".join(words).decode())
    return listed


def interrupt_a_demo(folder: Path, env: dict[str, str]) -> str:
    """Press Ctrl-C when the first run is submitted; what was printed."""
    with subprocess.Popen(
        [MOOR, "demo", "--folder", str(folder)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            printed.append(line)
            if "submitted; follow it" in line:
                os.killpg(process.pid, signal.SIGINT)
                break
        printed += process.stdout.readlines()
    assert process.returncode == 130, "".join(printed)
    return "".join(printed)


@pytest.mark.xdist_group("demo")
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not MOOR.exists(), reason="moor is not installed beside this Python; run `make setup`")
def test_a_demo_starts_after_an_interrupted_one_and_each_command_to_try_works(tmp_path):
    folder = tmp_path / "demo"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MOORAGE_", "KUBECONFIG"))}
    env |= {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "BROWSER": str(browser),
        "MOORAGE_SERVER": "http://127.0.0.1:1",
    }
    try:
        assert "stopped; start again: moor demo" in interrupt_a_demo(folder, env)
        assert processes_of(folder) == []

        for _ in range(3):
            done = subprocess.run(
                ["make", "-s", "-o", "setup", "demo", f"DEMO={folder}"],
                cwd=ROOT,
                env=env,
                capture_output=True,
                text=True,
                check=False,
            )
            if "This machine is busy" not in done.stdout:  # or it left out what was not ready within three minutes
                break
        assert done.returncode == 0, done.stdout + done.stderr
        noted = [line for line in done.stderr.splitlines() if "still starting" not in line]  # on a busy machine
        assert noted == ["removing the files of the previous demo"]
        assert "resumed from the checkpoint after epoch 15" in done.stdout
        assert re.search(r"items +200: 200 done, 0 failed", done.stdout)
        assert "50 pictures in /exam, a network trained for 30 epochs" in done.stdout
        assert re.search(r"gallery +gallery +Running", done.stdout)
        assert re.search(r"^  http://127\.0\.0\.1:\d+/\?token=\S+$", done.stdout, re.MULTILINE)

        typed = [line.strip() for line in done.stdout.partition("Try next, in this terminal:\n")[2].splitlines()]
        env.pop("MOORAGE_SERVER")
        tried = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(typed)],
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert tried.returncode == 0, tried.stdout + tried.stderr
        assert (tmp_path / "opened").read_text().startswith("http://gallery--default.workspace.localhost:")
        assert not folder.exists()
        assert processes_of(folder) == []
    finally:
        down = [MOOR, "demo", "--down", "--folder", str(folder)]
        subprocess.run(down, env=env, capture_output=True, check=False)


@pytest.mark.xdist_group("demo")
@pytest.mark.timeout(1500)
@pytest.mark.skipif(not MOOR.exists(), reason="moor is not installed beside this Python; run `make setup`")
@pytest.mark.skipif(examples(True, full=False), reason="takes minutes: `make test-all` runs it")
def test_the_tutorial_of_the_first_training_works_as_written(tmp_path):
    """The blocks are typed into one shell, with another folder for the demo; Ctrl-C comes after 20 seconds."""
    folder = tmp_path / "demo"
    env = {key: value for key, value in os.environ.items() if not key.startswith(("MOORAGE_", "KUBECONFIG"))}
    env |= {"PATH": f"{MOOR.parent}:/usr/local/bin:/usr/bin:/bin", "BROWSER": "true"}
    text = "".join(block.text for block in blocks_of(TUTORIAL, ROOT))
    text = text.replace("pip install moorage\n", "").replace("~/.local/share/moorage-demo", str(folder))
    text = re.sub(r"^moor demo", f"moor demo --folder {folder}", text, flags=re.MULTILINE)
    text = LEFT_BY_CTRL_C.sub(r"timeout -s INT 20 \1 || test $? -eq 124", text)
    try:
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", text], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.search(r"resumed from the checkpoint after epoch \d+", done.stdout)
        assert re.search(r"run default/wide waits: needs 2 GPUs", done.stdout)
        assert not folder.exists()
    finally:
        down = [MOOR, "demo", "--down", "--folder", str(folder)]
        subprocess.run(down, env=env, capture_output=True, check=False)
