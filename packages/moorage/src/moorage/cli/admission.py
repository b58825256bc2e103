"""The admission webhook of a local cluster as a separate process: it runs no code of users.

It refuses changes that it cannot judge, so load on its process would block every user. The supervisor of `moor up`
starts `python -m moorage.cli.admission`; on a real cluster `moor webhook` is a separate process anyway.
"""

from __future__ import annotations

from moorage.cli.services import main

if __name__ == "__main__":
    main(("webhook",))
