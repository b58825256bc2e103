"""Resource templates on whichever cluster the environment chose: objects made, waited for, changed and deleted."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest
import yaml

from moorage.model.argo import WORKFLOW_LABEL, WORKFLOW_TEMPLATES, WORKFLOWS
from moorage.model.names import HOST_ENV_ANNOTATION
from moorage_kube.errors import NotFound
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import CONFIGMAPS, PODS, SERVICEACCOUNTS, Obj, Resource
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.cluster("kubelet", "controllers", "scheduler"),
]

RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC, "v1", "roles", "Role")
ROLEBINDINGS = Resource(RBAC, "v1", "rolebindings", "RoleBinding")
JOBS = Resource("batch", "v1", "jobs", "Job")
FINAL = ("Succeeded", "Failed", "Error")
RULES = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get"]},
    {"apiGroups": ["argoproj.io"], "resources": ["workflows"], "verbs": ["create", "get", "patch"]},
    {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "verbs": ["create", "get", "list", "patch", "update", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"]},
]
CHILD = """
spec:
  entrypoint: main
  arguments: {parameters: [{name: words, value: nothing}]}
  templates:
  - name: main
    inputs: {parameters: [{name: words}]}
    container: {image: IMAGE, command: [sh, -c, 'test "$0" = "some words"', "{{inputs.parameters.words}}"]}
"""
WHOLE = """
spec:
  entrypoint: main
  serviceAccountName: maker
  automountServiceAccountToken: false
  templates:
  - name: main
    steps:
    - - {name: job, template: job}
      - {name: child, template: child}
      - {name: apply, template: apply}
    - - {name: again, template: apply}
      - {name: pod, template: pod}
      - {name: label, template: label}
    - - {name: read, template: read}
    - - {name: delete, template: delete}
  - name: job
    resource:
      action: create
      setOwnerReference: true
      successCondition: status.succeeded > 0
      failureCondition: status.failed > 0
      manifest: |
        apiVersion: batch/v1
        kind: Job
        metadata: {generateName: made-}
        spec:
          template:
            metadata: {annotations: {HOST_ENV: "true"}}
            spec:
              restartPolicy: Never
              containers: [{name: main, image: IMAGE, command: ["true"]}]
    outputs:
      parameters:
      - {name: name, globalName: job, valueFrom: {jsonPath: '{.metadata.name}'}}
      - name: owner
        globalName: owner
        valueFrom: {jqFilter: '.metadata.ownerReferences[].name, .status.succeeded'}
  - name: child
    resource:
      action: create
      successCondition: status.phase == Succeeded
      failureCondition: status.phase in (Failed, Error)
      manifest: |
        apiVersion: argoproj.io/v1alpha1
        kind: Workflow
        metadata: {generateName: child-}
        spec:
          arguments: {parameters: [{name: words, value: some words}]}
          workflowTemplateRef: {name: child}
    outputs: {parameters: [{name: phase, globalName: phase, valueFrom: {jsonPath: '{.status.phase}'}}]}
  - name: apply
    resource:
      action: apply
      manifest: |
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: applied, labels: {cleanup: "true"}}
        data: {some: '{"one": [1, {"two": "three"}]}'}
  - name: pod
    resource:
      action: patch
      manifest: |
        apiVersion: v1
        kind: Pod
        metadata: {name: '{{pod.name}}', annotations: {foo: bar}}
  - name: label
    resource:
      action: patch
      mergeStrategy: json
      flags: [workflow, "{{workflow.name}}"]
      manifest: |
        - {op: add, path: /metadata/labels/foo, value: bar}
  - name: read
    inputs:
      artifacts:
      - name: manifest
        path: /tmp/manifest.yaml
        raw: {data: "{apiVersion: v1, kind: ConfigMap, metadata: {name: applied}}"}
    resource: {action: get, manifestFrom: {artifact: {name: manifest}}}
    outputs: {parameters: [{name: two, globalName: two, valueFrom: {jqFilter: '.data.some | fromjson | .one[1]'}}]}
  - name: delete
    resource: {action: delete, flags: [configmap, --selector, cleanup=true]}
"""


class Scene:
    """A namespace with an account that may do what the templates do."""

    def __init__(self, cluster: Cluster, api: KubeClient, namespace: str) -> None:
        self.cluster, self.api, self.namespace = cluster, api, namespace
        self.image = "busybox" if cluster.kind == "local" else cluster.image

    async def prepare(self) -> None:
        meta = {"name": "maker"}
        await self.api.create(SERVICEACCOUNTS, {"metadata": meta}, self.namespace)
        await self.api.create(ROLES, {"metadata": meta, "rules": RULES}, self.namespace)
        binding: Obj = {
            "metadata": meta,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "maker"},
            "subjects": [{"kind": "ServiceAccount", "name": "maker", "namespace": self.namespace}],
        }
        await self.api.create(ROLEBINDINGS, binding, self.namespace)

    def document(self, manifest: str, name: str, resource: Resource = WORKFLOWS) -> Obj:
        document: Obj = yaml.safe_load(
            manifest.replace("IMAGE", self.image).replace("HOST_ENV", HOST_ENV_ANNOTATION)
        )
        document |= {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name}}
        if self.cluster.kind == "local":
            document["spec"]["podMetadata"] = {"annotations": {HOST_ENV_ANNOTATION: "true"}}
        return document

    async def run(self, manifest: str) -> Obj:
        name = f"wf-{secrets.token_hex(4)}"
        await self.api.create(WORKFLOWS, self.document(manifest, name), self.namespace)

        async def read() -> Obj | None:
            obj = await self.api.get(WORKFLOWS, name, self.namespace)
            return obj if (obj.get("status") or {}).get("phase") in FINAL else None

        obj: Obj = await until(f"workflow {name} to end", read)
        return obj


@pytest.fixture
async def scene(cluster: Cluster, api: KubeClient, namespace: str) -> Scene:
    made = Scene(cluster, api, namespace)
    await made.prepare()
    return made


async def test_a_workflow_makes_a_job_and_a_workflow_and_changes_what_it_may(scene: Scene) -> None:
    child = scene.document(CHILD, "child", WORKFLOW_TEMPLATES)
    await scene.api.create(WORKFLOW_TEMPLATES, child, scene.namespace)
    obj = await scene.run(WHOLE)
    assert obj["status"]["phase"] == "Succeeded", obj["status"]
    outputs: dict[str, Any] = {row["name"]: row["value"] for row in obj["status"]["outputs"]["parameters"]}
    job = await scene.api.get(JOBS, outputs.pop("job"), scene.namespace)
    assert job["metadata"]["ownerReferences"][0]["uid"] == obj["metadata"]["uid"]
    assert json.loads(outputs.pop("two")) == {"two": "three"}
    assert outputs == {"owner": f"{obj['metadata']['name']}\n1", "phase": "Succeeded"}
    assert obj["metadata"]["labels"]["foo"] == "bar"
    selector = f"{WORKFLOW_LABEL}={obj['metadata']['name']}"
    pods = (await scene.api.list(PODS, scene.namespace, label_selector=selector)).items
    assert [pod["metadata"]["annotations"].get("foo") for pod in pods].count("bar") == 1
    with pytest.raises(NotFound):
        await scene.api.get(CONFIGMAPS, "applied", scene.namespace)


async def test_a_step_has_the_rights_of_its_account_alone(scene: Scene) -> None:
    obj = await scene.run("""
spec:
  entrypoint: main
  templates:
  - name: main
    resource:
      action: create
      manifest: "{apiVersion: v1, kind: ConfigMap, metadata: {name: made}}"
""")
    assert obj["status"]["phase"] == "Failed"
    account = f"system:serviceaccount:{scene.namespace}:default"
    message = obj["status"]["message"]
    assert "ConfigMap 'made' cannot be created: configmaps" in message, message
    assert f'User "{account}" cannot create resource "configmaps"' in message, message
