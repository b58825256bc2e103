"""`moor uninstall`, as an admin types it, on a cluster in memory."""

from __future__ import annotations

import io

import pytest

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
from moorage_kube.testing.builders import a_definition, a_job, a_pod, an_object
from moorage_testing.commandline import Moor
from moorage_testing.installing import IMAGE, InstallableApi, cuts, record_of
from moorage_testing.installing import api as api
from moorage_testing.installing import moor as moor


@pytest.fixture
def installed(moor: Moor) -> Moor:
    moor("install", "--image", IMAGE)
    return moor


def put_dataset(api: InstallableApi, finalizer: str = "moorage.dev/dataset") -> None:
    api.put(DATASETS, an_object(DATASETS, "digits", finalizers=[finalizer], spec={}))


def test_data_stays_and_the_rest_is_removed(installed, api):
    put_dataset(api)
    stored = dict(api.stored(CONFIGMAPS, "moorage", SYSTEM_NAMESPACE))
    api.put(CONFIGMAPS, stored | {"data": stored["data"] | {"workspaceUrl": "https://*.apps.example.org"}})
    done = installed("uninstall", "--yes")
    assert (done.code, done.out) == (0, "")
    assert "Moorage is removed\ninstall it again: moor install." in done.err
    assert api.names(MUTATING_WEBHOOKS) | api.names(DEPLOYMENTS) | api.names(SERVICES) == set()
    assert api.names(CONFIGMAPS) == {"moorage-install"}
    assert len(api.names(CRDS)) == 15
    assert api.names(NAMESPACES) == {"moorage-system", "moorage-users"}
    assert "finalizers" not in api.stored(DATASETS, "digits", "lab")["metadata"]
    record, values = record_of(api), {"image": IMAGE, "workspaceUrl": "https://*.apps.example.org"}
    assert (record.state, record.values) == ("removed", values)
    again = installed("install")
    assert (again.code, again.out) == (0, "")  # the first user is there
    info = api.stored(CONFIGMAPS, "moorage", SYSTEM_NAMESPACE)["data"]
    assert info["workspaceUrl"] == "https://*.apps.example.org"


def test_delete_data_removes_all(installed, api):
    put_dataset(api)
    done = installed("uninstall", "--delete-data", "--yes")
    assert done.code == 0
    assert "  DATA: 1 Dataset, with the volumes of datasets" in done.err
    for resource in (CRDS, NAMESPACES, DATASETS, PRIORITYCLASSES):
        assert api.names(resource) == set()
    assert installed("uninstall", "--yes").err.startswith("error: Moorage is not installed on this cluster")


@pytest.mark.parametrize("words", [(), ("--delete-data",)], ids=["data kept", "data deleted"])
def test_a_removal_that_is_cut_anywhere_is_finished_by_the_next(moor, api, words):
    def install() -> None:
        api.clear()
        moor("install", "--image", IMAGE, "--public-url", "https://m.example.org")
        put_dataset(api)

    install()
    before = api.writes
    assert moor("uninstall", "--yes", *words).code == 0
    whole, writes = api.snapshot(), api.writes - before
    assert writes > 40
    for cut in cuts(writes):
        install()
        api.fail_after = cut
        with pytest.raises(ConnectionResetError):
            moor("uninstall", "--yes", *words)
        api.fail_after = None
        done = moor("uninstall", "--yes", *words)
        assert done.code == 0 or "is not installed" in done.err, f"cut after {cut} writes: {done.err}"
        assert api.snapshot() == whole, f"cut after {cut} writes"


def test_a_dry_run_prints_the_objects_and_removes_nothing(installed, api):
    done = installed("uninstall", "--dry-run")
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[:2] == ["uninstall", "to remove:"]
    assert "  services: moorage-extender, moorage-operator, moorage-server, moorage-webhook" in lines
    assert "  accounts in moorage-users: 1; these users cannot log in meanwhile" in lines
    assert len(api.names(DEPLOYMENTS)) == 4


def test_nothing_is_removed_without_an_answer_or_without_rights(installed, api, monkeypatch):
    for answer, code in (("", 2), ("n\n", 130)):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        assert installed("uninstall").code == code
    api.denied = {("delete", "deployments")}
    done = installed("uninstall", "--yes")
    assert done.code == 1
    assert "delete deployments.apps in namespace moorage-system" in done.err
    assert len(api.names(DEPLOYMENTS)) == 4


def test_a_priority_class_that_jobs_name_stays(installed, api):
    api.put(JOBS, a_job(pod={"priorityClassName": "moorage-guest"}))
    done = installed("uninstall", "--yes")
    assert "PriorityClass moorage-guest: Job lab/train could not create pods without it" in done.err
    assert api.names(PRIORITYCLASSES) == {"moorage-guest"}


def test_a_gate_is_lifted_and_that_of_others_stays(installed, api):
    api.put(PODS, a_pod("guest", gates=["moorage.dev/machine", "example.org/mine"]))
    installed("uninstall", "--yes")
    assert api.stored(PODS, "guest", "lab")["spec"]["schedulingGates"] == [{"name": "example.org/mine"}]


def test_an_object_that_is_still_being_deleted_is_named(installed, api):
    put_dataset(api, "example.org/mine")
    done = installed("uninstall", "--delete-data", "--yes", "--timeout", "5s")
    assert done.code == 1
    assert "warning: Dataset lab/digits is still being deleted" in done.err


def test_keeping_and_deleting_are_not_both_asked_for(moor):
    assert moor("uninstall", "--keep-data", "--delete-data").code == 2


def test_pods_of_ours_that_do_not_end_do_not_block_it(installed, api):
    labels = {"app.kubernetes.io/name": "moorage-server"}
    api.put(PODS, a_pod("lost", namespace=SYSTEM_NAMESPACE, labels=labels))
    done = installed("uninstall", "--yes", "--timeout", "5s")
    assert done.code == 0
    assert "warning: these pods have not ended: lost" in done.err
    assert "moorage-server" not in api.names(SERVICEACCOUNTS)


def test_data_of_argo_itself_stays_where_ours_is_deleted(installed, api):
    ours = api.stored(CRDS, "workflows.argoproj.io")
    api.put(CRDS, dict(ours) | {"spec": a_definition(WORKFLOWS)["spec"]})
    adopted, held = {INSTANCE_LABEL: OUR_INSTANCE}, [FINALIZER, CRON_FINALIZER, BEATS_FINALIZER]
    api.put(WORKFLOWS, an_object(WORKFLOWS, "ours", labels=adopted, finalizers=held, spec={}))
    api.put(WORKFLOWS, an_object(WORKFLOWS, "argos", spec={}))
    api.put(PODS, a_pod("step", finalizers=[FINALIZER, "of/another"]))
    done = installed("uninstall", "--yes", "--delete-data")
    assert done.code == 0, done.err
    assert (api.has(WORKFLOWS, "ours", "lab"), api.has(WORKFLOWS, "argos", "lab")) == (False, True)
    assert api.stored(PODS, "step", "lab")["metadata"]["finalizers"] == ["of/another"]
    assert "workflows.argoproj.io" in api.names(CRDS)
    assert "cronworkflows.argoproj.io" not in api.names(CRDS)
