"""The hourly price of a node by a price file, and the time for which it is billed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from fractions import Fraction

from msgspec import Struct, field

from moorage.decide.cost.money import rate_of
from moorage.decide.usage.nodelives import NodeLife
from moorage.model.prices import ON_DEMAND, PriceSheet


class PricedNode(Struct, frozen=True, kw_only=True):
    """A part of a node's life, with its price. `rate` is None if the file has no price for the node.

    It lasts from `since` to `until`. The time after `there_until` is billed only because of a minimum or a step.
    """

    life: NodeLife
    rate: int | None  # see `money.rate_of`
    since: datetime
    until: datetime
    there_until: datetime


class Pricer(Struct, frozen=True):
    """Looks up prices and caches them."""

    sheet: PriceSheet
    _known: dict[tuple[str, str, str, str], int | None] = field(default_factory=dict)

    def rate_of(self, life: NodeLife) -> int | None:
        key = (life.node, life.instance_type, life.region, life.market)
        if key not in self._known:
            price = price_of(self.sheet, life)
            self._known[key] = None if price is None else rate_of(price)
        return self._known[key]

    def price(
        self, lives: Iterable[NodeLife], *, since: datetime, until: datetime, now: datetime
    ) -> list[PricedNode]:
        """The billed parts of each life within [since, until), up to now."""
        stretches = []
        for life in lives:
            there = now if life.ended_at is None else life.ended_at
            billed = min(max(there, billed_until(self.sheet, life)), now)
            begin, end = max(since, life.started_at), min(until, billed)
            if begin < end:
                stretches.append(
                    PricedNode(
                        life=life,
                        rate=self.rate_of(life),
                        since=begin,
                        until=end,
                        there_until=max(begin, min(end, there)),
                    )
                )
        return stretches


def price_of(sheet: PriceSheet, life: NodeLife) -> Fraction | None:
    """Money per hour: of a bought machine, else by type, region and market; None where the file says nothing.

    A price without a region applies in every region that has no separate price. A node without a market is on
    demand.
    """
    for owned in sheet.owned:
        if owned.is_of(node=life.node, instance_type=life.instance_type):
            return owned.price
    fitting = [
        offer
        for offer in sheet.offers
        if offer.machine.name == life.instance_type
        and offer.market == (life.market or ON_DEMAND)
        and offer.region in ("", life.region)
    ]
    return max(fitting, key=lambda offer: bool(offer.region)).price if fitting else None


def billed_until(sheet: PriceSheet, life: NodeLife) -> datetime:
    """The end of the billed time of a node: at least the minimum, in whole steps. Bought machines have neither."""
    end = life.ended_at
    if end is None or any(owned.is_of(node=life.node, instance_type=life.instance_type) for owned in sheet.owned):
        return life.started_at
    span = max(end - life.started_at, timedelta(seconds=sheet.minimum_seconds))
    step = timedelta(seconds=sheet.step_seconds)
    return life.started_at + -(-span // step) * step
