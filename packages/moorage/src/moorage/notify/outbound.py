"""The addresses that the administrator allows for notices. Values; nothing here opens a connection."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from msgspec import Struct

from moorage.model.targets import is_email, split_address
from moorage.settings import NOTIFY_NETWORKS, SMTP_FROM, SMTP_URL
from moorage_kube.errors import UsageError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_EMBEDS_IPV4 = (  # networks whose addresses lead to an IPv4 address that another check would have to read
    ipaddress.IPv6Network("64:ff9b::/96"),  # NAT64, RFC 6052
    ipaddress.IPv6Network("64:ff9b:1::/48"),  # NAT64, RFC 8215
    ipaddress.IPv6Network("2002::/16"),  # 6to4
    ipaddress.IPv6Network("2001::/32"),  # Teredo
    ipaddress.IPv6Network("::/96"),  # IPv4-compatible
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """A mail server. `security`: "starttls", "tls" (from the first byte) or "none".

    A password is never sent without TLS.
    """

    host: str
    port: int
    sender: str
    security: str = "starttls"
    user: str = ""
    password: str = field(default="", repr=False)
    ca_file: str | None = None  # None: the system's

    def __post_init__(self) -> None:
        if self.security not in ("starttls", "tls", "none"):
            raise UsageError(f"a mail server's security is {self.security!r}; starttls, tls or none")
        if self.password and self.security == "none":
            raise UsageError("a password is not sent to a mail server without TLS")
        if not is_email(self.sender):
            raise UsageError(f"invalid sender {self.sender!r}: use an e-mail address, such as moorage@example.com")


class Outbound(Struct, frozen=True, kw_only=True):
    """The targets that the administrator allows. The default, for targets written by users: https, public.

    `commands` lets users run programs on this machine: only for a user's own machine.
    """

    networks: tuple[Network, ...] = ()  # private ones that webhooks may reach
    plain_http: bool = False
    commands: bool = False
    mail: MailServer | None = None
    seconds: float = 10.0  # patience with each try

    def allows(self, address: Address) -> bool:
        """Whether webhooks may use an address: all public addresses, and the configured networks."""
        inner = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        if inner is not None:
            return self.allows(inner)
        if any(address.version == network.version and address in network for network in self.networks):
            return True
        hidden = isinstance(address, ipaddress.IPv6Address) and any(address in network for network in _EMBEDS_IPV4)
        return address.is_global and not address.is_multicast and not hidden


def outbound_of(environment: Mapping[str, str]) -> Outbound:
    """The permissions of `MOORAGE_NOTIFY_NETWORKS` and the mail server's settings. Raises UsageError."""
    try:
        networks = tuple(ipaddress.ip_network(text) for text in NOTIFY_NETWORKS.read(environment))
    except ValueError as error:
        raise UsageError(f"invalid MOORAGE_NOTIFY_NETWORKS: {error}: use networks such as 10.0.0.0/8") from error
    return Outbound(networks=networks, plain_http=bool(networks), mail=mail_server_of(environment))


def mail_server_of(environment: Mapping[str, str]) -> MailServer | None:
    """The mail server of `MOORAGE_SMTP_URL` and `MOORAGE_SMTP_FROM`; None if both are unset.

    smtps://USER:PASSWORD@HOST:465 is TLS from the first byte, smtp://…:587 STARTTLS, smtp+plain://…:25 neither.
    Messages do not contain the address, since it may contain a password.
    """
    address, sender = SMTP_URL.read(environment), SMTP_FROM.read(environment)
    if not address and not sender:
        return None
    known = {"smtps": ("tls", 465), "smtp": ("starttls", 587), "smtp+plain": ("none", 25)}
    parts = split_address(address)
    if parts.scheme not in known or not parts.hostname:
        raise UsageError("invalid MOORAGE_SMTP_URL: use smtps://…, smtp://… or smtp+plain://…")
    security, port = known[parts.scheme]
    return MailServer(
        host=parts.hostname,
        port=parts.port or port,
        sender=sender,
        security=security,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
    )
