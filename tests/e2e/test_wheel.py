"""The wheel and the source distribution: what is in them, and that an empty environment needs nothing else."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 600.0  # for one installation from the registry
UNREACHABLE = re.compile(
    r"dns error|error sending request|Failed to fetch|timed out|Connection refused|No route", re.I
)


@dataclass(frozen=True, slots=True)
class Built:
    wheel: Path
    sdist: Path


def uv(*words: str | Path) -> str:
    """What uv prints. Skips the test where uv or the registry cannot be reached."""
    here = ROOT / ".uv" / "bin" / "uv"
    program = shutil.which("uv") or (str(here) if here.exists() else None)
    if program is None:
        pytest.skip("uv is not installed; run `make setup`")
    env = os.environ | {"UV_PYTHON_DOWNLOADS": "never"}
    done = subprocess.run(
        [program, *map(str, words)],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    if done.returncode and UNREACHABLE.search(done.stderr):
        pytest.skip(f"the package registry cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both, the wheel made from the source distribution alone."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--out-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return Built(wheel, sdist)


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


def sources(folder: str) -> set[str]:
    """Paths of the files in a folder of this clone, without what Python and the tools write."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.xdist_group("wheel")
def test_the_wheel_has_every_file_of_the_package_and_the_licence(built):
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    assert {name for name in names if ".dist-info/" not in name} == {
        path.removeprefix("src/") for path in sources("src/moorage")
    }
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert "moorage/py.typed" in names


@pytest.mark.xdist_group("wheel")
def test_the_source_distribution_has_all_but_the_tests(built):
    with tarfile.open(built.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {path for folder in ("src/moorage", "deploy", "docs", "examples") for path in sources(folder)}
    wanted |= {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "uv.lock", "Makefile", "hatch_build.py"}
    assert wanted - names == set()
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


@pytest.mark.xdist_group("wheel")
def test_the_description_leads_nowhere_into_the_repository(built):
    metadata = metadata_of(built.wheel)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = str(metadata.get_payload())
    assert text.startswith("# Moorage\n")
    assert "pip install moorage && moor demo" in text
    assert re.findall(r"\]\((?!https?://)[^)]*\)", text) == []


def installed(folder: Path, *what: str | Path) -> Path:
    """The `bin` of a new environment in which only this was installed."""
    uv("venv", "--quiet", "--python", sys.executable, folder)
    uv("pip", "install", "--quiet", "--python", folder / "bin" / "python", *what)
    return folder / "bin"


def moor(binaries: Path, home: Path, *words: str, code: int = 0) -> str:
    """Type a command in another folder than the clone, with nothing but the environment and a home."""
    env = {"HOME": str(home), "PATH": f"{binaries}:/usr/bin:/bin", "LANG": "C.UTF-8"}
    done = subprocess.run(
        [binaries / "moor", *words], cwd=home, env=env, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.xdist_group("wheel")
def test_the_lowest_versions_of_the_dependencies_start_a_cluster(built, tmp_path):
    needed = [line for line in metadata_of(built.wheel).get_all("Requires-Dist", []) if "extra ==" not in line]
    binaries = installed(tmp_path / "venv", "--resolution", "lowest-direct", *needed, built.wheel)
    home = tmp_path / "home"
    home.mkdir()
    ports = ("--port", "0", "--api-port", "0", "--ingress-port", "0")
    try:
        moor(binaries, home, "up", "--nodes", "1", "--gpus", "1", *ports)
        assert "hello" in moor(binaries, home, "run", "--memory", "64Mi", "--follow", "--", "echo", "hello")
    finally:
        moor(binaries, home, "down")


@pytest.mark.xdist_group("wheel")
@pytest.mark.timeout(900)
def test_an_empty_environment_gives_the_demo_and_the_manifests(built, tmp_path):
    locked = tmp_path / "locked.txt"
    uv("export", "--quiet", "--frozen", "--no-dev", "--no-hashes", "--no-emit-project", "--output-file", locked)
    binaries = installed(tmp_path / "venv", "--constraint", locked, built.wheel)
    home = tmp_path / "home"
    home.mkdir()
    assert moor(binaries, home, "--version").startswith("moor 0.1.0")
    assert "  demo  " in moor(binaries, home, "--help")
    assert moor(binaries, home, "completion", "bash")
    moor(binaries, home, "manifests", "--write", "deploy")
    compared = filecmp.dircmp(ROOT / "deploy", home / "deploy")
    assert differences(compared) == []
    try:
        printed = moor(binaries, home, "demo")
        assert "The cluster keeps running" in printed
        assert str(home / ".local/share/moorage-demo/files") in printed
    finally:
        moor(binaries, home, "demo", "--down")
    assert not (home / ".local/share/moorage-demo").exists()


def differences(compared: filecmp.dircmp[str]) -> list[str]:
    """Names that differ or stand on one side only, in all folders."""
    names = [*compared.left_only, *compared.right_only, *compared.diff_files, *compared.funny_files]
    return names + [name for part in compared.subdirs.values() for name in differences(part)]
