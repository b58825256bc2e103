"""The checks of an installation, in the order in which they are shown, and their verdicts."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from moorage.decide.installcheck import cluster, gpus, reach, services
from moorage.decide.installcheck.facts import Facts
from moorage.decide.installcheck.results import Outcome, Result


class Stage(StrEnum):
    """The stage of an installation at which a check makes sense."""

    ALWAYS = "always"
    AFTER = "after"  # once Moorage is installed


class Check(Struct, frozen=True, kw_only=True):
    """One check. `judge` returns None if the check does not apply to this cluster."""

    name: str
    required: bool  # Moorage does not work without it; else it works with less
    why: str
    judge: Callable[[Facts], Result | None]
    stage: Stage = Stage.ALWAYS
    on_local: bool = True  # False: a cluster of `moor up` needs nothing of it


class Verdict(Struct, frozen=True):
    """One check and its result. `required`: of this result; a check may find a fault that is bearable."""

    check: Check
    result: Result

    @property
    def required(self) -> bool:
        return self.check.required and not self.result.bearable

    @property
    def failed(self) -> bool:
        """Whether this result prevents Moorage from working."""
        return self.required and self.result.outcome in (Outcome.MISSING, Outcome.WRONG)


CHECKS: tuple[Check, ...] = (
    Check(
        name="kubernetes-version", required=True, judge=cluster.kubernetes_version,
        why="older versions lack match conditions of webhooks and fields of Jobs that Moorage uses",
    ),
    Check(
        name="permissions", required=True, judge=cluster.permissions, on_local=False,
        why="the installation creates CRDs, cluster roles and webhooks",
    ),
    Check(name="nodes", required=True, judge=cluster.nodes, why="pods run on nodes that are Ready"),
    Check(
        name="requests-fit", required=True, judge=cluster.requests_fit, on_local=False,
        why="a service whose pod fits on no node stays Pending",
    ),
    Check(
        name="default-storage-class", required=True, judge=cluster.default_storage_class,
        why="the server keeps its history on a volume, and volumes of runs name no class by default",
    ),
    Check(
        name="shared-storage", required=False, judge=cluster.shared_storage,
        why="pods on several nodes mount one volume (maps, datasets, teams' data) by ReadWriteMany",
    ),
    Check(
        name="default-priority-class", required=False, judge=cluster.default_priority_class,
        why="pods without a class may preempt the pods that hold places of machines, if their class preempts",
    ),
    Check(
        name="ingress-class", required=False, judge=reach.ingress_class,
        why="people reach the web page and their workspaces through an ingress controller",
    ),
    Check(
        name="network-policies", required=False, judge=cluster.network_policies, on_local=False,
        why="a network plugin that ignores NetworkPolicies leaves the pods of teams open to each other",
    ),
    Check(
        name="pod-security", required=False, judge=cluster.pod_security,
        why="without the label, users who may create pods next to our services could create privileged ones",
    ),
    Check(
        name="gpus", required=False, judge=gpus.devices,
        why="a GPU that no device plugin offers cannot be asked for",
    ),
    Check(
        name="gpu-labels", required=False, judge=gpus.labels,
        why="without a label of the type, --gpu-type finds no node and prices are not known",
    ),
    Check(
        name="gpu-sharing", required=False, judge=gpus.sharing,
        why="parts of GPUs have different names or meanings",
    ),
    Check(
        name="clock", required=True, judge=cluster.clock,
        why="tokens, leases and time limits are judged by several clocks",
    ),
    Check(
        name="kubelet-certificates", required=False, judge=cluster.kubelet_certificates, on_local=False,
        why="the server asks kubelets how full volumes are, and only those whose certificate the cluster signed",
    ),
    Check(
        name="neighbours", required=False, judge=cluster.neighbours,
        why="Moorage works together with these where they are installed",
    ),
    Check(
        name="image", required=True, judge=services.image,
        why="nodes pull the image of the services from your registry",
    ),
    Check(
        name="crds", required=True, judge=services.crds, stage=Stage.AFTER,
        why="a missing or old definition silently drops fields of objects",
    ),
    Check(
        name="workflow-kinds", required=False, judge=services.workflow_kinds, stage=Stage.AFTER,
        why="workflows need Argo's kinds: Moorage's own definitions, or those of an Argo that is installed",
    ),
    Check(
        name="versions", required=False, judge=services.versions, stage=Stage.AFTER,
        why="commands and services of different versions do not know each other's new fields",
    ),
    Check(
        name="secrets", required=True, judge=services.secrets, stage=Stage.AFTER, on_local=False,
        why="pods of the services do not start before the operator has created their Secrets",
    ),
    Check(
        name="services", required=True, judge=services.deployments, stage=Stage.AFTER, on_local=False,
        why="each Deployment needs an available pod",
    ),
    Check(
        name="server-ready", required=True, judge=services.server_ready, stage=Stage.AFTER,
        why="commands, pages and maps need the server",
    ),
    Check(
        name="database", required=True, judge=services.database, stage=Stage.AFTER, on_local=False,
        why="two servers share one PostgreSQL; one server may keep its files on its volume",
    ),
    Check(
        name="webhook", required=True, judge=services.webhook, stage=Stage.AFTER,
        why="tenants' pods wait for the webhook, and guardrails are judged there",
    ),
    Check(
        name="scheduler", required=False, judge=services.scheduler, stage=Stage.AFTER, on_local=False,
        why="without the extender's points, GPU pods are spread and large runs find no whole node",
    ),
    Check(
        name="public-url", required=True, judge=reach.public_url, stage=Stage.AFTER,
        why="people outside the cluster log in at this address",
    ),
    Check(
        name="workspace-url", required=True, judge=reach.workspace_url, stage=Stage.AFTER,
        why="each workspace has its own host name below this domain",
    ),
)  # fmt: skip


def judge(facts: Facts) -> tuple[Verdict, ...]:
    """Run the checks that apply, in the order of the table."""
    verdicts = []
    for check in CHECKS:
        if (check.stage is Stage.AFTER and not facts.installed) or (facts.local and not check.on_local):
            continue
        result = check.judge(facts)
        if result is not None:
            verdicts.append(Verdict(check, result))
    return tuple(verdicts)
