"""The control loops that make the cluster match the specs of its objects.

Belongs here: one loop (`loop`), the base class of all controllers (`base`), then a folder per kind: `plan.py`
(pure) between objects and decisions, `controller.py` (reads and writes). Does not belong here: the decisions
themselves (`decide`).
"""
