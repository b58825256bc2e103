"""Run a program with the notice on its stdin.

It is tried once: the effects of an interrupted command are unknown.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from moorage.notify.delivery import NotDelivered

if TYPE_CHECKING:
    from moorage.decide.maps.notices import Notice
    from moorage.model.targets import Command
    from moorage.notify.outbound import Outbound

KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR")  # the rest of our environment may hold secrets


async def run(notice: Notice, target: Command, outbound: Outbound) -> None:
    """The program and its child processes are killed when its time is over. Raises NotDelivered."""
    if not outbound.commands:
        raise NotDelivered("commands are not allowed here", again=False)
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment |= {"MOORAGE_NOTICE": notice.event, "MOORAGE_NOTICE_KEY": notice.key}
    try:
        process = await asyncio.create_subprocess_exec(
            *target.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise NotDelivered(f"{target.label} cannot be run: {error.strerror}", again=False) from None
    try:
        async with asyncio.timeout(outbound.seconds):
            await process.communicate((notice.text + "\n").encode())
    except TimeoutError:
        raise NotDelivered(f"{target.label} ran longer than {outbound.seconds:g} s", again=False) from None
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        raise NotDelivered(f"{target.label} ended with {process.returncode}", again=False)
