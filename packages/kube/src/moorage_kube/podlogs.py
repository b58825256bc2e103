"""The lines that a kubelet itself writes into the log of a container."""

from __future__ import annotations

import re

_NOTICE = re.compile(
    rb"unable to retrieve container logs for "
    rb"|failed to (?:try resolving symlinks in path|open log file|read log file|tail \d+ lines of log file"
    rb"|seek \d+ in log file|reset seek in log file|watch directory|create fsnotify watcher|get parse function)"
    rb"|rpc error: code = |context cancelled$"
)


def is_kubelets_notice(line: bytes) -> bool:
    """Whether a line of a log, requested with timestamps, is the kubelet's own message that it could read no
    further.

    Usually the container and its log were removed in the meantime. A kubelet that has begun to answer can only
    append its error to the log, without a timestamp. Lines that a program printed have a timestamp. Seen with
    Kubernetes 1.36.2; `GetContainerLogs` in pkg/kubelet/kuberuntime, and `ReadLogs` with its errors in
    cri-client/pkg/logs.
    """
    return _NOTICE.match(line.rstrip()) is not None
