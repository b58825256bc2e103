"""Money as whole numbers, so that sums are exact and shares add up.

An hourly price is rounded once, to 10^-12 of the currency. So a price times a time in microseconds is a whole
number. Its unit is named *grain* here: GRAINS grains are one unit of the currency. Shares are rounded down to
grains, and the caller assigns the remainder. For display, amounts are rounded to the currency's smallest unit,
such as a cent. Rounding uses the largest remainder, so that rounded shares add up to the total.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

PER_UNIT = 10**12  # parts of the currency in a price
HOUR_US = 3_600_000_000
GRAINS = PER_UNIT * HOUR_US  # of one unit of the currency
_NO_COINS = frozenset(
    {
        "BIF",
        "CLP",
        "DJF",
        "GNF",
        "ISK",
        "JPY",
        "KMF",
        "KRW",
        "PYG",
        "RWF",
        "UGX",
        "VND",
        "VUV",
        "XAF",
        "XOF",
        "XPF",
    }
)
_THREE = frozenset({"BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"})
_MICROSECOND = timedelta(microseconds=1)


def decimals_of(currency: str) -> int:
    """The number of decimal digits of a currency by ISO 4217: 0 for JPY, 2 for most."""
    name = currency.upper()
    return 0 if name in _NO_COINS else 3 if name in _THREE else 2


def rate_of(price: Fraction) -> int:
    """A price per hour in units of 1/PER_UNIT, rounded to the nearest; ties to even."""
    return round(price * PER_UNIT)


def microseconds(span: timedelta) -> int:
    return span // _MICROSECOND


def part_of(amount: int, share: Fraction) -> int:
    """A share of an amount, rounded down to a whole grain."""
    return amount * share.numerator // share.denominator


def rounded(amounts: Sequence[int], decimals: int) -> list[Decimal]:
    """Convert grains to amounts of money with this number of decimal digits.

    Each amount differs from its exact value by less than the smallest unit. Their sum is the rounded sum, half up.
    First all amounts are rounded down. Then the missing units are added to the amounts with the largest
    remainders.
    """
    scale = 10**decimals
    coins = [amount * scale // GRAINS for amount in amounts]
    missing = (2 * sum(amounts) * scale + GRAINS) // (2 * GRAINS) - sum(coins)
    lost = [amount * scale % GRAINS for amount in amounts]
    for at in sorted(range(len(amounts)), key=lambda at: (-lost[at], at))[:missing]:
        coins[at] += 1
    return [Decimal(coin).scaleb(-decimals) for coin in coins]


def exact(amount: int) -> Fraction:
    """Convert grains to units of the currency, not rounded."""
    return Fraction(amount, GRAINS)
