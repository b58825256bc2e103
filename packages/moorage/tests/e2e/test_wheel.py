"""The wheels: what is in them, and that an empty environment needs nothing else."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
SECONDS = 600.0  # for one installation from the registry
UNREACHABLE = re.compile(
    r"dns error|error sending request|Failed to fetch|timed out|Connection refused|No route", re.I
)


SOURCES = {  # distribution → its folder of modules; `moorage` has none, and requires the others
    "moorage": None,
    "moorage_kube": ROOT / "packages/kube/src/moorage_kube",
    "moorage_local": ROOT / "packages/local/src/moorage_local",
    "moorage_platform": ROOT / "packages/moorage/src/moorage",
    "moorage_workflows": ROOT / "packages/workflows/src/moorage_workflows",
}


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
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Distribution → its wheel, made from its source distribution alone."""
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--all-packages", "--out-dir", folder, ROOT)
    found = {path.name.partition("-")[0]: path for path in folder.glob("*.whl")}
    del found["moorage_testing"]  # never published
    return found


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


def files_of(folder: Path | None) -> set[str]:
    """Paths of the files in a package of this clone, without what Python and the tools write."""
    return (
        set()
        if folder is None
        else {
            path.relative_to(folder.parent).as_posix()
            for path in folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
    )


@pytest.mark.xdist_group("wheel")
def test_each_wheel_has_every_file_of_its_package_and_the_licence(wheels):
    assert wheels.keys() == SOURCES.keys()
    for name, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            files = {file for file in archive.namelist() if not file.endswith("/")}
            (licence,) = (file for file in files if file.endswith(".dist-info/licenses/LICENSE"))
            assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
        assert {file for file in files if ".dist-info/" not in file} == files_of(SOURCES[name])


@pytest.mark.xdist_group("wheel")
def test_the_descriptions_lead_nowhere_into_the_repository(wheels):
    for name, wheel in wheels.items():
        metadata = metadata_of(wheel)
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata["Requires-Python"] == ">=3.11"
        assert metadata["Version"] == "0.1.0"
        assert metadata["Description-Content-Type"] == "text/markdown"
        text = str(metadata.get_payload())
        assert text.startswith(f"# {'Moorage' if name == 'moorage' else name.replace('_', '-')}\n")
        assert re.findall(r"\]\((?!https?://)[^)]*\)", text) == []
    assert "pip install moorage && moor demo" in str(metadata_of(wheels["moorage"]).get_payload())


@pytest.mark.xdist_group("wheel")
def test_the_client_and_the_local_cluster_stand_alone(wheels, tmp_path):
    """In an environment without the platform."""
    program = """
import asyncio, pathlib, sys
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES
from moorage_local.testing.server import api_server

async def names(kubeconfig):
    async with KubeClient.from_kubeconfig(kubeconfig) as api:
        return [item["metadata"]["name"] for item in (await api.list(NAMESPACES)).items]

with api_server(pathlib.Path(sys.argv[1])) as server:
    print(asyncio.run(names(server.kubeconfig)))
"""
    binaries = installed(tmp_path / "venv", wheels["moorage_kube"], wheels["moorage_local"])
    done = subprocess.run(
        [binaries / "python", "-c", program, tmp_path / "data"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "'default'" in done.stdout, done.stderr
    alone = subprocess.run(
        [binaries / "python", "-c", "import moorage"], capture_output=True, check=False, cwd=tmp_path
    )
    assert alone.returncode == 1


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
def test_the_lowest_versions_of_the_dependencies_start_a_cluster(wheels, tmp_path):
    needed = {
        line
        for wheel in wheels.values()
        for line in metadata_of(wheel).get_all("Requires-Dist", [])
        if "extra ==" not in line and not line.startswith("moorage")
    }
    binaries = installed(tmp_path / "venv", "--resolution", "lowest-direct", *sorted(needed), *wheels.values())
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
def test_an_empty_environment_gives_the_demo_and_the_manifests(wheels, tmp_path):
    locked = tmp_path / "locked.txt"
    uv("export", "--quiet", "--frozen", "--no-dev", "--no-hashes", "--no-emit-workspace", "--output-file", locked)
    binaries = installed(tmp_path / "venv", "--constraint", locked, *wheels.values())
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
