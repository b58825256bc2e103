"""For tests, ours and our users': clusters to run against, nodes without machines, a clock that stands still.

Belongs here: what several suites share and what somebody who extends Moorage would want too.
Does not belong here: builders that one test file needs.
"""
