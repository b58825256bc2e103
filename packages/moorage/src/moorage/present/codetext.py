"""The facts about a snapshot of code, for people."""

from __future__ import annotations

from moorage.api.jobs import Code as CodeAnswer
from moorage.decide.runs.code import Code
from moorage.present.sizes import bytes_text
from moorage_kube.quantity import counted


def code_text(code: Code | CodeAnswer) -> str:
    """Such as "3 files, 12.0 KiB, git commit 0123456789ab with changes"."""
    size = f"{counted(code.files, 'file')}, {bytes_text(code.bytes)}"
    if not code.commit:
        return size
    return f"{size}, git commit {code.commit[:12]}" + (" with changes" if code.dirty else "")
