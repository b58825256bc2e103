"""The command line: `moor`. One module per noun; `main` holds the table of commands and imports nothing heavy.

Does not belong here: decisions (decide), how the API is spoken (kube).
"""
