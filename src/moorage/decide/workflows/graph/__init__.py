"""The graph of a workflow: which nodes start next, from its templates and from what its pods did.

Here: one run as a machine that takes events and returns decisions, loops, retries, outputs, names of nodes.
Not here: text in templates (`..text`), how templates are found (`..templates`), what a pod looks like (`..pods`).
"""
