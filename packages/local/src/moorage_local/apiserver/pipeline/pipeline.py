"""The whole pipeline for reads, writes and deletions; HTTP and in-process clients use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import Conflict, NotFound
from moorage_kube.resources import Obj
from moorage_local.apiserver.auth.users import Authorizer
from moorage_local.apiserver.kinds.kind import Kind, Kinds
from moorage_local.apiserver.pipeline.calls import Admission, Admitter, Call, DeleteOptions, ListOptions
from moorage_local.apiserver.pipeline.marking import marked
from moorage_local.apiserver.pipeline.refusals import check_preconditions, modified
from moorage_local.apiserver.pipeline.writing import ATTEMPTS, Writer
from moorage_local.storage import CompareFailed, Storage


class Pipeline(Writer):
    """All verbs on all kinds. Raises only subclasses of `moorage_kube.errors.ApiError`."""

    def __init__(
        self,
        storage: Storage,
        kinds: Kinds,
        *,
        authorizer: Authorizer,
        admitters: Sequence[Admitter] = (),
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(storage, kinds, authorizer=authorizer, admitters=admitters, clock=clock)

    async def delete(
        self, call: Call, kind: Kind, name: str, namespace: str | None, options: DeleteOptions
    ) -> tuple[Obj, bool]:
        """Begin or finish the deletion. Return the last state of the object, and whether it was removed."""
        self.check_verb(kind, "delete")
        self.authorise(call, "delete", kind, namespace, name)
        return await self.remove(call, kind, name, namespace, options)

    async def remove(
        self,
        call: Call,
        kind: Kind,
        name: str,
        namespace: str | None,
        options: DeleteOptions,
        *,
        admit: bool = True,
    ) -> tuple[Obj, bool]:
        """`delete` without authorisation."""
        key = kind.key(name, namespace)
        admitted = not admit
        for _ in range(ATTEMPTS):
            # may this version be deleted? Admission is asked once
            record = self.read(kind, name, namespace)
            old = self.view(kind, record, own=True)
            check_preconditions(kind.resource, name, old, options)
            if not admitted:
                await self.admit(
                    Admission(
                        operation="DELETE",
                        kind=kind,
                        namespace=namespace,
                        name=name,
                        subresource=None,
                        obj=None,
                        old=old,
                        call=call,
                        options=_delete_options(options, call),
                    )
                )
                admitted = True
            # mark it, or remove it when nothing holds it
            new, gone = marked(kind, old, options, call, self.clock.now())
            if call.dry_run:
                return new, gone
            try:
                if gone:
                    await self.drop(kind, key, name, record.mod_revision)
                    self.tell(kind, old, None)
                    return new, True
                if new == old:
                    return old, False
                stored = self.view(kind, await self.put(kind, key, new, record.mod_revision, name), own=True)
            except CompareFailed:
                continue
            self.tell(kind, old, stored)
            return stored, False
        raise modified(kind.resource, name)

    async def delete_collection(
        self, call: Call, kind: Kind, namespace: str | None, options: DeleteOptions, selection: ListOptions
    ) -> Sequence[Obj]:
        """Delete all objects that match. Returns them as they were before the deletion."""
        self.check_verb(kind, "deletecollection")
        self.authorise(call, "deletecollection", kind, namespace, "")
        reader = Call(user=call.user)
        listed = await self.list(reader, kind, namespace, selection)
        out = []
        for obj in listed.items:
            meta = obj["metadata"]
            each = replace(options, uid=options.uid or meta["uid"])
            try:
                removed, _ = await self.remove(call, kind, meta["name"], meta.get("namespace"), each)
            except (NotFound, Conflict):
                continue
            out.append(removed)
        return out


def _delete_options(options: DeleteOptions, call: Call) -> Obj:
    out: Obj = {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"}
    if options.grace_period_seconds is not None:
        out["gracePeriodSeconds"] = options.grace_period_seconds
    if options.propagation:
        out["propagationPolicy"] = options.propagation
    if call.dry_run:
        out["dryRun"] = ["All"]
    return out
