"""`moor volume`: persistent volume claims, under their usual name."""

from __future__ import annotations

import click
import msgspec

from moorage.actions import volumes
from moorage.actions.volumes import PodsEnded
from moorage.api.volumes import NewVolume, VolumeList
from moorage.cli import console, volumebackup, volumecp
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.model.storageclass import RWO, RWX, SHORT
from moorage.present.sizes import bytes_text
from moorage_kube.errors import ApiError, NotReady
from moorage_kube.moments import format_duration
from moorage_kube.quantity import parse_quantity

MODES = {"rwo": RWO, "rwx": RWX}
NAMED = 5  # pods in a message; the others are counted


@console.group(
    examples={
        "moor volume create data --size 50Gi": "create a volume",
        "moor volume cp ./images data:/images": "copy files to it",
        "moor run --volume data:/data -- python train.py": "use it in a run",
    }
)
def volume() -> None:
    """Create, list, resize and delete volumes; back them up."""


@volume.command(
    examples={
        "moor volume create data --size 50Gi": "create a volume for one node at a time",
        "moor volume create shared --size 1Ti --access-mode rwx": "create one for many nodes",
        "moor volume classes": "see which classes there are",
    }
)
@click.argument("name")
@click.option("--size", default="10Gi", show_default=True, help="Size, such as 10Gi.")
@click.option(
    "--access-mode",
    type=click.Choice([*MODES.values(), *MODES]),
    default=RWO,
    show_default=True,
    help="ReadWriteOnce: mounted on one node at a time; ReadWriteMany: on many. In short: rwo, rwx.",
)
@click.option("--storage-class", default=None, help="StorageClass (default: the cluster's).")
@click.option("--dry-run", is_flag=True, help="Print the manifest; create nothing.")
@target_options
def create(
    target: Target, name: str, size: str, access_mode: str, storage_class: str | None, dry_run: bool
) -> int:
    """Create a volume."""

    async def work(session: Session) -> int:
        request = NewVolume(
            name=name,
            namespace=session.namespace,
            size=size,
            access_mode=MODES.get(access_mode, access_mode),
            storage_class=storage_class or "",
        )
        claim = volumes.plan_volume(request, await session.user())
        await volumes.create_volume(session.api, claim, dry_run=dry_run)
        console.show_text(console.as_yaml(claim).rstrip("\n") if dry_run else name)
        return 0

    return in_session(target, work)


@volume.command(
    "list",
    examples={
        "moor volume list": "the volumes of your namespace",
        "moor volume list -n lab -o name": "the names of those of another one",
    },
)
@console.output_option
@target_options
def list_(target: Target, output: str) -> int:
    """List the volumes of a namespace."""

    async def work(session: Session) -> int:
        rows, _ = await volumes.list_volumes(session.api, session.namespace, await used_bytes(session))
        items = [msgspec.to_builtins(row) for row in rows]
        now = session.clock.now()
        console.print_listing(
            output,
            headers=("NAME", "SIZE", "USED", "MODE", "STATE", "OWNER", "USED-BY", "AGE"),
            rows=lambda: [
                [
                    row.name,
                    row.size,
                    "" if row.used_bytes is None else bytes_text(row.used_bytes),
                    ",".join(row.modes),
                    row.state,
                    row.owner,
                    ", ".join(row.used_by),
                    format_duration(now - row.created) if row.created else "",
                ]
                for row in rows
            ],
            items=items,
            names=[row.name for row in rows],
            nothing=f"no volumes in namespace {session.namespace}; create one:"
            " moor volume create data --size 10Gi",
        )
        return 0

    return in_session(target, work)


@volume.command(
    examples={
        "moor volume delete scratch": "delete a volume, after a question",
        "moor volume delete scratch --yes": "delete it without a question",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("volumes"))
@click.option("--force", is_flag=True, help="Also delete volumes in use: print the affected pods, and stop them.")
@click.option("--yes", is_flag=True, help="Do not ask. All their files are lost.")
@target_options
def delete(target: Target, names: tuple[str, ...], force: bool, yes: bool) -> int:
    """Delete volumes and all their files. Volumes in use need --force."""

    async def work(session: Session) -> int:
        chosen = list(dict.fromkeys(names))
        losers = await volumes.check_delete(session.api, session.namespace, chosen, force=force)
        for name, users in losers.items():
            for user in users:
                console.note(f"{user} uses volume {name}: its pods are stopped, and cannot start again")
        if not yes:
            console.confirm(f"Delete {', '.join(chosen)} and all files on them?")
        for name in chosen:
            pods = await volumes.delete_volume(session.api, session.namespace, name, force=force)
            note_pods(pods, f"volume {name}")
            console.show(f"{name} deleted")
        return 0

    return in_session(target, work)


def note_pods(pods: PodsEnded, held: str) -> None:
    """Report the pods that held a deleted volume or dataset."""
    if pods.ended:
        more = f" and {len(pods.ended) - NAMED} more" if len(pods.ended) > NAMED else ""
        console.note(f"pods that held {held} are deleted: {', '.join(pods.ended[:NAMED])}{more}")
    for pod, reason in pods.kept.items():
        console.note(f"pod {pod} still holds {held}: {reason}")


@volume.command(
    examples={
        "moor volume resize data 100Gi": "make a volume larger",
        "moor volume list": "see its size now",
    }
)
@click.argument("name", shell_complete=complete("volumes"))
@click.argument("size")
@target_options
def resize(target: Target, name: str, size: str) -> int:
    """Make a volume larger. Volumes cannot become smaller."""
    volumes.parse_size(size)

    async def work(session: Session) -> int:
        _, before = await volumes.resize_volume(session.api, session.namespace, name, size)
        if parse_quantity(size) == parse_quantity(before):
            console.show(f"{name} already has {before}")
        else:
            console.show(f"{name} is being resized from {before} to {size}")
        return 0

    return in_session(target, work)


@volume.command(
    examples={
        "moor volume classes": "which StorageClasses there are",
        "moor volume create data --storage-class fast": "create a volume of one of them",
    }
)
@console.output_option
@target_options
def classes(target: Target, output: str) -> int:
    """List the StorageClasses for volumes, and the abilities of their volumes."""

    async def work(session: Session) -> int:
        rows = await volumes.list_storage_classes(session.api)
        console.print_listing(
            output,
            headers=("NAME", "MODES", "EXPANDABLE", "DATASETS", "PROVISIONER"),
            rows=lambda: [
                [
                    row.name + (" (default)" if row.default else ""),
                    "?" if row.modes is None else ",".join(SHORT.get(mode, mode) for mode in row.modes),
                    "yes" if row.expands else "no",
                    row.datasets,
                    row.provisioner,
                ]
                for row in rows
            ],
            items=[msgspec.to_builtins(row) for row in rows],
            names=[row.name for row in rows],
            nothing="this cluster has no StorageClass: an administrator creates the volumes",
        )
        return 0

    return in_session(target, work)


async def used_bytes(session: Session) -> dict[tuple[str, str], int]:
    """The used bytes of mounted volumes by (namespace, claim), from Moorage's server; empty without a server."""
    try:
        answer = await session.server.ask(
            VolumeList, "GET", "/api/v1/volumes", params={"namespace": session.namespace}
        )
    except (ApiError, NotReady):
        return {}
    return {(row.namespace, row.name): row.used_bytes for row in answer.volumes if row.used_bytes is not None}


for _command in (volumebackup.backup, volumebackup.backups, volumebackup.restore, volumecp.cp):
    volume.add_command(_command)
