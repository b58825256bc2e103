"""What became of a scene: one line, and the first of whatever was wrong."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

SHOWN = 20  # of the faults of one sort


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Each fault is a sentence that names the object. `notes` are figures that judge nothing."""

    scene: str
    seed: int
    things: str  # what is counted in `objects`
    objects: int = 0
    kills: int = 0
    seconds: float = 0.0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    notes: dict[str, object] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.doubled or self.stuck)

    def line(self) -> str:
        return (
            f"{self.scene}: {self.kills} kills, {self.objects} {self.things}, lost {len(self.lost)},"
            f" doubled {len(self.doubled)}, stuck {len(self.stuck)}, {self.seconds:.0f} s, seed {self.seed}"
        )

    def report(self) -> str:
        """The line, then the notes, then the faults."""
        lines = [self.line()]
        if self.notes:
            lines.append("  " + ", ".join(f"{name} {_shown(value)}" for name, value in self.notes.items()))
        for sort in ("lost", "doubled", "stuck"):
            faults = getattr(self, sort)
            lines += [f"  {sort}: {fault}" for fault in faults[:SHOWN]]
            if len(faults) > SHOWN:
                lines.append(f"  {sort}: {len(faults) - SHOWN} more")
        return "\n".join(lines)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {count}" for name, count in sorted(value.items())) or "none"
    return str(value)


def tell(sentence: str) -> None:
    """Progress, for whoever watches."""
    print(sentence, file=sys.stderr, flush=True)
