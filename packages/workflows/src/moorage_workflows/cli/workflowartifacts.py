"""`moor workflow artifacts`: list and fetch the output files of steps."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import click

from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.client.files import replacing
from moorage.model.argo import is_step, step_path
from moorage.present.sizes import bytes_text
from moorage_kube.errors import NotFound, UsageError
from moorage_workflows.actions.workflows import get_workflow
from moorage_workflows.cli.workflowsession import ServerRecords
from moorage_workflows.decide.workflows.views import WorkflowView, view_workflow
from moorage_workflows.model.workflow import Artifact, NodeRecord


@console.group(
    examples={
        "moor workflow artifacts list @latest": "the artifacts of the newest workflow",
        "moor workflow artifacts get train-x7k2p train/model": "fetch an artifact",
    }
)
def artifacts() -> None:
    """List and fetch the artifacts of workflows."""


@artifacts.command(
    "list",
    examples={
        "moor workflow artifacts list train-x7k2p": "the artifacts of all steps, with their sizes",
        "moor workflow artifacts list @latest -o json": "those of the newest workflow, for a program",
    },
)
@click.argument("name", shell_complete=complete("workflows"))
@console.output_option
@target_options
def list_(target: Target, name: str, output: str) -> int:
    """List the artifacts of a workflow's steps."""

    async def work(session: Session) -> int:
        view = await _view(session, name)
        rows = [(step_path(node.name, view.name), artifact) for node, artifact in all_artifacts(view)]
        console.print_listing(
            output,
            headers=("ARTIFACT", "SIZE", "WHERE", "DIGEST"),
            rows=lambda: [
                [
                    f"{step}/{each.name}",
                    bytes_text(each.size_bytes) if each.size_bytes else "",
                    _where(each),
                    each.digest,
                ]
                for step, each in rows
            ],
            items=[
                {
                    "step": step,
                    "name": each.name,
                    "sizeBytes": each.size_bytes,
                    "key": each.key,
                    "digest": each.digest,
                    "deleted": each.is_deleted,
                }
                for step, each in rows
            ],
            names=[f"{step}/{each.name}" for step, each in rows],
            nothing=f"the steps of workflow {view.name} left no artifacts",
        )
        return 0

    return in_session(target, work)


@artifacts.command(
    examples={
        "moor workflow artifacts get train-x7k2p train/model": "into a file with the artifact's name",
        "moor workflow artifacts get @latest train/model --file model.tgz": "into another file",
        "moor workflow artifacts get @latest report/html --file - | less": "on stdout",
    }
)
@click.argument("name", shell_complete=complete("workflows"))
@click.argument("artifact", metavar="STEP/ARTIFACT")
@click.option("--file", "path", default="", metavar="FILE", help="File to write; - for stdout.")
@target_options
def get(target: Target, name: str, artifact: str, path: str) -> int:
    """Fetch an artifact. An archive comes as it is stored: a .tgz. A folder of files comes as a .tar."""
    step, slash, wanted = artifact.rpartition("/")
    if not slash or not step or not wanted:
        raise UsageError(
            f"invalid artifact {artifact!r}: use STEP/ARTIFACT",
            hint="list them: moor workflow artifacts list",
        )

    async def work(session: Session) -> int:
        view = await _view(session, name)
        node, chosen = find_artifact(view, step, wanted)
        where = "/".join(quote(part, safe="") for part in (view.namespace, view.name))
        url = f"/api/v1/workflows/{where}/artifacts/{quote(node.id, safe='')}/{quote(chosen.name, safe='')}"
        file = path or default_file(chosen)
        async with session.server.stream("GET", url) as parts:
            if file == "-":
                async for part in parts:
                    sys.stdout.buffer.write(part)
                return 0
            size = await _write(checked(Path(file)), parts)
        console.show(file)
        console.say(f"{bytes_text(size)} written")
        return 0

    return in_session(target, work)


def checked(file: Path) -> Path:
    """Return the path. Raises UsageError if the file exists."""
    if file.exists():
        raise UsageError(f"the file {file} exists", hint="name another: --file FILE")
    return file


async def _write(file: Path, parts: object) -> int:
    """Write a file completely or not at all. Returns its size in bytes."""
    size = 0
    with replacing(file, new=True) as stream:
        async for part in parts:  # type: ignore[attr-defined]
            stream.write(part)
            size += len(part)
    return size


async def _view(session: Session, name: str) -> WorkflowView:
    return view_workflow(await get_workflow(session.api, session.namespace, name, ServerRecords(session)))


def all_artifacts(view: WorkflowView) -> list[tuple[NodeRecord, Artifact]]:
    """The artifacts that each node produced itself; a template's own outputs are listed at their producer."""
    return [
        (node, artifact)
        for node in view.nodes
        if node.outputs is not None and node.pod_name
        for artifact in node.outputs.artifacts
    ]


def find_artifact(view: WorkflowView, step: str, name: str) -> tuple[NodeRecord, Artifact]:
    """Find an artifact of a step; the newest attempt with the artifact counts. Raises NotFound, UsageError."""
    known = [(step_path(node.name, view.name), node, artifact) for node, artifact in all_artifacts(view)]
    exact = [(path, node, each) for path, node, each in known if path == step and each.name == name]
    near = exact or [(path, node, each) for path, node, each in known if is_step(path, step) and each.name == name]
    if not near:
        shown = ", ".join(f"{path}/{each.name}" for path, _, each in known[:8])
        raise NotFound(
            f"workflow {view.name!r} has no artifact {f'{step}/{name}'!r}",
            hint=f"it has: {shown}" if shown else "its steps have none",
        )
    if len({path.rpartition("(")[0] for path, _, _ in near}) > 1:
        paths = ", ".join(path for path, _, _ in near[:8])
        raise UsageError(f"several steps are named {step!r}", hint=f"use one of: {paths}")
    _, node, artifact = near[-1]
    if artifact.is_deleted:
        raise NotFound(f"the artifact {name!r} of step {step!r} was deleted")
    return node, artifact


def default_file(artifact: Artifact) -> str:
    """The file name for an artifact: its name with the suffixes of its key; `.tar` for a folder."""
    stored = artifact.key.rpartition("/")[2]
    suffix = "".join(Path(stored).suffixes[-2:]) if stored else ""
    plain = Path(artifact.name).name or "artifact"
    if artifact.files:
        return f"{plain}.tar"
    return plain if not suffix or plain.endswith(suffix) else f"{plain}{suffix}"


def _where(artifact: Artifact) -> str:
    if artifact.is_deleted:
        return "deleted"
    kind = next(iter(artifact.location), "")
    place = artifact.location.get(kind)
    if isinstance(place, Mapping) and place.keys() == {"key"}:
        kind = ""  # in the cluster's own store
    return f"{kind}: {artifact.key}" if kind and artifact.key else artifact.key or kind
