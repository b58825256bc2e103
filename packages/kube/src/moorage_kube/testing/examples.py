"""The number of examples that property tests draw.

`make quick` and `make test` draw the usual number; `make test-all` and `make explore` set MOORAGE_TEST_FULL=1 and
draw the full number.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

FULL_VARIABLE = "MOORAGE_TEST_FULL"


def examples(usual: T, *, full: T) -> T:
    """Return `full` if MOORAGE_TEST_FULL is set, else `usual`."""
    return full if os.environ.get(FULL_VARIABLE) else usual
