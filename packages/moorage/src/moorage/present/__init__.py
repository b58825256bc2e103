"""Decisions as people and programs read them: texts, tables and JSON that the server and the command line share.

Pure functions of values that `decide` made. What only one of the two shows stands beside it: in `cli`, or in
`server.pages`. What has a type of our own wire belongs to `api`.
"""
