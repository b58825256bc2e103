"""An OIDC login from the browser to kubectl, and out again when the provider revokes it: by the real clock."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from moorage.actions import people
from moorage.cluster.serverurl import server_url
from moorage.model.people import account_user, groups_in
from moorage_kube.clock import SYSTEM
from moorage_kube.moments import parse_rfc3339
from moorage_kube.remote.client import KubeClient
from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster, find_kubectl, start_cluster
from moorage_testing.oidc import Directory, oidc_provider

pytestmark = [pytest.mark.anyio]

ADA = "ada@example.org"


@pytest.fixture(scope="module")
def directory() -> Iterator[Directory]:
    with oidc_provider() as found:
        found.put_user("1", email=ADA, email_verified=True, groups=["ml"])
        yield found


@pytest.fixture(scope="module")
def cluster(directory: Directory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of our own: its server is told of the provider when it starts."""
    if os.environ.get("MOORAGE_TEST_KUBECONFIG"):
        pytest.skip("the server of that cluster is not ours to configure")
    told = {
        "MOORAGE_OIDC_ISSUER": directory.issuer,
        "MOORAGE_OIDC_CLIENT_ID": "moorage",
        "MOORAGE_OIDC_CLIENT_SECRET": "secret",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in told.items():
            patch.setenv(name, value)
        with start_cluster(tmp_path_factory.mktemp("c") / "home") as found:
            yield found


async def test_whom_the_provider_revokes_is_out_within_a_minute_by_the_real_clock(
    cluster: Cluster, directory: Directory, tmp_path: Path
) -> None:
    kubectl = find_kubectl()
    if kubectl is None:
        pytest.skip("there is no kubectl here")
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        server = (await server_url(api)).rstrip("/")
        home = {"MOORAGE_CONFIG": str(tmp_path / "config"), "BROWSER": f"{_browser(tmp_path, directory)} %s"}
        done = await asyncio.to_thread(cluster.moor, "login", server, env=home)
        assert f"as {ADA}" in done.stderr
        account = await people.find_account(api, ADA)
        assert account is not None
        assert groups_in(account) == ("ml",)
    config = tmp_path / "kubeconfig"
    text = cluster.moor("kubeconfig", "--plain", "--expiration", "8h", "-o", str(config), env=home).stderr
    assert parse_rfc3339(text.split("expires at ")[1].split(",")[0]) > SYSTEM.now()

    def whoami() -> str:
        argv = [
            kubectl,
            "--kubeconfig",
            str(config),
            "auth",
            "whoami",
            "-o",
            "jsonpath={.status.userInfo.username}",
        ]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False).stdout

    assert whoami() == account_user(ADA)
    directory.revoke("1")
    # a minute is promised; meanwhile no request reaches the server
    await asyncio.to_thread(wait_until, "the end of the session", lambda: not whoami(), patience=300)
    assert cluster.moor("token", env=home, check=False).returncode in (0, 1)
    assert cluster.moor("whoami", env=home, check=False).returncode == 1


def _browser(folder: Path, directory: Directory) -> Path:
    script = folder / "browser"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$1" {directory.issuer}\n')
    script.chmod(0o755)
    return script


def _play(address: str, issuer: str) -> None:
    """The person: signs in at the provider, then presses the button on the server's page."""
    import re

    parts = urllib.parse.urlsplit(address)
    base = f"{parts.scheme}://{parts.netloc}"
    jar = CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    opener.addheaders = [("Origin", base), ("Sec-Fetch-Site", "same-origin"), ("Accept", "text/html")]
    then = urllib.parse.quote(address.removeprefix(base), safe="")
    with opener.open(f"{base}/login/oidc?next={then}", timeout=120) as form:
        back = Directory(issuer).sign_in(form.url, "1")
    with opener.open(back, timeout=120) as answer:
        page = answer.read().decode()
    fields = dict(re.findall(r'name="(challenge|port|state)" value="([^"]*)"', page))
    with opener.open(f"{base}/login/cli", urllib.parse.urlencode(fields).encode(), timeout=120):
        return


if __name__ == "__main__":
    _play(*sys.argv[1:])
