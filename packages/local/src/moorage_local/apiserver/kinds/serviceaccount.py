"""ServiceAccounts: no special rules, only table cells."""

from __future__ import annotations

from moorage_local.apiserver.kinds.cells import name_age
from moorage_local.apiserver.kinds.kind import Rules

RULES = {("", "serviceaccounts"): Rules(cells=name_age)}
