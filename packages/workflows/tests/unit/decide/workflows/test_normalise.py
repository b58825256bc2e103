from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_workflows.decide.workflows.normalise import OldSpelling, normalise, old_spellings, text_of


@pytest.mark.parametrize(("value", "want"), [
    pytest.param(3, "3", id="an integer"),
    pytest.param(1.50, "1.5", id="a float without its zeros"),
    pytest.param(3.0, "3", id="a float that is whole"),
    pytest.param(1e21, "1000000000000000000000", id="a large float without an exponent"),
    pytest.param(1e-7, "0.0000001", id="a small float without an exponent"),
    pytest.param(True, "true", id="a truth value"),
    pytest.param("003", "003", id="a text stays"),
    pytest.param({"a": 1}, {"a": 1}, id="a mapping stays, for lint to refuse"),
])  # fmt: skip
def test_numbers_are_written_as_argo_writes_them(value, want):
    assert text_of(value) == want


@pytest.mark.parametrize(("spec", "want"), [
    pytest.param({"parameters": [{"name": "p", "value": 3, "default": 1.5, "enum": [1, True, "x"]}]},
                 {"parameters": [{"name": "p", "value": "3", "default": "1.5", "enum": ["1", "true", "x"]}]},
                 id="parameters are texts"),
    pytest.param({"outputs": {"parameters": [{"name": "p", "valueFrom": {"path": "/x", "default": 0}}]}},
                 {"outputs": {"parameters": [{"name": "p", "valueFrom": {"path": "/x", "default": "0"}}]}},
                 id="so is what stands in for an output"),
    pytest.param({"container": {"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 0.5}}}},
                 {"container": {"resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "0.5"}}}},
                 id="quantities are texts"),
    pytest.param({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": 1000}}]},
                 {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1000"}}]}, id="of volumes too"),
    pytest.param({"steps": [[{"name": "a", "withItems": [1, True, None, {"value": 3}]}]]},
                 {"steps": [[{"name": "a", "withItems": [1, True, None, {"value": 3}]}]]}, id="items stay"),
    pytest.param({"parallelism": 3, "retryStrategy": {"limit": 3}, "env": [{"name": "A", "value": 3}]},
                 {"parallelism": 3, "retryStrategy": {"limit": 3}, "env": [{"name": "A", "value": 3}]},
                 id="other numbers stay"),
    pytest.param({"suspend": None, "templates": [{"container": None, "name": "a"}]},
                 {"templates": [{"name": "a"}]}, id="null is absent"),
    pytest.param({"templates": [{"synchronization": {"mutex": {"name": "m"}, "semaphore": {"a": 1}}}]},
                 {"templates": [{"synchronization": {"mutexes": [{"name": "m"}], "semaphores": [{"a": 1}]}}]},
                 id="locks of v3"),
    pytest.param({"synchronization": {"mutex": {"name": "m"}, "mutexes": [{"name": "n"}]}},
                 {"synchronization": {"mutexes": [{"name": "m"}, {"name": "n"}]}}, id="locks of both versions"),
])  # fmt: skip
def test_a_spec_has_one_spelling(spec, want):
    before = copy.deepcopy(spec)
    assert normalise({"kind": "Workflow", "spec": spec}) == {"kind": "Workflow", "spec": want}
    assert spec == before


def test_a_schedule_of_v3_becomes_a_list():
    cron = {"kind": "CronWorkflow", "spec": {"schedule": "* * * * *", "workflowSpec": {}}}
    assert normalise(cron)["spec"] == {"schedules": ["* * * * *"], "workflowSpec": {}}
    assert list(old_spellings(cron)) == [OldSpelling(("spec", "schedule"), "schedules")]


def test_old_spellings_have_their_paths():
    spec = {"templates": [{"name": "a"}, {"synchronization": {"mutex": {"name": "m"}, "semaphore": {}}}]}
    at = ("spec", "templates", 1, "synchronization")
    assert list(old_spellings({"kind": "Workflow", "spec": spec})) == [
        OldSpelling((*at, "mutex"), "mutexes"),
        OldSpelling((*at, "semaphore"), "semaphores"),
    ]


names = st.sampled_from([
    "spec", "parameters", "value", "enum", "valueFrom", "default", "resources", "limits", "synchronization",
    "mutex", "mutexes", "withItems", "schedule", "schedules",
])  # fmt: skip
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4)
)
documents = st.dictionaries(names, values)


@given(documents, st.sampled_from(["Workflow", "CronWorkflow"]))
def test_what_has_one_spelling_stays(document, kind):
    made = normalise({"kind": kind, **document})
    assert normalise(made) == made
