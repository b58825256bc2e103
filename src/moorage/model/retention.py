"""For how many days history is kept, unless an administrator chose otherwise."""

from __future__ import annotations

USAGE_DAYS = 400  # GPU use: a year, and a month to close its books in
USAGE_DAYS_MAX = 36_500
AUDIT_DAYS = 90  # the audit log
AUDIT_DAYS_MAX = 3650
