"""`moor login`, `logout`, `whoami`, `token`, `kubeconfig`: your identity at a Moorage server and its cluster."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import secrets
import socket
import sys
import threading
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

import click

from moorage.cli import console
from moorage.client.datafolder import default_folder, running_kubeconfig
from moorage.client.logins import Known, Saved, known_logins
from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE
from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.errors import Forbidden, MoorageError, NotReady, Unauthorized, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from moorage.api.logins import ClusterAddress, Person

ANSWER_SECONDS = 30.0  # patience with one answer
BROWSER_SECONDS = 300  # for a person to find the page and the button
PLUGIN_SECONDS = 900
ENV_KUBECONFIGS = ("KUBECONFIG", "MOORAGE_KUBECONFIG")
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
@click.option("-n", "--namespace", default=None, help="Namespace to work in (default: that of your first team).")
@click.option("--no-kubeconfig", is_flag=True, help="Leave the kubeconfig as it is.")
def login(
    url: str,
    username: str | None,
    password_stdin: bool,
    no_browser: bool,
    ca: Path | None,
    namespace: str | None,
    no_kubeconfig: bool,
) -> None:
    """Log in to the Moorage server at URL, and work in your team's namespace from then on.

    URL is https://HOST, just HOST, or 127.0.0.1:PORT for a server on this machine.

    Writes a context for each of your teams to the kubeconfig ($KUBECONFIG, or ~/.kube/config): kubectl works too.
    """
    from moorage.api.logins import LoggedIn
    from moorage.api.reading import read
    from moorage.cli.serveraddress import complete_address

    url = complete_address(url)
    saved = Saved(url=url, ca=ca.read_text() if ca else "")
    client = f"moor on {socket.gethostname()}"
    if password_stdin and username is None:
        raise UsageError("--password-stdin needs --username NAME")
    _check_server(saved)
    if username is not None:
        password = sys.stdin.readline().rstrip("\n") if password_stdin else _prompt("Password: ")
        body = {"username": username, "password": password, "client": client}
        body_of_answer = _ask(saved, "POST", "/api/v1/login", body)
    else:
        body_of_answer = _by_browser(saved, client, no_browser=no_browser)
    answer = read(LoggedIn, body_of_answer)
    saved = Saved(url=url, token=answer.token, name=answer.name, ca=saved.ca)
    with known_logins() as known:
        known.put(saved)
    console.say(f"logged in to {url} as {answer.name}")
    start_work(saved, namespace, is_written=not no_kubeconfig)


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
    """Show who you are: the account you are logged in with, its server, teams, roles, namespaces and budgets.

    Without a login, it is the user of the kubeconfig.
    """
    from moorage.api.logins import Person
    from moorage.api.reading import read

    if url is None and not Known.read().current:
        _user_of_kubeconfig(output)
        return
    saved = _saved(url)
    answer = _ask(saved, "GET", "/api/v1/login")
    if output == "json":
        console.show_text(json.dumps(answer | {"server": saved.url}, indent=2))
        return
    person = read(Person, answer)
    console.show(person.name)
    groups = ", ".join(person.groups) or "none"
    expires = rfc3339(person.expires) if person.expires else "never"
    console.say(f"server {saved.url}; groups: {groups}; the session ends {expires} at the latest")
    for line in (*team_lines(person), *budget_lines(person)):
        console.say(line)


def _user_of_kubeconfig(output: str) -> None:
    """Print the user of the kubeconfig, or of the local cluster, when there is no login."""
    from moorage.cli.session import Session, Target, in_session

    async def work(session: Session) -> None:
        import msgspec

        from moorage.api.logins import Person

        name = await session.user()
        person: Person | None = None
        with contextlib.suppress(MoorageError):  # there may be no server, or one that this user cannot reach
            person = await session.server.ask(Person, "GET", "/api/v1/login")
        if output == "json":
            facts: dict[str, Any] = {"name": name, "namespace": session.namespace}
            if person is not None:
                facts["budgets"] = msgspec.to_builtins(person.budgets)
            console.show_text(json.dumps(facts, indent=2))
            return
        console.show(name)
        console.say(f"the user of the kubeconfig; namespace {session.namespace}; not logged in to a server")
        for line in budget_lines(person) if person is not None else ():
            console.say(line)

    in_session(Target(), work)


@console.command(
    examples={
        "moor token": "a token, as kubectl's plugins print it",
        "moor token --expiration 1h": "one that lasts an hour",
    }
)
@server_option
@click.option("--expiration", default=None, metavar="TIME", help="Lifetime of the token, such as 30m or 2d.")
def token(url: str | None, expiration: str | None) -> None:
    """Print a token for the cluster as kubectl's plugins do (ExecCredential). It is renewed automatically."""
    seconds = PLUGIN_SECONDS if expiration is None else _seconds(expiration)
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
    console.show_text(json.dumps(credential))


@console.command(
    examples={
        "moor kubeconfig -o ~/.kube/moorage": "write a kubeconfig for kubectl",
        "moor kubeconfig --plain --expiration 2d": "one with a token in it, for other tools",
    }
)
@server_option
@click.option("-n", "--namespace", default=None, help="Namespace of the current context.")
@click.option("--save", is_flag=True, help="Merge it into your kubeconfig ($KUBECONFIG, or ~/.kube/config).")
@click.option("--plain", is_flag=True, help="Put a token into the file, for tools that cannot run plugins.")
@click.option(
    "--expiration",
    default="8h",
    show_default=True,
    metavar="TIME",
    help="With --plain: lifetime of the token, such as 30m or 2d.",
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), default=None, help="File (default: stdout)."
)
def kubeconfig(
    url: str | None, namespace: str | None, save: bool, plain: bool, expiration: str, output: Path | None
) -> None:
    """Write a kubeconfig for your account, with a context for each of your teams.

    kubectl gets new tokens from `moor token` while you are logged in.
    """
    from moorage.client.files import write_private
    from moorage.client.kubeconfig import make_kubeconfig, token_plugin

    saved = _saved(url)
    if save:
        if plain or output is not None:
            raise UsageError("--save cannot be used with --plain or --output")
        start_work(saved, namespace, is_written=True)
        return
    cluster, person = _cluster_of(saved), _person_of(saved)
    if not cluster.server:
        raise _no_address(saved)
    user: dict[str, Any] = {"exec": token_plugin(saved.url)}
    if plain:
        answer = _ask(saved, "POST", "/api/v1/login/token", {"expirationSeconds": _seconds(expiration)})
        user = {"token": answer["token"]}
        console.say(f"its token expires at {answer['expires']}, or when you log out")
    text = console.as_yaml(make_kubeconfig(saved.name, cluster, user, namespaces_of(person, namespace)))
    if output is None:
        console.show_text(text, nl=False)
    else:
        write_private(output, text)
        console.say(f"written: {output}")


def _check_server(saved: Saved) -> None:
    """Raise MoorageError, with a hint to the right command, unless a Moorage server answers at the login's
    address.
    """
    from moorage.cli.serveraddress import explain

    try:
        _ask(saved, "GET", "/api/v1/login")
    except (Unauthorized, Forbidden):
        return  # expected: there is no login yet
    except MoorageError as error:
        raise explain(saved.url, error) from error


def start_work(saved: Saved, namespace: str | None, *, is_written: bool) -> None:
    """Store the cluster's address with the login, merge it into the kubeconfig, and print the namespace in use."""
    import msgspec

    from moorage.client.target import login_to
    from moorage_kube.remote.config import load_connection

    cluster, person = _cluster_of(saved), _person_of(saved)
    namespaces = namespaces_of(person, namespace)
    chosen = namespaces[0] if namespaces else ""
    with known_logins() as known:
        kept = known.logins.get(saved.url, saved)
        known.put(replace(kept, cluster=msgspec.structs.asdict(cluster), namespace=chosen))
    for line in team_lines(person):
        console.say(line)
    if not cluster.server:
        console.say(f"warning: {_no_address(saved).message}; its pages and the SDK work, other commands do not")
        return
    context = _merge(saved, cluster, namespaces) if is_written else ""
    if namespaces:
        viewed = {team.namespace for team in person.tenants if team.role == "viewer"}
        first = "its runs: moor jobs" if chosen in viewed else "run something: moor run -- python train.py"
        console.say(f"working in namespace {chosen}; {first}")
    if len(namespaces) > 1:
        console.say(
            f"use another namespace for one command: -n {namespaces[1]};"
            f" for all: moor kubeconfig --save -n {namespaces[1]}"
        )
    folder = default_folder()
    local = None if any(os.environ.get(name) for name in ENV_KUBECONFIGS) else running_kubeconfig(folder)
    if local is not None and login_to(load_connection(local)):
        console.note(
            f"moor acts as {saved.name} from now on; as the administrator again: --data {folder}, or moor logout"
        )
    elif local is not None:
        other = f"; to reach {saved.url}: --context {context}" if context else ""
        console.note(f"while this machine's local cluster runs, moor uses that{other}")


def _merge(saved: Saved, cluster: ClusterAddress, namespaces: Sequence[str]) -> str:
    """Merge the login into the kubeconfig and make its context current; return the name of the context."""
    from moorage.client.files import write_private
    from moorage.client.kubeconfig import free_name, make_kubeconfig, merge_kubeconfig, token_plugin, written_file
    from moorage_kube.remote.config import read_kubeconfig

    file = written_file(os.environ)
    existing = read_kubeconfig(file)
    made = make_kubeconfig(
        saved.name,
        cluster,
        {"exec": token_plugin(saved.url)},
        namespaces,
        name=free_name(existing, cluster),
    )
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(file, console.as_yaml(merge_kubeconfig(existing, made)))
    context = str(made["current-context"])
    before = str(existing.get("current-context") or "")
    was = f" (it was {before})" if before not in ("", context) else ""
    console.say(f"current context of {file}: {context}{was}")
    return context


def team_lines(person: Person) -> list[str]:
    """Return the teams of a person, one per line; without a team, how to get into one."""
    if not person.tenants:
        return [
            "you are in no team yet: ask an admin of a team, or of the cluster, for"
            f" `moor tenant add TEAM --user {person.name}`, then run `moor kubeconfig --save`"
        ]
    return [f"team {team.name}: {team.role}, namespace {team.namespace}" for team in person.tenants]


def budget_lines(person: Person) -> list[str]:
    """Return the use of each budget of a person, one per line."""
    return [
        f"budget {row.budget} of {row.name}: {row.used} of {row.limit} {row.unit} used ({row.percent} %)"
        + (f", until {rfc3339(row.until)}; when it is used up: {row.when_over}" if row.until else "")
        for row in person.budgets
    ]


def namespaces_of(person: Person, chosen: str | None) -> list[str]:
    """The namespaces of a user's teams; the chosen namespace comes first."""
    namespaces = dict.fromkeys([*([chosen] if chosen else []), *(team.namespace for team in person.tenants)])
    return list(namespaces)


def _cluster_of(saved: Saved) -> ClusterAddress:
    from moorage.api.logins import ClusterAddress
    from moorage.api.reading import read

    return usable_here(read(ClusterAddress, _ask(saved, "GET", "/api/v1/login/cluster")), os.environ)


def usable_here(cluster: ClusterAddress, env: Mapping[str, str]) -> ClusterAddress:
    """The address of the Kubernetes API; with an empty URL if it works only in pods and this is not a pod."""
    import msgspec

    if cluster.internal and not env.get("KUBERNETES_SERVICE_HOST"):
        return msgspec.structs.replace(cluster, server="")
    return cluster


def _person_of(saved: Saved) -> Person:
    from moorage.api.logins import Person
    from moorage.api.reading import read

    return read(Person, _ask(saved, "GET", "/api/v1/login"))


def _no_address(saved: Saved) -> NotReady:
    return NotReady(
        f"{saved.url} does not know at which address people reach the Kubernetes API of its cluster",
        hint=f"its administrator sets kubernetesUrl in the ConfigMap {INFO_CONFIGMAP}: "
        f"kubectl -n {SYSTEM_NAMESPACE} patch configmap {INFO_CONFIGMAP} -p "
        """'{"data": {"kubernetesUrl": "https://kubernetes.example.org:6443"}}'""",
    )


def cluster_token(url: str | None, seconds: int = PLUGIN_SECONDS) -> tuple[str, str]:
    """Return a token for the cluster and its end (RFC 3339).

    The stored one, or a new one shortly before its end.
    """
    saved = _saved(url)
    if saved.has_fresh_token(SYSTEM.now()):
        return saved.kube_token, saved.kube_expires
    with known_logins() as known:  # one process at a time: the others find the token of the first
        saved = known.find(saved.url)
        if not saved.has_fresh_token(SYSTEM.now()):
            answer = _ask(saved, "POST", "/api/v1/login/token", {"expirationSeconds": seconds})
            saved = saved.with_kube(answer["token"], answer["expires"])
            known.put(saved)
    return saved.kube_token, saved.kube_expires


REPEATED = frozenset({"/api/v1/login", "/api/v1/login/token"})
"""Where asking again does no harm: a session or a token more, which nobody has."""


def _ask(saved: Saved, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Send one request to the server of a login; return its JSON answer. Raises ApiError.

    kubectl runs `moor token` often, so an HTTP client is imported only for a request.
    """
    import asyncio

    from moorage.client.connection import REPLICA_SECONDS, Connection, Patience, at_url

    async def ask() -> Any:
        patience = Patience(answer_seconds=ANSWER_SECONDS, seconds=REPLICA_SECONDS)
        connection = Connection(at_url(saved.url, saved.token, ca=saved.ca), patience=patience)
        try:
            return (await connection.json(method, path, body=body, repeat=path in REPEATED or method == "GET"))[0]
        finally:
            await connection.close()

    return asyncio.run(ask())


def _saved(url: str | None) -> Saved:
    return Known.read().find(url)


def _seconds(text: str) -> int:
    from moorage.decide.runs.timelimit import parse_time

    try:
        seconds = parse_time(text)
    except ValueError as error:
        raise UsageError(f"invalid --expiration {text!r}", hint="use a time such as 30m, 8h or 2d") from error
    if not 600 <= seconds <= 7 * 24 * 3600:
        raise UsageError(f"invalid --expiration {text!r}: use 10m to 7d")
    return seconds


def _prompt(text: str) -> str:
    return console.ask_hidden(text)


def _by_browser(saved: Saved, client: str, *, no_browser: bool) -> Any:
    from moorage.server.identity.oidc import challenge_of, new_verifier

    verifier, state = new_verifier(), secrets.token_urlsafe(16)
    query = {"challenge": challenge_of(verifier)}
    if no_browser:
        console.say(
            "open this address, sign in, and enter the code here:", f"{saved.url}/login/cli?{urlencode(query)}"
        )
        code = click.prompt("Code", err=True).strip()
    else:
        with _Waiting(state) as waiting:
            query |= {"port": str(waiting.port), "state": state}
            address = f"{saved.url}/login/cli?{urlencode(query)}"
            console.say(f"opening {address}", f"no browser here? moor login --no-browser {saved.url}")
            # a browser of the terminal ends only when it is closed, and the code comes while it runs
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
            code = waiting.code()
    return _ask(saved, "POST", "/api/v1/login/exchange", {"code": code, "verifier": verifier, "client": client})


class _Waiting:
    """A listener on this machine; after the login, the browser is redirected to it with the code.

    RFC 8252, section 7.3.
    """

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
                raise NotReady(
                    f"the login did not finish within {BROWSER_SECONDS // 60} minutes", hint="try again"
                )
            self._server.timeout = left
            self._server.handle_request()
        return self._codes[0]
