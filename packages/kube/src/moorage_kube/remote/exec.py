"""Run a command in a container, over the API server's WebSocket.

https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.32/#exec-options
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from moorage_kube.documents import parse_json
from moorage_kube.errors import ApiError, DocumentError, ServerError, api_error
from moorage_kube.integers import INT32_MAX, integer_or

if TYPE_CHECKING:
    import aiohttp

STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")  # v5 (1.30) can end standard input
PIECE = 32 * 1024  # bytes of input in one message
PING_SECONDS = 20.0  # proxies do not close an idle connection, and a dead one is noticed


class ExecProcess:
    """A running command.

    Iterate over it for `(STDOUT | STDERR, bytes)`; at the end of the iteration `exit_code` is known.

    The end of the `async with` block closes the connection; a command that still runs then may or may not
    continue.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, where: str) -> None:
        self._socket = socket
        self._where = where
        self._exit_code: int | None = None
        self._sending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def exit_code(self) -> int:
        """The exit code of the command. Raises ServerError until all output was read."""
        if self._exit_code is None:
            raise ServerError(f"the exit code of the command in {self._where} is not known", status=0)
        return self._exit_code

    async def __aiter__(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the output.

        Raises ApiError if the command could not be run, or if the connection broke before its end.
        """
        import aiohttp

        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel in (STDOUT, STDERR) and data:
                yield channel, data
            elif channel == ERROR and data:
                self._exit_code = exit_code_of(data)
        if self._exit_code is None:
            raise ServerError(f"the connection to the command in {self._where} broke", status=0)

    async def write(self, data: bytes) -> None:
        """Write to standard input. Raises ServerError if the connection has ended."""
        try:
            for at in range(0, len(data), PIECE):
                await self._socket.send_bytes(bytes([STDIN]) + data[at : at + PIECE])
        except (ConnectionError, RuntimeError) as error:
            raise ServerError(f"the connection to the command in {self._where} has ended", status=0) from error

    async def close_stdin(self) -> None:
        """Signal the end of input. Raises ServerError on servers older than 1.30, which have no such signal."""
        if self._socket.protocol != PROTOCOLS[0]:
            raise ServerError(
                "this API server cannot end standard input: that needs Kubernetes 1.30 or newer", status=501
            )
        try:
            await self._socket.send_bytes(bytes([CLOSE, STDIN]))
        except (ConnectionError, RuntimeError) as error:
            raise ServerError(f"the connection to the command in {self._where} has ended", status=0) from error

    async def resize(self, width: int, height: int) -> None:
        """Send the terminal's size in characters."""
        size = json.dumps({"Width": width, "Height": height}).encode()
        try:
            await self._socket.send_bytes(bytes([RESIZE]) + size)
        except (ConnectionError, RuntimeError) as error:
            raise ServerError(f"the connection to the command in {self._where} has ended", status=0) from error

    async def output(self) -> tuple[int, bytes, bytes]:
        """Read to the end and return (exit code, standard output, standard error)."""
        output: dict[int, bytearray] = {STDOUT: bytearray(), STDERR: bytearray()}
        async for channel, data in self:
            output[channel] += data
        return self.exit_code, bytes(output[STDOUT]), bytes(output[STDERR])

    async def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        await self._socket.close()

    def feed(self, data: bytes) -> None:
        """Send all of `data` as standard input and then end the input, while the output is read."""

        async def send() -> None:
            await self.write(data)
            await self.close_stdin()

        self._sending = asyncio.get_running_loop().create_task(send())


def exit_code_of(status: bytes) -> int:
    """Return the exit code from the final status of a command. Raises ApiError if the command was not run."""
    try:
        document = parse_json(status)
    except DocumentError:
        document = {}
    if not isinstance(document, dict):
        document = {}
    if document.get("status") == "Success":
        return 0
    if document.get("reason") == "NonZeroExitCode":
        details = document.get("details")
        causes = details.get("causes") if isinstance(details, dict) else None
        for cause in causes if isinstance(causes, list) else ():
            if isinstance(cause, dict) and cause.get("reason") == "ExitCode":
                code = integer_or(str(cause.get("message")), -1, maximum=INT32_MAX)
                if code >= 0:
                    return code
    answered = integer_or(str(document.get("code")), 500, minimum=400, maximum=599)
    error: ApiError = api_error(answered, document, status[:400].decode("utf-8", "replace"))
    raise error
