"""`moor`, whose supervisor starts services that were killed again at once, and by a fork of itself.

    python benchmarks/quick_restarts.py up --foreground --data FOLDER

For `argo_conformance.py --kill`. The usual supervisor waits up to 15 s, and a new process spends most of its start
on imports: of hundreds of kills most would meet no operator at work. All else is as with `moor`.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import signal
import subprocess
import sys
import traceback
from typing import Any

from moorage.cli import services, supervisor
from moorage.cli.main import main

PACKAGES = (
    "moorage.attempts",
    "moorage.controllers",
    "moorage.extender",
    "moorage.notify",
    "moorage.queue",
    "moorage.server",
    "moorage.usage",
    "moorage.webhooks",
    "moorage_kube.remote",
    "moorage_workflows.controllers",
    "moorage_workflows.server",
)
MODULE = "moorage.cli.services"


def import_services() -> None:
    """Import what the services import when they start."""
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


class Forked:
    """A child as `subprocess.Popen` makes it, as far as the supervisor asks."""

    def __init__(self, argv: list[str], output: Any) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _run_services(argv, output)

    def poll(self) -> int | None:
        return self._waited(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        del timeout  # the services end when they are asked to
        return self._waited(0)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def _waited(self, how: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def _run_services(argv: list[str], output: Any) -> None:
    """Be the process of the services; never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if output is not None:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        sys.argv = argv
        services.main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def popen(argv: list[str], **more: Any) -> Any:
    if argv[2] != MODULE:
        return subprocess.Popen(argv, **more)
    return Forked(argv[2:], more.get("stdout"))


class _Subprocess:
    """The module `subprocess`, with another `Popen`."""

    Popen = staticmethod(popen)

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


if __name__ == "__main__":
    import_services()
    supervisor.RESTART_SECONDS = (0.2,)
    supervisor.subprocess = _Subprocess()  # type: ignore[assignment]
    sys.exit(main(sys.argv[1:]))
