"""ServiceAccounts: no rules of their own, only table cells."""

from __future__ import annotations

from moorage.localcluster.apiserver.kinds.cells import name_age
from moorage.localcluster.apiserver.kinds.kind import Rules

RULES = {("", "serviceaccounts"): Rules(cells=name_age)}
