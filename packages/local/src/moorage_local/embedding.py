"""The functions for a program that starts the control plane on a folder and maintains that folder while it is
down.

Found by the entry point `embedded` of the group `moorage.local`, so that such a program imports nothing of this
package by name. Each name is imported when it is first used: a program's commands need one or two of them.
"""

from __future__ import annotations

from importlib import import_module

_WHERE = {
    "CLUSTER": "copies",
    "COPIES_PATH": "apiserver.http.pages",
    "NOT_COPIED": "copies",
    "SMALL_FILES": "copies",
    "check_copy": "copies",
    "copy_of": "copies",
    "ensure_pki": "apiserver.pki",
    "find_pki_problems": "apiserver.pki",
    "list_copies": "copies",
    "newest_whole": "copies",
    "pods_on_disk": "restoring",
    "read_records": "storage.sqlite",
    "restore": "restoring",
    "stop_all": "nodeagent.leftovers",
    "take_copy": "copies",
    "try_fence": "nodeagent.launcher",
    "write_records": "storage.sqlite",
}


def __getattr__(name: str) -> object:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"moorage_local.{_WHERE[name]}"), name)
