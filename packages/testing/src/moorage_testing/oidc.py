"""A real OpenID Connect provider for tests: oidc-provider-mock as a separate process, and users at its form."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moorage_kube.clock import SYSTEM
from moorage_kube.testing.ports import free_ports

START_SECONDS = 300.0
TRIES = 5


@dataclass(frozen=True, slots=True)
class Directory:
    """A running provider. The user who signs in is chosen by subject; all subjects are accepted."""

    issuer: str

    def put_user(self, subject: str, **claims: Any) -> None:
        _ask("PUT", f"{self.issuer}/users/{urllib.parse.quote(subject)}", json.dumps(claims).encode())

    def revoke(self, subject: str) -> None:
        """Revoke all tokens of a user."""
        _ask("POST", f"{self.issuer}/users/{urllib.parse.quote(subject)}/revoke-tokens", b"")

    def sign_in(self, url: str, subject: str) -> str:
        """Sign in as a user would at the address of the redirect; return the address of the redirect back."""
        request = urllib.request.Request(url, urllib.parse.urlencode({"sub": subject}).encode(), method="POST")
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=120) as answer:
                raise AssertionError(f"no way back: HTTP {answer.status}")
        except urllib.error.HTTPError as error:
            location = error.headers.get("Location")
            if error.code not in (302, 303) or not location:
                raise AssertionError(f"HTTP {error.code}: {error.read()[:500]!r}") from None
            return str(location)


@contextlib.contextmanager
def oidc_provider(*options: str, users: Sequence[Mapping[str, Any]] = ()) -> Iterator[Directory]:
    """Start the provider with the options of its command; `users` are claims with a `sub`."""
    process, provider = _started(options)
    try:
        for claims in users:
            provider.put_user(str(claims["sub"]), **{key: value for key, value in claims.items() if key != "sub"})
        yield provider
    finally:
        process.terminate()
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _started(options: Sequence[str]) -> tuple[subprocess.Popen[bytes], Directory]:
    """Start the provider, on another port if the first one was taken meanwhile."""
    for port in free_ports(TRIES):
        argv = [sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), *options]
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        provider = Directory(f"http://127.0.0.1:{port}")
        try:
            _wait(f"{provider.issuer}/.well-known/openid-configuration", process)
        except AssertionError:
            if process.poll() is None:
                process.kill()
                process.wait()
                raise
            continue
        return process, provider
    raise AssertionError(f"the provider ended at once, {TRIES} times: {argv}")


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    import time

    ends = SYSTEM.monotonic() + START_SECONDS
    while SYSTEM.monotonic() < ends and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=30):
            return
        time.sleep(0.1)
    raise AssertionError(f"{url} did not answer")


def _ask(method: str, url: str, body: bytes) -> None:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=120):
        return


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None
