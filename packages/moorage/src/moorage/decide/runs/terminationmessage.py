"""The termination message of a run's container: our runner's report on memory, and the program's own message.

A kubelet puts the contents of the file `terminationMessagePath` into the status of a container that has ended.
https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
"""

from __future__ import annotations

import re

_PEAK = re.compile(r"^moorage: peak-memory-bytes=(\d{1,18})\n?", re.MULTILINE)


def split_termination_message(text: str) -> tuple[int | None, str]:
    """(peak memory in bytes, rest of the message). The peak is None if our runner did not report it."""
    matches = list(_PEAK.finditer(text))
    if not matches:
        return None, text
    return int(matches[-1][1]), _PEAK.sub("", text).strip()
