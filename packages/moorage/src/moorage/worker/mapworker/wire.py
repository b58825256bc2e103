"""Requests to the server: one numbered request at a time, and heartbeats in parallel.

A request is sent again until it is answered, without a limit: an absent server loses no answer.
"""

from __future__ import annotations

import http.client
import json
import queue
import random
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

BACKOFF_SECONDS = (0.5, 30.0)  # first and longest pause after a request that failed
PATIENCE_SECONDS = 30.0  # for an answer, in addition to the time for which it may be held


class Refused(Exception):
    """The server has said no for good; `status` is that of HTTP, `code` the problem's."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Away(Exception):
    """No answer, or an answer that means: try again."""


class Line:
    """One keep-alive connection. `cut` may be called from another thread, to end a request that is held."""

    def __init__(self, server: str, token: str) -> None:
        parts = urllib.parse.urlsplit(server)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._prefix = parts.path
        self._headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
        self._connection: http.client.HTTPConnection | None = None
        self._lock = threading.Lock()

    def post(self, path: str, body: bytes, patience: float) -> dict[str, Any]:
        """Send and read the answer. Raises Away, Refused."""
        try:
            connection = self._connected(patience)
            connection.request("POST", self._prefix + path, body, self._headers)
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Away(str(error) or type(error).__name__) from error
        if response.status >= 500 or response.status == 429:
            raise Away(f"status {response.status}")
        try:
            document = json.loads(data)
        except ValueError as error:
            self.close()
            raise Away(f"an answer that is no JSON, status {response.status}") from error
        if response.status >= 300:
            code = str(document.get("code", "")) if isinstance(document, dict) else ""
            raise Refused(response.status, code, str(document.get("message", document) if code else document))
        return dict(document)

    def cut(self) -> None:
        with self._lock:
            sock = self._connection.sock if self._connection is not None else None
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has been closed already

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self, patience: float) -> http.client.HTTPConnection:
        connection = self._connection
        if connection is None:
            if self._secure:
                context = ssl.create_default_context()
                connection = http.client.HTTPSConnection(self._host, self._port, timeout=patience, context=context)
            else:
                connection = http.client.HTTPConnection(self._host, self._port, timeout=patience)
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._connection = connection
        elif connection.sock is not None:
            connection.sock.settimeout(patience)
        return connection


if TYPE_CHECKING:
    Body = dict[str, Any]
    Answer = tuple[int, Body | None, Refused | None]  # number, answer, or why it was refused


class Exchanger(threading.Thread):
    """Sends numbered requests. The newest `ask` overtakes an `ask` that is held or tried again."""

    def __init__(
        self, line: Line, path: str, answers: queue.SimpleQueue[Answer], wake: Callable[[], None]
    ) -> None:
        super().__init__(name="exchange", daemon=True)
        self._line = line
        self._path = path
        self._answers = answers
        self._wake = wake
        self._wanted = threading.Condition()
        self._next: tuple[int, bytes, float] | None = None
        self._busy = 0  # the number that is under way

    def ask(self, number: int, body: bytes, hold: float) -> None:
        """Send this one; `hold` is how long the server may keep it."""
        with self._wanted:
            self._next = (number, body, hold)
            self._wanted.notify()
            busy = self._busy
        if busy:
            self._line.cut()

    def run(self) -> None:
        while True:
            with self._wanted:
                while self._next is None:
                    self._wanted.wait()
                number, body, hold = self._next
                self._next = None
                self._busy = number
            answer = self._until_answered(number, body, hold)
            with self._wanted:
                self._busy = 0
            if answer is not None:
                self._answers.put(answer)
                self._wake()

    def _until_answered(self, number: int, body: bytes, hold: float) -> Answer | None:
        pause = 0.0  # a reused connection may have been closed meanwhile: ignore the first failure
        while True:
            try:
                return number, self._line.post(self._path, body, hold + PATIENCE_SECONDS), None
            except Refused as refused:
                return number, None, refused
            except Away:
                with self._wanted:
                    if self._next is not None:
                        return None  # overtaken
                    if pause:
                        self._wanted.wait(pause * random.uniform(0.7, 1.0))
                    if self._next is not None:
                        return None
                pause = min(max(pause * 2, BACKOFF_SECONDS[0]), BACKOFF_SECONDS[1])


class Heart(threading.Thread):
    """Sends a heartbeat every third of a lease, on a separate connection."""

    def __init__(
        self,
        line: Line,
        path: str,
        held: Callable[[], tuple[Body, float]],
        on_answer: Callable[[Body], None],
    ) -> None:
        """`held` gives the heartbeat's body and the seconds to the next; `on_answer` takes the answer."""
        super().__init__(name="heart", daemon=True)
        self._line = line
        self._path = path
        self._held = held
        self._on_answer = on_answer
        self.stopped = threading.Event()

    def run(self) -> None:
        body, seconds = self._held()
        while not self.stopped.wait(seconds):
            body, seconds = self._held()
            try:
                reply = self._line.post(self._path, json.dumps(body).encode(), PATIENCE_SECONDS)
            except Away:
                seconds = min(seconds, 2.0)
                continue
            except Refused:
                continue  # the next numbered request hears the same, and acts on it
            self._on_answer(reply)


class OutputSender(threading.Thread):
    """Sends the output of items to the server, which stores it for longer than the pod exists.

    Best effort: at most `ROOM_BYTES` wait here; further output is dropped, and the server gets the number of
    dropped bytes.
    """

    ROOM_BYTES = 4 * 1024 * 1024
    PART_BYTES = 512 * 1024
    PAUSE_SECONDS = 1.0

    def __init__(self, line: Line, path: str, session: str, pod: str, wake: Callable[[], None]) -> None:
        """`wake` is called after `hurry`, when nothing waits any more."""
        super().__init__(name="output", daemon=True)
        self._line = line
        self._path = path
        self._head = {"session": session, "pod": pod}
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: list[Body] = []
        self._bytes = 0
        self._dropped = 0
        self._flush = threading.Event()
        self._drained = threading.Event()
        self._drained.set()
        self._hurried = False
        self._off = False

    def add(self, item: int, lease: int, output: str) -> None:
        """`output` is base64 of the item's output since the last call."""
        with self._lock:
            if self._off:
                return
            if self._bytes + len(output) > self.ROOM_BYTES:
                self._dropped += len(output) * 3 // 4
                return
            at = round(time.time() * 1000)
            self._waiting.append({"item": item, "lease": lease, "at": at, "output": output})
            self._bytes += len(output)
            self._drained.clear()

    def waits(self) -> bool:
        """Whether some output has not been sent."""
        return not self._drained.is_set()

    def hurry(self) -> None:
        """Send the waiting output now, and try again each second."""
        self._hurried = True
        self._flush.set()

    def drain(self, seconds: float) -> None:
        """Send the waiting output now; give up after so many seconds."""
        self.hurry()
        self._drained.wait(seconds)

    def run(self) -> None:
        pause = self.PAUSE_SECONDS
        while not self._off:
            self._flush.wait(pause)
            self._flush.clear()
            entries, dropped = self._take()
            if not entries and not dropped:
                self._note_rest()
                continue
            body = dict(self._head, entries=entries, dropped=dropped)
            try:
                self._line.post(self._path, json.dumps(body).encode(), PATIENCE_SECONDS)
                pause = self.PAUSE_SECONDS
            except Away:
                pause = self.PAUSE_SECONDS if self._hurried else min(pause * 2, BACKOFF_SECONDS[1])
                with self._lock:
                    self._waiting = entries + self._waiting
                    self._bytes += sum(len(entry["output"]) for entry in entries)
                    self._dropped += dropped
                continue
            except Refused:
                with self._lock:
                    self._off, self._waiting = True, []  # a server that stores no output
            self._note_rest()

    def _note_rest(self) -> None:
        with self._lock:
            if self._waiting:
                self._flush.set()
                return
            self._drained.set()
        if self._hurried:
            self._wake()

    def _take(self) -> tuple[list[Body], int]:
        with self._lock:
            entries: list[Body] = []
            size = 0
            while self._waiting and (not entries or size + len(self._waiting[0]["output"]) <= self.PART_BYTES):
                entries.append(self._waiting.pop(0))
                size += len(entries[-1]["output"])
            self._bytes -= size
            dropped, self._dropped = self._dropped, 0
            return entries, dropped
