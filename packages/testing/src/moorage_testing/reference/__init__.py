"""Writes docs/reference from the code: commands, settings, the HTTP API, kinds, errors, metrics.

Belongs here: the generators of `make docs`. Moorage itself does not need them, so they are in no wheel.
"""
