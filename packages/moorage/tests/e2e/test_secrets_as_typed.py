"""Secrets as typed: a member's run gets the value; a viewer sees the names; nothing prints it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from moorage_kube.errors import NotFound
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import SECRETS
from moorage_kube.testing.waiting import until, wait_until
from moorage_testing.cluster import Cluster
from tests.e2e.conftest import PASSWORD, is_ready, log_in

VALUE = "hf_not-for-your-eyes"
PROOF = (
    "import hashlib, os; print(hashlib.sha256(os.environ['T'].encode()).hexdigest(), os.environ['HF_TOKEN'][:3])"
)


@pytest.fixture
def people(cluster: Cluster, unique: str) -> Iterator[dict[str, str]]:
    """A member and a viewer of one team, and a member of another, by role."""
    names = {role: f"{role}-{unique}" for role in ("member", "viewer", "other")}
    for name in names.values():
        cluster.moor("user", "create", name, "--password-stdin", stdin=PASSWORD + "\n")
    cluster.moor("tenant", "create", unique, "--member", names["member"])
    cluster.moor("tenant", "add", unique, "--user", names["viewer"], "--role", "viewer")
    cluster.moor("tenant", "create", f"{unique}-b", "--member", names["other"])
    wait_until("the teams' rights", lambda: all(is_ready(cluster, team) for team in (unique, f"{unique}-b")))
    yield names
    for team in (unique, f"{unique}-b"):
        cluster.moor("tenant", "delete", team, check=False)
    for name in names.values():
        cluster.moor("user", "delete", name, check=False)


@pytest.mark.anyio
async def test_a_team_uses_a_secret_that_no_command_prints(
    typed, server, people, unique, cluster, api: KubeClient
):
    texts = []

    def run(*words, stdin=""):
        done = typed(*words, stdin=stdin)
        texts.append(done.stdout + done.stderr)
        return done

    log_in(typed, server, people["member"])
    assert run("secret", "create", "hf", "HF_TOKEN", stdin=f"{VALUE}\n").stdout == "hf\n"
    assert run("secret", "list").stdout.split()[5:8] == ["hf", "HF_TOKEN", people["member"]]
    words = ("run", "--memory", "64Mi", "--secret", "hf", "--secret", "T=hf:HF_TOKEN")
    done = run(*words, "--name", "train", "--follow", "--", "python3", "-c", PROOF)
    digest = hashlib.sha256(VALUE.encode()).hexdigest()
    assert (done.returncode, f"{digest} hf_" in done.stdout) == (0, True), done.stderr
    refused = run(*words, "--secret", "hf:NO", "--secret", "hg", "--", "true")
    assert refused.returncode == 2
    assert "secret 'hf' has no key 'NO'" in refused.stderr
    assert "available: hf" in refused.stderr
    # a run that waits holds the secret; a key of it that is missing later is explained
    assert run(*words, "--name", "later", "--", "sleep", "60").returncode == 0
    assert "secret 'hf' is in use by later" in run("secret", "delete", "hf").stderr
    (
        run("show", "later"),
        run("jobs", "-o", "json"),
        run("explain", "later"),
        run("run", "--dry-run", *words[1:], "--", "a"),
    )
    run("cancel", "later")
    # others
    log_in(typed, server, people["viewer"])
    assert "hf" in run("secret", "list", "-n", unique).stdout
    assert "may not create secrets" in run("secret", "create", "x", "K=1").stderr
    assert "may not delete secrets" in run("secret", "delete", "hf", "--force").stderr
    log_in(typed, server, people["other"])
    assert f"may not list secrets in namespace {unique}" in run("secret", "list", "-n", unique).stderr
    # the member deletes it: the garbage collector deletes the Secret, and the name is free again
    log_in(typed, server, people["member"])
    assert run("secret", "delete", "hf", "--force").stdout == "hf deleted\n"
    assert run("secret", "create", "hf", "HF_TOKEN", stdin=f"{VALUE}2").returncode == 0
    assert run("secret", "delete", "hf").returncode == 0

    async def is_gone() -> bool:
        try:
            await api.get(SECRETS, "hf", unique)
        except NotFound:
            return True
        return False

    await until("the Secret was deleted", is_gone)
    assert VALUE not in "".join(texts) + cluster.moor("audit").stdout
