"""Use cases of workflows and schedules: read, decide, write. All callers share them."""
