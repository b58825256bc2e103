"""The share of a GPU that one unit of a resource stands for: a whole GPU, a MIG slice, or a time share.

Nodes and pods count GPUs by resource. Costs need one scale: exact fractions of whole GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

from moorage_kube.scheduling import is_gpu

MIG_SLICES = 7  # compute slices of a GPU: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/
REPLICAS_LABEL = "nvidia.com/gpu.replicas"  # set by GPU feature discovery: how many pods share a GPU in time
_MIG = re.compile(r"/mig-(\d+)g\.")
_TEXT = re.compile(r"(?P<resource>[^=\s]+)=(?P<count>\d+)(?::(?P<share>\d+(?:/\d+)?))?")

Counts = tuple[tuple[str, int], ...]  # GPU resource → how many, by name
Shares = Mapping[str, Fraction]  # GPU resource → the part of a whole GPU that one of it is


def counts_of(amounts: Mapping[str, int]) -> Counts:
    """The GPU resources with nonzero amounts."""
    return tuple(sorted((name, count) for name, count in amounts.items() if is_gpu(name) and count > 0))


def share_of(resource: str, labels: Mapping[str, str]) -> Fraction:
    """The part of a whole GPU that one unit of a resource is, on a node with these labels.

    A MIG slice is its compute slices out of seven. A time-sliced share is one of as many as the node's labels say.
    """
    share = Fraction(1)
    replicas = labels.get(REPLICAS_LABEL, "")
    if match := _MIG.search(resource):
        share = Fraction(min(int(match[1]), MIG_SLICES) or 1, MIG_SLICES)
        replicas = labels.get(f"nvidia.com/{resource.partition('/')[2].removesuffix('.shared')}.replicas", "")
    if replicas.isascii() and replicas.isdigit() and 1 < int(replicas) < 10_000:
        share /= int(replicas)
    return share


def gpus_of(counts: Iterable[tuple[str, int]], shares: Shares) -> Fraction:
    """Convert counts to whole GPUs. The share of an unlisted resource is derived from its name."""
    return sum(
        (
            count * (shares[resource] if resource in shares else share_of(resource, {}))
            for resource, count in counts
        ),
        Fraction(0),
    )


def counts_text(counts: Counts, shares: Shares | None = None) -> str:
    """The text of a column: `nvidia.com/gpu=8`, or `nvidia.com/gpu.shared=16:1/4` and the part of a GPU of one."""
    return " ".join(
        f"{resource}={count}"
        + (f":{shares[resource]}" if shares and shares.get(resource, Fraction(1)) != 1 else "")
        for resource, count in counts
    )


def read_counts(text: str) -> tuple[Counts, dict[str, Fraction]]:
    """Parse the output of `counts_text`; invalid words are left out."""
    counts, shares = [], {}
    for word in text.split():
        if match := _TEXT.fullmatch(word):
            counts.append((match["resource"], int(match["count"])))
            shares[match["resource"]] = Fraction(match["share"] or 1)
    return tuple(counts), shares
