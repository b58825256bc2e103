"""What should happen: pure functions from what was observed to what to do, a folder per subject.

Belongs here: every choice that can be tested as a table. Does not belong here: clocks, connections, files, logs,
and what a command prints.
"""
