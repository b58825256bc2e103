"""The process in which a function stays loaded: one item in, one answer out.

    python3 worker.pyz --child IN IN OUT PRINT PRINT FUNCTION.zip

Items come in turns from the two IN sockets, a packet each, and print to the PRINT pipe of the same turn. So
the next item can wait here while one runs, their outputs stay separate, and an item that has not begun can be
withdrawn.

The zip holds `map.json`: {"entry": "module:function"} with the module next to it, or {"pickle":
"function.pkl"} with the modules for unpickling (cloudpickle) next to it; "python": "3.11" when it was
pickled; "codec" of values and results: "json", "pickle", or "auto": as they are where JSON restores the same
value, else {"$pickle": base64}. Values are JSON, answers on OUT are JSON, one per line.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import math
import os
import pickle
import socket
import sys
import time
import traceback
import zipfile
from collections.abc import Callable, Iterable
from typing import IO, Any

CANNOT_LOAD = 3
PICKLED = "$pickle"
SAFE_INTEGER = 2**53
RESULT_BYTES = 256 * 1024  # of a result; a longer one is sent as a path
TOO_LONG = (
    f"its result has %s bytes; at most {RESULT_BYTES} are allowed: write it to a file on a volume or in a store,"
    " and let the result be its path"
)
PACKET_BYTES = 512 * 1024  # the longest value has 64 KiB as it comes; spelt out, numbers may take thrice that


def main(arguments: list[str]) -> int:
    """Serve until the input ends. Exit code 3: the function does not load; why is on the output pipe."""
    fds = [int(argument) for argument in arguments[:5]]
    for fd in fds:
        os.set_inheritable(fd, False)
    sources = [socket.socket(fileno=fd) for fd in fds[:2]]
    sink = os.fdopen(fds[2], "wb")
    try:
        function, codec = load(arguments[5])
    except BaseException as error:  # any error of a user's module during its import
        traceback.print_exc()
        _say(sink, {"loaded": False, "message": f"the function does not load: {describe(error)}"})
        return CANNOT_LOAD
    _say(sink, {"loaded": True})
    serve(itertools.cycle([(sources[0], fds[3]), (sources[1], fds[4])]), sink, function, codec)
    return 0


def preload(path: str) -> None:
    """Import the modules that unpickling needs, so that forked processes have them."""
    try:
        with zipfile.ZipFile(path) as archive:
            if "pickle" not in json.loads(archive.read("map.json")):
                return
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return  # the loader of the function reports the error
    sys.path.insert(0, path)
    try:
        __import__("cloudpickle")
    except ImportError:
        pass  # it was pickled by something else
    finally:
        sys.path.remove(path)


def load(path: str) -> tuple[Callable[[Any], Any], str]:
    """The function in a zip, and the codec of its values."""
    with zipfile.ZipFile(path) as archive:
        about: dict[str, Any] = json.loads(archive.read("map.json"))
        pickled = archive.read(about["pickle"]) if "pickle" in about else b""
    sys.path.insert(0, path)
    sys.path.insert(0, os.getcwd())
    codec = str(about.get("codec", "json"))
    if pickled:
        wanted = str(about.get("python", ""))
        here = f"{sys.version_info[0]}.{sys.version_info[1]}"
        if wanted and wanted != here:
            raise RuntimeError(
                f"it was pickled by Python {wanted}, this image has {here}: use an image with Python {wanted}"
            )
        return pickle.loads(pickled), codec
    module, _, name = str(about["entry"]).partition(":")
    target: Any = __import__(module, fromlist=["_"])
    for part in name.split("."):
        target = getattr(target, part)
    if not callable(target):
        raise TypeError("{} is not a function, it is a {}".format(about["entry"], type(target).__name__))
    return target, codec


def serve(
    turns: Iterable[tuple[socket.socket, int]], sink: IO[bytes], function: Callable[[Any], Any], codec: str
) -> None:
    streams = Streams()
    for source, to in turns:
        packet = source.recv(PACKET_BYTES)
        if not packet:
            return
        # the output of the item is written to the pipe of its turn
        os.dup2(to, 1)
        os.dup2(to, 2)
        streams.restore()
        _forget_peak()
        began = time.monotonic()
        final = True  # the same error comes again: the item is not read, or its result is not sent
        try:
            value = decode(json.loads(packet), codec)
            final = False
            value = function(value)
            final = True
            answer: dict[str, Any] = {"ok": True, "value": encode(value, codec)}
            text = json.dumps(answer, allow_nan=False)
            check_text(text)
            if len(text) > RESULT_BYTES:
                answer = {"ok": False, "final": True, "message": TOO_LONG % len(text)}
                text = json.dumps(answer)
        except MemoryError as error:
            traceback.print_exc()
            answer = {"ok": False, "oom": True, "message": describe(error)}
            text = json.dumps(answer)
        except (Exception, SystemExit) as error:  # an item's own error; an interrupt is the worker's
            traceback.print_exc()
            answer = {"ok": False, "final": final, "message": describe(error)}
            text = json.dumps(answer)
        taken = time.monotonic() - began
        streams.flush()
        text = text[:-1] + f', "seconds": {taken:.6f}, "memory": {_peak()}}}\n'
        try:
            sink.write(text.encode())
            sink.flush()
        except OSError:
            return  # the worker has ended


def check_text(dumped: str) -> None:
    """Raise UnicodeEncodeError, a ValueError, when this JSON has half a character in it: no server takes that."""
    if "\\ud" in dumped:
        json.dumps(json.loads(dumped), ensure_ascii=False).encode()


def decode(value: Any, codec: str) -> Any:
    if codec == "auto":
        if type(value) is dict and PICKLED in value:
            return pickle.loads(base64.b64decode(value[PICKLED]))
        return value
    return pickle.loads(base64.b64decode(value)) if codec == "pickle" else value


def encode(value: Any, codec: str) -> Any:
    """The value as JSON. Where cloudpickle was imported, objects of a script's own classes are pickled too."""
    if codec == "json" or (codec == "auto" and is_plain(value)):
        return value
    text = base64.b64encode(sys.modules.get("cloudpickle", pickle).dumps(value, protocol=4)).decode()
    return {PICKLED: text} if codec == "auto" else text


def is_plain(value: Any) -> bool:
    """Whether JSON restores exactly the same value: no tuples, no NaN, no whole numbers that others round."""
    kind = type(value)
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
        return True
    if value is None or kind is bool:
        return True
    if kind is int:
        return abs(int(value)) <= SAFE_INTEGER
    if kind is float:
        return math.isfinite(value)
    if kind is list:
        return all(is_plain(item) for item in value)
    if kind is dict:
        if PICKLED in value:
            return False
        return all(type(name) is str and is_plain(name) and is_plain(member) for name, member in value.items())
    return False


def describe(error: BaseException) -> str:
    """The exception on one line, as the last line of its traceback."""
    return " ".join(traceback.format_exception_only(type(error), error)[-1].split())


def _say(sink: IO[bytes], message: dict[str, Any]) -> None:
    sink.write(json.dumps(message).encode() + b"\n")
    sink.flush()


class Streams:
    """Standard output and error as they are once the function is loaded: each item begins with these.

    An item may close, detach or replace them: that is not the next item's.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {"stdout": sys.stdout, "stderr": sys.stderr}

    def restore(self) -> None:
        """Give the next item streams that write."""
        for fd, name in ((1, "stdout"), (2, "stderr")):
            if not _is_open(self._kept[name]):
                raw = io.FileIO(fd, "w", closefd=False)
                self._kept[name] = io.TextIOWrapper(raw, "utf-8", "backslashreplace", write_through=True)
            setattr(sys, name, self._kept[name])

    def flush(self) -> None:
        """Write the output of the item, also to its own streams."""
        for stream in (sys.stdout, sys.stderr, *self._kept.values()):
            try:
                stream.flush()
            except Exception:  # any object that an item has put there
                pass


def _is_open(stream: Any) -> bool:
    try:
        return stream is not None and not getattr(stream, "closed", False)
    except Exception:  # it is detached from its buffer
        return False


def _forget_peak() -> None:
    """Let the peak of memory count from here (Linux 4.0 and newer)."""
    try:
        with open("/proc/self/clear_refs", "wb") as file:
            file.write(b"5")
    except OSError:
        pass  # then the peak is that of the whole process


def _peak() -> int:
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass  # no /proc here
    return 0
