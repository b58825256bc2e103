"""The registration: one source for both clusters."""

from __future__ import annotations

import base64

import pytest

from moorage.decide.guardrails import TEMPLATES
from moorage.webhooks.config import webhook_configurations


def test_by_url_both_sides_trust_the_given_authority():
    mutating, validating = webhook_configurations(url="https://127.0.0.1:8443/", ca_pem=b"PEM")
    assert [one["kind"] for one in (mutating, validating)] == [
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
    ]
    for one, path in ((mutating, "mutate"), (validating, "validate")):
        for webhook in one["webhooks"]:
            assert webhook["clientConfig"] == {
                "url": f"https://127.0.0.1:8443/{path}",
                "caBundle": base64.b64encode(b"PEM").decode(),
            }


def test_behind_a_service_the_authority_is_left_to_the_operator():
    for one, path in zip(webhook_configurations(), ("/mutate", "/validate"), strict=True):
        service = {"namespace": "moorage-system", "name": "moorage-webhook", "path": path, "port": 443}
        assert one["webhooks"][0]["clientConfig"] == {"service": service}


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
def test_the_failure_policy_is_the_admins_choice(policy):
    found = [one["webhooks"][0]["failurePolicy"] for one in webhook_configurations(failure_policy=policy)]
    assert found == [policy, policy]


def test_only_opted_in_namespaces_are_guarded_and_never_our_own():
    for one in webhook_configurations():
        selector = one["webhooks"][0]["namespaceSelector"]
        assert selector["matchLabels"] == {"moorage.dev/guard": "enabled"}
        (expression,) = selector["matchExpressions"]
        assert expression["operator"] == "NotIn"
        assert "moorage-system" in expression["values"]


def test_every_kind_that_is_stamped_is_asked_about():
    plurals = {kind.lower() + "s" for kind in TEMPLATES}
    for one in webhook_configurations():
        rules = one["webhooks"][0]["rules"]
        assert {plural for rule in rules for plural in rule["resources"]} == plurals | {"ingresses"}
        assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in rules)


def test_our_own_kinds_are_judged_in_every_cluster():
    _, validating = webhook_configurations()
    ours = validating["webhooks"][1]
    assert ours["name"] == "kinds.moorage.dev"
    assert "namespaceSelector" not in ours
    assert ours["rules"][0]["scope"] == "*"
    assert ours["rules"][0]["resources"] == [
        "machines",
        "machinenodepools",
        "reservations",
        "mapjobs",
        "workspaces",
    ]


def test_what_the_operator_changes_about_pods_is_not_reviewed_where_the_cluster_can_tell():
    for one in webhook_configurations():
        guard, *others = one["webhooks"]
        (condition,) = guard["matchConditions"]
        assert "'system:serviceaccount:moorage-system:moorage-operator'" in condition["expression"]
        assert not any("matchConditions" in other for other in others)
    for one in webhook_configurations(url="https://127.0.0.1:8443"):
        assert not any("matchConditions" in webhook for webhook in one["webhooks"])
