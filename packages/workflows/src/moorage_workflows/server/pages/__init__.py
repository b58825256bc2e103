"""The web pages of workflows and schedules, with their templates."""
