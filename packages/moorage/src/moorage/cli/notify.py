"""`moor notify`: test whether notifications arrive."""

from __future__ import annotations

import asyncio
import logging
import os

import click

from moorage.cli import console
from moorage_kube.errors import MoorageError, UsageError


@console.command(
    examples={
        "moor notify mailto:ada@example.com": "send a test by mail",
        "moor notify https://hooks.example.com/services/T0/B0 --text 'hello from moor'": "send a text to a chat",
    }
)
@click.argument("targets", nargs=-1, required=True)
@click.option("--text", default="a trial of moor notify", help="Text of the notification.")
@click.option(
    "--allow-private",
    "networks",
    multiple=True,
    metavar="CIDR",
    help="Private network that webhooks may also reach.",
)
@click.option("--plain-http", is_flag=True, help="Also allow http:// webhooks.")
def notify(targets: tuple[str, ...], text: str, networks: tuple[str, ...], plain_http: bool) -> int:
    """Send a test notification to targets: https://…, mailto:ADDRESS,…, command:PROGRAM ARGUMENT….

    A webhook receives {"text": …}, as Slack expects. A command receives the text on stdin, without a shell.
    Mail is sent by the server of MOORAGE_SMTP_URL (smtps://USER:PASSWORD@HOST:465, or smtp://…:587 with
    STARTTLS), from MOORAGE_SMTP_FROM. Exit code 1 if a delivery failed.
    """
    import ipaddress

    from moorage.decide.maps.notices import Event, Notice, plain
    from moorage.notify import Outbound, parse_target, send
    from moorage.notify.outbound import mail_server_of

    try:
        allowed = tuple(ipaddress.ip_network(network) for network in networks)
    except ValueError as error:
        raise UsageError(f"--allow-private: {error}", hint="write a network such as 10.0.0.0/8") from error
    outbound = Outbound(networks=allowed, plain_http=plain_http, commands=True, mail=mail_server_of(os.environ))
    parsed = [parse_target(target) for target in targets]
    notice = Notice(event=Event.ENDED, key="trial", title=plain(text), lines=())
    logging.getLogger("moorage").addHandler(logging.NullHandler())
    failed = 0
    for delivery in asyncio.run(send(notice, parsed, outbound)):
        console.say(f"{delivery.target}: {delivery.problem or 'delivered'}")
        failed += not delivery.delivered
    if failed:
        raise MoorageError(f"{failed} of {len(parsed)} notifications were not delivered")
    return 0
