"""The part `http` against a real small HTTP server: what is sent, and how the answer is judged."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from moorage_workflows.executor.__main__ import main
from moorage_workflows.executor.order import Order
from moorage_workflows.executor.requests import ANSWER_BYTES, request_report


@dataclass
class Web:
    """A server that answers by path, and notes what came."""

    url: str = ""
    other: str = ""  # the same server by another name
    seen: list[dict[str, Any]] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def web() -> Iterator[Web]:
    made = Web()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            made.seen.append({"method": self.command, "path": self.path, "headers": headers, "body": body})
            status, location, text = 200, "", b"hello"
            if self.path.startswith("/status/"):
                status = int(self.path.removeprefix("/status/"))
            elif self.path.startswith("/to/"):
                status, location = int(self.path.split("/")[2]), "/end"
            elif self.path == "/away":
                status, location = 302, f"{made.other}/end"
            elif self.path == "/round":
                status, location = 302, "/round"
            elif self.path == "/large":
                text = b"x" * (300 * 1024)
            elif self.path == "/larger":
                text = b"x" * (ANSWER_BYTES + 1)
            elif self.path == "/hang":
                made.release.wait(30)
            if self.path.endswith("/report"):
                status = 204
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(text) if status != 204 else 0))
            self.send_header("x-made-by", "us")
            self.end_headers()
            if status != 204:
                self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_DELETE = _answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    made.url = f"http://127.0.0.1:{server.server_port}"
    made.other = f"http://localhost:{server.server_port}"
    yield made
    made.release.set()
    server.shutdown()
    server.server_close()


def a_request(url: str, body: bytes = b"", **more: Any) -> dict[str, Any]:
    return {
        "method": "GET", "url": url, "headers": [], "body": base64.b64encode(body).decode(), "isBytes": False,
        "seconds": 30, "condition": "", "insecure": False, "result": True, **more,
    }  # fmt: skip


def ask(url: str, body: bytes = b"", *, env: dict[str, str] | None = None, **more: Any) -> dict[str, Any]:
    return request_report(Order(workflow="u", pod="p", request=a_request(url, body, **more)), env or {})


def test_a_request_has_the_method_headers_secrets_and_body_that_the_template_says(web: Web) -> None:
    headers = [
        {"name": "X-Name", "value": "1"},
        {"name": "x-name", "value": "2"},
        {"name": "Authorization", "value": {"secret": 0}},
        {"name": "Host", "value": "api.example.org"},
    ]
    report = ask(
        f"{web.url}/a b?q=ü", b'{"a": 1}', method="POST", headers=headers, env={"MOORAGE_SECRET_0": "Bearer t\n"}
    )
    assert report == {"pod": "p", "outputs": {"result": "hello"}}
    (seen,) = web.seen
    assert (seen["method"], seen["path"], seen["body"]) == ("POST", "/a%20b?q=%C3%BC", b'{"a": 1}')
    wanted = {"x-name": "1, 2", "authorization": "Bearer t", "host": "api.example.org"}
    assert seen["headers"] | wanted == seen["headers"]
    assert "content-type" not in seen["headers"]


@pytest.mark.parametrize(("path", "condition", "problem"), [
    ("/status/201", "", ""),
    ("/status/404", "", "received non-2xx response code: 404"),
    ("/status/404", "response.statusCode == 404", ""),
    ("/x", 'response.body contains "ell"', ""),
    ("/x", 'response.headers["X-Made-By"][0] == "us"', ""),
    ("/x", 'request.method == "GET" && request.body == "q" && request.headers["A"][0] == "b"', ""),
    ("/x", "response.statusCode == 201", "successCondition 'response.statusCode == 201' evaluated false"),
    ("/x", "response.statusCode", "successCondition must be true or false, and 'response.statusCode' is 200"),
    ("/x", "response.none.a", "successCondition 'response.none.a':"),
])  # fmt: skip
def test_answers_are_judged_by_their_status_or_by_the_condition(web, path, condition, problem) -> None:
    report = ask(f"{web.url}{path}", b"q", condition=condition, headers=[{"name": "A", "value": "b"}])
    assert report.get("error", "").startswith(problem)
    assert bool(report.get("error")) == bool(problem)
    if "must be" not in problem and not problem.endswith(":"):
        assert report["outputs"] == {"result": "hello"}  # of a failure too


def test_bytes_are_sent_as_they_are(web: Web) -> None:
    report = ask(web.url, b"\xff\x00", method="PUT", isBytes=True, condition="request.bodyBytes[0] == 255")
    assert "error" not in report
    assert web.seen[0]["body"] == b"\xff\x00"


@pytest.mark.parametrize(("status", "method", "body"), [
    (301, "GET", b""), (302, "GET", b""), (303, "GET", b""), (307, "POST", b"b"), (308, "POST", b"b"),
])  # fmt: skip
def test_redirects_are_followed_as_go_does(web: Web, status: int, method: str, body: bytes) -> None:
    assert "error" not in ask(f"{web.url}/to/{status}", b"b", method="POST")
    assert [(seen["method"], seen["path"], seen["body"]) for seen in web.seen] == [
        ("POST", f"/to/{status}", b"b"),
        (method, "/end", body),
    ]


def test_another_host_does_not_get_the_authorization(web: Web) -> None:
    headers = [{"name": "Authorization", "value": "Bearer t"}, {"name": "X-Own", "value": "1"}]
    assert "error" not in ask(f"{web.url}/away", headers=headers)
    assert "authorization" in web.seen[0]["headers"]
    assert web.seen[1]["headers"]["x-own"] == "1"
    assert "authorization" not in web.seen[1]["headers"]


def test_redirects_without_end_end(web: Web) -> None:
    assert ask(f"{web.url}/round")["error"].endswith("was redirected more than 10 times")


def test_what_cannot_be_asked_is_a_failure_that_names_the_address(web: Web) -> None:
    assert ask("http://127.0.0.1:1/x")["error"].startswith("GET http://127.0.0.1:1/x failed: [Errno 111]")
    assert "Secret of the header A" in ask(web.url, headers=[{"name": "A", "value": {"secret": 0}}])["error"]
    assert "failed: Invalid header value" in ask(web.url, headers=[{"name": "A", "value": "a\nb"}])["error"]


def test_a_server_that_does_not_answer_in_time_is_given_up(web: Web) -> None:
    assert "was not answered within 0.2 s: raise timeoutSeconds" in ask(f"{web.url}/hang", seconds=0.2)["error"]


def test_a_body_is_bounded_and_so_is_a_result(web: Web) -> None:
    assert ask(f"{web.url}/large", result=False) == {"pod": "p"}
    assert "has 307200 bytes, and a result has at most 262144" in ask(f"{web.url}/large")["error"]
    assert f"has more than {ANSWER_BYTES} bytes" in ask(f"{web.url}/larger", result=False)["error"]


def test_the_proxy_of_the_environment_is_asked(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", web.url)
    monkeypatch.setenv("no_proxy", "example.org")
    assert "error" not in ask("http://api.example.net/v1")
    assert [seen["path"] for seen in web.seen] == ["http://api.example.net/v1"]


@pytest.mark.parametrize(("status", "code"), [(200, 0), (500, 1)])
def test_the_part_reports_to_the_server_whatever_the_answer(web, tmp_path, status, code) -> None:
    order = {
        "workflow": "u", "pod": "p", "inputs": [], "parameters": [], "artifacts": [], "result": False,
        "logs": False, "shell": False, "http": a_request(f"{web.url}/status/{status}"),
    }  # fmt: skip
    (tmp_path / "order.json").write_text(json.dumps(order))
    words = ["http", "--step", str(tmp_path), "--order", str(tmp_path / "order.json"), "--try-seconds", "0"]
    assert main(words, {"MOORAGE_SERVER": web.url, "MOORAGE_STEP_TOKEN": "t"}) == code
    assert [seen["path"] for seen in web.seen] == [f"/status/{status}", "/api/v1/steps/u/p/report"]
    report = json.loads(web.seen[1]["body"])
    assert report["outputs"] == {"result": "hello"}
    assert ("error" in report) == bool(code)
