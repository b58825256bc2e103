"""Old names of fields and parameters are refused, each with the name of today."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator

import msgspec
import pytest

import moorage.api
from moorage.api.fields import Query
from moorage.api.maps import NewMap
from moorage.server.inputs import decode, decode_query
from moorage.server.problems import Problem


def kinds() -> Iterator[type[msgspec.Struct]]:
    for module in pkgutil.iter_modules(moorage.api.__path__):
        path = f"moorage.api.{module.name}"
        for kind in vars(importlib.import_module(path)).values():
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == path:
                yield kind


RENAMED = [
    pytest.param(kind, old, new, id=f"{kind.__name__} {old}")
    for kind in kinds()
    for old, new in getattr(kind, "renamed", {}).items()
]


@pytest.mark.parametrize(("kind", "old", "new"), RENAMED)
def test_an_old_name_is_refused_with_the_name_of_today(kind, old, new):
    names = {field.encode_name for field in msgspec.structs.fields(kind)}
    assert (old in names, new in names) == (False, True)
    is_query = issubclass(kind, Query)
    with pytest.raises(Problem) as caught:
        decode_query([(old, "1")], kind) if is_query else decode(json.dumps({old: 1}).encode(), kind)
    assert caught.value.message == f"unknown {'parameter' if is_query else 'field'} {old!r}: use {new!r}"
    assert caught.value.field == old


def test_an_old_name_within_another_field_has_its_path():
    with pytest.raises(Problem) as caught:
        decode(b'{"name": "m", "request": "r", "policy": {"timeoutSeconds": 1}}', NewMap)
    assert caught.value.message == "unknown field 'timeoutSeconds': use 'timeSeconds'"
    assert caught.value.field == "policy.timeoutSeconds"
