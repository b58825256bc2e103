"""How long history is stored and how much of it, unless an administrator sets another limit."""

from __future__ import annotations

USAGE_DAYS = 400  # GPU use: a year, and a month to close its books in
USAGE_DAYS_MAX = 36_500
SAMPLE_HOURS = 12  # readings of pods' usage, each of 30 s; then their sums:
SAMPLE_WINDOW_DAYS = 14  # those of five minutes; those of hours stay as long as GPU use
AUDIT_DAYS = 90  # the audit log
AUDIT_DAYS_MAX = 3650
LOG_DAYS = 30  # attempts of runs and the ends of their logs, after their pods are deleted
LOG_DAYS_MAX = 3650
LOG_BYTES = 1 << 20  # of the end of each pod's log
LOG_BYTES_MIN = 4 << 10
LOG_BYTES_MAX = 1 << 30
LOG_TOTAL_BYTES = 2 << 30  # of all stored logs, compressed
WORKFLOW_DAYS = 90  # runs of deleted Workflows, and memoized outputs
WORKFLOW_DAYS_MAX = 3650
ARTIFACT_DAYS = 30  # artifacts of workflows, after they were stored
ARTIFACT_DAYS_MAX = 3650
ARTIFACT_BYTES = 1 << 30  # of one artifact, as it is stored
ARTIFACT_BYTES_MIN = 1 << 20
ARTIFACT_BYTES_MAX = 1 << 40  # 1Ti
LOG_STREAMS = 300  # logs that are followed at the same time
LOG_STREAMS_MAX = 10_000
