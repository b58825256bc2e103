"""The servers that you are logged in to: one file that only you can read."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from moorage.client.files import write_private
from moorage.settings import CONFIG
from moorage_kube.errors import NotReady
from moorage_kube.moments import parse_rfc3339

if TYPE_CHECKING:
    from moorage_kube.remote.config import Connection as KubeConnection

EARLY = timedelta(seconds=90)  # a token is renewed this long before its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A saved login: the token of its session, the last token for the cluster, and the address of the cluster.

    `cluster`: the fields of `api.logins.ClusterAddress`; empty if the server does not know it. `namespace`: the
    namespace chosen at login; "" if none was chosen.
    """

    url: str
    token: str = field(default="", repr=False)
    name: str = ""
    ca: str = ""
    kube_token: str = field(default="", repr=False)
    kube_expires: str = ""
    cluster: Mapping[str, Any] = field(default_factory=dict)
    namespace: str = ""

    def with_kube(self, token: str, expires: str) -> Saved:
        return replace(self, kube_token=token, kube_expires=expires)

    def has_fresh_token(self, now: datetime) -> bool:
        """Whether the token for the cluster is valid for long enough to use it."""
        return bool(self.kube_token) and now < parse_rfc3339(self.kube_expires) - EARLY


class Known(msgspec.Struct):
    """The saved logins by address, and the address of the current login."""

    logins: dict[str, Saved] = msgspec.field(default_factory=dict)
    current: str = ""

    @classmethod
    def read(cls) -> Self:
        path = logins_file()
        try:
            raw = json.loads(path.read_text())
            logins = {url: Saved(**fields) for url, fields in raw["logins"].items()}
            return cls(logins, str(raw.get("current") or ""))
        except FileNotFoundError:
            return cls()
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotReady(f"{path} cannot be read: {error}", hint="remove it and log in again") from error

    def find(self, url: str | None) -> Saved:
        """Return the login of an address, or the current one. Raises NotReady if there is none."""
        wanted = (url or self.current).rstrip("/")
        if (login := self.logins.get(wanted)) is None:
            where = f" to {wanted}" if wanted else ""
            raise NotReady(f"you are not logged in{where}", hint=f"log in: moor login {wanted or 'https://HOST'}")
        return login

    def put(self, saved: Saved) -> None:
        self.logins[saved.url] = saved
        self.current = saved.url

    def remove(self, url: str) -> None:
        self.logins.pop(url, None)
        if self.current == url:
            self.current = next(iter(self.logins), "")

    def person_of(self, username: str) -> str:
        """Return the person with a login here that the API server knows by that name; empty if there is none."""
        from moorage.model.people import account_user

        names = {login.name for login in self.logins.values() if login.name}
        return next((name for name in sorted(names) if account_user(name) == username), "")


def logins_file() -> Path:
    """Return $MOORAGE_CONFIG/logins.json, else moorage/logins.json under $XDG_CONFIG_HOME or ~/.config."""
    if chosen := CONFIG.read(os.environ):
        return chosen / "logins.json"
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "moorage" / "logins.json"


@contextlib.contextmanager
def known_logins() -> Iterator[Known]:
    """Open the saved logins for changes. Locks out other processes; saves at the end, unless the block raises."""
    path = logins_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    held = os.open(path.parent / ".logins.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(held, "w") as lock:
        with contextlib.suppress(ImportError):  # Windows has no fcntl: there, the last of two writers wins
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        known = Known.read()
        yield known
        table = {url: asdict(login) for url, login in known.logins.items()}
        write_private(path, json.dumps({"current": known.current, "logins": table}, indent=2) + "\n")


def issuer_of(connection: KubeConnection) -> str:
    """Return the server of the kubeconfig's plugin `moor token --server URL`.

    "" if it has another plugin or none.
    """
    args = connection.exec_plugin.args if connection.exec_plugin is not None else ()
    if "token" in args and "--server" in args[:-1]:
        return args[args.index("--server") + 1].rstrip("/")
    return ""
