"""Convert cost reports to answers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from moorage.api.costs import CostRow, Costs, PriceSource, UnpricedNodes
from moorage.decide.cost.report import By, Report, Row
from moorage.model.prices import PriceSheet
from moorage_kube.moments import rfc3339


def make_costs(
    answer: Report, sheet: PriceSheet, *, by: By, since: datetime, until: datetime, notes: Sequence[str]
) -> Costs:
    return Costs(
        since=since.replace(microsecond=0),
        until=until.replace(microsecond=0),
        by=by,
        prices=source_of(sheet),
        rows=tuple(_row(row) for row in answer.rows),
        total=_row(answer.total),
        unpriced=tuple(
            UnpricedNodes(name=name, node_hours=round(float(hours), 6)) for name, hours in answer.unpriced.items()
        ),
        notes=tuple(notes),
    )


def notes_of(sheet: PriceSheet, *, asked: datetime, begin: datetime) -> list[str]:
    """Notes for the reader of a report that begins at `begin`, although one from `asked` was requested."""
    notes = []
    if begin > asked:
        notes.append(f"nodes are recorded since {rfc3339(begin)}; nothing before is counted")
    if sheet.currency and not sheet.source:
        notes.append("the price file does not say where its prices are from: add `source` and `date`")
    return notes


def source_of(sheet: PriceSheet) -> PriceSource:
    return PriceSource(
        source=sheet.source, date=sheet.read_on.isoformat() if sheet.read_on else "", currency=sheet.currency
    )


def _row(row: Row) -> CostRow:
    return CostRow(
        name=row.name,
        total=str(row.whole),
        allocated=str(row.allocated),
        used=str(row.used),
        unused=str(row.unused),
        not_measured=str(row.not_measured),
        reserved=str(row.reserved),
        idle=str(row.idle),
        gpu_hours=round(row.gpu_hours, 6),
        pods=row.pods,
    )
