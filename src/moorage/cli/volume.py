"""`moor volume`: persistent volume claims, under the name everybody uses for them."""

from __future__ import annotations

from typing import Any

import click

from moorage.apimachinery.meta import annotations_of, labels_of
from moorage.apimachinery.moments import format_duration, moment
from moorage.apimachinery.quantity import parse_quantity
from moorage.apimachinery.resources import PODS, PVCS, STORAGECLASSES, Obj
from moorage.apimachinery.scheduling import parse_pod
from moorage.cli import console, volumebackup, volumecp
from moorage.cli.dataset import bytes_text, end_pods
from moorage.cli.session import Session, Target, get_named, in_session, target_options
from moorage.decide.runs.job import make_claim
from moorage.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    InvalidName,
    NotFound,
    NotReady,
    UsageError,
)
from moorage.model.dataset import CLONE, SHARED
from moorage.model.names import OWNER_ANNOTATION, OWNER_LABEL, RUN_LABEL, is_dns_label
from moorage.model.storageclass import ROX, RWX, SHORT, ClassView, parse_class

MODES = {"rwo": "ReadWriteOnce", "rwx": "ReadWriteMany"}


@click.group()
def volume() -> None:
    """Create, list, resize and delete volumes; back them up."""


@volume.command()
@click.argument("name")
@click.option("--size", default="10Gi", show_default=True, help="How much it holds.")
@click.option(
    "--mode",
    type=click.Choice(list(MODES)),
    default="rwo",
    show_default=True,
    help="rwo: mounted on one node at a time; rwx: on many.",
)
@click.option("--class", "storage_class", default=None, help="StorageClass (default: the cluster's).")
@click.option("--dry-run", is_flag=True, help="Print the manifest; create nothing.")
@target_options
def create(target: Target, name: str, size: str, mode: str, storage_class: str | None, dry_run: bool) -> int:
    """Create a volume."""
    if not is_dns_label(name):
        raise InvalidName(
            f"{name!r} is no volume name: at most 63 of a-z, 0-9 and '-', with a letter or digit at both ends"
        )
    if parse_quantity(size) <= 0:
        raise UsageError(f"--size: {size!r} is not more than zero")

    async def work(session: Session) -> int:
        claim = make_claim(
            name, session.namespace, size, await session.user(), mode=MODES[mode], storage_class=storage_class
        )
        try:
            await session.api.create(PVCS, claim, session.namespace, dry_run=dry_run)
        except AlreadyExists as error:
            raise AlreadyExists(
                f"the volume {name!r} exists already in namespace {session.namespace}",
                hint="`moor volume list` shows it",
            ) from error
        console.show(console.as_yaml(claim).rstrip("\n") if dry_run else name)
        return 0

    return in_session(target, work)


@volume.command("list")
@console.output_option
@target_options
def list_(target: Target, output: str) -> int:
    """List the volumes of a namespace."""

    async def work(session: Session) -> int:
        claims = (await session.api.list(PVCS, session.namespace)).items
        users = await _users(session)
        used = await used_bytes(session)
        items = [_volume_json(claim, users, used) for claim in claims]
        now = session.clock.now()
        console.print_listing(
            output,
            headers=("NAME", "SIZE", "USED", "MODE", "STATE", "OWNER", "USED-BY", "AGE"),
            rows=lambda: [
                [
                    item["name"],
                    item["size"],
                    "" if item["usedBytes"] is None else bytes_text(item["usedBytes"]),
                    ",".join(item["modes"]),
                    item["state"],
                    item["owner"],
                    ", ".join(item["usedBy"]),
                    format_duration(now - created) if (created := moment(item["created"])) else "",
                ]
                for item in items
            ],
            items=items,
            names=[item["name"] for item in items],
            nothing=f"no volumes in namespace {session.namespace}; make one: moor volume create data --size 10Gi",
        )
        return 0

    return in_session(target, work)


@volume.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--force", is_flag=True, help="Also when they are in use: what breaks is told, and its pods end.")
@click.option("--yes", is_flag=True, help="Do not ask; what is on them is lost.")
@target_options
def delete(target: Target, names: tuple[str, ...], force: bool, yes: bool) -> int:
    """Delete volumes and what is on them. Volumes in use are refused."""

    async def work(session: Session) -> int:
        users = await _users(session)
        chosen = list(dict.fromkeys(names))
        for name in chosen:
            await get_named(session, PVCS, "volume", name)
            using = users.get(name, [])
            if using and not force:
                raise Conflict(
                    f"the volume {name!r} is in use by {', '.join(using)}",
                    hint="cancel that first, or take the volume away from it: --force",
                )
            for one in using:
                console.note(f"{one} loses the volume {name}: its pods end, and cannot start again with it")
        if not yes:
            click.confirm(f"delete {', '.join(chosen)} and all that is on them?", abort=True, err=True)
        for name in chosen:
            await session.api.delete(PVCS, name, session.namespace)  # it goes once no pod holds it
        await end_pods(session, await pods_with(session, set(chosen)) if force else [])
        for name in chosen:
            console.show(f"{name} deleted")
        return 0

    return in_session(target, work)


@volume.command()
@click.argument("name")
@click.argument("size")
@target_options
def resize(target: Target, name: str, size: str) -> int:
    """Make a volume larger. Volumes never become smaller."""
    wanted = parse_quantity(size)

    async def work(session: Session) -> int:
        claim = await get_named(session, PVCS, "volume", name)
        spec = claim.get("spec") or {}
        asked = str(((spec.get("resources") or {}).get("requests") or {}).get("storage") or "0")
        if wanted < parse_quantity(asked):
            raise UsageError(
                f"the volume {name!r} has {asked}, and no volume becomes smaller",
                hint="make another, and copy what is on it: moor volume create",
            )
        if wanted == parse_quantity(asked):
            console.show(f"{name} has {asked} already")
            return 0
        kind = str(spec.get("storageClassName") or "")
        try:
            found = parse_class(await session.api.get(STORAGECLASSES, kind)) if kind else None
        except (Forbidden, NotFound):
            found = None  # the API server knows, and refuses itself
        if found is not None and not found.expands:
            raise Conflict(
                f"the volume {name!r} cannot grow: its StorageClass {kind} does not allow it",
                hint="`moor volume classes` shows which do",
            )
        patch = {"spec": {"resources": {"requests": {"storage": size}}}}
        await session.api.patch(PVCS, name, patch, session.namespace)
        console.show(f"{name} grows from {asked} to {size}")
        return 0

    return in_session(target, work)


@volume.command()
@console.output_option
@target_options
def classes(target: Target, output: str) -> int:
    """List the kinds of storage that volumes can be made of."""

    async def work(session: Session) -> int:
        found = sorted(
            (parse_class(one) for one in (await session.api.list(STORAGECLASSES)).items), key=lambda one: one.name
        )
        items = [class_json(one) for one in found]
        console.print_listing(
            output,
            headers=("NAME", "MODES", "GROWS", "DATASETS", "PROVISIONER"),
            rows=lambda: [
                [
                    one["name"] + (" (default)" if one["default"] else ""),
                    "?" if one["modes"] is None else ",".join(SHORT.get(mode, mode) for mode in one["modes"]),
                    "yes" if one["expands"] else "no",
                    one["datasets"],
                    one["provisioner"],
                ]
                for one in items
            ],
            items=items,
            names=[one["name"] for one in items],
            nothing="this cluster has no StorageClass: an admin makes volumes by hand",
        )
        return 0

    return in_session(target, work)


def class_json(one: ClassView) -> dict[str, Any]:
    """A StorageClass as listings give it; `modes` null: not known."""
    how = "?" if one.modes is None else SHARED if RWX in one.modes else CLONE if ROX in one.modes else "no"
    return {
        "name": one.name,
        "default": one.default,
        "modes": None if one.modes is None else [mode for mode in SHORT if mode in one.modes],
        "expands": one.expands,
        "datasets": how,
        "provisioner": one.provisioner,
        "reclaimPolicy": one.reclaim,
    }


async def used_bytes(session: Session) -> dict[str, int]:
    """What stands on volumes that are mounted, as their nodes tell Moorage's server; empty without one."""
    try:
        body = await session.server.get("/api/v1/volumes", {"namespace": session.namespace})
    except (ApiError, NotReady):
        return {}
    return {
        str(one["name"]): int(one["usedBytes"])
        for one in (body or {}).get("volumes") or ()
        if one.get("usedBytes") is not None
    }


async def pods_with(session: Session, claims: set[str]) -> list[Obj]:
    """Pods of the namespace that mount one of the claims and have not ended."""
    found = []
    for obj in (await session.api.list(PODS, session.namespace)).items:
        pod = parse_pod(obj)
        if not pod.finished and claims & set(pod.claims):
            found.append(obj)
    return found


async def _users(session: Session) -> dict[str, list[str]]:
    """Volume → the runs and pods that use it now."""
    found: dict[str, set[str]] = {}
    for obj in (await session.api.list(PODS, session.namespace)).items:
        pod = parse_pod(obj)
        for claim in pod.claims:
            if not pod.finished:
                found.setdefault(claim, set()).add(pod.labels.get(RUN_LABEL) or pod.name)
    return {claim: sorted(users) for claim, users in found.items()}


def _volume_json(claim: Obj, users: dict[str, list[str]], used: dict[str, int]) -> dict[str, Any]:
    meta, spec, status = claim["metadata"], claim.get("spec") or {}, claim.get("status") or {}
    asked = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    return {
        "name": meta["name"],
        "size": str((status.get("capacity") or {}).get("storage") or asked or ""),
        "usedBytes": used.get(meta["name"]),
        "modes": list(spec.get("accessModes") or ()),
        "class": spec.get("storageClassName") or "",
        "state": "Terminating" if meta.get("deletionTimestamp") else status.get("phase") or "Pending",
        "owner": annotations_of(claim).get(OWNER_ANNOTATION) or labels_of(claim).get(OWNER_LABEL) or "",
        "usedBy": users.get(meta["name"], []),
        "created": meta.get("creationTimestamp"),
    }


for _command in (volumebackup.backup, volumebackup.backups, volumebackup.restore, volumecp.cp):
    volume.add_command(_command)
