"""The kinds that the server knows, a file for each: its defaults, its checks and its table cells.

`kind` defines the parts of a kind, `registry` lists the rules of all built-in kinds, `builtin` joins them
with the types and columns of `builtin.json`.

Does not belong here: rules that are the same for every kind (`pipeline`), and those of admission (`admission`).
"""
