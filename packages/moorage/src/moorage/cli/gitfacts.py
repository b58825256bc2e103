"""The git commit of a folder, and the difference of its files to the commit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from msgspec import Struct

from moorage.decide.runs.code import DIFF_LIMIT_BYTES
from moorage.decide.runs.credentials import credential_in

GIT_SECONDS = 10.0  # a large repository on a slow disk takes some; the run does not wait for longer
CUT = "\n… (the rest is not stored)\n"


class GitFacts(Struct, frozen=True):
    commit: str = ""  # in hex; empty: not in a repository with a commit, or no git
    dirty: bool = False
    diff: str = ""


def read_git(folder: Path) -> GitFacts:
    """Read the commit of a folder. Untracked files make it dirty, and are not in the diff.

    A diff with a credential is left out: all users of the namespace can read it.
    """
    commit = _git(folder, "rev-parse", "HEAD").strip()
    if not commit:
        return GitFacts()
    if not _git(folder, "status", "--porcelain", "--", ".").strip():
        return GitFacts(commit)
    diff = _git(folder, "diff", "--no-color", "--no-ext-diff", "--no-textconv", "HEAD", "--", ".").encode()
    if credential_in(diff):
        diff = b""
    if len(diff) > DIFF_LIMIT_BYTES:
        diff = diff[: DIFF_LIMIT_BYTES - len(CUT.encode())] + CUT.encode()
    return GitFacts(commit, True, diff.decode(errors="ignore"))


def _git(folder: Path, *words: str) -> str:
    """The output of git; empty if it fails."""
    try:
        done = subprocess.run(
            ["git", *words],
            cwd=folder,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
