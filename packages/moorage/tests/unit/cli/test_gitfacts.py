"""The git commit of a folder."""

from __future__ import annotations

import subprocess

from moorage.cli.gitfacts import GitFacts, read_git
from moorage.decide.runs.code import DIFF_LIMIT_BYTES


def test_the_commit_and_the_changes_of_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    assert read_git(tmp_path) == GitFacts(), "no repository"
    train = tmp_path / "train.py"
    train.write_text("print(1)\n")
    for words in ("init -q", "add .", "-c user.name=ada -c user.email=a@b commit -q -m one"):
        subprocess.run(["git", *words.split()], check=True, cwd=tmp_path)
    clean = read_git(tmp_path)
    assert (len(clean.commit), clean.dirty, clean.diff) == (40, False, "")
    train.write_text("print(2)\n")
    changed = read_git(tmp_path)
    assert (changed.commit, changed.dirty) == (clean.commit, True)
    assert "+print(2)" in changed.diff
    train.write_text("# long\n" * DIFF_LIMIT_BYTES)
    assert len(read_git(tmp_path).diff.encode()) <= DIFF_LIMIT_BYTES
    train.write_text("TOKEN = 'hf_" + "x1" * 17 + "'")
    assert read_git(tmp_path) == GitFacts(clean.commit, True, "")
