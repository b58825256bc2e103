"""`moor volume backup`, `backups` and `restore`."""

from __future__ import annotations

import secrets
from typing import Any

import click

from moorage.apimachinery.meta import condition
from moorage.apimachinery.resources import PVCS, Obj
from moorage.cli import console
from moorage.cli.dataset import bytes_text
from moorage.cli.session import Session, Target, get_named, in_session, target_options
from moorage.errors import AlreadyExists, Conflict, MoorageError, NotFound, UsageError
from moorage.model.names import label_value
from moorage.model.volumebackup import BACKUPS, FAILED, NAME_MAX, make_backup, parse_backup

LOOK_SECONDS = 1.0
_ID_LETTERS = "abcdefghjkmnpqrstvwxyz23456789"


@click.command()
@click.argument("volume")
@click.option(
    "--to",
    required=True,
    metavar="PLACE",
    help="s3://BUCKET/PREFIX, gs://…, volume:NAME[/FOLDER]; locally /FOLDER.",
)
@click.option("--schedule", default="", metavar="CRON", help='When, in UTC: "0 3 * * *" (default: once, now).')
@click.option("--keep", type=click.IntRange(1, 1000), default=7, show_default=True, help="So many stay.")
@click.option("--secret", default="", help="Secret with what lets it in at PLACE.")
@click.option("--name", default=None, help="Of the VolumeBackup (default: made from the volume's).")
@click.option("--wait", is_flag=True, help="Wait for the first backup; 1 when it failed.")
@click.option("--dry-run", is_flag=True, help="Print the manifest; create nothing.")
@target_options
def backup(
    target: Target,
    volume: str,
    to: str,
    schedule: str,
    keep: int,
    secret: str,
    name: str | None,
    wait: bool,
    dry_run: bool,
) -> int:
    """Copy a volume, once or on a schedule."""

    async def work(session: Session) -> int:
        user = await session.user()
        suffix = "" if schedule else "-" + "".join(secrets.choice(_ID_LETTERS) for _ in range(4))
        chosen = name or volume[: NAME_MAX - len(suffix)].rstrip("-") + suffix
        obj = make_backup(
            chosen,
            session.namespace,
            volume=volume,
            to=to,
            schedule=schedule,
            keep=keep,
            secret=secret,
            user=user,
            owner_label=label_value(user),
        )
        for fault in parse_backup(obj).faults[:1]:
            option = {"spec.to": "--to", "spec.schedule": "--schedule", "metadata.name": "--name"}
            raise UsageError(f"{option.get(fault.field, fault.field)}: {fault.value!r} {fault.message}")
        if not dry_run:
            await get_named(session, PVCS, "volume", volume)
        try:
            await session.api.create(BACKUPS, obj, session.namespace, dry_run=dry_run)
        except AlreadyExists as error:
            raise AlreadyExists(
                f"there are backups named {chosen!r} in namespace {session.namespace} already",
                hint="choose another name with --name, or see them: moor volume backups",
            ) from error
        console.show(console.as_yaml(obj).rstrip("\n") if dry_run else chosen)
        if dry_run or not wait:
            return 0
        while True:
            found = await session.api.get(BACKUPS, chosen, session.namespace)
            status = found.get("status") or {}
            if status.get("backups"):
                console.say(f"{status['backups'][-1]['name']} is whole")
                return 0
            if status.get("phase") == FAILED:
                word = condition(found, "Ready") or {}
                raise MoorageError(f"the backup failed: {word.get('reason')}: {word.get('message')}")
            await session.clock.sleep(LOOK_SECONDS)

    return in_session(target, work)


@click.command()
@click.argument("volume", required=False)
@console.output_option
@target_options
def backups(target: Target, volume: str | None, output: str) -> int:
    """List backups that are whole, and schedules; of one volume or of all."""

    async def work(session: Session) -> int:
        found = [
            one
            for one in (await session.api.list(BACKUPS, session.namespace)).items
            if volume in (None, (one.get("spec") or {}).get("volume"))
        ]
        items = [each for one in found for each in _backup_json(one)]
        console.print_listing(
            output,
            headers=("BACKUP", "VOLUME", "FILES", "SIZE", "WHEN", "TO", "SCHEDULE", "STATE"),
            rows=lambda: [
                [
                    one["backup"] or f"({one['name']})",
                    one["volume"],
                    "" if one["files"] is None else f"{one['files']:,}",
                    "" if one["bytes"] is None else bytes_text(one["bytes"]),
                    one["at"] or (f"next {one['next']}" if one["next"] else ""),
                    one["to"],
                    one["schedule"] or "once",
                    one["state"],
                ]
                for one in items
            ],
            items=items,
            names=[one["backup"] for one in items if one["backup"]],
            nothing=f"no backups in namespace {session.namespace}; make one:"
            ' moor volume backup NAME --schedule "0 3 * * *" --to s3://bucket/backups',
        )
        return 0

    return in_session(target, work)


def _backup_json(obj: Obj) -> list[dict[str, Any]]:
    """Its backups; where it has none yet, one line for itself."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    word = condition(obj, "Ready") or {}
    failed = f"{word.get('reason')}: {word.get('message')}" if status.get("phase") == FAILED else ""
    shared = {
        "name": obj["metadata"]["name"],
        "volume": spec.get("volume") or "",
        "to": spec.get("to") or "",
        "schedule": spec.get("schedule") or "",
        "next": status.get("next") or "",
    }
    kept = [
        {
            "backup": one["name"],
            "files": one.get("files", 0),
            "bytes": one.get("bytes", 0),
            "at": one.get("at") or "",
            "sha256": one.get("sha256") or "",
            "changed": one.get("changed", 0),
            "state": "whole" if not one.get("changed") else f"{one['changed']} files changed meanwhile",
        }
        | shared
        for one in status.get("backups") or ()
    ]
    if kept and not failed:
        return kept
    empty = dict.fromkeys(("files", "bytes", "sha256", "changed"))
    state = failed or status.get("phase") or "Pending"
    return [*kept, {"backup": "", "at": "", "state": state} | empty | shared]


@click.command()
@click.argument("backup")
@click.option("--into", "volume", required=True, metavar="VOLUME", help="An empty volume, which must exist.")
@click.option("--force", is_flag=True, help="Also onto one that is not empty: what the backup has is replaced.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait for the end; 1 when it failed.")
@target_options
def restore(target: Target, backup: str, volume: str, force: bool, wait: bool) -> int:
    """Bring a backup onto a volume. `moor volume backups` lists them."""

    async def work(session: Session) -> int:
        await get_named(session, PVCS, "volume", volume)
        for one in (await session.api.list(BACKUPS, session.namespace)).items:
            if backup in [each["name"] for each in (one.get("status") or {}).get("backups") or ()]:
                break
        else:
            raise NotFound(
                f"there is no backup {backup!r} in namespace {session.namespace}",
                hint="`moor volume backups` lists them",
            )
        if (one.get("status") or {}).get("restorePhase") == "Running":
            raise Conflict("another restore of these backups is under way", hint="wait for its end")
        wish: Obj = {"id": secrets.token_hex(4), "backup": backup, "volume": volume, "force": force}
        meta = one["metadata"]
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"]}, "spec": {"restore": wish}}
        await session.api.patch(BACKUPS, meta["name"], patch, session.namespace)
        if not wait:
            console.show(f"{backup} is being brought onto {volume}")
            return 0
        while True:
            status = (await session.api.get(BACKUPS, meta["name"], session.namespace)).get("status") or {}
            if status.get("restoreId") == wish["id"] and status.get("restorePhase") in ("Done", FAILED):
                break
            await session.clock.sleep(LOOK_SECONDS)
        if status["restorePhase"] == FAILED:
            raise MoorageError(f"the restore failed: {status.get('restoreMessage')}")
        console.show(f"{backup} is on {volume}: {status.get('restoreMessage')}")
        return 0

    return in_session(target, work)
