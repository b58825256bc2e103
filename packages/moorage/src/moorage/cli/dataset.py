"""`moor dataset`: data that is stored once and read by many pods."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click
import msgspec

from moorage.actions import datasets
from moorage.api.datasets import Dataset, NewDataset
from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.cli.volume import note_pods
from moorage.filler.tree import Tree
from moorage.model.dataset import AUTO, FAILED, METHODS, READY
from moorage.present.credentials import secret_command
from moorage.present.sizes import bytes_text
from moorage.sdk.progress import Bar, Meter
from moorage_kube.errors import AlreadyExists, ApiError, MoorageError, UsageError
from moorage_kube.moments import format_duration
from moorage_kube.quantity import counted
from moorage_kube.resources import PVCS

LOOK_SECONDS = 1.0


@console.group(
    examples={
        "moor dataset create imagenet --source s3://datasets/imagenet --size 200Gi": "fill a dataset",
        "moor dataset list": "see whether it is ready",
        "moor run --dataset imagenet:/data -- python train.py": "read it in a run",
    }
)
def dataset() -> None:
    """Fill a volume once with data from anywhere; then any number of pods read it."""


@dataset.command(
    examples={
        "moor dataset create imagenet --source s3://datasets/imagenet --secret aws": "with the keys in Secret aws",
        "moor dataset create digits --source https://example.com/d.tar.gz --unpack": "from an archive",
        "moor dataset create photos --source ./photos": "from a folder of this machine",
        "moor dataset create splits --source volume:data/splits --reader vision": "from a volume, also for vision",
    }
)
@click.argument("name")
@click.option(
    "--source",
    required=True,
    metavar="SOURCE",
    help="s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, https://… (with / at its end: a folder), volume:NAME[/FOLDER],"
    " or a folder of this machine.",
)
@click.option("--size", default="10Gi", show_default=True, help="Size of the volume, such as 10Gi.")
@click.option("--storage-class", default="", help="StorageClass (default: the cluster's).")
@click.option(
    "--access",
    type=click.Choice(METHODS),
    default=AUTO,
    show_default=True,
    help="How nodes read it: shared (RWX), clone (RWO, cloned read-only), or auto (by the class).",
)
@click.option("--secret", default="", help="Secret of the namespace with the credentials for the source.")
@click.option("--anonymous", is_flag=True, help="Ask the object store without credentials.")
@click.option("--unpack", is_flag=True, help="The source is one archive (.tar, .tar.gz, .zip, …): unpack it.")
@click.option(
    "--reader", "readers", multiple=True, metavar="TENANT", help="Tenant that may also mount it. Repeatable."
)
@click.option("--wait", is_flag=True, help="Wait until it is ready, with its progress; exit with 1 if it failed.")
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
    """Create a dataset, and start to fill it."""
    is_here = is_folder_here(source)
    url = f"volume:{upload_name(name)}" if is_here else source_url(source)

    async def work(session: Session) -> int:
        # leave unset fields out, so that the defaults of the kind apply
        source_of = {"url": url, "secret": secret, "anonymous": anonymous, "unpack": unpack}
        wanted = {
            "source": {key: value for key, value in source_of.items() if value},
            "size": size,
            "storageClass": storage_class,
            "access": access if access != AUTO else "",
            "readers": list(dict.fromkeys(readers)),
        }
        request = NewDataset(
            name=name,
            namespace=session.namespace,
            spec={key: value for key, value in wanted.items() if value},
            dry_run=dry_run,
        )
        obj = datasets.plan_dataset(request, await session.user())
        # a dry run first, so that an invalid dataset is refused before files are copied
        if is_here and not dry_run:
            await datasets.create_dataset(session.api, obj, dry_run=True)  # refused before a file is copied
            await _upload(session, Path(source), name, size, storage_class)
        await datasets.create_dataset(session.api, obj, dry_run=dry_run)
        console.show_text(console.as_yaml(obj).rstrip("\n") if dry_run else name)
        if dry_run:
            return 0
        # a local folder is followed to its end, because the command must delete the uploaded volume
        if is_here:
            return await _follow_upload(session, name)
        if not wait:
            console.say(f"filling has started; show its progress: moor dataset show {name}")
            return 0
        return await _follow(session, name, secret)

    return in_session(target, work)


def source_url(source: str) -> str:
    """Return a typed URL, as the kind accepts it. Raises UsageError for a text without a known scheme."""
    if source.partition(":")[0] in ("s3", "gs", "https", "http", "volume"):
        return source
    raise UsageError(
        f"invalid --source {source!r}: it is neither a source nor a folder of this machine",
        hint="use s3://…, gs://…, https://…, volume:NAME[/FOLDER] or ./FOLDER",
    )


def is_folder_here(source: str) -> bool:
    """Whether a source is a folder of this machine, instead of a URL."""
    return source.partition(":")[0] not in ("s3", "gs", "https", "http", "volume") and Path(source).is_dir()


def upload_name(dataset: str) -> str:
    """Return the name of the volume for the upload of a local folder; it is deleted once the dataset is ready."""
    return f"dataset-{dataset}-upload"


async def _upload(session: Session, folder: Path, name: str, size: str, storage_class: str) -> None:
    """Copy a folder onto a separate volume; the same command after an interruption continues the copy.

    If the copy cannot start, the volume is deleted again, unless an earlier command created it.
    """
    from moorage.actions.directoryarchive import Credentials
    from moorage.cli.volumecp import copy_in, helper_runtime, note_credentials
    from moorage.decide.runs.claims import make_claim

    Credentials(folder)  # refuses a home folder, before anything is created
    _refuse_links(folder)
    runtime = await helper_runtime(session)
    user = await session.user()
    volume = upload_name(name)
    claim = make_claim(volume, session.namespace, size, user, storage_class=storage_class or None)
    is_new, has_started = False, False

    def start() -> None:
        nonlocal has_started
        has_started = True

    # an existing volume is from an earlier, interrupted command: continue with it
    with contextlib.suppress(AlreadyExists):
        await session.api.create(PVCS, claim, session.namespace)
        is_new = True
    try:
        result = await copy_in(session, str(folder), volume, runtime, on_start=start)
    # a copy that has begun can continue; a new, empty volume is of no use
    except BaseException:
        if has_started:
            console.note(
                f"volume {volume} has the files copied so far. Run the same command to continue; to cancel:"
                f" moor volume delete {volume}"
            )
        elif is_new:
            with contextlib.suppress(ApiError):
                await session.api.delete(PVCS, volume, session.namespace)
        raise
    console.say(
        f"{counted(result['files'], 'file')}, {bytes_text(result['bytes'])} sent; the dataset fills from them"
    )
    note_credentials(result)


def _refuse_links(folder: Path) -> None:
    """Raise UsageError if a folder contains links or special files, since they are not copied."""
    left_out = [entry.path for entry in Tree(folder).walk() if entry.kind in ("link", "other")]
    if left_out:
        raise UsageError(
            f"{folder} has {len(left_out):,} links or special files in it, such as {left_out[0]!r};"
            " they cannot be copied",
            hint="replace links with their files: cp -rL FOLDER COPY",
        )


async def _follow_upload(session: Session, name: str) -> int:
    """Wait until the dataset is filled from the uploaded volume, then delete that volume."""
    volume = upload_name(name)
    try:
        code = await _follow(session, name)
    except BaseException:
        console.note(
            f"volume {volume} keeps the uploaded files; when the dataset does not need them:"
            f" moor volume delete {volume}"
        )
        raise
    await session.api.delete(PVCS, volume, session.namespace)
    return code


def _way_out(dataset: Dataset, secret: str) -> str:
    """Return how to fix a failed fill."""
    refill = f"moor dataset refill {dataset.name}"
    if dataset.reason != "SourceDenied":
        return f"fix the cause, then run: {refill}"
    if secret:
        return f"correct the keys in Secret {secret!r}, then run: {refill}"
    command = secret_command(f"{dataset.name}-keys", dataset.namespace, dataset.source)
    return (
        f"create a Secret: {command}\nthen delete the dataset and create it with --secret {dataset.name}-keys:"
        f" moor dataset delete {dataset.name}"
    )


def _phase_text(dataset: Dataset) -> str:
    """The phase and its message, else its reason; a reason that only repeats the phase is left out."""
    why = dataset.message or ("" if dataset.reason == dataset.phase else dataset.reason)
    return f"{dataset.phase}: {why}" if why else dataset.phase


async def _follow(session: Session, name: str, secret: str = "") -> int:
    """Wait until the dataset is ready; print each phase and reason, and progress on a terminal.

    Raises MoorageError if the fill fails.
    """
    printed = ("", "")
    with Bar(clock=session.clock) as bar:
        meter = Meter(bar, clock=session.clock)
        while True:
            dataset = await datasets.get_dataset(session.api, session.namespace, name)
            if (dataset.phase, dataset.reason) != printed:
                printed = (dataset.phase, dataset.reason)
                bar.end_line()
                console.say(_phase_text(dataset))
            if dataset.phase == READY:
                return 0
            if dataset.phase == FAILED:
                raise MoorageError(
                    f"dataset {name!r} failed: {dataset.reason}: {dataset.message}",
                    hint=_way_out(dataset, secret),
                )
            if (progress := dataset.progress) is not None:
                meter.set(
                    files=progress.files,
                    size=progress.bytes,
                    files_total=progress.files_total,
                    bytes_total=progress.bytes_total,
                )
            await session.clock.sleep(LOOK_SECONDS)


@dataset.command(
    "list",
    examples={
        "moor dataset list": "your datasets, and those shared with you",
        "moor dataset list -o json": "the same for a program",
    },
)
@console.output_option
@target_options
def list_(target: Target, output: str) -> int:
    """List the datasets of a namespace, and those that others share with it."""

    async def work(session: Session) -> int:
        rows, _ = await datasets.list_datasets(session.api, session.namespace)
        now = session.clock.now()

        def name_of(row: Dataset) -> str:
            return row.name if row.namespace == session.namespace else f"{row.namespace}/{row.name}"

        console.print_listing(
            output,
            headers=("NAME", "PHASE", "FILES", "SIZE", "SOURCE", "OWNER", "IN-USE", "AGE"),
            rows=lambda: [
                [
                    name_of(row),
                    row.phase,
                    "" if row.files is None else f"{row.files:,}",
                    "" if row.bytes is None else bytes_text(row.bytes),
                    row.source,
                    row.owner,
                    str(sum(1 for use in row.used_by if use.active)) if row.used_by else "",
                    format_duration(now - row.created) if row.created else "",
                ]
                for row in rows
            ],
            items=[msgspec.to_builtins(row) for row in rows],
            names=[name_of(row) for row in rows],
            nothing=f"no datasets in namespace {session.namespace}; create one:"
            " moor dataset create photos --source s3://bucket/photos",
        )
        return 0

    return in_session(target, work)


@dataset.command(
    examples={
        "moor dataset show imagenet": "its progress, contents and readers",
        "moor dataset show imagenet -o yaml": "the same for a program",
    }
)
@click.argument("name", shell_complete=complete("datasets"))
@click.option(
    "-o", "--output", type=click.Choice(("text", "json", "yaml")), default="text", show_default=True,
    help="Output format.",
)  # fmt: skip
@target_options
def show(target: Target, name: str, output: str) -> int:
    """Show a dataset: progress, contents, the teams that may read it, the runs and pods that used it."""

    async def work(session: Session) -> int:
        item = await datasets.get_dataset(session.api, session.namespace, name)
        if output != "text":
            console.print_document(msgspec.to_builtins(item), output)
            return 0
        rows = [
            ("name", item.name),
            ("phase", f"{item.phase} ({item.reason})" if item.reason not in ("", item.phase) else item.phase),
            ("", item.message),
            ("source", item.source),
            ("files", "" if item.files is None else f"{item.files:,}"),
            ("size", "" if item.bytes is None else f"{bytes_text(item.bytes)} of {item.size}"),
            ("sha256", item.checksum),
            ("filled", f"{item.filled_at} in {counted(item.attempts, 'attempt')}" if item.filled_at else ""),
            ("volume", f"{item.claim} ({item.access})" if item.claim else ""),
            ("owner", item.owner),
        ]
        for reader in item.readers:
            state = "may read it" if reader.ready else reader.message or "not yet"
            rows.append(("reader", f"{reader.tenant}: {state}"))
        for use in item.used_by:
            rows.append(("used by", f"{use.namespace}/{use.name}" + (" (now)" if use.active else "")))
        for label, text in rows:
            if text:
                console.show(f"{label + ':' if label else '':<9} {text}")
        return 0

    return in_session(target, work)


@dataset.command(
    examples={
        "moor dataset delete old-splits": "delete a dataset, after a question",
        "moor dataset delete old-splits --yes": "delete it without a question",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("datasets"))
@click.option("--force", is_flag=True, help="Also delete datasets in use: print the affected pods, and stop them.")
@click.option("--yes", is_flag=True, help="Do not ask. All their files are lost.")
@target_options
def delete(target: Target, names: tuple[str, ...], force: bool, yes: bool) -> int:
    """Delete datasets with their volumes. Datasets in use need --force."""

    async def work(session: Session) -> int:
        chosen = list(dict.fromkeys(names))
        losers = await datasets.check_delete(session.api, session.namespace, chosen, force=force)
        for name, users in losers.items():
            for user in users.here:
                console.note(f"{user} uses the dataset {name} and is stopped")
            for user in users.elsewhere:
                console.note(f"{user} uses the dataset {name} and can no longer read it")
            if users.elsewhere:
                console.note(f"{name} is deleted when its readers in other namespaces have ended")
        if not yes:
            console.confirm(f"Delete {', '.join(chosen)} and all files in them?")
        for name in chosen:
            pods = await datasets.delete_dataset(session.api, session.namespace, name, force=force)
            console.show(f"{name} deleted")
            note_pods(pods, f"dataset {name}")
        return 0

    return in_session(target, work)


@dataset.command(
    examples={
        "moor dataset refill imagenet": "fill it again after its source changed",
        "moor dataset show imagenet": "see its progress",
    }
)
@click.argument("name", shell_complete=complete("datasets"))
@target_options
def refill(target: Target, name: str) -> int:
    """Start a fill again after it failed, or after its source changed."""

    async def work(session: Session) -> int:
        await datasets.refill_dataset(session.api, session.namespace, name, session.clock.now())
        console.show(f"{name} is being filled again")
        return 0

    return in_session(target, work)


@dataset.command(
    examples={
        "moor dataset share imagenet --with vision": "let another tenant mount it",
        "moor dataset share imagenet --without vision": "no longer",
    }
)
@click.argument("name", shell_complete=complete("datasets"))
@click.option("--with", "more", multiple=True, metavar="TENANT", help="Let this tenant mount it. Repeatable.")
@click.option(
    "--without", "fewer", multiple=True, metavar="TENANT", help="No longer let this tenant mount it. Repeatable."
)
@target_options
def share(target: Target, name: str, more: tuple[str, ...], fewer: tuple[str, ...]) -> int:
    """Set which other tenants may read a dataset."""
    if not more and not fewer:
        raise UsageError("tenant missing: use --with TENANT or --without TENANT")

    async def work(session: Session) -> int:
        readers = await datasets.change_readers(session.api, session.namespace, name, add=more, remove=fewer)
        console.show(f"{name} can be read by {', '.join(readers) or 'its own namespace alone'}")
        return 0

    return in_session(target, work)
