"""Use cases of workflows and schedules, once each: read, decide, write."""
