"""Processes that evaluate users' text: each has a limit of time and memory, and no data of the services.

Belongs here: starting, calling and ending them. Their functions are pure, in `decide`, or above it where a
whole check is one request. Does not belong here: decisions, and state of users.
"""
