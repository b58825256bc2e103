"""Common steps of all use cases: get, create once, refuse an invalid object; errors in our users' words."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from moorage.api.errors import ErrorCode
from moorage.model.machine import Fault
from moorage.model.names import REQUEST_ANNOTATION, is_dns_label
from moorage_kube.api import Api
from moorage_kube.errors import AlreadyExists, InvalidName, MoorageError, NotFound, NotReady, UsageError
from moorage_kube.meta import annotations_of, is_deleting
from moorage_kube.resources import Obj, Resource

INSTALL = "install Moorage's CustomResourceDefinitions: moor manifests"


class Kind(Struct, frozen=True):
    """A kind of object for users: `noun` is also the command, as in `moor volume`."""

    resource: Resource
    noun: str

    def missing(self, namespace: str, name: str) -> NotFound:
        return NotFound(
            f"{self.noun} {name!r} not found in namespace {namespace}",
            hint=f"list the {self.noun}s: moor {self.noun} list -n {namespace}",
            code=ErrorCode.NOT_FOUND,
        )

    def taken(self, namespace: str, name: str) -> AlreadyExists:
        return AlreadyExists(
            f"the name {name!r} is taken: another {self.noun} in namespace {namespace} has it",
            hint=f"choose another name, or look at it: moor {self.noun} list -n {namespace}",
            code=ErrorCode.EXISTS,
            field="name",
        )

    def unknown(self, error: NotFound) -> MoorageError:
        """The error for a NotFound of a whole kind, or of a namespace."""
        if "namespaces" in error.message:
            return error
        return no_kind(self.resource)


def no_kind(resource: Resource) -> NotReady:
    """The error for a kind whose CustomResourceDefinition is not installed."""
    return NotReady(f"this cluster has no kind {resource.kind}", hint=INSTALL)


class InvalidObject(UsageError):
    """An object violates rules that its schema cannot express. It has all faults, and the first one's `field`."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        sentences = [_sentence(fault) for fault in faults]
        super().__init__("; ".join(sentences), code=ErrorCode.INVALID, field=faults[0].field)
        self.problems = [(sentence, None) for sentence in sentences]  # a line each on a terminal
        self.fields = tuple(fault.field for fault in faults)


def _sentence(fault: Fault) -> str:
    """The field without its usual prefix, the value, and the allowed values."""
    field = fault.field.removeprefix("metadata.").removeprefix("spec.")
    value = f"{fault.value!r} " if fault.value else ""
    return f"{field}: {value}{fault.message}"


def refuse(faults: Sequence[Fault]) -> None:
    """Raise InvalidObject if there are faults."""
    if faults:
        raise InvalidObject(faults)


def check_name(name: str, noun: str = "name") -> None:
    """Raise InvalidName if Kubernetes does not accept the name. `noun`: such as "volume name"."""
    if not is_dns_label(name):
        raise InvalidName(
            f"invalid {noun} {name!r}: use at most 63 of a-z, 0-9 and '-', with a letter or digit at both ends",
            code=ErrorCode.INVALID,
            field="name",
        )


async def get_object(api: Api, kind: Kind, namespace: str, name: str) -> Obj:
    """Read an object. Raises NotFound with a message for users."""
    try:
        return await api.get(kind.resource, name, namespace)
    except NotFound as error:
        raise kind.missing(namespace, name) from error


async def create_object(api: Api, kind: Kind, obj: Obj, *, mark: str = "", dry_run: bool = False) -> Obj:
    """Create an object, or return the object that the same request created before.

    Raises AlreadyExists, and NotReady if the cluster does not have the kind.
    """
    namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
    try:
        return await create_once(api, kind.resource, obj, namespace, mark, dry_run=dry_run)
    except AlreadyExists as error:
        raise kind.taken(namespace, name) from error
    except NotFound as error:
        raise kind.unknown(error) from error


async def create_once(
    api: Api, resource: Resource, obj: Obj, namespace: str, mark: str, *, dry_run: bool = False
) -> Obj:
    """Create an object, or return the one that the request with this mark created (empty: always create).

    Raises AlreadyExists for one that another request created, UsageError (`key_reused`) for a key that came with
    another body.
    """
    if not mark or dry_run:
        return await api.create(resource, obj, namespace, dry_run=dry_run)
    obj["metadata"].setdefault("annotations", {})[REQUEST_ANNOTATION] = mark
    try:
        return await api.create(resource, obj, namespace)
    except AlreadyExists as taken:
        try:
            stored = await api.get(resource, obj["metadata"]["name"], namespace)
        except NotFound:
            raise taken from None
        if not is_of(stored, mark, taken):
            raise
        return stored


def is_of(stored: Obj, mark: str, cause: Exception | None = None) -> bool:
    """Whether the request with this mark created an object.

    Raises UsageError if its key had another body before.
    """
    who, _, what = annotations_of(stored).get(REQUEST_ANNOTATION, "").partition(".")
    first, _, second = mark.partition(".")
    if not mark or who != first or is_deleting(stored):
        return False
    if what != second:
        raise UsageError(
            "this Idempotency-Key was used before with a different request body",
            hint="choose a new key for a new request",
            code=ErrorCode.KEY_REUSED,
        ) from cause
    return True
