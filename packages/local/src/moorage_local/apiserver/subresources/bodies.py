"""Decode the bodies of subresources by their Go types."""

from __future__ import annotations

from typing import Any

from moorage_kube.errors import BadRequest
from moorage_kube.resources import Obj
from moorage_local.apiserver.kinds.builtin import BuiltinCodec
from moorage_local.apiserver.pipeline.bodies import meta_of

SUCCESS: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def read_as(body: Any, codec: BuiltinCodec) -> Obj:
    """Return the body decoded by its Go type. Raises BadRequest for a value of a wrong type."""
    return codec.decode(body).obj


def read_named(body: Any, name: str, codec: BuiltinCodec) -> Obj:
    obj = read_as(body, codec)
    given = meta_of(obj).get("name")
    if given and given != name:
        raise BadRequest(f"name in URL does not match name in {codec.resource.kind} object")
    return obj
