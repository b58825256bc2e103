"""The command line: `moor`. Each noun has a module; `main` has the table of commands and imports nothing heavy.

Does not belong here: decisions (decide), the protocol of the API (kube).
"""
