"""History of use, in SQL: the GPUs of each pod, from its start to its end.

Belongs here: the store and its writers. Does not belong here: when a GPU counts as used (`decide.usage`).
"""
