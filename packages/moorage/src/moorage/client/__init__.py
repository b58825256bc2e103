"""The one client of our own server, for the SDK and the command line.

Belongs here: where the server is, one request and its repetition, errors decoded. Does not belong here: what the
answers mean (`api`).
"""
