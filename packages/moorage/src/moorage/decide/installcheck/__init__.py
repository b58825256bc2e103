"""Check whether a cluster is ready for Moorage, and whether an installation works: `moor doctor install`.

Belongs here: the checks, as pure functions of `Facts`. Does not belong here: reading the data
(`moorage.actions.installfacts`), and showing the results (`moorage.cli.doctortext`).
"""
