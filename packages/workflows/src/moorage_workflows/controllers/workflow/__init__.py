"""Runs of workflows in Argo's format: one loop over Workflow objects, their pods and their records.

Belongs here: `records`, what the loop asks of the store of records; `remote`, that store over HTTP. Does not
belong here: what starts next (`decide.workflows`), and how records are kept (`workflows`).
"""
