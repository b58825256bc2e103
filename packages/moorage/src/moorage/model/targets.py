"""Receivers of notifications: webhooks, mail addresses, commands. This module opens no connections."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from moorage_kube.errors import UsageError

RECIPIENTS_MAX = 20
_EMAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook that accepts `{"text": …}` by POST, like Slack's. The whole address is a secret."""

    url: str = field(repr=False)

    def __post_init__(self) -> None:
        parts = split_address(self.url)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise UsageError("a webhook is an address such as https://hooks.example.com/…")
        if parts.username is not None or parts.password is not None:
            raise UsageError("a webhook's address holds no user and no password")

    @property
    def label(self) -> str:
        return f"webhook at {split_address(self.url).hostname}"


class Email(Struct, frozen=True):
    to: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.to) <= RECIPIENTS_MAX:
            raise UsageError(f"an e-mail has 1 to {RECIPIENTS_MAX} addresses, not {len(self.to)}")
        for address in self.to:
            if not is_email(address):
                raise UsageError(
                    f"invalid e-mail address {address!r}", hint="use the bare address, such as ada@example.com"
                )

    @property
    def label(self) -> str:
        return f"e-mail to {', '.join(self.to)}"


@dataclass(frozen=True, slots=True)
class Command:
    """A program with arguments, started without a shell. It gets the text on stdin."""

    argv: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0] or any("\0" in word for word in self.argv):
            raise UsageError("a command has a program, and no NUL in its arguments")

    @property
    def label(self) -> str:
        return f"command {self.argv[0]!r}"


Target = Webhook | Email | Command


def parse_target(text: str) -> Target:
    """Parse `https://…`, `mailto:ada@example.com,bob@example.com` or `command:PROGRAM ARGUMENT…`.

    Raises UsageError. Messages about a webhook never contain its address.
    """
    kind, colon, rest = text.strip().partition(":")
    match kind.lower() if colon else "":
        case "https" | "http":
            return Webhook(text.strip())
        case "mailto":
            return Email(tuple(part.strip() for part in rest.split(",")))
        case "command":
            try:
                return Command(tuple(shlex.split(rest)))
            except ValueError as error:
                raise UsageError(f"cannot split the arguments of the command: {error}") from error
    raise UsageError("invalid target: use https://…, mailto:… or command:…")


def is_email(text: str) -> bool:
    return _EMAIL.fullmatch(text) is not None


def split_address(text: str) -> SplitResult:
    """Split an address. Raises UsageError without the address, because it may contain a secret."""
    if any(char.isspace() or ord(char) < 0x20 for char in text):
        raise UsageError("an address holds a blank or a control character")
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        raise UsageError(
            "invalid address: use a URL"
        ) from None  # its text, and urlsplit's message, may be a secret
    return parts
