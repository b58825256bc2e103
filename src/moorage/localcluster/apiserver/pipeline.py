"""The request pipeline: authorise → decode → default → admit → validate → store, the same for HTTP and in process.

A write reads the stored object, computes the new one and puts it with the revision it read; when
somebody was faster and the client named no resourceVersion of its own, it starts again.
https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import msgspec

from moorage.apimachinery.api import PatchKind
from moorage.apimachinery.documents import parse_json
from moorage.apimachinery.integers import UINT64_MAX, parse_integer
from moorage.apimachinery.moments import span_of
from moorage.apimachinery.resources import Obj, Resource
from moorage.apimachinery.selectors import (
    LabelSelector,
    field_selector_paths,
    parse_field_selector,
    parse_label_selector,
)
from moorage.clock import SYSTEM, Clock, parse_rfc3339, rfc3339
from moorage.errors import (
    AlreadyExists,
    ApiError,
    BadRequest,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    MethodNotAllowed,
    NotFound,
    NumberError,
    SelectorError,
    ServerError,
    StorageError,
    TooLarge,
    UnsupportedMediaType,
)
from moorage.localcluster.apiserver import metadata
from moorage.localcluster.apiserver.auth import Attributes, Authorizer, User, refuse
from moorage.localcluster.apiserver.fields import FieldErrors
from moorage.localcluster.apiserver.kinds.kind import Kind, Kinds
from moorage.localcluster.apiserver.wire import patch
from moorage.localcluster.storage import CompareFailed, Record, Storage
from moorage.localcluster.storage.contract import WatchClosed

log = logging.getLogger(__name__)

ATTEMPTS = 100  # of a write that others keep overtaking, before it is given up as a Conflict
_SCHEME = "pkg/api/legacyscheme/scheme.go:30"  # the name of the real server's table of built-in kinds
OBJECT_MAX_BYTES = 1536 * 1024  # of one object as it is stored: etcd's limit on a request
GENERATE_ATTEMPTS = 8  # names tried for generateName, as the real server
ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"

Settle = list[Callable[[], None]]
"""Called once a write is over, done or not."""

Propagation = Literal["Background", "Foreground", "Orphan"]
Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


@dataclass(slots=True, kw_only=True)
class Call:
    """One request: who, and what holds for any verb. `warnings` are for the client's eyes."""

    user: User
    dry_run: bool = False
    field_manager: str = ""
    field_validation: str = "Ignore"  # of unknown fields: Ignore, Warn or Strict
    applying: bool = False
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    grace_period_seconds: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    propagation: Propagation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    label_selector: str | None = None
    field_selector: str | None = None
    limit: int | None = None
    cont: str | None = None
    resource_version: str | None = None
    resource_version_match: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A page. The objects are shared: they must not be changed."""

    items: list[Obj]
    resource_version: str
    cont: str | None = None
    remaining: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What admission is shown: the operation, and the object before and after."""

    operation: Operation
    kind: Kind
    namespace: str | None
    name: str
    subresource: str | None
    obj: Obj | None
    old: Obj | None
    call: Call
    options: Obj
    settle: Settle = field(default_factory=list)  # for admitters that must know what is under way


class Admitter(Protocol):
    """Looks at writes: may change the object (`mutate`), may refuse them with an ApiError."""

    async def mutate(self, asked: Admission) -> Obj | None:
        """The object as it should be; the one given may be changed and returned."""
        ...

    async def validate(self, asked: Admission) -> None: ...


@dataclass(frozen=True, slots=True)
class Event:
    """What a watch hands out. The object is shared."""

    type: str  # ADDED, MODIFIED, DELETED, BOOKMARK
    obj: Obj


Stored = Callable[[Kind, Obj | None, Obj | None], None]
"""Told of (kind, before, after) once a write is durable."""

Made = Callable[[Obj], Awaitable[Obj]]
"""From the stored object (the callee's own) to the wanted one."""


class Matcher:
    """Label and field selectors of one request."""

    def __init__(self, kind: Kind, label_selector: str | None, field_selector: str | None) -> None:
        self._labels: LabelSelector | None = None
        self._fields: Callable[[Mapping[str, Any]], bool] | None = None
        try:
            if label_selector:
                self._labels = parse_label_selector(label_selector)
            if field_selector:
                allowed = kind.rules.field_selectors | {"metadata.name"}
                if kind.resource.namespaced:
                    allowed |= {"metadata.namespace"}
                for path in field_selector_paths(field_selector):
                    if path not in allowed:
                        raise BadRequest(f"field label not supported: {path}")
                self._fields = parse_field_selector(field_selector)
        except SelectorError as error:
            raise BadRequest(f"unable to parse requirement: {error.message}", hint=error.hint) from error

    @property
    def everything(self) -> bool:
        return self._labels is None and self._fields is None

    def matches(self, obj: Obj) -> bool:
        if self._labels is not None and not self._labels.matches(obj["metadata"].get("labels")):
            return False
        return self._fields is None or self._fields(obj)


class Pipeline:
    """All verbs on all kinds. Raises `moorage.errors.ApiError` subclasses only."""

    def __init__(
        self,
        storage: Storage,
        kinds: Kinds,
        *,
        authorizer: Authorizer,
        admitters: Sequence[Admitter] = (),
        clock: Clock = SYSTEM,
    ) -> None:
        self.storage = storage
        self.kinds = kinds
        self.clock = clock
        self.authorizer = authorizer
        self.admitters: list[Admitter] = list(admitters)
        self.on_stored: list[Stored] = []

    # --- reading

    async def get(self, call: Call, kind: Kind, name: str, namespace: str | None) -> Obj:
        """The object, the caller's own."""
        self.authorise(call, "get", kind, namespace, name)
        self._may(kind, "get")
        return self.view(kind, self.read(kind, name, namespace), own=True)

    def read(self, kind: Kind, name: str, namespace: str | None) -> Record:
        """The stored record. Raises NotFound."""
        if kind.resource.namespaced and not namespace:
            raise BadRequest("an empty namespace may not be set when a resource name is provided")
        record = self.storage.get(kind.key(name, namespace))
        if record is None:
            raise not_found(kind.resource, name)
        return record

    def peek(self, kind: Kind, name: str, namespace: str | None = None) -> Obj | None:
        """The stored object, shared, or None: for admission and the like."""
        record = self.storage.get(kind.key(name, namespace))
        return None if record is None else self.view(kind, record)

    def every(self, kind: Kind, namespace: str | None = None) -> list[Obj]:
        """All stored objects, shared."""
        return [self.view(kind, one) for one in self.storage.list(kind.list_prefix(namespace)).records]

    def view(self, kind: Kind, record: Record, *, own: bool = False) -> Obj:
        """A record as an object of the kind's version; shared unless `own`."""
        if kind.rules.converts:
            return kind.rules.from_storage(record.copy())
        obj = record.copy() if own else record.obj
        if obj.get("apiVersion") != kind.resource.api_version or obj.get("kind") != kind.resource.kind:
            obj = {**obj, "apiVersion": kind.resource.api_version, "kind": kind.resource.kind}
        return obj

    async def list(self, call: Call, kind: Kind, namespace: str | None, options: ListOptions) -> Listed:
        self.authorise(call, "list", kind, namespace, named_by(options.field_selector))
        self._may(kind, "list")
        matcher = Matcher(kind, options.label_selector, options.field_selector)
        revision: int | None = None
        after: str | None = None
        if options.cont:
            revision, after = _continue_from(options.cont)
            if not after.startswith(kind.list_prefix(namespace)):
                raise BadRequest("invalid continue token: continue key is not valid")
            if revision > self.storage.revision:
                raise Expired("the continue token is newer than this cluster; list again without it")
        elif options.resource_version and options.resource_version_match == "Exact":
            revision = _listed_version(options.resource_version)
        elif options.resource_version not in (None, "", "0"):
            wanted = _listed_version(str(options.resource_version))
            if wanted > self.storage.revision:
                raise _from_the_future(wanted, self.storage.revision)
        prefix = kind.list_prefix(namespace)
        items: list[Obj] = []
        limit = max(0, options.limit or 0)  # the real server, too, takes none and a negative one for no limit
        while True:
            page = self.storage.list(prefix, after=after, limit=limit or None, revision=revision)
            if revision is None:
                revision = page.revision
            for record in page.records:
                obj = self.view(kind, record)
                if matcher.matches(obj):
                    items.append(obj)
                    if limit and len(items) == limit:
                        after = record.key
                        more = page.remaining + len(page.records) - page.records.index(record) - 1
                        if not more:
                            return Listed(items=items, resource_version=str(revision))
                        token = _continue_at(revision, after)
                        return Listed(
                            items=items,
                            resource_version=str(revision),
                            cont=token,
                            remaining=more if matcher.everything else None,
                        )
            if not page.remaining:
                return Listed(items=items, resource_version=str(revision))
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
        """Changes after `resource_version`; without one (or "0") first everything that is there as ADDED.

        Each batch holds what has come since the last one was taken, at least one event.
        `initial_events` True sends what is there even with a version, and a bookmark with the annotation
        `k8s.io/initial-events-end` after it. With `bookmarks`, one follows each batch that brought nothing the
        selectors match. Refuses (BadRequest, Forbidden) at once; the iterator raises Expired.
        """
        self.authorise(call, "watch", kind, namespace, named_by(field_selector))
        self._may(kind, "watch")
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
        page = None
        if from_start:
            page = self.storage.list(prefix)
            start = page.revision
        elif start is None:
            start = self.storage.revision
        assert start is not None
        watch = self.storage.watch(prefix, after=start)
        try:
            if page is not None:
                for record in page.records:
                    obj = self.view(kind, record)
                    if matcher.matches(obj):
                        yield [Event("ADDED", obj)]
                if initial_events and bookmarks:
                    yield [self._bookmark(kind, start, {"k8s.io/initial-events-end": "true"})]
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
        """One that says: all up to now has been sent."""
        return self._bookmark(kind, self.storage.revision, None)

    # --- creating

    async def create(self, call: Call, kind: Kind, obj: Obj, namespace: str | None) -> Obj:
        """Returns what is stored (or would be, with `dry_run`). Raises AlreadyExists, Invalid,
        NotFound (namespace).
        """
        self._may(kind, "create")
        obj = self._shaped(kind, obj, namespace)
        meta = obj["metadata"]
        namespace = namespace if kind.resource.namespaced else None
        name = meta.get("name") or ""
        self.authorise(call, "create", kind, namespace, name if call.applying else "")
        dated = meta.get("resourceVersion")
        obj, errors = self._decode(call, kind, obj)
        meta = obj["metadata"]
        for key in (
            "resourceVersion",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "managedFields",
            "selfLink",
            "generation",
        ):
            meta.pop(key, None)
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = rfc3339(self.clock.now())
        if call.applying:
            obj = self._managed(obj, call, kind, None)
            meta = obj["metadata"]
        kind.rules.default(obj)
        asked = Admission(
            operation="CREATE",
            kind=kind,
            namespace=namespace,
            name=name,
            subresource=None,
            obj=obj,
            old=None,
            call=call,
            options={"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"} | _options(call),
        )
        obj, errors = await self._mutate(asked, obj, errors)
        if dated:
            raise ServerError("resourceVersion should not be set on objects to be created", reason="")
        base = obj["metadata"].get("generateName")
        for attempt in range(GENERATE_ATTEMPTS):
            if not name and base:
                obj["metadata"]["name"] = metadata.generate_name(base)
            try:
                return await self._create_named(call, kind, obj, namespace, replace(asked, obj=obj), errors)
            except AlreadyExists:
                if name or not base or attempt == GENERATE_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    async def _create_named(
        self, call: Call, kind: Kind, obj: Obj, namespace: str | None, asked: Admission, errors: FieldErrors
    ) -> Obj:
        rules = kind.rules
        rules.prepare_create(obj)
        if rules.generation is not None:
            obj["metadata"]["generation"] = 1
        if kind.has_status and not rules.keep_status_on_create and kind.custom:
            obj.pop("status", None)
        name = obj["metadata"].get("name") or ""
        found = FieldErrors()
        found.causes += errors.causes
        metadata.validate_meta(
            obj,
            namespaced=kind.resource.namespaced,
            form=rules.name_form,
            errors=found,
            qualified_finalizers=kind.rules.qualified_finalizers,
        )
        rules.validate(obj, found)
        rules.validate_create(obj, found)
        found.raise_if_any(kind.resource, name)
        asked = replace(asked, name=name, settle=[])
        try:
            await self._validate(asked)
            key = kind.key(name, namespace)
            if call.dry_run:
                standing = self.storage.get(key)
                if standing is not None:
                    raise already_exists(kind.resource, name, standing.obj)
                return obj
            record = await self._put(kind, key, obj, expected=0, name=name)
            stored = self.view(kind, record, own=True)
            self._tell(kind, None, stored)
            return stored
        finally:
            for over in asked.settle:
                over()

    # --- updating

    async def update(
        self, call: Call, kind: Kind, obj: Obj, name: str, namespace: str | None, *, subresource: str | None = None
    ) -> Obj:
        """Replace the object, or one side of it through a subresource. Raises Conflict, Invalid, NotFound."""
        self._may(kind, "update")
        obj = self._shaped(kind, obj, namespace)
        given = obj["metadata"].get("name")
        if given and given != name:
            raise BadRequest(f"the name of the object ({given}) does not match the name on the URL ({name})")
        obj["metadata"]["name"] = name
        namespace = namespace if kind.resource.namespaced else None
        self.authorise(call, "update", kind, namespace, name, subresource)
        version = obj["metadata"].get("resourceVersion")
        if self.storage.get(kind.key(name, namespace)) is None:
            if not kind.rules.create_on_update or subresource or version:
                raise not_found(kind.resource, name)
            return await self.create(call, kind, obj, namespace)
        if not version and not kind.rules.unconditional_update:
            errors = FieldErrors()
            errors.invalid("metadata.resourceVersion", 0, "must be specified for an update")
            errors.raise_if_any(replace(kind.resource, kind=kind.resource.plural), name)  # so the real server
        decoded, errors = self._decode(call, kind, obj)
        encoded = msgspec.json.encode(decoded)

        async def make(_: Obj) -> Obj:
            made: Obj = msgspec.json.decode(encoded)
            return made

        return await self.write(call, kind, name, namespace, make, subresource=subresource, errors=errors)

    async def patch(
        self,
        call: Call,
        kind: Kind,
        name: str,
        namespace: str | None,
        body: Any,
        *,
        patch_kind: PatchKind,
        subresource: str | None = None,
    ) -> Obj:
        """Change the object by a patch. `apply` creates it when it does not exist.

        Server-side apply is simplified: lists are merged by the keys of their type and what the manager
        sends wins; the manager is recorded in `metadata.managedFields` without the set of its fields, so
        fields that it stops sending stay, and there are no conflicts between managers.
        """
        self._may(kind, "patch")
        self.authorise(call, "patch", kind, namespace, name, subresource)
        if patch_kind == "strategic" and kind.codec.patch_type is None:
            raise UnsupportedMediaType(
                "the body of the request was in an unknown format - accepted media types include:"
                " application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
            )
        if patch_kind == "apply":
            if not call.field_manager:
                errors = FieldErrors()
                errors.required("fieldManager", "is required for apply patch")
                errors.raise_if_any(Resource("meta.k8s.io", "v1", "patchoptions", "PatchOptions"), "")
            if not isinstance(body, dict):
                raise BadRequest("an apply patch must be an object")
            given = meta_of(body).get("name")
            if given and given != name:
                raise BadRequest(f"the name of the object ({given}) does not match the name on the URL ({name})")
            if self.storage.get(kind.key(name, namespace)) is None and subresource is None:
                fresh = {**body, "metadata": {**meta_of(body), "name": name}}
                try:
                    return await self.create(replace(call, applying=True), kind, fresh, namespace)
                except AlreadyExists:
                    log.debug("somebody else created what was to be applied", extra={"object": name})

        async def make(current: Obj) -> Obj:
            match patch_kind:
                case "merge":
                    if not isinstance(body, dict):
                        raise BadRequest(
                            f"error decoding patch: json: cannot unmarshal {patch.json_kind(body)} into Go value"
                            " of type map[string]interface {}"
                        )
                    wanted = patch.merge_patch(current, body)
                case "json":
                    wanted = patch.json_patch(current, body)
                case "strategic":
                    wanted = patch.strategic_merge(current, body, kind.codec.patch_type)
                case "apply":
                    wanted = patch.apply_merge(current, body, kind.codec.patch_type, kind.schema)
            if not isinstance(wanted, dict):
                raise BadRequest("the patch leaves no object")
            if patch_kind == "apply":
                wanted = self._managed(wanted, call, kind, subresource)
            if not wanted.get("metadata"):
                raise BadRequest("the patch leaves no metadata")
            meta = meta_of(wanted)
            for key in ("name", "namespace"):
                was = current["metadata"].get(key)
                if meta.get(key) != was:
                    raise BadRequest(
                        f"the {key} of the object ({meta.get(key)}) does not match the {key} on the URL ({was})"
                    )
            for key in ("kind", "apiVersion"):
                if wanted.get(key) != current[key]:
                    raise Invalid(f"a patch cannot change {key} from {current[key]} to {wanted.get(key)}")
            made: Obj = wanted
            return made

        return await self.write(
            call, kind, name, namespace, make, subresource=subresource, decode=True, applied=patch_kind == "apply"
        )

    def _managed(self, obj: Obj, call: Call, kind: Kind, subresource: str | None) -> Obj:
        entry: Obj = {
            "manager": call.field_manager,
            "operation": "Apply",
            "apiVersion": kind.resource.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": {},
        }
        if subresource:
            entry["subresource"] = subresource
        had = obj["metadata"].get("managedFields") or []
        for one in had:
            if {key: value for key, value in one.items() if key != "time"} == entry:
                return obj
        entry["time"] = rfc3339(self.clock.now())
        return {**obj, "metadata": {**obj["metadata"], "managedFields": [*had, entry]}}

    async def write(
        self,
        call: Call,
        kind: Kind,
        name: str,
        namespace: str | None,
        make: Made,
        *,
        subresource: str | None = None,
        errors: FieldErrors | None = None,
        decode: bool = False,
        applied: bool = False,
        admit: bool = True,
    ) -> Obj:
        """Store what `make` makes of the stored object; nothing is written when nothing changes.

        No authorisation here. A resourceVersion that `make` leaves in the object must be the stored one
        (Conflict).
        """
        settle: Settle = []
        try:
            return await self._write(
                call, kind, name, namespace, make, subresource, errors, decode, applied, admit, settle
            )
        finally:
            for over in settle:
                over()

    async def _write(
        self,
        call: Call,
        kind: Kind,
        name: str,
        namespace: str | None,
        make: Made,
        subresource: str | None,
        errors: FieldErrors | None,
        decode: bool,
        applied: bool,
        admit: bool,
        settle: Settle,
    ) -> Obj:
        key = kind.key(name, namespace)
        for _ in range(ATTEMPTS):
            record = self.read(kind, name, namespace)
            old = self.view(kind, record, own=True)
            new = await make(self.view(kind, record, own=True))
            managed = new["metadata"].get("managedFields")
            version = new["metadata"].get("resourceVersion")
            if version and version != old["metadata"]["resourceVersion"]:
                raise modified(kind.resource, name)
            uid = new["metadata"].get("uid")
            if uid and uid != old["metadata"]["uid"] and not decode:
                raise Conflict(
                    f'Operation cannot be fulfilled on {kind.resource} "{name}": StorageError:'
                    " invalid object, Code: 4,"
                    f" Key: /registry/{key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in"
                    f" precondition: {uid}, UID in object meta: {old['metadata']['uid']}",
                    details=_details(kind.resource, name),
                )
            problems = errors
            if decode:
                new, problems = self._decode(call, kind, new)
            new, problems = await self._prepared(
                call, kind, new, old, subresource, problems or FieldErrors(), admit=admit, settle=settle
            )
            if applied and managed:
                new["metadata"]["managedFields"] = managed
            new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            if new == old:
                return old
            if call.dry_run:
                return new
            try:
                if self._finished(kind, new, old):
                    await self._remove(kind, key, name, record.mod_revision)
                    self._tell(kind, old, None)
                    return new
                stored = self.view(kind, await self._put(kind, key, new, record.mod_revision, name), own=True)
            except CompareFailed:
                continue  # a version that the client named is compared anew; a patch without one is made anew
            self._tell(kind, old, stored)
            return stored
        raise modified(kind.resource, name)

    async def write_raw(self, call: Call, kind: Kind, name: str, namespace: str | None, make: Made) -> Obj:
        """As `write`, but what `make` returns is stored as it is: no defaults, no checks, no admission."""
        key = kind.key(name, namespace)
        for _ in range(ATTEMPTS):
            record = self.read(kind, name, namespace)
            old = self.view(kind, record, own=True)
            new = await make(self.view(kind, record, own=True))
            version = new["metadata"].get("resourceVersion")
            if version != old["metadata"]["resourceVersion"]:
                raise modified(kind.resource, name)
            if new == old or call.dry_run:
                return new
            try:
                if self._finished(kind, new, old):
                    await self._remove(kind, key, name, record.mod_revision)
                    self._tell(kind, old, None)
                    return new
                stored = self.view(kind, await self._put(kind, key, new, record.mod_revision, name), own=True)
            except CompareFailed:
                continue
            self._tell(kind, old, stored)
            return stored
        raise modified(kind.resource, name)

    async def _prepared(
        self,
        call: Call,
        kind: Kind,
        new: Obj,
        old: Obj,
        subresource: str | None,
        errors: FieldErrors,
        *,
        admit: bool,
        settle: Settle,
    ) -> tuple[Obj, FieldErrors]:
        """From what the client sent to what may be stored. Raises Invalid and what admission raises."""
        rules = kind.rules
        found = FieldErrors()
        metadata.validate_identity(new, old, found)
        metadata.keep_system_fields(new, old)
        rules.default(new)
        self._keep_other_side(kind, new, old, subresource)
        asked = Admission(
            operation="UPDATE",
            kind=kind,
            namespace=old["metadata"].get("namespace") if kind.resource.namespaced else None,
            name=old["metadata"]["name"],
            subresource=subresource,
            obj=new,
            old=old,
            call=call,
            options={"kind": "UpdateOptions", "apiVersion": "meta.k8s.io/v1"} | _options(call),
            settle=settle,
        )
        if admit:
            new, errors = await self._mutate(asked, new, errors)
            metadata.keep_system_fields(new, old)
            self._keep_other_side(kind, new, old, subresource)
        if rules.generation is not None and subresource != "status" and rules.generation(new, old):
            new["metadata"]["generation"] = (old["metadata"].get("generation") or 0) + 1
        found.causes += errors.causes
        metadata.validate_meta(
            new,
            namespaced=kind.resource.namespaced,
            form="path",
            errors=found,
            qualified_finalizers=kind.rules.qualified_finalizers,
        )
        metadata.validate_meta_update(new, old, found)
        if subresource == "status":
            rules.validate_status(new, old, found)
        else:
            rules.validate(new, found)
            rules.validate_update(new, old, found)
        found.raise_if_any(kind.resource, new["metadata"]["name"])
        if admit:
            await self._validate(replace(asked, obj=new))
        return new, errors

    def _keep_other_side(self, kind: Kind, new: Obj, old: Obj, subresource: str | None) -> None:
        """Through the main resource the status stays as it was, through /status all but the status."""
        if subresource == "status":
            kept = {key: value for key, value in old.items() if key not in ("status", "metadata")}
            status = new.get("status")
            meta = old["metadata"] if kind.custom else new["metadata"]
            new.clear()
            new.update(kept)
            new["metadata"] = {**meta}
            if status is not None:
                new["status"] = status
            kind.rules.prepare_status(new, old)
            return
        if kind.has_status:
            if "status" in old:
                new["status"] = old["status"]
            else:
                new.pop("status", None)
        kind.rules.prepare_update(new, old)

    # --- deleting

    async def delete(
        self, call: Call, kind: Kind, name: str, namespace: str | None, options: DeleteOptions
    ) -> tuple[Obj, bool]:
        """Begin or finish the deletion. Returns the object as it stood last, and whether it is gone."""
        self._may(kind, "delete")
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
            record = self.read(kind, name, namespace)
            old = self.view(kind, record, own=True)
            _check_preconditions(kind.resource, name, old, options)
            if not admitted:
                await self._validate(
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
            new, gone = self._marked(kind, old, options, call)
            if call.dry_run:
                return new, gone
            try:
                if gone:
                    await self._remove(kind, key, name, record.mod_revision)
                    self._tell(kind, old, None)
                    return new, True
                if new == old:
                    return old, False
                stored = self.view(kind, await self._put(kind, key, new, record.mod_revision, name), own=True)
            except CompareFailed:
                continue
            self._tell(kind, old, stored)
            return stored, False
        raise modified(kind.resource, name)

    def _marked(self, kind: Kind, old: Obj, options: DeleteOptions, call: Call) -> tuple[Obj, bool]:
        """The object after the request to delete it, and whether it can go at once.

        https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apiserver/pkg/registry/rest/delete.go
        """
        rules = kind.rules
        meta = {**old["metadata"]}
        new = {**old, "metadata": meta}
        deleting = "deletionTimestamp" in meta
        grace = rules.graceful(old, options.grace_period_seconds)
        graceful = False
        now = self.clock.now()
        if grace is not None:
            if deleting:
                left = meta.get("deletionGracePeriodSeconds")
                asked = options.grace_period_seconds
                if left is not None:
                    if asked is None or asked >= left:
                        return self._with_finalizers(kind, new, options, call), False
                    grace = max(0, asked)
                    was = parse_rfc3339(meta["deletionTimestamp"])
                    meta["deletionTimestamp"] = rfc3339(was - span_of(left - grace))
                    meta["deletionGracePeriodSeconds"] = grace
                    graceful = True
            else:
                meta["deletionTimestamp"] = rfc3339(now + span_of(grace))
                meta["deletionGracePeriodSeconds"] = grace
                if meta.get("generation"):
                    meta["generation"] += 1
                graceful = True
        new = self._with_finalizers(kind, new, options, call)
        meta = new["metadata"]
        if graceful and grace:
            return new, False
        if not _pending(rules, new):
            return new, True
        if not graceful and not deleting:
            meta["deletionTimestamp"] = rfc3339(now)
            meta["deletionGracePeriodSeconds"] = 0
            if meta.get("generation"):
                meta["generation"] += 1
        if rules.on_deletion is not None:
            rules.on_deletion(new)
        return new, False

    def _with_finalizers(self, kind: Kind, obj: Obj, options: DeleteOptions, call: Call) -> Obj:
        had = list(obj["metadata"].get("finalizers") or ())
        orphan, foreground = ORPHAN in had, FOREGROUND in had
        match options.propagation:
            case "Orphan":
                orphan, foreground = True, False
            case "Foreground":
                orphan, foreground = False, True
            case "Background":
                orphan, foreground = False, False
            case None if kind.rules.orphan_by_default and not had:
                orphan = True
                call.warn(
                    "child pods are preserved by default when jobs are deleted; set"
                    " propagationPolicy=Background to"
                    " remove them or set propagationPolicy=Orphan to suppress this warning"
                )
        kept = [one for one in had if one not in (ORPHAN, FOREGROUND)]
        kept += [ORPHAN] if orphan else []
        kept += [FOREGROUND] if foreground else []
        meta = {**obj["metadata"]}
        if kept:
            meta["finalizers"] = kept if set(kept) != set(had) else had
        else:
            meta.pop("finalizers", None)
        return {**obj, "metadata": meta}

    async def delete_collection(
        self, call: Call, kind: Kind, namespace: str | None, options: DeleteOptions, selection: ListOptions
    ) -> Sequence[Obj]:
        """Delete all that match; returns them as they stood."""
        self._may(kind, "deletecollection")
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

    # --- the steps

    def authorise(
        self, call: Call, verb: str, kind: Kind, namespace: str | None, name: str, subresource: str | None = None
    ) -> None:
        """Raises Forbidden."""
        where = kind.resource
        if where.plural == "namespaces" and not where.group and verb != "create":
            namespace = name  # a role in a namespace may be about the namespace itself
        asked = Attributes(
            verb=verb,
            group=where.group,
            version=where.version,
            resource=where.plural,
            subresource=subresource or "",
            namespace=namespace or "",
            name=name,
        )
        decision = self.authorizer.authorize(call.user, asked)
        if not decision.allowed:
            raise refuse(call.user, asked, decision.reason)

    def _may(self, kind: Kind, verb: str) -> None:
        if verb not in kind.verbs:
            raise MethodNotAllowed("the server does not allow this method on the requested resource", details={})

    def _shaped(self, kind: Kind, obj: Any, namespace: str | None) -> Obj:
        """Check apiVersion, kind and namespace of a body; returns a copy of its two upper levels."""
        where = kind.resource
        if not isinstance(obj, dict):
            raise BadRequest(f"the object provided is unrecognized (must be of type {where.kind})")
        version, name = obj.get("apiVersion") or where.api_version, obj.get("kind") or where.kind
        if version != where.api_version:
            if kind.custom:
                raise BadRequest(
                    f"the API version in the data ({version}) does not match the expected API"
                    f" version ({where.api_version})"
                )
            raise self._unhandled(name, str(version), where)
        if name != where.kind:
            raise self._unhandled(name, str(version), where)
        meta = {**meta_of(obj)}
        check_namespace(where, meta, namespace)
        if where.namespaced:
            if not namespace:
                raise BadRequest("an empty namespace may not be set during creation")
            meta["namespace"] = namespace
        else:
            meta.pop("namespace", None)  # as the real server
        return {**obj, "apiVersion": version, "kind": name, "metadata": meta}

    def _unhandled(self, name: Any, version: str, where: Resource) -> BadRequest:
        """The refusal of a body of another kind or version."""
        group, _, short = version.rpartition("/")
        known = any(
            (one.resource.group, one.resource.version, one.resource.kind) == (group, short, name)
            for one in self.kinds.all()
        )
        internal = where.group.split(".")[0] or "core"
        why = (
            f"converting ({short}.{name}) to ({internal}.{where.kind}): unknown conversion"
            if known
            else f'no kind "{name}" is registered for version "{version}" in scheme "{_SCHEME}"'
        )
        return BadRequest(f'{name} in version "{short}" cannot be handled as a {where.kind}: {why}')

    def decode(self, call: Call, kind: Kind, obj: Any, namespace: str | None) -> Obj:
        """A body that is never stored (a review), authorised and read. Raises BadRequest, Forbidden."""
        self.authorise(call, "create", kind, namespace, "")
        return self._decode(call, kind, self._shaped(kind, obj, namespace))[0]

    def _decode(self, call: Call, kind: Kind, obj: Obj) -> tuple[Obj, FieldErrors]:
        decoded = kind.codec.decode(obj)
        if decoded.unknown:
            match call.field_validation:
                case "Strict":
                    said = ", ".join(f'unknown field "{one}"' for one in decoded.unknown)
                    raise BadRequest(
                        f'{kind.resource.kind} in version "{kind.resource.version}" cannot be handled as a'
                        f" {kind.resource.kind}: strict decoding error: {said}"
                    )
                case "Warn":
                    for one in decoded.unknown:
                        call.warn(f'unknown field "{one}"')
        decoded.obj.setdefault("metadata", {})
        return decoded.obj, decoded.errors

    async def _mutate(self, asked: Admission, obj: Obj, errors: FieldErrors) -> tuple[Obj, FieldErrors]:
        for admitter in self.admitters:
            changed = await admitter.mutate(replace(asked, obj=obj))
            if changed is not None and changed is not obj:
                quiet = Call(user=asked.call.user)
                obj, errors = self._decode(quiet, asked.kind, changed)
                if asked.operation == "CREATE":
                    for key in ("uid", "creationTimestamp"):
                        obj["metadata"].setdefault(key, asked.obj["metadata"][key] if asked.obj else "")
                asked.kind.rules.default(obj)
        return obj, errors

    async def _validate(self, asked: Admission) -> None:
        for admitter in self.admitters:
            await admitter.validate(asked)

    def _finished(self, kind: Kind, new: Obj, old: Obj) -> bool:
        """Whether an update took away the last thing that held back a deletion."""
        if "deletionTimestamp" not in old["metadata"] or _pending(kind.rules, new):
            return False
        return not old["metadata"].get("deletionGracePeriodSeconds")

    async def _put(self, kind: Kind, key: str, obj: Obj, expected: int, name: str) -> Record:
        meta = obj["metadata"]
        version = meta.pop("resourceVersion", None)
        rules = kind.rules
        stored = rules.to_storage(obj) if rules.converts or rules.stored_otherwise else obj
        if kind.custom:
            stored = _whole_numbers(stored)
        value = msgspec.json.encode(stored)
        if len(value) > OBJECT_MAX_BYTES:
            raise TooLarge(
                f"Request entity too large: {kind.resource} {json.dumps(name)} has {len(value)} bytes,"
                f" the limit is {OBJECT_MAX_BYTES}"
            )
        if version is not None:
            meta["resourceVersion"] = version
        try:
            return await self.storage.put(key, value, expected=expected)
        except CompareFailed:
            if expected == 0:
                current = self.storage.get(key)
                raise already_exists(kind.resource, name, None if current is None else current.obj) from None
            raise
        except StorageError as error:
            raise ServerError(error.message, hint=error.hint) from error

    async def _remove(self, kind: Kind, key: str, name: str, expected: int) -> None:
        try:
            await self.storage.delete(key, expected=expected)
        except CompareFailed as error:
            if error.current is None:
                raise not_found(kind.resource, name) from None
            raise
        except StorageError as error:
            raise ServerError(error.message, hint=error.hint) from error

    def _tell(self, kind: Kind, before: Obj | None, after: Obj | None) -> None:
        for told in self.on_stored:
            told(kind, before, after)


def _whole_numbers(value: Any) -> Any:
    """1.0 is written as 1, as Go writes it (and would not beyond 1e21)."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e21 else value
    if isinstance(value, dict):
        return {key: _whole_numbers(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(one) for one in value]
    return value


def _pending(rules: Any, obj: Obj) -> bool:
    return bool(obj["metadata"].get("finalizers")) or rules.pending(obj)


def _options(call: Call) -> Obj:
    out: Obj = {}
    if call.dry_run:
        out["dryRun"] = ["All"]
    if call.field_manager:
        out["fieldManager"] = call.field_manager
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


def _check_preconditions(resource: Resource, name: str, obj: Obj, options: DeleteOptions) -> None:
    meta = obj["metadata"]
    why = ""
    if options.uid and options.uid != meta["uid"]:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({meta['uid']})."
            " The object might have been deleted and then recreated"
        )
    elif options.resource_version and options.resource_version != meta["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({options.resource_version}) does not"
            " match the ResourceVersion"
            f" in record ({meta['resourceVersion']}). The object might have been modified"
        )
    if why:
        kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
        details = _details(resource, name) | {"kind": resource.kind}
        raise Conflict(f'Operation cannot be fulfilled on {kind} "{name}": {why}', details=details)


def _details(resource: Resource, name: str) -> Obj:
    out: Obj = {"name": name, "kind": resource.plural}
    if resource.group:
        out["group"] = resource.group
    return out


def meta_of(body: Obj) -> Obj:
    """The metadata of a body, empty where it has none. Raises BadRequest for metadata of another shape."""
    meta = body.get("metadata")
    if meta is None:
        return {}
    if not isinstance(meta, dict):
        raise BadRequest("metadata must be an object")
    for key in ("name", "namespace", "generateName", "resourceVersion", "uid"):
        if not isinstance(meta.get(key), str | None):
            raise BadRequest(
                f"json: cannot unmarshal {patch.json_kind(meta[key])} into metadata.{key} of type string"
            )
    return meta


def check_namespace(resource: Resource, meta: Obj, namespace: str | None) -> None:
    """Raise BadRequest for a body of another namespace than the URL's, which alone was authorised."""
    given = meta.get("namespace")
    if resource.namespaced and given and given != (namespace or ""):
        raise BadRequest("the namespace of the provided object does not match the namespace sent on the request")


def named_by(field_selector: str | None) -> str:
    """The name of the only object that a field selector picks: rules for that name then hold. Else empty."""
    terms = [term for term in (field_selector or "").split(",") if term.startswith("metadata.name=")]
    return terms[0].partition("=")[2].lstrip("=") if len(terms) == 1 else ""


def not_found(resource: Resource, name: str) -> NotFound:
    return NotFound(f'{resource} "{name}" not found', details=_details(resource, name))


def already_exists(resource: Resource, name: str, standing: Obj | None) -> AlreadyExists:
    going = standing is not None and standing["metadata"].get("deletionTimestamp")
    said = f'{resource} "{name}" already exists'
    return AlreadyExists(f"object is being deleted: {said}" if going else said, details=_details(resource, name))


def forbidden(resource: Resource, name: str, why: str, causes: Sequence[Obj] = ()) -> Forbidden:
    name = name or "Unknown"
    details = _details(resource, name)
    if causes:
        details["causes"] = list(causes)
    return Forbidden(f'{resource} "{name}" is forbidden: {why}', details=details)


def modified(resource: Resource, name: str) -> Conflict:
    return Conflict(
        f'Operation cannot be fulfilled on {resource} "{name}": the object has been modified;'
        " please apply your changes"
        " to the latest version and try again",
        details=_details(resource, name),
    )


def parse_version(text: str) -> int:
    """A resourceVersion as the revision it stands for. Raises BadRequest."""
    try:
        return parse_integer(text, maximum=UINT64_MAX, signed=False)
    except NumberError:
        shown = json.dumps(text[:100])
        raise BadRequest(
            f"resourceVersion: Invalid value: {shown}: strconv.ParseUint: parsing {shown}: invalid syntax"
        ) from None


def _listed_version(text: str) -> int:
    try:
        return parse_version(text)
    except BadRequest as error:
        raise BadRequest(f"invalid resource version: {error.message}") from None


def _from_the_future(wanted: int, current: int) -> ApiError:
    return ApiError(
        f"Timeout: Too large resource version: {wanted}, current: {current}",
        status=504,
        reason="Timeout",
        details={
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        },
    )


def _continue_at(revision: int, after: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode({"v": 1, "rv": revision, "after": after})).decode()


def _continue_from(token: str) -> tuple[int, str]:
    try:
        position = parse_json(base64.urlsafe_b64decode(token))
    except (binascii.Error, ValueError):
        position = None
    if isinstance(position, dict):
        revision, after = position.get("rv"), position.get("after")
        if type(revision) is int and 0 <= revision <= UINT64_MAX and isinstance(after, str):
            return revision, after
    raise BadRequest("invalid continue token: continue key is not valid")


__all__ = [
    "Admission",
    "Admitter",
    "Call",
    "DeleteOptions",
    "Event",
    "Expired",
    "ListOptions",
    "Listed",
    "Pipeline",
]
