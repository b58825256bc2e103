"""Sessions of the page's cookie; each is separate, and begins when a browser sends the page's token.

The cookie's value is random and invalid once its session has ended: at the logout, unused for IDLE, after
LIFETIME, or when the server gets another page token. Only the SHA-256 of a value is stored.

Any client may send any value: an invalid one costs a read, never a write.
"""

from __future__ import annotations

import secrets
from datetime import timedelta

from moorage.server.identity.sessions import Sessions, digest
from moorage_kube.cache import BoundedCache
from moorage_kube.clock import SYSTEM, Clock

LIFETIME = timedelta(days=7)
IDLE = timedelta(hours=12)  # NIST SP 800-63B, 4.2.3: again after 12 hours, or 30 minutes without a sign, at AAL2
TOUCH_SECONDS = 60.0  # how exactly it is known when one was last used
BELIEVED_SECONDS = 2.0  # one that was just found open is not looked up again; another server may have ended it
KEPT = 1000  # at a time; the longest unused go first


class PageSessions:
    """The open sessions that began with `page_token`."""

    def __init__(self, sessions: Sessions, page_token: str, *, clock: Clock = SYSTEM) -> None:
        self._sessions, self._page_token, self._clock = sessions, page_token, clock
        self._believed: BoundedCache[bytes, bool] = BoundedCache(
            KEPT, keep_seconds=BELIEVED_SECONDS, clock=clock
        )  # by the value's SHA-256
        self._ends = 0  # sessions that were ended; a result read before an end is out of date

    async def open(self) -> str:
        """Open a session; return the value of its cookie. Raises StorageError."""
        value, now = secrets.token_urlsafe(32), self._clock.now()
        await self._sessions.do(
            lambda store: store.add_page_session(
                value, self._page_token, now, used_after=now - IDLE, begun_after=now - LIFETIME, most=KEPT
            )
        )
        return value

    async def holds(self, value: str) -> bool:
        """Whether a cookie value belongs to an open session. Raises StorageError."""
        if not value or not self._page_token:
            return False
        key, now, ends = digest(value), self._clock.now(), self._ends
        if key in self._believed:
            return True
        holds = await self._sessions.do(
            lambda store: store.use_page_session(
                value,
                self._page_token,
                now,
                used_after=now - IDLE,
                begun_after=now - LIFETIME,
                touched_after=now - timedelta(seconds=TOUCH_SECONDS),
            )
        )
        if holds and ends == self._ends:
            self._believed.put(key, True)
        return holds

    async def end(self, value: str) -> None:
        """End the session of a cookie value. Idempotent. Raises StorageError."""
        if not value:
            return
        self._believed.drop(digest(value))
        await self._sessions.do(lambda store: store.end_page_session(value))
        self._ends += 1
        self._believed.drop(digest(value))  # a look that began before the end may have put it back
