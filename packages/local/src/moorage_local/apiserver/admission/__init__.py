"""Limits on writes in addition to the rules of a kind: limit ranges, quotas, Pod Security, webhooks.

Each is an `Admitter` of the pipeline. Does not belong here: users and their rights (`auth`), rules of kinds
(`kinds`).
"""
