"""Read one object, a list in pages, or a watch of changes.

https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence

from moorage_kube.clock import Clock
from moorage_kube.errors import BadRequest, Expired
from moorage_kube.resources import Obj
from moorage_local.apiserver.auth.users import Attributes, Authorizer, refuse
from moorage_local.apiserver.kinds.kind import Kind, Kinds
from moorage_local.apiserver.pipeline.calls import Call, Event, Listed, ListOptions, Selected
from moorage_local.apiserver.pipeline.pages import (
    Matcher,
    continue_at,
    continue_from,
    from_the_future,
    listed_version,
    named_by,
    parse_version,
)
from moorage_local.apiserver.pipeline.records import Records
from moorage_local.apiserver.pipeline.refusals import not_allowed
from moorage_local.storage import Record, Storage
from moorage_local.storage.contract import WatchClosed

PAUSE_BYTES = 2**20  # of objects that are decoded for a selector, some milliseconds of work


class Reader(Records):
    """The verbs `get`, `list` and `watch`, for authorized users only."""

    def __init__(self, storage: Storage, kinds: Kinds, *, authorizer: Authorizer, clock: Clock) -> None:
        super().__init__(storage, kinds, clock)
        self.authorizer = authorizer

    def authorise(
        self, call: Call, verb: str, kind: Kind, namespace: str | None, name: str, subresource: str | None = None
    ) -> None:
        """Raises Forbidden."""
        where = kind.resource
        if where.plural == "namespaces" and not where.group and verb != "create":
            namespace = name  # a role in a namespace may be about the namespace itself
        request = Attributes(
            verb=verb,
            group=where.group,
            version=where.version,
            resource=where.plural,
            subresource=subresource or "",
            namespace=namespace or "",
            name=name,
        )
        decision = self.authorizer.authorize(call.user, request)
        if not decision.allowed:
            raise refuse(call.user, request, decision.reason)

    def check_verb(self, kind: Kind, verb: str) -> None:
        """Raises MethodNotAllowed."""
        if verb not in kind.verbs:
            raise not_allowed()

    async def get(self, call: Call, kind: Kind, name: str, namespace: str | None) -> Obj:
        """Return the object as a copy that the caller may change."""
        self.authorise(call, "get", kind, namespace, name)
        self.check_verb(kind, "get")
        return self.view(kind, self.read(kind, name, namespace), own=True)

    async def list(self, call: Call, kind: Kind, namespace: str | None, options: ListOptions) -> Listed:
        selected = await self.select(call, kind, namespace, options)
        return Listed(
            items=[self.view(kind, record) for record in selected.records],
            resource_version=selected.resource_version,
            cont=selected.cont,
            remaining=selected.remaining,
        )

    async def select(self, call: Call, kind: Kind, namespace: str | None, options: ListOptions) -> Selected:
        """Return the records of a list request. If it must read many, other tasks run in between."""
        # check the request
        self.authorise(call, "list", kind, namespace, named_by(options.field_selector))
        self.check_verb(kind, "list")
        matcher = Matcher(kind, options.label_selector, options.field_selector)
        # from which version and key on
        revision: int | None = None
        after: str | None = None
        if options.cont:
            revision, after = continue_from(options.cont)
            if not after.startswith(kind.list_prefix(namespace)):
                raise BadRequest("invalid continue token: continue key is not valid")
            if revision > self.storage.revision:
                raise Expired("the continue token is newer than this cluster; list again without it")
        elif options.resource_version and options.resource_version_match == "Exact":
            revision = listed_version(options.resource_version)
        elif options.resource_version not in (None, "", "0"):
            wanted = listed_version(str(options.resource_version))
            if wanted > self.storage.revision:
                raise from_the_future(wanted, self.storage.revision)
        # read pages of the store until as many match as are wanted
        prefix = kind.list_prefix(namespace)
        records: list[Record] = []
        limit = max(0, options.limit or 0)  # the real server, too, takes none and a negative one for no limit
        read = 0
        while True:
            page = self.storage.list(prefix, after=after, limit=limit or None, revision=revision)
            if revision is None:
                revision = page.revision
            for at, record in enumerate(page.records):
                if not matcher.everything:
                    read += len(record.value)
                    if read > PAUSE_BYTES:
                        read = 0
                        await asyncio.sleep(0)
                    if not matcher.matches(self.view(kind, record)):
                        continue
                records.append(record)
                if limit and len(records) == limit:
                    more = page.remaining + len(page.records) - at - 1
                    if not more:
                        return Selected(records=records, resource_version=str(revision))
                    return Selected(
                        records=records,
                        resource_version=str(revision),
                        cont=continue_at(revision, record.key),
                        remaining=more if matcher.everything else None,
                    )
            if not page.remaining:
                return Selected(records=records, resource_version=str(revision))
            after = page.records[-1].key

    def watch(
        self,
        call: Call,
        kind: Kind,
        namespace: str | None,
        *,
        resource_version: str | None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        bookmarks: bool = False,
        initial_events: bool | None = None,
    ) -> AsyncGenerator[Sequence[Event]]:
        """Changes after `resource_version`; without one (or "0") first all existing objects as ADDED.

        Each batch holds the events since the last batch was taken, at least one. `initial_events` True sends the
        existing objects even with a version, and then a bookmark with the annotation `k8s.io/initial-events-end`.
        With `bookmarks`, a batch that the selectors do not match becomes a bookmark. Refuses (BadRequest,
        Forbidden) at once; the iterator raises Expired.
        """
        self.authorise(call, "watch", kind, namespace, named_by(field_selector))
        self.check_verb(kind, "watch")
        matcher = Matcher(kind, label_selector, field_selector)
        from_start = resource_version in (None, "", "0") if initial_events is None else initial_events
        start = parse_version(str(resource_version)) if resource_version and not from_start else None
        return self._watched(
            kind, kind.list_prefix(namespace), matcher, start, from_start, bookmarks, initial_events
        )

    async def _watched(
        self,
        kind: Kind,
        prefix: str,
        matcher: Matcher,
        start: int | None,
        from_start: bool,
        bookmarks: bool,
        initial_events: bool | None,
    ) -> AsyncGenerator[Sequence[Event]]:
        # the list and the watch begin at the same revision, so that changes between them are not lost
        page = None
        if from_start:
            page = self.storage.list(prefix)
            start = page.revision
        elif start is None:
            start = self.storage.revision
        assert start is not None
        watch = self.storage.watch(prefix, after=start)
        try:
            # first the objects that exist, then a bookmark that says so
            if page is not None:
                for record in page.records:
                    obj = self.view(kind, record)
                    if matcher.matches(obj):
                        yield [Event("ADDED", obj)]
                if initial_events and bookmarks:
                    yield [self._bookmark(kind, start, {"k8s.io/initial-events-end": "true"})]
            # then the changes; a bookmark moves a client past changes that its selectors do not match
            while True:
                try:
                    changes = await watch.next()
                except WatchClosed:
                    return
                batch = []
                for change in changes:
                    event = self._event(kind, matcher, change.before, change.after, change.revision)
                    if event is not None:
                        batch.append(event)
                if not batch and bookmarks:
                    batch.append(self._bookmark(kind, changes[-1].revision, None))
                if batch:
                    yield batch
        finally:
            watch.close()

    def _event(
        self, kind: Kind, matcher: Matcher, before: Record | None, after: Record | None, revision: int
    ) -> Event | None:
        old = None if before is None else self.view(kind, before)
        was = old is not None and matcher.matches(old)
        if after is not None:
            new = self.view(kind, after)
            if matcher.matches(new):
                return Event("MODIFIED" if was else "ADDED", new)
        if was and old is not None:
            last = {**old, "metadata": {**old["metadata"], "resourceVersion": str(revision)}}
            return Event("DELETED", last)
        return None

    def _bookmark(self, kind: Kind, revision: int, annotations: Mapping[str, str] | None) -> Event:
        meta: Obj = {"resourceVersion": str(revision), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = dict(annotations)
        return Event(
            "BOOKMARK",
            {"kind": kind.resource.kind, "apiVersion": kind.resource.api_version, "metadata": meta},
        )

    def bookmark(self, kind: Kind) -> Event:
        """Return a BOOKMARK event: all changes up to now have been sent."""
        return self._bookmark(kind, self.storage.revision, None)
