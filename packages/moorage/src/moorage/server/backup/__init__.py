"""Backup and restore of the server's data outside the Kubernetes API: databases and the ends of logs.

An archive has rows, not files, so data of SQLite can be restored into PostgreSQL and the reverse.
"""
