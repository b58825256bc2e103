"""`moor volume`: persistent volume claims, under the name everybody uses for them."""

from __future__ import annotations

from typing import Any

import click

from moorage.apimachinery.meta import annotations_of, labels_of
from moorage.apimachinery.moments import format_duration, moment
from moorage.apimachinery.quantity import parse_quantity
from moorage.apimachinery.resources import PODS, PVCS, Obj
from moorage.apimachinery.scheduling import parse_pod
from moorage.cli import console
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.decide.runs import make_claim
from moorage.errors import AlreadyExists, Conflict, InvalidName, NotFound, UsageError
from moorage.model.names import OWNER_ANNOTATION, OWNER_LABEL, RUN_LABEL, is_dns_label

MODES = {"rwo": "ReadWriteOnce", "rwx": "ReadWriteMany"}


@click.group()
def volume() -> None:
    """Create, list and delete volumes."""


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
        click.echo(console.as_yaml(claim).rstrip("\n") if dry_run else name)
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
        items = [_volume_json(claim, users) for claim in claims]
        now = session.clock.now()
        console.print_listing(
            output,
            headers=("NAME", "SIZE", "MODE", "STATE", "OWNER", "USED-BY", "AGE"),
            rows=lambda: [
                [
                    item["name"],
                    item["size"],
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
@click.option("--yes", is_flag=True, help="Do not ask; what is on them is lost.")
@target_options
def delete(target: Target, names: tuple[str, ...], yes: bool) -> int:
    """Delete volumes and what is on them. Volumes in use are refused."""

    async def work(session: Session) -> int:
        users = await _users(session)
        chosen = list(dict.fromkeys(names))
        for name in chosen:
            try:
                await session.api.get(PVCS, name, session.namespace)
            except NotFound as error:
                raise NotFound(
                    f"there is no volume {name!r} in namespace {session.namespace}",
                    hint="`moor volume list` shows them",
                ) from error
            if using := users.get(name):
                raise Conflict(f"the volume {name!r} is in use by {', '.join(using)}", hint="cancel that first")
        if not yes:
            click.confirm(f"delete {', '.join(chosen)} and all that is on them?", abort=True, err=True)
        for name in chosen:
            await session.api.delete(PVCS, name, session.namespace)
            click.echo(f"{name} deleted")
        return 0

    return in_session(target, work)


async def _users(session: Session) -> dict[str, list[str]]:
    """Volume → the runs and pods that use it now."""
    found: dict[str, set[str]] = {}
    for obj in (await session.api.list(PODS, session.namespace)).items:
        pod = parse_pod(obj)
        for claim in pod.claims:
            if not pod.finished:
                found.setdefault(claim, set()).add(pod.labels.get(RUN_LABEL) or pod.name)
    return {claim: sorted(users) for claim, users in found.items()}


def _volume_json(claim: Obj, users: dict[str, list[str]]) -> dict[str, Any]:
    meta, spec, status = claim["metadata"], claim.get("spec") or {}, claim.get("status") or {}
    asked = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    return {
        "name": meta["name"],
        "size": str((status.get("capacity") or {}).get("storage") or asked or ""),
        "modes": list(spec.get("accessModes") or ()),
        "class": spec.get("storageClassName") or "",
        "state": "Terminating" if meta.get("deletionTimestamp") else status.get("phase") or "Pending",
        "owner": annotations_of(claim).get(OWNER_ANNOTATION) or labels_of(claim).get(OWNER_LABEL) or "",
        "usedBy": users.get(meta["name"], []),
        "created": meta.get("creationTimestamp"),
    }
