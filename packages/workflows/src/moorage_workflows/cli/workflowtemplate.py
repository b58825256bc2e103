"""`moor workflow template`: templates of a namespace or of the whole cluster."""

from __future__ import annotations

from pathlib import Path

import click

from moorage.cli import console
from moorage.cli.names import complete
from moorage.cli.session import Session, Target, in_session, target_options
from moorage.evaluator.pool import InPlace
from moorage_kube.errors import UsageError
from moorage_kube.moments import format_duration, moment
from moorage_kube.resources import Obj
from moorage_workflows.actions import workflowtemplates
from moorage_workflows.actions.workflowlints import checks_of
from moorage_workflows.actions.workflowtemplates import Applied
from moorage_workflows.cli.workflowsubmit import read_documents

cluster_option = click.option("--cluster", is_flag=True, help="ClusterWorkflowTemplates, for all namespaces.")


@console.group(
    examples={
        "moor workflow template create train.yaml": "store a template",
        "moor workflow submit --from workflowtemplate/train -p epochs=3": "run it",
    }
)
def template() -> None:
    """Store templates of workflows, and reuse them."""


@template.command(
    examples={
        "moor workflow template create train.yaml": "store the templates of a file",
        "moor workflow template create train.yaml --replace": "also change those that exist",
    }
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option(
    "--replace", is_flag=True, help="Change existing templates. Running workflows continue with the old ones."
)
@cluster_option
@click.option("--dry-run", is_flag=True, help="Check the templates; create nothing.")
@target_options
def create(target: Target, files: tuple[Path, ...], replace: bool, cluster: bool, dry_run: bool) -> int:
    """Create WorkflowTemplates, and ClusterWorkflowTemplates, from files. FILE may be - for stdin."""
    documents = [document for file in files for document in read_documents(file)]
    if not documents:
        raise UsageError("the files have no templates")

    async def work(session: Session) -> int:
        kinds = [workflowtemplates.template_of(document, session.namespace)[0] for document in documents]
        if cluster and any(kind.namespaced for kind in kinds):
            raise UsageError(
                "the files have a WorkflowTemplate, which has a namespace",
                hint="leave out --cluster, or change its kind to ClusterWorkflowTemplate",
            )
        check = checks_of(session.api, session.namespace, documents, evaluation=InPlace())
        for document in documents:
            if replace and not dry_run:
                stored, what = await workflowtemplates.apply_template(
                    session.api, session.namespace, document, check=check
                )
            else:
                what = Applied.CREATED
                stored = await workflowtemplates.create_template(
                    session.api, session.namespace, document, check=check, dry_run=dry_run
                )
            console.show(f"{stored['metadata']['name']} {'valid' if dry_run else what}")
        return 0

    return in_session(target, work)


@template.command(
    "list",
    examples={
        "moor workflow template list": "the templates of your namespace",
        "moor workflow template list --cluster": "those of the cluster",
    },
)
@click.option("-A", "--all-namespaces", is_flag=True, help="Templates of all namespaces.")
@cluster_option
@console.output_option
@target_options
def list_(target: Target, all_namespaces: bool, cluster: bool, output: str) -> int:
    """List templates."""

    async def work(session: Session) -> int:
        namespace = None if all_namespaces else session.namespace
        items = await workflowtemplates.list_templates(session.api, namespace, cluster=cluster)
        now = session.clock.now()

        def row(item: Obj) -> list[str]:
            spec, meta = item.get("spec") or {}, item["metadata"]
            created = moment(meta.get("creationTimestamp"))
            parameters = (spec.get("arguments") or {}).get("parameters") or ()
            return [
                *([str(meta.get("namespace") or "")] if all_namespaces else []),
                meta["name"],
                str(len(spec.get("templates") or ())),
                str(spec.get("entrypoint") or ""),
                ", ".join(str(each.get("name")) for each in parameters),
                format_duration(now - created) if created else "",
            ]

        headers = ("NAME", "TEMPLATES", "ENTRYPOINT", "PARAMETERS", "AGE")
        where = "for the cluster" if cluster else f"in namespace {session.namespace}"
        console.print_listing(
            output,
            headers=("NAMESPACE", *headers) if all_namespaces else headers,
            rows=lambda: [row(item) for item in items],
            items=items,
            names=[item["metadata"]["name"] for item in items],
            nothing=f"no workflow templates {where}; store one: moor workflow template create FILE",
        )
        return 0

    return in_session(target, work)


@template.command(
    examples={
        "moor workflow template get train": "print a template as YAML",
        "moor workflow template get train --cluster -o json": "one of the cluster, for a program",
    }
)
@click.argument("name", shell_complete=complete("workflow_templates"))
@cluster_option
@click.option(
    "-o", "--output", type=click.Choice(("yaml", "json")), default="yaml", show_default=True, help="Output format."
)
@target_options
def get(target: Target, name: str, cluster: bool, output: str) -> int:
    """Print a template."""

    async def work(session: Session) -> int:
        stored = await workflowtemplates.get_template(session.api, session.namespace, name, cluster=cluster)
        stored["metadata"].pop("managedFields", None)
        console.print_document(stored, output)
        return 0

    return in_session(target, work)


@template.command(
    examples={
        "moor workflow template delete train": "delete a template",
        "moor workflow template delete train --cluster": "delete one of the cluster",
    }
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete("workflow_templates"))
@cluster_option
@target_options
def delete(target: Target, names: tuple[str, ...], cluster: bool) -> int:
    """Delete templates. Running workflows continue with the spec that they started with."""

    async def work(session: Session) -> int:
        for name in dict.fromkeys(names):
            await workflowtemplates.delete_template(session.api, session.namespace, name, cluster=cluster)
            console.show(f"{name} deleted")
        return 0

    return in_session(target, work)
