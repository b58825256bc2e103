"""IdlePolicy: every mistake at once, which policy holds, and whom notices go to."""

from datetime import timedelta

import pytest

from moorage.model.idle import BUILT_IN, BadIdlePolicy, check_idle_policy, parse_policy, policy_for
from moorage.model.machine import Fault
from moorage.model.spans import format_span, parse_span
from moorage.model.targets import Email, Webhook


def a_policy(name="gpus", **spec):
    return {"metadata": {"name": name}, "spec": {"warnAfter": "4h"} | spec}


def test_every_mistake_is_named_at_once():
    faults = check_idle_policy(
        a_policy(
            warnAfter="5m",
            remindAfter="2d",
            suspendAfter="1d",
            work=["notebook"],
            idle={"cpuBelow": "0"},
            quietHours={"timeZone": "Tokio", "spans": [{"start": "20:00", "end": "08:00", "days": ["Mo"]}]},
            notify={"targets": ["command:true", "ftp://x"], "mailDomain": "no domain"},
        )
    )
    assert faults == [
        Fault("spec.warnAfter", "5m", "must be at least two windows (spec.idle.window is 5m)"),
        Fault("spec.remindAfter", "2d", "must be less than suspendAfter (1d): both count from the warning"),
        Fault("spec.work[0]", "notebook", "must be one of workspace, run, map, workflow"),
        Fault("spec.idle.cpuBelow", "0", "must be a number of cores above zero, such as 200m or 1"),
        Fault(
            "spec.quietHours.timeZone", "Tokio", "must be a time zone of the IANA database, such as Europe/Berlin"
        ),
        Fault("spec.quietHours.spans[0].days", "Mo", "must be one of Mon, Tue, Wed, Thu, Fri, Sat, Sun"),
        Fault("spec.notify.targets[0]", "", "must be https://… or mailto:ADDRESS"),
        Fault("spec.notify.targets[1]", "", "invalid target: use https://…, mailto:… or command:…"),
        Fault("spec.notify.mailDomain", "no domain", "must be a domain, such as example.com"),
    ]


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"warnAfter": "soon"}, Fault("spec.warnAfter", "", "Expected `str` matching regex")),
        ({"warnAfter": "400d"}, Fault("spec.warnAfter", "400d", "use a span such as 45s, 90m, 2h or 1d12h")),
        ({"idle": {"window": "7m"}}, Fault("spec.idle.window", "7m", "must be one of 30s, 1m, 2m, 5m")),
        ({"idle": {"gpuBelow": 200}}, Fault("spec.idle.gpuBelow", "", "Expected `float` <= 100.0")),
        (
            {"quietHours": {"spans": [{"start": "00:00", "end": "00:00"}]}},
            Fault("spec.quietHours.spans", "", "these spans cover the whole week: notices would never be sent"),
        ),
    ],
)
def test_a_mistake_bears_its_field(spec, fault):
    (seen,) = check_idle_policy(a_policy(**spec))
    assert (seen.field, seen.value) == (fault.field, fault.value)
    assert seen.message.startswith(fault.message)


def test_an_invalid_policy_is_not_read():
    with pytest.raises(BadIdlePolicy, match=r"^spec\.work\[0\]: must be one of"):
        parse_policy(a_policy(work=["x"]))


def test_the_policy_of_a_tenant_goes_before_that_of_all():
    every, vision = parse_policy(a_policy("all")), parse_policy(a_policy("vision", tenants=["vision"]))
    runs = parse_policy(a_policy("a-runs", work=["run"], tenants=["vision"]))
    policies = [every, vision, runs]
    assert policy_for(policies, tenant="vision", work="workspace") is vision
    assert policy_for(policies, tenant="vision", work="run") is runs
    assert policy_for(policies, tenant="speech", work="run") is every
    assert policy_for([vision], tenant="", work="run") is None


def test_the_built_in_policy_only_warns():
    assert (BUILT_IN.warn_after, BUILT_IN.suspend_after) == (timedelta(days=1), None)


def test_notices_go_to_the_owner_and_to_the_targets_of_the_policy():
    policy = parse_policy(
        a_policy(
            notify={
                "targets": ["https://hooks.example.com/x"],
                "mailDomain": "example.com",
                "addresses": {"bob": "mailto:b@example.org"},
            }
        )
    )
    hook = Webhook("https://hooks.example.com/x")
    assert policy.targets_of("ada") == (Email(("ada@example.com",)), hook)
    assert policy.targets_of("bob", [hook]) == (hook, Email(("b@example.org",)))
    assert policy.targets_of("eve@example.net") == (Email(("eve@example.net",)), hook)
    assert policy.targets_of("system:serviceaccount:a:b") == (hook,)
    assert BUILT_IN.targets_of("ada") == ()


@pytest.mark.parametrize(("text", "seconds"), [("45s", 45), ("90m", 5400), ("1d12h", 129600), ("2h", 7200)])
def test_spans_are_read_and_written(text, seconds):
    assert parse_span(text) == timedelta(seconds=seconds)
    assert parse_span(format_span(parse_span(text))) == parse_span(text)


@pytest.mark.parametrize("text", ["", "0s", "5", "-1h", "366d", "1h 2m", "٣h"])
def test_other_texts_are_no_spans(text):
    with pytest.raises(ValueError):
        parse_span(text)
