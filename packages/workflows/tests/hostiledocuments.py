"""Documents that are meant to stop the services: each took minutes, or all memory, before it had a budget."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from moorage.model.argo import CRON_WORKFLOWS, WORKFLOWS
from moorage_kube.resources import Obj, Resource

_ONES = "1" * 60
_ROUNDS = "map(1..90000, map(1..90000, #))"


def hostile_documents() -> list[tuple[Resource, Obj]]:
    """Twenty of them, without a namespace; none needs a pod."""
    expressions = {
        "layout": f'{{{{=date("{_ONES}x", "{_ONES}")}}}}',
        "to-date": f'{{{{=sprig.toDate("{_ONES}", "{_ONES}x")}}}}',
        "long-layout": "{{=sprig.toDate(repeat('2006 ', 300000), repeat('2006 ', 300000))}}",
        "rounds": f"{{{{=len({_ROUNDS})}}}}",
        "string": "{{=let a = repeat('x', 4000000); len(map(1..100000, a + 'y'))}}",
        "sort": "{{=len(sort(map(1..90000, string(#) + repeat('x', 1000))))}}",
        "json": "{{=len(toJSON(map(1..90000, map(1..100, #))))}}",
        "pattern": "{{=repeat('a', 1000000) matches '(a?){500}a{500}'}}",
        "path": "{{=jsonpath('[' + join(map(1..90000, string(#)), ',') + ']', '$..*..*..*')}}",
        "group": "{{=len(groupBy(1..90000, string(#) + repeat('x', 3000)))}}",
    }
    made = [(WORKFLOWS, _workflow(name, [_step("a", value=text)])) for name, text in expressions.items()]
    sequence: dict[str, Any] = {"withSequence": {"count": "100000"}}
    late: dict[str, Any] = {"withSequence": {"count": "{{=20000 + 0}}"}}
    texts: dict[str, Any] = {"withParam": json.dumps([f"row {number}" for number in range(20_000)])}
    rows = {
        "three-sequences": [_step(f"s{number}", **sequence) for number in range(3)],
        "late-sequences": [_step(f"s{number}", **late) for number in range(3)],
        "texts": [_step("a", **texts)],
        "sixty-tags": [
            _step(f"s{number}", value=f"{{{{=len(map(1..90000, # + {number}))}}}}") for number in range(60)
        ],
        "open-tags": [_step("a", value="{{" * 50_000)],
        "closed-far": [_step(f"s{number}", value="{{" * 50) for number in range(1000)] + [_step("z", value="}}")],
        "condition": [_step("a", when="{{=" * 20_000)],
        "words": [_step("a", when=" && ".join(["a == a"] * 7000))],
    }
    made += [(WORKFLOWS, _workflow(name, steps)) for name, steps in rows.items()]
    twice = [{"name": "a", "template": "again"}, {"name": "b", "template": "again"}]
    again = _workflow("again", [{"name": "a", "template": "again"}])
    again["spec"]["templates"].append({"name": "again", "steps": [twice]})
    cron = {**_workflow("schedules", [_step("a")]), "kind": CRON_WORKFLOWS.kind}
    cron["spec"] = {"schedules": [f"{n % 60} {n % 24} * * *" for n in range(20_000)], "workflowSpec": cron["spec"]}
    return [*made, (WORKFLOWS, again), (CRON_WORKFLOWS, cron)]


def _step(name: str, *, value: str = "", **fields: Any) -> dict[str, Any]:
    step = {"name": name, "template": "wait", **fields}
    return step | ({"arguments": {"parameters": [{"name": "x", "value": value}]}} if value else {})


def _workflow(name: str, steps: Sequence[Mapping[str, Any]]) -> Obj:
    """All steps at once; each goes on at once, without a pod."""
    wait = {"name": "wait", "inputs": {"parameters": [{"name": "x", "value": ""}]}, "suspend": {"duration": "0"}}
    return {
        "apiVersion": WORKFLOWS.api_version,
        "kind": WORKFLOWS.kind,
        "metadata": {"name": name},
        "spec": {"entrypoint": "main", "templates": [{"name": "main", "steps": [list(steps)]}, wait]},
    }
