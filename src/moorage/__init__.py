"""Moorage: an ML platform on Kubernetes for teams that share GPUs.

The map of the packages is `docs/design/0001-the-house.md`; which may import which
is written in `pyproject.toml` and checked by import-linter.
"""

__version__ = "0.1.0"
