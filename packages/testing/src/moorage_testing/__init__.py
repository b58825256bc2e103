"""What only this repository needs: clusters for tests, nodes without machines, load, the reference pages.

Belongs here: what several suites share, and what `make docs` runs. Does not belong here: builders that one test
needs, and what helps with tests of others (`moorage_kube.testing`, `moorage_local.testing`).
"""
