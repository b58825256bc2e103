"""`wait`: waits for the end of the step, saves its outputs, and reports."""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moorage_workflows.executor.errors import Passing, StepError
from moorage_workflows.executor.fetching import digest_of
from moorage_workflows.executor.folders import files_of, sum_of
from moorage_workflows.executor.order import Order, Output
from moorage_workflows.executor.pack import pack
from moorage_workflows.executor.retrying import Retrying
from moorage_workflows.executor.stores import Stores
from moorage_workflows.executor.web import Server

LOGS = "main-logs"  # name of the artifact with the log
RESULT_BYTES = 256 * 1024  # the last ones of standard output
PARAMETER_BYTES = 256 * 1024
LOOK_SECONDS = 5.0  # between two looks; the end itself is seen at once
START_LOOK_SECONDS = 0.2
START_SECONDS = 5.0  # a container that runs when its pod is asked to end has started its script by then


def wait_for_end(
    step: Path,
    ending: threading.Event,
    *,
    look_seconds: float = LOOK_SECONDS,
    start_seconds: float = START_SECONDS,
) -> int | None:
    """The exit code of the step's command; None: it was killed, and its outputs were not copied.

    The script holds the pipe `alive` open. If the pipe is closed before the script has written `done`, the
    script was killed. `ending`: set when the pod is to end, after which none of its containers starts.
    Raises StepError if the script has not started `start_seconds` later.
    """
    pipe = os.open(step / "alive", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        was_open = False
        ending_seconds = 0.0
        while True:
            code = _code(step)
            if code is not None:
                return code
            is_open = _is_held(pipe)
            was_open = was_open or is_open or (step / "out" / "started").exists()
            if was_open and not is_open:
                return _code(step)  # it may have written between the two looks
            if was_open:
                poll.poll(look_seconds * 1000)
                continue
            if ending_seconds >= start_seconds:
                raise StepError("the pod was ended before the command of the step started")
            pause = min(look_seconds, START_LOOK_SECONDS)
            select.select([], [], [], pause)
            ending_seconds += pause if ending.is_set() else 0.0
    finally:
        os.close(pipe)


def _is_held(pipe: int) -> bool:
    try:
        return bool(os.read(pipe, 4096))
    except BlockingIOError:
        return True


def _code(step: Path) -> int | None:
    data = _read(step / "out" / "done", 64)
    try:
        return None if data is None else int(data)
    except ValueError:
        return None


@dataclass(slots=True)
class Report:
    """The report, in the form of `moorage_workflows.model.workflow.StepReport`."""

    pod: str
    parameters: dict[str, str] = field(default_factory=dict)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    result: str | None = None
    exit_code: str | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def document(self) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        for name, value in (
            ("parameters", self.parameters),
            ("artifacts", self.artifacts),
            ("result", self.result),
            ("exitCode", self.exit_code),
        ):
            if value is not None and value not in ({}, []):
                outputs[name] = value
        document: dict[str, Any] = {"pod": self.pod, "outputs": outputs}
        return document | ({"error": "; ".join(self.problems)} if self.problems else {})


def save(
    step: Path,
    order: Order,
    code: int | None,
    server: Callable[[], Server],
    stores: Stores,
    retrying: Retrying,
) -> Report:
    """Save the outputs of the step. If the step itself failed, problems are only printed on standard error.

    Of a step that was killed (`code` None) only the log is saved.
    """
    # a step that was killed has no outputs
    report = Report(order.pod)
    problems: list[str] = []
    if code is not None:
        report.exit_code = str(code)
        # parameters and artifacts: each problem counts, but does not stop the others
        for number, parameter in enumerate(order.parameters):
            try:
                value = _parameter(step, number, parameter.path, parameter.default)
                report.parameters[parameter.name] = value
            except StepError as error:
                problems.append(f"output parameter {parameter.name!r}: {error.message}")
        for number, output in enumerate(order.artifacts, len(order.parameters)):
            try:
                artifact = _artifact(step, number, output, server, stores, retrying)
            except StepError as error:
                problems.append(f"output artifact {output.name!r}: {error.message}")
            else:
                report.artifacts += [artifact] if artifact is not None else []
        if order.keeps_result:
            report.result = _result(step)
    # the log is saved in any case
    if order.keeps_logs:
        try:
            report.artifacts += _logs(step, order.log, server, stores, retrying)
        except StepError as error:
            problems.append(f"the log: {error.message}")
    # problems of a failed step do not replace its failure
    for problem in problems:
        print(f"moorage: {problem}", file=sys.stderr, flush=True)
    if code == 0:
        report.problems = problems
    return report


def _parameter(step: Path, number: int, path: str, default: str | None) -> str:
    """Return the content of a file without a newline at its end; the default if there is no file."""
    out = step / "out"
    if (out / f"{number}.missing").exists():
        if default is None:
            raise StepError(f"the file {path} does not exist, and the parameter has no default")
        return default
    data = _read(out / f"{number}.parameter", PARAMETER_BYTES + 2)
    if data is None or (out / f"{number}.error").exists():
        raise StepError(f"the file {path} cannot be read: {_complaint(out / f'{number}.error')}")
    if len(data) == PARAMETER_BYTES + 2 or len(data.removesuffix(b"\n")) > PARAMETER_BYTES:
        raise StepError(
            f"the file {path} has more than {PARAMETER_BYTES} bytes, the limit of a parameter: use an artifact"
        )
    try:
        return data.removesuffix(b"\n").decode()
    except UnicodeDecodeError as error:
        raise StepError(f"the file {path} is not UTF-8 text: {error}") from error


def _artifact(
    step: Path, number: int, output: Output, server: Callable[[], Server], stores: Stores, retrying: Retrying
) -> dict[str, Any] | None:
    """Save one artifact. Returns None if it is optional and missing."""
    out = step / "out"
    if (out / f"{number}.missing").exists():
        if output.is_optional:
            return None
        raise StepError(f"{output.path} does not exist, and the artifact is not optional")
    raw = out / f"{number}.tar"
    if (out / f"{number}.error").exists() or not _is_plain(raw):
        raise StepError(f"{output.path} cannot be read: {_complaint(out / f'{number}.error')}")
    packed = step / "tmp" / f"out-{number}"
    if output.archive == "none" and "http" not in output.location:
        try:
            folder = _folder(raw, packed, output, server, stores, retrying)
        finally:
            _discard(packed)
        if folder is not None:
            _discard(raw)
            return folder
    archive = pack(raw, output.archive, packed, level=output.level)
    _discard(raw)  # a packed file needs no room twice
    try:
        return _upload(packed, output.name, archive, output, server, stores, retrying)
    finally:
        _discard(packed)


def _folder(
    raw: Path, file: Path, output: Output, server: Callable[[], Server], stores: Stores, retrying: Retrying
) -> dict[str, Any] | None:
    """Save each file of a folder by itself, below the artifact's key; None: it is not a folder, or has no file.

    `file`: where each is for the moment.
    """
    stored: dict[str, dict[str, Any]] = {}
    for name in files_of(raw, file):
        try:
            stored[name] = _upload(file, output.name, "none", output, server, stores, retrying, below=name)
        except StepError as error:
            raise StepError(f"its file {name!r}: {error.message}") from error
    if not stored:
        return None
    last, entry = next(reversed(stored.items()))
    versions = {name: str(each.get("version") or "") for name, each in stored.items()}
    return {
        **entry,
        **({"key": str(entry["key"]).removesuffix(f"/{last}")} if "key" in entry else {}),
        "files": len(stored),
        "sizeBytes": sum(int(each["sizeBytes"]) for each in stored.values()),
        "digest": sum_of({name: str(each["digest"]) for name, each in stored.items()}),
        "version": sum_of(versions) if all(versions.values()) else "",
    }


def _upload(
    file: Path,
    name: str,
    archive: str,
    output: Output | None,
    server: Callable[[], Server],
    stores: Stores,
    retrying: Retrying,
    *,
    below: str = "",
) -> dict[str, Any]:
    """Save a file. `below`: its name, if it is a file of a folder."""
    digest, size = digest_of(file), file.stat().st_size
    if output is not None and output.location:
        version = retrying.call(
            f"output artifact {name!r}", lambda: stores.write(output.location, file, below=below)
        )
        artifact = {"name": name, "archive": archive, "location": dict(output.kept), "digest": digest}
        return artifact | {"sizeBytes": size} | ({"version": version} if version else {})

    def put() -> dict[str, Any]:
        artifact = server().put_artifact(
            name, archive, file, key=output.key if output is not None else "", below=below
        )
        if artifact.get("digest") not in (None, "", digest):
            raise Passing("the stored artifact has another digest than the sent one")
        return artifact

    artifact = retrying.call(f"output artifact {name!r}", put)
    return {"digest": digest, "sizeBytes": size, **artifact, "name": name, "archive": archive}


def _result(step: Path) -> str:
    """Return the end of standard output, without a newline at its end."""
    data = _read(step / "out" / "result", RESULT_BYTES + 1) or b""
    return data.removesuffix(b"\n")[-RESULT_BYTES:].decode("utf-8", "replace")


def _logs(
    step: Path, output: Output | None, server: Callable[[], Server], stores: Stores, retrying: Retrying
) -> list[dict[str, Any]]:
    log = step / "out" / "log"
    if not _is_plain(log):
        return []
    return [_upload(log, LOGS, "none", output, server, stores, retrying)]


def _read(path: Path, most: int) -> bytes | None:
    """Read at most `most` bytes of a regular file; None if there is none.

    Links are not followed, because the step may have created them.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read(most) if stat.S_ISREG(os.fstat(fd).st_mode) else None


def _is_plain(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _complaint(path: Path) -> str:
    text = (_read(path, 400) or b"").decode("utf-8", "replace").strip()
    return text or "it could not be copied"


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        pass  # made by another user of the pod; the folder is deleted with the pod
