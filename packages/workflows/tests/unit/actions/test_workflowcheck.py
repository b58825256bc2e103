from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_workflows.actions.workflowcheck import NEWER_FIELDS, check_documents, check_fields, check_texts

VALID = """\
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: train}
spec:
  entrypoint: main
  arguments:
    parameters: [{name: epochs, value: 3}]
  templates:
  - name: main
    retryStrategy: {limit: 2}
    container:
      image: trainer
      command: [python, train.py]
      env:
      - {name: MODE, value: fast}
      resources:
        limits: {nvidia.com/gpu: 1, memory: 4Gi}
"""
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
OTHER = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a: "1"}
"""


def said(text):
    return [(finding.severity.value, finding.field, finding.message) for finding in check_documents(text)]


@pytest.mark.parametrize("text", [VALID, LIBRARY, OTHER, "", "---\n", f"{VALID}---\n{OTHER}"])
def test_valid_texts_have_no_findings(text):
    assert said(text) == []


@pytest.mark.parametrize(("old", "new", "field", "message"), [
    pytest.param("retryStrategy", "retryStratgy", "spec.templates[0].retryStratgy",
                 "unknown field; did you mean retryStrategy?", id="a typing error"),
    pytest.param("retryStrategy", "retry_strategy", "spec.templates[0].retry_strategy",
                 "unknown field; did you mean retryStrategy?", id="another spelling"),
    pytest.param("retryStrategy", "RetryStrategy", "spec.templates[0].RetryStrategy",
                 "unknown field; did you mean retryStrategy?", id="another case"),
    pytest.param("entrypoint: main", "entrypoint: main\n  entrypoints: main", "spec.entrypoints",
                 "unknown field; did you mean entrypoint?", id="one letter more"),
    pytest.param("env:", "envs:", "spec.templates[0].container.envs", "unknown field; did you mean env?",
                 id="in a container"),
    pytest.param("value: fast", "val: fast", "spec.templates[0].container.env[0].val",
                 "unknown field; did you mean value?", id="in a list"),
    pytest.param("name: train", "name: train, lables: {a: b}", "metadata.lables",
                 "unknown field; did you mean labels?", id="in the metadata"),
    pytest.param("value: fast", "value: 3", "spec.templates[0].container.env[0].value",
                 "must be a string; put it in quotes", id="a number for a text"),
    pytest.param("image: trainer", "image: trainer\n      tty: 'yes'", "spec.templates[0].container.tty",
                 "must be true or false, without quotes", id="a text for a truth value"),
    pytest.param("entrypoint: main", "entrypoint: main\n  priority: '3'", "spec.priority",
                 "must be a whole number, without quotes", id="a text for a number"),
    pytest.param("[python, train.py]", "python train.py", "spec.templates[0].container.command",
                 "must be a list", id="a text for a list"),
    pytest.param("{name: MODE, value: fast}", "{value: fast}", "spec.templates[0].container.env[0].name",
                 "is required", id="a name that is missing"),
    pytest.param("{limit: 2}", "2", "spec.templates[0].retryStrategy", "must be a mapping",
                 id="a number for a mapping"),
])  # fmt: skip
def test_wrong_fields_are_named_with_what_is_right(old, new, field, message):
    assert old in VALID
    assert said(VALID.replace(old, new)) == [("error", field, message)]


def test_an_unknown_field_without_a_like_names_those_that_there_are():
    [(_, field, message)] = said(LIBRARY.replace("{image: busybox}", "{image: busybox, xyzzy: 1}"))
    assert field == "spec.templates[0].container.xyzzy"
    assert message.startswith("unknown field; known fields: args, command, env, envFrom, image,")


@pytest.mark.parametrize("field", ["pendingTimeout: 5m", "podResources: {limits: {cpu: 1}}"])
def test_fields_of_a_newer_argo_are_no_typing_errors(field):
    assert said(VALID.replace("retryStrategy: {limit: 2}", field)) == []


def test_fields_that_kubernetes_has_since_are_passed_on():
    text = VALID.replace("image: trainer", "image: trainer\n      restartPolicyRules: []")
    assert said(text) == []


def test_the_newer_fields_are_those_that_hera_lacks():
    """When hera knows a field, its row goes."""
    from hera.workflows.models.io.argoproj.workflow import v1alpha1
    from hera.workflows.models.io.k8s.api.core import v1

    for name, fields in NEWER_FIELDS.items():
        model = getattr(v1alpha1, name, None) or getattr(v1, name)
        known = {field.alias or attribute for attribute, field in model.model_fields.items()}
        assert known & fields == set(), name


def test_spellings_of_v3_are_refused_with_what_to_write():
    text = """\
apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
metadata: {name: nightly}
spec:
  schedule: "0 0 * * *"
  workflowSpec:
    entrypoint: main
    synchronization: {mutex: {name: m}}
    templates: [{name: main, container: {image: busybox}}]
"""
    use = "(see `moor workflow convert`)"
    assert said(text) == [
        ("error", "spec.schedule", f"is the spelling of Argo v3; write schedules, a list {use}"),
        (
            "error",
            "spec.workflowSpec.synchronization.mutex",
            f"is the spelling of Argo v3; write mutexes, a list {use}",
        ),
    ]


def test_what_is_not_run_is_refused():
    text = VALID.replace("  templates:", "  executorPlugins: [{name: a}]\n  templates:")
    assert ("error", "spec.executorPlugins", "executor plugins are not run") in said(text)


def test_templates_of_other_documents_are_known():
    assert said(f"{USER}---\n{LIBRARY}") == []
    assert check_texts([("a.yaml", USER), ("b.yaml", LIBRARY)]).findings == ()


def test_without_a_cluster_an_unknown_template_is_a_warning():
    assert said(USER) == [
        ("warning", "spec.templates[0].steps[0][0].templateRef", "is not checked: its document is not available")
    ]


def test_findings_have_their_file_and_line():
    text = f"{OTHER}---\n" + VALID.replace("image: trainer", "imag: trainer")
    report = check_texts([("a.yaml", LIBRARY), ("b.yaml", text)])
    assert [(item.file, item.line, item.kind, item.name, item.finding.field) for item in report.findings] == [
        ("b.yaml", 16, "Workflow", "train", "spec.templates[0].container.image"),
        ("b.yaml", 17, "Workflow", "train", "spec.templates[0].container.imag"),
    ]
    assert (report.checked, report.skipped) == (2, 1)


def test_the_items_of_a_list_are_checked():
    items = "\n".join("  " + line for line in LIBRARY.replace("image", "imag").splitlines())
    [*_, located] = check_texts([("-", "kind: List\napiVersion: v1\nitems:\n- " + items.lstrip())]).findings
    assert (located.line, located.finding.field) == (9, "spec.templates[0].container.imag")


@pytest.mark.parametrize(("text", "line", "message"), [
    ("a: [1", 2, "is not valid YAML: while parsing a flow sequence, did not find expected ',' or ']'"),
    ("- a\n- b\n", 1, "is not a Kubernetes object but a list or a plain value"),
    (VALID + "spec: {}\n", 18, "the key 'spec' occurs here and in line 4; only this one counts"),
])  # fmt: skip
def test_texts_that_cannot_be_read_are_findings(text, line, message):
    findings = check_texts([("-", text)]).findings
    assert (line, message) in [(located.line, located.finding.message) for located in findings]


def test_another_version_of_the_kinds_is_refused():
    assert said(VALID.replace("v1alpha1", "v1")) == [("error", "apiVersion", "must be argoproj.io/v1alpha1")]


@given(st.text(alphabet="{}[]:-,\n 'abkind", max_size=60))
def test_any_text_is_answered_with_findings(text):
    for finding in check_documents(text + "\n---\n" + text):
        assert finding.message


odd = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["templates", "container", "steps", "name", "arguments", "parameters", "value", "dag", "tasks"]), inner,
        max_size=3),
)  # fmt: skip


@given(odd)
def test_specs_of_any_shape_are_answered_with_fields(spec):
    for finding in check_fields({"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "spec": spec}):
        assert finding.field
        assert finding.message
