"""Databases: connections, their errors and their schemas, for SQLite and PostgreSQL.

Whoever keeps rows writes statements and migrations; how a file is opened, guarded and brought up to date stands
here once. The embedded control plane keeps its own file and shares only `moorage_kube.databasefile`.
"""
