"""The kinds that the server knows, a file for each: its defaults, its checks and its table cells.

`kind` says what a kind is made of, `registry` lists the rules of all built-in kinds, `builtin` joins them
with the types and columns of `builtin.json`.

Does not belong here: what is the same for every kind (`pipeline`), and what admission adds (`admission`).
"""
