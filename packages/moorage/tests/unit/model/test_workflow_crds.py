"""Definitions of Argo's kinds, and whose they are."""

from __future__ import annotations

import copy

import pytest

from moorage.model.argo import KINDS
from moorage.model.workflowcrds import is_anothers, is_own_crd, is_workflow_crd, workflow_crds

OURS = {crd["metadata"]["name"]: crd for crd in workflow_crds()}
WORKFLOW = OURS["workflows.argoproj.io"]


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
    ("live", "anothers"),
    [
        pytest.param(None, False, id="none is there"),
        pytest.param(WORKFLOW, False, id="ours"),
        pytest.param(WORKFLOW | {"metadata": {"name": "workflows.argoproj.io"}}, True, id="without our labels"),
        pytest.param(changed(versions=[{"name": "v1alpha1", "schema": {}}]), True, id="Argo's, applied over ours"),
        pytest.param(WORKFLOW | {"metadata": {"name": "x.argoproj.io"}}, False, id="another kind"),
        pytest.param({"kind": "Deployment", "metadata": {"name": "workflows.argoproj.io"}}, False, id="no kind"),
    ],
)
def test_a_definition_that_somebody_else_made_is_known(live, anothers):
    assert is_anothers(live) is anothers


def test_ours_are_known_as_ours_after_the_api_server_has_stored_them():
    stored = [crd | {"status": {"acceptedNames": {}}} for crd in workflow_crds()]
    assert all(is_workflow_crd(crd) and is_own_crd(crd) for crd in stored)
