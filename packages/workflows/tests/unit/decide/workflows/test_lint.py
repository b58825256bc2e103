"""`check` on whole documents: a valid one, one wrong thing in it, and what is said about that."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.yamldocuments import parse_yaml
from moorage_workflows.decide.workflows.lint import check
from moorage_workflows.decide.workflows.normalise import normalise
from moorage_workflows.decide.workflows.support import unsupported
from moorage_workflows.decide.workflows.templates import TemplateKey

VALID = parse_yaml("""
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: nightly, labels: {team: vision}}
spec:
  entrypoint: main
  onExit: tell
  parallelism: 3
  arguments:
    parameters: [{name: dataset, value: faces, enum: [faces, hands]}]
  volumes: [{name: scratch, emptyDir: {}}]
  volumeClaimTemplates:
  - {metadata: {name: work}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
  podGC: {strategy: OnPodSuccess}
  ttlStrategy: {secondsAfterCompletion: 3600}
  hooks:
    running: {template: tell, expression: workflow.status == "Running"}
  templates:
  - name: main
    steps:
    - - name: fetch
        template: fetch
        arguments: {parameters: [{name: url, value: "{{workflow.parameters.dataset}}"}]}
    - - name: train
        template: graph
        when: "{{steps.fetch.outputs.result}} != ''"
        arguments:
          parameters: [{name: count, value: "{{steps.fetch.outputs.parameters.count}}"}]
          artifacts: [{name: images, from: "{{steps.fetch.outputs.artifacts.images}}"}]
        hooks:
          exit: {template: tell, arguments: {parameters: [{name: text, value: "{{steps.train.status}}"}]}}
      - name: wait
        template: pause
        withSequence: {count: "3"}
    outputs:
      parameters: [{name: loss, valueFrom: {parameter: "{{steps.train.outputs.parameters.loss}}"}}]
  - name: fetch
    inputs: {parameters: [{name: url}, {name: retries, default: "3"}]}
    outputs:
      parameters: [{name: count, valueFrom: {path: /tmp/count, default: "0"}, globalName: count}]
      artifacts: [{name: images, path: /work/images}]
    retryStrategy: {limit: 2, retryPolicy: OnError, backoff: {duration: 10s, factor: 2, maxDuration: 5m}}
    container:
      image: busybox
      command: [sh, -c, "echo {{inputs.parameters.url}} {{pod.name}} > {{outputs.parameters.count.path}}"]
      volumeMounts: [{name: work, mountPath: /work}]
  - name: graph
    inputs: {parameters: [{name: count}], artifacts: [{name: images}]}
    dag:
      tasks:
      - {name: a, template: fit, arguments: {parameters: [{name: lr, value: "0.1"}]}}
      - name: b
        template: fit
        depends: a.Succeeded || a.Failed
        arguments: {parameters: [{name: lr, value: "{{item.rate}}"}]}
        withItems: [{rate: 1}, {rate: 2}]
      - name: c
        depends: b.AnySucceeded
        arguments: {parameters: [{name: n, value: "{{tasks.a.outputs.result}}"}]}
        inline:
          inputs: {parameters: [{name: n}]}
          container: {image: busybox, args: ["{{inputs.parameters.n}}", "{{=asInt(inputs.parameters.n) + 1}}"]}
    outputs:
      parameters: [{name: loss, valueFrom: {expression: "tasks.a.outputs.result"}}]
  - name: fit
    inputs: {parameters: [{name: lr}]}
    activeDeadlineSeconds: 60
    timeout: 5m
    script: {image: python, command: [python], source: "print({{inputs.parameters.lr}})"}
    sidecars: [{name: cache, image: redis}]
  - name: pause
    suspend: {duration: 10s}
  - name: tell
    inputs: {parameters: [{name: text, default: "{{workflow.status}}"}]}
    container: {image: busybox, args: ["{{inputs.parameters.text}}", "{{workflow.failures}}", "{{user.text}}"]}
""")

CRON = parse_yaml("""
apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
metadata: {name: nightly}
spec:
  schedules: ["0 3 * * *", "@daily", "@every 2h"]
  timezone: Europe/Zurich
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 60
  stopStrategy: {expression: cronworkflow.failed >= 3}
  workflowMetadata: {labels: {team: vision}}
  workflowSpec:
    entrypoint: main
    templates: [{name: main, container: {image: busybox, args: ["{{workflow.labels.team}}"]}}]
""")

LIB = {"kind": "WorkflowTemplate", "metadata": {"name": "lib"}, "spec": {"templates": [
    {"name": "t", "inputs": {"parameters": [{"name": "x"}]}, "container": {"image": "busybox"},
     "outputs": {"parameters": [{"name": "y", "valueFrom": {"path": "/y"}}]}}]}}  # fmt: skip
OTHERS = {TemplateKey(False, "lib"): LIB}


def changed(document, *changes):
    """A copy with a value at each dotted path; "-" removes it."""
    made = copy.deepcopy(document)
    for path, value in changes:
        target = made
        *names, last = [int(name) if name.isdigit() else name for name in path.split(".")]
        for name in names:
            target = target[name] if isinstance(target, list) else target.setdefault(name, {})
        if value == "-":
            del target[last]
        elif isinstance(target, list) and last == len(target):
            target.append(value)
        else:
            target[last] = value
    return made


def said(document, *, others=None, **options):
    return [
        (finding.severity.value, finding.field, finding.message) for finding in check(document, others, **options)
    ]


def errors(document, **options):
    return [(field, message) for severity, field, message in said(document, **options) if severity == "error"]


@pytest.mark.parametrize("document", [VALID, CRON, LIB], ids=["a workflow", "a cron workflow", "templates"])
def test_a_valid_document_has_no_findings(document):
    assert said(normalise(document)) == []
    assert unsupported(normalise(document)) == ()


def named(value):
    """The id of a case: the field that is changed, the field that is named, and what is said."""
    return value[0] if isinstance(value, tuple) else "" if isinstance(value, dict) else value or "cannot be read"


T = "spec.templates"
NO_END = "calls itself without end: main -> main; put a `when` on one of the steps"


@pytest.mark.parametrize(("change", "field", "message"), [
    # names
    (("metadata.name", "a" * 64), "metadata.name", "has 64 characters; a Workflow may have 63"),
    ((f"{T}.1.name", "main"), f"{T}[1].name", "is repeated: also at templates[0]; give each its own name"),
    ((f"{T}.6", {"suspend": {}}), f"{T}[6].name", "is required"),
    ((f"{T}.6", {"name": "a_b", "suspend": {}}), f"{T}[6].name",
     "must be letters, digits and '-', begin with a letter or digit, and have at most 128 characters"),
    ((f"{T}.0.steps.1.1.name", "fetch"), f"{T}[0].steps[1][1].name", "is repeated: also at steps[0][0]"),
    ((f"{T}.0.steps.1.1.name", "run_{{item}}"), f"{T}[0].steps[1][1].name",
     "must be letters, digits and '-', begin with a letter or digit, and have at most 128 characters"),
    ((f"{T}.3.inputs.parameters.0.name", "a b"), f"{T}[3].inputs.parameters[0].name",
     "must be letters, digits, '-' and '_'"),
    # templates
    (("spec.entrypoint", "-"), "spec.entrypoint", "is required; templates: main, fetch, graph, fit, pause, tell"),
    (("spec.entrypoint", "no"), "spec.entrypoint",
     "there is no template 'no'; there are: main, fetch, graph, fit, pause, tell"),
    (("spec.onExit", "no"), "spec.onExit",
     "there is no template 'no'; there are: main, fetch, graph, fit, pause, tell"),
    (("spec.hooks.running.template", "no"), "spec.hooks.running.template",
     "there is no template 'no'; there are: main, fetch, graph, fit, pause, tell"),
    ((f"{T}.0.steps.0.0.template", "no"), f"{T}[0].steps[0][0].template",
     "there is no template 'no'; there are: main, fetch, graph, fit, pause, tell"),
    ((f"{T}.4.suspend", "-"), f"{T}[4]", "the template has no type; use one of container, containerSet, steps,"
     " dag, script, resource, data, suspend, http, plugin"),
    ((f"{T}.4.container", {"image": "x"}), f"{T}[4]", "the template has 2 types, container, suspend; use one"),
    ((f"{T}.0.steps.0.0.inline", {"suspend": {}}),
     f"{T}[0].steps[0][0]", "has template and inline; use one of them"),
    ((f"{T}.1.container.image", "-"), f"{T}[1].container.image", "is required"),
    ((f"{T}.0.steps", {"name": "a"}), f"{T}[0].steps", "must be a list of lists of steps"),
    ((f"{T}.0.steps.0", {"name": "a"}),
     f"{T}[0].steps[0]", "must be a list: each group of steps begins with '- - '"),
    # requests
    ((f"{T}.6", {"name": "ask", "http": {"method": "GET"}}), f"{T}[6].http.url", "is required"),
    ((f"{T}.6", {"name": "ask", "http": {"url": "ftp://x"}}), f"{T}[6].http.url",
     "must begin with http:// or https://"),
    ((f"{T}.6", {"name": "ask", "http": {"url": "http://x", "successCondition": "response.status =="}}),
     f"{T}[6].http.successCondition", None),
    ((f"{T}.6", {"name": "ask", "http": {"url": "http://x", "timeoutSeconds": 0}}),
     f"{T}[6].http.timeoutSeconds", "must be a whole number of at least 1"),
    ((f"{T}.6", {"name": "ask", "http": {"url": "http://x", "headers": [{"value": "v"}]}}),
     f"{T}[6].http.headers[0].name", "is required"),
    ((f"{T}.6", {"name": "ask", "http": {"url": "http://x", "headers": [
        {"name": "a", "valueFrom": {"secretKeyRef": {"name": "s"}}}]}}),
     f"{T}[6].http.headers[0].valueFrom.secretKeyRef", "needs name and key of a Secret"),
    ((f"{T}.6", {"name": "ask", "http": {"url": "http://x", "bodyFrom": {"bytes": "?"}}}),
     f"{T}[6].http.bodyFrom.bytes", "must be base64"),
    ((f"{T}.6", {"name": "ask", "data": {"transformation": []}}), f"{T}[6].data.source.artifactPaths",
     "is required: where the list comes from"),
    ((f"{T}.6", {"name": "ask", "data": {"source": {"artifactPaths": {"git": {"repo": "r"}}}}}),
     f"{T}[6].data.source.artifactPaths.git", "cannot be listed: use s3 or gcs, or no store"),
    ((f"{T}.6", {"name": "ask", "data": {"source": {"artifactPaths": {}},
                                         "transformation": [{"expression": "filter(data"}]}}),
     f"{T}[6].data.transformation[0].expression", None),
    # arguments
    (("spec.arguments.parameters.0.value", "feet"), "spec.arguments.parameters[0].value",
     "must be one of faces, hands"),
    (("spec.arguments.parameters.0.enum", []), "spec.arguments.parameters[0].enum",
     "must have at least one value"),
    (("spec.arguments.parameters", {"dataset": "x"}), "spec.arguments.parameters",
     "must be a list of entries with a name"),
    ((f"{T}.0.steps.0.0.arguments", "-"), f"{T}[0].steps[0][0].arguments.parameters",
     "template 'fetch' needs parameter 'url', which is not supplied"),
    ((f"{T}.0.steps.1.0.arguments.artifacts", "-"), f"{T}[0].steps[1][0].arguments.artifacts",
     "template 'graph' needs artifact 'images', which is not supplied"),
    ((f"{T}.0.steps.0.0.arguments.parameters.0", {"name": "url"}), f"{T}[0].steps[0][0].arguments.parameters[0]",
     "parameter 'url' has no value; set value or valueFrom"),
    ((f"{T}.0.steps.0.0.arguments.parameters.0", {"name": "url", "valueFrom": {"path": "/x"}}),
     f"{T}[0].steps[0][0].arguments.parameters[0].valueFrom",
     "an argument can take its value from configMapKeyRef or supplied"),
    ((f"{T}.0.steps.0.0.arguments.parameters.0.value", ["x"]), f"{T}[0].steps[0][0].arguments.parameters[0].value",
     "must be a string; write lists and mappings as JSON in quotes"),
    ((f"{T}.0.steps.1.0.arguments.artifacts.0", {"name": "images"}), f"{T}[0].steps[1][0].arguments.artifacts[0]",
     "needs one of from, fromExpression, s3, git, http, artifactory, hdfs, raw, oss, gcs, azure, plugin"),
    # tags
    ((f"{T}.1.container.command.1", "{{inputs.parameters.ulr}}"), f"{T}[1].container.command[1]",
     "nothing is named inputs.parameters.ulr here; did you mean inputs.parameters.url?"),
    ((f"{T}.1.container.command.1", "{{steps.train.status}}"), f"{T}[1].container.command[1]",
     "a template sees its own inputs, not steps; pass the value as an argument"),
    ((f"{T}.1.container.command.1", "{{workflow.labels.{{inputs.parameters.ulr}}}}"),
     f"{T}[1].container.command[1]",
     "nothing is named inputs.parameters.ulr here; did you mean inputs.parameters.url?"),
    ((f"{T}.1.container.command.1", "{{workflow.parameters.x}}"), f"{T}[1].container.command[1]",
     "nothing is named workflow.parameters.x here; did you mean workflow.parameters?"),
    ((f"{T}.0.steps.1.1.when", "{{steps.train.status}} == x"), f"{T}[0].steps[1][1].when",
     "step 'train' is not in an earlier group, so its outputs are not known here"),
    ((f"{T}.0.steps.0.0.when", "{{steps.fetch.outputs.result}} == x"), f"{T}[0].steps[0][0].when",
     "step 'fetch' is not in an earlier group, so its outputs are not known here"),
    ((f"{T}.0.steps.1.0.when", "{{steps.fetch.outputs.parameters.size}} == x"), f"{T}[0].steps[1][0].when",
     "nothing is named steps.fetch.outputs.parameters.size here; did you mean"
     " steps.fetch.outputs.parameters.count?"),
    ((f"{T}.0.steps.1.1.arguments", {"parameters": [{"name": "x", "value": "{{item.rate}}"}]}),
     f"{T}[0].steps[1][1].arguments.parameters[0].value",
     "nothing is named item.rate here; nothing begins with item."),
    ((f"{T}.2.dag.tasks.0.when", "{{tasks.b.status}} == Failed"), f"{T}[2].dag.tasks[0].when",
     "task 'a' does not depend on 'b'; name it in depends"),
    ((f"{T}.2.dag.tasks.0.arguments.parameters.0.value", "{{tasks.b.outputs.result}}"),
     f"{T}[2].dag.tasks[0].arguments.parameters[0].value", "task 'a' does not depend on 'b'; name it in depends"),
    ((f"{T}.2.dag.tasks.1.arguments.parameters.0.value", "{{item.rat}}"),
     f"{T}[2].dag.tasks[1].arguments.parameters[0].value",
     "nothing is named item.rat here; did you mean item.rate?"),
    ((f"{T}.0.outputs.parameters.0.valueFrom.parameter", "{{steps.wait.outputs.result}}"),
     f"{T}[0].outputs.parameters[0].valueFrom.parameter",
     "nothing is named steps.wait.outputs.result here; did you mean steps.fetch.outputs.result?"),
    # expressions
    ((f"{T}.3.script.source", "{{=1 +}}"), f"{T}[3].script.source", None),
    (("spec.hooks.running.expression", "a =="), "spec.hooks.running.expression", None),
    ((f"{T}.1.retryStrategy.expression", "1 +"), f"{T}[1].retryStrategy.expression", None),
    (("spec.hooks.running.expression", "-"), "spec.hooks.running.expression",
     "hook 'running' needs an expression; only exit does without"),
    # tasks
    ((f"{T}.2.dag.tasks", []), f"{T}[2].dag.tasks", "must have at least one task"),
    ((f"{T}.2.dag.tasks.0.depends", "c"), f"{T}[2].dag.tasks", "tasks wait for each other: a -> c -> b -> a"),
    ((f"{T}.2.dag.tasks.0.depends", "a"), f"{T}[2].dag.tasks", "tasks wait for each other: a -> a"),
    ((f"{T}.2.dag.tasks.0.depends", "x && y"),
     f"{T}[2].dag.tasks[0].depends", "there is no task 'x'; tasks: a, b, c"),
    ((f"{T}.2.dag.tasks.1.depends", "a.Done"), f"{T}[2].dag.tasks[1].depends", None),
    ((f"{T}.2.dag.tasks.1.depends", "a &&"), f"{T}[2].dag.tasks[1].depends", None),
    ((f"{T}.2.dag.tasks.1.depends", "a.AllFailed"), f"{T}[2].dag.tasks[1].depends",
     "a.AllFailed needs a loop; task 'a' has no withItems, withParam, withSequence"),
    ((f"{T}.2.dag.tasks.1.dependencies", ["a"]), f"{T}[2].dag.tasks[1].dependencies",
     "cannot be used together with depends in the same DAG; use depends"),
    ((f"{T}.2.dag.tasks.1.continueOn", {"failed": True}), f"{T}[2].dag.tasks[1].continueOn", None),
    ((f"{T}.2.dag.tasks.3", {"name": "1st", "template": "pause"}), f"{T}[2].dag.tasks[3].name",
     "cannot begin with a digit where depends or dependencies is used"),
    ((f"{T}.2.dag.target", "a x"), f"{T}[2].dag.target", "there is no task 'x'; tasks: a, b, c"),
    # loops
    ((f"{T}.0.steps.1.1.withItems", ["a"]), f"{T}[0].steps[1][1]",
     "has withItems and withSequence; use one of them"),
    ((f"{T}.0.steps.1.1.withSequence", {"count": "1", "end": "2"}), f"{T}[0].steps[1][1].withSequence",
     "has count and end; use one of them"),
    ((f"{T}.0.steps.1.1.withSequence", {"start": "1"}), f"{T}[0].steps[1][1].withSequence", "needs count or end"),
    ((f"{T}.0.steps.1.1.withSequence.count", "many"), f"{T}[0].steps[1][1].withSequence.count",
     "must be a whole number of at least 0"),
    # limits
    ((f"{T}.0.activeDeadlineSeconds", 3), f"{T}[0].activeDeadlineSeconds",
     "is for templates that run something; steps has none"),
    ((f"{T}.2.timeout", "5m"), f"{T}[2].timeout", "is for templates that run something; dag has none"),
    ((f"{T}.4.timeout", "5m"), f"{T}[4].timeout", "is for templates that run something; suspend has none"),
    ((f"{T}.3.timeout", "60"), f"{T}[3].timeout", "needs a unit, such as 30s or 5m"),
    ((f"{T}.3.timeout", "1d"), f"{T}[3].timeout", None),
    ((f"{T}.3.activeDeadlineSeconds", "soon"),
     f"{T}[3].activeDeadlineSeconds", "must be a whole number of at least 0"),
    ((f"{T}.3.parallelism", 3), f"{T}[3].parallelism", "is for templates of type steps and dag"),
    (("spec.parallelism", 0), "spec.parallelism", "must be a whole number of at least 1"),
    ((f"{T}.4.suspend.duration", "1 day"), f"{T}[4].suspend.duration", None),
    ((f"{T}.1.retryStrategy.retryPolicy", "Never"), f"{T}[1].retryStrategy.retryPolicy",
     "must be one of Always, OnFailure, OnError, OnTransientError"),
    ((f"{T}.1.retryStrategy.limit", "x"), f"{T}[1].retryStrategy.limit", "must be a whole number of at least 0"),
    ((f"{T}.1.retryStrategy.backoff.duration", "1d"), f"{T}[1].retryStrategy.backoff.duration", None),
    (("spec.podGC.strategy", "Always"), "spec.podGC.strategy",
     "must be one of OnPodCompletion, OnPodSuccess, OnWorkflowCompletion, OnWorkflowSuccess"),
    (("spec.volumeClaimGC", {"strategy": "Never"}), "spec.volumeClaimGC.strategy",
     "must be one of OnWorkflowCompletion, OnWorkflowSuccess"),
    # outputs and artifacts
    ((f"{T}.1.outputs.parameters.0.valueFrom.path", "-"), f"{T}[1].outputs.parameters[0].valueFrom",
     "needs one of path"),
    ((f"{T}.1.outputs.parameters.0.valueFrom", {"expression": "1"}), f"{T}[1].outputs.parameters[0].valueFrom",
     "outputs of a template of type container come from path"),
    ((f"{T}.0.outputs.parameters.0.valueFrom", {"path": "/x"}), f"{T}[0].outputs.parameters[0].valueFrom",
     "outputs of a template of type steps come from parameter or expression"),
    ((f"{T}.1.outputs.parameters.0.value", "x"), f"{T}[1].outputs.parameters[0]",
     "has value and valueFrom; use one of them"),
    ((f"{T}.1.outputs.parameters.1", {"name": "x"}),
     f"{T}[1].outputs.parameters[1]", "has no value; set valueFrom"),
    ((f"{T}.1.outputs.parameters.1", {"name": "x", "value": "1", "globalName": "count"}),
     f"{T}[1].outputs.parameters[1].globalName", "is repeated: also at parameters[0]; only one of them counts"),
    ((f"{T}.1.outputs.artifacts.0.path", "-"), f"{T}[1].outputs.artifacts[0].path",
     "is required: where the artifact is in the container"),
    ((f"{T}.1.outputs.artifacts.0.path", "images"), f"{T}[1].outputs.artifacts[0].path",
     "must be absolute: the image's working directory is not known"),
    ((f"{T}.1.outputs.artifacts.0.path", "/"), f"{T}[1].outputs.artifacts[0].path",
     "is the whole file system; name a file or a folder"),
    ((f"{T}.1.outputs.parameters.0.valueFrom.path", "x"), f"{T}[1].outputs.parameters[0].valueFrom.path",
     "must be absolute: the image's working directory is not known"),
    ((f"{T}.1.outputs.artifacts.0.git", {"repo": "x"}), f"{T}[1].outputs.artifacts[0].git",
     "cannot be written: use one of s3, gcs, http"),
    ((f"{T}.1.outputs.artifacts.0.archive", {"tar": {"compressionLevel": 12}}),
     f"{T}[1].outputs.artifacts[0].archive.tar.compressionLevel", "is 12: use a number from -1 to 9"),
    ((f"{T}.1.outputs.artifacts.0.path", "/work/../etc"), f"{T}[1].outputs.artifacts[0].path",
     "leads out of the folder before '..'; write the path without '..'"),
    ((f"{T}.1.outputs.artifacts.0.path", "/work/.."), f"{T}[1].outputs.artifacts[0].path",
     "leads out of the folder before '..'; write the path without '..'"),
    ((f"{T}.2.inputs.artifacts.0.path", "/x"), f"{T}[2].inputs.artifacts[0].path",
     "is for containers and scripts, not for a template of type dag"),
    ((f"{T}.2.inputs.artifacts.0.from", "{{steps.fetch.outputs.artifacts.images}}"),
     f"{T}[2].inputs.artifacts[0].from", "is for arguments of a step, not for inputs"),
    ((f"{T}.1.outputs.artifacts.0", {"name": "images", "path": "/x", "s3": {"key": "a"}, "raw": {"data": "b"}}),
     f"{T}[1].outputs.artifacts[0]", "has s3 and raw; an artifact is in one place"),
    ((f"{T}.1.inputs.artifacts", [{"name": "src", "path": "/src", "git": {}}]),
     f"{T}[1].inputs.artifacts[0].git.repo", "is required"),
    # volumes and containers
    ((f"{T}.1.container.volumeMounts.0.name", "no"), f"{T}[1].container.volumeMounts[0].name",
     "there is no volume of this name; volumes: scratch, work"),
    ((f"{T}.1.inputs.artifacts", [{"name": "x", "path": "/work", "raw": {"data": "d"}}]),
     f"{T}[1].inputs.artifacts[0].path", "volumeMounts[0] has the same path; use another"),
    ((f"{T}.3.sidecars.0.name", "wait"), f"{T}[3].sidecars[0].name", "is a name that Argo keeps for itself"),
    ((f"{T}.3.initContainers", [{"image": "x"}]), f"{T}[3].initContainers[0].name", "is required"),
    ((f"{T}.3.memoize", {"key": "", "cache": {}}), f"{T}[3].memoize.key", "is required"),
    ((f"{T}.3.synchronization", {"mutexes": [{}]}), f"{T}[3].synchronization.mutexes[0].name", "is required"),
    # shapes
    (("spec.entrypoint", ["main"]), "spec.entrypoint", "must be a string"),
    (("spec.templates", {}), "spec.templates", "must be a list"),
    (("spec.templates.0", "main"), "spec.templates[0]", "must be a mapping"),
    (("spec", "-"), "spec", "is required, and must be a mapping"),
    (("spec.templates.3.synchronization", ["m"]), "spec.templates[3].synchronization", "must be a mapping"),
    (("spec.priority", "high"), "spec.priority", "must be a whole number of at least -2147483648"),
    (("spec.activeDeadlineSeconds", 2**63), "spec.activeDeadlineSeconds",
     "must be a whole number of at most 9223372036854775807"),
    (("kind", "Pod"), "kind", "must be one of Workflow, WorkflowTemplate, ClusterWorkflowTemplate, CronWorkflow"),
], ids=named)  # fmt: skip
def test_one_wrong_thing_is_named_with_its_field(change, field, message):
    wrong = errors(normalise(changed(VALID, change)))
    assert (field, message) in wrong if message is not None else field in [place for place, _ in wrong]


@pytest.mark.parametrize(("change", "field", "message"), [
    (("spec.schedules", []), "spec.schedules", "must be a list with at least one schedule, such as '0 8 * * 1-5'"),
    (("spec.schedules.0", "0 25 * * *"), "spec.schedules[0]", None),
    (("spec.schedules.0", "0 0 30 2 *"), "spec.schedules[0]", "never comes: this day does not exist"),
    (("spec.timezone", "Mars/Olympus"), "spec.timezone", None),
    (("spec.schedules.0", "TZ=UTC 0 0 * * *"), "spec.schedules[0]",
     "names a time zone, and spec.timezone does too; use one of them"),
    (("spec.concurrencyPolicy", "Skip"), "spec.concurrencyPolicy", "must be one of Allow, Forbid, Replace"),
    (("spec.startingDeadlineSeconds", -1), "spec.startingDeadlineSeconds", "must be a whole number of at least 0"),
    (("spec.stopStrategy.expression", "a >"), "spec.stopStrategy.expression", None),
    (("metadata.name", "a" * 53), "metadata.name", "has 53 characters; a CronWorkflow may have 52"),
    (("spec.workflowSpec", "-"), "spec.workflowSpec", "is required, and must be a mapping"),
    (("spec.workflowSpec.entrypoint", "x"), "spec.workflowSpec.entrypoint",
     "there is no template 'x'; there are: main"),
    (("spec.workflowSpec.arguments", {"parameters": [{"name": "x"}]}), "spec.workflowSpec.arguments.parameters[0]",
     "parameter 'x' has no value; set value or valueFrom"),
], ids=named)  # fmt: skip
def test_one_wrong_thing_in_a_schedule_is_named(change, field, message):
    wrong = errors(normalise(changed(CRON, change)))
    assert (field, message) in wrong if message is not None else [place for place, _ in wrong] == [field]


# --- recursion


@pytest.mark.parametrize(("step", "want"), [
    pytest.param({"template": "main"}, [(f"{T}[0]", NO_END)], id="without a condition"),
    pytest.param({"template": "main", "when": "{{workflow.name}} == x"}, [], id="with when"),
    pytest.param({"template": "main", "withParam": "[]"}, [], id="in a loop that may be empty"),
    pytest.param({"inline": {"steps": [[{"name": "b", "template": "main"}]]}}, [(f"{T}[0]", NO_END)],
                 id="through an inline template"),
])  # fmt: skip
def test_recursion_needs_a_condition(step, want):
    document = a_workflow({"name": "main", "steps": [[{"name": "a", **step}]]})
    assert errors(document) == want


def a_workflow(*templates, **spec):
    return {
        "kind": "Workflow", "metadata": {"generateName": "w-"},
        "spec": {"entrypoint": templates[0]["name"], "templates": list(templates), **spec},
    }  # fmt: skip


# --- references


def test_a_template_of_others_is_looked_at():
    step = {"name": "a", "templateRef": {"name": "lib", "template": "t"}}
    after = {
        "name": "b",
        "template": "p",
        "when": "{{steps.a.outputs.parameters.y}} == {{steps.a.outputs.parameters.z}}",
    }
    document = a_workflow({"name": "main", "steps": [[step], [after]]}, {"name": "p", "suspend": {}})
    assert errors(document, others=OTHERS) == [
        (f"{T}[0].steps[0][0].arguments.parameters", "template 't' needs parameter 'x', which is not supplied"),
        (f"{T}[0].steps[1][0].when", "nothing is named steps.a.outputs.parameters.z here; did you mean"
         " steps.a.outputs.parameters.y?"),
    ]  # fmt: skip


@pytest.mark.parametrize(("reference", "message"), [
    ({"name": "no", "template": "t"}, "no WorkflowTemplate is named 'no'; known are: lib"),
    ({"name": "lib", "template": "no"}, "there is no template 'no'; WorkflowTemplate lib has: t"),
    ({"name": "lib"}, "is required"),
], ids=named)  # fmt: skip
def test_a_reference_that_leads_nowhere_is_an_error(reference, message):
    document = a_workflow({"name": "main", "steps": [[{"name": "a", "templateRef": reference}]]})
    assert [problem for _, problem in errors(document, others=OTHERS)] == [message]


def test_a_reference_to_what_nobody_knows_is_a_warning():
    step = {"name": "a", "templateRef": {"name": "no", "template": "t"}}
    after = {"name": "b", "template": "p", "when": "{{steps.a.outputs.result}} == x"}
    document = a_workflow({"name": "main", "steps": [[step], [after]]}, {"name": "p", "suspend": {}})
    want = [("warning", f"{T}[0].steps[0][0].templateRef", "is not checked: its document is not available")]
    assert said(document) == want
    assert said(document, others=OTHERS, knows_others=False) == want


def test_names_that_only_the_run_knows_are_left_alone():
    step = {"name": "a", "template": "{{workflow.name}}"}
    after = {"name": "b", "template": "p", "when": "{{steps.a.outputs.result}} == x"}
    document = a_workflow({"name": "main", "steps": [[step], [after]]}, {"name": "p", "suspend": {}})
    assert said(document) == []


def of_template(**spec):
    return {
        "kind": "Workflow", "metadata": {"name": "w"},
        "spec": {"workflowTemplateRef": {"name": "lib"}, **spec},
    }  # fmt: skip


def test_a_workflow_of_a_template_is_checked_with_it():
    broken = changed(LIB, ("spec.templates.0.container.args", ["{{inputs.parameters.y}}"]))
    others = {TemplateKey(False, "lib"): broken}
    arguments = {"parameters": [{"name": "x", "value": "1"}]}
    assert said(of_template(entrypoint="t", arguments=arguments), others=OTHERS) == []
    assert errors(of_template(entrypoint="t"), others=others) == [
        ("spec.arguments.parameters", "template 't' needs parameter 'x', which is not supplied"),
        ("spec.workflowTemplateRef",
         "in WorkflowTemplate lib, spec.templates[0].container.args[0]: nothing is named"
         " inputs.parameters.y here; did you mean inputs.parameters.x?"),
    ]  # fmt: skip


@pytest.mark.parametrize(("spec", "others", "field", "message"), [
    pytest.param({}, {}, "spec.workflowTemplateRef.name", "no WorkflowTemplate is named 'lib'", id="is missing"),
    pytest.param({"templates": [{"name": "a", "suspend": {}}]}, OTHERS, "spec.templates",
                 "cannot be used together with workflowTemplateRef", id="beside templates"),
    pytest.param({"entrypoint": "no"}, OTHERS, "spec.entrypoint", "there is no template 'no'; there are: t",
                 id="no such entry"),
])  # fmt: skip
def test_a_workflow_of_a_template_needs_it(spec, others, field, message):
    assert (field, message) in errors(of_template(**spec), others=others)


# --- warnings


@pytest.mark.parametrize(("document", "field", "message"), [
    pytest.param(changed(VALID, (f"{T}.0.steps.0.0.arguments.parameters.1", {"name": "x", "value": "1"})),
                 f"{T}[0].steps[0][0].arguments.parameters",
                 "template 'fetch' has no input parameter 'x'; it has: retries, url", id="an argument too many"),
    pytest.param(changed(VALID, (f"{T}.3.script.source", "{{=asInt(inputs.parameters.rl) + 1}}")),
                 f"{T}[3].script.source",
                 "nothing is named inputs.parameters.rl here; did you mean inputs.parameters.lr?",
                 id="an unknown variable in an expression"),
    pytest.param(changed(VALID, (f"{T}.2.dag.tasks.0.when", "{{=tasks.b.status == 'Failed'}}")),
                 f"{T}[2].dag.tasks[0].when", "task 'a' does not depend on 'b'; name it in depends",
                 id="an expression over another branch"),
    pytest.param(changed(VALID, (f"{T}.2.dag.tasks.0.arguments.artifacts", [
                     {"name": "x", "raw": {"data": "{{tasks.b.outputs.result}}"}}])),
                 f"{T}[2].dag.tasks[0].arguments.artifacts[0].raw.data",
                 "task 'a' does not depend on 'b'; name it in depends", id="a text over another branch"),
    pytest.param(changed(VALID, (f"{T}.2.dag.tasks.0.arguments.artifacts", [
                     {"name": "x", "raw": {"data": "{{tasks.a.outputs.result}}"}}])),
                 f"{T}[2].dag.tasks[0].arguments.artifacts[0].raw.data",
                 "task 'a' has no outputs before it ends", id="a task's own outputs"),
    pytest.param(changed(VALID, ("metadata.name", "Nightly")), "metadata.name",
                 "must be lower case letters, digits, '-' and '.', and begin and end with a letter or digit",
                 id="a name that the API server refuses"),
    pytest.param(changed(VALID, ("metadata.name", "-")), "metadata.name",
                 "is required (or generateName), unless a command gives it", id="no name"),
    pytest.param(changed(VALID, (f"{T}.6", {"name": "ask", "http": {"url": "http://x"}, "outputs": {
                     "parameters": [{"name": "p", "valueFrom": {"path": "/p"}}]}})),
                 f"{T}[6].outputs.parameters", "are not made: a template of type http has outputs.result only",
                 id="outputs of a request"),
    pytest.param(changed(VALID, ("spec.arguments.parameters.1", {"name": "x"})), "spec.arguments.parameters[1]",
                 "parameter 'x' has no value; give one when you submit it", id="a value to come"),
    pytest.param(changed(CRON, ("spec.schedules.0", "@every 0s")), "spec.schedules[0]",
                 "comes every second: a shorter interval is rounded up to 1s", id="a span of nothing"),
    pytest.param(changed(VALID, (f"{T}.0.steps.0.0.when", "{{item}} == 1")), f"{T}[0].steps[0][0].when",
                 "stays as it is: there is no loop here", id="an item without a loop"),
    pytest.param(a_workflow(*({"name": f"t{number}", "suspend": {}} for number in range(201))), T,
                 "there are 201 templates; Argo v4 cannot run this, because its CRDs allow 200", id="templates"),
    pytest.param(a_workflow({"name": "t", "dag": {"tasks": [
                     {"name": f"a{number}", "inline": {"suspend": {}}} for number in range(201)]}}),
                 f"{T}[0].dag.tasks",
                 "there are 201 tasks; Argo v4 cannot run this, because its CRDs allow 200", id="tasks"),
    pytest.param(a_workflow({"name": "t", "suspend": {}}, arguments={"parameters": [
                     {"name": f"p{number}", "value": "1"} for number in range(501)]}),
                 "spec.arguments.parameters",
                 "there are 501 parameters; Argo v4 cannot run this, because its CRDs allow 500",
                 id="parameters"),
])  # fmt: skip
def test_what_may_be_meant_otherwise_is_a_warning(document, field, message):
    assert ("warning", field, message) in said(normalise(document))
    assert errors(normalise(document)) == []


def test_metadata_that_only_the_services_write_is_a_warning():
    metadata = {"labels": {"moorage.dev/owner": "eve", "team": "{{workflow.parameters.no}}"}}
    document = normalise(changed(VALID, ("spec.workflowMetadata", metadata)))
    path = "spec.workflowMetadata.labels"
    assert ("warning", f"{path}[moorage.dev/owner]", "is not set: only the services write it") in said(document)
    assert [field for field, _ in errors(document)] == [f"{path}.team"]


def test_labels_may_come_from_elsewhere():
    document = changed(VALID, (f"{T}.1.container.command.1", "{{workflow.labels.owner}}"))
    message = "nothing is named workflow.labels.owner here; did you mean workflow.labels.json?"
    assert ("warning", f"{T}[1].container.command[1]", message) in said(normalise(document))
    assert errors(normalise(document)) == []


def test_volumes_may_be_named_by_what_a_step_sees():
    volume = {"name": "more", "configMap": {"name": "{{tasks.a.outputs.result}}"}}
    assert said(normalise(changed(VALID, ("spec.volumes.1", volume)))) == []
    wrong = changed(
        VALID, ("spec.volumes.1", volume), ("spec.volumes.1.configMap.name", "{{workflow.parameters.no}}")
    )
    assert [field for field, _ in errors(normalise(wrong))] == ["spec.volumes[1].configMap.name"]


def test_a_run_needs_values():
    document = changed(VALID, ("spec.arguments.parameters.1", {"name": "x"}))
    message = "parameter 'x' has no value; set value or valueFrom"
    assert errors(normalise(document), is_run=True) == [("spec.arguments.parameters[1]", message)]


def test_templates_may_use_what_their_workflow_brings():
    library = {"kind": "WorkflowTemplate", "metadata": {"name": "lib"}, "spec": {
        "arguments": {"parameters": [{"name": "x"}]},
        "templates": [{"name": "t", "container": {
            "image": "i", "args": ["{{workflow.parameters.more}}"],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}]}}],
    }}  # fmt: skip
    for spec in (library["spec"], library["spec"] | {"entrypoint": "t"}):
        assert errors(library | {"spec": spec}) == []
        assert [severity for severity, _, _ in said(library | {"spec": spec})] == ["warning"]


def test_a_template_without_parameters_may_read_all_of_them():
    runner = {
        "name": "run",
        "script": {"image": "python", "command": ["python"], "source": "{{inputs.parameters}}"},
    }
    assert said(a_workflow(runner)) == []


# --- properties


def places(value, path=()):
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from places(inner, (*path, key))


PLACES = [(document, path) for document in (VALID, CRON, LIB) for path in places(document) if path]
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=6),
    st.sampled_from(["{{", "{{x}}", "{{inputs.parameters.x}}", "{{=", "{{=1 +}}", "/../..", "a && b", "main"]),
    st.just([]), st.just({}), st.just([None]), st.just([[]]), st.just([{}]), st.just({"name": {}}),
    st.just({"": []}),
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(PLACES), st.one_of(st.just(...), ODD)), min_size=1, max_size=3))
def test_no_change_of_a_valid_document_ends_the_check(mutations):
    """`...` drops the value; every other value replaces it."""
    document = copy.deepcopy(mutations[0][0][0])
    for (_, path), value in mutations:
        target = document
        try:
            for key in path[:-1]:
                target = target[key]
            if value is ...:
                del target[path[-1]]
            else:
                target[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier mutation took it away
    plain = normalise(document)
    for others in (None, OTHERS):
        for finding in check(plain, others):
            assert finding.message
            assert finding.field
    unsupported(plain)


@pytest.mark.parametrize(("when", "why"), [
    ("1 == 1", None), ("{{steps.fetch.outputs.result}} == foo-bar", None),
    ("{{steps.fetch.outputs.result}}", None), ("{{=steps.fetch.outputs.result == 'x'}}", None),
    ("1 {{inputs.parameters.sign}} 2", None),
    ("{{steps.run-{{workflow.parameters.day}}.status}} != Succeeded", None),
    ("{{steps.run-{{workflow.parameters.day}}.status}} != Succeeded ==", "it ends too early"),
    ("{{workflow.name}} {{workflow.uid}} {{workflow.name}} {{workflow.uid}} ==", None),  # too many to be tried
    ("{{steps.fetch.outputs.result}} ==", "it ends too early"),
    ("'{{steps.fetch.outputs.result}} == x", "is not closed"),
    ("1 === 1", "invalid when condition"), ("foo", "neither true nor false"), ("a.b == 1", "has a dot"),
])  # fmt: skip
def test_conditions_that_can_never_be_read_are_named(when, why):
    document = copy.deepcopy(VALID)
    document["spec"]["templates"][0]["steps"][1][0]["when"] = when
    found = [finding for finding in check(normalise(document)) if finding.rule == "when"]
    assert [finding.field for finding in found] == (["spec.templates[0].steps[1][0].when"] if why else [])
    assert all(why in finding.message for finding in found)
