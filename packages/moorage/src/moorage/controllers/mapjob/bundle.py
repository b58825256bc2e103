"""The worker program of maps as one file."""

from __future__ import annotations

import functools
import io
import zipfile
from importlib import resources

NAME = "worker.pyz"
_MAIN = "import sys\n\nfrom mapworker.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


@functools.cache
def worker_zip() -> bytes:
    """A zip file that `python3` can run. The bytes are always the same, about 20 KB."""
    folder = resources.files("moorage.worker.mapworker")
    files = {f"mapworker/{path.name}": path.read_bytes() for path in folder.iterdir() if path.name.endswith(".py")}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in sorted({**files, "__main__.py": _MAIN.encode()}.items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
