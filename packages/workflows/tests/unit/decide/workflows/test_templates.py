from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_workflows.decide.workflows.merging import merged_values
from moorage_workflows.decide.workflows.templates import (
    STORED,
    Library,
    TemplateKey,
    TemplateMissing,
    choices_of,
    joined,
    merged,
    missing,
    named_by_tags,
    references,
    stored,
    with_defaults,
)

PRINT = {"name": "print", "container": {"image": "busybox"}}


def a_workflow(*templates, **spec):
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "w"},
        "spec": {"entrypoint": "main", "templates": list(templates), **spec},
    }


def a_template(name, *templates, kind="WorkflowTemplate", **spec):
    return {"kind": kind, "metadata": {"name": name}, "spec": {"templates": list(templates), **spec}}


def steps(*holders, name="main"):
    return {"name": name, "steps": [[{"name": f"s{index}", **holder}] for index, holder in enumerate(holders)]}


def ref(name, template, cluster=False):
    return {"templateRef": {"name": name, "template": template, **({"clusterScope": True} if cluster else {})}}


# --- merging


@pytest.mark.parametrize(("lower", "higher", "want"), [
    pytest.param({"a": 1, "b": 2}, {"b": 3}, {"a": 1, "b": 3}, id="fields of mappings are merged"),
    pytest.param({"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}, id="at every level"),
    pytest.param({"a": 1}, {"a": None}, {"a": 1}, id="null is absent"),
    pytest.param({"args": [1, 2]}, {"args": [3]}, {"args": [3]}, id="a list without a key is replaced"),
    pytest.param({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
                 {"env": [{"name": "C", "value": "3"}, {"name": "A", "value": "4"}]},
                 {"env": [{"name": "A", "value": "4"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}]},
                 id="a list with a key keeps the order of the lower one"),
    pytest.param({"tolerations": [{"operator": "Exists"}]}, {"tolerations": [{"operator": "Exists"}]},
                 {"tolerations": [{"operator": "Exists"}, {"operator": "Exists"}]},
                 id="entries without the key are merged with none"),
    pytest.param({"volumes": [{"name": "v", "emptyDir": {}}]}, {"volumes": [{"name": "v", "hostPath": {}}]},
                 {"volumes": [{"name": "v", "hostPath": {}}]}, id="a volume has one source"),
])  # fmt: skip
def test_the_higher_document_wins(lower, higher, want):
    before = copy.deepcopy((lower, higher))
    assert merged_values(lower, higher) == want
    assert (lower, higher) == before


names = st.sampled_from(["name", "env", "image", "parameters", "args"])
documents = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from("ab"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=12,
)


@given(documents, st.sampled_from(["", "env", "parameters"]))
def test_merging_with_nothing_changes_nothing(document, field):
    assert merged_values(document, None, field) == document
    assert merged_values({}, document, field) == (document if document is not None else {})


# --- workflowTemplateRef


def test_the_workflow_wins_over_its_template_parameter_by_parameter():
    template = a_template(
        "lib", steps({"template": "print"}), PRINT, entrypoint="main", serviceAccountName="low", suspend=True,
        arguments={"parameters": [{"name": "a", "value": "1", "enum": ["1", "2"]}, {"name": "b", "value": "3"}]},
        hooks={"exit": {"template": "print"}, "running": {"template": "print", "expression": "true"}},
        workflowMetadata={"labels": {"l": "low"}, "labelsFrom": {"f": {"expression": "low"}}},
    )  # fmt: skip
    workflow = {
        "kind": "Workflow", "metadata": {"name": "w"},
        "spec": {
            "workflowTemplateRef": {"name": "lib"}, "serviceAccountName": "high",
            "arguments": {"parameters": [{"name": "a", "value": "2"}, {"name": "c", "value": "4"}]},
            "hooks": {"exit": {"template": "other"}},
            "workflowMetadata": {"labelsFrom": {"g": {"expression": "high"}}},
        },
    }  # fmt: skip
    before = copy.deepcopy((workflow, template))
    assert joined(workflow, template) == {
        "kind": "Workflow",
        "metadata": {"name": "w", "labels": {"workflows.argoproj.io/workflow-template": "lib"}},
        "spec": {
            "entrypoint": "main", "serviceAccountName": "high", "templates": template["spec"]["templates"],
            "arguments": {"parameters": [
                {"name": "a", "value": "2"}, {"name": "b", "value": "3"}, {"name": "c", "value": "4"}]},
            "hooks": {"exit": {"template": "other"}, "running": {"template": "print", "expression": "true"}},
            "workflowMetadata": {
                "labels": {"l": "low"}, "labelsFrom": {"f": {"expression": "low"}, "g": {"expression": "high"}}},
        },
    }  # fmt: skip
    assert (workflow, template) == before


@pytest.mark.parametrize(("lower", "own", "want"), [
    pytest.param({"s3": {"bucket": "b", "key": "k"}}, {"s3": {"key": "own"}},
                 {"s3": {"bucket": "b", "key": "own"}}, id="the same store is merged"),
    pytest.param({"s3": {"bucket": "b", "key": "k"}}, {"raw": {"data": "d"}}, {"raw": {"data": "d"}},
                 id="another store replaces it"),
])  # fmt: skip
def test_an_artifact_of_the_workflow_replaces_that_of_the_template(lower, own, want):
    template = a_template("lib", arguments={"artifacts": [{"name": "a", **lower}]})
    workflow = {
        "spec": {"workflowTemplateRef": {"name": "lib"}, "arguments": {"artifacts": [{"name": "a", **own}]}}
    }
    assert joined(workflow, template)["spec"]["arguments"]["artifacts"] == [{"name": "a", **want}]


def test_a_missing_workflow_template_is_named():
    workflow = {"spec": {"workflowTemplateRef": {"name": "lib", "clusterScope": True}}}
    with pytest.raises(TemplateMissing) as caught:
        merged(workflow)
    assert (caught.value.field, caught.value.name) == ("spec.workflowTemplateRef.name", "lib")
    assert caught.value.message == "spec.workflowTemplateRef.name: no ClusterWorkflowTemplate is named 'lib'"


# --- templateDefaults


DEFAULTS = {
    "name": "ignored",
    "retryStrategy": {"limit": "2"},
    "container": {"image": "default", "env": [{"name": "A", "value": "default"}]},
    "script": {"image": "python"},
}


@pytest.mark.parametrize(("template", "want"), [
    pytest.param({"name": "t", "container": {"args": ["x"], "env": [{"name": "B", "value": "b"}]}},
                 {"name": "t", "retryStrategy": {"limit": "2"}, "container": {
                     "image": "default", "args": ["x"],
                     "env": [{"name": "A", "value": "default"}, {"name": "B", "value": "b"}]}},
                 id="a container has those of containers"),
    pytest.param({"name": "t", "suspend": {}, "retryStrategy": {"limit": "0"}},
                 {"name": "t", "suspend": {}, "retryStrategy": {"limit": "0"}}, id="the template wins"),
    pytest.param(steps({"template": "t"}), {**steps({"template": "t"}), "retryStrategy": {"limit": "2"}},
                 id="steps have those without a type"),
])  # fmt: skip
def test_defaults_of_templates_are_for_their_own_type(template, want):
    assert with_defaults(template, DEFAULTS) == want
    assert with_defaults(want, DEFAULTS) == want
    assert merged(a_workflow(template, templateDefaults=DEFAULTS))["spec"]["templates"] == [want]


# --- looking up


LIB = a_template("lib", steps({"template": "print"}), PRINT, podMetadata={"labels": {"a": "lib"}})
TOP = a_template("top", steps(ref("lib", "main"), name="print"), kind="ClusterWorkflowTemplate")
OTHERS = {TemplateKey(False, "lib"): LIB, TemplateKey(True, "top"): TOP}


def test_a_name_is_looked_up_in_the_scope_of_the_template_that_uses_it():
    library = Library(a_workflow(steps(ref("lib", "main")), {"name": "print", "suspend": {}}), OTHERS)
    entry = library.entry()
    assert (entry.scope, entry.name, entry.type) == ("", "main", "steps")
    main = library.find(entry.template["steps"][0][0], entry.scope)
    assert (main.scope, main.name) == ("lib", "main")
    assert library.find(main.template["steps"][0][0], main.scope).type == "container"
    assert library.find(main.template["steps"][0][0], "").type == "suspend"
    assert main.template["metadata"] == {"labels": {"a": "lib"}}


def test_an_inline_template_stays_in_its_scope_and_has_the_defaults():
    library = Library(a_workflow(templateDefaults={"container": {"image": "d"}}), OTHERS)
    inline = library.find({"name": "s", "inline": {"container": {"args": ["x"]}}}, "lib")
    assert (inline.scope, inline.name, inline.template) == (
        "lib",
        "",
        {"container": {"image": "d", "args": ["x"]}},
    )


@pytest.mark.parametrize(("step", "scope", "field", "message"), [
    pytest.param({"template": "no"}, "", "a.template", "there is no template 'no'; there are: main", id="own"),
    pytest.param({"template": "no"}, "lib", "a.template",
                 "there is no template 'no'; WorkflowTemplate lib has: main, print", id="in a scope"),
    pytest.param(ref("lib", "no"), "", "a.templateRef.template",
                 "there is no template 'no'; WorkflowTemplate lib has: main, print", id="in what is referred to"),
    pytest.param(ref("no", "main"), "", "a.templateRef.name",
                 "no WorkflowTemplate is named 'no'; known are: lib", id="no such WorkflowTemplate"),
    pytest.param(ref("lib", "main", True), "", "a.templateRef.name",
                 "no ClusterWorkflowTemplate is named 'lib'; known are: top", id="of the cluster"),
    pytest.param({"templateRef": {"template": "x"}}, "", "a.templateRef.name", "is required", id="no name"),
    pytest.param({}, "", "a", "the template has no name", id="nothing"),
])  # fmt: skip
def test_a_missing_template_is_named_with_its_field(step, scope, field, message):
    library = Library(a_workflow(steps(ref("lib", "main"))), OTHERS)
    with pytest.raises(TemplateMissing) as caught:
        library.find(step, scope, path=("a",))
    assert (caught.value.field, caught.value.problem) == (field, message)
    assert caught.value.message == f"{field}: {message}"


def test_an_entry_point_that_is_missing_is_named():
    with pytest.raises(TemplateMissing, match="spec.entrypoint: there is no template 'main'; there are: print"):
        Library(a_workflow(PRINT)).entry()
    with pytest.raises(TemplateMissing, match="spec.entrypoint: is required"):
        Library({"spec": {}}).entry()


# --- references and stored documents


NESTED = a_workflow(
    {"name": "main", "dag": {"tasks": [
        {"name": "a", "inline": steps(ref("one", "t"))},
        {"name": "b", "template": "main", "hooks": {"exit": ref("two", "t", True)}},
        {"name": "c", **ref("{{inputs.parameters.x}}", "t")}]}},
    hooks={"exit": ref("three", "t")},
)  # fmt: skip


def test_references_are_found_in_inline_templates_and_hooks():
    assert references(NESTED) == {TemplateKey(False, "one"), TemplateKey(True, "two"), TemplateKey(False, "three")}
    cron = {"kind": "CronWorkflow", "spec": {"workflowSpec": {"workflowTemplateRef": {"name": "lib"}}}}
    assert references(cron) == {TemplateKey(False, "lib")}


def test_what_is_missing_is_looked_for_through_others():
    workflow = a_workflow(steps(ref("top", "print", True)))
    assert missing(workflow, {}) == {TemplateKey(True, "top")}
    assert missing(workflow, {TemplateKey(True, "top"): TOP}) == {TemplateKey(False, "lib")}
    assert missing(workflow, OTHERS) == set()


def test_a_stored_document_holds_what_it_reaches_and_nothing_else():
    others = {**OTHERS, TemplateKey(False, "unused"): a_template("unused", PRINT)}
    document = stored(a_workflow(steps(ref("top", "print", True))), others)
    assert set(document[STORED]) == {"cluster/top", "lib"}
    library = Library.of_stored(document)
    first = library.find(library.entry().template["steps"][0][0], "")
    second = library.find(first.template["steps"][0][0], first.scope)
    third = library.find(second.template["steps"][0][0], second.scope)
    assert [first.scope, second.scope, third.scope] == ["cluster/top", "lib", "lib"]
    assert third.template == {**PRINT, "metadata": {"labels": {"a": "lib"}}}


def test_a_stored_document_is_that_of_its_workflow_template():
    workflow = {"kind": "Workflow", "metadata": {"name": "w"}, "spec": {"workflowTemplateRef": {"name": "lib"}}}
    document = stored(workflow | {"spec": {**workflow["spec"], "entrypoint": "main"}}, OTHERS)
    assert "workflowTemplateRef" not in document["spec"]
    assert Library.of_stored(document).entry().name == "main"
    assert document[STORED] == {}


def test_what_can_be_reached_must_be_there_and_the_rest_need_not():
    broken = a_template("lib", PRINT, steps(ref("gone", "t"), name="other"))
    document = stored(a_workflow(steps(ref("lib", "print"))), {TemplateKey(False, "lib"): broken})
    assert set(document[STORED]) == {"lib"}
    with pytest.raises(TemplateMissing) as caught:
        stored(a_workflow(steps(ref("lib", "other"))), {TemplateKey(False, "lib"): broken})
    assert (caught.value.field, caught.value.name) == ("spec.templates[0].steps[0][0].templateRef.name", "gone")


def test_names_that_only_the_run_knows_bring_the_whole_list():
    chooser = a_template(
        "lib", steps({"template": "{{inputs.parameters.x}}"}), steps(ref("top", "t", True), name="x")
    )
    others = {
        TemplateKey(False, "lib"): chooser,
        TemplateKey(True, "top"): a_template("top", {**PRINT, "name": "t"}),
    }
    assert set(stored(a_workflow(steps(ref("lib", "main"))), others)[STORED]) == {"lib", "cluster/top"}
    assert set(stored(a_workflow(steps(ref("top", "{{x}}", True))), others)[STORED]) == {"cluster/top"}


def test_a_template_that_a_tag_names_brings_all_that_it_may_mean():
    pool = {
        TemplateKey(False, "a"): a_template("a", PRINT, steps(ref("b", "print"), name="go")),
        TemplateKey(False, "b"): a_template("b", PRINT),
        TemplateKey(False, "lost"): a_template("lost", steps(ref("gone", "t"), name="go")),
        TemplateKey(False, "bad"): a_template("bad", PRINT),
        TemplateKey(True, "top"): a_template("top", PRINT),
    }
    choices = choices_of(pool, {}, lambda document, _: ["no"] if document["metadata"]["name"] == "bad" else [])
    assert [key.scope for key in choices] == ["a", "b", "cluster/top"]
    workflow = a_workflow(steps(ref("{{workflow.parameters.name}}", "go")))
    assert named_by_tags(workflow) == {False}
    assert named_by_tags(a_workflow(steps(ref("a", "{{workflow.parameters.name}}")))) == set()
    assert set(stored(workflow, {}, choices)[STORED]) == {"a", "b"}
    assert set(stored(workflow, {})[STORED]) == set()


@given(documents)
def test_documents_of_any_shape_raise_nothing_else(document):
    workflow = {"spec": {"entrypoint": "main", "templates": [document, {"name": "main", "steps": document}]}}
    assert references(workflow) == set()
    try:
        stored(workflow, {})
    except TemplateMissing:
        pass
