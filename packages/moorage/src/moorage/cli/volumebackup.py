"""`moor volume backup`, `backups` and `restore`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click
import msgspec

from moorage.actions import backups as backup_actions
from moorage.actions.backups import Outcome
from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.present.sizes import bytes_text
from moorage_kube.errors import MoorageError

LOOK_SECONDS = 1.0


@console.command(
    examples={
        "moor volume backup data --to s3://backups/data --secret s3": "copy a volume now",
        "moor volume backup data --to volume:vault --schedule '0 3 * * *' --keep 14": "every night",
    }
)
@click.argument("volume", shell_complete=complete("volumes"))
@click.option(
    "--to",
    required=True,
    metavar="PLACE",
    help="s3://BUCKET/PREFIX, gs://…, volume:NAME[/FOLDER]; locally /FOLDER.",
)
@click.option("--schedule", default="", metavar="CRON", help='When, in UTC: "0 3 * * *" (default: once, now).')
@click.option(
    "--keep", type=click.IntRange(1, 1000), default=7, show_default=True, help="Number of backups to keep."
)
@click.option("--secret", default="", help="Secret with the credentials for PLACE.")
@click.option("--name", default=None, help="Name of the VolumeBackup (default: from the volume's name).")
@click.option("--wait", is_flag=True, help="Wait for the first backup; exit with 1 if it failed.")
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
        request = backup_actions.NewBackup(
            namespace=session.namespace,
            volume=volume,
            to=to,
            schedule=schedule,
            keep=keep,
            secret=secret,
            name=name or "",
        )
        obj = backup_actions.plan_backup(request, await session.user())
        chosen = obj["metadata"]["name"]
        await backup_actions.create_backup(session.api, obj, dry_run=dry_run)
        console.show_text(console.as_yaml(obj).rstrip("\n") if dry_run else chosen)
        if dry_run or not wait:
            return 0
        outcome = await _ended(
            session, lambda: backup_actions.backup_outcome(session.api, session.namespace, chosen)
        )
        console.say(outcome.message)
        return 0

    return in_session(target, work)


@console.command(
    examples={
        "moor volume backups": "all backups and schedules",
        "moor volume backups data": "those of one volume",
    }
)
@click.argument("volume", required=False, shell_complete=complete("volumes"))
@console.output_option
@target_options
def backups(target: Target, volume: str | None, output: str) -> int:
    """List complete backups and schedules, of one volume or of all."""

    async def work(session: Session) -> int:
        rows = await backup_actions.list_backups(session.api, session.namespace, volume)
        console.print_listing(
            output,
            headers=("BACKUP", "VOLUME", "FILES", "SIZE", "TIME", "TARGET", "SCHEDULE", "STATE"),
            rows=lambda: [
                [
                    row.backup or f"({row.name})",
                    row.volume,
                    "" if row.files is None else f"{row.files:,}",
                    "" if row.bytes is None else bytes_text(row.bytes),
                    row.at or (f"next {row.next}" if row.next else ""),
                    row.to,
                    row.schedule or "once",
                    row.state,
                ]
                for row in rows
            ],
            items=[msgspec.to_builtins(row) for row in rows],
            names=[row.backup for row in rows if row.backup],
            nothing=f"no backups in namespace {session.namespace}; create one:"
            ' moor volume backup NAME --schedule "0 3 * * *" --to s3://bucket/backups',
        )
        return 0

    return in_session(target, work)


@console.command(
    examples={
        "moor volume backups data": "find the name of a backup",
        "moor volume restore data-20260131-030000 --into data-restored": "bring its files back",
    }
)
@click.argument("backup")
@click.option(
    "--into", "volume", required=True, metavar="VOLUME", help="Volume to restore to; it must exist and be empty."
)
@click.option(
    "--force", is_flag=True, help="Also restore to a volume with files; files of the backup replace them."
)
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait for the end; exit with 1 if it failed."
)
@target_options
def restore(target: Target, backup: str, volume: str, force: bool, wait: bool) -> int:
    """Restore a backup to a volume. `moor volume backups` lists them."""

    async def work(session: Session) -> int:
        name, restore_id = await backup_actions.restore_backup(
            session.api, session.namespace, backup, volume, force=force
        )
        if not wait:
            console.show(f"{backup} is being restored to {volume}")
            return 0
        outcome = await _ended(
            session, lambda: backup_actions.restore_outcome(session.api, session.namespace, name, restore_id)
        )
        console.show(f"{backup} was restored to {volume}: {outcome.message}")
        return 0

    return in_session(target, work)


async def _ended(session: Session, look: Callable[[], Awaitable[Outcome | None]]) -> Outcome:
    """Wait for the outcome. Raises MoorageError if the backup or restore fails."""
    while (outcome := await look()) is None:
        await session.clock.sleep(LOOK_SECONDS)
    if outcome.error:
        raise MoorageError(outcome.error)
    return outcome
