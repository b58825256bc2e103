"""The shells that run the scripts of a step."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

SHELLS = [
    pytest.param("dash", id="dash"),
    pytest.param("bash", id="bash"),
    pytest.param("busybox", id="busybox without any other tool"),
]


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, ...]:
    """Its command line, for a step in the folder `step`."""
    path = shutil.which(request.param)
    if path is None:
        pytest.skip(f"{request.param} is not installed")
    folder = tmp_path / "step" / "bin"
    folder.parent.mkdir()
    if request.param != "busybox":
        return (path,)
    folder.mkdir()
    return (str(shutil.copy(path, folder / "busybox")), "sh")
