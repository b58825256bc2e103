"""The local cluster's data folder: its path and its files, and whether it can be used.

Standard library only, so that `moor up` does not spend its first second on imports.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import socket
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from moorage.cli.localports import port_holder
from moorage.cli.supervisor import CHILDREN
from moorage.client.datafolder import is_running
from moorage.client.files import write_private
from moorage_kube.databasefile import MANIFEST
from moorage_kube.errors import AlreadyRunning, DataFolderError, PortTaken, UsageError

LAYOUT = 1  # written to VERSION; raised when an older program could not read the folder
MIN_FREE_BYTES = 64 * 2**20  # below this nothing is started: SQLite, logs and checkpoints would fail half-way
SERVICE_USERS = {
    "operator": "system:serviceaccount:moorage-system:moorage-operator",
    "webhook": "system:serviceaccount:moorage-system:moorage-webhook",
    "extender": "system:serviceaccount:moorage-system:moorage-extender",
    "server": "system:serviceaccount:moorage-system:moorage-server",
}
MODULES = CHILDREN | {"supervisor": "moorage.cli.supervisor"}
PARTS = ("log", "run", "pki", "nodes", "volumes")
IMAGES = "images.json"  # which images run as processes of this machine; may be there before the first start
DEFAULT_PORTS = {"api": 6443, "server": 8080, "ingress": 8081, "extender": 0, "webhook": 0, "operator": 0}
"""0: any free one. What was used once is remembered."""
OPTIONS = {"server": "--port", "api": "--api-port", "ingress": "--ingress-port"}


_DAMAGED_HINT = "`moor restore` lists the copies of it, and restores one"


class Config(Struct):
    """The contents of config.json. `nodes` are dicts with the fields of the local cluster's NodeSpec."""

    nodes: list[dict[str, Any]] = field(default_factory=list)
    ports: dict[str, int] = field(default_factory=dict)
    user: str = ""
    extender: bool = True


def _config_fault(config: Config) -> str | None:
    """Return the fault of a configuration that a start of the cluster has written; None if it is complete."""
    if not (
        isinstance(config.nodes, list) and config.nodes and all(isinstance(node, dict) for node in config.nodes)
    ):
        return "`nodes` is not a list of nodes"
    if not (isinstance(config.ports, dict) and all(type(port) is int for port in config.ports.values())):
        return "`ports` is not a table of numbers"
    if missing := DEFAULT_PORTS.keys() - config.ports.keys():
        return f"`ports` lacks {', '.join(sorted(missing))}"
    numbers = ("gpus", "cpu_milli", "memory_bytes", "gpu_memory_bytes")
    for node in config.nodes:
        if type(node.get("name", "")) is not str or any(type(node.get(name, 0)) is not int for name in numbers):
            return f"a node has a name or an amount of another type: {node}"
    if not isinstance(config.user, str) or not isinstance(config.extender, bool):
        return "`user` or `extender` is of another type"
    return None


def unusable(error: OSError) -> DataFolderError:
    """Return the error for a part of the folder that cannot be read or written."""
    if isinstance(error, FileExistsError | IsADirectoryError | NotADirectoryError):
        kind = "folder" if isinstance(error, IsADirectoryError) else "file"
        return DataFolderError(
            f"cannot use {error.filename}: a {kind} is in its place", hint="move it elsewhere, and start again"
        )
    hint = "free some space, or give another folder with --data"
    if isinstance(error, PermissionError):
        hint = f"give your user the right to it: chown or chmod {error.filename}"
    return DataFolderError(f"cannot use {error.filename}: {error.strerror or error}", hint=hint)


class DataFolder:
    """The paths and small files of a data folder. Nothing is created before `prepare`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kubeconfig = path / "kubeconfig"
        self.log = path / "log"
        self.run = path / "run"

    def exists(self) -> bool:
        return (self.path / "VERSION").exists()

    def check_version(self) -> None:
        """Raise DataFolderError when the folder has another layout, or is not a data folder of Moorage."""
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise DataFolderError(
                f"{self.path} is not a folder", hint="give another folder with --data or $MOORAGE_DATA"
            )
        version = self.path / "VERSION"
        if not version.exists():
            strangers = [entry for entry in self.path.iterdir() if entry.name != IMAGES]
            if strangers and not self._looks_ours():
                raise DataFolderError(
                    f"{self.path} is not empty and is not a data folder of Moorage",
                    hint="give an empty or new folder with --data or $MOORAGE_DATA",
                )
            return
        if version.is_dir():
            return  # `moor up` names it, and `moor restore` replaces it
        try:
            text = version.read_bytes().strip().decode("utf-8", "replace")
        except OSError as error:
            raise unusable(error) from error
        if text.isdecimal() and text != str(LAYOUT):
            raise DataFolderError(
                f"{self.path} has layout {text}; this moor reads layout {LAYOUT}",
                hint="use the version of moor that created it, or start with a new folder (--data FOLDER)",
            )
        if text != str(LAYOUT) and not self._looks_ours():
            raise DataFolderError(
                f"{version} does not contain a number: this is not a data folder of Moorage",
                hint="give an empty or new folder with --data or $MOORAGE_DATA",
            )

    def _looks_ours(self) -> bool:
        """Whether a folder with a damaged or missing VERSION is ours: `moor up` then names the file."""
        return any((self.path / name).exists() for name in ("cluster.db", MANIFEST, "copies", "run/lock"))

    def prepare(self) -> None:
        """Create the folder and its subfolders.

        Raises DataFolderError if it is not writable or the disk is full.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._shut()
            free = shutil.disk_usage(self.path).free
            if free < MIN_FREE_BYTES:
                raise DataFolderError(
                    f"only {free // 2**20} MiB are free where {self.path} is; at least"
                    f" {MIN_FREE_BYTES // 2**20} MiB are needed",
                    hint="free some space, or give a folder on another disk with --data",
                )
            for part in PARTS:
                (self.path / part).mkdir(exist_ok=True, mode=0o700)
            if not (self.path / "VERSION").exists():
                self.write("VERSION", f"{LAYOUT}\n")
        except OSError as error:
            raise DataFolderError(
                f"cannot write to {self.path}: {error.strerror or error}",
                hint="free some space, or give another folder with --data",
            ) from error

    def _shut(self) -> None:
        """Remove other users' access to tokens, keys, databases and logs."""
        folders = [self.path, *(self.path / part for part in PARTS), *self.path.glob("nodes/*")]
        for folder in folders:
            if folder.is_dir() and not folder.is_symlink():
                _take_away(folder, folder.lstat().st_mode & 0o700)
        for folder in (self.path, self.log, self.run, self.path / "pki"):
            for file in folder.iterdir() if folder.is_dir() else ():
                if file.is_file() and not file.is_symlink():
                    _take_away(file, file.lstat().st_mode & 0o700)

    def lock(self) -> int:
        """Lock the folder for one supervisor, until the returned descriptor is closed.

        Raises AlreadyRunning.
        """
        import fcntl  # here: clients on Windows have no local cluster, and no fcntl

        fd = os.open(self.run / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            pid = self.pid("supervisor")
            raise AlreadyRunning(
                f"a cluster with the data folder {self.path} is running already"
                + (f" (process {pid})" if pid else ""),
                hint="`moor status` shows it, `moor down` stops it; another folder (--data) makes another cluster",
            ) from None
        return fd

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """Hold the lock of an existing folder. Processes that inherit the descriptor continue to hold it.

        Raises AlreadyRunning, and DataFolderError where the folder is not writable.
        """
        try:
            self.run.mkdir(mode=0o700, exist_ok=True)
            fd = self.lock()
        except OSError as error:
            raise unusable(error) from error
        try:
            yield fd
        finally:
            os.close(fd)

    def is_running(self) -> bool:
        """Whether a supervisor holds the lock."""
        return is_running(self.path)

    def pid(self, name: str) -> int | None:
        """The pid of the running supervisor or one of its children, by name; None if it does not run.

        The pid is read from `run`; if that fails, the process is searched by its command line.
        """
        return self.pids([name]).get(name)

    def pids(self, names: Collection[str]) -> dict[str, int]:
        """The pids of those processes that run, by name.

        /proc is searched only for names without a valid pid file.
        """
        running: dict[str, int] = {}
        for name in names:
            with contextlib.suppress(OSError, ValueError):
                noted = int((self.run / f"{name}.pid").read_text())
                words = self._command(noted)
                if MODULES[name].encode() in words or (name == "supervisor" and b"up" in words):
                    running[name] = noted
        if missing := {MODULES[name].encode(): name for name in names if name not in running}:
            with contextlib.suppress(OSError):
                for pid in filter(str.isdecimal, os.listdir("/proc")):
                    for module in missing.keys() & self._command(int(pid)):
                        running.setdefault(missing[module], int(pid))
        return running

    def _command(self, pid: int) -> list[bytes]:
        """The command line of a process that belongs to this folder or runs in the foreground; empty for others.

        Zombies have an empty command line.
        """
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            return []
        return words if os.fsencode(self.path) in words or b"--foreground" in words else []

    def load_config(self) -> Config | None:
        """Read the saved settings; None if there are none.

        Raises DataFolderError if they are damaged or incomplete.
        """
        path = self.path / "config.json"
        try:
            raw = json.loads(path.read_bytes())
            if not isinstance(raw, dict):
                raise TypeError("it has no table of settings")
            if unknown := raw.keys() - set(Config.__struct_fields__):
                raise TypeError(f"it has no setting {min(unknown)!r}")
            config = Config(**raw)
            fault = _config_fault(config)
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise unusable(error) from error
        except (OSError, ValueError, TypeError, RecursionError) as error:
            fault = str(error)
        if fault:
            raise DataFolderError(f"{path} cannot be read: {fault}", hint=_DAMAGED_HINT)
        return config

    def save_config(self, config: Config) -> None:
        self.write(
            "config.json",
            json.dumps(
                {
                    "nodes": config.nodes,
                    "ports": config.ports,
                    "user": config.user,
                    "extender": config.extender,
                },
                indent=2,
            )
            + "\n",
        )

    def load_tokens(self) -> dict[str, dict[str, Any]] | None:
        """Read the tokens with their user, groups and role; None if there are none.

        Raises DataFolderError if damaged.
        """
        path = self.path / "tokens.json"
        try:
            table = json.loads(path.read_bytes())
            if not isinstance(table, dict):
                raise TypeError("no table of tokens")
            for entry in table.values():
                if not (isinstance(entry["role"], str) and isinstance(entry["user"], str)):
                    raise TypeError("a token without role or user")
                if not isinstance(entry["groups"], list):
                    raise TypeError("a token without groups")
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise unusable(error) from error
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataFolderError(f"{path} cannot be read: {error}", hint=_DAMAGED_HINT) from error
        return table

    def tokens(self, user: str) -> dict[str, str]:
        """Return bearer tokens by role (admin, page and one per service).

        The first call creates and stores them.
        """
        table = self.load_tokens() or {}
        by_role = {entry["role"]: token for token, entry in table.items()}
        wanted: dict[str, dict[str, Any]] = {"admin": {"user": user, "groups": ["system:masters"]}}
        for role, name in SERVICE_USERS.items():
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{name.split(':')[2]}"]
            wanted[role] = {"user": name, "groups": groups}
        wanted["page"] = {"user": "", "groups": []}  # not a login of the API: the web page's own
        wanted["metrics"] = {"user": "", "groups": []}  # nor this: the server reads GPU metrics with it
        changed = False
        for role, entry in wanted.items():
            token = by_role.get(role)
            if token is None:
                token = secrets.token_urlsafe(24)
                by_role[role] = token
            new = entry | {"role": role}
            if table.get(token) != new:
                table[token] = new
                changed = True
        if changed:
            self.write("tokens.json", json.dumps(table, indent=2) + "\n")
        return by_role

    def write_kubeconfig(self, *, port: int, user: str, token: str, ca_pem: bytes) -> None:
        import base64

        ca = base64.b64encode(ca_pem).decode()
        self.write(
            "kubeconfig",
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "moorage-local",
                    "clusters": [
                        {
                            "name": "moorage-local",
                            "cluster": {
                                "server": f"https://127.0.0.1:{port}",
                                "certificate-authority-data": ca,
                            },
                        }
                    ],
                    "users": [{"name": f"{user}@moorage-local", "user": {"token": token}}],
                    "contexts": [
                        {
                            "name": "moorage-local",
                            "context": {
                                "cluster": "moorage-local",
                                "user": f"{user}@moorage-local",
                                "namespace": "default",
                            },
                        }
                    ],
                },
                indent=2,
            )
            + "\n",
        )

    def write(self, name: str, text: str) -> None:
        """Replace one of the folder's small files, readable only by its owner; whole or not at all."""
        write_private(self.path / name, text)


def _take_away(path: Path, mode: int) -> None:
    if path.lstat().st_mode & 0o077:
        path.chmod(mode)


@contextlib.contextmanager
def listening(
    ports: dict[str, int], *, yielding: frozenset[str] = frozenset()
) -> Iterator[dict[str, socket.socket]]:
    """Listening sockets on loopback, by name, closed after the `with` block. Port 0 takes any free port.

    Names in `yielding` take any free port if their port is in use.

    Raises PortTaken that names the port and, if the user can choose it, the option to change it.
    """
    with contextlib.ExitStack() as stack:
        sockets: dict[str, socket.socket] = {}
        for name, port in ports.items():
            if not 0 <= port <= 65535:
                raise UsageError(f"port {port} for {name} is out of range (0 to 65535)")
            listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                _bind(listener, port, yields=name in yielding)
                listener.listen(512)
            except OSError as error:
                option = OPTIONS.get(name)
                raise PortTaken(
                    f"port {port} on 127.0.0.1, wanted for the {name}, cannot be used: {_cause(error, port)}",
                    hint=f"choose another with {option}, or 0 for any free one"
                    if option
                    else "run `moor up` again; it will choose another",
                ) from error
            sockets[name] = listener
        yield sockets


def _bind(listener: socket.socket, port: int, *, yields: bool) -> None:
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        if not yields:
            raise
        listener.bind(("127.0.0.1", 0))


def _cause(error: OSError, port: int) -> str:
    holder = port_holder(port) if error.errno == errno.EADDRINUSE else ""
    return f"{holder} uses it" if holder else str(error.strerror)
