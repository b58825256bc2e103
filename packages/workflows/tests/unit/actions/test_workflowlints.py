from __future__ import annotations

import pytest

from moorage.api.errors import ErrorCode
from moorage.evaluator.pool import InPlace
from moorage.model.argo import WORKFLOW_TEMPLATES
from moorage_kube.errors import Problems
from moorage_kube.resources import CONFIGMAPS
from moorage_kube.yamldocuments import parse_yaml
from moorage_local.testing.fakeapi import FakeApi
from moorage_workflows.actions.workflowlints import checks_of

pytestmark = pytest.mark.anyio
LIBRARY = """\
apiVersion: argoproj.io/v1alpha1
kind: WorkflowTemplate
metadata: {name: lib}
spec:
  templates:
  - {name: t, container: {image: busybox}}
"""
USER = """\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {generateName: use-}
spec:
  entrypoint: main
  templates:
  - name: main
    steps:
    - - name: a
        templateRef: {name: lib, template: t}
"""


async def test_the_templates_of_the_namespace_are_known(api):
    await api.create(WORKFLOW_TEMPLATES, parse_yaml(LIBRARY), "lab")
    assert list(await checks_of(api, "lab", evaluation=InPlace())(parse_yaml(USER))) == []
    with pytest.raises(Problems) as refused:
        await checks_of(api, "other", evaluation=InPlace())(parse_yaml(USER))
    field = "spec.templates[0].steps[0][0].templateRef.name"
    message = f"{field}: no WorkflowTemplate is named 'lib'; known are: none"
    assert (refused.value.problems, refused.value.fields) == ([(message, None)], (field,))
    assert refused.value.code == ErrorCode.INVALID


async def test_templates_of_templates_are_looked_for(api):
    second = parse_yaml(USER) | {"kind": "WorkflowTemplate", "metadata": {"name": "second"}}
    second["spec"].pop("entrypoint")
    await api.create(WORKFLOW_TEMPLATES, second, "lab")
    await api.create(WORKFLOW_TEMPLATES, parse_yaml(LIBRARY), "lab")
    user = parse_yaml(USER.replace("{name: lib, template: t}", "{name: second, template: main}"))
    assert list(await checks_of(api, "lab", evaluation=InPlace())(user)) == []


async def test_templates_that_come_along_are_known():
    assert (
        list(await checks_of(FakeApi(), "lab", [parse_yaml(LIBRARY)], evaluation=InPlace())(parse_yaml(USER)))
        == []
    )


async def test_warnings_are_returned():
    document = parse_yaml(LIBRARY)
    document["spec"]["templates"][0]["container"]["args"] = ["{{=workflow.nothing}}"]
    (warning,) = await checks_of(FakeApi(), "lab", evaluation=InPlace())(document)
    assert warning.startswith("spec.templates[0].container.args[0]: ")


async def test_an_image_that_this_cluster_does_not_run_is_refused():
    document = parse_yaml(LIBRARY) | {"kind": "Workflow"}
    document["spec"]["entrypoint"] = "t"
    node = {"metadata": {"name": "n"}, "status": {"nodeInfo": {"containerRuntimeVersion": "process://1"}}}
    with pytest.raises(Problems) as refused:
        await checks_of(FakeApi(), "lab", evaluation=InPlace(), nodes=[node])(document)
    [(message, _)] = refused.value.problems
    assert message.startswith("spec.templates[0].container.image: cannot be pulled: this cluster runs commands on")


async def test_many_errors_are_counted():
    document = parse_yaml(LIBRARY)
    document["spec"]["templates"] += [{"name": f"t{number}"} for number in range(30)]
    with pytest.raises(Problems) as refused:
        await checks_of(FakeApi(), "lab", evaluation=InPlace())(document)
    assert refused.value.problems[-1] == ("and 10 more", "moor workflow lint FILE shows all")
    assert len(refused.value.fields) == 20


async def test_a_semaphore_without_a_limit_is_warned_of(api):
    reference = {"configMapKeyRef": {"name": "limits", "key": "train"}}
    document = parse_yaml(LIBRARY)
    document["spec"]["synchronization"] = {"semaphores": [{"database": {"key": "all"}}]}
    document["spec"]["templates"][0]["synchronization"] = {
        "semaphores": [reference, {"configMapKeyRef": {"name": "limits", "key": "{{inputs.parameters.k}}"}}]
    }
    document["spec"]["templates"][0]["inputs"] = {"parameters": [{"name": "k", "value": "train"}]}
    api.put(CONFIGMAPS, {"metadata": {"name": "limits", "namespace": "lab"}, "data": {"other": "1"}})
    assert list(await checks_of(api, "lab", evaluation=InPlace())(document)) == [
        "spec.synchronization.semaphores[0].database: keeps it waiting until there is a limit: the ConfigMap"
        " workflow-limits does not exist",
        "spec.templates[0].synchronization.semaphores[0].configMapKeyRef: keeps it waiting until there is a limit:"
        " the ConfigMap limits has no key train",
    ]
    api.put(CONFIGMAPS, {"metadata": {"name": "limits", "namespace": "lab"}, "data": {"train": "1"}})
    api.put(CONFIGMAPS, {"metadata": {"name": "workflow-limits", "namespace": "lab"}, "data": {"all": "1"}})
    assert list(await checks_of(api, "lab", evaluation=InPlace())(document)) == []
