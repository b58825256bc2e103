"""Runs of workflows in Argo's format: one loop over Workflow objects, their pods and their records.

Belongs here: `records`, the loop's interface to the store of records; `remote`, that store over HTTP.
Does not belong here: the decision which step starts next (`decide.workflows`), and the store
(`workflows`).
"""
