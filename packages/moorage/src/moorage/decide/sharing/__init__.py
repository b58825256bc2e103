"""Time sharing: which run yields its place to which waiting run, and when.

Belongs here: the tenant's rule, the use that fades over time, the decision.
Does not belong here: how a run is ended and started again (`decide.runs.restarts`), reading and writing
(`server.loops.sharing`).
"""
