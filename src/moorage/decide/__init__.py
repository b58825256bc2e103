"""What should happen: pure functions from what was seen to what to do.

Belongs here: every choice that can be tested as a table. Does not belong here: clocks, connections, files, logs.
"""
