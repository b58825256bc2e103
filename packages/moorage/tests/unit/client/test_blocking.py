"""Asking a server whose address is known, without an event loop."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from moorage.api.logins import Person
from moorage.client.addresses import Address, cached_address, forget_address, keep_address
from moorage.client.blocking import NeedsLoop, known_server, run_at_once
from moorage.client.logins import Saved, known_logins
from moorage.client.target import Target, chosen_connection
from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.errors import Forbidden, ServerError
from moorage_kube.remote.config import Connection, ExecPlugin

KUBE = Connection(server="https://k.example", token="t0")
MOOR = ExecPlugin(command="moor", args=("token", "--server", "https://m.example"))
HOUR = timedelta(hours=1)


class Ours(BaseHTTPRequestHandler):
    """Answers each request with the next of `answers`, a status and a body; None: hangs up."""

    answers: list[tuple[int, Any] | None]
    asked: list[tuple[str, str, dict[str, str]]]

    def do_GET(self) -> None:
        self.asked.append((self.command, self.path, dict(self.headers)))
        answer = self.answers.pop(0)
        if answer is None:
            self.close_connection = True
            return
        data = json.dumps(answer[1]).encode()
        self.send_response(answer[0])
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[tuple[str, type[Ours]]]:
    monkeypatch.setenv("MOORAGE_CONFIG", str(tmp_path / "config"))
    handler = type("Ours", (Ours,), {"answers": [], "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    serving.join()
    server.server_close()


def ask(kube: Connection, method: str = "GET", **sent: Any) -> Person:
    return run_at_once(known_server(kube).ask(Person, method, "/api/v1/login", **sent))


def keep(kube: Connection, url: str, **fields: Any) -> None:
    keep_address(kube, Address(url=url, found_at=SYSTEM.now(), **fields))


def test_a_kept_address_is_asked_as_the_kubeconfig_says(ours):
    url, server = ours
    kube = replace(KUBE, impersonate_user="ada")
    keep(kube, url)
    server.answers.append((200, {"name": "ada", "account": ""}))
    assert ask(kube, params={"a": "b c", "n": None, "all": True}).name == "ada"
    [(method, path, headers)] = server.asked
    assert (method, path) == ("GET", "/api/v1/login?a=b+c&all=true")
    assert (headers["Authorization"], headers["Impersonate-User"]) == ("Bearer t0", "ada")


def test_errors_are_those_of_the_server(ours):
    url, server = ours
    keep(KUBE, url)
    server.answers.append((403, {"code": "forbidden", "message": "no", "hint": "ask"}))
    with pytest.raises(Forbidden) as caught:
        ask(KUBE)
    assert (caught.value.message, caught.value.hint) == ("no", "ask")


@pytest.mark.parametrize("answer", [(401, {}), (503, {}), None], ids=["refused", "starting", "hung up"])
def test_what_may_succeed_elsewhere_or_later_is_left_to_the_loop(ours, answer):
    url, server = ours
    keep(KUBE, url)
    server.answers.append(answer)
    with pytest.raises(NeedsLoop):
        ask(KUBE, patience=5.0)


def test_a_change_that_was_sent_is_not_sent_again(ours):
    url, server = ours
    keep(KUBE, url)
    server.answers.append(None)
    with pytest.raises(ServerError, match="does not answer"):
        ask(KUBE, "POST", patience=5.0)


def test_an_address_where_nobody_listens_is_left_to_the_loop(ours):
    keep(KUBE, "http://127.0.0.1:1")
    with pytest.raises(NeedsLoop):
        ask(KUBE, "POST")


@pytest.mark.parametrize(
    "kube",
    [
        pytest.param(replace(KUBE, token="", exec_plugin=ExecPlugin(command="aws")), id="another plugin"),
        pytest.param(replace(KUBE, token="", client_cert_pem=b"CERT"), id="a certificate that is not proved yet"),
        pytest.param(replace(KUBE, token="", exec_plugin=MOOR), id="no login"),
    ],
)
def test_who_asks_may_have_to_be_found_out(ours, kube):
    keep(kube, ours[0])
    with pytest.raises(NeedsLoop):
        known_server(kube)


def test_a_login_says_who_asks(ours):
    url, server = ours
    kube = replace(KUBE, token="", exec_plugin=MOOR)
    with known_logins() as known:
        known.put(Saved(url=url, token="session"))
        expires = rfc3339(SYSTEM.now() + HOUR)
        known.put(Saved(url="https://m.example", kube_token="k0", kube_expires=expires))
    for by_login, token in ((True, "session"), (False, "k0")):
        keep(kube, url, by_login=by_login)
        server.answers.append((200, {"name": "ada", "account": ""}))
        ask(kube)
        assert server.asked[-1][2]["Authorization"] == f"Bearer {token}"


def test_commands_that_ask_once_import_no_event_loop(ours, tmp_path):
    url, server = ours
    kubeconfig = tmp_path / "kubeconfig"
    cluster, user = {"server": KUBE.server}, {"token": KUBE.token}
    context = {"name": "c", "context": {"cluster": "c", "user": "c"}}
    lists = {"clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "c", "user": user}]}
    kubeconfig.write_text(json.dumps({"contexts": [context], "current-context": "c"} | lists))
    keep(chosen_connection(Target(kubeconfig=kubeconfig)), url)
    now = rfc3339(SYSTEM.now())
    job = {"namespace": "default", "name": "a", "owner": "ada", "state": "Waiting", "history": [{"number": 1}]}
    period = {"since": now, "until": now}
    answers = {
        "jobs": {"now": now, "jobs": []},
        "show a": {"job": job},
        "explain a": {"namespace": "default", "name": "a", "state": "waiting", "text": "it waits"},
        "gpus": {"now": now},
        "nodes": {"now": now},
        "idle": {"now": now},
        "top": period,
        "budget list": {"budgets": []},
        "cost report": period,
        "rightsize": {"works": []},
    }
    server.answers += [(200, answer) for answer in answers.values()]
    code = (
        "import sys; from moorage.cli.main import main; file, *typed = sys.argv[1:];"
        "codes = [main([*words.split(), '--kubeconfig', file]) for words in typed];"
        "print(codes, set(sys.modules) & {'asyncio', 'aiohttp'}, file=sys.stderr)"
    )
    words = [sys.executable, "-c", code, str(kubeconfig), *answers]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == f"{[0] * len(answers)} set()", done.stderr
    assert len(server.asked) == len(answers)


def test_an_address_is_kept_for_an_hour_for_one_kubeconfig_and_without_its_token(ours, tmp_path):
    now = SYSTEM.now()
    address = Address(url="https://m.example", ca="PEM", found_at=now)
    keep_address(KUBE, address)
    assert cached_address(KUBE, now + HOUR - timedelta(seconds=1)) == address
    assert cached_address(KUBE, now + HOUR) is None
    assert cached_address(replace(KUBE, server="https://other.example"), now) is None
    file = tmp_path / "config" / "servers.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "t0" not in file.read_text()
    forget_address(KUBE)
    assert cached_address(KUBE, now) is None
    file.write_text("[")
    assert cached_address(KUBE, now) is None
