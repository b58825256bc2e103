from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.notify import Command, Email, MailServer, Outbound, Webhook, parse_target
from moorage.notify.outbound import mail_server_of
from moorage_kube.errors import UsageError

SECRET = "T0/B0/s3cret"


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (f"https://hooks.example.com/{SECRET}", Webhook(f"https://hooks.example.com/{SECRET}")),
        ("mailto:ada@example.com, bob@example.com", Email(("ada@example.com", "bob@example.com"))),
        ("command:notify-send 'the map'", Command(("notify-send", "the map"))),
    ],
)
def test_a_target_is_read_as_written(text, target):
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "", "slack", "ftp://example.com/x", "https://", f"https://user:{SECRET}@example.com/", "https://a b/",
        f"https://example.com:port/{SECRET}", f"https://example.com/{SECRET}\r\nHost: evil", f"https://[::1/{SECRET}",
        "mailto:", "mailto:ada", "mailto:ada@example.com\r\nBcc: eve@example.com", "mailto:<ada@example.com>",
        "mailto:a@b,", "command:", "command:'open", "command:a\0b",
    ],
)  # fmt: skip
def test_what_is_no_target_is_refused_and_secrets_are_not_repeated(text):
    with pytest.raises(UsageError) as error:
        parse_target(text)
    assert SECRET not in str(error.value)


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("8.8.8.8", True), ("2606:4700::1111", True), ("127.0.0.1", False), ("10.1.2.3", False),
        ("169.254.169.254", False), ("192.168.0.1", False), ("100.64.0.1", False), ("0.0.0.0", False),
        ("224.0.0.1", False), ("::1", False), ("fe80::1", False), ("fd00::1", False), ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True), ("64:ff9b::7f00:1", False), ("2002:7f00:1::", False), ("ff02::1", False),
        ("::127.0.0.1", False),
    ],
)  # fmt: skip
def test_webhooks_lead_to_public_addresses_only(address, allowed):
    assert Outbound().allows(ipaddress.ip_address(address)) is allowed


def test_the_administrator_may_allow_a_private_network():
    outbound = Outbound(networks=(ipaddress.ip_network("10.1.0.0/16"),))
    assert outbound.allows(ipaddress.ip_address("10.1.2.3"))
    assert outbound.allows(ipaddress.ip_address("::ffff:10.1.2.3"))
    assert not outbound.allows(ipaddress.ip_address("10.2.2.3"))


@given(st.ip_addresses(v=4))
def test_an_address_in_another_dress_is_judged_as_itself(address):
    dressed = ipaddress.IPv6Address(f"::ffff:{address}")
    assert Outbound().allows(dressed) == Outbound().allows(address)


def test_no_secret_shows_in_a_repr_or_a_label():
    server = MailServer(host="mail", port=587, sender="moor@example.com", user="moor", password=SECRET)
    hook = Webhook(f"https://hooks.example.com/{SECRET}")
    shown = repr(server) + repr(Outbound(mail=server)) + repr(hook) + hook.label
    assert SECRET not in shown + repr(Command(("x", SECRET))) + Command(("x", SECRET)).label


def test_the_mail_server_comes_from_the_environment():
    mail_server = mail_server_of(
        {"MOORAGE_SMTP_URL": "smtps://moor:p%40ss@mail:465", "MOORAGE_SMTP_FROM": "m@example.com"}
    )
    assert mail_server == MailServer(
        host="mail", port=465, sender="m@example.com", security="tls", user="moor", password="p@ss"
    )
    assert mail_server_of({}) is None
    with pytest.raises(UsageError, match="without TLS"):
        mail_server_of({"MOORAGE_SMTP_URL": "smtp+plain://u:p@mail", "MOORAGE_SMTP_FROM": "m@example.com"})
    with pytest.raises(UsageError, match="invalid MOORAGE_SMTP_URL"):
        mail_server_of({"MOORAGE_SMTP_URL": f"mail:{SECRET}", "MOORAGE_SMTP_FROM": "m@example.com"})
