"""The graph of a workflow: which nodes start next, from its templates and the results of its pods.

Here: one run as a machine that takes events and returns decisions, loops, retries, outputs, names of
nodes. Not here: text in templates (`..text`), the look-up of templates (`..templates`), the pods of
steps (`..pods`).

`run` is the machine, as others see it, and `state` its data. Functions that carry out a part of the
graph take the state first: `workflow` the whole, `nodes` a template as a node, `steps` and `dags` those
with children, `children` one child with its loop, `podnodes` and `suspensions` those without, and
`hooks` the hooks.
"""
