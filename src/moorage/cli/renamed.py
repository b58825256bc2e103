"""Old names of options. Each is accepted for one release, with a warning that names the new one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import click

from moorage.cli import console
from moorage.errors import UsageError


class RenamedOption(click.Option):
    """The old name of another option of the same command. No help and no completion shows it."""

    def __init__(self, param_decls: Sequence[str], *, new: str, **attributes: Any) -> None:
        [self.old] = param_decls
        self.new = new
        name = f"renamed_{self.old.lstrip('-').replace('-', '_')}"
        # eager: it is handled before the new option, which then takes the value as its own
        super().__init__([self.old, name], hidden=True, expose_value=False, is_eager=True, **attributes)

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        if self.name not in opts:
            return None, args
        [target] = [param for param in ctx.command.params if self.new in param.opts]
        if target.name in opts:
            raise UsageError(f"{self.old} is the old name of {self.new}", hint=f"use only {self.new}")
        if not ctx.resilient_parsing:  # completion reads half a line
            console.say(f"warning: {self.old} is now {self.new}; the next release refuses {self.old}")
        typed = cast("dict[str, Any]", opts)
        typed[str(target.name)] = typed.pop(self.name)
        return None, args


def renamed(old: str, new: str, **attributes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Accept the old name of an option; `is_flag` and `multiple` are as the new one has them."""
    return click.option(old, cls=RenamedOption, new=new, **attributes)
