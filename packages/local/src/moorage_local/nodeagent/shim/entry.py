"""The ways to start the shim.

Each imports its modules only when it is chosen: an exec probe starts an interpreter every time.
"""

from __future__ import annotations

import os


def main(argv: list[str]) -> int:
    """Launch the shim of the pod folder `argv[1]`; see the package for the exit codes.

    `--serve FD …` waits for folders instead and forks a launcher for each; see `serve`.
    `--try-fence FOLDER` prints whether a folder can be hidden from pods.
    `--enter POD_DIR PID KIND COMMAND…` runs a command next to a container's main process, in its mounts,
    environment and working folder (exec probes). `--exec POD_DIR PID KIND COMMAND…` does so for `kubectl exec`:
    the command ends with its caller, and has its standard input as its terminal where that is one.
    KIND is "fenced" or "privileged", as the container.
    """
    if argv[1] in ("--enter", "--exec"):
        from .exec import enter

        parent = os.getppid() if argv[1] == "--exec" else 0
        return enter(argv[2], int(argv[3]), argv[5:], is_privileged=argv[4] == "privileged", parent=parent)
    if argv[1] == "--try-fence":
        from .fence import try_fence

        return try_fence(argv[2])
    from .launching import launch, serve

    if argv[1] == "--serve":
        return serve(int(argv[2]), argv)
    return launch(argv[1])
