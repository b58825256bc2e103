"""The control loops of workflows, of their schedules and of their monitors."""
