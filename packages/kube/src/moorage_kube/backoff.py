"""How long to wait after failures."""

from __future__ import annotations

import math
from dataclasses import dataclass

_DOUBLINGS_MAX = 900  # a float holds 2 ** 1023, and first delays are far below 2 ** 100 seconds


@dataclass(frozen=True, slots=True)
class DoublingDelay:
    """`first` seconds after the first failure, doubled after each further one, up to `most`."""

    first: float
    most: float

    def after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row; none: 0."""
        if failures < 1:
            return 0.0
        return min(self.most, math.ldexp(self.first, min(failures - 1, _DOUBLINGS_MAX)))
