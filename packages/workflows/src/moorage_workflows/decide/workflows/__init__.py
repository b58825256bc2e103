"""Workflows in Argo's format: the meaning of a manifest, and the next steps of a run.

Belongs here: reading and checking of manifests, text in them, graphs of steps, pods of steps,
moments of schedules.
Does not belong here: clocks, files, connections, and the records of runs.
"""
