"""What every scene on a cluster has: a client, a namespace, a browser."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import yaml

from moorage.cluster.serverurl import server_url
from moorage_kube.remote.client import KubeClient
from moorage_testing.browser import ARGS, LAUNCH_MS, chromium_path
from moorage_testing.cluster import Cluster
from moorage_testing.laptops import HIDE_UNIX
from moorage_testing.namespaces import api as api
from moorage_testing.namespaces import namespace as namespace


@pytest.fixture
async def login_server(cluster: Cluster, api: KubeClient) -> str:
    """The server's address, for people who log in with a password."""
    if cluster.address not in ("", "127.0.0.1"):
        pytest.skip("passwords go over plain http to 127.0.0.1 only: run it without MOORAGE_TEST_ADDRESS")
    return (await server_url(api)).rstrip("/")


@pytest.fixture
def browser() -> Iterator[Any]:
    path = chromium_path()
    playwright_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=ARGS, timeout=LAUNCH_MS)
        yield launched
        launched.close()


# --- people who have an address and a password alone

PASSWORD = "correct horse battery"

Typed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def server(cluster: Cluster) -> str:
    info = cluster.moor("status", "-o", "json", "--data", str(cluster.home)) if cluster.kind == "local" else None
    if info is None:
        pytest.skip("needs a local cluster, whose runs run")
    return str(yaml.safe_load(info.stdout)["page"]).partition("/?")[0]


def is_ready(cluster: Cluster, team: str) -> bool:
    """Whether the operator has given a team's people what its spec says now."""
    return bool(json.loads(cluster.moor("tenant", "show", team, "-o", "json").stdout)["ready"])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of a person, with nothing in it."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def type_argv(home: Path) -> Typed:
    """Runs a program in the environment of the person with that home, whose laptop lacks the modules of Unix."""
    hidden = ("KUBECONFIG", "MOORAGE_", "XDG_", "BROWSER", "DISPLAY", "WAYLAND_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    scripts = str(Path(sys.executable).parent)
    (home.parent / "sitecustomize.py").write_text(
        "import os\nif not {'MOORAGE_RUN', 'MOORAGE_MAP'} & {*os.environ}:  # a run or map is not on the laptop\n"
        + indent(HIDE_UNIX, "    ")
    )
    env |= {"HOME": str(home), "PATH": f"{scripts}:{env['PATH']}", "NO_COLOR": "1", "PYTHONPATH": str(home.parent)}

    def type_in(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, env=env, cwd=home, input=stdin, capture_output=True, text=True, timeout=300, check=False
        )

    return type_in


@pytest.fixture
def typed(type_argv: Typed) -> Typed:
    """Types a command of `moor` in a home that has nothing in it."""

    def type_in(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "moorage.cli.main", *words] if words[0] != "kubectl" else list(words)
        return type_argv(*argv, stdin=stdin)

    return type_in


def log_in(typed: Typed, server: str, person: str) -> str:
    done = typed("login", server, "--username", person, "--password-stdin", stdin=PASSWORD + "\n")
    assert done.returncode == 0, done.stderr
    return done.stderr
