"""CronWorkflows: create the Workflows of their slots, count them, and delete old ones.

Belongs here: the next steps of one CronWorkflow (`plan`), and the reads and writes around that.
Does not belong here: the meaning of a schedule (`decide.workflows.schedules`), and how a Workflow runs.
"""
