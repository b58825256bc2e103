"""Workflows in Argo's format: what a manifest means, and what happens next in a run of one.

Belongs here: reading and checking of manifests, text in them, graphs of steps, pods of steps,
moments of schedules.
Does not belong here: clocks, files, connections, and the records of runs.
"""
