"""The target of a request's path, and the verb of its method."""

from __future__ import annotations

from dataclasses import dataclass

from moorage_local.apiserver.kinds.kind import Kind

VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A collection (`name` None), an object, or a subresource of an object. `watching`: the request is a watch."""

    kind: Kind
    namespace: str | None
    name: str | None
    subresource: str | None
    watching: bool = False
