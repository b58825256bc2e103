"""Heartbeats and notices of workflows: sent once each, in order, over restarts.

Belongs here: reading the phases of runs, sending due heartbeats and notices, and recording them on the
run. Does not belong here: the decision to send (`decide.workflows.monitors`), and the requests
(`notify`).
"""
