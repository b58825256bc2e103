"""The client of Moorage's server, for the SDK and the command line.

Belongs here: the server's address, requests and their retries, decoded errors. Does not belong here: the
meaning of the answers (`api`).
"""
