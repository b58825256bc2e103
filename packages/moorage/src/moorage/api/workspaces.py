"""API types of workspaces: `/api/v1/workspaces`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from moorage.api.fields import Answer, Name, Query, Request, Time, about

TUNNEL_PATH = "/api/v1/workspaces/{namespace}/{name}/tunnel"
TUNNEL_PROTOCOL = "tunnel.moorage.dev"  # of WebSockets that carry a browser's connections


class NewWorkspace(Request):
    """A workspace to create."""

    name: Name
    namespace: Name
    spec: Annotated[dict[str, Any], about("As `spec` of the kind Workspace.")]
    host_env: Annotated[
        bool, about("On a local cluster: run the image's command in this machine's environment.")
    ] = False
    queue: Annotated[str, about("LocalQueue of Kueue, in whose quota it runs; empty: `default`, or none.")] = ""
    dry_run: Annotated[bool, about("Check the request; create nothing.")] = False


class Opening(Request):
    """Options for the address that opens a workspace."""

    path: Annotated[
        str,
        msgspec.Meta(max_length=4096),
        about("Path in the application where the browser begins; empty: its first page."),
    ] = ""
    tunnel_port: Annotated[
        int,
        msgspec.Meta(ge=0, le=65535),
        about("Port of 127.0.0.1 where your program carries the browser's connections; 0: there is no tunnel."),
    ] = 0


class Deletion(Query):
    """Whether the home volume is deleted too."""

    delete_home: Annotated[bool, about("Delete the volume of the home too, with all files on it.")] = False


class WaitingFor(Answer, frozen=True):
    """Why a workspace does not run."""

    reason: Annotated[str, about("One word, as in the condition Ready.")]
    message: Annotated[str, about("The same as a sentence.")] = ""


class Workspace(Answer, frozen=True):
    """A workspace."""

    namespace: str
    name: str
    owner: Annotated[str, about("User who created it.")] = ""
    type: Annotated[str, about("Name of the template, such as jupyterlab, or custom.")] = ""
    running: Annotated[bool, about("Whether it should run; `phase` says whether it does.")] = True
    phase: Annotated[str, about("Pending, Waiting, Starting, Running, Stopping, Stopped, Failed or Deleting.")] = (
        ""
    )
    ready: Annotated[bool, about("Whether the application answers.")] = False
    url: Annotated[str, about("Where a person opens it; empty: it has no address yet.")] = ""
    access: Annotated[
        str, about("login: the platform lets in whom RBAC allows; token: the application checks a token.")
    ] = ""
    waiting_for: Annotated[WaitingFor | None, about("Why it does not run; null: it runs.")] = None
    image: Annotated[str, about("Container image; empty: the template's.")] = ""
    machine: Annotated[
        Mapping[str, str] | None, about("`group` and `type` of its machine; null: it uses `resources`.")
    ] = None
    resources: Annotated[
        Mapping[str, Any], about("As `resources` in the spec: cpu, memory, gpus, gpuType, gpuResource.")
    ] = {}
    home: Annotated[str, about("PersistentVolumeClaim of the home.")] = ""
    volumes: Annotated[
        tuple[str, ...], about("PersistentVolumeClaims that it mounts in addition to its home.")
    ] = ()
    pod: Annotated[str, about("Name of the pod; empty: there is none.")] = ""
    node: Annotated[str, about("Node that the pod runs on; empty: not placed yet.")] = ""
    queue: Annotated[str, about("LocalQueue of Kueue that it names; empty: none.")] = ""
    schedule: Annotated[
        Mapping[str, str] | None, about("`start`, `stop` (as cron) and `timeZone`; null: no schedule.")
    ] = None
    next_start: Annotated[Time | None, about("Next start by the schedule; null: none.")] = None
    next_stop: Annotated[Time | None, about("Next stop by the schedule; null: none.")] = None
    ready_at: Annotated[Time | None, about("When it last became ready; null: not yet.")] = None
    created: Annotated[Time | None, about("When the workspace was created.")] = None
    idle: Annotated[str, about("Its idle state and the next step, in a few words; empty: it is in use.")] = ""
    idle_why: Annotated[str, about("The measurements that say so.")] = ""


class WorkspaceList(Answer, frozen=True):
    """A page of workspaces."""

    workspaces: tuple[Workspace, ...] = ()
    after: Annotated[
        str | None, about("Send it as `continue` for the next page; null: this is the last page.")
    ] = msgspec.field(default=None, name="continue")


class Address(Answer, frozen=True):
    """An address that opens a workspace: once within a minute, or by token until the workspace is deleted."""

    url: Annotated[str, about("Opens the workspace once, within a minute; treat it as a secret.")]
    password: Annotated[str, about("Password that the application asks for; empty: none.")] = ""
