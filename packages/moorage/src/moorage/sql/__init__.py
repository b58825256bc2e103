"""Databases: connections, their errors and their schemas, for SQLite and PostgreSQL.

Stores write statements and migrations; this package opens, guards and migrates a file for all of them.
The embedded control plane has its own file and shares only `moorage_kube.databasefile`.
"""
