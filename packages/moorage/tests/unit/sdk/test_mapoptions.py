"""What editors complete: the public names, and the named arguments of each function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import moorage
from moorage.sdk.mapoptions import MapAndReadOptions, MapOptions, Options
from moorage.sdk.maps import Mapped


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    client = moorage.Client("http://127.0.0.1:1", "t")
    groups = {f"Client.{name}": group for name, group in vars(client).items() if not name.startswith("_")}
    holders = {"Map": moorage.Map, "Mapped": Mapped, "Client": client, **groups}
    yield from ((name, getattr(moorage, name)) for name in ("map", "amap", "mapped"))
    for holder, members in holders.items():
        for name, member in inspect.getmembers(members, callable):
            if not name.startswith("_"):
                yield f"{holder}.{name}", member


@pytest.mark.parametrize(("name", "function"), list(public_functions()))
def test_every_argument_of_a_public_function_has_a_name(name, function):
    kinds = {parameter.kind for parameter in inspect.signature(function).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds


def test_the_signatures_of_maps_list_every_option_with_its_default():
    assert set(MapOptions.__annotations__) == set(Options.__struct_fields__)
    for function, options in ((moorage.map, MapAndReadOptions), (moorage.Map.start, MapOptions)):
        parameters = inspect.signature(function).parameters
        assert set(options.__annotations__) <= set(parameters)
        assert parameters["retries"].default == Options().retries


def test_the_module_lists_its_public_names():
    assert dir(moorage) == sorted(moorage.__all__)
