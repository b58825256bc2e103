"""`moor install` and `moor upgrade`, as an admin types them, on a cluster in memory."""

from __future__ import annotations

import io

import pytest
import yaml

from moorage import __version__
from moorage.decide.install.record import InstallRecord, Ref, make_record
from moorage.model.argo import WORKFLOWS
from moorage.model.manifests import CLUSTERROLEBINDINGS
from moorage.model.names import SYSTEM_NAMESPACE
from moorage.model.tenant import TENANTS
from moorage_kube.resources import (
    CONFIGMAPS,
    CRDS,
    DEPLOYMENTS,
    INGRESSES,
    MUTATING_WEBHOOKS,
    NODES,
    SERVICEACCOUNTS,
    STORAGECLASSES,
)
from moorage_kube.testing.builders import a_definition, a_node, an_object
from moorage_testing.installing import IMAGE, InstallableApi, cuts, record_of
from moorage_testing.installing import api as api
from moorage_testing.installing import moor as moor


def info(api: InstallableApi) -> dict[str, str]:
    return dict(api.stored(CONFIGMAPS, "moorage", SYSTEM_NAMESPACE)["data"])


def set_version(api: InstallableApi, version: str, *more: Ref, image: str = IMAGE) -> None:
    """Record an installation by this version, with `more` objects."""
    record = record_of(api)
    objects, values = (*record.objects, *more), record.values | {"image": image}
    api.put(CONFIGMAPS, make_record(InstallRecord(values=values, version=version, objects=objects)))


def test_an_installation_brings_all_up_and_names_the_first_user(moor, api):
    typed = moor("install", "--image", IMAGE)
    assert typed.code == 0
    assert typed.out.startswith("user: admin\npassword: ")
    for note in ("moorage-server is available (1/1)", "the webhook answers", "a team: moor tenant create TEAM"):
        assert note in typed.err
    assert (len(api.names(DEPLOYMENTS)), len(api.names(CRDS))) == (4, 15)
    record = record_of(api)
    assert (record.values, record.version, record.state) == ({"image": IMAGE}, __version__, "done")
    assert len(api.names(SERVICEACCOUNTS) & {"moorage-server", "moorage-operator"}) == 2
    assert any(name.startswith("moorage-admin-admin-") for name in api.names(CLUSTERROLEBINDINGS))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_image_of_runs_is_asked_for_once_and_new_teams_get_it(moor, api, monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setattr("sys.stdin", Terminal("python:3.12-slim\n"))
    assert moor("install", "--image", IMAGE).code == 0
    assert info(api)["runImage"] == "python:3.12-slim"
    assert moor("install").code == 0, "the input has ended, and it does not ask again"
    moor("tenant", "create", "vision")
    assert api.stored(TENANTS, "vision")["spec"]["defaults"] == {"image": "python:3.12-slim"}
    moor("tenant", "create", "audio", "--image", "ours:1")
    assert api.stored(TENANTS, "audio")["spec"]["defaults"] == {"image": "ours:1"}


@pytest.mark.parametrize("words", [["--run-image", "ours:1"], ["--dry-run"]])
def test_an_answer_that_is_given_or_not_needed_is_not_asked_for(moor, monkeypatch, words):
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setattr("sys.stdin", Terminal())
    assert moor("install", "--image", IMAGE, *words).code == 0


def test_installing_again_changes_nothing_and_shows_no_password(moor, api):
    moor("install", "--image", IMAGE)
    typed = moor("install")
    assert (typed.code, typed.out) == (0, "")
    assert "nothing changes" in typed.err
    assert "objects: 0 created, 0 changed" in typed.err


def test_values_of_earlier_installations_stay_and_can_be_taken_back(moor, api, tmp_path):
    values = tmp_path / "values.yaml"
    values.write_text("storageClass: fast\nreplicas: {webhook: 3}\npublicUrl: https://file.example.org\n")
    moor("install", "--image", IMAGE, "--values", str(values), "--public-url", "https://typed.example.org")
    moor("install", "--ingress-class", "nginx")
    assert record_of(api).values == {
        "image": IMAGE,
        "storageClass": "fast",
        "replicas": {"webhook": 3},
        "publicUrl": "https://typed.example.org",
        "ingressClass": "nginx",
    }
    assert api.names(INGRESSES) == {"moorage-server"}
    assert info(api)["publicUrl"] == "https://typed.example.org"
    typed = moor("install", "--ingress-class", "")
    assert "removes Ingress moorage-system/moorage-server" in typed.err
    assert api.names(INGRESSES) == set()
    assert "ingressClass" not in record_of(api).values


def test_a_dry_run_writes_nothing_and_shows_fields(moor, api):
    assert "to create, 0 to change" in moor("install", "--image", IMAGE, "--dry-run").out
    assert api.names(CONFIGMAPS) == set()
    documents = yaml.safe_load(moor("install", "--image", IMAGE, "--dry-run", "-o", "yaml").out)
    assert {"Deployment", "CustomResourceDefinition"} <= {obj["kind"] for obj in documents["items"]}
    moor("install", "--image", IMAGE)
    typed = moor("install", "--public-url", "https://a.example.org", "--dry-run")
    assert typed.out.splitlines()[:2] == [
        "~ ConfigMap moorage-system/moorage",
        "    data.publicUrl: (none) → https://a.example.org",
    ]
    assert "publicUrl" not in info(api)


def test_without_an_image_the_hint_says_how_to_build_one(moor, api):
    typed = moor("install")
    assert typed.code == 2
    assert typed.err.startswith("error: image missing: use --image REGISTRY/moorage:TAG\nhint: build it and push")
    assert api.names(CONFIGMAPS) == set()


def test_all_rights_that_are_missing_are_named_before_anything_is_written(moor, api):
    api.denied = {("create", "customresourcedefinitions"), ("escalate", "clusterroles")}
    typed = moor("install", "--image", IMAGE)
    assert typed.code == 1
    assert "create customresourcedefinitions.apiextensions.k8s.io" in typed.err
    assert "escalate clusterroles.rbac.authorization.k8s.io" in typed.err
    assert api.names(CONFIGMAPS) == set()


def test_conflicts_are_named_by_manager_and_field_and_can_be_taken_over(moor, api):
    moor("install", "--image", IMAGE)
    api.theirs = {"moorage": ".data.publicUrl", "moorage-webhook": ".spec.replicas"}
    typed = moor("install", "--public-url", "https://a.example.org")
    assert typed.code == 2
    assert 'ConfigMap moorage-system/moorage: "kubectl-edit" has set data.publicUrl to another value' in typed.err
    assert "has set spec.replicas to another value" in typed.err
    assert "publicUrl" not in info(api)
    assert moor("install", "--public-url", "https://a.example.org", "--force-conflicts").code == 0
    assert info(api)["publicUrl"] == "https://a.example.org"


def test_an_installation_that_is_cut_anywhere_is_finished_by_the_next(moor, api):
    moor("install", "--image", IMAGE)
    whole, writes = api.snapshot(), api.writes
    assert writes > 70
    for cut in cuts(writes):
        api.clear()
        api.fail_after = cut
        with pytest.raises(ConnectionResetError):
            moor("install", "--image", IMAGE)
        api.fail_after = None
        assert moor("install", "--image", IMAGE).code == 0, f"cut after {cut} writes"
        assert record_of(api).state == "done", f"cut after {cut} writes"
        assert api.snapshot() == whole, f"cut after {cut} writes"
        assert "nothing changes" in moor("install").err, f"cut after {cut} writes"


def test_an_upgrade_that_is_cut_anywhere_is_finished_by_the_next(moor, api):
    def older() -> None:
        """An older version, with values of the admin and an object that is shipped no more."""
        api.clear()
        moor("install", "--image", IMAGE, "--public-url", "https://m.example.org")
        stored = dict(api.stored(CONFIGMAPS, "moorage", SYSTEM_NAMESPACE))
        api.put(CONFIGMAPS, stored | {"data": stored["data"] | {"workspaceUrl": "https://*.apps.example.org"}})
        api.put(CONFIGMAPS, an_object(CONFIGMAPS, "moorage-old", namespace=SYSTEM_NAMESPACE))
        old = Ref("v1", "ConfigMap", SYSTEM_NAMESPACE, "moorage-old")
        set_version(api, "0.0.9", old, image="registry.example.org/moorage:0.0.9")

    older()
    before = api.writes
    assert moor("upgrade").code == 0
    whole, writes = api.snapshot(), api.writes - before
    assert info(api)["workspaceUrl"] == "https://*.apps.example.org"
    assert not api.has(CONFIGMAPS, "moorage-old", SYSTEM_NAMESPACE)
    for cut in cuts(writes):
        older()
        api.fail_after = cut
        with pytest.raises(ConnectionResetError):
            moor("upgrade")
        api.fail_after = None
        assert moor("upgrade").code == 0, f"cut after {cut} writes"
        assert api.snapshot() == whole, f"cut after {cut} writes"


def test_a_deployment_that_does_not_come_up_ends_with_its_reason(moor, api):
    api.broken = {"moorage-server"}
    typed = moor("install", "--image", IMAGE, "--timeout", "30s")
    assert typed.code == 1
    assert "error: not up after 30 s: moorage-server has 0 of 1 replicas" in typed.err
    assert "run the command again" in typed.err
    assert api.names(MUTATING_WEBHOOKS) == set()  # nothing is sent to a webhook that may not be there
    assert moor("install", "--no-wait").code == 0


def test_a_cluster_without_a_default_storage_class_asks_for_one(moor, api):
    api.remove(STORAGECLASSES, "fast")
    api.put(STORAGECLASSES, an_object(STORAGECLASSES, "slow"))
    typed = moor("install", "--image", IMAGE)
    assert "the cluster has no default StorageClass" in typed.err
    assert "--storage-class NAME; there are: slow" in typed.err
    assert "StorageClass 'fast' not found" in moor("install", "--image", IMAGE, "--storage-class", "fast").err
    assert moor("install", "--image", IMAGE, "--storage-class", "slow").code == 0


def test_an_old_kubernetes_and_a_local_cluster_are_refused(moor, api):
    api.kubernetes = "v1.29.1"
    assert "Moorage needs 1.30 or newer" in moor("install", "--image", IMAGE).err
    api.kubernetes = "v1.36.2"
    api.put(NODES, a_node(status={"nodeInfo": {"containerRuntimeVersion": "process://0.1.0"}}))
    assert "this is a local cluster" in moor("install", "--image", IMAGE).err


def test_another_namespace_and_wrong_values_are_refused(moor, tmp_path):
    assert "it is always moorage-system" in moor("install", "--image", IMAGE, "-n", "ml").err
    wrong = tmp_path / "values.yaml"
    wrong.write_text("publicUrl: x\nreplica: 1\n")
    typed = moor("install", "--image", IMAGE, "--values", str(wrong))
    assert typed.code == 2
    assert typed.err.count("error:") == 2
    assert "did you mean replicas?" in typed.err
    assert "invalid --timeout 'soon'" in moor("install", "--image", IMAGE, "--timeout", "soon").err


# --- upgrade


def test_an_upgrade_keeps_values_and_takes_the_image_of_its_version(moor, api):
    moor("install", "--image", IMAGE)
    set_version(api, "0.0.9", image="registry.example.org/moorage:0.0.9")
    typed = moor("upgrade")
    assert typed.code == 0
    assert f"Moorage {__version__} on Kubernetes v1.36.2, from 0.0.9" in typed.err
    available = [line.split()[0] for line in typed.err.splitlines() if " is available " in line]
    assert available == ["moorage-webhook", "moorage-extender", "moorage-operator", "moorage-server"]
    assert record_of(api).values["image"] == f"registry.example.org/moorage:{__version__}"


def test_an_upgrade_removes_what_it_ships_no_more_and_keeps_data(moor, api):
    moor("install", "--image", IMAGE)
    kinds = (CONFIGMAPS, SERVICEACCOUNTS)
    for kind in kinds:
        api.put(kind, an_object(kind, "moorage-old", namespace=SYSTEM_NAMESPACE))
    set_version(api, "0.0.9", *(Ref("v1", kind.kind, SYSTEM_NAMESPACE, "moorage-old") for kind in kinds))
    typed = moor("upgrade", "--image", IMAGE)
    assert typed.err.count("this version does not ship it") == 2
    assert not any(api.has(kind, "moorage-old", SYSTEM_NAMESPACE) for kind in kinds)


def test_an_upgrade_to_an_unknown_image_asks_for_it(moor, api):
    moor("install", "--image", IMAGE)
    set_version(api, "0.0.9", image="registry.example.org/moorage:ours")
    typed = moor("upgrade")
    assert typed.code == 2
    assert f"the image of version {__version__} is not known" in typed.err
    assert moor("upgrade", "--image", IMAGE).code == 0


def test_a_downgrade_is_refused_unless_it_is_forced(moor, api):
    moor("install", "--image", IMAGE)
    set_version(api, "9.0.0")
    for words in (("upgrade",), ("install",)):
        typed = moor(*words, "--image", IMAGE)
        assert typed.code == 2
        assert "Moorage 9.0.0 is installed, and this moor is older" in typed.err
    assert moor("upgrade", "--image", IMAGE, "--force").code == 0


def test_an_upgrade_needs_an_installation(moor):
    assert "Moorage is not installed on this cluster" in moor("upgrade", "--image", IMAGE).err


def test_an_installation_by_kubectl_is_taken_over_with_its_settings(moor, api):
    moor("install", "--image", IMAGE, "--public-url", "https://a.example.org")
    api.remove(CONFIGMAPS, "moorage-install", SYSTEM_NAMESPACE)
    assert moor("upgrade").code == 0
    assert record_of(api).values == {"image": IMAGE, "publicUrl": "https://a.example.org"}


def test_definitions_of_argo_itself_are_left_as_they_are(moor, api):
    api.put(CRDS, a_definition(WORKFLOWS))
    before = api.stored(CRDS, "workflows.argoproj.io")
    assert moor("install", "--image", IMAGE).code == 0
    assert api.stored(CRDS, "workflows.argoproj.io") == before
    assert "cronworkflows.argoproj.io" in api.names(CRDS)
