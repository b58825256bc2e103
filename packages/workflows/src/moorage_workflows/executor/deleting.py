"""`delete`: deletes artifacts in users' buckets, in a separate pod, with the keys that the user gave."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from moorage_workflows.executor.errors import StepError
from moorage_workflows.executor.retrying import Retrying
from moorage_workflows.executor.stores import Stores

TRY_SECONDS = 60.0  # of one artifact: the operator starts another pod later
_SHOWN = 1500  # characters of the last line


def delete_all(order: Path, stores: Stores, retrying: Retrying) -> bool:
    """Delete the artifacts that the order names; return whether all are deleted.

    The last line on standard error begins with `left=` and the numbers of those that stay. Raises StepError
    for a file that is not an order.
    """
    try:
        entries: list[Mapping[str, Any]] = json.loads(order.read_text(encoding="utf-8"))["delete"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StepError(f"the order of this pod cannot be read from {order}: {error}") from error
    failures: dict[int, str] = {}
    for number, entry in enumerate(entries):
        try:
            is_deleted = retrying.call(str(entry["name"]), partial(_delete, entry, stores))
        except (StepError, KeyError, ValueError) as error:
            failures[number] = f"artifact {entry.get('name')!r}: {error}"
            print(f"moorage: {failures[number]}", file=sys.stderr, flush=True)
            continue
        done = "deleted" if is_deleted else "not there, or written again since, so it stays"
        print(f"moorage: artifact {entry['name']!r}: {done}", flush=True)
    if failures:
        numbers = ",".join(str(number) for number in failures)
        print(f"left={numbers} {next(iter(failures.values()))[:_SHOWN]}", file=sys.stderr, flush=True)
    return not failures


def _delete(entry: Mapping[str, Any], stores: Stores) -> bool:
    return stores.delete(entry["location"], str(entry.get("version") or ""), is_folder=bool(entry.get("files")))
