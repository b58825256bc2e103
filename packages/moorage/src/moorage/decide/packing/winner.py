"""The node that shall take the pod, out of those the scheduler asks about, so that it is known before it is seen.

kube-scheduler adds its own plugins' scores to ours and draws lots between equals. It asks about the next pod
before the binding of this one is seen, so our extender must know the result of its answer: one node gets
`OUTVOTES` on top of the best points, and neither other scores nor lots can change the choice.

`moor simulate` draws lots between equals too: the hash below replaces a lot.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence, Set
from itertools import compress, count, filterfalse, islice

# kube-scheduler counts a point 10 x weight; its default plugins together give at most 1,200 (weights 1 + 1 + 1
# for resources, balance and images, 2 + 2 + 2 for affinities and spreading, 3 for taints, times 100): less at any
# weight
OUTVOTES = 121


def winner(points: Sequence[int], lot: str, *, shunned: Set[int] = frozenset()) -> int:
    """The index of the highest points; `lot` decides between equal ones. `points` must not be empty.

    `shunned`: indexes that are chosen only if all others are shunned too. The choice depends only on the
    arguments. `lot` is a pod's uid: pods that are created again after a failure on a bad node do not all get
    that node again, as with a fixed order of nodes.
    """
    best = max(points)
    equals = points.count(best)
    if shunned:
        equals -= sum(points[at] == best for at in shunned)
        if not equals:
            open_ = [at for at in range(len(points)) if at not in shunned]
            if open_:
                return open_[winner([points[at] for at in open_], lot)]
            return winner(points, lot)
    if equals == 1 and not shunned:
        return points.index(best)
    ties: Iterator[int] = compress(count(), map(best.__eq__, points))
    if shunned:
        ties = filterfalse(shunned.__contains__, ties)
    return next(islice(ties, zlib.crc32(lot.encode()) % equals, None))
