"""Processes that evaluate users' text: each has a limit of time and memory, and holds nothing of the services.

Here belongs: starting them, asking them, ending them. What they compute is pure, in `decide`, or above it where a
whole check is one request. No decision is made here, and nothing of users is kept.
"""
