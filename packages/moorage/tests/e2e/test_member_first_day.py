"""What a member who was just invited types on the first day, with a server's address and a password alone."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace

from moorage_kube.resources import SECRETS
from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster, find_kubectl
from moorage_testing.docblocks import blocks_of
from tests.e2e.conftest import PASSWORD, is_ready, log_in

ROOT = Path(__file__).parents[4]


@pytest.fixture
def people(cluster: Cluster, unique: str) -> Iterator[dict[str, str]]:
    """Names of a member of two teams, of a viewer of one, and of somebody in no team; by their role."""
    names = {role: f"{role}-{unique}" for role in ("member", "viewer", "guest")}
    for name in names.values():
        cluster.moor("user", "create", name, "--password-stdin", stdin=PASSWORD + "\n")
    for team in ("a", "b"):
        cluster.moor("tenant", "create", f"{unique}-{team}", "--member", names["member"])
    cluster.moor("tenant", "add", f"{unique}-a", "--user", names["viewer"], "--role", "viewer")
    wait_until("the teams' rights", lambda: all(is_ready(cluster, f"{unique}-{team}") for team in ("a", "b")))
    yield names
    for team in ("a", "b"):
        cluster.moor("tenant", "delete", f"{unique}-{team}", check=False)
    for name in names.values():
        cluster.moor("user", "delete", name, check=False)


@pytest.fixture
def private_source() -> Iterator[str]:
    """A file on a web server that wants a token."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"picture" if self.headers.get("Authorization") == "Bearer right" else b""
            self.send_response(200 if body else 403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/a.jpg"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_member_starts_at_once(typed, server, people, unique):
    told = log_in(typed, server, people["member"])
    assert f"team {unique}-a: member, namespace {unique}-a" in told
    assert (
        f"use another namespace for one command: -n {unique}-b; for all: moor kubeconfig --save -n {unique}-b"
        in told
    )
    assert f"no runs in namespace {unique}-a" in typed("jobs").stderr
    done = typed("run", "--name", "first", "--memory", "64Mi", "--follow", "--", "echo", "hello")
    assert (done.returncode, "hello" in done.stdout, "warning" in done.stderr) == (0, True, False), done.stderr
    assert "first" in typed("jobs", "--mine").stdout
    typed("volume", "create", "data", "--size", "1Gi")
    assert people["member"] in typed("volume", "list").stdout
    lines = typed("whoami")
    assert lines.stdout == f"{people['member']}\n"
    assert f"team {unique}-b: member, namespace {unique}-b" in lines.stderr
    there = typed("run", "-n", f"{unique}-b", "--memory", "64Mi", "--name", "second", "--", "true")
    assert f"moor logs -n {unique}-b -f second" in there.stderr
    if find_kubectl() is not None:
        assert "first" in typed("kubectl", "get", "jobs").stdout
    typed("kubeconfig", "--save", "-n", f"{unique}-b")
    assert "second" in typed("jobs").stdout


def test_the_address_may_lack_its_scheme_and_after_the_logout_one_sentence_says_what_to_do(
    typed, server, people, unique
):
    words = ("--username", people["member"], "--password-stdin")
    done = typed("login", server.removeprefix("http://"), *words, stdin=PASSWORD + "\n")
    assert f"logged in to {server} as {people['member']}" in done.stderr
    status = typed("status")
    assert status.returncode == 0, status.stderr
    assert status.stdout.splitlines()[:4] == [
        f"logged in   {server} as {people['member']}",
        f"team        {unique}-a: member, namespace {unique}-a",
        f"team        {unique}-b: member, namespace {unique}-b",
        f"runs        none in namespace {unique}-a; list them: moor jobs",
    ]
    assert typed("jobs").returncode == 0
    typed("logout")
    assert typed("jobs").stderr == f"error: you are not logged in to {server}\nhint: log in: moor login {server}\n"
    assert typed("status").returncode == 1


def test_the_login_is_enough_without_a_kubeconfig(typed, server, people, unique):
    words = ("--username", people["member"], "--password-stdin", "--no-kubeconfig")
    assert typed("login", server, *words, stdin=PASSWORD + "\n").returncode == 0
    assert f"no runs in namespace {unique}-a" in typed("jobs").stderr


def test_a_viewer_reads_and_is_told_who_can_give_more(typed, server, people, unique):
    log_in(typed, server, people["viewer"])
    assert typed("jobs").returncode == 0
    done = typed("run", "--memory", "64Mi", "--", "true")
    assert done.returncode == 1
    assert done.stderr.endswith(
        f"error: {people['viewer']} may not start runs in namespace {unique}-a\n"
        f"hint: your role in team {unique}-a is viewer; as a member you may. An admin of the team makes you one:"
        f" moor tenant add {unique}-a --user {people['viewer']} --role member\n"
    )
    assert typed("drain", "node-1").stderr == (
        f"error: {people['viewer']} may not drain nodes\n"
        "hint: only administrators of the cluster may drain nodes: ask one of them\n"
    )


def test_who_is_in_no_team_is_told_whom_to_ask(typed, server, people):
    ask = f"`moor tenant add TEAM --user {people['guest']}`, then run `moor kubeconfig --save`"
    assert ask in log_in(typed, server, people["guest"])
    done = typed("jobs")
    assert (done.returncode, ask in done.stderr) == (1, True)


def test_a_member_copies_files_to_a_volume_and_back_and_fills_a_dataset(typed, server, people, unique, tmp_path):
    log_in(typed, server, people["member"])
    photos = tmp_path / "photos"
    (photos / "inner").mkdir(parents=True)
    (photos / "inner" / "a.jpg").write_bytes(b"picture")
    typed("volume", "create", "data", "--size", "10Mi")
    to_volume = typed("volume", "cp", str(photos), "data:/photos")
    assert (to_volume.returncode, "1 file, 7 B copied" in to_volume.stderr) == (0, True), to_volume.stderr
    back = typed("volume", "cp", "data:/photos", str(tmp_path / "back"))
    assert back.returncode == 0, back.stderr
    assert (tmp_path / "back" / "inner" / "a.jpg").read_bytes() == b"picture"
    filled = typed("dataset", "create", "photos", "--source", str(photos), "--size", "10Mi")
    assert (filled.returncode, filled.stdout) == (0, "photos\n"), filled.stderr
    assert [row.split()[0] for row in typed("volume", "list").stdout.splitlines()[1:]] == [
        "data",
        "dataset-photos",
    ]
    read = typed(
        "run", "--memory", "64Mi", "--dataset", "photos:/data", "--follow", "--", "cat", "/data/inner/a.jpg"
    )
    assert (read.returncode, "picture" in read.stdout) == (0, True), read.stderr


@pytest.mark.anyio
async def test_a_member_gives_the_credentials_of_a_private_source_by_a_secret(
    typed, server, people, unique, api, private_source
):
    log_in(typed, server, people["member"])
    words = ("dataset", "create", "--size", "10Mi", "--wait", "--source", private_source)
    denied = typed(*words, "photos")
    assert denied.returncode == 1
    assert "answered HTTP 403: the dataset names no Secret with credentials" in denied.stderr
    assert f"moor secret create photos-keys -n {unique}-a MOORAGE_HTTP" in denied.stderr
    missing = typed(*words, "again", "--secret", "photos-keys")
    assert (missing.returncode, "Secret 'photos-keys' not found" in missing.stderr) == (2, True)
    secret = {"metadata": {"name": "photos-keys"}, "stringData": {"MOORAGE_HTTP_AUTHORIZATION": "Bearer wrong"}}
    await api.create(SECRETS, secret, f"{unique}-a")
    refused = typed(*words, "again", "--secret", "photos-keys")
    assert "it refused the keys of Secret 'photos-keys'" in refused.stderr
    await api.patch(
        SECRETS, "photos-keys", {"stringData": {"MOORAGE_HTTP_AUTHORIZATION": "Bearer right"}}, f"{unique}-a"
    )
    typed("dataset", "refill", "again")
    read = typed("dataset", "create", "third", "--size", "10Mi", "--wait", "--source", private_source, "--secret",
                 "photos-keys")  # fmt: skip
    assert read.returncode == 0, read.stderr


def test_the_tutorial_of_the_first_day_works_as_written(type_argv, typed, home, cluster, server, people, unique):
    """Each block is typed, with this server, person and team in place of those of the page."""
    page = ROOT / "docs/tutorial/first-day-as-a-member.md"
    team, person = f"{unique}-b", people["guest"]
    cluster.moor("tenant", "add", team, "--user", person, "--role", "member")
    wait_until("the rights of the new member", lambda: is_ready(cluster, team))
    names = {"https://moorage.example.org": server, "ada": person, "vision": team}
    login, greeting, *blocks, refusal = (
        replace(block, text=with_names(block.text, names)) for block in blocks_of(page, ROOT)
    )
    assert login.commands == [f"moor login {server}"]  # by browser; here with a password
    assert log_in(typed, server, person) == greeting.text.replace("~", str(home))
    printed = ""
    for block in blocks:
        if block.language == "text":  # on this cluster no folder is sent
            assert re.fullmatch(r"\S+ is sent along: 1 file, 27 B\n", block.text)
            continue
        if find_kubectl() is None:
            block = replace(block, text=re.sub(r"^kubectl .*\n", "", block.text, flags=re.MULTILINE))
        done = type_argv("bash", "-euc", block.text)
        assert done.returncode == 0, f"{block.text}\n{done.stdout}{done.stderr}"
        printed += done.stdout
    assert "hello\n" in printed
    assert "hello from a file\n" in printed
    as_viewer = {person: people["viewer"], team: f"{unique}-a"}
    log_in(typed, server, people["viewer"])
    refused = typed("run", "--memory", "64Mi", "--", "true")
    assert with_names(refusal.text, as_viewer).removesuffix("…\n") in refused.stderr


def with_names(text: str, names: Mapping[str, str]) -> str:
    return re.sub("|".join(rf"\b{re.escape(name)}\b" for name in names), lambda match: names[match[0]], text)
