"""`moor login`, `logout`, `whoami`, `token`, `kubeconfig`: who you are to a Moorage server, and to its cluster."""

from __future__ import annotations

import http.server
import json
import os
import secrets
import shutil
import socket
import sys
import threading
import webbrowser
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

import click

from moorage.cli import console
from moorage.client.logins import Known, Saved, known_logins
from moorage.clock import SYSTEM, parse_rfc3339, rfc3339
from moorage.errors import MoorageError, NotReady, UsageError

if TYPE_CHECKING:
    from datetime import datetime

ANSWER_SECONDS = 30.0  # patience with one answer
BROWSER_SECONDS = 300  # for a person to find the page and the button
EARLY = timedelta(seconds=90)  # a token is renewed this long before its end
PLUGIN_SECONDS = 900
API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")

server_option = click.option(
    "--server", "url", default=None, help="Server to use (default: the last one you logged in to)."
)


@console.command(
    examples={
        "moor login https://moorage.example.com": "log in with the browser",
        "moor login https://moorage.example.com --no-browser": "on a machine without a browser",
        "moor login https://moorage.example.com --username ada": "with a local account",
    }
)
@click.argument("url")
@click.option("--username", default=None, help="Log in with a local account; the command asks for the password.")
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
@click.option("--no-browser", is_flag=True, help="Print the address; then paste the code that the page shows.")
@click.option(
    "--ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="Trust the CA certificates in this file (PEM).",
)
def login(url: str, username: str | None, password_stdin: bool, no_browser: bool, ca: Path | None) -> None:
    """Log in to the Moorage server at URL."""
    from moorage.api.logins import LoggedIn
    from moorage.api.reading import read
    from moorage.server.identity.oidc import check_address

    url = url.rstrip("/")
    check_address(url, "the server")
    saved = Saved(url=url, ca=ca.read_text() if ca else "")
    client = f"moor on {socket.gethostname()}"
    if password_stdin and username is None:
        raise UsageError("--password-stdin needs --username NAME")
    if username is not None:
        password = sys.stdin.readline().rstrip("\n") if password_stdin else _prompt("Password: ")
        body = {"username": username, "password": password, "client": client}
        body_of_answer = _ask(saved, "POST", "/api/v1/login", body)
    else:
        body_of_answer = _by_browser(saved, client, no_browser=no_browser)
    answer = read(LoggedIn, body_of_answer)
    with known_logins() as known:
        known.put(Saved(url=url, token=answer.token, name=answer.name, ca=saved.ca))
    console.say(f"logged in to {url} as {answer.name}")


@console.command(
    examples={
        "moor logout": "revoke the session and its tokens",
        "moor logout --server https://moorage.example.com": "of one server",
    }
)
@server_option
def logout(url: str | None) -> None:
    """Log out: the session and its tokens are revoked."""
    with known_logins() as known:
        saved = known.find(url)
        try:
            _ask(saved, "DELETE", "/api/v1/login")
        except MoorageError as error:
            if getattr(error, "status", 0) not in (401, 403):
                raise
        known.remove(saved.url)
    console.say(f"logged out of {saved.url}")


@console.command(
    examples={
        "moor whoami": "which account, and until when",
        "moor whoami -o json": "the same for a program",
    }
)
@server_option
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)
def whoami(url: str | None, output: str) -> None:
    """Show the account you are logged in with, and when the session ends."""
    from moorage.api.logins import Person
    from moorage.api.reading import read

    saved = _saved(url)
    answer = _ask(saved, "GET", "/api/v1/login")
    if output == "json":
        console.show(json.dumps(answer | {"server": saved.url}, indent=2))
        return
    person = read(Person, answer)
    console.show(person.name)
    groups = ", ".join(person.groups) or "none"
    expires = rfc3339(person.expires) if person.expires else "never"
    console.say(f"server {saved.url}; groups: {groups}; the session ends {expires} at the latest")


@console.command(
    examples={
        "moor token": "a token, as kubectl's plugins print it",
        "moor token --seconds 3600": "one that lasts an hour",
    }
)
@server_option
@click.option(
    "--seconds",
    type=click.IntRange(600, 7 * 24 * 3600),
    default=PLUGIN_SECONDS,
    show_default=True,
    help="Lifetime of the token in seconds.",
)
def token(url: str | None, seconds: int) -> None:
    """Print a token for the cluster as kubectl's plugins do (ExecCredential). It is renewed automatically."""
    made, expires = cluster_token(url, seconds)
    info = os.environ.get("KUBERNETES_EXEC_INFO", "")
    try:
        wanted = json.loads(info).get("apiVersion") if info else API_VERSIONS[0]
    except (ValueError, AttributeError):
        wanted = API_VERSIONS[0]
    credential = {
        "apiVersion": wanted if wanted in API_VERSIONS else API_VERSIONS[0],
        "kind": "ExecCredential",
        "status": {"token": made, "expirationTimestamp": expires},
    }
    console.show(json.dumps(credential))


@console.command(
    examples={
        "moor kubeconfig -o ~/.kube/moorage": "write a kubeconfig for kubectl",
        "moor kubeconfig --plain --expires 2d": "one with a token in it, for other tools",
    }
)
@server_option
@click.option("-n", "--namespace", default=None, help="Namespace of the context.")
@click.option("--plain", is_flag=True, help="Put a token into the file, for tools that cannot run plugins.")
@click.option(
    "--expires", default="8h", show_default=True, help="With --plain: lifetime of the token, such as 30m or 2d."
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), default=None, help="File (default: stdout)."
)
def kubeconfig(url: str | None, namespace: str | None, plain: bool, expires: str, output: Path | None) -> None:
    """Write a kubeconfig for your account. kubectl gets new tokens from `moor token` while you are logged in."""
    from moorage.api.logins import ClusterAddress
    from moorage.api.reading import read
    from moorage.client.privatefile import write_private

    saved = _saved(url)
    cluster = read(ClusterAddress, _ask(saved, "GET", "/api/v1/login/cluster"))
    if not cluster.server:
        raise NotReady(
            f"{saved.url} does not know the address of its cluster's API",
            hint="its administrator sets --kubernetes-url of `moor server`",
        )
    if plain:
        seconds = _seconds(expires)
        answer = _ask(saved, "POST", "/api/v1/login/token", {"seconds": seconds})
        user: dict[str, Any] = {"token": answer["token"]}
        console.say(f"its token expires at {answer['expires']}, or when you log out")
    else:
        user = {"exec": _plugin(saved.url)}
    name = cluster.name or "moorage"
    entry: dict[str, Any] = {"server": cluster.server}
    if cluster.ca_data:
        entry["certificate-authority-data"] = cluster.ca_data
    elif cluster.insecure:
        entry["insecure-skip-tls-verify"] = True
    context = {"cluster": name, "user": f"{saved.name}@{name}"} | ({"namespace": namespace} if namespace else {})
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": entry}],
        "users": [{"name": f"{saved.name}@{name}", "user": user}],
        "contexts": [{"name": name, "context": context}],
    }
    text = console.as_yaml(document)
    if output is None:
        console.show(text, nl=False)
    else:
        write_private(output, text)
        console.say(f"written: {output}")


def cluster_token(url: str | None, seconds: int = PLUGIN_SECONDS) -> tuple[str, str]:
    """A token for the cluster and when it ends (RFC 3339): the one kept, or a new one shortly before its end."""
    saved = _saved(url)
    if _is_fresh(saved, SYSTEM.now()):
        return saved.kube_token, saved.kube_expires
    with known_logins() as known:  # one at a time: the others find what the first has fetched
        saved = known.find(saved.url)
        if not _is_fresh(saved, SYSTEM.now()):
            answer = _ask(saved, "POST", "/api/v1/login/token", {"seconds": seconds})
            saved = saved.with_kube(answer["token"], answer["expires"])
            known.put(saved)
    return saved.kube_token, saved.kube_expires


def _ask(saved: Saved, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """One request to the server of a login, its JSON answer. Raises ApiError.

    kubectl runs `moor token` often: an HTTP client is imported only when a request is made.
    """
    import asyncio

    from moorage.client.connection import Connection, Patience, at_url

    async def ask() -> Any:
        patience = Patience(answer_seconds=ANSWER_SECONDS, seconds=0.0)
        connection = Connection(at_url(saved.url, saved.token, ca=saved.ca), patience=patience)
        try:
            return (await connection.json(method, path, body=body))[0]
        finally:
            await connection.close()

    return asyncio.run(ask())


def _is_fresh(saved: Saved, now: datetime) -> bool:
    return bool(saved.kube_token) and now < parse_rfc3339(saved.kube_expires) - EARLY


def _saved(url: str | None) -> Saved:
    return Known.read().find(url)


def _plugin(url: str) -> dict[str, Any]:
    moor = shutil.which("moor")
    command, args = (moor, []) if moor else (sys.executable, ["-m", "moorage.cli.main"])
    return {
        "apiVersion": API_VERSIONS[0],
        "command": command,
        "args": [*args, "token", "--server", url],
        "interactiveMode": "Never",
        "provideClusterInfo": False,
        "installHint": "install Moorage, then run: moor login " + url,
    }


def _seconds(text: str) -> int:
    from moorage.decide.runs.timelimit import parse_time

    try:
        seconds = parse_time(text)
    except ValueError as error:
        raise UsageError(f"invalid --expires {text!r}", hint="use a time such as 30m, 8h or 2d") from error
    if not 600 <= seconds <= 7 * 24 * 3600:
        raise UsageError(f"invalid --expires {text!r}: use 10m to 7d")
    return seconds


def _prompt(text: str) -> str:
    import getpass

    return getpass.getpass(text)


def _by_browser(saved: Saved, client: str, *, no_browser: bool) -> Any:
    from moorage.server.identity.oidc import challenge_of, new_verifier

    verifier, state = new_verifier(), secrets.token_urlsafe(16)
    query = {"challenge": challenge_of(verifier)}
    if no_browser:
        console.say(
            f"open this address, sign in, and bring back the code:\n{saved.url}/login/cli?{urlencode(query)}"
        )
        code = click.prompt("Code", err=True).strip()
    else:
        with _Waiting(state) as waiting:
            query |= {"port": str(waiting.port), "state": state}
            address = f"{saved.url}/login/cli?{urlencode(query)}"
            console.say(f"opening {address}\nno browser here? moor login --no-browser {saved.url}")
            # a browser of the terminal ends only when it is closed, and the code comes while it runs
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
            code = waiting.code()
    return _ask(saved, "POST", "/api/v1/login/exchange", {"code": code, "verifier": verifier, "client": client})


class _Waiting:
    """A listener on this machine that the browser is sent to with the code; RFC 8252, section 7.3."""

    def __init__(self, state: str) -> None:
        codes: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                good = query.get("state") == [state] and bool(query.get("code"))
                if good:
                    codes.append(query["code"][0])
                message = (
                    "You are logged in; this window can be closed." if good else "This is no answer to moor login."
                )
                text = message.encode()
                self.send_response(200 if good else 400)
                self.send_header("Content-Type", "text/plain")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                return

        self._codes = codes
        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port

    def __enter__(self) -> _Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()

    def code(self) -> str:
        ends = SYSTEM.monotonic() + BROWSER_SECONDS
        while not self._codes:
            left = ends - SYSTEM.monotonic()
            if left <= 0:
                raise NotReady(f"nobody signed in within {BROWSER_SECONDS // 60} minutes", hint="try again")
            self._server.timeout = left
            self._server.handle_request()
        return self._codes[0]
