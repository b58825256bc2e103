"""Pack a function for workers: a zip with `map.json`, which `moorage.worker.mapworker.child` reads."""

from __future__ import annotations

import io
import json
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from moorage.decide.runs.credentials import credential_in
from moorage.worker.mapworker.child import encode
from moorage_kube.errors import UsageError
from moorage_kube.quantity import format_bytes

ZIP_LIMIT_BYTES = 900 * 1024  # a ConfigMap holds 1 MiB in all
CODEC = "auto"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack(function: Callable[..., Any] | str) -> bytes:
    """Return the zip of a function, or of "module:function". Raises UsageError.

    A callable is pickled by cloudpickle. The zip includes its module, unless that module is installed, and
    cloudpickle itself, because the image may lack it. If cloudpickle is not installed here, the zip holds only the
    name of the function, which must be importable. The worker imports a "module:function"; if the module is a file
    in the current directory, the zip includes that file.
    """
    if isinstance(function, str):
        return _named(function)
    if not callable(function):
        raise UsageError(f"{function!r} cannot be called", hint="give a function, or 'module:function'")
    try:
        cloudpickle = import_module("cloudpickle")
    except ImportError:
        return _named(_address(function))
    pickled = _pickled(function, cloudpickle)
    about = {"pickle": "function.pkl", "python": ".".join(map(str, sys.version_info[:2])), "codec": CODEC}
    return _zip(about, {"function.pkl": pickled, **_package_files(cloudpickle)})


def check_sendable(function: bytes) -> None:
    """Raise UsageError for a packed function that contains a credential.

    On a cluster the zip is in a ConfigMap.
    """
    with zipfile.ZipFile(io.BytesIO(function)) as archive:
        if what := next(filter(None, (credential_in(archive.read(name)) for name in archive.namelist())), None):
            raise UsageError(
                f"the function is not sent: it contains {what}, and all namespace members can read functions",
                hint="put that into a Secret, mount it, and read it inside the function",
            )


def function_name(function: Callable[..., Any] | str) -> str:
    """The display name of a function."""
    if isinstance(function, str):
        return function.rpartition(":")[2]
    return str(getattr(function, "__name__", type(function).__name__))


def pack_items(items: Iterable[Any], function: Callable[..., Any] | str | None = None) -> Iterator[Any]:
    """Yield items as JSON. Objects of the script's classes, and of the function's module, include their class."""
    try:
        cloudpickle = import_module("cloudpickle")
    except ImportError:
        yield from (encode(item, CODEC) for item in items)
        return
    module = _module_of(function)
    for item in items:
        with _by_value(module, cloudpickle):
            packed = encode(item, CODEC)
        yield packed


def _pickled(function: Callable[..., Any], cloudpickle: ModuleType) -> bytes:
    try:
        with _by_value(_module_of(function), cloudpickle):
            return bytes(cloudpickle.dumps(function, protocol=5))
    except Exception as error:  # any error of the objects that it refers to
        raise UsageError(
            f"{function_name(function)} cannot be sent to workers: {error}",
            hint="open files, connections and locks inside the function",
        ) from error


def _module_of(function: Callable[..., Any] | str | None) -> ModuleType | None:
    """The module that must be sent with a function; None for the script itself, and for an installed module."""
    module = sys.modules.get(str(getattr(function, "__module__", "")))
    return None if module is None or module.__name__ == "__main__" or _is_installed(module) else module


@contextmanager
def _by_value(module: ModuleType | None, cloudpickle: ModuleType) -> Iterator[None]:
    """Let pickles include the objects of a module."""
    if module is None:
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _is_installed(module: ModuleType) -> bool:
    """Whether a module belongs to Python or to an installed package. The image must supply such modules."""
    file = getattr(module, "__file__", None)
    if file is None:
        return True  # built in
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib") if name in paths}
    return any(Path(file).resolve().is_relative_to(Path(folder).resolve()) for folder in folders)


def _address(function: Callable[..., Any]) -> str:
    module, name = str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", ""))
    if module in ("", "__main__") or not name or "<" in name:
        raise UsageError(
            f"{name or function!r} can only be sent with cloudpickle, which is not installed here",
            hint="pip install cloudpickle, or put the function into a module and import it",
        )
    return f"{module}:{name}"


def _named(entry: str) -> bytes:
    module, _, name = entry.partition(":")
    if not module or not name:
        raise UsageError(f"{entry!r} is not a function", hint="use module:function, such as features:make")
    here = Path(*module.split(".")).with_suffix(".py")
    files = {str(here): here.read_bytes()} if "." not in module and here.is_file() else {}
    return _zip({"entry": entry, "codec": CODEC}, files)


def _package_files(package: ModuleType) -> dict[str, bytes]:
    """The Python files of an installed package, and its licence."""
    folder = Path(str(package.__file__)).parent
    files = {f"{package.__name__}/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.py"))}
    for file in metadata.files(package.__name__) or ():
        if file.name.startswith("LICENSE"):
            files[f"{package.__name__}/{file.name}"] = Path(str(file.locate())).read_bytes()
    return files


def _zip(about: dict[str, str], files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in {"map.json": json.dumps(about).encode(), **files}.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    made = buffer.getvalue()
    if len(made) > ZIP_LIMIT_BYTES:
        raise UsageError(
            f"the function packs to {format_bytes(len(made))}; at most {format_bytes(ZIP_LIMIT_BYTES)} go along",
            hint="read large data inside the function, from a volume",
        )
    return made
