"""Whether a cluster is ready for Moorage, and whether an installation of it works: `moor doctor install`.

Belongs here: the checks and their judgement, as pure functions of `Facts`. Not here: reading the facts
(`moorage.actions.installfacts`), and showing the results (`moorage.cli.doctortext`).
"""
