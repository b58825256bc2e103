"""Sharing by time: which run gives its place to which that waits, and when.

Belongs here: the tenant's rule, the use that fades, the decision.
Does not belong here: how a run is ended and started again (`decide.runs.restarts`), reading and writing
(`server.loops.sharing`).
"""
