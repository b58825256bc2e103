"""Definitions of Argo's kinds, and whose they are."""

from __future__ import annotations

import copy

import pytest

from moorage.model.argo import KINDS
from moorage.model.crds import all_crds
from moorage.model.definitions import is_anothers, is_shared
from moorage_workflows.model.workflowcrds import workflow_crds

OURS = {crd["metadata"]["name"]: crd for crd in workflow_crds()}
WORKFLOW = OURS["workflows.argoproj.io"]
WITHOUT_LABELS = WORKFLOW | {"metadata": {"name": "workflows.argoproj.io"}}
DEPLOYMENT = {"kind": "Deployment", "metadata": {"name": "workflows.argoproj.io"}}


def changed(**spec):
    crd = copy.deepcopy(WORKFLOW)
    crd["spec"] |= spec
    return crd


def test_each_kind_has_a_definition_of_argos_name():
    assert set(OURS) == {f"{kind.plural}.argoproj.io" for kind in KINDS}
    assert {crd["spec"]["scope"] for crd in OURS.values()} == {"Namespaced", "Cluster"}


@pytest.mark.parametrize("crd", OURS.values(), ids=OURS)
def test_a_definition_keeps_every_field_and_has_no_subresource(crd):
    [version] = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    assert schema["properties"]["spec"]["x-kubernetes-preserve-unknown-fields"] is True
    assert "subresources" not in version
    assert crd["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "moorage"


def test_workflows_are_shown_as_argo_shows_them():
    [version] = WORKFLOW["spec"]["versions"]
    assert [column["name"] for column in version["additionalPrinterColumns"]] == ["Status", "Age", "Message"]


@pytest.mark.parametrize(
    ("live", "shipped", "anothers"),
    [
        pytest.param(None, WORKFLOW, False, id="none is there"),
        pytest.param(WORKFLOW, WORKFLOW, False, id="ours"),
        pytest.param(WITHOUT_LABELS, WORKFLOW, True, id="without our labels"),
        pytest.param(
            changed(versions=[{"name": "v1alpha1", "schema": {}}]), WORKFLOW, True, id="Argo's, applied over ours"
        ),
        pytest.param(WITHOUT_LABELS, None, False, id="another kind"),
        pytest.param(WITHOUT_LABELS, DEPLOYMENT, False, id="no kind"),
        pytest.param(changed(group="moorage.dev"), changed(group="moorage.dev"), False, id="of our own group"),
        pytest.param(WITHOUT_LABELS, changed(group="moorage.dev"), False, id="of our own group, changed by hand"),
    ],
)
def test_a_definition_that_somebody_else_made_is_known(live, shipped, anothers):
    assert is_anothers(live, shipped) is anothers


def test_ours_are_known_as_ours_after_the_api_server_has_stored_them():
    stored = [(crd | {"status": {"acceptedNames": {}}}, crd) for crd in workflow_crds()]
    assert not any(is_anothers(live, shipped) for live, shipped in stored)


def test_only_kinds_of_other_groups_are_shared():
    assert all(is_shared(crd) for crd in workflow_crds())
    assert not any(is_shared(crd) for crd in all_crds())
