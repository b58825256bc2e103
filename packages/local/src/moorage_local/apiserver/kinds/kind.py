"""The served resources: one `Kind` per resource and version, described by data and a few hooks.

The built-in kinds come from `builtin.json` with the behaviour of `registry.RULES`; custom ones from
CustomResourceDefinitions (`customresources.py`). The pipeline has no code for any single kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from moorage_kube.resources import Obj, Resource
from moorage_local.apiserver.types.fields import FieldErrors


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a Table. A column with `priority` 0 is always shown, others only with `-o wide`."""

    name: str
    type: str
    format: str = ""
    description: str = ""
    priority: int = 0

    def to_obj(self) -> Obj:
        return {
            "name": self.name,
            "type": self.type,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Subresource:
    """A subresource such as `status`, `scale` or `binding`, in the form of discovery."""

    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str | None = None  # None: that of the resource
    version: str | None = None
    type_name: str | None = None


@dataclass(slots=True)
class Decoded:
    """An object as read, and the findings of the reading."""

    obj: Obj
    unknown: list[str] = field(default_factory=list)  # paths of unknown fields; they were dropped
    errors: FieldErrors = field(default_factory=FieldErrors)  # of the schema; raised with those of validation


class Codec(Protocol):
    """Decodes objects of one kind: removes unknown fields, checks types, sets schema defaults."""

    def decode(self, obj: Obj) -> Decoded:
        """Decode an object. Raises BadRequest for a value whose type cannot be read at all."""
        ...

    @property
    def patch_type(self) -> str | None:
        """Name of the built-in type for strategic merge; None if strategic merge is not supported."""
        ...


def _nothing(_: Obj) -> None:
    return None


def _nothing_two(_: Obj, __: Obj) -> None:
    return None


def _valid(_: Obj, __: FieldErrors) -> None:
    return None


def _valid_two(_: Obj, __: Obj, ___: FieldErrors) -> None:
    return None


def _same(obj: Obj) -> Obj:
    return obj


def spec_changed(new: Obj, old: Obj) -> bool:
    return bool(new.get("spec") != old.get("spec"))


def _not_pending(_: Obj) -> bool:
    return False


def not_graceful(_: Obj, __: int | None) -> int | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The special behaviour of a kind. Hooks may change the object that they receive; otherwise they are pure."""

    default: Callable[[Obj], None] = _nothing  # on every write, before admission
    prepare_create: Callable[[Obj], None] = _nothing  # server-set fields: status at birth
    requested_by: Callable[[Obj, Obj], None] = _nothing_two  # (new, userInfo of its author)
    prepare_update: Callable[[Obj, Obj], None] = (
        _nothing_two  # (new, old): restore the fields that an update must not change
    )
    prepare_status: Callable[[Obj, Obj], None] = _nothing_two  # (new, old): as above, through /status
    validate: Callable[[Obj, FieldErrors], None] = _valid  # on create and update
    validate_create: Callable[[Obj, FieldErrors], None] = _valid
    validate_update: Callable[[Obj, Obj, FieldErrors], None] = _valid_two  # (new, old)
    validate_status: Callable[[Obj, Obj, FieldErrors], None] = _valid_two  # (new, old)
    generation: Callable[[Obj, Obj], bool] | None = None  # does the change bump metadata.generation; None: unused
    name_form: str = "subdomain"  # subdomain, label, service (RFC 1035 label) or path
    unconditional_update: bool = True  # PUT without resourceVersion is allowed
    create_on_update: bool = False  # PUT of a missing object creates it
    qualified_finalizers: bool = True  # a finalizer needs a domain and a slash; not so for custom kinds
    orphan_by_default: bool = False  # deletion without a propagation policy leaves dependents alone
    keep_status_on_create: bool = (
        False  # status given at creation is stored (nodes, custom objects without /status)
    )
    graceful: Callable[[Obj, int | None], int | None] = (
        not_graceful  # (object, asked) → seconds; None: not graceful
    )
    pending: Callable[[Obj], bool] = _not_pending  # other reasons than finalizers to delay a deletion
    on_deletion: Callable[[Obj], None] | None = None  # changes the object that is marked, not removed
    field_selectors: frozenset[str] = frozenset()  # beyond metadata.name and metadata.namespace
    cells: Callable[[Obj, datetime], Sequence[Any]] | None = None  # one row of the Table; None: name and age
    row_conditions: Callable[[Obj], list[Obj]] | None = None
    to_storage: Callable[[Obj], Obj] = _same  # another form is stored (events.k8s.io)
    from_storage: Callable[[Obj], Obj] = _same
    converts: bool = False  # the two above change more than apiVersion
    stored_otherwise: bool = False  # to_storage changes apiVersion
    virtual: bool = False  # never stored (reviews)


DEFAULT_RULES = Rules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One resource in one version, with all data that the pipeline needs."""

    resource: Resource
    singular: str
    list_kind: str
    verbs: tuple[str, ...]
    codec: Codec
    rules: Rules = DEFAULT_RULES
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: Mapping[str, Subresource] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    prefix: str = ""  # of the keys in storage, with a slash at the end
    custom: bool = False
    schema: Obj | None = None  # OpenAPI of a custom kind
    scale_paths: Mapping[str, str] = field(default_factory=dict)  # of a custom kind's scale subresource
    deprecated: str | None = None  # a warning for all requests of this version

    @property
    def has_status(self) -> bool:
        return "status" in self.subresources

    def key(self, name: str, namespace: str | None) -> str:
        return f"{self.prefix}{namespace}/{name}" if self.resource.namespaced else f"{self.prefix}{name}"

    def list_prefix(self, namespace: str | None) -> str:
        return f"{self.prefix}{namespace}/" if self.resource.namespaced and namespace else self.prefix


class Kinds:
    """All kinds that are served now. Custom kinds are added and removed while the server runs."""

    def __init__(self) -> None:
        self._by_path: dict[tuple[str, str, str], Kind] = {}
        self._preferred: dict[str, list[str]] = {}
        self.edition = 0  # changes whenever a kind is added or removed

    def add(self, kind: Kind) -> None:
        where = kind.resource
        self._by_path[(where.group, where.version, where.plural)] = kind
        self._count()

    def remove(self, group: str, plural: str) -> None:
        """Stop serving every version of a resource."""
        for key in [key for key in self._by_path if key[0] == group and key[2] == plural]:
            del self._by_path[key]
        self._count()

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        return self._by_path.get((group, version, plural))

    def of(self, resource: Resource) -> Kind | None:
        return self._by_path.get((resource.group, resource.version, resource.plural))

    def any_version(self, group: str, plural: str) -> Kind | None:
        for key, kind in self._by_path.items():
            if key[0] == group and key[2] == plural:
                return kind
        return None

    def by_kind(self, api_version: str, name: str) -> Kind | None:
        for kind in self._by_path.values():
            if kind.resource.kind == name and kind.resource.api_version == api_version:
                return kind
        return None

    def all(self) -> list[Kind]:
        return list(self._by_path.values())

    def groups(self) -> dict[str, list[str]]:
        """Return the versions by group, the preferred version first."""
        return self._preferred

    def _count(self) -> None:
        by_group: dict[str, set[str]] = {}
        for group, version, _ in self._by_path:
            by_group.setdefault(group, set()).add(version)
        self._preferred = {
            group: sorted(versions, key=version_priority, reverse=True) for group, versions in by_group.items()
        }
        self.edition += 1


def version_priority(version: str) -> tuple[int, int, int, str]:
    """Return the sort key of an API version: v2 > v1 > v2beta1 > v1beta2 > v1alpha1 > anything else.

    https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/
    """
    import re

    match = re.fullmatch(r"v(\d+)(?:(alpha|beta)(\d+))?", version)
    if not match:
        return (0, 0, 0, version)
    stage = {None: 3, "beta": 2, "alpha": 1}[match[2]]
    return (stage, int(match[1]), int(match[3] or 0), "")
