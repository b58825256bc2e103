"""The queries of a run to its controller: values of ConfigMaps, memoized outputs, locks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from moorage.decide.evaluation import TextError
from moorage_workflows.decide.workflows.graph.events import Locks, Query, Recall, Refusal
from moorage_workflows.decide.workflows.graph.state import State
from moorage_workflows.decide.workflows.graph.stops import check_cut
from moorage_workflows.decide.workflows.graph.tasks import waiting_for
from moorage_workflows.decide.workflows.text.durations import parse_duration


async def ask(state: State, query: Query) -> Any:
    """The answer; a query that others wait for too is asked once."""
    future = state.waits.answers.get(query)
    if future is None:
        future = state.waits.answers[query] = state.scheduler.future()
        state.draft.queries.append(query)
    return await future


def set_answer(state: State, query: Query, value: Any) -> None:
    future = state.waits.answers.pop(query, None)
    if future is not None:
        future.set(value)


async def take_locks(state: State, identity: str, locks: tuple[str, ...], *, is_exit: bool = False) -> str:
    """Wait until the node holds all of these locks. Returns "", or why they are not available without waiting.

    Raises Cut if the wait ends without the locks. A node whose record says that it holds them does not ask again.
    """
    priority, created = state.limits.priority, state.workflow.created_at
    asked = Locks(node=identity, priority=priority, created_at=created, locks=locks, is_exit=is_exit)
    answer = await ask(state, asked)
    state.locked.add(identity)
    if isinstance(answer, Refusal):
        release_locks(state, identity)  # it waits no longer
        check_cut(state, is_exit=is_exit)
        return answer.message
    return ""


def release_locks(state: State, identity: str) -> None:
    if identity in state.locked:
        state.locked.discard(identity)
        state.draft.unlock.append(identity)


def note_lock_wait(state: State, asked: Locks, reason: str) -> None:
    """Save why a lock is not available at all for now; empty: others hold it."""
    message = waiting_for(asked.locks, reason)
    record = state.records.get(asked.node)
    if record is None:  # the workflow's own lock comes before its first node, which has the same id
        state.workflow = msgspec.structs.replace(state.workflow, message=message if reason else "")
    elif not record.pod_name:
        state.save(msgspec.structs.replace(record, message=message))


def memo_of(template: Mapping[str, Any]) -> Recall | None:
    """The query for the memoized outputs of a template. Raises TextError."""
    memoize = template.get("memoize")
    if not memoize:
        return None
    cache = str(((memoize.get("cache") or {}).get("configMap") or {}).get("name") or "")
    if not re.fullmatch(r"[A-Za-z0-9][-A-Za-z0-9_./:=]*", str(memoize.get("key") or "")):
        raise TextError(
            f"memoize.key must have letters, digits and -_./:= only, and is {str(memoize.get('key'))[:100]!r}"
        )
    age = parse_duration(str(memoize["maxAge"])) if memoize.get("maxAge") else None
    return Recall(cache, str(memoize["key"]), None if age is None else int(age.total_seconds()))
