"""A query for runs of workflows, and a page of its result."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from msgspec import Struct, field

from moorage_kube.selectors import LabelSelector, parse_label_selector
from moorage_workflows.model.workflow import NodeRecord, WorkflowRecord

PAGE = 100  # runs, unless more are asked for
PAGE_MAX = 1000
NODES_PAGE_MAX = 10_000


class RunQuery(Struct, frozen=True, kw_only=True):
    """A filter for runs. All fields must match; an empty field matches every run.

    `namespaces` None: all. `after`: the `after` of the previous page, or "". `documents`: include the documents;
    otherwise each document has only name, namespace and labels. `present`: only runs whose objects exist.
    """

    namespaces: Collection[str] | None = None
    phases: Collection[str] = ()
    cron: str = ""
    labels: LabelSelector = field(default_factory=lambda: parse_label_selector(""))
    prefix: str = ""  # of the name
    present: bool = False
    since: datetime | None = None  # of their creation
    documents: bool = False
    limit: int = PAGE
    after: str = ""


class RunPage(Struct, frozen=True, kw_only=True):
    """A page of runs, newest first. `after` is "" on the last page."""

    runs: tuple[WorkflowRecord, ...] = ()
    after: str = ""


class NodePage(Struct, frozen=True, kw_only=True):
    """A page of nodes of one run, sorted by id. `after` is "" on the last page."""

    nodes: tuple[NodeRecord, ...] = ()
    after: str = ""
