"""The table of conditions holds what controllers write, and nothing else."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import moorage
from moorage.model.conditions import CONDITIONS
from moorage.model.crds import KINDS

SOURCE = Path(moorage.__file__).parent
WRITERS = {
    "Budget": ("server/loops/budgets.py",),
    "Dataset": ("controllers/dataset", "filler"),
    "GuardrailPolicy": (),
    "IdlePolicy": (),
    "Machine": ("controllers/machine", "decide/machines"),
    "MachineNodePool": ("controllers/machinenodepool",),
    "MapJob": ("controllers/mapjob", "server/loops/maps.py", "model/mapjob.py"),
    "Reservation": ("controllers/reservation", "decide/machines"),
    "Tenant": ("controllers/tenant",),
    "VolumeBackup": ("controllers/volumebackup", "filler"),
    "Workspace": ("controllers/workspace",),
}
WORD = re.compile(r"[A-Z][A-Za-z]+")


@functools.cache
def trees(kind):
    parsed = []
    for folder in WRITERS[kind]:
        place = SOURCE / folder
        for path in [place] if place.suffix else sorted(place.glob("*.py")):
            name = ".".join(("moorage", *path.relative_to(SOURCE).with_suffix("").parts))
            parsed.append((name.removesuffix(".__init__"), ast.parse(path.read_text())))
    return parsed


def literals(kind):
    return {
        node.value
        for _, tree in trees(kind)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def plan_reasons(kind):
    """Literals that the kind's plan passes to a parameter named `reason`."""
    for name, tree in trees(kind):
        if not name.endswith((f"{kind.lower()}.plan", f"{kind.lower()}.controller")):
            continue
        module = import_module(name)
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            target = getattr(module, call.func.id, None) if isinstance(call.func, ast.Name) else None
            if not callable(target) or target.__name__ in ("Told", "PodSeen", "with_condition"):
                continue
            try:
                names = list(inspect.signature(target).parameters)
            except ValueError:
                continue
            passed = dict(zip(names, call.args, strict=False)) | {
                keyword.arg: keyword.value for keyword in call.keywords
            }
            value = passed.get("reason")
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and WORD.fullmatch(value.value):
                yield value.value


def test_every_kind_stands_in_the_table():
    assert set(CONDITIONS) == {kind.resource.kind for kind in KINDS} == set(WRITERS)


@pytest.mark.parametrize("kind", CONDITIONS)
def test_every_reason_of_the_table_is_written_somewhere(kind):
    listed = {reason for condition in CONDITIONS[kind] for reason in condition.reasons}
    assert listed - literals(kind) == set()


@pytest.mark.parametrize("kind", CONDITIONS)
def test_every_reason_that_a_plan_writes_stands_in_the_table(kind):
    listed = {reason for condition in CONDITIONS[kind] for reason in condition.reasons}
    assert set(plan_reasons(kind)) - listed == set()


def test_plans_are_really_read():
    assert {"Filled", "NoStorage", "Refused"} <= set(plan_reasons("Dataset"))
    assert {"Unschedulable", "Quota"} <= set(plan_reasons("Workspace")) | literals("Workspace")
