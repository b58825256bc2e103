"""Delays after failures."""

from __future__ import annotations

import math
from dataclasses import dataclass

_DOUBLINGS_MAX = 900  # a float holds 2 ** 1023, and first delays are far below 2 ** 100 seconds


@dataclass(frozen=True, slots=True)
class DoublingDelay:
    """A delay of `first` seconds after the first failure. It doubles after each further failure, up to `most`."""

    first: float
    most: float

    def after(self, failures: int) -> float:
        """Return the seconds to wait after this number of failures in a row; 0 after none."""
        if failures < 1:
            return 0.0
        return min(self.most, math.ldexp(self.first, min(failures - 1, _DOUBLINGS_MAX)))
