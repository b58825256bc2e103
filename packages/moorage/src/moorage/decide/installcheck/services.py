"""Checks of the installed objects: definitions, Secrets, pods, and whether each service does its work."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from moorage.decide.installcheck.facts import Facts, Unread
from moorage.decide.installcheck.results import Result, in_order, missing, some, unknown, unread, wrong
from moorage.model.crds import all_crds
from moorage.model.definitions import is_anothers
from moorage.model.manifests import ALL, QUEUE_SECRET, SERVER
from moorage.model.names import (
    EXTENDER_SECRET,
    PAGE_SECRET,
    SYSTEM_NAMESPACE,
    WEBHOOK_CONFIGURATION,
    WEBHOOK_TLS_SECRET,
)
from moorage.model.secondscheduler import NAME as SECOND_SCHEDULER
from moorage_kube.meta import is_condition_true, labels_of
from moorage_kube.resources import Obj

# that of the gateway to workspaces is made with the first workspace
MADE_BY_OPERATOR = (WEBHOOK_TLS_SECRET, EXTENDER_SECRET, PAGE_SECRET)
DATABASE_VARIABLE = "MOORAGE_QUEUE_URL"
STARTING = ("", "ContainerCreating", "PodInitializing")  # a container waits, and nothing is wrong yet
ASKED = "moorage_extender_last_request_timestamp_seconds"  # a gauge of the extender; 0: never
REFUSED = "moorage_extender_requests_total"
APPLY = "moor install"  # with the values of the last time


def image(facts: Facts) -> Result | None:
    """Check the image: before the installation with a probe, after it by our pods."""
    if facts.probe is not None:
        probe = facts.probe
        if probe.error:
            return wrong(
                f"{probe.image} was not pulled: {probe.error}",
                "push the image, or give the namespace a pull secret: docs/howto/install-air-gapped.md",
            )
        return in_order(f"{probe.image} was pulled{f' on {probe.node}' if probe.node else ''}")
    if facts.local:
        return None
    if not facts.installed:
        return unknown(
            "the image was not tested; name it to test it",
            "moor doctor install --probe --image REGISTRY/moorage:TAG",
        )
    if isinstance(facts.pods, Unread):
        return unread("pods", facts.pods)
    pods = list(_ours(facts.pods))
    for pod in pods:
        for container, state in _waiting(pod):
            if is_pull_error(state):
                reason = state.get("message") or state.get("reason")
                return wrong(
                    f"{container.get('image')} is not pulled: {reason}",
                    f"kubectl -n {SYSTEM_NAMESPACE} describe pod {pod['metadata']['name']}",
                    "push the image, or give the namespace a pull secret: docs/howto/install-air-gapped.md",
                )
    images = sorted({str(container.get("image")) for pod in pods for container in _statuses(pod)})
    return in_order(f"pulled: {some(images)}") if images else unknown("no pod of a service has an image yet")


def crds(facts: Facts) -> Result:
    """Check the CRDs. A CRD in the cluster is old if it lacks a field of our schemas."""
    if isinstance(facts.crds, Unread):
        return unread("CustomResourceDefinitions", facts.crds)
    there = {str(obj["metadata"]["name"]): obj for obj in facts.crds}
    ours = all_crds()
    absent = [name for crd in ours if (name := str(crd["metadata"]["name"])) not in there]
    if absent:
        return missing(f"there is no {some(absent)}", APPLY)
    old = [
        f"{crd['metadata']['name']} ({some(sorted(lacking), 2)})"
        for crd in ours
        if (lacking := _fields(crd) - _fields(there[crd["metadata"]["name"]]))
    ]
    if old:
        return wrong(f"definitions lack fields of this version: {some(old)}", APPLY)
    unready = [
        name for crd in ours if not is_condition_true(there[name := str(crd["metadata"]["name"])], "Established")
    ]
    if unready:
        return wrong(f"not established: {some(unready)}", f"kubectl describe crd {unready[0]}")
    return in_order(f"{len(ours)} definitions are those of this version")


def workflow_kinds(facts: Facts) -> Result:
    """Check the CRDs of Argo's kinds: either ours, or those of another installation, which we do not change."""
    if isinstance(facts.crds, Unread):
        return unread("CustomResourceDefinitions", facts.crds)
    there = {str(obj["metadata"]["name"]): obj for obj in facts.crds}
    added = {str(crd["metadata"]["name"]): crd for crd in facts.added_crds}
    if absent := [name for name in added if name not in there]:
        return missing(f"there is no {some(absent)}", APPLY)
    if others := [name for name, crd in added.items() if is_anothers(there[name], crd)]:
        return in_order(f"not made by Moorage, and left as they are: {some(others)}")
    return in_order(f"{len(added)} definitions are made by Moorage")


def versions(facts: Facts) -> Result:
    """Compare the versions of the command line, the ConfigMap and our service images.

    The kube-scheduler has its own version and is not compared.
    """
    if isinstance(facts.deployments, Unread):
        return unread("Deployments", facts.deployments)
    parts = {"moor": facts.cli_version}
    if facts.settings.get("version"):
        parts["ConfigMap"] = facts.settings["version"]
    tags = {
        name: tag
        for obj in facts.deployments
        if (name := str(obj["metadata"]["name"])) != SECOND_SCHEDULER and (tag := _tag(_image_of(obj))) is not None
    }
    if len(set(parts.values())) > 1:
        return wrong(
            "versions differ: " + ", ".join(f"{name} {version}" for name, version in parts.items()),
            f"uv tool install moorage=={facts.settings.get('version')}",
        )
    if len(set(tags.values())) > 1:
        return wrong(
            "the services' images differ: " + ", ".join(f"{name} {tag}" for name, tag in sorted(tags.items())),
            "moor install --image REGISTRY/moorage:TAG",
        )
    return in_order(f"all are {facts.cli_version}")


def secrets(facts: Facts) -> Result:
    if isinstance(facts.secrets, Unread):
        return unread("the names of Secrets", facts.secrets)
    absent = [name for name in MADE_BY_OPERATOR if name not in facts.secrets]
    if absent:
        return missing(
            f"the operator has not created {some(absent)}",
            f"kubectl -n {SYSTEM_NAMESPACE} logs deployment/moorage-operator",
        )
    return in_order(f"the operator's {len(MADE_BY_OPERATOR)} Secrets are there")


def deployments(facts: Facts) -> Result:
    """Check that each of our Deployments has all replicas available. It still works with a single replica."""
    if isinstance(facts.deployments, Unread):
        return unread("Deployments", facts.deployments)
    there = {str(obj["metadata"]["name"]): obj for obj in facts.deployments}
    absent = [service.full_name for service in ALL if service.full_name not in there]
    if absent:
        return missing(f"there is no Deployment {some(absent)}", APPLY)
    lacking = []
    for service in ALL:
        obj = there[service.full_name]
        wanted = int((obj.get("spec") or {}).get("replicas") or 0)
        available = int((obj.get("status") or {}).get("availableReplicas") or 0)
        if available < max(1, wanted):
            lacking.append((service.full_name, available, max(1, wanted)))
    if not lacking:
        return in_order(f"{len(ALL)} Deployments are available")
    shown = ", ".join(f"{name} {available} of {wanted}" for name, available, wanted in lacking)
    reason = "" if isinstance(facts.pods, Unread) else _why(facts.pods, {name for name, _, _ in lacking})
    return wrong(
        f"pods are not available: {shown}{reason}",
        f"kubectl -n {SYSTEM_NAMESPACE} get pods",
        f"kubectl -n {SYSTEM_NAMESPACE} logs deployment/{lacking[0][0]} --previous",
        bearable=all(available for _, available, _ in lacking),
    )


def server_ready(facts: Facts) -> Result:
    if isinstance(facts.server, Unread):
        return wrong(
            f"the server does not say that it is ready: {facts.server.why}",
            f"kubectl -n {SYSTEM_NAMESPACE} logs deployment/{SERVER.full_name}",
        )
    return in_order("the server is ready")


def database(facts: Facts) -> Result:
    """Check the database. The server opens it at startup, so a ready server has a connection."""
    if isinstance(facts.secrets, Unread):
        return unread("the names of Secrets", facts.secrets)
    if isinstance(facts.deployments, Unread):
        return unread("Deployments", facts.deployments)
    server = next((obj for obj in facts.deployments if obj["metadata"]["name"] == SERVER.full_name), {})
    replicas = int((server.get("spec") or {}).get("replicas") or 0)
    secret, needed = _database_secret(server)
    if secret not in facts.secrets:
        create = (
            f"kubectl -n {SYSTEM_NAMESPACE} create secret generic {secret}"
            " --from-literal=url='postgresql://moorage:PASSWORD@HOST/moorage'"
        )
        if replicas > 1 or needed:
            return missing(f"the server needs PostgreSQL, and there is no Secret {secret}", create)
        return in_order("files on the server's volume; use PostgreSQL for large maps and for two servers")
    if isinstance(facts.server, Unread):
        return unknown(
            f"the Secret {secret} names PostgreSQL; see the server's log whether it answers",
            f"kubectl -n {SYSTEM_NAMESPACE} logs deployment/{SERVER.full_name}",
        )
    return in_order("PostgreSQL answers the server")


def webhook(facts: Facts) -> Result:
    if isinstance(facts.webhooks, Unread):
        return unread("webhook configurations", facts.webhooks)
    kinds = {str(obj.get("kind")) for obj in facts.webhooks if obj["metadata"]["name"] == WEBHOOK_CONFIGURATION}
    absent = sorted({"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"} - kinds)
    if absent:
        return missing(f"there is no {some(absent)} {WEBHOOK_CONFIGURATION}", APPLY)
    if any(not (hook.get("clientConfig") or {}).get("caBundle") for hook in _hooks(facts.webhooks)):
        return wrong(
            "the operator has not put its authority into the webhooks' registration (caBundle)",
            f"kubectl -n {SYSTEM_NAMESPACE} logs deployment/moorage-operator",
        )
    if isinstance(facts.webhook_refusal, Unread):
        return unread("whether the webhook answers", facts.webhook_refusal)
    if not facts.webhook_refusal:
        return wrong(
            "the API server does not reach the webhook: a Machine that it must refuse was accepted (dry run)",
            f"kubectl -n {SYSTEM_NAMESPACE} logs deployment/moorage-webhook",
            "let the control plane reach port 8443 of the nodes: docs/howto/install-on-a-managed-cluster.md",
        )
    return in_order("the API server asks the webhook, and it answers")


def scheduler(facts: Facts) -> Result:
    """Report from the extender's metrics when a scheduler last asked, and whether its token was valid."""
    if isinstance(facts.extenders, Unread):
        return unread("the extender's metrics", facts.extenders)
    moments = [value for text in facts.extenders for name, _, value in _samples(text) if name == ASKED]
    refused = sum(
        value
        for text in facts.extenders
        for name, labels, value in _samples(text)
        if name == REFUSED and 'code="401"' in labels
    )
    last = max(moments, default=0.0)
    if last:
        age = facts.now - datetime.fromtimestamp(last, UTC)
        return in_order(f"a scheduler asked the extender {max(0.0, age.total_seconds()):.0f} s ago")
    if refused:
        return wrong(
            f"a scheduler asks the extender with a wrong token ({refused:.0f} times)",
            f"kubectl -n {SYSTEM_NAMESPACE} get secret {EXTENDER_SECRET} -o jsonpath={{.data.token}} | base64 -d",
        )
    return missing(
        "the extender got no request from a scheduler since it started",
        "start a pod and check again; then see docs/howto/install-on-a-cluster.md (kube-scheduler)",
    )


def is_pull_error(waiting: Mapping[str, Any]) -> bool:
    """Whether the image of a container cannot be pulled: ErrImagePull, ImagePullBackOff, InvalidImageName, …

    https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/images/types.go
    """
    reason = str(waiting.get("reason") or "")
    return "Image" in reason or reason in ("RegistryUnavailable", "SignatureValidationFailed")


def _ours(pods: Iterable[Obj]) -> Iterator[Obj]:
    names = {service.full_name for service in ALL}
    for pod in pods:
        name = labels_of(pod).get("app.kubernetes.io/name")
        if pod["metadata"].get("namespace") == SYSTEM_NAMESPACE and name in names:
            yield pod


def _statuses(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((pod.get("status") or {}).get("containerStatuses") or ())


def _waiting(pod: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for container in _statuses(pod):
        state = (container.get("state") or {}).get("waiting")
        if state:
            yield container, state


def _why(pods: Iterable[Obj], names: set[str]) -> str:
    """The reasons why containers of these services wait, and how they last ended."""
    for pod in _ours(pods):
        if labels_of(pod).get("app.kubernetes.io/name") not in names:
            continue
        for container, state in _waiting(pod):
            ended = (container.get("lastState") or {}).get("terminated") or {}
            exit_code = f", exit {ended['exitCode']}" if "exitCode" in ended else ""
            return f"; {pod['metadata']['name']}: {state.get('reason')}{exit_code}"
    return ""


def _fields(crd: Mapping[str, Any]) -> set[str]:
    """The paths of all fields in all versions of a CRD."""
    paths: set[str] = set()

    def walk(schema: Mapping[str, Any], path: str) -> None:
        for name, field in (schema.get("properties") or {}).items():
            paths.add(f"{path}{name}")
            walk(field, f"{path}{name}.")
        for key in ("items", "additionalProperties"):
            if isinstance(schema.get(key), Mapping):
                walk(schema[key], path)

    for version in (crd.get("spec") or {}).get("versions") or ():
        walk((version.get("schema") or {}).get("openAPIV3Schema") or {}, "")
    return paths


def _image_of(deployment: Mapping[str, Any]) -> str:
    template = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    containers: list[Obj] = template.get("containers") or [{}]
    return str(containers[0].get("image") or "")


def _database_secret(deployment: Mapping[str, Any]) -> tuple[str, bool]:
    """The name of the Secret with the PostgreSQL address, and whether the server requires it."""
    template = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    for container in template.get("containers") or ():
        for entry in container.get("env") or ():
            if entry.get("name") == DATABASE_VARIABLE:
                source = (entry.get("valueFrom") or {}).get("secretKeyRef") or {}
                return str(source.get("name") or QUEUE_SECRET), not source.get("optional")
    return QUEUE_SECRET, False


def _tag(image_name: str) -> str | None:
    """The tag of an image; None if it has a digest or no tag."""
    name = image_name.rpartition("/")[2]
    return name.partition(":")[2] or None if "@" not in name else None


def _hooks(configurations: Iterable[Obj]) -> Iterator[Mapping[str, Any]]:
    for obj in configurations:
        yield from obj.get("webhooks") or ()


def _samples(text: str) -> Iterator[tuple[str, str, float]]:
    """Name, labels and value of each sample in a text in Prometheus' format."""
    for name, labels, value in re.findall(r"(?m)^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$", text):
        yield name, labels, float(value)
