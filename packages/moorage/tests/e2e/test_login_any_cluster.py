"""moor login, token, kubeconfig, user and audit as typed, and kubectl with what they write, on any cluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest
import yaml

from moorage.actions import people
from moorage.model.manifests import ROLEBINDINGS
from moorage.model.people import account_user, subjects_of
from moorage_kube.errors import NotFound
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES
from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster, find_kubectl

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api")]

PASSWORD = "correct horse battery"


@pytest.fixture
def server(login_server: str) -> str:
    return login_server


@pytest.fixture
async def ada(cluster: Cluster, api: KubeClient, unique: str) -> AsyncIterator[str]:
    """A person with a password, who may look at the namespace of the test's name."""
    person = f"ada-{unique}"
    cluster.moor("user", "create", person, "--password-stdin", stdin=PASSWORD + "\n")
    await api.create(NAMESPACES, {"metadata": {"name": unique}})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    bound: Any = {"metadata": {"name": "ada"}, "subjects": subjects_of(person), "roleRef": role}
    await api.create(ROLEBINDINGS, bound, unique)
    yield person
    await api.delete(NAMESPACES, unique)
    with contextlib.suppress(NotFound):
        await people.delete_account(api, person)


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who knows the server only."""
    return {"MOORAGE_CONFIG": str(tmp_path / "config"), "MOORAGE_KUBECONFIG": str(tmp_path / "none")}


def kubectl(kubeconfig: Path, home: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    found = find_kubectl()
    if found is None:
        pytest.skip("there is no kubectl here")
    scripts = str(Path(sys.executable).parent)
    env = os.environ | home | {"KUBECONFIG": str(kubeconfig), "PATH": f"{scripts}:{os.environ['PATH']}"}
    argv = [found, "--kubeconfig", str(kubeconfig), *args]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)


def log_in(cluster: Cluster, server: str, ada: str, home: dict[str, str]) -> None:
    cluster.moor("login", server, "--username", ada, "--password-stdin", stdin=PASSWORD + "\n", env=home)


async def test_kubectl_works_with_the_kubeconfig_and_gets_its_tokens_by_itself(
    cluster: Cluster, server: str, ada: str, home: dict[str, str], tmp_path: Path, unique: str
) -> None:
    log_in(cluster, server, ada, home)
    assert cluster.moor("whoami", env=home).stdout == f"{ada}\n"
    config = tmp_path / "kubeconfig"
    cluster.moor("kubeconfig", "-n", unique, "-o", str(config), env=home)
    assert config.stat().st_mode & 0o777 == 0o600
    assert "token:" not in config.read_text()
    done = kubectl(config, home, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
    assert done.stdout == account_user(ada), done.stderr
    assert kubectl(config, home, "get", "pods").returncode == 0
    assert "orbidden" in kubectl(config, home, "get", "pods", "-n", "kube-system").stderr
    logins = Path(home["MOORAGE_CONFIG"]) / "logins.json"
    assert logins.stat().st_mode & 0o777 == 0o600
    kept = json.loads(logins.read_text())
    kept["logins"][server]["kube_expires"] = "2020-01-01T00:00:00Z"  # the token of long ago
    kept["logins"][server]["kube_token"] = "stale"
    logins.write_text(json.dumps(kept))
    assert kubectl(config, home, "get", "pods").returncode == 0


async def test_a_plain_kubeconfig_has_a_token_with_an_end(
    cluster: Cluster, server: str, ada: str, home: dict[str, str], tmp_path: Path, unique: str
) -> None:
    log_in(cluster, server, ada, home)
    text = cluster.moor("kubeconfig", "--plain", "--expiration", "30m", "-n", unique, env=home).stdout
    assert set(yaml.safe_load(text)["users"][0]["user"]) == {"token"}
    config = tmp_path / "plain"
    config.write_text(text)
    assert kubectl(config, {}, "get", "pods").returncode == 0
    assert cluster.moor("kubeconfig", "--plain", "--expiration", "400d", env=home, check=False).returncode == 2
    cluster.moor("logout", env=home)
    wait_until("a refusal of kubectl", lambda: kubectl(config, {}, "get", "pods").returncode != 0)
    assert cluster.moor("token", env=home, check=False).returncode == 1


async def test_whom_an_administrator_disables_is_out_within_a_minute(
    cluster: Cluster, server: str, ada: str, home: dict[str, str], tmp_path: Path, unique: str
) -> None:
    log_in(cluster, server, ada, home)
    config = tmp_path / "plain"
    cluster.moor("kubeconfig", "--plain", "-n", unique, "-o", str(config), env=home)
    assert kubectl(config, {}, "get", "pods").returncode == 0
    cluster.moor("user", "disable", ada)
    # a minute is promised; the machine may be slow
    wait_until("a refusal of kubectl", lambda: kubectl(config, {}, "get", "pods").returncode != 0)
    wait_until("the end of the session", lambda: cluster.moor("whoami", env=home, check=False).returncode == 1)
    again = cluster.moor(
        "login", server, "--username", ada, "--password-stdin", stdin=PASSWORD + "\n", env=home, check=False
    )
    assert again.returncode == 1
    assert "name or the password is wrong" in again.stderr
    cluster.moor("user", "enable", ada)
    log_in(cluster, server, ada, home)


async def test_a_browser_lets_the_command_line_in(
    cluster: Cluster, server: str, ada: str, home: dict[str, str], tmp_path: Path
) -> None:
    """The person is played: a `$BROWSER` that signs in and presses the button."""
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$1" {ada}\n')
    script.chmod(0o755)
    done = cluster.moor("login", server, env=home | {"BROWSER": f"{script} %s"})
    assert f"as {ada}" in done.stderr
    assert cluster.moor("whoami", env=home).stdout == f"{ada}\n"


async def test_what_was_done_stands_in_the_audit_log(
    cluster: Cluster, server: str, ada: str, home: dict[str, str]
) -> None:
    log_in(cluster, server, ada, home)
    wrong = cluster.moor(
        "login", server, "--username", ada, "--password-stdin", stdin="no\n", env=home, check=False
    )
    assert wrong.returncode == 1
    cluster.moor("token", env=home)
    if cluster.kind != "local":
        pytest.skip("the administrator of this cluster has no token that moor can show to the server")
    entries = json.loads(cluster.moor("audit", "--user", ada, "-o", "json").stdout)
    entries = entries["items"] if isinstance(entries, dict) else entries
    told = [(one["method"], one["path"], one["status"]) for one in reversed(entries)]
    assert told == [
        ("POST", "/api/v1/login", 201),
        ("POST", "/api/v1/login", 401),
        ("POST", "/api/v1/login/token", 201),
    ]
    lines = cluster.moor("audit", "--user", ada, "--since", "1h").stdout.splitlines()
    assert [line.split("  ", 1)[1].partition(" from ")[0] for line in reversed(lines)] == [
        f"{ada} logged in, by REST",
        f"{ada} tried to log in: failed (401), by REST",
        f"{ada} took a token for the cluster, by REST",
    ]
    some = cluster.moor("audit", "--user", ada, "--action", "TOKEN", "-o", "wide").stdout
    assert ("take a token for the cluster" in some, "/api/v1/login" in some) == (True, False)


async def test_by_the_page_of_moor_up_acts_who_started_it(cluster: Cluster, server: str, unique: str) -> None:
    if cluster.kind != "local":
        pytest.skip("elsewhere the page's token only looks")
    config = json.loads((cluster.home / "config.json").read_text())
    tokens = json.loads((cluster.home / "tokens.json").read_text())
    page = next(token for token, one in tokens.items() if one["role"] == "page")
    admin = next(token for token, one in tokens.items() if one["role"] == "admin")
    for token in (page, admin):
        name = f"{unique}-{token[:4].lower()}"
        body = json.dumps({"name": name, "password": PASSWORD}).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        url = f"{server}/api/v1/users"
        assert status_of(urllib.request.Request(url, body, headers, method="POST")) == 201
        gone = urllib.request.Request(f"{url}/{urllib.parse.quote(name)}", headers=headers, method="DELETE")
        assert status_of(gone) == 204
        entries = json.loads(cluster.moor("audit", "--action", name, "-o", "json").stdout)
        entries = entries["items"] if isinstance(entries, dict) else entries
        assert [(one["person"], one["what"]) for one in entries] == [
            (config["user"], f"delete user {name}"),
            (config["user"], f"create user {name}"),
        ]


def status_of(request: urllib.request.Request) -> int:
    with urllib.request.urlopen(request, timeout=120) as answer:
        return int(answer.status)


def _play(address: str, name: str) -> None:
    """Sign in, and press the button on the page that is shown then."""
    parts = urllib.parse.urlsplit(address)
    base = f"{parts.scheme}://{parts.netloc}"
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    opener.addheaders = [("Origin", base), ("Sec-Fetch-Site", "same-origin"), ("Accept", "text/html")]

    def post(path: str, **fields: str) -> str:
        with opener.open(base + path, urllib.parse.urlencode(fields).encode(), timeout=120) as answer:
            return str(answer.read().decode())

    page = post("/login", username=name, password=PASSWORD, next=address.removeprefix(base))
    fields = dict(re.findall(r'name="(challenge|port|state)" value="([^"]*)"', page))
    post("/login/cli", **fields)


if __name__ == "__main__":
    _play(*sys.argv[1:])
