"""What may be written beyond what a kind itself allows: limits, quotas, Pod Security, webhooks.

Each is an `Admitter` of the pipeline. Does not belong here: who may ask (`auth`), what a kind is (`kinds`).
"""
