"""Logins and logouts: passwords, the OIDC provider, sessions, tokens for the cluster.

A session is valid while the user's account is enabled. If the login came from a provider, the provider must also
confirm it: the server asks again RECHECK after the last time, while the session is used or has valid tokens.
If the provider does not answer, the session stays valid for GRACE.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from moorage.actions.people import (
    TOKEN_SECONDS_MIN,
    KubeToken,
    NotYours,
    end_tokens,
    is_password,
    kube_token,
    password_hash,
    set_password,
)
from moorage.api.logins import TOKEN_SECONDS
from moorage.model.people import LOCAL, NAME_MAX, OIDC, SOURCE_ANNOTATION, check_person, is_disabled
from moorage.model.retention import AUDIT_DAYS
from moorage.server.addresses import Addresses
from moorage.server.identity.attempts import Attempts, Origin
from moorage.server.identity.oidc import Provider, ProviderAway, Refused, challenge_of, new_verifier
from moorage.server.identity.people import People
from moorage.server.identity.proofs import Proofs
from moorage.server.identity.sessions import LIFETIME, TOUCH, Sealer, Session, Sessions, digest, new_token
from moorage.server.identity.shared import Key, Kind
from moorage.server.problems import Problem
from moorage_kube.addresses import client_network
from moorage_kube.api import Api
from moorage_kube.cache import BoundedCache
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import ApiError, MoorageError
from moorage_kube.meta import annotations_of
from moorage_kube.resources import Obj
from moorage_kube.texts import hidden_characters, visible

log = logging.getLogger(__name__)

RECHECK = timedelta(seconds=30)  # after this the provider is asked again
SWEEP_SECONDS = 5.0  # between two looks: out within 35 s, and an API server keeps a token's verdict for 10 s
RENEWAL = timedelta(minutes=1)  # a server that asks the provider has this long before another may ask
RENEWALS = Kind("renewal", 10_000)
GRACE = timedelta(minutes=15)  # sessions survive a provider that does not answer for this long
BELIEVED_SECONDS = 2.0  # a session that was just found good is not looked up again
KEPT = 4096
FLOW = timedelta(minutes=10)  # a login at the provider takes no longer
FLOW_BYTES = 2700  # sealed it is a third longer, and a browser drops a cookie of more than 4,096 bytes
CODE = timedelta(minutes=2)  # for the command line to fetch its session
PLAIN_SECONDS_MAX = 7 * 24 * 3600
AT_ONCE = 8  # sessions that the provider is asked about at a time
HASHES_WAITING = 16  # passwords of strangers, and as many of people who were here before; a second and a half
DEVICE_SECONDS = 400 * 24 * 3600  # lifetime of the device cookie; browsers allow no more

T = TypeVar("T")
_DEVICE, _FLOW = "device ", "flow "  # the kinds of sealed texts


class LoginSettings(Struct, frozen=True, kw_only=True):
    """The login settings of an administrator."""

    local: bool = True  # local accounts may log in
    public_url: str = ""  # where browsers find this server; empty: where they asked
    cluster: Mapping[str, object] = field(default_factory=dict)  # of the Kubernetes API; see `Addresses`
    behind_proxy: bool = False  # the last address in X-Forwarded-For is the client's
    audit_days: int = AUDIT_DAYS


class Flow(msgspec.Struct, frozen=True):
    """A login in progress at the provider. It is stored sealed in the browser, so logins that strangers begin cost
    no database writes.

    A copy of it is worth no more than the provider's code, which can be used once.
    """

    until: float  # seconds since 1970
    state: str
    nonce: str
    verifier: str
    redirect: str
    then: str


class Grant(msgspec.Struct, frozen=True):
    """A grant by a person to a command line that has not fetched its session yet."""

    person: str
    source: str
    challenge: str
    session: str  # the session that granted it


class Hashing:
    """Runs one scrypt at a time, 32 MiB and 80 ms each, with a short queue; refuses work when it is full."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0

    async def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`. It runs to its end, even if the client disconnects. Raises Problem 503."""
        if self._waiting >= HASHES_WAITING:
            problem = Problem(
                503,
                "too_busy",
                "too many logins at the same time",
                "try again in a few seconds",
            )
            problem.headers = {"retry-after": "3"}
            raise problem
        self._waiting += 1  # here, not in the task, which begins after others may have come
        return await asyncio.shield(asyncio.create_task(self._in_turn(work)))

    async def _in_turn(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            async with self._turn:
                return await work()
        finally:
            self._waiting -= 1


class Logins:
    """Opens, checks and ends sessions. `run` ends those that are no longer valid."""

    def __init__(
        self,
        api: Api,
        people: People,
        sessions: Sessions,
        *,
        provider: Provider | None = None,
        settings: LoginSettings | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self._api, self._people, self._sessions, self._clock = api, people, sessions, clock
        self.provider = provider
        self.settings = settings or LoginSettings()
        self.addresses = Addresses(
            public_url=self.settings.public_url,
            behind_proxy=self.settings.behind_proxy,
            cluster=self.settings.cluster,
        )
        self._sealer = Sealer(api, clock=clock)
        self.proofs = Proofs(api, self._sealer, self.addresses, clock=clock)
        self._believed: BoundedCache[bytes, Session] = BoundedCache(
            KEPT, keep_seconds=BELIEVED_SECONDS, clock=clock
        )  # by the token's SHA-256
        self._ends = 0  # sessions that were ended; a result read before an end is out of date
        self._name = secrets.token_hex(8)  # of this server, among those on one database
        self._asking: dict[str, asyncio.Lock] = {}
        self._strangers, self._acquainted = Hashing(), Hashing()  # a flood of the first delays none of the others
        self._gone: asyncio.Queue[str] = asyncio.Queue()
        people.on_change(self._account_changed)

    async def run(self) -> None:
        """End the sessions that the provider or an administrator no longer permits, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_accounts())
            tasks.create_task(self._sweep_for_ever())

    @property
    def is_set_up(self) -> bool:
        """Whether an administrator has set up login with a browser."""
        return self.provider is not None or bool(self.addresses.public_url)

    # --- who

    async def session_of(self, token: str) -> Session | None:
        """The valid session of a token, or None. Raises Problem 503 if its provider is down for too long."""
        key, ends = digest(token), self._ends
        moment = self._clock.now()
        session = self._believed.get(key)
        is_believed = session is not None
        if session is None:
            session = await self._sessions.do(lambda store: store.find(token))
            if session is None:
                return None
            if session.is_over(moment):
                await self.end(session, "its time is over")
                return None
        account = await self._people.account(session.person)
        if account is None or is_disabled(account):
            await self.end(session, "the account is disabled")
            return None
        if _is_due(session, moment):
            renewed = await self._renewed(session)
            if renewed is None:
                return None
            session = renewed
        if moment - session.used >= TOUCH:
            identity = session.id
            await self._sessions.do(lambda store: store.touch(identity, moment))
            session = replace(session, used=moment)
        if ends == self._ends:
            if is_believed:
                self._believed.change(key, session)
            else:
                self._believed.put(key, session)
        return session

    async def account_of(self, session: Session) -> Obj | None:
        return await self._people.account(session.person)

    # --- in

    async def by_password(
        self, name: str, password: str, *, address: str, client: str, device: str = ""
    ) -> tuple[str, Session]:
        """A new session's token, and the session. `device`: this browser's value of `device_mark`, if any.

        Raises Problem 401, 422 for an invalid name, 429 after too many wrong passwords, 503 while too many
        are being checked.
        """
        if not self.settings.local:
            raise Problem(403, "no_local_accounts", "this server has no local accounts", "log in with a browser")
        check_name(name)
        place = client_network(address)
        origin = Origin(
            name=name,
            address=address,
            device=await self._device_of(device, name) if device else "",
            known=await self._sessions.do(lambda store: store.knows_place(name, place)),
        )
        if not await self._try(origin, lambda: self._is_password(name, password)):
            log.warning("wrong name or password", extra={"person": name, "address": address})
            raise Problem(401, "unauthorized", "the name or the password is wrong", None, "password")
        now = self._clock.now()
        await self._sessions.do(lambda store: store.add_place(name, place, now))
        return await self._open(name, LOCAL, address=address, client=client)

    async def device_mark(self, person: str) -> str:
        """A cookie value that marks this browser as a device on which the user logged in.

        "" if the keys cannot be read: then the browser counts as unknown next time.
        """
        try:
            return (await self._sealer.seal(f"{_DEVICE}{secrets.token_urlsafe(12)} {person}")).decode()
        except ApiError as error:
            log.warning("a browser gets no device cookie", extra={"error": error.message})
            return ""

    async def change_password(self, session: Session, old: str, new: str) -> None:
        """Change a user's own password; their other sessions end."""
        if session.source != LOCAL:
            raise Problem(409, "no_password", "this account has no password here", "change it at the provider")
        origin = Origin(name=session.person, address="", device=f"session {session.id}")
        if not await self._try(origin, lambda: self._is_password(session.person, old)):
            raise Problem(403, "forbidden", "the old password is wrong", None, "old")
        await self._acquainted.run(lambda: set_password(self._api, session.person, new))
        for other in await self._sessions.do(lambda store: store.of(session.person)):
            if other.id != session.id:
                await self.end(other, "the password was changed")

    async def _try(self, origin: Origin, is_right: Callable[[], Awaitable[bool]]) -> bool:
        """Whether the password is right. The attempt is counted before the check. Raises Problem 429, 503."""
        wait = await self._count(lambda attempts: attempts.begin(origin))
        if wait > 0:
            problem = Problem(
                429,
                "too_many_attempts",
                f"too many wrong passwords; try again in {math.ceil(wait)} seconds",
                "log in from where you logged in before, or ask an administrator: moor user passwd NAME",
            )
            problem.headers = {"retry-after": str(math.ceil(wait))}
            raise problem
        lane = self._acquainted if origin.device or origin.known else self._strangers
        try:
            right = await lane.run(is_right)
        except (MoorageError, Problem):
            await self._count(lambda attempts: attempts.undo(origin))  # the password was not checked
            raise
        if right:
            await self._count(lambda attempts: attempts.succeeded(origin))
        return right

    async def _count(self, work: Callable[[Attempts], T]) -> T:
        """Run `work` with the counts of login attempts, which are in the database of people."""
        return await self._sessions.do(lambda store: work(Attempts(store.shared, self._clock)))

    async def _device_of(self, mark: str, person: str) -> str:
        """The device in a device cookie; "" if the cookie is invalid or belongs to another user."""
        try:
            kind, _, rest = (await self._sealer.open(mark.encode(), from_stranger=True) or "").partition(" ")
        except ApiError:
            return ""
        device, _, of = rest.partition(" ")
        return device if f"{kind} " == _DEVICE and of == person else ""

    async def start_oidc(self, *, redirect: str, then: str) -> tuple[str, str]:
        """The provider's address for the browser, and a cookie value that protects the way back.

        Raises ApiError.
        """
        if self.provider is None:
            raise Problem(404, "not_found", "this server has no OIDC provider", "log in with a local account")
        state, nonce, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(24), new_verifier()
        try:
            url = await self.provider.authorization_url(
                redirect=redirect, state=state, nonce=nonce, verifier=verifier
            )
        except MoorageError as error:
            raise _away(error) from error
        flow = Flow((self._clock.now() + FLOW).timestamp(), state, nonce, verifier, redirect, then)
        if len(msgspec.json.encode(flow)) > FLOW_BYTES:
            flow = msgspec.structs.replace(flow, then="/")
        return url, (await self._sealer.seal(_FLOW + msgspec.json.encode(flow).decode())).decode()

    async def finish_oidc(
        self, *, binding: str, state: str, code: str, address: str, client: str
    ) -> tuple[str, Session, str]:
        """Finish a login by the provider; return the token of a new session, the session and the path to open."""
        flow = await self._flow_of(binding)
        if self.provider is None or flow is None or not secrets.compare_digest(flow.state, state):
            raise Problem(
                400,
                "bad_login",
                "this login was not begun here, or took too long",
                "start again at /login",
                "state",
            )
        try:
            login = await self.provider.exchange(
                code, redirect=flow.redirect, nonce=flow.nonce, verifier=flow.verifier
            )
        except Refused as error:
            raise Problem(403, "login_refused", error.message, error.hint) from error
        except ProviderAway as error:
            raise _away(error) from error
        account = await self._account(login.name, login.groups, subject=login.subject)
        if is_disabled(account):
            raise Problem(403, "disabled", f"the account of {login.name} is disabled", "ask an administrator")
        until = None if login.refresh_token else datetime.fromtimestamp(login.expires, UTC)
        sealed = await self._sealer.seal(login.refresh_token) if login.refresh_token else b""
        token, session = await self._open(
            login.name, OIDC, address=address, client=client, subject=login.subject, refresh=sealed, until=until
        )
        return token, session, flow.then

    async def _flow_of(self, binding: str) -> Flow | None:
        """The unfinished login in a cookie; None if the cookie is invalid or the login has expired."""
        opened = await self._sealer.open(binding.encode(), from_stranger=True) if binding else None
        if opened is None or not opened.startswith(_FLOW):
            return None
        flow = msgspec.json.decode(opened.removeprefix(_FLOW), type=Flow)
        return flow if self._clock.now().timestamp() < flow.until else None

    async def grant(self, session: Session, challenge: str) -> str:
        """Return a code with which a command line gets its own session, once and within a short time."""
        code, now = secrets.token_urlsafe(24), self._clock.now()
        grant = Grant(session.person, session.source, challenge, session.id)
        await self._sessions.do(
            lambda store: store.add_code(f"grant {code}", msgspec.json.encode(grant), now + CODE, now)
        )
        return code

    async def redeem(self, code: str, verifier: str, *, address: str, client: str) -> tuple[str, Session]:
        now = self._clock.now()
        body = await self._sessions.do(lambda store: store.take_code(f"grant {code}", now))
        grant = msgspec.json.decode(body, type=Grant) if body else None
        if grant is None or not secrets.compare_digest(challenge_of(verifier), grant.challenge):
            raise Problem(
                400, "bad_code", "the code is unknown, was used, or is too old", "start again: moor login"
            )
        origin = await self._sessions.do(lambda store: store.get(grant.session))
        if origin is None or origin.is_over(now):
            raise Problem(403, "bad_code", "the login that gave the code has ended", "start again: moor login")
        return await self._open(
            origin.person,
            origin.source,
            address=address,
            client=client,
            subject=origin.subject,
            refresh=origin.refresh,
            checked=origin.checked,
            until=None if origin.refresh or origin.source == LOCAL else origin.expires,
            login=origin.login,
        )

    async def cluster_token(self, session: Session, seconds: int = TOKEN_SECONDS) -> KubeToken:
        """A token for the Kubernetes API as this user; it is revoked with the session."""
        most = (session.expires - self._clock.now()).total_seconds()
        chosen = int(min(max(TOKEN_SECONDS_MIN, seconds), PLAIN_SECONDS_MAX, max(TOKEN_SECONDS_MIN, most)))
        until = self._clock.now() + timedelta(seconds=chosen)
        if not await self._sessions.do(lambda store: store.gave_token(session.id, until)):
            raise Problem(401, "unauthorized", "the session has ended", "log in again")
        return await kube_token(self._api, session.person, chosen, session.id)

    # --- out

    async def end(self, session: Session, why: str) -> None:
        """End a session and revoke its tokens. Idempotent."""
        self._forget(session)
        there = await self._sessions.do(lambda store: store.remove(session.id))
        self._ends += 1
        self._forget(session)  # a look that began before the end may have put it back
        if session.tokens_until > self._clock.now() - timedelta(hours=1) or there:
            await end_tokens(self._api, session.person, session.id)
        if there:
            log.info("a session ended", extra={"person": session.person, "why": why, "client": session.client})

    async def end_all(self, person: str, why: str) -> int:
        open_sessions = await self._sessions.do(lambda store: store.of(person))
        for session in open_sessions:
            await self.end(session, why)
        return len(open_sessions)

    async def sessions(self, person: str) -> list[Session]:
        return await self._sessions.do(lambda store: store.of(person))

    async def sweep(self) -> None:
        """Check every session that is used or has valid tokens; end those that are no longer valid."""
        now = self._clock.now()
        limit = asyncio.Semaphore(AT_ONCE)

        async def look(session: Session) -> None:
            async with limit:
                account = await self._people.account(session.person)
                if session.is_over(now):
                    await self.end(session, "its time is over")
                elif account is None or is_disabled(account):
                    await self.end(session, "the account is disabled")
                elif _is_due(session, now) and (session.tokens_until > now or now - session.used < 2 * TOUCH):
                    try:
                        await self._renewed(session)
                    except Problem:
                        return  # the provider is away; nothing new is given out meanwhile

        await asyncio.gather(*(look(session) for session in await self._sessions.do(lambda store: store.all())))

    # --- plumbing

    def _forget(self, session: Session) -> None:
        self._believed.drop_where(lambda kept: kept.id == session.id)

    async def _open(
        self,
        person: str,
        source: str,
        *,
        address: str,
        client: str,
        subject: str = "",
        refresh: bytes = b"",
        until: datetime | None = None,
        checked: datetime | None = None,
        login: str = "",
    ) -> tuple[str, Session]:
        now, token, identity = self._clock.now(), new_token(), secrets.token_hex(6)
        session = Session(
            id=identity,
            login=login or identity,
            person=person,
            source=source,
            subject=subject,
            client=client[:200],
            address=address[:64],
            created=now,
            expires=min(now + LIFETIME, until) if until else now + LIFETIME,
            used=now,
            checked=checked or now,
            tokens_until=datetime.fromtimestamp(0, UTC),
            refresh=refresh,
        )
        await self._sessions.do(lambda store: store.add(token, session))
        log.info(
            "a person logged in", extra={"person": person, "source": source, "client": client, "address": address}
        )
        return token, session

    async def _account(self, person: str, groups: tuple[str, ...], *, subject: str) -> Obj:
        try:
            check_person(person)
            return await self._people.ensure(person, groups, OIDC, subject=subject)
        except ValueError as error:
            raise Problem(403, "login_refused", str(error)) from error
        except NotYours as error:
            raise Problem(403, "login_refused", error.message, error.hint) from error

    async def _is_password(self, name: str, password: str) -> bool:
        """Check a password. Takes equally long for an unknown name."""
        stored = ""
        try:
            check_person(name)
            account = await self._people.account(name)
            local = account is not None and annotations_of(account).get(SOURCE_ANNOTATION) == LOCAL
            if account is not None and local and not is_disabled(account):
                stored = await password_hash(self._api, name)
        except ValueError:
            stored = ""
        return await asyncio.to_thread(is_password, password, stored)

    async def _renewed(self, session: Session) -> Session | None:
        """Ask the provider whether a session is valid; None if it is not. Raises Problem 503 after GRACE."""
        lock = self._asking.setdefault(session.login, asyncio.Lock())
        try:
            async with lock:
                return await self._renewed_in_turn(session)
        finally:
            if not lock.locked():
                self._asking.pop(session.login, None)

    async def _renewed_in_turn(self, session: Session) -> Session | None:
        """Ask the provider, unless another request already has.

        While another server asks, the session is returned unchanged. A provider may end a login whose refresh
        token is used twice.
        """
        now, turn = self._clock.now(), Key(RENEWALS, session.login)
        if not await self._sessions.do(lambda store: store.shared.claim(turn, self._name, now + RENEWAL, now)):
            if now - session.checked > GRACE:
                raise _away(ProviderAway("another server waits for its answer"))
            return session
        try:
            current = await self._sessions.do(lambda store: store.get(session.id))
            if current is None or not _is_due(current, now):
                return current  # another request was quicker
            return await self._ask_provider(current, now)
        finally:
            await self._sessions.do(lambda store: store.shared.release(turn, self._name))

    async def _ask_provider(self, session: Session, now: datetime) -> Session | None:
        try:
            if self.provider is None:
                raise ProviderAway("the OIDC provider is no longer configured")
            token = await self._sealer.open(session.refresh)
            if token is None:
                raise Refused("the refresh token cannot be opened with the keys that are left")
            login = await self.provider.renew(token, subject=session.subject)
            if login.name != session.person:
                raise Refused(f"the provider calls this person {login.name} now")
            await self._people.ensure(login.name, login.groups, OIDC, subject=login.subject)
            sealed = await self._sealer.seal(login.refresh_token)
        except (Refused, NotYours) as error:
            await self.end(session, error.message)
            return None
        except MoorageError as error:
            log.warning(
                "cannot ask whether a login holds", extra={"person": session.person, "error": error.message}
            )
            if now - session.checked > GRACE:
                raise _away(error) from error
            return session
        await self._sessions.do(lambda store: store.checked(session.login, now, sealed))
        return replace(session, checked=now, refresh=sealed)

    def _account_changed(self, person: str, account: Obj | None) -> None:
        if account is None or is_disabled(account):
            self._gone.put_nowait(person)

    async def _follow_accounts(self) -> None:
        """End the sessions of accounts as soon as they are disabled or deleted, until cancelled.

        `session_of` notices those that were disabled before this runs.
        """
        while True:
            person = await self._gone.get()
            await self._safely(partial(self._put_out, person))

    async def _put_out(self, person: str) -> None:
        await self.end_all(person, "the account is disabled")
        await end_tokens(self._api, person)

    async def _sweep_for_ever(self) -> None:
        while True:
            await self._clock.sleep(SWEEP_SECONDS)
            await self._safely(self.sweep)

    async def _safely(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (MoorageError, ApiError, OSError) as error:
            log.warning("sessions could not be looked after", extra={"error": str(error)})


def check_name(name: str) -> None:
    """Raise Problem 422 for a name that is too long, or that has hidden characters, which could forge log
    lines.
    """
    if len(name) > NAME_MAX:
        raise Problem(
            422,
            "invalid",
            f"the name {visible(name[:60])}… has {len(name)} characters; at most {NAME_MAX} are allowed",
            "write the name as an administrator gave it",
            "username",
        )
    if hidden_characters(name):
        raise Problem(
            422,
            "invalid",
            f"the name {visible(name[:60])} contains hidden characters",
            "write the name as an administrator gave it",
            "username",
        )


def _is_due(session: Session, now: datetime) -> bool:
    return session.source == OIDC and bool(session.refresh) and now - session.checked >= RECHECK


def _away(error: MoorageError) -> Problem:
    return Problem(503, "provider_away", f"the OIDC provider cannot be asked: {error.message}", error.hint)
