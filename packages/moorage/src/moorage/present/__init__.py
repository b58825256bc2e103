"""Decisions as texts, tables and JSON, shared by the server and the command line.

Pure functions of values from `decide`. A text that only one of the two shows belongs to `cli` or to
`server.pages`. A value with a type of our REST API belongs to `api`.
"""
