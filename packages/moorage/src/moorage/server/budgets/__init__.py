"""Budgets on the server: the used part of each, for its users and for Prometheus.

Does not belong here: the check when work starts (`decide.admission`), and the loop that computes
(`server.loops`).
"""

from moorage.features import Feature

FEATURE = Feature(
    name="budgets",
    routes="moorage.server.budgets.feature:routes",
    metrics="moorage.server.budgets.feature:measure",
    recording="moorage.server.budgets.feature:recording",
)
