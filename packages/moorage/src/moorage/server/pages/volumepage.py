"""The web page of one volume: its use, its users, its backups; forms that back it up and restore it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from moorage.actions import backups, volumes
from moorage.actions.backups import Backup, NewBackup
from moorage.server.inputs import number
from moorage.server.pages.board import When, ago, owner_hues
from moorage.server.pages.clusterpages import fragment
from moorage.server.pages.rows import volume_row
from moorage.server.pages.site import Page, Site, done, key_in, problem_to_show, read_form
from moorage.server.problems import Problem
from moorage_kube.errors import ApiError, MoorageError
from moorage_kube.moments import moment
from moorage_kube.quantity import counted, format_bytes

HERE = "/volumes"
ONE = f"{HERE}/{{namespace}}/{{name}}"
CONTROLS = ("resize volume", "delete volume", "create backup", "restore backup", "create run")
KEPT = 7  # backups, by default


class BackupRow(Struct, frozen=True, kw_only=True):
    """One backup; without `backup` a schedule that has none yet, or a failed last one."""

    backup: str
    name: str
    to: str
    words: str
    when: When | None
    schedule: str


class UserRow(Struct, frozen=True):
    """A run or workspace that mounts a volume."""

    name: str
    href: str  # empty: it has no page


async def show(site: Site, request: Request, problem: Problem | None = None) -> Response:
    """The web page of one volume."""
    namespace, name = key_in(request)
    return site.page(
        request,
        "volume.html",
        HERE,
        problem=problem,
        live_part=await _live(site, request),
        namespace=namespace,
        name=name,
        kept=KEPT,
        rights=await site.allowed(request, CONTROLS, [namespace]),
    )


async def live(site: Site, request: Request) -> Response:
    """The part of a volume's page that changes."""
    return HTMLResponse(await _live(site, request))


async def back_up(site: Site, request: Request) -> Response:
    """Back a volume up, once or on a schedule, from the form."""
    form = await read_form(request)
    namespace, name = key_in(request)

    async def act() -> None:
        asked = NewBackup(
            namespace=namespace,
            volume=name,
            to=form.get("to", ""),
            schedule=form.get("schedule", ""),
            keep=number(form.get("keep") or str(KEPT), "number of backups"),
            secret=form.get("secret", ""),
        )
        planned = backups.plan_backup(asked, request.state.user.name)
        await backups.create_backup(site.context.acting(request.state.user), planned)

    return await _act(site, request, "back up volume", "backup", act)


async def restore(site: Site, request: Request) -> Response:
    """Start to restore a backup to a volume, from the form."""
    form = await read_form(request)
    namespace, name = key_in(request)

    async def act() -> None:
        api, backup = site.context.acting(request.state.user), form.get("backup", "")
        await backups.restore_backup(api, namespace, backup, name, force=bool(form.get("force")))

    return await _act(site, request, "restore volume", "restoring", act)


PAGES = (
    Page(method="GET", path=ONE, handler=show),
    Page(method="GET", path=f"{ONE}/live", handler=live, live=True),
    Page(method="POST", path=f"{ONE}/backup", handler=back_up),
    Page(method="POST", path=f"{ONE}/restore", handler=restore),
)


async def _act(
    site: Site, request: Request, what: str, outcome: str, act: Callable[[], Awaitable[None]]
) -> Response:
    namespace, name = key_in(request)
    site.context.audit(request, what, f"{namespace}/{name}")
    try:
        await act()
    except (Problem, MoorageError) as error:
        return await show(site, request, problem_to_show(error))
    return done(f"{HERE}/{namespace}/{name}", outcome, f"{namespace}/{name}")


async def _live(site: Site, request: Request) -> str:
    """The content of a volume's page, read as the user. Raises NotFound."""
    namespace, name = key_in(request)
    context = site.context
    await context.ready()
    api = context.acting(request.state.user)
    volume, used = await volumes.get_volume(api, namespace, name), await context.volume_use.used()
    row = volume_row(
        replace(volume, used_bytes=used.get((namespace, name))),
        owner_hues([volume.owner])[volume.owner],
        context.now(),
    )
    users = [UserRow(user, site.address_of(namespace, user)) for user in volume.used_by]
    try:
        listed: Sequence[Backup] | None = await backups.list_backups(api, namespace, name)
    except (ApiError, MoorageError):  # they may not be read, or this cluster has no backups
        listed = None
    rows = None if listed is None else [_backup_row(site, backup) for backup in listed]
    rights = await site.allowed(request, CONTROLS, [namespace])
    return fragment("volume_live.html", row=row, users=users, backups=rows, rights=rights)


def _backup_row(site: Site, backup: Backup) -> BackupRow:
    size = (
        f"{format_bytes(backup.bytes)}, {counted(backup.files or 0, 'file')}" if backup.bytes is not None else ""
    )
    return BackupRow(
        backup=backup.backup,
        name=backup.name,
        to=backup.to,
        words=", ".join(part for part in (size, backup.state) if part),
        when=ago(moment(backup.at), site.context.now()) if backup.at else None,
        schedule=backup.schedule,
    )
