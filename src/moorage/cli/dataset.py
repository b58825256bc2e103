"""`moor dataset`: data that is filled once and read everywhere."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from moorage.actions.volumes import end_pods, pods_with
from moorage.apimachinery.meta import condition, labels_of
from moorage.apimachinery.moments import format_duration, moment
from moorage.apimachinery.quantity import parse_quantity
from moorage.apimachinery.resources import PVCS, Obj
from moorage.cli import console
from moorage.cli.session import Session, Target, get_named, in_session, target_options
from moorage.errors import AlreadyExists, Conflict, MoorageError, NotFound, UsageError
from moorage.model.dataset import (
    AUTO,
    DATASET_OF_LABEL,
    DATASETS,
    FAILED,
    METHODS,
    NAME_MAX,
    READY,
    REFILL_ANNOTATION,
    claim_name,
    clone_name,
    dataset_json,
    make_dataset,
    parse_dataset,
)
from moorage.model.names import RUN_LABEL, is_dns_label, label_value

LOOK_SECONDS = 1.0
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@click.group()
def dataset() -> None:
    """Fill a volume once with data from anywhere; then any number of pods read it."""


@dataset.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    required=True,
    metavar="SOURCE",
    help="s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, https://… (with / at its end: a folder), volume:NAME[/FOLDER],"
    " or a folder of this machine.",
)
@click.option("--size", default="10Gi", show_default=True, help="How much the volume holds.")
@click.option("--class", "storage_class", default="", help="StorageClass (default: the cluster's).")
@click.option(
    "--access",
    type=click.Choice(METHODS),
    default=AUTO,
    show_default=True,
    help="How many nodes come to read it: shared (RWX), clone (RWO, cloned read-only); auto: by the class.",
)
@click.option("--secret", default="", help="Secret with what lets the filler in at the source.")
@click.option("--anonymous", is_flag=True, help="Ask the object store without credentials.")
@click.option("--unpack", is_flag=True, help="The source is one archive (.tar, .tar.gz, .zip, …): unpack it.")
@click.option("--reader", "readers", multiple=True, metavar="TENANT", help="May mount it too. May repeat.")
@click.option("--wait", is_flag=True, help="Wait until it is ready, with its progress; 1 when it failed.")
@click.option("--dry-run", is_flag=True, help="Print the manifest; create nothing.")
@target_options
def create(
    target: Target,
    name: str,
    source: str,
    size: str,
    storage_class: str,
    access: str,
    secret: str,
    anonymous: bool,
    unpack: bool,
    readers: tuple[str, ...],
    wait: bool,
    dry_run: bool,
) -> int:
    """Make a dataset, which begins to fill at once."""
    if not is_dns_label(name) or len(name) > NAME_MAX:
        raise UsageError(f"{name!r} is no dataset name: at most {NAME_MAX} of a-z, 0-9 and '-'")
    if parse_quantity(size) <= 0:
        raise UsageError(f"--size: {size!r} is not more than zero")
    is_here = is_folder_here(source)
    url = f"volume:{upload_name(name)}" if is_here else source_url(source)

    async def work(session: Session) -> int:
        user = await session.user()
        obj = make_dataset(
            name,
            session.namespace,
            url=url,
            size=size,
            user=user,
            owner_label=label_value(user),
            secret=secret,
            anonymous=anonymous,
            unpack=unpack,
            storage_class=storage_class,
            access=access,
            readers=tuple(dict.fromkeys(readers)),
        )
        faults = parse_dataset(obj).faults
        if faults:
            one = faults[0]
            raise UsageError(f"{_option_of(one.field)}: {one.value!r} {one.message}")
        if is_here and not dry_run:
            await _upload(session, source, name, size, storage_class)
        try:
            await session.api.create(DATASETS, obj, session.namespace, dry_run=dry_run)
        except AlreadyExists as error:
            raise AlreadyExists(
                f"the dataset {name!r} exists already in namespace {session.namespace}",
                hint=f"`moor dataset show {name}` shows it",
            ) from error
        console.show(console.as_yaml(obj).rstrip("\n") if dry_run else name)
        if dry_run:
            return 0
        if is_here:
            code = await _follow(session, name)
            await session.api.delete(PVCS, upload_name(name), session.namespace)
            return code
        if not wait:
            console.say(f"it fills now; see how far it is: moor dataset show {name}")
            return 0
        return await _follow(session, name)

    return in_session(target, work)


def source_url(source: str) -> str:
    """What was typed, as the kind takes it. Raises UsageError for what is neither."""
    if source.partition(":")[0] in ("s3", "gs", "https", "http", "volume"):
        return source
    raise UsageError(
        f"--from: {source!r} is neither a source nor a folder of this machine",
        hint="write s3://…, gs://…, https://…, volume:NAME[/FOLDER] or ./FOLDER",
    )


def is_folder_here(source: str) -> bool:
    """Whether it names a folder of this machine, and no source by its scheme."""
    return source.partition(":")[0] not in ("s3", "gs", "https", "http", "volume") and Path(source).is_dir()


def upload_name(dataset: str) -> str:
    """The volume by which a folder of this machine comes; it goes once the dataset is ready."""
    return f"dataset-{dataset}-upload"


async def _upload(session: Session, folder: str, name: str, size: str, storage_class: str) -> None:
    """Copy a folder onto a passing volume; the same command after a break goes on with it."""
    from moorage.cli.volumecp import copy_in
    from moorage.decide.runs.claims import make_claim

    user = await session.user()
    claim = make_claim(upload_name(name), session.namespace, size, user, storage_class=storage_class or None)
    with contextlib.suppress(AlreadyExists):
        await session.api.create(PVCS, claim, session.namespace)
    with contextlib.suppress(NotFound):
        await session.api.get(DATASETS, name, session.namespace)
        return  # told by what comes next: the dataset exists
    result = await copy_in(session, folder, upload_name(name))
    if result.get("left_out"):
        raise UsageError(
            f"{folder} has {result['left_out']:,} links in it, which are not copied",
            hint="put files in their places: cp -rL",
        )
    console.say(f"{result['files']:,} files, {bytes_text(result['bytes'])} sent; the dataset fills from them")


def _option_of(field: str) -> str:
    return {
        "metadata.name": "NAME",
        "spec.size": "--size",
        "spec.source.url": "--from",
        "spec.readers": "--reader",
    }.get(field, field)


async def _follow(session: Session, name: str) -> int:
    """Tell how far it is until it is ready (0) or has failed (1)."""
    told = ""
    while True:
        obj = await get_named(session, DATASETS, "dataset", name)
        status = obj.get("status") or {}
        word = condition(obj, "Ready") or {}
        text = f"{status.get('phase') or 'Pending'}: {word.get('message') or word.get('reason') or ''}".rstrip(
            ": "
        )
        if text != told:
            told = text
            console.say(text)
        if status.get("phase") == READY:
            return 0
        if status.get("phase") == FAILED:
            raise MoorageError(
                f"the dataset {name!r} failed: {word.get('reason')}: {word.get('message')}",
                hint=f"mend the cause, then: moor dataset refill {name}",
            )
        await session.clock.sleep(LOOK_SECONDS)


@dataset.command("list")
@console.output_option
@target_options
def list_(target: Target, output: str) -> int:
    """List the datasets of a namespace, and those that others share with it."""

    async def work(session: Session) -> int:
        found = (await session.api.list(DATASETS, session.namespace)).items
        shared = (await session.api.list(PVCS, session.namespace, label_selector=DATASET_OF_LABEL)).items
        items = [dataset_json(one) for one in found] + [shared_json(one) for one in shared]
        now = session.clock.now()
        console.print_listing(
            output,
            headers=("NAME", "PHASE", "FILES", "SIZE", "SOURCE", "OWNER", "IN-USE", "AGE"),
            rows=lambda: [
                [
                    one["name"],
                    one["phase"],
                    "" if one["files"] is None else f"{one['files']:,}",
                    "" if one["bytes"] is None else bytes_text(one["bytes"]),
                    one["source"],
                    one["owner"],
                    str(sum(1 for use in one["usedBy"] if use.get("active"))) if one["usedBy"] else "",
                    format_duration(now - created) if (created := moment(one["created"])) else "",
                ]
                for one in items
            ],
            items=items,
            names=[one["name"] for one in items],
            nothing=f"no datasets in namespace {session.namespace}; make one:"
            " moor dataset create photos --from s3://bucket/photos",
        )
        return 0

    return in_session(target, work)


def shared_json(claim: Obj) -> dict[str, Any]:
    """A dataset of another namespace, of which only the claim is seen here."""
    labels, meta = labels_of(claim), claim["metadata"]
    bound = (claim.get("status") or {}).get("phase") == "Bound"
    empty = dict.fromkeys(("files", "bytes", "checksum", "progress", "filledAt"))
    return {
        "name": f"{labels[DATASET_OF_LABEL]}/{labels.get('moorage.dev/dataset', '')}",
        "namespace": labels[DATASET_OF_LABEL],
        "phase": "Ready" if bound else "Pending",
        "reason": "Shared",
        "message": "",
        **empty,
        "source": "",
        "size": str(((claim.get("status") or {}).get("capacity") or {}).get("storage") or ""),
        "class": "",
        "access": "shared",
        "claim": meta["name"],
        "attempts": 0,
        "owner": "",
        "readers": [],
        "usedBy": [],
        "created": meta.get("creationTimestamp"),
    }


@dataset.command()
@click.argument("name")
@click.option(
    "-o", "--output", type=click.Choice(("text", "json", "yaml")), default="text", show_default=True,
    help="What to print.",
)  # fmt: skip
@target_options
def show(target: Target, name: str, output: str) -> int:
    """Show a dataset: how far it is, what is in it, who may read it, who used it."""

    async def work(session: Session) -> int:
        one = dataset_json(await get_named(session, DATASETS, "dataset", name))
        if output != "text":
            console.print_document(one, output)
            return 0
        rows = [
            ("name", one["name"]),
            ("phase", f"{one['phase']} ({one['reason']})" if one["reason"] else one["phase"]),
            ("", one["message"]),
            ("source", one["source"]),
            ("files", "" if one["files"] is None else f"{one['files']:,}"),
            ("size", "" if one["bytes"] is None else f"{bytes_text(one['bytes'])} of {one['size']}"),
            ("sha256", one["checksum"] or ""),
            ("filled", f"{one['filledAt']} in {one['attempts']} attempts" if one["filledAt"] else ""),
            ("volume", f"{one['claim']} ({one['access']})" if one["claim"] else ""),
            ("owner", one["owner"]),
        ]
        for reader in one["readers"]:
            state = "may read it" if reader.get("ready") else reader.get("message") or "not yet"
            rows.append(("reader", f"{reader['tenant']}: {state}"))
        for use in one["usedBy"]:
            rows.append(("used by", f"{use['namespace']}/{use['name']}" + (" (now)" if use.get("active") else "")))
        for label, text in rows:
            if text:
                console.show(f"{label + ':' if label else '':<9} {text}")
        return 0

    return in_session(target, work)


@dataset.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--force", is_flag=True, help="Also when it is in use: what breaks is told, and its pods end.")
@click.option("--yes", is_flag=True, help="Do not ask; what is in them is lost.")
@target_options
def delete(target: Target, names: tuple[str, ...], force: bool, yes: bool) -> int:
    """Delete datasets with their volumes. Datasets in use are refused."""

    async def work(session: Session) -> int:
        chosen = list(dict.fromkeys(names))
        pods: list[Obj] = []
        for name in chosen:
            obj = await get_named(session, DATASETS, "dataset", name)
            here = await pods_with(session.api, session.namespace, {claim_name(name), clone_name(name)})
            far = [
                f"{one['namespace']}/{one['name']}"
                for one in (obj.get("status") or {}).get("usedBy") or ()
                if one.get("active") and one["namespace"] != session.namespace
            ]
            using = [_user_of(pod) for pod in here] + far
            if using and not force:
                raise Conflict(
                    f"the dataset {name!r} is in use by {', '.join(dict.fromkeys(using))}",
                    hint="wait for them, or take it away from them: --force",
                )
            for one in dict.fromkeys(using):
                console.note(f"{one} loses the dataset {name}" + (": it ends" if one not in far else ""))
            if far:
                console.note(f"{name} goes when its readers in other namespaces have ended")
            pods += here
        if not yes:
            click.confirm(f"delete {', '.join(chosen)} and all that is in them?", abort=True, err=True)
        for name in chosen:
            await session.api.delete(DATASETS, name, session.namespace)
            console.show(f"{name} deleted")
        for pod, reason in (await end_pods(session.api, pods)).kept.items():
            console.note(f"pod {pod} goes on: {reason}")
        return 0

    return in_session(target, work)


@dataset.command()
@click.argument("name")
@target_options
def refill(target: Target, name: str) -> int:
    """Begin a fill anew that failed, or whose source changed meanwhile."""

    async def work(session: Session) -> int:
        obj = await get_named(session, DATASETS, "dataset", name)
        if (obj.get("status") or {}).get("phase") == READY:
            raise Conflict(
                f"the dataset {name!r} is ready, and does not change any more",
                hint="make another: moor dataset create",
            )
        patch = {"metadata": {"annotations": {REFILL_ANNOTATION: session.clock.now().isoformat()}}}
        await session.api.patch(DATASETS, name, patch, session.namespace)
        console.show(f"{name} is filled anew")
        return 0

    return in_session(target, work)


@dataset.command()
@click.argument("name")
@click.option("--with", "more", multiple=True, metavar="TENANT", help="May mount it from now on. May repeat.")
@click.option("--without", "fewer", multiple=True, metavar="TENANT", help="May not any more. May repeat.")
@target_options
def share(target: Target, name: str, more: tuple[str, ...], fewer: tuple[str, ...]) -> int:
    """Say which tenants may read a dataset beside its own."""
    if not more and not fewer:
        raise UsageError("say whom: --with TENANT, --without TENANT")

    async def work(session: Session) -> int:
        obj = await get_named(session, DATASETS, "dataset", name)
        readers = [one for one in (obj.get("spec") or {}).get("readers") or () if one not in fewer]
        readers += [one for one in dict.fromkeys(more) if one not in readers]
        patch = {
            "metadata": {"resourceVersion": obj["metadata"]["resourceVersion"]},
            "spec": {"readers": readers},
        }
        await session.api.patch(DATASETS, name, patch, session.namespace)
        console.show(f"{name} is read by {', '.join(readers) or 'its own namespace alone'}")
        return 0

    return in_session(target, work)


def _user_of(pod: Obj) -> str:
    return labels_of(pod).get(RUN_LABEL) or str(pod["metadata"]["name"])


def bytes_text(size: int) -> str:
    """A size for people: "4.7 GiB"."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {UNITS[unit]}" if unit else f"{size} B"
