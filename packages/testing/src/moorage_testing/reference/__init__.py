"""Writes docs/reference from the code: commands, settings, the HTTP API, kinds, errors, metrics.

Belongs here: what `make docs` runs. Nothing of it is needed to use Moorage, so it is in no wheel.
"""
