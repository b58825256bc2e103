"""The registrations: one source for both clusters."""

from __future__ import annotations

import base64
from collections import Counter
from typing import Any

import pytest

from moorage.decide.admission.review import TEMPLATES
from moorage.decide.audit.changes import COMPONENTS
from moorage.webhooks.config import audit_configuration, webhook_configurations
from moorage_kube.selectors import label_selector_of
from moorage_local.apiserver.admission.conditions import parse_condition

NAME = "kubernetes.io/metadata.name"
GUARD = {"moorage.dev/guard": "enabled"}
TENANT = GUARD | {"moorage.dev/tenant": "lab"}


OF_OPERATOR = ("tenants.operator.moorage.dev", "platform.operator.moorage.dev")


def hooks(**options: Any) -> list[Any]:
    return [hook for configuration in webhook_configurations(**options) for hook in configuration["webhooks"]]


def asked(plural: str, labels: dict[str, str], **options: Any) -> dict[str, str]:
    """Name → failure policy of the webhooks that are asked about an object in a namespace with these labels."""
    return {
        hook["name"]: hook["failurePolicy"]
        for hook in hooks(**options)
        if any(plural in rule["resources"] for rule in hook["rules"])
        and ("namespaceSelector" not in hook or label_selector_of(hook["namespaceSelector"]).matches(labels))
    }


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
        assert all(webhook["clientConfig"] == {"service": service} for webhook in one["webhooks"])


def test_every_webhook_has_a_name_of_its_own():
    assert len({hook["name"] for hook in hooks()}) == len(hooks())


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
@pytest.mark.parametrize("plural", ["pods", "jobs", "deployments"])
def test_outside_tenants_the_failure_policy_is_the_admins_choice_and_in_tenants_it_is_fail(plural, policy):
    names = (f"{verb}.guard.moorage.dev" for verb in ("mutate", "validate"))
    assert asked(plural, GUARD, failure_policy=policy) == dict.fromkeys(names, policy)
    names = (f"{verb}.tenants.moorage.dev" for verb in ("mutate", "validate"))
    assert asked(plural, TENANT, failure_policy=policy) == dict.fromkeys(names, "Fail")


@pytest.mark.parametrize("labels", [GUARD, TENANT], ids=["guarded", "tenant"])
@pytest.mark.parametrize(
    "plural",
    [
        "ingresses",
        "services",
        "httproutes",
        "gateways",
        "ingressroutes",
        "httpproxies",
        "virtualservers",
        "mappings",
        "dnsendpoints",
    ],
)
def test_what_names_hosts_never_gets_past_in_a_guarded_namespace(plural, labels):
    assert asked(plural, labels) == {"hosts.guard.moorage.dev": "Fail"}


def test_both_groups_of_traefiks_kinds_are_judged():
    (hook,) = (hook for hook in hooks() if hook["name"] == "hosts.guard.moorage.dev")
    groups = [rule["apiGroups"] for rule in hook["rules"] if "ingressroutes" in rule["resources"]]
    assert groups == [["traefik.io"], ["traefik.containo.us"]]


@pytest.mark.parametrize("plural", ["pods", "ingresses", "services", "jobs"])
@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"moorage.dev/tenant": "lab"},
        TENANT | {NAME: "moorage-system"},
        TENANT | {NAME: "kube-system"},
    ],
    ids=["free", "not-guarded", "ours", "kube-system"],
)
def test_a_webhook_that_is_down_keeps_neither_itself_nor_the_control_plane_down(plural, labels):
    assert set(asked(plural, labels)) <= {"platform.operator.moorage.dev"}  # asks about the operator alone


def test_every_kind_that_is_stamped_is_asked_about():
    plurals = {kind.lower() + "s" for kind in TEMPLATES}
    for hook in hooks():
        if hook["name"] not in ("hosts.guard.moorage.dev", "kinds.moorage.dev", *OF_OPERATOR):
            named = {plural for rule in hook["rules"] for plural in rule["resources"]}
            assert {plural for plural in named if "/" not in plural} == plurals
        assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in hook["rules"])


@pytest.mark.parametrize(
    "plural",
    [
        "deployments/scale",
        "replicasets/scale",
        "replicationcontrollers/scale",
        "statefulsets/scale",
        "pods/resize",
    ],
)
def test_what_makes_work_larger_through_a_subresource_is_judged(plural):
    assert asked(plural, GUARD) == {"validate.guard.moorage.dev": "Ignore"}
    assert asked(plural, TENANT) == {"validate.tenants.moorage.dev": "Fail"}


def test_our_own_kinds_are_judged_in_every_cluster():
    (ours,) = (hook for hook in hooks() if hook["name"] == "kinds.moorage.dev")
    assert "namespaceSelector" not in ours
    assert ours["rules"][0]["scope"] == "*"
    assert ours["rules"][0]["resources"] == [
        "budgets",
        "idlepolicies",
        "machines",
        "machinenodepools",
        "reservations",
        "mapjobs",
        "workspaces",
    ]


def test_where_the_cluster_can_tell_updates_by_kubernetes_and_the_operators_of_pods_are_not_reviewed():
    for hook in hooks():
        names = [condition["name"] for condition in hook.get("matchConditions", [])]
        if hook["name"] in OF_OPERATOR:
            assert names == ["the-operator"]
            continue
        if hook["name"] == "kinds.moorage.dev":
            assert names == []
        elif hook["name"] == "hosts.guard.moorage.dev":
            assert names == ["not-an-update-by-kubernetes"]
        else:
            assert names == ["not-the-operator", "not-an-update-by-kubernetes"]
            assert (
                "'system:serviceaccount:moorage-system:moorage-operator'"
                in hook["matchConditions"][0]["expression"]
            )
        for match_condition in hook.get("matchConditions", []):  # what is made is always reviewed
            assert match_condition["expression"].startswith("!(request.operation == 'UPDATE' && ")
    local = hooks(url="https://127.0.0.1:8443")
    assert not any("matchConditions" in hook for hook in local if hook["name"] not in OF_OPERATOR)


@pytest.mark.parametrize("options", [{}, {"url": "https://127.0.0.1:1", "failure_policy": "Ignore"}])
def test_what_the_operator_alone_writes_waits_for_the_webhook_in_every_namespace(options):
    for_tenants, platform = (hook for hook in hooks(**options) if hook["name"] in OF_OPERATOR)
    assert for_tenants["failurePolicy"] == platform["failurePolicy"] == "Fail"
    assert "namespaceSelector" not in for_tenants
    assert {plural for rule in for_tenants["rules"] for plural in rule["resources"]} == {
        "namespaces", "networkpolicies", "resourcequotas", "rolebindings"
    }  # fmt: skip
    assert label_selector_of(platform["namespaceSelector"]).matches({NAME: "kube-system"})
    assert not label_selector_of(platform["namespaceSelector"]).matches({NAME: "default"})


# --- what is recorded


@pytest.mark.parametrize("options", [{}, {"url": "https://127.0.0.1:1", "ca_pem": b"PEM"}])
def test_what_records_stops_nothing(options):
    made = audit_configuration(**options)
    assert (made["kind"], made["metadata"]["name"]) == ("ValidatingWebhookConfiguration", "moorage-audit")
    for hook in made["webhooks"]:
        assert (hook["failurePolicy"], hook["timeoutSeconds"], hook["sideEffects"]) == (
            "Ignore",
            1,
            "NoneOnDryRun",
        )
        client = hook["clientConfig"]
        assert (client.get("url") or client["service"]["path"]).endswith("/audit")
        assert ("matchConditions" in hook) is (not options)


def test_no_change_is_brought_twice_to_be_recorded():
    """By the guardrails' own reviews or by the registration that records: by one of them."""

    def reviews(labels):
        recording = audit_configuration()["webhooks"]
        judging = [
            hook
            for hook in hooks()
            if hook["clientConfig"]["service"]["path"] == "/validate" and hook["name"] not in OF_OPERATOR
        ]  # what the operator does is not recorded
        for hook in (*recording, *judging):
            if label_selector_of(hook.get("namespaceSelector") or {}).matches(labels):
                for rule in hook["rules"]:
                    for operation in rule["operations"]:
                        yield from ((rule["apiGroups"][0], plural, operation) for plural in rule["resources"])

    for labels in ({NAME: "x"}, GUARD | {NAME: "lab"}, TENANT | {NAME: "lab"}):
        many = Counter(reviews(labels))
        twice = {(plural, operation) for (_, plural, operation), count in many.items() if count > 1}
        # of our kinds with templates two reviews tell the same: the server keeps one of them
        assert {plural for plural, _ in twice} <= {"mapjobs", "workspaces"}
        for plural, group in (
            ("jobs", "batch"),
            ("pods", ""),
            ("workspaces", "moorage.dev"),
            ("datasets", "moorage.dev"),
        ):
            assert {operation for operation in ("CREATE", "DELETE") if many[(group, plural, operation)]} == {
                "CREATE",
                "DELETE",
            }


def test_kubernetes_own_parts_and_ours_are_not_asked_about_where_conditions_are_evaluated():
    (condition,) = audit_configuration()["webhooks"][0]["matchConditions"]
    for prefix in COMPONENTS:
        assert f"request.userInfo.username.startsWith('{prefix}')" in condition["expression"]


def test_every_condition_that_we_ship_is_understood():
    for configuration in (*webhook_configurations(), audit_configuration()):
        for hook in configuration["webhooks"]:
            for condition in hook.get("matchConditions", []):
                parse_condition(condition["expression"])
