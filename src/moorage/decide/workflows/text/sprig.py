"""Functions of sprig, as `sprig.trim(x)` in an expression. https://masterminds.github.io/sprig/"""

from __future__ import annotations

from moorage.decide.workflows.text.functions import Signature

SPRIG: dict[str, Signature] = {}
REFUSED: dict[str, str] = {}
