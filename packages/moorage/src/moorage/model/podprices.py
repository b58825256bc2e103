"""The price of an hour of a pod's resources, where a cluster bills pods; and how they share a node's price."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from msgspec import Struct, field

from moorage.model.pricefields import list_of, mapping_of, money_of, quantity_of
from moorage_kube.errors import UsageError

_RATES = {"cpu", "memory", "storage", "gpus"}
_PODS = _RATES | {"region", "spot", "minimum", "step", "default"}
_AMOUNTS = {"cpu", "memory", "storage"}


class Amount(Struct, frozen=True, kw_only=True):
    """CPU in millicores, memory and scratch disk in bytes."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    storage_bytes: int = 0


class Rates(Struct, frozen=True, kw_only=True):
    """Prices per hour: for a CPU, a GiB of memory, a GiB of scratch disk, and a GPU by type."""

    cpu: Fraction = Fraction(0)
    memory: Fraction = Fraction(0)
    storage: Fraction = Fraction(0)
    gpus: Mapping[str, Fraction] = field(default_factory=dict)


class PodPrices(Struct, frozen=True, kw_only=True):
    """Prices of a region, and how pods are billed there. `spot` is None if there are no spot prices."""

    region: str = ""  # "": everywhere
    rates: Rates
    spot: Rates | None = None
    minimum: Amount = Amount()
    step: Amount = Amount()  # 0: no steps
    default: Amount = Amount()  # for a pod without requests


class Weights(Struct, frozen=True, kw_only=True):
    """The parts of a node's price for a CPU, a GiB of memory and a whole GPU, in proportion.

    By default a GPU weighs 30 CPUs and a CPU 8 GiB: the proportions of clouds' list prices, roughly.
    """

    cpu: Fraction = Fraction(1)
    memory: Fraction = Fraction(1, 8)
    gpu: Fraction = Fraction(30)


def parse_weights(value: object) -> Weights:
    """Parse `weights` of a price file. Raises UsageError with the field."""
    fields = mapping_of(value, "weights", {"cpu", "memory", "gpu"})
    usual = Weights()
    given = {name: money_of(fields, name, "weights") for name in ("cpu", "memory", "gpu")}
    weights = Weights(**{name: getattr(usual, name) if of is None else of for name, of in given.items()})
    if not (weights.cpu or weights.memory):
        raise UsageError("weights.cpu and weights.memory are both 0; nodes without GPUs need one of them")
    return weights


def parse_pod_prices(value: object) -> tuple[PodPrices, ...]:
    """Parse the list `pods` of a price file. Raises UsageError with the field."""
    prices: list[PodPrices] = []
    for at, entry in enumerate(list_of(value, "pods")):
        where = f"pods[{at}]"
        fields = mapping_of(entry, where, _PODS)
        region = str(fields.get("region") or "")
        if any(other.region == region for other in prices):
            raise UsageError(f"the file gives two prices of pods {f'in {region}' if region else 'everywhere'}")
        spot = fields.get("spot")
        prices.append(
            PodPrices(
                region=region,
                rates=_rates(fields, where),
                spot=None if spot is None else _rates(mapping_of(spot, f"{where}.spot", _RATES), f"{where}.spot"),
                minimum=_amount(fields, "minimum", where),
                step=_amount(fields, "step", where),
                default=_amount(fields, "default", where),
            )
        )
    return tuple(prices)


def _rates(fields: Mapping[str, Any], where: str) -> Rates:
    money = {name: money_of(fields, name, where) for name in ("cpu", "memory", "storage")}
    for name in ("cpu", "memory"):
        if money[name] is None:
            raise UsageError(f"{where} does not say the price of its {name}")
    gpus = fields.get("gpus") or {}
    types = sorted(str(kind) for kind in gpus) if isinstance(gpus, Mapping) else []
    table = mapping_of(gpus, f"{where}.gpus", set(types))
    return Rates(
        cpu=money["cpu"] or Fraction(0),
        memory=money["memory"] or Fraction(0),
        storage=money["storage"] or Fraction(0),
        gpus={kind: money_of(table, kind, f"{where}.gpus") or Fraction(0) for kind in types},
    )


def _amount(fields: Mapping[str, Any], name: str, where: str) -> Amount:
    here = f"{where}.{name}"
    amounts = mapping_of(fields.get(name) or {}, here, _AMOUNTS)
    return Amount(
        cpu_milli=quantity_of(amounts.get("cpu") or 0, f"{here}.cpu", milli=True),
        memory_bytes=quantity_of(amounts.get("memory") or 0, f"{here}.memory"),
        storage_bytes=quantity_of(amounts.get("storage") or 0, f"{here}.storage"),
    )
