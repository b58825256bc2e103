"""The local cluster's store of objects: keys, JSON bytes, one revision, in the manner of etcd.

Belongs here: the contract (`contract.Storage`) and its two implementations, in memory and
in SQLite. Does not belong here: the meaning of the bytes; the API server handles it.
"""

from moorage_local.storage.contract import Change, CompareFailed, Page, Record, Storage, Watch
from moorage_local.storage.memory import HistoryLimits, MemoryStorage

__all__ = ["Change", "CompareFailed", "HistoryLimits", "MemoryStorage", "Page", "Record", "Storage", "Watch"]
