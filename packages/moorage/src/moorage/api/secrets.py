"""API types of secrets: `/api/v1/secrets`. The values are in no answer."""

from __future__ import annotations

from typing import Annotated

import msgspec

from moorage.api.fields import Answer, Name, Request, Time, about


class NewSecret(Request):
    """A secret to create, with its values."""

    name: Name
    namespace: Name
    values: Annotated[dict[str, str], msgspec.Meta(min_length=1), about("Key → value; each value is a text.")]
    replace: Annotated[bool, about("Replace all keys and values of a secret that exists.")] = False


class Secret(Answer, frozen=True):
    """A secret, without its values."""

    namespace: str
    name: str
    keys: Annotated[tuple[str, ...], about("Names of its values.")] = ()
    owner: Annotated[str, about("User who created it.")] = ""
    used_by: Annotated[
        tuple[str, ...], about("Runs, maps, workspaces and pods that use it and have not ended.")
    ] = ()
    created: Annotated[Time | None, about("When the secret was created.")] = None


class SecretList(Answer, frozen=True):
    """The secrets that the user may list."""

    secrets: tuple[Secret, ...] = ()
