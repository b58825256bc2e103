"""The value by which a feature extends the platform, found by the entry points of `moorage.features`.

Features are not imported here: a value refers to functions and tables as "module:name", and each process
loads only those that it needs. `moor --help` reads no entry points: finding them takes longer than all the rest.
"""

from __future__ import annotations

import functools
import pkgutil
from importlib.metadata import entry_points
from typing import Any, Literal

from msgspec import Struct

GROUP = "moorage.features"

Field = Literal[
    "parts",
    "routes",
    "recording",
    "pages",
    "templates",
    "glance",
    "metrics",
    "controllers",
    "explain",
    "crds",
    "databases",
]


class Feature(Struct, frozen=True, kw_only=True):
    """Each field but the name is a reference "module:name"; "" adds nothing.

    - `parts`: a function of `server.parts.Base` that returns `server.parts.Parts`: the objects that the
      server holds for it.
    - `routes`: a function of the server's `Context` that returns routes.
    - `recording`: a function of the `Context` that returns `server.parts.Work`: for the one server on a
      database
      that records.
    - `pages`: a sequence of `Page`, for the pages that use the `Site`.
    - `templates`: the package of its pages, with the folder `templates`, and `catalogues` of their
      translations.
    - `glance`: a coroutine function of the `Site` and a request: a part of the front page, as HTML.
    - `metrics`: a coroutine function of the `Context`: bytes for Prometheus.
    - `controllers`: a function of `controllers.base.Operator`; an async context manager of `Controller`s.
    - `explain`: for `moor explain`, a coroutine function of its `Session`, an object's name and the name of a
      part
      of it ("": of none): an answer of `api` with a `text`. Raises NotFound.
    - `crds`: a function that returns CustomResourceDefinitions. Definitions of another product are not
      changed.
    - `databases`: a sequence of `server.databases.ServerDatabase`, for backups and checks too.
    """

    name: str
    parts: str = ""
    routes: str = ""
    recording: str = ""
    pages: str = ""
    templates: str = ""
    glance: str = ""
    metrics: str = ""
    controllers: str = ""
    explain: str = ""
    crds: str = ""
    databases: str = ""


@functools.cache
def features() -> tuple[Feature, ...]:
    """All installed features, by name."""
    installed: list[Feature] = [entry.load() for entry in entry_points(group=GROUP)]
    return tuple(sorted(installed, key=lambda feature: feature.name))


def load_all(field: Field) -> list[Any]:
    """The objects that the features refer to in a field."""
    references = (getattr(feature, field) for feature in features())
    return [pkgutil.resolve_name(reference) for reference in references if reference]


def feature_crds() -> list[dict[str, Any]]:
    """The definitions of all kinds that features add."""
    return [crd for make in load_all("crds") for crd in make()]
