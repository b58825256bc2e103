"""The output of listing commands, once or repeatedly (`moorage.cli.watching`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
from msgspec import Struct

from moorage.cli import console
from moorage_kube.texts import visible

watch_option = click.option("-w", "--watch", is_flag=True, help="Keep the output up to date until Ctrl-C.")


class Listing(Struct, frozen=True, kw_only=True):
    """A listing: the arguments of `console.print_listing`. `keys` has a unique key for each row."""

    headers: Sequence[str]
    rows: Callable[[], Sequence[Sequence[str]]]
    items: Sequence[Mapping[str, Any]]
    names: Sequence[str]
    nothing: str
    keys: Sequence[str] | None = None

    def show(self, output: str) -> None:
        console.print_listing(
            output, headers=self.headers, rows=self.rows, items=self.items, names=self.names, nothing=self.nothing
        )

    def rows_by_key(self) -> dict[str, list[str]]:
        rows = [[visible(cell) or "-" for cell in row] for row in self.rows()]
        return dict(zip(self._keys(), rows, strict=True))

    def items_by_key(self) -> dict[str, Mapping[str, Any]]:
        return dict(zip(self._keys(), self.items, strict=True))

    def _keys(self) -> Sequence[str]:
        return self.names if self.keys is None else self.keys
