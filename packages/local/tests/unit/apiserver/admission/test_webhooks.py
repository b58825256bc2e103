"""Admission webhooks, called over TLS on this machine."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from moorage_kube.errors import ApiError, Conflict, Forbidden, Invalid, NotFound, ServerError
from moorage_kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    VALIDATING_WEBHOOKS,
    Obj,
)
from moorage_kube.testing import builders
from moorage_local.apiserver.client import InProcessClient
from moorage_local.apiserver.subresources.admitting import session_options

pytestmark = pytest.mark.anyio
Respond = Callable[[Obj], Obj]


class Hook:
    """An ASGI webhook that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Obj] = []
        self.answer: Respond = lambda _: {"allowed": True}
        self.status = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        review = json.loads(body)
        request = review["request"]
        self.asked.append(request)
        response = {"uid": request["uid"], **self.answer(request)}
        data = json.dumps(
            {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}
        ).encode()
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": data})


@pytest.fixture
async def hook(tmp_path: Path, tls: Any) -> AsyncIterator[tuple[Hook, Obj]]:
    """The webhook and the clientConfig that leads to it."""
    made = Hook()
    async with tls(made, tmp_path / "hook-pki") as (url, _, pem):
        yield made, {"url": f"{url}/admit", "caBundle": base64.b64encode(pem.encode()).decode()}


def configuration(config: Obj, called: str = "conf", **more: Any) -> Obj:
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps", "pods"]}]
    webhook = {
        "name": "hook.example.com",
        "clientConfig": config,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "rules": rules,
    }
    return {"metadata": {"name": called}, "webhooks": [webhook | more]}


def a_map(name: str = "c", **meta: Any) -> Obj:
    return {"metadata": {"name": name, "namespace": "default", **meta}, "data": {"a": "b"}}


def patching(*operations: Obj) -> Respond:
    patch = base64.b64encode(json.dumps(operations).encode()).decode()
    return lambda _: {"allowed": True, "patchType": "JSONPatch", "patch": patch}


async def test_a_mutating_webhook_changes_the_object(api: InProcessClient, hook: tuple[Hook, Obj]) -> None:
    made, config = hook
    made.answer = patching({"op": "add", "path": "/metadata/labels", "value": {"owner": "ada"}})
    await api.create(MUTATING_WEBHOOKS, configuration(config))
    stored = await api.create(CONFIGMAPS, a_map())
    assert stored["metadata"]["labels"] == {"owner": "ada"}
    (asked,) = made.asked
    assert (asked["operation"], asked["name"], asked["namespace"]) == ("CREATE", "c", "default")
    assert asked["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert asked["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
    assert asked["userInfo"]["username"] == "system:kube-controller-manager"
    assert asked["object"]["data"] == {"a": "b"}
    assert not {"uid", "creationTimestamp"} & set(asked["object"]["metadata"])  # given after mutating admission
    assert stored["metadata"]["uid"]
    assert (asked["oldObject"], asked["dryRun"]) == (None, False)


async def test_what_a_webhook_leaves_is_defaulted_and_checked_again(
    api: InProcessClient, hook: tuple[Hook, Obj]
) -> None:
    made, config = hook
    await api.create(MUTATING_WEBHOOKS, configuration(config))
    pod = {
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "x"}]},
    }
    made.answer = patching({"op": "add", "path": "/spec/containers/-", "value": {"name": "side", "image": "y:1"}})
    stored = await api.create(PODS, pod)
    assert stored["spec"]["containers"][1]["imagePullPolicy"] == "IfNotPresent"
    made.answer = patching({"op": "replace", "path": "/spec/containers/0/name", "value": "NOT_A_NAME"})
    with pytest.raises(Invalid, match=r"spec\.containers\[0\]\.name"):
        await api.create(PODS, {**pod, "metadata": {"name": "q", "namespace": "default"}})


async def test_updates_and_deletions_show_what_stood_before(api: InProcessClient, hook: tuple[Hook, Obj]) -> None:
    made, config = hook
    await api.create(CONFIGMAPS, a_map())
    await api.create(VALIDATING_WEBHOOKS, configuration(config))
    await api.patch(CONFIGMAPS, "c", {"data": {"a": "new"}}, "default")
    await api.delete(CONFIGMAPS, "c", "default")
    update, delete = made.asked
    assert (update["operation"], update["oldObject"]["data"], update["object"]["data"]) == (
        "UPDATE",
        {"a": "b"},
        {"a": "new"},
    )
    assert (delete["operation"], delete["object"], delete["oldObject"]["data"]) == ("DELETE", None, {"a": "new"})


@pytest.mark.parametrize(
    ("response", "error", "said"),
    [
        ({"allowed": False, "status": {"message": "not you"}}, Forbidden, "denied the request: not you"),
        ({"allowed": False}, Forbidden, "denied the request without explanation"),
        (
            {"allowed": False, "status": {"code": 409, "reason": "Conflict", "message": "no"}},
            Conflict,
            "request: no",
        ),
    ],
)
async def test_a_refusal_reaches_the_client_in_its_own_words(
    api: InProcessClient, hook: tuple[Hook, Obj], response: Obj, error: type[ApiError], said: str
) -> None:
    made, config = hook
    made.answer = lambda _: response
    await api.create(VALIDATING_WEBHOOKS, configuration(config))
    with pytest.raises(error) as caught:
        await api.create(CONFIGMAPS, a_map())
    assert (
        caught.value.message
        == f'admission webhook "hook.example.com" {said if said.startswith("denied") else "denied the " + said}'
    )
    with pytest.raises(NotFound):
        await api.get(CONFIGMAPS, "c", "default")


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
@pytest.mark.parametrize("trouble", ["away", "status", "nonsense"])
async def test_a_webhook_that_fails_stops_the_request_only_if_it_must(
    api: InProcessClient, hook: tuple[Hook, Obj], policy: str, trouble: str
) -> None:
    made, config = hook
    if trouble == "away":
        config = {**config, "url": "https://127.0.0.1:1/x"}
    elif trouble == "status":
        made.status = 500
    else:
        made.answer = lambda _: {"uid": "another", "allowed": True}
    await api.create(VALIDATING_WEBHOOKS, configuration(config, failurePolicy=policy))
    if policy == "Ignore":
        await api.create(CONFIGMAPS, a_map())
        return
    with pytest.raises(ServerError, match='failed calling webhook "hook.example.com"'):
        await api.create(CONFIGMAPS, a_map())


async def test_a_certificate_that_the_bundle_does_not_cover_is_not_trusted(
    api: InProcessClient, hook: tuple[Hook, Obj], tmp_path: Path
) -> None:
    from moorage_local.apiserver.pki import ensure_pki

    _, config = hook
    other = base64.b64encode(ensure_pki(tmp_path / "other").ca_pem.encode()).decode()
    await api.create(VALIDATING_WEBHOOKS, configuration({**config, "caBundle": other}))
    with pytest.raises(ServerError, match="failed calling webhook"):
        await api.create(CONFIGMAPS, a_map())


@pytest.mark.parametrize(
    ("more", "called"),
    [
        ({}, True),
        (
            {"rules": [{"apiGroups": ["apps"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]},
            False,
        ),
        (
            {"rules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["UPDATE"], "resources": ["*"]}]},
            False,
        ),
        (
            {
                "rules": [
                    {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*/*"]}
                ]
            },
            True,
        ),
        (
            {
                "rules": [
                    {
                        "apiGroups": ["*"],
                        "apiVersions": ["*"],
                        "operations": ["*"],
                        "resources": ["*"],
                        "scope": "Cluster",
                    }
                ]
            },
            False,
        ),
        ({"objectSelector": {"matchLabels": {"a": "b"}}}, True),
        ({"objectSelector": {"matchLabels": {"a": "z"}}}, False),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"guard": "on"}}}, False),
    ],
)
async def test_a_webhook_is_called_for_what_its_rules_and_selectors_match(
    api: InProcessClient, hook: tuple[Hook, Obj], more: Obj, called: bool
) -> None:
    made, config = hook
    await api.create(VALIDATING_WEBHOOKS, configuration(config, **more))
    await api.create(CONFIGMAPS, a_map(labels={"a": "b"}))
    assert bool(made.asked) is called


async def test_a_namespace_can_be_opted_in_later(api: InProcessClient, hook: tuple[Hook, Obj]) -> None:
    made, config = hook
    await api.create(
        VALIDATING_WEBHOOKS, configuration(config, namespaceSelector={"matchLabels": {"guard": "on"}})
    )
    await api.patch(NAMESPACES, "default", {"metadata": {"labels": {"guard": "on"}}})
    await api.create(CONFIGMAPS, a_map())
    assert len(made.asked) == 1


async def test_a_dry_run_is_told_to_the_webhook(api: InProcessClient, hook: tuple[Hook, Obj]) -> None:
    made, config = hook
    await api.create(MUTATING_WEBHOOKS, configuration(config))
    await api.create(CONFIGMAPS, a_map(), dry_run=True)
    assert made.asked[0]["dryRun"] is True


async def test_a_webhook_asked_again_sees_what_later_ones_changed(
    api: InProcessClient, hook: tuple[Hook, Obj]
) -> None:
    made, config = hook

    def answer(request: Obj) -> Obj:
        labels = request["object"]["metadata"].get("labels") or {}
        if "second" in labels or len(made.asked) == 1:
            return {"allowed": True}
        return patching({"op": "add", "path": "/metadata/labels", "value": {"second": "here"}})(request)

    made.answer = answer
    first = configuration(config, "a-first", name="first.example.com", reinvocationPolicy="IfNeeded")
    await api.create(MUTATING_WEBHOOKS, first)
    await api.create(MUTATING_WEBHOOKS, configuration(config, "b-second", name="second.example.com"))
    await api.create(CONFIGMAPS, a_map())
    assert [one["object"]["metadata"].get("labels") for one in made.asked] == [None, None, {"second": "here"}]


async def test_a_deleted_configuration_is_not_called_any_more(
    api: InProcessClient, hook: tuple[Hook, Obj]
) -> None:
    made, config = hook
    await api.create(VALIDATING_WEBHOOKS, configuration(config))
    await api.delete(VALIDATING_WEBHOOKS, "conf")
    await api.create(CONFIGMAPS, a_map())
    assert made.asked == []


@pytest.mark.parametrize(
    "more",
    [
        {"clientConfig": {"service": {"name": "s", "namespace": "default"}}},
        {"clientConfig": {"url": "http://127.0.0.1/x"}},
        {"name": "short"},
        {"sideEffects": "Some"},
        {"timeoutSeconds": 60},
        {"matchConditions": [{"name": "x", "expression": "object.spec.replicas > 3"}]},
        {"matchConditions": [{"name": "x", "expression": "true"}] * 2},
        {"matchConditions": [{"name": "", "expression": "true"}]},
        {"matchConditions": [{"name": "x", "expression": ""}]},
        {"matchConditions": [{"name": f"x{at}", "expression": "true"} for at in range(65)]},
    ],
)
async def test_a_configuration_that_cannot_work_is_refused(api: InProcessClient, more: Obj) -> None:
    with pytest.raises(Invalid):
        await api.create(MUTATING_WEBHOOKS, configuration({"url": "https://127.0.0.1/x"}, **more))


async def test_a_request_that_meets_not_every_condition_is_not_sent(
    api: InProcessClient, hook: tuple[Hook, Obj]
) -> None:
    made, config = hook
    conditions = [
        {"name": "made", "expression": "request.operation == 'CREATE'"},
        {"name": "named", "expression": "!request.name.startsWith('quiet-')"},
    ]
    await api.create(VALIDATING_WEBHOOKS, configuration(config, matchConditions=conditions))
    for name in ("quiet-a", "loud-a"):
        await api.create(CONFIGMAPS, a_map(name))
    assert [request["name"] for request in made.asked] == ["loud-a"]


async def test_the_configurations_themselves_are_not_sent_to_webhooks(
    api: InProcessClient, hook: tuple[Hook, Obj]
) -> None:
    made, config = hook
    made.answer = lambda _: {"allowed": False}
    everything = [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]
    await api.create(VALIDATING_WEBHOOKS, configuration(config, rules=everything))
    with pytest.raises(Forbidden):
        await api.create(
            DEPLOYMENTS,
            builders.a_deployment("d", namespace="default", image="x"),
        )
    await api.delete(VALIDATING_WEBHOOKS, "conf")


# --- answers of every length and shape


LONG = "x" * 3_000_000  # comes in many pieces


async def test_a_refusal_is_heard_however_long_it_is(api: InProcessClient, hook: tuple[Hook, Obj]) -> None:
    made, config = hook
    made.answer = lambda _: {"status": {"message": f"no {LONG}"}, "allowed": False}
    await api.create(VALIDATING_WEBHOOKS, configuration(config, failurePolicy="Ignore"))
    with pytest.raises(Forbidden, match="denied the request: no xxx"):
        await api.create(CONFIGMAPS, a_map())


async def test_a_patch_is_applied_however_long_the_answer_is(api: InProcessClient, hook: tuple[Hook, Obj]) -> None:
    made, config = hook
    value = "y" * 1_000_000
    made.answer = patching({"op": "add", "path": "/data/b", "value": value})
    await api.create(MUTATING_WEBHOOKS, configuration(config, failurePolicy="Ignore"))
    assert (await api.create(CONFIGMAPS, a_map()))["data"]["b"] == value


@pytest.mark.parametrize("policy", ["Ignore", "Fail"])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param({"allowed": False, "status": {"message": LONG * 3}}, id="longer than the limit"),
        pytest.param({"allowed": False, "status": json.loads("[" * 200 + "]" * 200)}, id="too deep"),
        pytest.param({"allowed": False, "status": "no"}, id="a status that is none"),
        pytest.param({"allowed": False, "status": {"code": "many"}}, id="a code that is none"),
        pytest.param({"allowed": True, "warnings": 5}, id="warnings that are none"),
        pytest.param({"allowed": 1}, id="neither yes nor no"),
    ],
)
async def test_an_answer_that_cannot_be_used_follows_the_failure_policy(
    api: InProcessClient, hook: tuple[Hook, Obj], policy: str, answer: Obj
) -> None:
    made, config = hook
    made.answer = lambda _: answer
    await api.create(VALIDATING_WEBHOOKS, configuration(config, failurePolicy=policy))
    if policy == "Ignore":
        assert (await api.create(CONFIGMAPS, a_map()))["data"] == {"a": "b"}
        return
    with pytest.raises(ServerError, match='failed calling webhook "hook.example.com"'):
        await api.create(CONFIGMAPS, a_map())


async def test_an_eviction_is_reviewed_as_one_and_a_refusal_keeps_the_pod(
    api: InProcessClient, hook: tuple[Hook, Obj]
) -> None:
    made, config = hook
    spec = {"containers": [{"name": "c", "image": "x"}]}
    await api.create(PODS, {"metadata": {"name": "p", "namespace": "default"}, "spec": spec})
    rules = [
        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["pods", "pods/eviction"]}
    ]
    await api.create(VALIDATING_WEBHOOKS, configuration(config, rules=rules))
    made.answer = lambda _: {"allowed": False, "status": {"message": "not now"}}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    with pytest.raises(Forbidden, match="not now"):
        await api.create_subresource(PODS, "p", "eviction", eviction, "default")
    assert await api.get(PODS, "p", "default")
    made.answer = lambda _: {"allowed": True}
    await api.create_subresource(PODS, "p", "eviction", eviction, "default")
    assert [
        (asked["operation"], asked["kind"], asked["resource"]["resource"], asked["subResource"], asked["name"])
        for asked in made.asked
    ] == [("CREATE", {"group": "policy", "version": "v1", "kind": "Eviction"}, "pods", "eviction", "p")] * 2
    with pytest.raises(NotFound):
        await api.get(PODS, "p", "default")


def test_a_session_is_reviewed_with_the_options_that_its_query_names() -> None:
    query = {"command": ["echo", "hi"], "stdin": ["true"], "tty": ["false"], "container": ["main"]}
    assert session_options("exec", query) == {
        "apiVersion": "v1",
        "kind": "PodExecOptions",
        "stdin": True,
        "container": "main",
        "command": ["echo", "hi"],
    }
    assert session_options("portforward", {"ports": ["8080", "x"]}) == {
        "apiVersion": "v1",
        "kind": "PodPortForwardOptions",
        "ports": [8080],
    }
