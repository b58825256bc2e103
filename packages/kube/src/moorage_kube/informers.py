"""One informer per collection in a process, shared by all its users.

Six controllers, the webhook and the server read all nodes. Separate informers would need six watches on the API
server and six copies in memory; in one process one is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moorage_kube.api import Api
from moorage_kube.informer import Index, Informer
from moorage_kube.resources import Obj, Resource

_Key = tuple[Resource, str | None, str | None, str | None, Callable[[Obj], Obj] | None]


class Informers:
    """Informers by resource, namespace, selectors and the fields that they retain.

    Each owner runs the informer that it got: the first `run` works, and when it is cancelled the next one
    continues. Each informer uses the rights of its first owner, so owners in one registry are parts of one process
    that end together.
    """

    def __init__(self) -> None:
        self._informers: dict[_Key, Informer] = {}

    def of(
        self,
        api: Api,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        indexes: Mapping[str, Index] | None = None,
        keep: Callable[[Obj], Obj] | None = None,
    ) -> Informer:
        """Return the informer of a collection, with these indexes added.

        Raises ValueError if another index already uses a name.
        """
        key = (resource, namespace, label_selector, field_selector, keep)
        informer = self._informers.get(key)
        if informer is None:
            informer = self._informers[key] = Informer(
                api,
                resource,
                namespace,
                label_selector=label_selector,
                field_selector=field_selector,
                indexes=indexes,
                keep=keep,
            )
            return informer
        for name, compute in (indexes or {}).items():
            known = informer.index(name)
            if known is not None and not _are_same(known, compute):
                raise ValueError(f"{resource.plural} have another index {name!r} already: name this one otherwise")
            informer.add_index(name, compute)
        return informer


def _are_same(function: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions are the same, or were created by the same function from equal values."""
    return function is other or _parts(function) == _parts(other)


def _parts(function: Callable[..., Any]) -> tuple[object, ...]:
    code, cells = getattr(function, "__code__", function), getattr(function, "__closure__", None) or ()
    return (code, *(cell.cell_contents for cell in cells))
