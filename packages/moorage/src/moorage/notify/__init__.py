"""Deliver notices: by webhook, by e-mail, to a command. When one is due is decided in `decide.notices`.

    deliveries = await send(notice, [parse_target("https://hooks.example.com/…")], outbound)

Nothing here raises because a notice could not be delivered: each `Delivery` says what came of it, without secrets.
"""

from moorage.model.targets import Command, Email, Target, Webhook, parse_target
from moorage.notify.delivery import Delivery
from moorage.notify.outbound import MailServer, Outbound
from moorage.notify.send import send

__all__ = [
    "Command", "Delivery", "Email", "MailServer", "Outbound", "Target", "Webhook", "parse_target", "send",
]  # fmt: skip
