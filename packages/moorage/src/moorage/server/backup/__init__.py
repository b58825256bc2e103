"""Backups of what the server keeps outside the Kubernetes API, and their restore: databases and the ends of logs.

An archive says rows, not files, so what SQLite kept can be restored into PostgreSQL and the reverse.
"""
