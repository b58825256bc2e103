"""Limits of the languages in workflow manifests. Limits of one object are in `moorage.decide.evaluation`."""

from __future__ import annotations

TEXT_CHARACTERS = 64 * 1024  # of one expression or condition; a Kubernetes object holds about 1.5 MB
NODES = 10_000  # of an expression's tree, as expr-lang has it
DEPTH = 100  # of an expression's tree; some three Python frames each, of 1,000
SCHEDULE_CHARACTERS = 256  # of one schedule
LAYOUT_CHARACTERS = 1024  # of a date's layout; those of RFC 3339 and others have at most 35
PATTERN_BYTES = 8 * 1024 * 1024  # memory of one regular expression
