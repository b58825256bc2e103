"""Sessions, one-time codes, shared values and the audit log in SQL: `people.db`, in the folder of `usage.db`, or
PostgreSQL.

Only the SHA-256 of a session's token is stored. A provider's refresh token is stored sealed (Fernet: AES-128-CBC
with HMAC-SHA256); its keys are in the Secret KEYS_SECRET of the people's namespace, so a copy of the database
alone opens nothing. The file is readable by its owner only.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from moorage.model.people import PEOPLE_NAMESPACE
from moorage.server.identity.shared import SharedValues
from moorage.sql.database import Database, Row
from moorage.sql.migrations import Schema
from moorage.sql.opening import open_database
from moorage.sql.thread import StoreThread
from moorage.sql.timestamps import from_microseconds, to_microseconds
from moorage_kube.api import Api
from moorage_kube.changes import change_as_read
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import AlreadyExists, MoorageError, NotFound
from moorage_kube.resources import SECRETS, Obj

TOKEN_PREFIX = "mrs_"
TOKEN_BYTES = 32
LIFETIME = timedelta(days=30)  # of a session, however busy
IDLE = timedelta(days=7)  # without a request
TOUCH = timedelta(minutes=1)  # how exactly it is known when a session was last used
PLACES_KEPT = timedelta(days=90)  # an address from which a person logged in is known for
KEYS_SECRET = "moorage-session-keys"
KEYS_KEPT = 2  # the newest seals, both open
STRANGER_SECONDS = 5.0  # until the keys are read again for a cookie that none of them opens
SCHEMA = Schema("moorage.server.identity", "people.")
AUDIT_PAGE = 500

T = TypeVar("T")
_SESSION = (
    "id, login, person, source, subject, client, address, created_at, expires_at, used_at, checked_at,"
    " tokens_until, refresh"
)


class Session(Struct, frozen=True, kw_only=True):
    """One login of one person on one device."""

    id: str
    login: str  # which login it comes from; several sessions may share one, and its refresh token
    person: str
    source: str  # OIDC or LOCAL
    subject: str = ""  # the provider's id of the person
    client: str = ""  # the client, for people: "browser", "moor on HOST"
    address: str = ""
    created: datetime
    expires: datetime
    used: datetime
    checked: datetime  # when the provider last said yes
    tokens_until: datetime  # when the last token for the cluster that it was given ends
    refresh: bytes = b""  # the provider's refresh token, sealed

    def is_over(self, now: datetime) -> bool:
        return now >= self.expires or now >= self.used + IDLE


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An action with its user, time, address and outcome."""

    at: datetime
    person: str
    method: str
    path: str
    what: str = ""
    address: str = ""
    status: int = 0
    number: int = 0
    client: str = ""  # the program, as it names itself; empty: not known


def new_token() -> str:
    return TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class SessionStore:
    """The sessions in the database. Methods block, and one thread at a time may call them.

    They raise StorageError.
    """

    def __init__(self, database: Database) -> None:
        self._db = database
        self.shared = SharedValues(database)

    def close(self) -> None:
        self._db.close()

    def add(self, token: str, session: Session) -> None:
        self._db.run(
            f"INSERT INTO login_sessions (token_hash, {_SESSION}) VALUES ({', '.join('?' * 14)})",
            digest(token),
            session.id,
            session.login,
            session.person,
            session.source,
            session.subject,
            session.client,
            session.address,
            *(
                to_microseconds(moment)
                for moment in (session.created, session.expires, session.used, session.checked)
            ),
            to_microseconds(session.tokens_until),
            session.refresh or None,
        )

    def find(self, token: str) -> Session | None:
        rows = self._db.rows(f"SELECT {_SESSION} FROM login_sessions WHERE token_hash = ?", digest(token))
        return _session(rows[0]) if rows else None

    def get(self, session: str) -> Session | None:
        rows = self._db.rows(f"SELECT {_SESSION} FROM login_sessions WHERE id = ?", session)
        return _session(rows[0]) if rows else None

    def of(self, person: str) -> list[Session]:
        return [
            _session(row)
            for row in self._db.rows(
                f"SELECT {_SESSION} FROM login_sessions WHERE person = ? ORDER BY created_at", person
            )
        ]

    def all(self) -> list[Session]:
        return [_session(row) for row in self._db.rows(f"SELECT {_SESSION} FROM login_sessions ORDER BY id")]

    def touch(self, session: str, used: datetime) -> None:
        self._db.run("UPDATE login_sessions SET used_at = ? WHERE id = ?", to_microseconds(used), session)

    def gave_token(self, session: str, until: datetime) -> bool:
        """Record the end of a cluster token that is to be issued; return False if the session has ended."""
        done = self._db.run(
            "UPDATE login_sessions SET tokens_until = CASE WHEN tokens_until > ? THEN tokens_until ELSE ? END"
            " WHERE id = ?",
            to_microseconds(until),
            to_microseconds(until),
            session,
        )
        return done > 0

    def checked(self, login: str, at: datetime, refresh: bytes) -> None:
        """Record that the provider confirmed a login: all its sessions get the new refresh token."""
        self._db.run(
            "UPDATE login_sessions SET checked_at = ?, refresh = ? WHERE login = ?",
            to_microseconds(at),
            refresh or None,
            login,
        )

    def remove(self, session: str) -> bool:
        return self._db.run("DELETE FROM login_sessions WHERE id = ?", session) > 0

    # --- where people logged in from

    def knows_place(self, person: str, address: str) -> bool:
        """Whether this user logged in with a password from this address within PLACES_KEPT."""
        rows = self._db.rows("SELECT 1 FROM login_places WHERE person = ? AND address = ?", person, address)
        return bool(rows)

    def add_place(self, person: str, address: str, now: datetime) -> None:
        with self._db.transaction():
            self._db.run(
                "DELETE FROM login_places WHERE used_at < ? OR (person = ? AND address = ?)",
                to_microseconds(now - PLACES_KEPT),
                person,
                address,
            )
            self._db.run("INSERT INTO login_places VALUES (?, ?, ?)", person, address, to_microseconds(now))

    # --- sessions of the page's cookies

    def add_page_session(
        self, value: str, page_token: str, now: datetime, *, used_after: datetime, begun_after: datetime, most: int
    ) -> None:
        """Add a page session. Delete expired ones, and the longest unused ones beyond `most`."""
        with self._db.transaction():
            self._db.run(
                "DELETE FROM page_sessions WHERE used_at < ? OR created_at < ? OR page_hash <> ?",
                to_microseconds(used_after),
                to_microseconds(begun_after),
                digest(page_token),
            )
            self._db.run(
                "DELETE FROM page_sessions WHERE token_hash IN (SELECT token_hash FROM page_sessions"
                " ORDER BY used_at DESC LIMIT 1000000 OFFSET ?)",
                most - 1,
            )
            self._db.run(
                "INSERT INTO page_sessions (token_hash, page_hash, created_at, used_at) VALUES (?, ?, ?, ?)",
                digest(value),
                digest(page_token),
                to_microseconds(now),
                to_microseconds(now),
            )

    def use_page_session(
        self,
        value: str,
        page_token: str,
        now: datetime,
        *,
        used_after: datetime,
        begun_after: datetime,
        touched_after: datetime,
    ) -> bool:
        """Whether a page session is open. Its last use is updated only if it is older than `touched_after`."""
        rows = self._db.rows(
            "SELECT used_at FROM page_sessions WHERE token_hash = ? AND page_hash = ?"
            " AND used_at >= ? AND created_at >= ?",
            digest(value),
            digest(page_token),
            to_microseconds(used_after),
            to_microseconds(begun_after),
        )
        if not rows:
            return False
        if int(rows[0][0]) > to_microseconds(touched_after):
            return True
        changed = self._db.run(
            "UPDATE page_sessions SET used_at = ? WHERE token_hash = ?", to_microseconds(now), digest(value)
        )
        return changed > 0

    def end_page_session(self, value: str) -> None:
        if self._db.rows("SELECT 1 FROM page_sessions WHERE token_hash = ?", digest(value)):
            self._db.run("DELETE FROM page_sessions WHERE token_hash = ?", digest(value))

    # --- one-time codes

    def add_code(self, code: str, body: bytes, expires: datetime, now: datetime) -> None:
        with self._db.transaction():
            self._db.run("DELETE FROM login_codes WHERE expires_at <= ?", to_microseconds(now))
            self._db.run("INSERT INTO login_codes VALUES (?, ?, ?)", digest(code), to_microseconds(expires), body)

    def take_code(self, code: str, now: datetime) -> bytes | None:
        """The value of a code, which is then deleted; None for a code that is unknown, used or expired."""
        rows = self._db.rows("SELECT body, expires_at FROM login_codes WHERE code_hash = ?", digest(code))
        if not rows or not self._db.run("DELETE FROM login_codes WHERE code_hash = ?", digest(code)):
            return None  # of two who take it at once, one deletes it
        body, expires = rows[0]
        return bytes(body) if to_microseconds(now) < int(expires) else None

    # --- the audit log

    def note(self, entries: Sequence[AuditEntry]) -> None:
        with self._db.transaction():
            for entry in entries:
                self._db.run(
                    "INSERT INTO audit_log (at, person, method, path, what, address, status, client)"
                    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    to_microseconds(entry.at),
                    entry.person,
                    entry.method,
                    entry.path,
                    entry.what,
                    entry.address,
                    entry.status,
                    entry.client,
                )

    def audit(
        self, *, person: str | None = None, action: str = "", before: int = 0, limit: int = AUDIT_PAGE,
        since: datetime | None = None, until: datetime | None = None, namespace: str = "",
    ) -> list[AuditEntry]:  # fmt: skip
        """The newest entries first; `before`: older than this number; `action`: a part of the action's text.

        `namespace`: only entries that name it, in the action or as a part of the path.
        """
        # only filters that are set become conditions; values are always parameters
        wheres: list[str] = ["number > 0"]
        values: list[str | int] = []
        if person is not None:
            wheres.append("person = ?")
            values.append(person)
        if since is not None:
            wheres.append("at >= ?")
            values.append(to_microseconds(since))
        if until is not None:
            wheres.append("at <= ?")
            values.append(to_microseconds(until))
        # texts match in any case; a namespace matches as a part of the action or the path
        if action:
            wheres.append("lower(what || ' ' || method || ' ' || path) LIKE ? ESCAPE '!'")
            values.append(f"%{_escaped(action.lower())}%")
        if namespace:
            text = _escaped(namespace)
            wheres.append("(what LIKE ? ESCAPE '!' OR path LIKE ? ESCAPE '!' OR path LIKE ? ESCAPE '!')")
            values += [f"% {text}/%", f"%/{text}/%", f"%/namespaces/{text}"]
        if before:
            wheres.append("number < ?")
            values.append(before)
        # newest first, by number: times of several servers may differ
        rows = self._db.rows(
            "SELECT at, person, method, path, what, address, status, number, client FROM audit_log"
            f" WHERE {' AND '.join(wheres)} ORDER BY number DESC LIMIT ?",
            *values,
            limit,
        )
        return [
            AuditEntry(
                at=from_microseconds(row[0]), person=row[1], method=row[2], path=row[3], what=row[4],
                address=row[5], status=int(row[6]), number=int(row[7]), client=row[8],
            )
            for row in rows
        ]  # fmt: skip

    def forget_audit(self, older: datetime) -> int:
        return self._db.run("DELETE FROM audit_log WHERE at < ?", to_microseconds(older))


def open_sessions(where: Path | str) -> SessionStore:
    """Connect to the database of people: a file or a `postgresql://` address. Raises StorageError."""
    return SessionStore(open_database(where, SCHEMA))


class Sessions(StoreThread[SessionStore]):
    """Runs the methods of SessionStore in a thread."""

    def __init__(self, where: Path | str) -> None:
        super().__init__("people", lambda: open_sessions(where))


class Sealer:
    """Encrypts and decrypts with keys from a Secret. A new key is used at once; older keys still decrypt."""

    def __init__(self, api: Api, *, clock: Clock = SYSTEM) -> None:
        self._api, self._clock = api, clock
        self._keys: tuple[bytes, ...] = ()
        self._loaded = 0.0

    async def seal(self, text: str) -> bytes:
        from cryptography.fernet import Fernet

        keys = self._keys or await self._load()
        return Fernet(keys[0]).encrypt(text.encode())

    async def open(self, sealed: bytes, *, from_stranger: bool = False) -> str | None:
        """Return the text; None if none of the keys opens it.

        Before that the keys are read again; for strangers' texts only after STRANGER_SECONDS.
        """
        text = _opened(self._keys, sealed)
        if text is not None:
            return text
        if from_stranger and self._keys and self._clock.monotonic() < self._loaded + STRANGER_SECONDS:
            return None
        return _opened(await self._load(), sealed)

    async def _load(self) -> tuple[bytes, ...]:
        self._keys = await load_keys(self._api)
        self._loaded = self._clock.monotonic()
        return self._keys


async def load_keys(api: Api) -> tuple[bytes, ...]:
    """The keys, newest first. If there are none, the first key is created."""
    try:
        secret = await api.get(SECRETS, KEYS_SECRET, PEOPLE_NAMESPACE)
    except NotFound:
        try:
            secret = await api.create(SECRETS, _keys_secret({"00000001": _new_key()}))
        except AlreadyExists:
            secret = await api.get(SECRETS, KEYS_SECRET, PEOPLE_NAMESPACE)
    data = secret.get("data") or {}
    keys = tuple(base64.b64decode(data[name]) for name in sorted(data, reverse=True))
    if not keys:
        raise MoorageError(
            f"the Secret {PEOPLE_NAMESPACE}/{KEYS_SECRET} is empty", hint="delete it: the server creates a new one"
        )
    return keys


async def rotate_keys(api: Api) -> int:
    """Add a key, drop the oldest beyond KEYS_KEPT, and return their number. All sessions stay valid."""
    await load_keys(api)
    key = _new_key()

    async def read() -> tuple[Obj, Obj]:
        secret = await api.get(SECRETS, KEYS_SECRET, PEOPLE_NAMESPACE)
        names = sorted(secret.get("data") or {})
        new = f"{int(names[-1]) + 1:08d}"
        dropped: dict[str, str | None] = dict.fromkeys([*names, new][:-KEYS_KEPT])
        return secret, {"data": dropped | {new: key}}

    return len((await change_as_read(api, SECRETS, read))["data"])


def _escaped(text: str) -> str:
    """Escape a text for LIKE … ESCAPE '!'."""
    return text.replace("!", "!!").replace("%", "!%").replace("_", "!_")


def _opened(keys: Iterable[bytes], sealed: bytes) -> str | None:
    from cryptography.fernet import Fernet, InvalidToken

    for key in keys:
        try:
            return Fernet(key).decrypt(sealed).decode()
        except InvalidToken:
            continue
    return None


def _new_key() -> str:
    return base64.b64encode(base64.urlsafe_b64encode(secrets.token_bytes(32))).decode()


def _keys_secret(data: dict[str, str]) -> Obj:
    meta = {"name": KEYS_SECRET, "namespace": PEOPLE_NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "type": "Opaque", "data": data}


def _session(row: Row) -> Session:
    identity, login, person, source, subject, client, address, *times, refresh = row
    created, expires, used, checked, tokens = (from_microseconds(microseconds) for microseconds in times)
    return Session(
        id=identity, login=login, person=person, source=source, subject=subject, client=client, address=address,
        created=created, expires=expires, used=used, checked=checked, tokens_until=tokens,
        refresh=bytes(refresh or b""),
    )  # fmt: skip
