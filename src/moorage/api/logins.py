"""Logins and sessions on the wire: `/api/v1/login`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec

from moorage.api.fields import Answer, Request, Text

TOKEN_SECONDS = 900  # a token for the cluster, where nobody chooses


class ByPassword(Request):
    """`client`: what logs in, shown in the list of sessions."""

    username: Text
    password: Text
    client: Text = ""


class ByCode(Request):
    """A code of /login/cli and its PKCE verifier."""

    code: Text
    verifier: Text
    client: Text = ""


class TokenRequest(Request):
    """For how long a token for the Kubernetes API is wanted."""

    seconds: Annotated[int, msgspec.Meta(ge=1, le=366 * 24 * 3600)] = TOKEN_SECONDS


class PasswordChange(Request):
    old: Text
    new: Text


class LoginSession(Answer, frozen=True):
    """A person's session. `current`: it is the one that asks."""

    name: str
    session: str
    created: datetime
    used: datetime
    expires: datetime
    client: str = ""
    address: str = ""
    current: bool = False


class LoginSessionList(Answer, frozen=True):
    sessions: tuple[LoginSession, ...] = ()


class LoggedIn(Answer, frozen=True):
    """A new session; `token` is its bearer token, told this once."""

    name: str
    session: str
    token: str
    created: datetime
    used: datetime
    expires: datetime
    client: str = ""
    address: str = ""


class Person(Answer, frozen=True, omit_defaults=True):
    """Who asks. Those who came without a session have no `session`, nor what follows it."""

    name: str
    account: str = ""
    groups: tuple[str, ...] = ()
    source: str = ""
    session: str = ""
    client: str = ""
    address: str = ""
    created: datetime | None = None
    used: datetime | None = None
    expires: datetime | None = None


class ClusterAddress(Answer, frozen=True, omit_defaults=True):
    """Where the Kubernetes API is, for a kubeconfig; `server` empty: not known."""

    server: str = ""
    name: str = ""
    ca_data: str = ""
    insecure: bool = False


class ClusterToken(Answer, frozen=True):
    token: str
    expires: datetime
