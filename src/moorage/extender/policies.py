"""The packing policies there are, by name."""

from __future__ import annotations

from moorage.decide.packing.fragmentation import Fragmentation
from moorage.decide.packing.policies import Plain, Policy
from moorage.errors import UsageError

POLICIES = ("pack", "fragmentation", "spread")


def make_policy(name: str) -> Policy:
    """The policy of that name, one of POLICIES, or "none": 0 for every node. Raises UsageError for another."""
    if name not in (*POLICIES, "none"):
        raise UsageError(f"invalid packing policy {name!r}", hint=f"use one of {', '.join(POLICIES)}")
    return Fragmentation() if name == "fragmentation" else Plain(name)
