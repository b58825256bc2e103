"""Workflows on whichever cluster the environment chose: what each step left, and how often it ran.

Every step that matters writes a line into a volume when it starts: that is what is counted.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest
import yaml

from moorage.cluster.serverurl import server_url
from moorage.model.argo import WORKFLOW_LABEL, WORKFLOWS
from moorage.model.names import HOST_ENV_ANNOTATION
from moorage_kube.errors import NotFound
from moorage_kube.meta import is_deleting
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NODES, PODS, PVCS, Obj
from moorage_kube.testing.waiting import until
from moorage_testing.cluster import Cluster
from moorage_testing.hollow import hollow_nodes
from moorage_testing.namespaces import until_printed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.timeout(600),
    pytest.mark.cluster("kubelet", "controllers", "scheduler"),
]

FINAL = ("Succeeded", "Failed", "Error")
EXAMPLES = Path(__file__).parents[4] / "examples"


class Scene:
    """Workflows in one namespace of a cluster."""

    def __init__(self, cluster: Cluster, api: KubeClient, namespace: str) -> None:
        self.cluster, self.api, self.namespace = cluster, api, namespace
        self.image = "busybox" if cluster.kind == "local" else cluster.image

    async def submit(self, manifest: str, *, host_env: bool = True) -> str:
        document = yaml.safe_load(manifest.replace("IMAGE", self.image))
        document |= {"apiVersion": WORKFLOWS.api_version, "kind": WORKFLOWS.kind}
        name = f"wf-{secrets.token_hex(4)}"
        document["metadata"] = {"name": name}
        if self.cluster.kind == "local" and host_env:
            document["spec"]["podMetadata"] = {"annotations": {HOST_ENV_ANNOTATION: "true"}}
        await self.api.create(WORKFLOWS, document, self.namespace)
        return name

    async def ended(self, name: str) -> Obj:
        async def read() -> Obj | None:
            obj = await self.api.get(WORKFLOWS, name, self.namespace)
            return obj if (obj.get("status") or {}).get("phase") in FINAL else None

        obj: Obj = await until(f"workflow {name} to end", read)
        return obj

    async def running(self, name: str, *, but: set[str]) -> Obj:
        """A running pod of the workflow that is none of those."""

        async def read() -> Obj | None:
            pods = (await self.api.list(PODS, self.namespace, label_selector=f"{WORKFLOW_LABEL}={name}")).items
            for pod in pods:
                phase = (pod.get("status") or {}).get("phase")
                if phase == "Running" and not is_deleting(pod) and pod["metadata"]["name"] not in but:
                    return pod
            return None

        pod: Obj = await until(f"a pod of {name} to run", read)
        return pod

    async def outputs(self, obj: Obj) -> dict[str, str]:
        return {row["name"]: row["value"] for row in (obj["status"].get("outputs") or {}).get("parameters") or ()}


@pytest.fixture
async def scene(cluster: Cluster, api: KubeClient, namespace: str) -> Scene:
    return Scene(cluster, api, namespace)


COUNTED = """
spec:
  entrypoint: main
  volumeClaimTemplates:
  - metadata: {name: work}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
  templates:
  - name: main
    steps:
    - - {name: long, template: long}
    - - {name: count, template: count}
  - name: long
    RETRY
    container:
      image: IMAGE
      command: [sh, -c, 'echo run >> /work/runs; echo counted; [ $(wc -l < /work/runs) -ge 3 ] || exec sleep 600']
      volumeMounts: [{name: work, mountPath: /work}]
  - name: count
    outputs: {parameters: [{name: runs, globalName: runs, valueFrom: {path: /tmp/count}}]}
    container:
      image: IMAGE
      command: [sh, -c, 'wc -l < /work/runs | tr -d " " > /tmp/count']
      volumeMounts: [{name: work, mountPath: /work}]
"""


LEAVES_WELL = 'trap "exit 0" TERM; sleep 600 & wait'


@pytest.mark.parametrize("when_told", ["exec sleep 600", LEAVES_WELL], ids=["is killed", "leaves with 0"])
async def test_a_step_that_is_evicted_twice_runs_three_times_and_never_two_at_once(scene, when_told) -> None:
    manifest = COUNTED.replace("RETRY", "metadata: {}").replace("exec sleep 600", f"{{ {when_told}; }}")
    name = await scene.submit(manifest)
    evicted: set[str] = set()
    for _ in range(2):
        pod = await scene.running(name, but=evicted)
        await until_printed(scene.api, scene.namespace, pod["metadata"]["name"], b"counted")
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"]}}
        await scene.api.create_subresource(PODS, pod["metadata"]["name"], "eviction", eviction, scene.namespace)
        evicted.add(pod["metadata"]["name"])
    obj = await scene.ended(name)
    assert obj["status"]["phase"] == "Succeeded"
    assert await scene.outputs(obj) == {"runs": "3"}


HANDS_ON = """
spec:
  entrypoint: main
  volumeClaimTemplates:
  - metadata: {name: work}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
  templates:
  - name: main
    outputs: {parameters: [{name: n, globalName: n, valueFrom: {path: /tmp/n, default: none}}]}
    container:
      image: IMAGE
      command: [sh, -c]
      args:
      - |
        trap 'exit 0' TERM
        if [ -e /work/begun ]; then echo complete > /tmp/n; exit 0; fi
        echo partial > /tmp/n; touch /work/begun; echo counted
        sleep 600 & wait
      volumeMounts: [{name: work, mountPath: /work}]
"""


async def test_a_step_that_is_evicted_and_leaves_well_hands_on_nothing_of_its_half_work(scene: Scene) -> None:
    name = await scene.submit(HANDS_ON)
    pod = await scene.running(name, but=set())
    await until_printed(scene.api, scene.namespace, pod["metadata"]["name"], b"counted")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"]}}
    await scene.api.create_subresource(PODS, pod["metadata"]["name"], "eviction", eviction, scene.namespace)
    obj = await scene.ended(name)
    assert (obj["status"]["phase"], await scene.outputs(obj)) == ("Succeeded", {"n": "complete"})


async def test_a_pod_that_is_deleted_by_hand_is_an_error_and_retried_where_the_manifest_says_so(scene) -> None:
    name = await scene.submit(COUNTED.replace("RETRY", "retryStrategy: {limit: 5, retryPolicy: Always}"))
    deleted: set[str] = set()
    for _ in range(2):
        pod = await scene.running(name, but=deleted)
        await until_printed(scene.api, scene.namespace, pod["metadata"]["name"], b"counted")
        await scene.api.delete(PODS, pod["metadata"]["name"], scene.namespace)
        deleted.add(pod["metadata"]["name"])
    obj = await scene.ended(name)
    assert obj["status"]["phase"] == "Succeeded"
    assert await scene.outputs(obj) == {"runs": "3"}


async def test_a_pod_that_is_deleted_by_hand_fails_a_workflow_without_retries(scene: Scene) -> None:
    name = await scene.submit(COUNTED.replace("RETRY", "metadata: {}"))
    pod = await scene.running(name, but=set())
    await scene.api.delete(PODS, pod["metadata"]["name"], scene.namespace)
    obj = await scene.ended(name)
    assert (obj["status"]["phase"], obj["status"]["progress"]) == ("Failed", "1/1")


async def test_the_end_of_a_workflow_leaves_no_held_pod_and_no_volume(scene: Scene) -> None:
    name = await scene.submit("""
spec:
  entrypoint: main
  podGC: {strategy: OnPodCompletion}
  volumeClaimTemplates:
  - metadata: {name: work}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
  templates:
  - name: main
    container:
      image: IMAGE
      command: [sh, -c, "echo x > /work/x"]
      volumeMounts: [{name: work, mountPath: /work}]
""")
    assert (await scene.ended(name))["status"]["phase"] == "Succeeded"

    async def is_gone() -> bool:
        pods = (await scene.api.list(PODS, scene.namespace, label_selector=f"{WORKFLOW_LABEL}={name}")).items
        claims = (await scene.api.list(PVCS, scene.namespace, label_selector=f"{WORKFLOW_LABEL}={name}")).items
        return not pods and not claims

    await until("pods and volumes to be gone", is_gone)


async def test_deleting_a_workflow_ends_its_pods(scene: Scene) -> None:
    name = await scene.submit(COUNTED.replace("RETRY", "metadata: {}"))
    pod = await scene.running(name, but=set())
    await scene.api.delete(WORKFLOWS, name, scene.namespace, propagation="Background")

    async def is_gone() -> bool:
        try:
            await scene.api.get(PODS, pod["metadata"]["name"], scene.namespace)
        except NotFound:
            return True
        return False

    await until("its pod to be gone", is_gone)


async def test_stop_runs_the_exit_handler_and_terminate_does_not(scene: Scene) -> None:
    manifest = """
spec:
  entrypoint: main
  onExit: bye
  templates:
  - name: main
    container: {image: IMAGE, command: [sh, -c, "exec sleep 600"]}
  - name: bye
    container: {image: IMAGE, command: [echo, bye]}
"""
    names = await asyncio.gather(scene.submit(manifest), scene.submit(manifest))
    for name, shutdown in zip(names, ("Stop", "Terminate"), strict=True):
        await scene.running(name, but=set())
        await scene.api.patch(WORKFLOWS, name, {"spec": {"shutdown": shutdown}}, scene.namespace)
    stopped, terminated = [await scene.ended(name) for name in names]
    assert stopped["status"]["phase"] == terminated["status"]["phase"] == "Failed"
    assert stopped["status"]["progress"] == "2/2"
    assert terminated["status"]["progress"] == "1/1"
    assert "shutdown with strategy: Terminate" in terminated["status"]["message"]


UNPULLABLE = """
spec:
  entrypoint: main
  templates:
  - name: main
    OUTPUTS
    container: {image: "registry.invalid/nobody/nothing:1", command: [sh, -c, "true"]}
"""

REFUSED = ("ErrImagePull", "ImagePullBackOff", "ImageNotRunnable")


@pytest.mark.parametrize("outputs", ["metadata: {}", "outputs: {parameters: [{name: x, valueFrom: {path: /x}}]}"])
async def test_a_workflow_whose_image_cannot_be_pulled_can_be_terminated(scene: Scene, outputs: str) -> None:
    name = await scene.submit(UNPULLABLE.replace("OUTPUTS", outputs), host_env=False)

    async def is_refused() -> bool:
        pods = (await scene.api.list(PODS, scene.namespace, label_selector=f"{WORKFLOW_LABEL}={name}")).items
        rows = [row for pod in pods for row in (pod.get("status") or {}).get("containerStatuses") or ()]
        reasons = [((row.get("state") or {}).get("waiting") or {}).get("reason") for row in rows]
        return any(reason in REFUSED for reason in reasons)

    await until("the image to be refused", is_refused)
    await scene.api.patch(WORKFLOWS, name, {"spec": {"shutdown": "Terminate"}}, scene.namespace)
    obj = await scene.ended(name)
    assert obj["status"]["phase"] == "Failed"


async def test_what_cannot_run_fails_at_once_without_a_pod(scene: Scene) -> None:
    name = await scene.submit("spec: {entrypoint: nothing, templates: [{name: main, container: {image: IMAGE}}]}")
    obj = await scene.ended(name)
    assert obj["status"]["phase"] == "Failed"
    assert "nothing" in obj["status"]["message"]
    assert not (await scene.api.list(PODS, scene.namespace, label_selector=f"{WORKFLOW_LABEL}={name}")).items


ON_HOLLOW = """
spec:
  entrypoint: main
  nodeSelector: {pool: POOL}
  templates:
  - {name: main, container: {image: IMAGE, command: [sleep, "600"]}}
"""


async def test_a_step_whose_node_is_gone_runs_again_on_another(scene: Scene, unique: str) -> None:
    names = (f"{unique}-a", f"{unique}-b")
    async with hollow_nodes(scene.api, *names, labels={"pool": unique}) as nodes:
        name = await scene.submit(ON_HOLLOW.replace("POOL", unique))
        first = await scene.running(name, but=set())
        nodes.lose(first["spec"]["nodeName"])
        await scene.api.delete(NODES, first["spec"]["nodeName"])
        second = await scene.running(name, but={first["metadata"]["name"]})
        assert {first["spec"]["nodeName"], second["spec"]["nodeName"]} == set(names)
        await nodes.finish(scene.namespace, second["metadata"]["name"], 0)
        obj = await scene.ended(name)
        assert (obj["status"]["phase"], obj["status"]["progress"]) == ("Succeeded", "1/1")


SET = """
spec:
  entrypoint: main
  templates:
  - name: main
    volumes: [{name: work, emptyDir: {}}]
    containerSet:
      volumeMounts: [{name: work, mountPath: /work}]
      retryStrategy: {retries: 2}
      containers:
      - {name: main, image: IMAGE, command: [sh, -c, 'cat /work/order'], dependencies: [b, c]}
      - {name: c, image: IMAGE, command: [sh, -c, 'echo c >> /work/order; CODE'], dependencies: [b]}
      - {name: b, image: IMAGE, command: [sh, -c, 'echo b >> /work/order'], dependencies: [a]}
      - {name: a, image: IMAGE, command: [sh, -c, 'echo a >> /work/order']}
    outputs: {parameters: [{name: order, globalName: order, valueFrom: {path: /work/order}}]}
"""


async def test_the_containers_of_a_set_run_in_the_order_of_their_dependencies(scene: Scene) -> None:
    obj = await scene.ended(await scene.submit(SET.replace("CODE", "true")))
    assert obj["status"]["phase"] == "Succeeded"
    assert await scene.outputs(obj) == {"order": "a\nb\nc"}


async def test_a_container_of_a_set_that_fails_is_tried_again_and_fails_the_step(scene: Scene) -> None:
    obj = await scene.ended(await scene.submit(SET.replace("CODE", "[ $(grep -c c /work/order) = 9 ]")))
    assert obj["status"]["phase"] == "Failed"
    assert obj["status"]["message"].startswith("c: Error (exit code 1)")
    again = await scene.ended(await scene.submit(SET.replace("CODE", "[ $(grep -c c /work/order) = 3 ]")))
    assert await scene.outputs(again) == {"order": "a\nb\nc\nc\nc"}


WITHOUT_IMAGE = """
spec:
  entrypoint: main
  onExit: ask
  arguments: {parameters: [{name: url, value: "URL/healthz"}]}
  templates:
  - name: main
    steps:
    - - {name: good, template: ask}
      - name: bad
        template: ask
        continueOn: {failed: true}
        arguments: {parameters: [{name: url, value: "URL/api/v1/no-such-page"}]}
      - {name: make, template: make}
    - - {name: list, template: list}
    - - name: use
        template: use
        withParam: "{{steps.list.outputs.result}}"
        arguments:
          parameters: [{name: said, value: "{{steps.bad.status}} {{steps.good.outputs.result}}"}]
          artifacts: [{name: file, s3: {key: "{{item}}"}}]
  - name: ask
    inputs: {parameters: [{name: url, value: "{{workflow.parameters.url}}"}]}
    http: {url: "{{inputs.parameters.url}}", successCondition: "response.statusCode == 200"}
  - name: make
    container: {image: IMAGE, command: [sh, -c, 'echo made > /tmp/a; echo other > /tmp/b']}
    outputs:
      artifacts:
      - {name: a, path: /tmp/a, s3: {key: "{{workflow.name}}/a.txt"}, archive: {none: {}}}
      - {name: b, path: /tmp/b, s3: {key: "{{workflow.name}}/b.bin"}, archive: {none: {}}}
  - name: list
    data:
      source: {artifactPaths: {name: made, s3: {key: "{{workflow.name}}"}}}
      transformation: [{expression: 'filter(data, {# endsWith ".txt"})'}]
  - name: use
    inputs: {parameters: [{name: said}], artifacts: [{name: file, path: /tmp/in}]}
    container: {image: IMAGE, command: [sh, -c, 'echo $(cat /tmp/in) {{inputs.parameters.said}} > /tmp/out']}
    outputs: {parameters: [{name: said, globalName: said, valueFrom: {path: /tmp/out}}]}
"""


async def test_requests_and_lists_need_no_image(scene: Scene) -> None:
    url = await server_url(scene.api)
    obj = await scene.ended(await scene.submit(WITHOUT_IMAGE.replace("URL", url)))
    assert obj["status"]["phase"] == "Succeeded", obj["status"]
    (said,) = (await scene.outputs(obj)).values()
    assert said.startswith("made Failed ok")


async def test_the_example_trains_with_a_gpu_in_line_and_goes_on_after_an_eviction(scene: Scene) -> None:
    manifest = yaml.safe_load((EXAMPLES / "train-workflow.yaml").read_text())
    spec = manifest["spec"]
    fit = next(template for template in spec["templates"] if template["name"] == "fit")
    # the second epoch lasts until the eviction
    fit["container"]["args"][0] = fit["container"]["args"][0].replace(
        "epoch=$((epoch + 1))",
        '[ "$epoch" != 1 ] || [ -e /checkpoint/held ] || { touch /checkpoint/held; echo held; exec sleep 600; }\n'
        "  epoch=$((epoch + 1))",
    )
    name = await scene.submit(yaml.safe_dump({"spec": spec}).replace("busybox", "IMAGE"))

    async def trains() -> Obj | None:
        pods = (await scene.api.list(PODS, scene.namespace, label_selector=f"{WORKFLOW_LABEL}={name}")).items
        fits = (pod for pod in pods if pod["metadata"]["name"].startswith(f"{name}-fit-"))
        return next((pod for pod in fits if (pod.get("status") or {}).get("phase") == "Running"), None)

    pod: Obj = await until("the training step to run", trains)

    def moor(*words: str) -> str:
        return scene.cluster.moor(*words, "-n", scene.namespace).stdout

    async def is_told() -> bool:
        return f"step fit of workflow {scene.namespace}/{name} is running" in moor("explain", f"{name}/fit")

    await until("explain to tell of the step", is_told)
    if "extender" in scene.cluster.offers:
        assert f"{name}/fit" in scene.cluster.moor("gpus").stdout
    await until_printed(scene.api, scene.namespace, pod["metadata"]["name"], b"held")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"]}}
    await scene.api.create_subresource(PODS, pod["metadata"]["name"], "eviction", eviction, scene.namespace)
    obj = await scene.ended(name)
    assert obj["status"]["phase"] == "Succeeded"
    assert await scene.outputs(obj) == {"score": "100"}

    async def is_counted() -> bool:
        return f"{scene.namespace}/{name}" in scene.cluster.moor("top", "--by", "workflow").stdout

    await until("its use to be known", is_counted)
