"""Deliver notices: by webhook, by e-mail, to a command. When one is due is decided in `decide.notices`.

    deliveries = await send(notice, [parse_target("https://hooks.example.com/…")], outbound)

Nothing here raises because a notice could not be delivered: each `Delivery` says what came of it, without secrets.
"""

from moorage.notify.send import Delivery, send
from moorage.notify.targets import Command, Email, MailServer, Outbound, Target, Webhook, parse_target

__all__ = [
    "Command", "Delivery", "Email", "MailServer", "Outbound", "Target", "Webhook", "parse_target", "send",
]  # fmt: skip
