"""`http`: sends the request of an HTTP template and checks the answer.

https://argo-workflows.readthedocs.io/en/latest/http-template/
"""

from __future__ import annotations

import base64
import http.client
import ssl
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.text.expressions import evaluate
from moorage_workflows.executor.errors import StepError
from moorage_workflows.executor.order import Order

ANSWER_BYTES = 4 * 1024 * 1024  # of a body; a string of an expression may be as long
RESULT_BYTES = 256 * 1024  # of a body that becomes the result, as of a step's output
REDIRECTS = 10  # as Go's client follows
CHUNK = 64 * 1024
_AS_GET = (301, 302, 303)
_AGAIN = (307, 308)
_OF_ONE_HOST = ("authorization", "cookie", "cookie2", "www-authenticate")  # not sent to another host
_SAFE = "!#$%&'()*+,/:;=?@[]~"  # in a URL, in addition to letters and digits


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. `headers`: with names in Go's spelling, such as Content-Type."""

    status: int
    headers: Mapping[str, list[str]]
    body: str


def request_report(order: Order, env: Mapping[str, str]) -> dict[str, Any]:
    """Send the request of the order; return the report, in the form of `model.workflow.StepReport`.

    Requests are not repeated: a request may have effects.
    """
    report: dict[str, Any] = {"pod": order.pod}
    try:
        answer = within(float(order.request["seconds"]), order.request, env)
        print(f"moorage: answered {answer.status}, {len(answer.body)} characters", flush=True)
        problem = problem_of(order.request, answer)
        size = len(answer.body.encode())
        if size <= RESULT_BYTES:
            report["outputs"] = {"result": answer.body}
        elif order.request["result"] and not problem:
            problem = (
                f"the answer has {size} bytes, and a result has at most {RESULT_BYTES}: fetch it as an input"
                " artifact (http), or from a container"
            )
    except StepError as error:
        problem = error.message
    if problem:
        print(f"moorage: {problem}", file=sys.stderr, flush=True)
        report["error"] = problem[:4096]
    return report


def within(seconds: float, request: Mapping[str, Any], env: Mapping[str, str]) -> Answer:
    """Return the answer, including its body and redirects, within this time. Raises StepError."""
    results: list[Answer | StepError] = []

    def work() -> None:
        try:
            results.append(send(request, env))
        except StepError as error:
            results.append(error)

    worker = threading.Thread(target=work, daemon=True)  # it may hang for longer; it ends with the process
    worker.start()
    worker.join(seconds)
    if not results:
        raise StepError(
            f"{request['method']} {request['url']} was not answered within {seconds:g} s: raise timeoutSeconds"
        )
    if isinstance(results[0], StepError):
        raise results[0]
    return results[0]


def problem_of(request: Mapping[str, Any], answer: Answer) -> str:
    """Return why an answer is a failure; "" if it is not. Raises StepError for an invalid condition."""
    condition = str(request["condition"])
    if not condition:
        return "" if 200 <= answer.status < 300 else f"received non-2xx response code: {answer.status}"
    body = base64.b64decode(request["body"])
    is_bytes = request["isBytes"]
    scope = {
        "request": {
            "method": request["method"],
            "url": request["url"],
            "body": "" if is_bytes else body.decode(),
            "bodyBytes": list(body) if is_bytes else None,
            "headers": {
                header["name"]: [header["value"]]
                for header in request["headers"]
                if isinstance(header["value"], str)
            },
        },
        "response": {"statusCode": answer.status, "body": answer.body, "headers": dict(answer.headers)},
    }
    try:
        holds = evaluate(condition, scope)
    except TextError as error:
        raise StepError(f"successCondition {condition!r}: {error.message}") from error
    if not isinstance(holds, bool):
        raise StepError(f"successCondition must be true or false, and {condition!r} is {holds!r}")
    return "" if holds else f"successCondition '{condition}' evaluated false"


def send(request: Mapping[str, Any], env: Mapping[str, str]) -> Answer:
    """Send a request, and follow redirects as Go's client does. Raises StepError."""
    opener = _opener(is_insecure=bool(request["insecure"]))
    method, url = str(request["method"]), _checked(str(request["url"]))
    body, headers = base64.b64decode(request["body"]), _headers(request["headers"], env)
    for _ in range(REDIRECTS + 1):
        answer, location = _once(opener, method, url, headers, body)
        if not location:
            return answer
        following = _checked(urllib.parse.urljoin(url, location))
        if answer.status in _AS_GET and method not in ("GET", "HEAD"):
            method, body = "GET", b""
        before, after = _host(url), _host(following)
        if after != before:
            away = ("host",) if after == before or after.endswith(f".{before}") else ("host", *_OF_ONE_HOST)
            headers = {name: value for name, value in headers.items() if name.lower() not in away}
        url = following
    raise StepError(f"{request['method']} {request['url']} was redirected more than {REDIRECTS} times")


class _Request(urllib.request.Request):
    """A request without the form content type that urllib adds to every body."""

    def has_header(self, header_name: str) -> bool:
        return header_name == "Content-type" or super().has_header(header_name)


def _opener(*, is_insecure: bool) -> urllib.request.OpenerDirector:
    """An opener for one request, with the proxies that the environment names; any status is an answer."""
    context = ssl.create_default_context()
    if is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    opener = urllib.request.OpenerDirector()
    opener.addheaders = [("User-Agent", "moorage")]
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(context=context),
    ):
        opener.add_handler(handler)
    return opener


def _once(
    opener: urllib.request.OpenerDirector, method: str, url: str, headers: Mapping[str, str], body: bytes
) -> tuple[Answer, str]:
    """Send one request. Returns the answer and the target of its redirect."""
    try:
        sent = _Request(url, data=body or None, headers=dict(headers), method=method)
        with opener.open(sent) as answer:
            location = answer.headers.get("Location") or ""
            if answer.status in (*_AS_GET, *_AGAIN) and location:
                return Answer(answer.status, {}, ""), location
            return Answer(answer.status, _by_name(answer.headers.items()), _text(answer, url)), ""
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise StepError(f"{method} {url} failed: {reason or type(error).__name__}") from error


def _text(answer: Any, url: str) -> str:
    data = bytearray()
    while chunk := answer.read(CHUNK):
        data += chunk
        if len(data) > ANSWER_BYTES:
            raise StepError(
                f"the answer of {url} has more than {ANSWER_BYTES} bytes: fetch it as an input artifact (http), or"
                " from a container"
            )
    return data.decode("utf-8", "replace")


def _headers(given: list[Mapping[str, Any]], env: Mapping[str, str]) -> dict[str, str]:
    """Return the headers. Headers of the same name are joined, as in RFC 9110."""
    headers: dict[str, str] = {}
    for header in given:
        name, value = str(header["name"]).capitalize(), header["value"]
        if isinstance(value, Mapping):
            variable = f"MOORAGE_SECRET_{value['secret']}"
            if variable not in env:
                raise StepError(f"the Secret of the header {header['name']}, or its key, does not exist")
            value = env[variable].rstrip("\r\n")
        text = str(value).encode().decode("latin-1")
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers


def _by_name(headers: Any) -> dict[str, list[str]]:
    named: dict[str, list[str]] = {}
    for name, value in headers:
        canonical = "-".join(part.capitalize() for part in name.split("-"))
        named.setdefault(canonical, []).append(value)
    return named


def _checked(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise StepError(f"the URL {url!r} must begin with http:// or https://")
    return urllib.parse.quote(url, safe=_SAFE).partition("#")[0]


def _host(url: str) -> str:
    return (urllib.parse.urlsplit(url).hostname or "").lower()
