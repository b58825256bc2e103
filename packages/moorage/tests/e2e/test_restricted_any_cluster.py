"""People's work runs in a namespace that enforces Pod Security's `restricted`, and nothing runs as root there."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from moorage.model.names import MAP_LABEL, RUN_AS_USER, RUN_AS_USER_ANNOTATION, RUN_LABEL, WORKSPACE_LABEL
from moorage.model.workspace import WORKSPACES
from moorage_kube.errors import Forbidden
from moorage_kube.podsecurity import RESTRICTED, violations
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import JOBS, NAMESPACES, PODS, Obj
from moorage_kube.testing.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api")]

PATIENCE_SECONDS = 180.0  # bounds a hang
SMALL = ("--cpu", "100m", "--memory", "128Mi")


@pytest.fixture
async def restricted(api: KubeClient, unique: str) -> AsyncIterator[str]:
    levels = {f"pod-security.kubernetes.io/{mode}": RESTRICTED for mode in ("enforce", "warn")}
    labels = {"moorage.dev/guard": "enabled"} | levels
    await api.create(NAMESPACES, {"metadata": {"name": unique, "labels": labels}})
    yield unique
    await api.delete(NAMESPACES, unique)


async def pod_with(api: KubeClient, namespace: str, selector: str) -> Obj:
    async def first() -> Obj | None:
        pods = (await api.list(PODS, namespace, label_selector=selector)).items
        return pods[0] if pods else None

    pod: Obj = await until(f"a pod of {selector}", first, patience=PATIENCE_SECONDS)
    assert violations(RESTRICTED, pod["metadata"], pod["spec"]) == []
    return pod


def a_pod(**labels: str) -> Any:
    container = {"name": "c", "image": "example.test/none:1", "resources": {"limits": {"memory": "64Mi"}}}
    return {
        "metadata": {"generateName": "p-", "labels": labels},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }


async def test_pods_of_ours_are_admitted_with_a_user_and_others_as_they_are(api, restricted):
    async def is_admitted() -> Obj | None:
        try:
            return await api.create(PODS, a_pod(**{RUN_LABEL: "x"}), restricted, dry_run=True)
        except Forbidden:
            return None  # the webhook does not know the namespace yet

    pod = await until("the webhook to know the namespace", is_admitted, patience=PATIENCE_SECONDS)
    context = pod["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (RUN_AS_USER,) * 3
    with pytest.raises(Forbidden, match="violates PodSecurity"):
        await api.create(PODS, a_pod(app="x"), restricted, dry_run=True)
    asks = a_pod(**{RUN_LABEL: "x"})
    asks["spec"]["hostNetwork"] = True
    with pytest.raises(Forbidden, match="host namespaces"):
        await api.create(PODS, asks, restricted, dry_run=True)

    # the administrator chooses the user
    await api.patch(NAMESPACES, restricted, {"metadata": {"annotations": {RUN_AS_USER_ANNOTATION: "1234"}}})

    async def is_theirs() -> bool:
        made = await api.create(PODS, a_pod(**{RUN_LABEL: "x"}), restricted, dry_run=True)
        return bool(made["spec"]["securityContext"]["runAsUser"] == 1234)

    await until("the webhook to know the user", is_theirs, patience=PATIENCE_SECONDS)


@pytest.mark.cluster("scheduler", "controllers", "kubelet")
async def test_a_run_ends_well_and_who_starts_it_is_told_of_the_user(cluster, api, restricted, tmp_path):
    code = "import getpass, pathlib; (pathlib.Path.home() / 'x.txt').write_text('x'); print(getpass.getuser())"
    words = ("run", "--namespace", restricted, "--name", "plain", *SMALL, *cluster.image_options)
    done = await asyncio.to_thread(cluster.moor, *words, "--", cluster.python, "-c", code, cwd=tmp_path)
    assert f"run as user {RUN_AS_USER}" in done.stderr
    assert "would violate PodSecurity" not in done.stderr, "it is said of the Job, and does not hold for its pods"
    await pod_with(api, restricted, f"{RUN_LABEL}=plain")
    await asyncio.to_thread(cluster.moor, "wait", "plain", "--namespace", restricted)
    logs = await asyncio.to_thread(cluster.moor, "logs", "plain", "--namespace", restricted)
    assert logs.stdout == "moorage\n"


@pytest.mark.cluster("scheduler", "controllers", "kubelet")
async def test_a_map_is_worked_on(cluster, api, restricted, tmp_path):
    if cluster.kind != "local":
        pytest.skip("the services run as processes here: workers in pods do not reach them")
    words = ("map", "create", "squares", "--namespace", restricted, "--range", "0:3", *SMALL)
    await asyncio.to_thread(cluster.moor, *words, "--", sys.executable, "-c", "print({item} ** 2)", cwd=tmp_path)
    await pod_with(api, restricted, f"{MAP_LABEL}=squares")

    async def is_done() -> bool:
        shown = await asyncio.to_thread(
            cluster.moor, "map", "status", "squares", "--namespace", restricted, "-o", "json"
        )
        return bool(json.loads(shown.stdout)["counts"]["done"] == 3)

    await until("three items to be done", is_done, patience=PATIENCE_SECONDS)


@pytest.mark.cluster("scheduler", "controllers", "kubelet")
async def test_volumes_are_copied_and_backed_up_and_datasets_are_filled(cluster, api, restricted, tmp_path: Path):
    if cluster.kind != "local":
        pytest.skip("the services run as processes here, so no image of a helper is known")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").write_text("a")

    def typed(*words: str) -> None:
        cluster.moor(*words, "--namespace", restricted)

    for words in (
        ("volume", "create", "data", "--size", "1Gi"),
        ("volume", "create", "vault", "--size", "1Gi"),
        ("volume", "cp", str(tmp_path / "photos"), "data:/photos"),
        ("volume", "cp", "data:/photos", str(tmp_path / "back")),
        ("volume", "backup", "data", "--to", "volume:vault", "--wait"),
        ("dataset", "create", "photos", "--source", "volume:data/photos", "--size", "1Gi", "--wait"),
    ):
        await asyncio.to_thread(typed, *words)
    assert [path.read_text() for path in (tmp_path / "back").rglob("a.txt")] == ["a"]
    jobs = (await api.list(JOBS, restricted)).items
    for job in jobs:
        template = job["spec"]["template"]
        assert violations(RESTRICTED, template["metadata"], template["spec"]) == [], job["metadata"]["name"]


@pytest.mark.cluster("controllers")
async def test_the_pod_of_a_workspace_keeps_the_user_of_its_image(api, restricted):
    spec = {"type": "jupyterlab", "resources": {"cpu": "100m", "memory": "128Mi"}, "image": "example.test/lab:1"}
    obj = {
        "apiVersion": WORKSPACES.api_version,
        "kind": WORKSPACES.kind,
        "metadata": {"name": "lab"},
        "spec": spec,
    }
    await api.create(WORKSPACES, obj, restricted)
    pod = await pod_with(api, restricted, f"{WORKSPACE_LABEL}=lab")
    assert "runAsUser" not in pod["spec"]["securityContext"]
