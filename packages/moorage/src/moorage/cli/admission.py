"""The webhook of admission beside a local cluster, as a process: nothing that users' texts drive runs in it.

A change that it cannot judge is refused: what keeps it busy would stop everybody. The supervisor of `moor up`
starts `python -m moorage.cli.admission`; on a real cluster `moor webhook` is a process of its own in any case.
"""

from __future__ import annotations

from moorage.cli.services import main

if __name__ == "__main__":
    main(("webhook",))
