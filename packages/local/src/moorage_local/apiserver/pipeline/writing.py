"""Creating and changing objects."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from moorage_kube.api import PatchKind
from moorage_kube.clock import Clock, rfc3339
from moorage_kube.errors import AlreadyExists, BadRequest, Conflict, ServerError, UnsupportedMediaType
from moorage_kube.resources import Obj, Resource
from moorage_local.apiserver.auth.users import Authorizer
from moorage_local.apiserver.kinds.kind import Kind, Kinds
from moorage_local.apiserver.pipeline.bodies import meta_of, shaped
from moorage_local.apiserver.pipeline.calls import Admission, Admitter, Call, Made, Settle
from moorage_local.apiserver.pipeline.marking import is_finished
from moorage_local.apiserver.pipeline.patching import keep_other_side, patched, with_manager
from moorage_local.apiserver.pipeline.reading import Reader
from moorage_local.apiserver.pipeline.refusals import already_exists, details_of, modified, not_found
from moorage_local.apiserver.types import metadata
from moorage_local.apiserver.types.fields import FieldErrors
from moorage_local.storage import CompareFailed, Storage

log = logging.getLogger(__name__)

ATTEMPTS = 100  # of a write that others keep overtaking, before it fails as a Conflict
GENERATE_ATTEMPTS = 8  # names tried for generateName, as the real server


class Writer(Reader):
    """`create`, `update` and `patch`: decode, default, admit, validate, store.

    A write reads the stored object, computes the new one, and stores it if the revision is still the one that was
    read. If another write came in between and the client set no resourceVersion, the write starts again.
    """

    def __init__(
        self,
        storage: Storage,
        kinds: Kinds,
        *,
        authorizer: Authorizer,
        admitters: Sequence[Admitter],
        clock: Clock,
    ) -> None:
        super().__init__(storage, kinds, authorizer=authorizer, clock=clock)
        self.admitters: list[Admitter] = list(admitters)

    async def create(self, call: Call, kind: Kind, obj: Obj, namespace: str | None) -> Obj:
        """Return the stored object (with `dry_run`, the one that would be stored). Raises AlreadyExists, Invalid,
        NotFound (namespace).
        """
        # check the request, then read the body
        self.check_verb(kind, "create")
        obj = shaped(self.kinds, kind, obj, namespace)
        meta = obj["metadata"]
        namespace = namespace if kind.resource.namespaced else None
        name = meta.get("name") or ""
        self.authorise(call, "create", kind, namespace, name if call.applying else "")
        dated = meta.get("resourceVersion")
        obj, errors = self._decode(call, kind, obj)
        meta = obj["metadata"]
        # set the fields that only the server sets
        for key in (
            "resourceVersion",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "managedFields",
            "selfLink",
            "generation",
        ):
            meta.pop(key, None)
        for key in ("uid", "creationTimestamp"):
            meta.pop(key, None)  # given after mutating admission
        if call.applying:
            obj = with_manager(obj, call, kind, None, rfc3339(self.clock.now()))
        # fill in defaults, then let admission change the object
        kind.rules.default(obj)
        request = Admission(
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
        obj, errors = await self._mutate(request, obj, errors)
        if dated:
            raise ServerError("resourceVersion should not be set on objects to be created", reason="")
        # store it; a generated name that is taken is generated again
        base = obj["metadata"].get("generateName")
        for attempt in range(GENERATE_ATTEMPTS):
            if not name and base:
                obj["metadata"]["name"] = metadata.generate_name(base)
            try:
                return await self._create_named(call, kind, obj, namespace, replace(request, obj=obj), errors)
            except AlreadyExists:
                if name or not base or attempt == GENERATE_ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    async def _create_named(
        self, call: Call, kind: Kind, obj: Obj, namespace: str | None, request: Admission, errors: FieldErrors
    ) -> Obj:
        rules = kind.rules
        # set the fields that only the server sets
        obj["metadata"]["uid"] = str(uuid.uuid4())
        obj["metadata"]["creationTimestamp"] = rfc3339(self.clock.now())
        rules.prepare_create(obj)
        rules.requested_by(obj, call.user.to_obj())
        if rules.generation is not None:
            obj["metadata"]["generation"] = 1
        if kind.has_status and not rules.keep_status_on_create and kind.custom:
            obj.pop("status", None)
        # report all errors at once, those of reading too
        name = obj["metadata"].get("name") or ""
        all_errors = FieldErrors()
        all_errors.causes += errors.causes
        metadata.validate_meta(
            obj,
            namespaced=kind.resource.namespaced,
            form=rules.name_form,
            errors=all_errors,
            qualified_finalizers=kind.rules.qualified_finalizers,
        )
        rules.validate(obj, all_errors)
        rules.validate_create(obj, all_errors)
        all_errors.raise_if_any(kind.resource, name)
        for warning in all_errors.warnings:
            call.warn(warning)
        # admission comes last: a quota must charge only objects that are stored
        request = replace(request, name=name, settle=[])
        try:
            await self.admit(request)
            key = kind.key(name, namespace)
            if call.dry_run:
                standing = self.storage.get(key)
                if standing is not None:
                    raise already_exists(kind.resource, name, standing.obj)
                return obj
            # `expected=0`: a key that exists is a conflict
            record = await self.put(kind, key, obj, expected=0, name=name)
            stored = self.view(kind, record, own=True)
            self.tell(kind, None, stored)
            return stored
        finally:
            for over in request.settle:
                over()

    async def update(
        self, call: Call, kind: Kind, obj: Obj, name: str, namespace: str | None, *, subresource: str | None = None
    ) -> Obj:
        """Replace the object, or only its spec or status through a subresource.

        Raises Conflict, Invalid, NotFound.
        """
        self.check_verb(kind, "update")
        obj = shaped(self.kinds, kind, obj, namespace)
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

        Server-side apply is simplified: lists are merged by the keys of their type and the values that the manager
        sends win; the manager is recorded in `metadata.managedFields` without the set of its fields, so
        fields that it stops sending stay, and there are no conflicts between managers.
        """
        # check the request
        self.check_verb(kind, "patch")
        self.authorise(call, "patch", kind, namespace, name, subresource)
        if patch_kind == "strategic" and kind.codec.patch_type is None:
            raise UnsupportedMediaType(
                "the body of the request was in an unknown format - accepted media types include:"
                " application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
            )
        # apply creates an object that does not exist
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
                    log.debug(
                        "the object to apply was created meanwhile; it is patched instead", extra={"object": name}
                    )

        # change the object that exists
        async def make(current: Obj) -> Obj:
            wanted = patched(kind, current, body, patch_kind)
            if patch_kind == "apply":
                return with_manager(wanted, call, kind, subresource, rfc3339(self.clock.now()))
            return wanted

        return await self.write(
            call, kind, name, namespace, make, subresource=subresource, decode=True, applied=patch_kind == "apply"
        )

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
        """Store the object that `make` returns for the stored one; an unchanged object is not written.

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
            # make the new object from the stored one
            record = self.read(kind, name, namespace)
            old = self.view(kind, record, own=True)
            new = await make(self.view(kind, record, own=True))
            # check that the client meant this object in this version
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
                    details=details_of(kind.resource, name),
                )
            # default, admit and validate it
            problems = errors
            if decode:
                new, problems = self._decode(call, kind, new)
            new, problems = await self._prepared(
                call, kind, new, old, subresource, problems or FieldErrors(), admit=admit, settle=settle
            )
            if applied and managed:
                new["metadata"]["managedFields"] = managed
            new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
            # store it, unless nothing changed
            if new == old:
                return old
            if call.dry_run:
                return new
            try:
                return await self._replace(kind, key, name, new, old, record.mod_revision)
            except CompareFailed:
                continue  # a named version is compared again, a patch without one is applied again
        raise modified(kind.resource, name)

    async def write_raw(self, call: Call, kind: Kind, name: str, namespace: str | None, make: Made) -> Obj:
        """As `write`, but the object of `make` is stored unchanged: no defaults, no checks, no admission."""
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
                return await self._replace(kind, key, name, new, old, record.mod_revision)
            except CompareFailed:
                continue
        raise modified(kind.resource, name)

    async def _replace(self, kind: Kind, key: str, name: str, new: Obj, old: Obj, revision: int) -> Obj:
        """Replace `old` by `new`, or remove the object if nothing blocks its deletion any more.

        Raises CompareFailed.
        """
        if is_finished(kind, new, old):
            await self.drop(kind, key, name, revision)
            self.tell(kind, old, None)
            return new
        stored = self.view(kind, await self.put(kind, key, new, revision, name), own=True)
        self.tell(kind, old, stored)
        return stored

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
        """Convert the client's object to the one to store. Raises Invalid and the errors of admission."""
        # restore the fields that clients may not change, and set defaults
        rules = kind.rules
        all_errors = FieldErrors()
        metadata.validate_identity(new, old, all_errors)
        metadata.keep_system_fields(new, old)
        rules.default(new)
        keep_other_side(kind, new, old, subresource)
        # let admission change it, and restore the fields that it may not change
        request = Admission(
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
            new, errors = await self._mutate(request, new, errors)
            metadata.keep_system_fields(new, old)
            keep_other_side(kind, new, old, subresource)
        if rules.generation is not None and subresource != "status" and rules.generation(new, old):
            new["metadata"]["generation"] = (old["metadata"].get("generation") or 0) + 1
        # validate the result, then let admission refuse it
        all_errors.causes += errors.causes
        metadata.validate_meta(
            new,
            namespaced=kind.resource.namespaced,
            form="path",
            errors=all_errors,
            qualified_finalizers=kind.rules.qualified_finalizers,
        )
        metadata.validate_meta_update(new, old, all_errors)
        if subresource == "status":
            rules.validate_status(new, old, all_errors)
        else:
            rules.validate(new, all_errors)
            rules.validate_update(new, old, all_errors)
        all_errors.raise_if_any(kind.resource, new["metadata"]["name"])
        if new["metadata"].get("generation") != old["metadata"].get("generation"):
            for warning in all_errors.warnings:
                call.warn(warning)
        if admit:
            await self.admit(replace(request, obj=new))
        return new, errors

    def decode(self, call: Call, kind: Kind, obj: Any, namespace: str | None) -> Obj:
        """Authorize and read a body that is never stored (a review). Raises BadRequest, Forbidden."""
        self.authorise(call, "create", kind, namespace, "")
        return self._decode(call, kind, shaped(self.kinds, kind, obj, namespace))[0]

    def _decode(self, call: Call, kind: Kind, obj: Obj) -> tuple[Obj, FieldErrors]:
        decoded = kind.codec.decode(obj)
        if decoded.unknown:
            match call.field_validation:
                case "Strict":
                    fields = ", ".join(f'unknown field "{path}"' for path in decoded.unknown)
                    raise BadRequest(
                        f'{kind.resource.kind} in version "{kind.resource.version}" cannot be handled as a'
                        f" {kind.resource.kind}: strict decoding error: {fields}"
                    )
                case "Warn":
                    for path in decoded.unknown:
                        call.warn(f'unknown field "{path}"')
        decoded.obj.setdefault("metadata", {})
        return decoded.obj, decoded.errors

    async def _mutate(self, request: Admission, obj: Obj, errors: FieldErrors) -> tuple[Obj, FieldErrors]:
        """Let every admitter change the object.

        Those before one that replaced it (a webhook) run a second time.

        https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#reinvocation-policy
        """
        for at, admitter in enumerate(self.admitters):
            changed = await admitter.mutate(replace(request, obj=obj))
            if changed is not None and changed is not obj:
                obj, errors = self._complete(request, changed)
                for earlier in self.admitters[:at]:
                    again = await earlier.mutate(replace(request, obj=obj))
                    if again is not None and again is not obj:
                        obj, errors = self._complete(request, again)
        return obj, errors

    def _complete(self, request: Admission, changed: Obj) -> tuple[Obj, FieldErrors]:
        """Read the object that an admitter changed, and set its defaults again."""
        obj, errors = self._decode(Call(user=request.call.user), request.kind, changed)
        request.kind.rules.default(obj)
        return obj, errors

    async def admit(self, request: Admission) -> None:
        """Call all admitters. Raises the error of the first one that refuses the request."""
        for admitter in self.admitters:
            await admitter.validate(request)


def _options(call: Call) -> Obj:
    out: Obj = {}
    if call.dry_run:
        out["dryRun"] = ["All"]
    if call.field_manager:
        out["fieldManager"] = call.field_manager
    return out
