"""A resource step against an API server that is a table of objects; it can fail and lose answers."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from moorage_workflows.decide.workflows.resources.conditions import Conditions, parse_condition
from moorage_workflows.decide.workflows.resources.flags import read_flags
from moorage_workflows.executor.errors import Passing, StepError
from moorage_workflows.executor.resource.actions import MARK, Actions, Task, suffix_of
from moorage_workflows.executor.resource.cluster import Lost, Refused
from moorage_workflows.executor.resource.outputs import Output, filtered
from moorage_workflows.executor.resource.step import ResourceOrder, carry_out, read_resource_order
from moorage_workflows.executor.retrying import Retrying

DISCOVERY: dict[str, Any] = {
    "/api/v1": [
        {"name": "configmaps", "kind": "ConfigMap", "namespaced": True, "shortNames": ["cm"]},
        {"name": "namespaces", "singularName": "namespace", "kind": "Namespace", "namespaced": False},
        {"name": "pods/log", "kind": "Pod", "namespaced": True},
    ],
    "/apis/batch/v1": [{"name": "jobs", "singularName": "job", "kind": "Job", "namespaced": True}],
}  # fmt: skip
MAPS, JOBS = "/api/v1/namespaces/lab/configmaps", "/apis/batch/v1/namespaces/lab/jobs"
A_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: made}\ndata: {a: b}\n"
A_JOB = "apiVersion: batch/v1\nkind: Job\nmetadata: {generateName: made-}\n"


@dataclass
class Table:
    """`failures`: raised before an answer, in order; a Lost one after the work was done. `grow`: at each GET."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    queries: list[Mapping[str, str]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    grow: Callable[[dict[str, Any]], None] = lambda obj: None

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        if path in DISCOVERY:
            return {"resources": DISCOVERY[path]}
        if path == "/apis":
            version = {"groupVersion": "batch/v1"}
            return {"groups": [{"name": "batch", "preferredVersion": version, "versions": [version]}]}
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None and not isinstance(failure, Lost):
            raise failure
        self.calls.append((method, path))
        self.queries.append(query or {})
        self.bodies.append(copy.deepcopy(body))
        self.types.append(content_type)
        answer = self._answer(method, path, query or {}, copy.deepcopy(body))
        if failure is not None:
            raise failure
        return copy.deepcopy(answer)

    def _answer(self, method: str, path: str, query: Mapping[str, str], body: Any) -> dict[str, Any]:
        if method == "POST":
            place = f"{path}/{body['metadata']['name']}"
            if place in self.objects:
                raise Refused("already exists", status=409, reason="AlreadyExists")
            body["metadata"] |= {"namespace": "lab", "uid": f"uid-{len(self.calls)}", "resourceVersion": "1"}
            self.objects[place] = body
            return dict(body)
        if method == "PATCH" and "force" in query:
            self.objects[path] = body
            return dict(body)
        if method == "GET" and path in (MAPS, JOBS):
            return {"items": [obj for place, obj in self.objects.items() if place.startswith(path)]}
        if path not in self.objects:
            raise Refused(f"{path} not found", status=404, reason="NotFound")
        if method == "DELETE":
            return self.objects.pop(path)
        obj = self.objects[path]
        if method == "GET":
            self.grow(obj)
        elif method == "PUT":
            self.objects[path] = obj = body
        return dict(obj)


@dataclass
class Bench:
    table: Table = field(default_factory=Table)
    said: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)

    def run(self, order: ResourceOrder) -> None:
        ending = threading.Event()
        ending.set()
        retrying = Retrying(ending, seconds=0)
        actions = Actions(self.table, retrying, say=self.said.append, pause=self.pauses.append)
        carry_out(order, actions, say=self.said.append, pause=self.pauses.append)

    def do(
        self, action: str, manifest: str = "", *flags: str, success: str = "", failure: str = "", **more: Any
    ) -> None:
        outputs = more.pop("outputs", ())
        task = Task(
            action=action,
            namespace="lab",
            mark="u/n/0",
            manifest=manifest,
            flags=read_flags(action, flags),
            **more,
        )
        conditions = Conditions(parse_condition(success), parse_condition(failure))
        self.run(ResourceOrder(task=task, conditions=conditions, outputs=tuple(outputs)))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_create_names_the_object_after_the_attempt_so_that_a_second_pod_finds_it(bench: Bench) -> None:
    name = "made-" + suffix_of("u/n/0/0/0")
    bench.do("create", A_JOB)
    bench.do("create", A_JOB)
    assert list(bench.table.objects) == [f"{JOBS}/{name}"]
    assert bench.table.objects[f"{JOBS}/{name}"]["metadata"]["annotations"] == {MARK: "u/n/0/0"}
    assert bench.said == [
        f"created Job lab/{name}",
        f"Job {name} was created by an earlier pod of this attempt",
        f"created Job lab/{name}",
    ]


def test_create_takes_another_name_where_somebody_elses_object_has_it(bench: Bench) -> None:
    bench.table.objects[f"{JOBS}/made-{suffix_of('u/n/0/0/0')}"] = {"metadata": {"name": "x"}}
    bench.do("create", A_JOB)
    assert f"{JOBS}/made-{suffix_of('u/n/0/0/1')}" in bench.table.objects


def test_create_with_a_name_that_is_taken_fails_with_the_servers_words(bench: Bench) -> None:
    bench.table.objects[f"{MAPS}/made"] = {"metadata": {"name": "made"}}
    with pytest.raises(StepError, match="ConfigMap 'made' cannot be created: already exists"):
        bench.do("create", A_MAP)


def test_an_answer_that_is_lost_creates_no_twin() -> None:
    bench = Bench(Table(failures=[Lost("the connection broke")]))
    ending = threading.Event()
    ending.set()
    actions = Actions(bench.table, Retrying(ending, seconds=1), say=bench.said.append, pause=bench.pauses.append)
    actions.run(Task(action="create", namespace="lab", mark="m", manifest=A_MAP))
    assert list(bench.table.objects) == [f"{MAPS}/made"]


def test_a_json_patch_whose_answer_is_lost_is_not_sent_again(bench: Bench) -> None:
    bench.do("create", A_MAP)
    bench.table.failures = [Lost("the connection broke")]
    with pytest.raises(StepError, match="may have done this request already, so it is not sent again"):
        bench.do("patch", "- {op: add, path: /data/c, value: d}", "cm", "made", merge_strategy="json")


def test_the_owner_is_added_to_those_of_the_manifest(bench: Bench) -> None:
    owner = {"kind": "Workflow", "uid": "u"}
    manifest = A_MAP.replace("{name: made}", "{name: made, ownerReferences: [{uid: first}]}")
    bench.do("create", manifest, owner=owner)
    assert bench.table.objects[f"{MAPS}/made"]["metadata"]["ownerReferences"] == [{"uid": "first"}, owner]


@pytest.mark.parametrize(
    ("strategy", "content_type"),
    [
        ("strategic", "application/strategic-merge-patch+json"),
        ("merge", "application/merge-patch+json"),
        ("json", "application/json-patch+json"),
    ],
)
def test_a_patch_goes_to_the_object_that_flags_name(bench: Bench, strategy: str, content_type: str) -> None:
    bench.do("create", A_MAP)
    bench.do("patch", "[]" if strategy == "json" else "{data: {}}", "configmap", "made", merge_strategy=strategy)
    assert (bench.table.calls[-1], bench.table.types[-1]) == (("PATCH", f"{MAPS}/made"), content_type)


def test_apply_is_a_server_side_apply_that_wins(bench: Bench) -> None:
    bench.do("apply", A_MAP)
    assert bench.table.types == ["application/apply-patch+yaml"]
    want = {"fieldManager": "moorage-workflow", "fieldValidation": "Strict", "force": "true"}
    assert bench.table.queries == [want]


def test_replace_sends_the_version_that_is_stored(bench: Bench) -> None:
    bench.do("create", A_MAP)
    bench.do("replace", A_MAP.replace("a: b", "a: c"))
    assert bench.table.bodies[-1]["metadata"]["resourceVersion"] == "1"
    assert bench.table.objects[f"{MAPS}/made"]["data"] == {"a": "c"}


def test_delete_takes_all_objects_of_the_manifest_and_none_that_is_gone(bench: Bench) -> None:
    bench.do("create", A_MAP)
    bench.do("delete", A_MAP + "---\n" + A_MAP.replace("made", "other"))
    assert bench.table.objects == {}
    assert bench.said[-2:] == ["deleted ConfigMap made", "ConfigMap other does not exist"]
    bench.do("create", A_MAP)
    bench.do("delete", "", "cm", "-l", "a=b")
    assert bench.table.objects == {}


def test_delete_waits_until_the_object_is_gone_and_names_its_finalizers(bench: Bench) -> None:
    bench.do("create", A_MAP)
    bench.table.objects[f"{MAPS}/made"]["metadata"]["finalizers"] = ["example.org/hold"]
    kept = bench.table.objects[f"{MAPS}/made"]
    answer = bench.table._answer
    bench.table._answer = lambda method, *more: kept if method == "DELETE" else answer(method, *more)  # type: ignore[method-assign]
    with pytest.raises(StepError, match="still exists after 2 s; its finalizers: example.org/hold"):
        bench.do("delete", A_MAP, "--timeout=2s")
    assert sum(bench.pauses) >= 2


def test_a_step_waits_until_its_condition_is_met_and_writes_outputs(bench: Bench, tmp_path: Path) -> None:
    def grow(obj: dict[str, Any]) -> None:
        status = obj.setdefault("status", {"succeeded": 0})
        status["succeeded"] += 1

    bench.table.grow = grow
    outputs = [
        Output(name="n", path=str(tmp_path / "0"), json_path="{.status.succeeded}"),
        Output(name="q", path=str(tmp_path / "1"), jq_filter=".status"),
    ]
    bench.do("create", A_JOB, success="status.succeeded > 2", outputs=outputs)
    assert [(tmp_path / name).read_text() for name in "01"] == ["3\n", '{"succeeded":3}\n']
    assert len(bench.pauses) == 2
    assert bench.said[-1].endswith("status.succeeded is 3")


def test_a_failure_condition_ends_the_wait_and_is_told_with_the_state(bench: Bench) -> None:
    bench.table.grow = lambda obj: obj.update(status={"failed": 2})
    with pytest.raises(StepError) as caught:
        bench.do("create", A_JOB, success="status.succeeded > 0", failure="status.failed > 1")
    name = f"Job lab/made-{suffix_of('u/n/0/0/0')}"
    want = f"{name}: failureCondition 'status.failed > 1' holds: status.succeeded is not set, status.failed is 2"
    assert caught.value.message == want


def test_an_object_that_is_deleted_while_it_is_waited_for_is_an_error(bench: Bench) -> None:
    bench.table.grow = lambda obj: bench.table.objects.clear()
    with pytest.raises(
        StepError, match="was deleted while its condition was waited for; before that status.x is not"
    ):
        bench.do("create", A_JOB, success="status.x == y")


def test_a_broken_connection_does_not_end_the_wait() -> None:
    bench = Bench()
    bench.do("create", A_JOB)
    bench.table.failures = [Passing("refused")]
    with pytest.raises(StepError, match=r"refused \(tried for 0 s\)"):  # Retrying has no time in this bench
        bench.do("get", A_JOB.replace("generateName: made-", f"name: made-{suffix_of('u/n/0/0/0')}"))


def test_an_object_that_may_be_missing_leaves_the_defaults(bench: Bench, tmp_path: Path) -> None:
    outputs = [
        Output(name="a", path=str(tmp_path / "0"), json_path="{.data.a}", default="usual"),
        Output(name="b", path=str(tmp_path / "1"), json_path="{.data.b}"),
    ]
    bench.do("get", A_MAP, "--ignore-not-found", outputs=outputs)
    assert [(tmp_path / name).read_text() for name in "01"] == ["usual\n", "\n"]


@pytest.mark.parametrize(
    ("action", "manifest", "why"),
    [
        ("create", "metadata: {name: x}", "has no apiVersion and no kind"),
        ("create", "{", "line 1|cannot be read"),
        ("create", "- a", "must be a mapping with apiVersion and kind, and is a list"),
        ("create", "apiVersion: x/v1\nkind: Route\nmetadata: {name: a}", "no kind 'Route' in version 'x/v1'"),
        ("create", "apiVersion: v1\nkind: ConfigMap", "neither metadata.name nor metadata.generateName"),
        ("apply", A_JOB, "has no metadata.name, which apply needs"),
        ("create", "", "the manifest is empty"),
        ("get", "", "needs a manifest with kind and name"),
        ("patch", "- a", "must be a mapping"),
        ("patch", A_MAP + "---\n" + A_MAP, "one document, and it has 2"),
        ("patch", "metadata: {name: a}", "has no apiVersion and no kind"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_told(bench: Bench, action: str, manifest: str, why: str) -> None:
    with pytest.raises(StepError, match=why):
        bench.do(action, manifest)
    assert not bench.table.objects


def test_conditions_need_one_object_and_nothing_is_made_before_that_is_known(bench: Bench) -> None:
    with pytest.raises(StepError, match="has 2 objects"):
        bench.do("create", A_MAP + "---\n" + A_JOB, success="status.x == y")
    assert bench.table.calls == []


def test_a_list_is_its_items(bench: Bench) -> None:
    items = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}} for name in ("a", "b")]
    bench.do("create", json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert list(bench.table.objects) == [f"{MAPS}/a", f"{MAPS}/b"]


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (".a", "1"),
        (".b", "text"),
        (".a, .b, .c", '1\ntext\n{"d":[true,null]}'),
        (".c | tojson", '{"d":[true,null]}'),
        ("empty", ""),
    ],
)
def test_jq_gives_texts_as_they_are_and_all_else_as_json(program: str, text: str) -> None:
    assert filtered(program, {"a": 1, "b": "text", "c": {"d": [True, None]}}) == text


@pytest.mark.parametrize("program", [".[", "nothing", 'error("x")'])
def test_a_program_of_jq_that_fails_is_told(program: str) -> None:
    with pytest.raises(StepError, match="jqFilter"):
        filtered(program, {})


def test_the_order_of_a_pod_is_read_with_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "manifest").write_text(A_MAP)
    order = {
        "action": "create",
        "namespace": "lab",
        "mark": "m",
        "manifest": str(tmp_path / "manifest"),
        "flags": ["--validate=false"],
        "success": "a == b",
        "outputs": [{"name": "n", "path": "/x/0", "jqFilter": "."}],
    }
    (tmp_path / "order.json").write_text(json.dumps({"resource": order}))
    assert read_resource_order(tmp_path / "order.json") == ResourceOrder(
        task=Task(
            action="create",
            namespace="lab",
            mark="m",
            manifest=A_MAP,
            flags=read_flags("create", ["--validate=false"]),
        ),
        conditions=Conditions(success=parse_condition("a == b")),
        outputs=(Output(name="n", path="/x/0", jq_filter="."),),
    )
    with pytest.raises(StepError, match="cannot be read"):
        read_resource_order(tmp_path / "nothing")
