"""`moor manifests`: the files for `kubectl apply -k deploy`, from the same source as `moor up`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from moorage import __version__
from moorage.cli import console
from moorage_kube.errors import MoorageError
from moorage_kube.resources import Obj

BY_HAND = (
    "# Made by `moor manifests --write`. Not applied with the rest: `kubectl apply -f` it by hand, or a\n"
    "# copy that you have changed. The rules are explained in docs/reference/guardrails.md.\n"
)
OWN_NOTE = "# Made by `moor manifests --write`, as an example: copy the folder, and change the copy.\n"
NOTE = "# Made by `moor manifests --write`; change the source in packages/moorage, not this file.\n"
CHART_NOTE = NOTE.replace("--write", "--chart")


@console.command(
    examples={
        "moor manifests | kubectl apply -f -": "install Moorage on a cluster",
        "moor manifests --write deploy": "write the kustomize tree, to change it",
        "moor manifests --chart chart": "write the Helm chart",
    }
)
@click.option(
    "--write",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the kustomize tree into a folder instead of printing it; stale generated files are deleted.",
)
@click.option(
    "--chart",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the Helm chart into a folder instead; stale generated files are deleted.",
)
@click.option(
    "--check",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="DIR",
    help="Only check whether the tree in a folder is up to date (exit code 1 if it is not).",
)
def manifests(write: Path | None, chart: Path | None, check: Path | None) -> None:
    """Print the manifests that install Moorage, for `kubectl apply -f -`."""
    if sum(folder is not None for folder in (write, chart, check)) > 1:
        raise click.UsageError("--write, --chart and --check cannot be used together")
    if write is not None:
        write_tree(write, tree())
    elif chart is not None:
        write_tree(chart, chart_files(), option="--chart")
    elif check is not None:
        stale = stale_files(check, tree())
        if stale:
            raise MoorageError(
                f"{check} is not up to date: {', '.join(stale)}", hint=f"renew it: moor manifests --write {check}"
            )
    else:
        console.show_text(dump([obj for path, objs in objects().items() for obj in objs]), nl=False)


def objects() -> dict[str, list[Obj]]:
    """Every object, by its file, in an order that `kubectl apply -f` can take."""
    from moorage.model.crds import all_crds
    from moorage.model.manifests import (
        ALL,
        make_info,
        make_kubelets_account,
        make_machine_objects,
        make_namespace,
        make_network_policies,
        make_people_namespace,
        make_service,
        make_tenant_roles,
        make_workflow_roles,
        make_workspace_roles,
    )
    from moorage.webhooks.config import audit_configuration, webhook_configurations

    return {
        "namespace.yaml": [make_namespace(), make_people_namespace()],
        **{f"crds/{crd['metadata']['name']}.yaml": [crd] for crd in all_crds()},
        "network.yaml": make_network_policies(),
        "machines.yaml": make_machine_objects(),
        "tenants.yaml": make_tenant_roles(),
        "workspaces.yaml": make_workspace_roles(),
        "workflows.yaml": make_workflow_roles(),
        "config.yaml": make_info(__version__),
        **{f"{service.name}.yaml": make_service(service, version=__version__) for service in ALL},
        "kubelets.yaml": make_kubelets_account(),
        "registration.yaml": [*webhook_configurations(), audit_configuration()],
    }


def feature_definitions() -> dict[str, list[Obj]]:
    """Definitions of the kinds that features add, by file: only for clusters without other definitions of them."""
    from moorage.features import feature_crds

    return {f"{crd['metadata']['name']}.yaml": [crd] for crd in feature_crds()}


def tree() -> dict[str, str]:
    """All files by path, including the kustomizations."""
    shipped = objects()
    argo = feature_definitions()
    base = {f"base/{path}": NOTE + dump(objs) for path, objs in shipped.items()}
    kustomizations = {
        "base/kustomization.yaml": _kustomization(shipped),
        "kustomization.yaml": _kustomization(
            ["base"]
        ),  # overlays use base: in kustomize, none may contain another
    }
    by_hand = {path: BY_HAND + dump(objs) for path, objs in optional_objects().items()} | monitoring_files()
    kustomizations["workflows/kustomization.yaml"] = _kustomization(argo)
    base |= {f"workflows/{path}": NOTE + dump(objs) for path, objs in argo.items()}
    return base | by_hand | _scheduler_tree() | _overlays() | kustomizations


def chart_files() -> dict[str, str]:
    """All files of the Helm chart, by path."""
    from moorage.model.chart import make_chart

    argo = {f"crds/{path}": objs for path, objs in feature_definitions().items()}
    return make_chart(objects() | argo, version=__version__, dump=dump, note=CHART_NOTE)


def optional_objects() -> dict[str, list[Obj]]:
    """Optional objects, which are in no kustomization: an administrator applies them by hand."""
    from moorage.model.monitoring.monitors import make_monitoring
    from moorage.model.policy import gpu_cluster_policy

    return {
        "optional/gpu-cluster-policy.yaml": [gpu_cluster_policy()],
        "optional/prometheus.yaml": make_monitoring(),
    }


def monitoring_files() -> dict[str, str]:
    """Files for Prometheus and Grafana without the Prometheus Operator: a rule file, and dashboards."""
    from moorage.model.monitoring.dashboards import dashboards
    from moorage.model.monitoring.rules import rule_groups

    files = {"optional/prometheus-rules.yaml": NOTE + dump([{"groups": rule_groups()}])}
    for dashboard in dashboards():
        text = json.dumps(dashboard, indent=2, ensure_ascii=False)
        files[f"optional/grafana/{dashboard['uid']}.json"] = text + "\n"
    return files


def _scheduler_tree() -> dict[str, str]:
    """The folder `scheduler`: a second kube-scheduler, or a patch for the first, as a separate kustomization."""
    from moorage.model.secondscheduler import (
        SCHEDULER_IMAGE,
        SCHEDULER_VERSION,
        make_kubeadm_patch,
        make_second_scheduler,
    )

    images = [{"name": SCHEDULER_IMAGE, "newTag": SCHEDULER_VERSION}]
    return {
        "scheduler/scheduler.yaml": NOTE + dump(make_second_scheduler()),
        "scheduler/kustomization.yaml": _kustomization(["scheduler.yaml"], images=images),
        "scheduler/kubeadm/kube-scheduler0+json.yaml": NOTE + dump([make_kubeadm_patch()]),
    }


def _overlays() -> dict[str, str]:
    """Kustomize overlays: one for production, and an example of an administrator's overlay on top of it."""
    from moorage.model.manifests import IMAGE, SERVER_SERVICE, make_ingress
    from moorage.model.manifests.production import (
        EXAMPLE_HOST,
        EXAMPLE_TLS_SECRET,
        make_own_patches,
        make_production_patches,
    )
    from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE

    ingress = make_ingress(f"https://{EXAMPLE_HOST}", tls_secret=EXAMPLE_TLS_SECRET)
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": INFO_CONFIGMAP, "namespace": SYSTEM_NAMESPACE},
        "data": {"publicUrl": f"https://{EXAMPLE_HOST}"},
    }
    own = {
        "images": [{"name": IMAGE, "newName": f"registry.example.org/{IMAGE}", "newTag": __version__}],
        "patches": [
            {"path": "settings.yaml"},
            {"path": "ingress-host.yaml", "target": {"kind": "Ingress", "name": SERVER_SERVICE}},
        ],
    }
    return {
        "overlays/production/ingress.yaml": NOTE + dump([ingress]),
        "overlays/production/patches.yaml": NOTE + dump(make_production_patches()),
        "overlays/production/kustomization.yaml": _kustomization(
            ["../../base", "ingress.yaml"], patches=[{"path": "patches.yaml"}]
        ),
        "overlays/example/settings.yaml": OWN_NOTE + dump([settings]),
        "overlays/example/ingress-host.yaml": OWN_NOTE + dump([make_own_patches()]),
        "overlays/example/kustomization.yaml": _kustomization(["../production"], **own).replace(NOTE, OWN_NOTE),
    }


def _kustomization(resources: Iterable[str], **more: object) -> str:
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(resources),
    }
    return NOTE + dump([kustomization | more])


def write_tree(folder: Path, files: Mapping[str, str], *, option: str = "--write") -> None:
    """Write these files to the folder. Files from an earlier call with `option` are deleted, others remain."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    for path in _generated(folder, option) - set(files):
        (folder / path).unlink()


def stale_files(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Return the paths of files that differ from the generated ones, are missing, or are left over."""
    differing = {
        path
        for path, text in files.items()
        if not (folder / path).is_file() or (folder / path).read_text(encoding="utf-8") != text
    }
    return sorted(differing | (_generated(folder, "--write") - set(files)))


def dump(objs: Sequence[Any]) -> str:
    """Write objects as YAML documents; keys stay in order, long strings are not folded."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
            return True

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    documents = [yaml.dump(obj, Dumper=Dumper, sort_keys=False, width=115, allow_unicode=True) for obj in objs]
    return "---\n".join(documents)


def _generated(folder: Path, option: str) -> set[str]:
    """Return the files in the folder with the note of `option`; for --write also definitions and dashboards."""
    note = f"# Made by `moor manifests {option}`"
    paths = {path for path in folder.rglob("*.yaml") if path.read_text(encoding="utf-8").startswith(note)}
    if option == "--write":
        paths.update(folder.glob("optional/grafana/*.json"), folder.glob("base/crds/*.yaml"))
    return {path.relative_to(folder).as_posix() for path in paths}
