"""Moorage: an ML platform on Kubernetes for teams that share GPUs.

The map of the packages is `ARCHITECTURE.md`; which may import which is written in `pyproject.toml` and checked by
import-linter.

For Python: `moorage.map(func, items)`, `moorage.amap`, `moorage.mapped`, `moorage.Map`, `moorage.ItemError`;
`moorage.Client`, `moorage.AsyncClient`, and `moorage.errors`. They are imported when they are first used, so that
the command line does not pay for them; their types are in `__init__.pyi`.
"""

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "Client",
    "ItemError",
    "Map",
    "MapStatus",
    "__version__",
    "amap",
    "errors",
    "map",
    "mapped",
]

_ELSEWHERE = {"AsyncClient": "moorage.sdk.aio", "Client": "moorage.sdk.sync"}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name in __all__:
        from importlib import import_module

        if name == "errors":
            return import_module("moorage.errors")
        return getattr(import_module(_ELSEWHERE.get(name, "moorage.sdk.maps")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
