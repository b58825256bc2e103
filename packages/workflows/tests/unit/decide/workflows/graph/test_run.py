"""Whatever a manifest holds: where the lint lets it run, the run ends or waits, and never raises."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage.model.names import HOST_IMAGE
from moorage_kube.testing.examples import examples
from moorage_testing.workflowplayer import Ends, Player
from moorage_workflows.controllers.workflow.checks import faults_of
from moorage_workflows.controllers.workflow.summary import collect_at, pod_delete_at, summary_patch
from moorage_workflows.decide.workflows.graph.events import CreatePod
from moorage_workflows.decide.workflows.normalise import normalise
from moorage_workflows.decide.workflows.pods import PodError, PodRequest, StepRuntime, make_pod

MANIFESTS = """
spec:
  entrypoint: main
  onExit: bye
  parallelism: 2
  priority: 1
  activeDeadlineSeconds: 600
  arguments: {parameters: [{name: who, value: world}]}
  ttlStrategy: {secondsAfterCompletion: 60}
  podGC: {strategy: OnPodCompletion, labelSelector: {matchLabels: {a: b}}}
  hooks: {running: {expression: workflow.status == "Running", template: bye}}
  volumeClaimTemplates: [{metadata: {name: v}, spec: {resources: {requests: {storage: 1Gi}}}}]
  templates:
  - name: main
    parallelism: 2
    failFast: true
    steps:
    - - {name: make, template: print}
    - - name: fan
        template: say
        withParam: "{{steps.make.outputs.result}}"
        arguments: {parameters: [{name: x, value: "{{item}}"}]}
        continueOn: {failed: true}
      - {name: few, template: say, when: "{{workflow.parameters.who}} == world", withSequence: {count: "2"}}
    - - name: last
        template: say
        hooks: {exit: {template: bye}, due: {template: bye, expression: steps.last.status == "Running"}}
  - name: print
    script: {image: python, command: [python], source: "print([1, 2])"}
    retryStrategy:
      limit: 2
      retryPolicy: Always
      backoff: {duration: 1s, factor: 2, maxDuration: 1m, cap: 10s}
      affinity: {nodeAntiAffinity: {}}
  - name: say
    activeDeadlineSeconds: 60
    inputs: {parameters: [{name: x, default: "0"}]}
    synchronization: {mutexes: [{name: m}]}
    memoize: {key: "k-{{inputs.parameters.x}}", maxAge: 1h, cache: {configMap: {name: c}}}
    container:
      image: busybox
      command: [echo, "{{inputs.parameters.x}}"]
      env: [{name: A, value: "1"}]
      resources: {limits: {memory: 1Mi}}
      volumeMounts: [{name: v, mountPath: /v}]
  - name: bye
    container: {image: busybox, command: [echo, "{{workflow.status}}"]}
---
spec:
  entrypoint: main
  templates:
  - name: main
    inputs: {parameters: [{name: y, value: "1"}]}
    outputs:
      parameters: [{name: all, valueFrom: {parameter: "{{tasks.a.outputs.parameters.p}}", default: none}}]
      artifacts: [{name: f, from: "{{tasks.a.outputs.artifacts.f}}", optional: true}]
    dag:
      target: c
      tasks:
      - {name: a, template: files}
      - {name: wait, template: wait}
      - name: b
        depends: a && wait.Succeeded
        template: reads
        arguments: {artifacts: [{name: f, from: "{{tasks.a.outputs.artifacts.f}}"}]}
      - {name: c, depends: b, template: set, withItems: [1, {k: v}]}
  - name: files
    timeout: 5m
    nodeSelector: {disk: ssd}
    metadata: {labels: {a: b}, annotations: {c: d}}
    outputs:
      parameters: [{name: p, globalName: g, valueFrom: {path: /p, default: "0"}}]
      artifacts:
      - {name: f, path: /f, archive: {tar: {compressionLevel: 1}}}
      - {name: s, path: /s, s3: {bucket: b, key: k, accessKeySecret: {name: n, key: k}}, archive: {none: {}}}
    container: {image: busybox, command: [echo]}
    initContainers: [{name: first, image: busybox, command: [echo]}]
    sidecars: [{name: beside, image: busybox, command: [sleep]}]
  - name: reads
    inputs:
      artifacts:
      - {name: f, path: /f}
      - {name: r, path: /r, raw: {data: hi}}
      - {name: h, path: /h, http: {url: "http://x", headers: [{name: a, value: b}]}}
    container: {image: busybox, command: [cat, /f]}
  - name: wait
    suspend: {duration: 10s}
  - name: set
    containerSet:
      containers:
      - {name: one, image: busybox, command: [echo]}
      - {name: main, image: busybox, command: [echo], dependencies: [one]}
"""
DOCUMENTS = tuple(yaml.safe_load_all(MANIFESTS))
ODD = (
    "", "x", "-5", "1h", "99999999h", "9" * 25, "١", "1e400", "NaN", -1, 0, 10**30, 1.5, float("inf"), True, False,
    None, [], [None], [{}], ["a"], {}, {"a": 1}, {"name": "x"}, "{{inputs.parameters.x}}", "{{workflow.name}}",
    "{{item}}", "{{=1 +}}", "{{=asInt('x')}}",
)  # fmt: skip
FIELDS = (
    "activeDeadlineSeconds", "parallelism", "priority", "timeout", "when", "depends", "withItems", "withParam",
    "withSequence", "retryStrategy", "limit", "backoff", "factor", "memoize", "synchronization", "hooks", "onExit",
    "arguments", "inputs", "outputs", "podSpecPatch", "volumes", "daemon", "suspend", "continueOn", "sidecars",
)  # fmt: skip
RUNTIMES = (
    StepRuntime(image=HOST_IMAGE, on_processes=True, server_url="http://127.0.0.1:1"),
    StepRuntime(image="moorage:1", on_processes=False, server_url="http://127.0.0.1:1"),
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(a mapping or list, a name or number in it) of everything below."""
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, name
        if isinstance(inner, (dict, list)):
            yield from places(inner)


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    """A manifest of which one to three fields hold something else."""
    document = copy.deepcopy(draw(st.sampled_from(DOCUMENTS)))
    for _ in range(draw(st.integers(1, 3))):
        holder, name = draw(st.sampled_from(list(places(document["spec"]))))
        odd = copy.deepcopy(draw(st.sampled_from(ODD)))
        if isinstance(holder[name], dict) and draw(st.booleans()):
            holder[name][draw(st.sampled_from(FIELDS))] = odd
        else:
            holder[name] = odd
    return {"kind": "Workflow", "metadata": {"name": "wf", "uid": "u", "namespace": "default"}, **document}


@settings(max_examples=examples(60, full=1000), deadline=None)
@given(manifests())
def test_what_the_lint_lets_run_never_raises(manifest: dict[str, Any]) -> None:
    document = normalise(manifest)
    if faults_of(document, {}):
        return

    def end(order: CreatePod) -> Ends:
        for runtime in RUNTIMES:
            request = PodRequest(
                record=order.record,
                workflow=player.run.document,
                template=order.template,
                secret="s",
                artifacts=order.artifacts,
                wants_result=order.wants_result,
                deadline_seconds=order.deadline_seconds(player.now),
                excluded_hosts=order.excluded_hosts,
                volumes={"v": "wf-v"},
            )
            with contextlib.suppress(PodError):
                make_pod(request, runtime)
        pod_delete_at(player.workflow, order.record)
        number = len(player.created)
        return Ends(exit_code=int(number % 3 == 0), result="[1, 2]", parameters={"p": "1"}, artifacts=("f",))

    player = Player(manifest, end)
    for _ in range(200):
        if not player.step():
            break
    ended = {"phase": "Succeeded", "finishedAt": "2026-01-01T00:00:00Z"}
    summary_patch({"metadata": {}}, player.workflow)
    collect_at({"spec": document["spec"], "status": ended})


def test_the_manifests_themselves_run() -> None:
    counts = []
    for document in DOCUMENTS:
        player = Player(document, lambda order: Ends(result="[1, 2]", parameters={"p": "1"}, artifacts=("f",)))
        assert faults_of(normalise({"kind": "Workflow", "metadata": {"name": "wf"}, **document}), {}) == ()
        assert player.play().run.is_done
        counts.append(len(player.created))
    assert counts == [8, 4]
