"""The environment of the demo: a folder, a cluster in it, and the commands that the demo runs there."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from moorage.cli import console
from moorage.sdk.progress import Bar
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import AlreadyRunning, DataFolderError, MoorageError

PROGRAMS = Path(__file__).parent / "files"
BUDGET_SECONDS = 170.0  # three minutes, less the start of Python; optional steps wait no longer
LEAST_SECONDS = 10.0  # that an optional step may take, however late it is
ESSENTIAL_SECONDS = 300.0  # bounds a hang on a machine that is busy
DETACH_SECONDS = 15.0  # for a command to end after Ctrl-C
LOOK_SECONDS = 0.3
WIDTH = 76  # of a printed command
MARK = "demo.lock"  # a folder with this file is the demo's own: it may be removed


class Outcome(Struct, frozen=True):
    """The output of a command, and its exit code; None if it still ran when the patience ended."""

    text: str
    code: int | None


class Place:
    """The demo's folder. `cluster` is a data folder of `moor up`; `files` has the programs and pictures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = folder / "cluster"
        self.files = folder / "files"

    @property
    def kubeconfig(self) -> Path:
        return self.cluster / "kubeconfig"

    @property
    def is_ours(self) -> bool:
        return (self.folder / MARK).exists()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder for one demo.

        Raises AlreadyRunning, and DataFolderError if the folder contains other files.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.is_ours and any(self.folder.iterdir()):
                raise DataFolderError(
                    f"{self.folder} holds other files",
                    hint="use an empty or a new folder: moor demo --folder FOLDER",
                )
            file = (self.folder / MARK).open("a+")
        except OSError as error:
            raise DataFolderError(
                f"cannot write to {self.folder}: {error.strerror or error}",
                hint="use another folder: moor demo --folder FOLDER",
            ) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyRunning(
                    f"a demo is running in {self.folder}",
                    hint="wait for its end, or use another folder: moor demo --folder FOLDER",
                ) from None
            yield

    def prepare(self) -> None:
        """Empty the folder and copy the programs into it. The cluster must not run."""
        self.clear()
        self.files.mkdir()
        for program in sorted(PROGRAMS.glob("*.py")):
            shutil.copyfile(program, self.files / program.name)

    def clear(self) -> None:
        for path in (self.cluster, self.files):
            if path.exists():
                shutil.rmtree(path)

    def remove(self) -> None:
        self.clear()
        (self.folder / MARK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it has a file of the user
            self.folder.rmdir()


def environment(place: Place) -> dict[str, str]:
    """The environment variables of the demo's commands. They select the demo's cluster and no other."""
    env = {
        key: value for key, value in os.environ.items() if not key.startswith("MOORAGE_") and key != "KUBECONFIG"
    }
    env |= {"MOORAGE_DATA": str(place.cluster), "MOORAGE_KUBECONFIG": str(place.kubeconfig)}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    # as in an activated environment: runs find the Python that the demo has
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
    return env


def stop_cluster(place: Place) -> None:
    """Stop the cluster of the place. Ctrl-C does not interrupt it. Raises MoorageError when the stop fails."""
    done = subprocess.run(
        [sys.executable, "-m", "moorage.cli.main", "down", "--data", str(place.cluster)],
        env=environment(place),
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    if done.returncode:
        raise MoorageError(f"the demo's cluster in {place.cluster} did not stop: {done.stderr.strip()}")


def command_lines(words: Sequence[str]) -> list[str]:
    """A command as a user types it; a long command is broken before its options."""
    lines, line = [], "$ moor"
    for at, word in enumerate(words):
        quoted = word if word.startswith("{") and word.endswith("}") else shlex.quote(word)
        value = words[at + 1] if word.startswith("-") and at + 1 < len(words) else ""
        if word.startswith("-") and len(line) + len(quoted) + len(value) + 4 > WIDTH:
            lines.append(f"{line} \\")
            line = f"    {quoted}"
        else:
            line += f" {quoted}"
    return [*lines, line]


class Runner:
    """Types commands in a place, and prints their output."""

    def __init__(self, place: Place, *, clock: Clock = SYSTEM) -> None:
        self.place = place
        self._clock = clock
        self._started = clock.monotonic()
        self._step = 0
        self._bar = Bar(clock=clock)
        self._is_drawn = False

    @property
    def elapsed(self) -> float:
        return self._clock.monotonic() - self._started

    @property
    def patience(self) -> float:
        """The number of seconds that an optional step may still take."""
        return max(LEAST_SECONDS, BUDGET_SECONDS - self.elapsed)

    def step(self, title: str, *sentences: str) -> None:
        self._step += 1
        bold, plain = ("\033[1m", "\033[0m") if console.has_colour(sys.stdout) else ("", "")
        self._wipe()
        console.raw(f"\n{bold}[{self.elapsed:3.0f} s] {self._step}. {title}{plain}")
        for sentence in sentences:
            self.print(sentence)

    def print(self, line: str) -> None:
        self._wipe()
        console.show(line)
        sys.stdout.flush()

    async def looks(self, every: float = LOOK_SECONDS) -> AsyncIterator[float]:
        """Yield repeatedly, for the longest time of an essential step.

        The value is the seconds since the first time.
        """
        began = self._clock.monotonic()
        while (waited := self._clock.monotonic() - began) < ESSENTIAL_SECONDS:
            yield waited
            await self._clock.sleep(every)

    def waiting(self, what: str, seconds: float) -> None:
        """Show a progress line on a terminal, after 2 seconds of waiting."""
        if seconds >= 2:
            self._is_drawn = True
            self._bar.show(f"  … {what}: {seconds:.0f} s")

    def _wipe(self) -> None:
        if self._is_drawn and sys.stderr.isatty():
            self._bar.show("", now=True)
            console.raw("\r", nl=False)
        self._is_drawn = False

    async def moor(
        self,
        *words: str,
        patience: float = ESSENTIAL_SECONDS,
        show: bool = True,
        stdout: bool = True,
        lines: int = 200,
        check: bool = True,
    ) -> Outcome:
        """Run a command; print it and the first `lines` lines of its output.

        After `patience` seconds, interrupt it.

        If `stdout` is False, only its messages on stderr are printed.

        Raises MoorageError if it fails and `check` is set.
        """
        if show:
            for line in command_lines(words):
                self.print(line)
        # stdin is closed, so that a command that asks a question fails at once
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "moorage.cli.main", *words),
            env=environment(self.place),
            cwd=self.place.files,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if stdout else asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.STDOUT if stdout else asyncio.subprocess.PIPE,
        )
        pipe = process.stdout if stdout else process.stderr
        assert pipe is not None
        # read in a task, so that the output is shown while the command runs
        printed: list[str] = []

        async def read() -> None:
            async for raw in pipe:
                printed.append(raw.decode("utf-8", "replace").rstrip("\n"))
                if show and len(printed) <= lines:
                    self.print(f"  {printed[-1]}".rstrip())
            await process.wait()

        # past its patience the command gets Ctrl-C, then SIGKILL, so that the demo leaves no process behind
        reading = asyncio.create_task(read())
        is_over = False
        try:
            is_over = await self._until(reading, patience, f"moor {' '.join(words[:2])}")
        finally:  # of the patience, or of the demo
            if not is_over and not reading.done():
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
                if not await self._until(reading, DETACH_SECONDS, ""):
                    process.kill()
                    await reading
        # without `show`, the error is the only place for the output
        text = "\n".join(printed)
        if check and is_over and process.returncode:
            raise MoorageError(
                f"`moor {shlex.join(words)}` failed with exit code {process.returncode}"
                + ("" if show else f": {text}"),
                hint=f"see the logs in {self.place.cluster / 'log'}",
            )
        return Outcome(text, process.returncode if is_over else None)

    async def _until(self, task: asyncio.Task[None], seconds: float, what: str) -> bool:
        """Whether the task ended within that time; meanwhile print that the demo waits."""
        began = self._clock.monotonic()
        while not task.done():
            waited = self._clock.monotonic() - began
            if waited >= seconds:
                return False
            if what:
                self.waiting(what, waited)
            await asyncio.wait([task], timeout=LOOK_SECONDS)
        task.result()
        return True

    async def program(self, *words: str) -> None:
        """Run one of the demo's programs in its folder. Raises MoorageError if it fails."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *words,
            env=environment(self.place),
            cwd=self.place.files,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, complaint = await process.communicate()
        if process.returncode:
            raise MoorageError(f"{shlex.join(words)} failed: {complaint.decode('utf-8', 'replace').strip()}")
