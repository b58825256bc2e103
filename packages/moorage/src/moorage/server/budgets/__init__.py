"""Budgets on the server: how much of each is used, for its users and for Prometheus.

Does not belong here: who may start work by them (`decide.admission`), and the loop that computes (`server.loops`).
"""

from moorage.features import Feature

FEATURE = Feature(
    name="budgets",
    routes="moorage.server.budgets.feature:routes",
    metrics="moorage.server.budgets.feature:measure",
    recording="moorage.server.budgets.feature:recording",
)
