"""The price of an hour of a bought machine: from its price over its years, its power and its place."""

from __future__ import annotations

from fractions import Fraction

from msgspec import Struct

from moorage.model.pricefields import list_of, mapping_of, money_of
from moorage_kube.errors import UsageError
from moorage_kube.globs import fits

HOURS_OF_YEAR = 365 * 24
MONTHS_OF_YEAR = 12
_OWNED = {"name", "nodes", "purchase", "years", "watts", "pricePerKWh", "hostingPerMonth"}


class Owned(Struct, frozen=True, kw_only=True):
    """The price of a kind of bought machine, per node. `nodes`: shell patterns of node names."""

    name: str
    nodes: tuple[str, ...] = ()
    purchase: Fraction = Fraction(0)
    years: Fraction
    watts: Fraction = Fraction(0)
    price_per_kwh: Fraction = Fraction(0)
    hosting_per_month: Fraction = Fraction(0)

    @property
    def price(self) -> Fraction:
        """The cost per node and hour. A year has 8,760 hours, a month a twelfth of them."""
        return (
            self.purchase / (self.years * HOURS_OF_YEAR)
            + self.watts / 1000 * self.price_per_kwh
            + self.hosting_per_month * MONTHS_OF_YEAR / HOURS_OF_YEAR
        )

    def is_of(self, *, node: str, instance_type: str) -> bool:
        """Whether a node is such a machine: by its name if names are given, else by its instance type."""
        if self.nodes:
            return any(fits(node, pattern) for pattern in self.nodes)
        return instance_type == self.name


def parse_owned(value: object) -> tuple[Owned, ...]:
    """Parse the list `owned` of a price file. Raises UsageError with the field."""
    kinds = []
    for at, entry in enumerate(list_of(value, "owned")):
        where = f"owned[{at}]"
        fields = mapping_of(entry, where, _OWNED)
        if not fields.get("name"):
            raise UsageError(f"{where} has no name")
        money = {name: money_of(fields, name, where) for name in _OWNED - {"name", "nodes"}}
        years = money["years"]
        if not years:
            raise UsageError(f"{where}.years is {fields.get('years')!r}; say how many years the machine is used")
        if bool(money["watts"]) and money["pricePerKWh"] is None:
            raise UsageError(f"{where} has watts and no pricePerKWh")
        names = list_of(fields.get("nodes") or [], f"{where}.nodes")
        kinds.append(
            Owned(
                name=str(fields["name"]),
                nodes=tuple(str(name) for name in names),
                purchase=money["purchase"] or Fraction(0),
                years=years,
                watts=money["watts"] or Fraction(0),
                price_per_kwh=money["pricePerKWh"] or Fraction(0),
                hosting_per_month=money["hostingPerMonth"] or Fraction(0),
            )
        )
    return tuple(kinds)
