"""History of use: which pod held how many GPUs, from when to when, kept in SQL.

Belongs here: the store and what feeds it. Does not belong here: what counts as use (`decide.usage`).
"""
