"""What a kubelet writes into the log of a container by itself."""

from __future__ import annotations

_GONE = b"unable to retrieve container logs for "


def is_kubelets_notice(line: bytes) -> bool:
    """Whether a line of a log that was asked for with times is the kubelet's own: the container was removed.

    A kubelet that has begun to answer can only append its error to the log, without a time. Lines that a program
    printed have one. Seen with Kubernetes 1.36.2; `GetContainerLogs` in pkg/kubelet/kuberuntime.
    """
    return line.startswith(_GONE)
