"""Tools for this repository only: clusters for tests, nodes without machines, load, the reference pages.

Belongs here: code that several suites share, and the commands of `make docs`. Does not belong here: builders for
one test, and helpers for tests of others (`moorage_kube.testing`, `moorage_local.testing`).
"""
