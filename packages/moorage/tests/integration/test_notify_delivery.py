"""Notices reach real servers and real programs; what fails is told without secrets."""

from __future__ import annotations

import asyncio
import contextlib
import email
import email.policy
import ipaddress
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from aiohttp import web
from msgspec.structs import replace

from moorage.decide.maps.notices import MapState, NoticeRules, due
from moorage.notify import Command, Email, MailServer, Outbound, Webhook, send
from moorage_kube.certificates import make_authority, make_server_certificate
from moorage_kube.clock import SYSTEM

pytestmark = pytest.mark.anyio

SECRET = "s3cret-T0B0"
LOCAL = Outbound(
    networks=(ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")),
    plain_http=True,
    commands=True,
    seconds=60.0,  # only bounds a hang
)
STATE = MapState(
    namespace="lab", name="features", total=10, done=9, failed=1, ended=True, outcome="failed",
    first_failed_item="<!channel> & @here", address="https://moor.example.com/maps/lab/features",
)  # fmt: skip
(NOTICE,) = due(NoticeRules(), STATE, frozenset()).notices


class FakeClock:
    """Sleeps take no time and are written down."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> datetime:
        return datetime(2026, 11, 21, tzinfo=UTC)

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def hook(*answers: web.Response):
    """A web server that gives these answers in turn, the last for ever. Yields its address and what it got."""
    got: list[dict] = []

    async def answer(request: web.Request) -> web.Response:
        got.append({"body": await request.json(), "path": request.path, "headers": dict(request.headers)})
        chosen = answers[min(len(got), len(answers)) - 1]
        return web.Response(status=chosen.status, headers=chosen.headers, text="internal: " + SECRET)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/services/{SECRET}", got
    finally:
        await runner.cleanup()


async def test_a_webhook_gets_slacks_shape_with_markup_escaped():
    async with hook(web.Response(status=200)) as (url, got):
        (delivery,) = await send(NOTICE, [Webhook(url)], LOCAL)
    assert delivery.delivered
    assert got[0]["body"] == {
        "text": "map lab/features: failed\n9 of 10 items done, 1 failed\n"
        "first failed item: &lt;!channel&gt; &amp; @\u200bhere\nhttps://moor.example.com/maps/lab/features"
    }
    assert got[0]["headers"]["Idempotency-Key"] == "lab/features/ended/1"


async def test_a_webhook_that_stumbles_is_tried_again_with_growing_waits():
    clock = FakeClock()
    answers = [web.Response(status=503), web.Response(status=429, headers={"Retry-After": "9"}), web.Response()]
    async with hook(*answers) as (url, got):
        (delivery,) = await send(NOTICE, [Webhook(url)], LOCAL, clock=clock)
    assert (delivery.delivered, delivery.tries, len(got)) == (True, 3, 3)
    assert clock.slept == [2.0, 9.0]


@pytest.mark.parametrize(
    ("answer", "tries", "says"),
    [
        (web.Response(status=404), 1, "127.0.0.1 answered 404"),
        (web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"}), 1, "redirects are not followed"),
        (web.Response(status=500), 4, "127.0.0.1 answered 500"),
    ],
)
async def test_what_a_webhook_answers_is_told_without_its_address_or_its_text(answer, tries, says, caplog):
    async with hook(answer) as (url, got):
        (delivery,) = await send(NOTICE, [Webhook(url)], LOCAL, clock=FakeClock())
    assert len(got) == delivery.tries == tries
    assert says in delivery.problem
    assert SECRET not in repr(delivery) + caplog.text + "".join(repr(one.__dict__) for one in caplog.records)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "127.1", "[::ffff:127.0.0.1]", "0.0.0.0"]
)
async def test_a_webhook_to_this_machine_is_refused_in_every_dress(host):
    async with hook(web.Response()) as (url, got):
        strict = replace(LOCAL, networks=())
        (delivery,) = await send(NOTICE, [Webhook(url.replace("127.0.0.1", host))], strict, clock=FakeClock())
    assert (got, delivery.tries) == ([], 1)
    assert delivery.problem.endswith(
        ("is not a public address, and the administrator does not allow it", "InvalidUrlClientError")
    )


async def test_plain_http_needs_leave_and_a_closed_port_is_tried_again():
    (refused,) = await send(NOTICE, [Webhook("http://127.0.0.1:1/")], Outbound(), clock=FakeClock())
    assert refused.problem == "the webhook is not https, and plain http is not allowed here"
    (closed,) = await send(NOTICE, [Webhook("http://127.0.0.1:1/" + SECRET)], LOCAL, clock=FakeClock())
    assert (closed.tries, closed.problem) == (4, "127.0.0.1 cannot be reached: ClientConnectorError")


@dataclass
class SmtpServer:
    """Enough of RFC 5321 for smtplib: EHLO, STARTTLS, AUTH PLAIN, MAIL, RCPT, DATA."""

    tls: ssl.SSLContext | None = None
    rcpt_codes: list[int] = field(default_factory=list)  # answers to RCPT in turn; then 250
    auth_code: int = 235
    mails: list[bytes] = field(default_factory=list)
    secure: list[bool] = field(default_factory=list)
    logins: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        secure = False

        async def say(line: str) -> None:
            writer.write(line.encode() + b"\r\n")
            await writer.drain()

        await say("220 test")
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while line := (await reader.readline()).decode().strip():
                verb = line.split(":")[0].split()[0].upper()
                if verb == "EHLO":
                    offers = ["250-test"] + (["250-STARTTLS"] if self.tls and not secure else [])
                    for one in [*offers, "250 AUTH PLAIN"]:
                        await say(one)
                elif verb == "STARTTLS":
                    await say("220 go")
                    await writer.start_tls(self.tls)
                    secure = True
                elif verb == "AUTH":
                    self.logins += 1
                    await say(f"{self.auth_code} {line}")
                elif verb == "RCPT":
                    await say(f"{self.rcpt_codes.pop(0) if self.rcpt_codes else 250} so")
                elif verb == "DATA":
                    await say("354 go")
                    text = await reader.readuntil(b"\r\n.\r\n")
                    self.mails.append(text.removesuffix(b".\r\n"))
                    self.secure.append(secure)
                    await say("250 kept")
                elif verb == "QUIT":
                    await say("221 bye")
                    break
                else:
                    await say("250 so")
        writer.close()


@contextlib.asynccontextmanager
async def smtp(state: SmtpServer, **settings):
    server = await asyncio.start_server(state.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    chosen = {"host": "127.0.0.1", "port": port, "sender": "moor@example.com", "security": "none"} | settings
    async with server:
        yield replace(LOCAL, mail=MailServer(**chosen))


@pytest.fixture
def certificate(tmp_path):
    """A server's certificate for 127.0.0.1: (context of the server, file of the authority to trust)."""
    valid = {"now": SYSTEM.now(), "lifetime": timedelta(hours=1)}
    authority = make_authority("test", **valid)
    server = make_server_certificate(authority, "test", dns_names=(), addresses=["127.0.0.1"], **valid)
    pem, trusted = tmp_path / "server.pem", tmp_path / "ca.pem"
    trusted.write_bytes(authority.pem)
    pem.write_bytes(server.key_pem + server.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context, str(trusted)


async def test_an_email_goes_out_over_starttls_with_a_login(certificate):
    context, trusted = certificate
    state = SmtpServer(tls=context)
    settings = {"security": "starttls", "user": "moor", "password": SECRET, "ca_file": trusted}
    async with smtp(state, **settings) as outbound:
        (delivery,) = await send(NOTICE, [Email(("ada@example.com", "bob@example.com"))], outbound)
    assert delivery.delivered, delivery
    assert (state.secure, state.logins) == ([True], 1)
    got = email.message_from_bytes(state.mails[0], policy=email.policy.default)
    assert (got["To"], got["Subject"]) == ("ada@example.com, bob@example.com", "map lab/features: failed")
    assert got["Auto-Submitted"] == "auto-generated"
    assert got.get_content().replace("\r\n", "\n") == NOTICE.text + "\n"


async def test_a_mail_server_whose_certificate_is_not_trusted_gets_no_password(certificate):
    context, _ = certificate
    state = SmtpServer(tls=context)
    async with smtp(state, security="starttls", user="moor", password=SECRET) as outbound:
        (delivery,) = await send(NOTICE, [Email(("ada@example.com",))], outbound, clock=FakeClock())
    assert (state.mails, state.logins, delivery.tries) == ([], 0, 1)
    assert "certificate that is not trusted" in delivery.problem


async def test_a_mail_server_without_starttls_gets_no_password():
    state = SmtpServer()
    async with smtp(state, security="starttls", user="moor", password=SECRET) as outbound:
        (delivery,) = await send(NOTICE, [Email(("ada@example.com",))], outbound, clock=FakeClock())
    assert (state.mails, state.logins) == ([], 0)
    assert delivery.problem == "mail server 127.0.0.1 does not offer starttls or a login"


async def test_a_wrong_password_is_told_once_and_not_repeated(certificate):
    context, trusted = certificate
    state = SmtpServer(tls=context, auth_code=535)
    settings = {"security": "starttls", "user": "moor", "password": SECRET, "ca_file": trusted}
    async with smtp(state, **settings) as outbound:
        (delivery,) = await send(NOTICE, [Email(("ada@example.com",))], outbound, clock=FakeClock())
    assert delivery.tries == 1
    assert delivery.problem == "mail server 127.0.0.1 does not take the user and password (535)"


@pytest.mark.parametrize(
    ("codes", "tries", "problem"),
    [
        ([450], 2, ""),
        ([550], 1, "mail server 127.0.0.1 takes none of the recipients (550)"),
        ([250, 550], 1, "mail server 127.0.0.1 does not take 1 of the recipients (550)"),
    ],
)
async def test_recipients_that_are_refused_for_now_are_tried_again_and_others_told(codes, tries, problem):
    to = ("ada@example.com", "bob@example.com")[: len(codes)]
    async with smtp(SmtpServer(rcpt_codes=codes)) as outbound:
        (delivery,) = await send(NOTICE, [Email(to)], outbound, clock=FakeClock())
    assert (delivery.tries, delivery.problem) == (tries, problem)


async def test_a_title_with_line_breaks_makes_no_header():
    notice = replace(NOTICE, title="done\r\nBcc: eve@example.com")
    state = SmtpServer()
    async with smtp(state) as outbound:
        (delivery,) = await send(notice, [Email(("ada@example.com",))], outbound)
    got = email.message_from_bytes(state.mails[0], policy=email.policy.default)
    assert delivery.delivered
    assert (got["Bcc"], got["Subject"]) == (None, "done Bcc: eve@example.com")


async def test_a_command_gets_the_text_and_none_of_our_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("MOORAGE_SMTP_URL", SECRET)
    out = tmp_path / "out"
    script = 'import os,sys; open(sys.argv[1],"w").write(sys.stdin.read()+str(sorted(os.environ))+sys.argv[2])'
    command = Command(("python3", "-c", script, str(out), "$(id); `id`"))
    (delivery,) = await send(NOTICE, [command], LOCAL)
    assert delivery.delivered, delivery
    assert out.read_text().startswith(NOTICE.text)
    assert "MOORAGE_NOTICE" in out.read_text()
    assert "MOORAGE_SMTP_URL" not in out.read_text()
    assert out.read_text().endswith("$(id); `id`")


@pytest.mark.parametrize(
    ("argv", "seconds", "says"),
    [
        (("false",), 60, "ended with 1"),
        (("/no/such/program",), 60, "cannot be run: No such file or directory"),
        (("sleep", "600"), 0.2, "ran longer than 0.2 s"),
    ],
)
async def test_a_command_that_fails_is_told_and_tried_once(argv, seconds, says):
    (delivery,) = await send(NOTICE, [Command(argv)], replace(LOCAL, seconds=seconds), clock=FakeClock())
    assert delivery.tries == 1
    assert says in delivery.problem


async def test_what_is_not_allowed_is_refused_and_the_other_targets_still_get_theirs():
    async with hook(web.Response()) as (url, got):
        strict = replace(LOCAL, commands=False, mail=None)
        found = await send(NOTICE, [Command(("true",)), Email(("a@example.com",)), Webhook(url)], strict)
    assert [one.problem for one in found] == [
        "commands are not allowed here",
        "mail server not set; the administrator sets MOORAGE_SMTP_URL",
        "",
    ]
    assert len(got) == 1
