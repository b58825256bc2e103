"""Heartbeats and notices of workflows: sent once each, in order, over restarts.

Belongs here: reading what runs did, sending what is due, and remembering it with the run.
Does not belong here: what is due (`decide.workflows.monitors`), and how a request leaves (`notify`).
"""
