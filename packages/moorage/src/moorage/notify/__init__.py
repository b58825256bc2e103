"""Deliver notices: by webhook, by e-mail, to a command. `decide.notices` decides when one is due.

    deliveries = await send(notice, [parse_target("https://hooks.example.com/…")], outbound)

A failed delivery raises no error here: each `Delivery` has its result, without secrets.
"""

from moorage.model.targets import Command, Email, Target, Webhook, parse_target
from moorage.notify.delivery import Delivery
from moorage.notify.outbound import MailServer, Outbound
from moorage.notify.send import send

__all__ = [
    "Command", "Delivery", "Email", "MailServer", "Outbound", "Target", "Webhook", "parse_target", "send",
]  # fmt: skip
