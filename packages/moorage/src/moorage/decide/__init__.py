"""Decisions: pure functions from an observed state to the actions to take, a folder per subject.

Belongs here: every choice that can be tested as a table. Does not belong here: clocks, connections, files, logs,
and the output of a command.
"""
