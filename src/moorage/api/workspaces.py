"""Workspaces on the wire: `/api/v1/workspaces`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from moorage.api.fields import Answer, Name, Query, Request


class NewWorkspace(Request):
    """A workspace to create; `spec` as in the kind Workspace.

    `host_env`: on a local cluster, run the image's command in this machine's environment. `dry_run`: create
    nothing.
    """

    name: Name
    namespace: Name
    spec: dict[str, Any]
    host_env: bool = False
    dry_run: bool = False


class Opening(Request):
    """`path`: where in the application the browser begins."""

    path: Annotated[str, msgspec.Meta(max_length=4096)] = ""


class Deletion(Query):
    """What becomes of the home."""

    home: Literal["keep", "delete"] = "keep"


class WaitingFor(Answer, frozen=True):
    reason: str
    message: str = ""


class Workspace(Answer, frozen=True):
    """A workspace. `running` is what is wanted, `phase` what is.

    `phase`: Pending, Waiting, Starting, Running, Stopping, Stopped, Failed or Deleting.
    """

    namespace: str
    name: str
    owner: str = ""
    type: str = ""
    running: bool = True
    phase: str = ""
    ready: bool = False
    url: str = ""
    access: str = ""
    waiting_for: WaitingFor | None = None
    image: str = ""
    machine: Mapping[str, str] | None = None
    resources: Mapping[str, Any] = {}
    home: str = ""
    volumes: tuple[str, ...] = ()
    pod: str = ""
    node: str = ""
    schedule: Mapping[str, str] | None = None
    next_start: datetime | None = None
    next_stop: datetime | None = None
    ready_at: datetime | None = None
    created: datetime | None = None


class WorkspaceList(Answer, frozen=True):
    """A page of workspaces; `after` is the `continue` of the next page, None at the end."""

    workspaces: tuple[Workspace, ...] = ()
    after: str | None = msgspec.field(default=None, name="continue")


class Address(Answer, frozen=True):
    """An address that lets a browser in once, within a minute."""

    url: str
