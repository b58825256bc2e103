"""Budgets, IdlePolicies and fields of tenants by command: `set`, `delete`, and their dry runs."""

from __future__ import annotations

import json

import pytest
import yaml

from moorage.model.budget import BUDGETS
from moorage.model.idle import IDLE_POLICIES
from moorage.model.tenant import TENANTS


def spec(moor, resource, name):
    return moor.api.objects[resource.plural, "", name]["spec"]


def test_a_budget_is_created_changed_and_deleted(moor):
    words = ("--tenant", "vision", "--gpu-hours", "500", "--when-over", "queue", "--warn-at", "50")
    done = moor("budget", "set", "month", *words)
    assert (done.code, done.err) == (0, "Budget month created\n")
    first = {"tenants": ["vision"], "gpuHours": "500", "whenOver": "queue", "warnAt": [50]}
    assert spec(moor, BUDGETS, "month") == first
    assert moor("budget", "set", "month", "--user", "*", "--money", "100", "--warn-at", "80").code == 0
    assert spec(moor, BUDGETS, "month") == {"users": ["*"], "money": "100", "whenOver": "queue", "warnAt": [80]}
    assert moor("budget", "delete", "month").code == 0
    assert moor.api.named(BUDGETS) == []
    assert moor("budget", "delete", "month").err.startswith("error: Budget 'month' not found\n")


def test_an_idle_policy_is_created_and_its_fields_are_removed(moor):
    done = moor("idle", "set", "gpus", "--warn-after", "4h", "--remind-after", "4h", "--suspend-after", "12h",
                "--quiet", "20:00-08:00", "--quiet", "sat,Sun", "--time-zone", "Asia/Tokyo",
                "--exempt-user", "demo", "--exempt-name", "vision/*", "--work", "workspace",
                "--notify", "mailto:a@example.org", "-o", "json")  # fmt: skip
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert (document["kind"], document["metadata"]) == ("IdlePolicy", {"name": "gpus"})
    assert document["spec"] == {
        "warnAfter": "4h", "remindAfter": "4h", "suspendAfter": "12h", "work": ["workspace"],
        "quietHours": {
            "spans": [
                {"start": "20:00", "end": "08:00"},
                {"start": "00:00", "end": "00:00", "days": ["Sat", "Sun"]},
            ],
            "timeZone": "Asia/Tokyo",
        },
        "exempt": {"users": ["demo"], "names": ["vision/*"]},
        "notify": {"targets": ["mailto:a@example.org"]},
    }  # fmt: skip
    assert "20:00-08:00; Sat,Sun" in moor("idle", "policies").out
    none = ("--suspend-after", "none", "--quiet", "none", "--work", "none", "--exempt-name", "none")
    assert moor("idle", "set", "gpus", *none).code == 0
    assert spec(moor, IDLE_POLICIES, "gpus") == {
        "warnAfter": "4h", "remindAfter": "4h", "exempt": {"users": ["demo"]},
        "notify": {"targets": ["mailto:a@example.org"]},
    }  # fmt: skip
    assert moor("idle", "delete", "gpus").code == 0
    assert moor.api.named(IDLE_POLICIES) == []


def test_a_tenant_gets_other_limits_and_keeps_the_rest(moor):
    quota = {"gpu": 8, "limits.memory": "1Ti"}
    moor.api.put(TENANTS, {"metadata": {"name": "vision"}, "spec": {"namespace": "vision", "quota": quota}})
    done = moor("tenant", "set", "vision", "--quota", "gpus=16", "--quota", "pods=50", "--priority-class", "a")
    assert (done.code, done.err) == (0, "Tenant vision changed\n")
    quota = {"requests.nvidia.com/gpu": "16", "limits.memory": "1Ti", "pods": "50"}
    assert spec(moor, TENANTS, "vision") == {"namespace": "vision", "quota": quota, "priorityClasses": ["a"]}
    assert moor("tenant", "set", "vision", "--quota", "gpu=none", "--priority-class", "none").code == 0
    assert spec(moor, TENANTS, "vision") == {
        "namespace": "vision",
        "quota": {"limits.memory": "1Ti", "pods": "50"},
    }


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (("budget", "set", "x", "--user", "*", "--money", "5"), "Budget"),
        (("idle", "set", "x", "--warn-after", "4h"), "IdlePolicy"),
        (("tenant", "set", "vision", "--domain", "a.example.org"), "Tenant"),
    ],
)
def test_a_dry_run_prints_the_object_as_a_file_and_changes_nothing(moor, words, kind):
    moor.api.put(TENANTS, {"metadata": {"name": "vision"}, "spec": {"namespace": "vision"}})
    before = dict(moor.api.objects)
    done = moor(*words, "--dry-run")
    assert (done.code, yaml.safe_load(done.out)["kind"]) == (0, kind)
    assert moor.api.objects == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("budget", "set", "x", "--user", "a"), "must have gpuHours or money, and not both"),
        (("budget", "set", "x", "--user", "a", "--tenant", "b", "--money", "1"), "must have users or tenants"),
        (("budget", "set", "x", "--user", "a", "--money", "much"), "money: 'much' must be a number above 0"),
        (("budget", "set", "X!", "--user", "a", "--money", "1"), "invalid name 'X!'"),
        (("budget", "set", "x"), "nothing to change: give at least one option"),
        (("idle", "set", "x", "--suspend-after", "4h"), "IdlePolicy 'x' is new: it needs an idle time"),
        (("idle", "set", "x", "--warn-after", "soon"), "invalid warnAfter 'soon'"),
        (("idle", "set", "x", "--warn-after", "1h", "--quiet", "8-9"), "invalid quiet hours '8-9'"),
        (("idle", "set", "x", "--warn-after", "1h", "--quiet", "Fun"), "invalid quiet hours 'Fun'"),
        (("idle", "set", "x", "--warn-after", "1m"), "must be at least two windows"),
        (("tenant", "set", "none", "--domain", "a.b"), "Tenant 'none' not found"),
        (("tenant", "set", "vision", "--quota", "gpuss=1"), "did you mean gpu"),
        (("tenant", "set", "vision"), "nothing to change"),
    ],
)
def test_wrong_fields_are_refused_and_nothing_is_stored(moor, words, says):
    moor.api.put(TENANTS, {"metadata": {"name": "vision"}, "spec": {"namespace": "vision"}})
    before = dict(moor.api.objects)
    done = moor(*words)
    assert done.code in (1, 2)
    assert says in done.err
    assert moor.api.objects == before
