"""The loops that bring the cluster to what its objects ask for.

Belongs here: one loop (`loop`), what all controllers are made of (`base`), then a folder per kind: `plan.py`
(pure) between objects and decisions, `controller.py` (reads and writes). Does not belong here: the decisions
themselves (`decide`).
"""
