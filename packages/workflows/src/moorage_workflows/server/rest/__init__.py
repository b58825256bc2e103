"""The REST API of workflows and schedules."""
