"""CronWorkflows: the Workflows of their slots are created, counted and, when old, deleted.

Belongs here: what one CronWorkflow needs next (`plan`), and the reads and writes around that.
Does not belong here: what a schedule means (`decide.workflows.schedules`), and how a Workflow runs.
"""
