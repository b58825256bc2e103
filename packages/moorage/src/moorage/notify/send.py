"""Deliver a notification to each target; retry failures that may be temporary."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import assert_never

from moorage.decide.maps.notices import Notice
from moorage.model.targets import Command, Email, Target, Webhook
from moorage.notify.delivery import Delivery, NotDelivered
from moorage.notify.outbound import Outbound
from moorage_kube.backoff import DoublingDelay
from moorage_kube.clock import SYSTEM, Clock

log = logging.getLogger(__name__)

TRIES = 4
WAITS = DoublingDelay(2.0, 8.0)  # before the second try and the next: 14 s in all
LONGEST_WAIT = 30.0  # that a receiver may ask for by Retry-After


async def send(
    notice: Notice, targets: Sequence[Target], outbound: Outbound | None = None, *, clock: Clock = SYSTEM
) -> tuple[Delivery, ...]:
    """Deliver to all targets at the same time; return one Delivery each, in order. Raises only a cancellation.

    Takes at most about a minute and a half: four attempts of `outbound.seconds` per step, and the waits between.
    """
    allowed = outbound or Outbound()
    return tuple(await asyncio.gather(*(_deliver(notice, target, allowed, clock) for target in targets)))


async def _deliver(notice: Notice, target: Target, outbound: Outbound, clock: Clock) -> Delivery:
    for tries in range(1, TRIES + 1):
        try:
            await _once(notice, target, outbound)
            return Delivery(target.label, tries)
        except NotDelivered as error:
            if not error.again or tries == TRIES:
                log.warning(
                    "a notice was not delivered",
                    extra={"notice": notice.key, "target": target.label, "problem": error.problem, "tries": tries},
                )
                return Delivery(target.label, tries, error.problem)
            await clock.sleep(max(WAITS.after(tries), min(error.after, LONGEST_WAIT)))
    raise AssertionError("unreachable: the last try returns")


async def _once(notice: Notice, target: Target, outbound: Outbound) -> None:
    match target:
        case Webhook():
            from moorage.notify.webhook import post

            await post(notice, target, outbound)
        case Email():
            from moorage.notify.mail import mail

            await mail(notice, target, outbound)
        case Command():
            from moorage.notify.command import run

            await run(notice, target, outbound)
        case _:
            assert_never(target)
