"""`moor uninstall`, as an admin types it, on a cluster in memory."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from moorage.cli.main import main
from moorage.cli.session import Session, Target
from moorage.decide.install.record import parse_record
from moorage.model.argo import FINALIZER, INSTANCE_LABEL, OUR_INSTANCE, WORKFLOWS
from moorage.model.dataset import DATASETS
from moorage.model.names import BEATS_FINALIZER, CRON_FINALIZER, SYSTEM_NAMESPACE
from moorage_kube.resources import (
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    JOBS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    PRIORITYCLASSES,
    SERVICEACCOUNTS,
    SERVICES,
)
from moorage_kube.testing.clock import FakeClock
from moorage_testing.installing import InstallableApi

IMAGE = "registry.example.org/moorage:0.1.0"


class QuickClock(FakeClock):
    """Sleeps that are over at once."""

    async def sleep(self, seconds: float) -> None:
        self.advance(seconds)


@pytest.fixture
def api() -> InstallableApi:
    return InstallableApi()


@pytest.fixture
def moor(api: InstallableApi, capsys: Any) -> Callable[..., tuple[int, str, str]]:
    @contextlib.asynccontextmanager
    async def opener(target: Target) -> AsyncIterator[Session]:
        yield Session(api=api, server=None, clock=QuickClock())  # type: ignore[arg-type]

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words, opener=opener)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def users_dataset(api: InstallableApi) -> None:
    meta = {"name": "digits", "namespace": "lab", "finalizers": ["moorage.dev/dataset"]}
    api.put(DATASETS, {"metadata": meta, "spec": {}})


def test_what_is_kept_stays_and_the_rest_goes(moor, api):
    moor("install", "--image", IMAGE)
    users_dataset(api)
    stored = dict(api.stored(CONFIGMAPS, "moorage", SYSTEM_NAMESPACE))
    api.put(CONFIGMAPS, stored | {"data": stored["data"] | {"workspaceUrl": "https://*.apps.example.org"}})
    code, out, err = moor("uninstall", "--yes")
    assert (code, out) == (0, "")
    assert "Moorage is removed\ninstall it again: moor install." in err
    assert api.names(MUTATING_WEBHOOKS) | api.names(DEPLOYMENTS) | api.names(SERVICES) == set()
    assert api.names(CONFIGMAPS) == {"moorage-install"}
    assert len(api.names(CRDS)) == 15
    assert api.names(NAMESPACES) == {"moorage-system", "moorage-users"}
    assert "finalizers" not in api.stored(DATASETS, "digits", "lab")["metadata"]
    kept = parse_record(api.stored(CONFIGMAPS, "moorage-install", SYSTEM_NAMESPACE))
    assert kept.state == "removed"
    assert kept.values == {
        "image": IMAGE,
        "workspaceUrl": "https://*.apps.example.org",
    }

    code, out, err = moor("install")
    assert (code, out) == (0, "")  # the first user is there
    assert (
        api.stored(CONFIGMAPS, "moorage", SYSTEM_NAMESPACE)["data"]["workspaceUrl"] == "https://*.apps.example.org"
    )


def test_all_goes_with_delete_data(moor, api):
    moor("install", "--image", IMAGE)
    users_dataset(api)
    code, _, err = moor("uninstall", "--delete-data", "--yes")
    assert code == 0
    assert "  DATA: 1 Dataset, with the volumes of datasets" in err
    for resource in (CRDS, NAMESPACES, DATASETS, PRIORITYCLASSES):
        assert api.names(resource) == set()
    assert moor("uninstall", "--yes")[2].startswith("error: Moorage is not installed on this cluster")


@pytest.mark.parametrize("words", [(), ("--delete-data",)], ids=["data kept", "data deleted"])
def test_a_removal_that_is_cut_anywhere_is_finished_by_the_next(moor, api, words):
    def installed() -> None:
        api.clear()
        moor("install", "--image", IMAGE, "--public-url", "https://m.example.org")
        users_dataset(api)

    installed()
    before = api.writes
    assert moor("uninstall", "--yes", *words)[0] == 0
    whole, writes = api.snapshot(), api.writes - before
    assert writes > 40
    for cut in [0, *random.sample(range(1, writes - 3), 3), *range(writes - 3, writes)]:
        installed()
        api.fail_after = cut
        with pytest.raises(ConnectionResetError):
            moor("uninstall", "--yes", *words)
        api.fail_after = None
        code, _, err = moor("uninstall", "--yes", *words)
        assert code == 0 or "is not installed" in err, f"cut after {cut} writes: {err}"
        assert api.snapshot() == whole, f"cut after {cut} writes"


def test_a_dry_run_says_it_and_removes_nothing(moor, api):
    moor("install", "--image", IMAGE)
    code, out, _ = moor("uninstall", "--dry-run")
    assert code == 0
    lines = out.splitlines()
    assert lines[:2] == [
        "uninstall",
        "to remove:",
    ]
    assert "  services: moorage-extender, moorage-operator, moorage-server, moorage-webhook" in lines
    assert "  accounts in moorage-users: 1; these users cannot log in meanwhile" in lines
    assert len(api.names(DEPLOYMENTS)) == 4


def test_nothing_goes_without_an_answer_or_without_rights(moor, api, monkeypatch):
    moor("install", "--image", IMAGE)
    for answer, code in (("", 2), ("n\n", 130)):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert moor("uninstall")[0] == code
    api.denied = {("delete", "deployments")}
    code, _, err = moor("uninstall", "--yes")
    assert code == 1
    assert "delete deployments.apps in namespace moorage-system" in err
    assert len(api.names(DEPLOYMENTS)) == 4


def test_a_priority_class_that_jobs_name_stays(moor, api):
    moor("install", "--image", IMAGE)
    template = {"spec": {"priorityClassName": "moorage-guest"}}
    api.put(JOBS, {"metadata": {"name": "train", "namespace": "lab"}, "spec": {"template": template}})
    _, _, err = moor("uninstall", "--yes")
    assert "PriorityClass moorage-guest: Job lab/train could not create pods without it" in err
    assert api.names(PRIORITYCLASSES) == {"moorage-guest"}


def test_a_gate_is_lifted_and_that_of_others_stays(moor, api):
    moor("install", "--image", IMAGE)
    gates = [{"name": "moorage.dev/machine"}, {"name": "example.org/mine"}]
    api.put(PODS, {"metadata": {"name": "guest", "namespace": "lab"}, "spec": {"schedulingGates": gates}})
    moor("uninstall", "--yes")
    assert api.stored(PODS, "guest", "lab")["spec"]["schedulingGates"] == [{"name": "example.org/mine"}]


def test_what_is_still_going_is_named(moor, api):
    moor("install", "--image", IMAGE)
    meta = {"name": "digits", "namespace": "lab", "finalizers": ["example.org/mine"]}
    api.put(DATASETS, {"metadata": meta, "spec": {}})
    code, _, err = moor("uninstall", "--delete-data", "--yes", "--timeout", "5s")
    assert code == 1
    assert "warning: Dataset lab/digits is still being deleted" in err


def test_keeping_and_deleting_are_not_both_asked_for(moor):
    assert moor("uninstall", "--keep-data", "--delete-data")[0] == 2


def test_pods_of_ours_that_do_not_end_do_not_block_it(moor, api):
    moor("install", "--image", IMAGE)
    labels = {"app.kubernetes.io/name": "moorage-server"}
    api.put(PODS, {"metadata": {"name": "lost", "namespace": SYSTEM_NAMESPACE, "labels": labels}, "spec": {}})
    code, _, err = moor("uninstall", "--yes", "--timeout", "5s")
    assert code == 0
    assert "warning: these pods have not ended: lost" in err
    assert "moorage-server" not in api.names(SERVICEACCOUNTS)


def test_data_of_argo_itself_stays_where_ours_is_deleted(moor, api):
    moor("install", "--image", IMAGE)
    ours = api.stored(CRDS, "workflows.argoproj.io")
    api.put(CRDS, dict(ours) | {"spec": {"group": "argoproj.io", "versions": [{"name": "v1alpha1"}]}})
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "spec": {}}
    adopted = {INSTANCE_LABEL: OUR_INSTANCE}
    held = [FINALIZER, CRON_FINALIZER, BEATS_FINALIZER]
    meta = {"name": "ours", "namespace": "lab", "labels": adopted, "finalizers": held}
    api.put(WORKFLOWS, workflow | {"metadata": meta})
    api.put(WORKFLOWS, workflow | {"metadata": {"name": "argos", "namespace": "lab"}})
    step = {"name": "step", "namespace": "lab", "finalizers": [FINALIZER, "of/another"]}
    api.put(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": step, "spec": {}})
    code, _, err = moor("uninstall", "--yes", "--delete-data")
    assert code == 0, err
    assert (api.has(WORKFLOWS, "ours", "lab"), api.has(WORKFLOWS, "argos", "lab")) == (False, True)
    assert api.stored(PODS, "step", "lab")["metadata"]["finalizers"] == ["of/another"]
    assert "workflows.argoproj.io" in api.names(CRDS)
    assert "cronworkflows.argoproj.io" not in api.names(CRDS)
