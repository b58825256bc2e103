"""`python3 worker.pyz`: work until the map has no more items.

See `orders` for its environment, `engine` for its steps.

Exit codes: 0 the map has no more items, or it was asked to stop; 3 it cannot work here; 1 a fault of ours.
"""

from __future__ import annotations

import os
import sys

from . import child


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--child"]:
        return child.main(arguments[1:])
    from .engine import Engine, say  # a child starts in half the time without it
    from .orders import BadOrders, Orders, preflight

    try:
        orders = Orders(os.environ)
        preflight(orders)
    except BadOrders as error:
        say(str(error))
        return 3
    return Engine(orders, [sys.executable, *started_with()]).run()


def started_with() -> list[str]:
    """The arguments after which Python runs this program again: the zip file, or -m and the package."""
    if __package__ and not os.path.isfile(sys.argv[0]):
        return ["-m", __package__]
    return [sys.argv[0]] if sys.argv[0].endswith(".pyz") else ["-m", str(__package__)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
