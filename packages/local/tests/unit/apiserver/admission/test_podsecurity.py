"""Pod Security: what the standards refuse, and what a namespace's labels make of it."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_kube.errors import Forbidden, Invalid
from moorage_kube.podsecurity import violations
from moorage_kube.resources import DEPLOYMENTS, JOBS, NAMESPACES, PODS
from moorage_kube.testing import builders
from moorage_local.apiserver.auth.users import User
from moorage_local.apiserver.pipeline.calls import Call
from moorage_local.apiserver.server import ApiServer
from moorage_local.controllers.catalogue import CRONJOBS
from moorage_local.storage.memory import MemoryStorage

pytestmark = pytest.mark.anyio

SAFE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def a_spec(container=None, **spec):
    return {
        "containers": [{"name": "c", "image": "localhost/host", "command": ["true"]} | (container or {})]
    } | spec


def secured(**context):
    return {"securityContext": context}


def probing(host):
    return {"livenessProbe": {"httpGet": {"port": 80, "host": host}}}


BASELINE = [
    pytest.param(a_spec(hostNetwork=True, hostPID=True), "host namespaces (hostNetwork=true, hostPID=true)"),
    pytest.param(a_spec(hostIPC=True), "host namespaces (hostIPC=true)"),
    pytest.param(
        a_spec(secured(privileged=True)),
        'privileged (container "c" must not set securityContext.privileged=true)',
    ),
    pytest.param(
        a_spec(volumes=[{"name": "v", "hostPath": {"path": "/"}}, {"name": "w", "emptyDir": {}}]),
        'hostPath volumes (volume "v")',
    ),
    pytest.param(
        a_spec({"ports": [{"containerPort": 1, "hostPort": 80}]}), 'hostPort (container "c" uses hostPort 80)'
    ),
    pytest.param(a_spec(probing("10.0.0.1")), 'probe or lifecycle host (container "c" uses "10.0.0.1")'),
    pytest.param(
        a_spec(secured(capabilities={"add": ["NET_ADMIN", "CHOWN", "SYS_PTRACE"]})),
        'non-default capabilities (container "c" must not include "NET_ADMIN", "SYS_PTRACE" in'
        " securityContext.capabilities.add)",
    ),
    pytest.param(
        a_spec(secured(procMount="Unmasked")),
        'procMount (container "c" must not set securityContext.procMount to "Unmasked")',
    ),
    pytest.param(
        a_spec(secured(seLinuxOptions={"type": "spc_t", "user": "u"})),
        'seLinuxOptions (container "c" set forbidden securityContext.seLinuxOptions: type "spc_t"; user may not be'
        " set)",
    ),
    pytest.param(
        a_spec(**secured(seccompProfile={"type": "Unconfined"})),
        'seccompProfile (pod must not set securityContext.seccompProfile.type to "Unconfined")',
    ),
    pytest.param(
        a_spec(**secured(sysctls=[{"name": "kernel.msgmax", "value": "1"}, {"name": "net.ipv4.tcp_rmem"}])),
        "forbidden sysctls (kernel.msgmax)",
    ),
    pytest.param(
        a_spec(secured(appArmorProfile={"type": "Unconfined"})),
        'forbidden AppArmor profile (container "c" must not set AppArmor profile type to "Unconfined")',
    ),
    pytest.param(
        a_spec(**secured(windowsOptions={"hostProcess": True})),
        "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
    ),
]
RESTRICTED = [
    pytest.param(
        a_spec(secured(**SAFE | {"allowPrivilegeEscalation": None})),
        'allowPrivilegeEscalation != false (container "c" must set'
        " securityContext.allowPrivilegeEscalation=false)",
    ),
    pytest.param(
        a_spec(secured(**SAFE | {"capabilities": {"add": ["CHOWN"]}})),
        'unrestricted capabilities (container "c" must set securityContext.capabilities.drop=["ALL"];'
        ' container "c" must not include "CHOWN" in securityContext.capabilities.add)',
    ),
    pytest.param(
        a_spec(secured(**SAFE), volumes=[{"name": "v", "nfs": {"server": "s", "path": "/"}}]),
        'restricted volume types (volume "v" uses restricted volume type "nfs")',
    ),
    pytest.param(
        a_spec(secured(**SAFE | {"runAsNonRoot": None})),
        'runAsNonRoot != true (pod or container "c" must set securityContext.runAsNonRoot=true)',
    ),
    pytest.param(
        a_spec(secured(**SAFE | {"runAsNonRoot": False}), **secured(runAsNonRoot=True)),
        'runAsNonRoot != true (container "c" must not set securityContext.runAsNonRoot=false)',
    ),
    pytest.param(a_spec(secured(**SAFE, runAsUser=0)), 'runAsUser=0 (container "c" must not set runAsUser=0)'),
    pytest.param(
        a_spec(secured(**SAFE | {"seccompProfile": None})),
        'seccompProfile (pod or container "c" must set securityContext.seccompProfile.type to "RuntimeDefault" or'
        ' "Localhost")',
    ),
]


@pytest.mark.parametrize(("spec", "want"), BASELINE)
def test_baseline_refuses(spec, want):
    assert [str(one) for one in violations("baseline", {}, spec)] == [want]
    assert violations("restricted", {}, spec) != []
    assert violations("privileged", {}, spec) == []


@pytest.mark.parametrize(("spec", "want"), RESTRICTED)
def test_restricted_refuses_and_baseline_does_not(spec, want):
    assert [str(one) for one in violations("restricted", {}, spec)] == [want]
    assert violations("baseline", {}, spec) == []


@pytest.mark.parametrize("field", ["initContainers", "ephemeralContainers"])
def test_every_kind_of_container_is_judged(field):
    spec = a_spec() | {field: [{"name": "other", **secured(privileged=True)}]}
    assert [one.detail for one in violations("baseline", {}, spec)] == [
        'container "other" must not set securityContext.privileged=true'
    ]


def test_a_profile_of_apparmor_may_stand_in_an_annotation():
    notes = {"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}
    (found,) = violations("baseline", {"annotations": notes}, a_spec())
    assert found.detail == 'annotation container.apparmor.security.beta.kubernetes.io/c="unconfined"'


def test_what_the_pod_says_holds_for_its_containers():
    spec = a_spec(
        secured(allowPrivilegeEscalation=False, capabilities={"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}),
        **secured(runAsNonRoot=True, seccompProfile={"type": "Localhost", "localhostProfile": "p"}),
        volumes=[{"name": "v", "configMap": {"name": "m"}}],
    )
    assert violations("restricted", {}, spec) == []


parts = st.sampled_from([one.values[0] for one in (*BASELINE, *RESTRICTED)])


@given(parts, parts)
def test_a_stricter_level_allows_nothing_that_a_laxer_one_refuses(left, right):
    spec = copy.deepcopy(left) | {"initContainers": right["containers"]}
    spec |= {key: value for key, value in right.items() if key not in ("containers", "initContainers")}
    if violations("baseline", {}, spec):
        assert violations("restricted", {}, spec)
    assert violations("no-such-level", {}, spec) == violations("restricted", {}, spec)


# ------------------------------------------------------------------------------------------------- over the API


@pytest.fixture
async def server():
    made = ApiServer(MemoryStorage(), tokens={})
    await made.start()
    yield made
    await made.stop()


async def a_namespace(api, **labels):
    found = {f"pod-security.kubernetes.io/{name.replace('_', '-')}": value for name, value in labels.items()}
    meta = {"name": "lab", "labels": found}
    return await api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})


def a_pod(spec):
    return builders.a_pod(spec=spec)


@pytest.mark.parametrize(("spec", "want"), BASELINE[:4])
async def test_a_pod_that_breaks_the_enforced_level_is_refused(server, spec, want):
    api = server.client("admin")
    await a_namespace(api, enforce="baseline")
    with pytest.raises(Forbidden) as refused:
        await api.create(PODS, a_pod(spec))
    assert refused.value.message == f'pods "p" is forbidden: violates PodSecurity "baseline:latest": {want}'
    assert (await api.list(PODS, "lab")).items == []


async def test_a_pod_within_the_enforced_level_is_taken(server):
    api = server.client("admin")
    await a_namespace(api, enforce="baseline")
    await api.create(PODS, a_pod(a_spec()))


async def test_a_namespace_without_labels_takes_any_pod(server):
    api = server.client("admin")
    await a_namespace(api)
    await api.create(PODS, a_pod(BASELINE[0].values[0]))


async def test_system_users_are_held_to_it_as_well(server):
    await a_namespace(server.client("admin"), enforce="baseline")
    with pytest.raises(Forbidden):
        await server.client("system:kube-controller-manager").create(PODS, a_pod(BASELINE[2].values[0]))


async def test_a_changed_image_is_judged_and_other_changes_of_a_pod_are_not(server):
    api = server.client("admin")
    await a_namespace(api)
    await api.create(PODS, a_pod(BASELINE[0].values[0]))  # before the namespace asks for a level
    await api.patch(
        NAMESPACES, "lab", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
    )
    await api.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}, "lab")
    pod = await api.get(PODS, "p", "lab")
    pod["spec"]["containers"][0]["image"] = "busybox:2"
    with pytest.raises(Forbidden, match='violates PodSecurity "baseline:latest"'):
        await api.update(PODS, pod)


@pytest.mark.parametrize(
    ("resource", "wrap"),
    [
        (DEPLOYMENTS, lambda template: {"selector": {"matchLabels": {"a": "b"}}, "template": template}),
        (JOBS, lambda template: {"template": template}),
        (CRONJOBS, lambda template: {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": template}}}),
    ],
    ids=["Deployment", "Job", "CronJob"],
)
async def test_templates_are_taken_with_a_warning(server, resource, wrap):
    api = server.client("admin")
    await a_namespace(api, enforce="baseline", warn="baseline")
    restart = {} if resource == DEPLOYMENTS else {"restartPolicy": "Never"}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": a_spec(hostNetwork=True) | restart}
    obj = {"apiVersion": resource.api_version, "kind": resource.kind, "spec": wrap(template)}
    call = Call(user=User(name="admin", groups=("system:masters",)))
    await server.create(
        call, server.kinds.of(resource), obj | {"metadata": {"name": "w", "namespace": "lab"}}, "lab"
    )
    assert call.warnings == ['would violate PodSecurity "baseline:latest": host namespaces (hostNetwork=true)']


@pytest.mark.parametrize(
    ("labels", "field"),
    [({"enforce": "strict"}, "enforce"), ({"warn_version": "1.30"}, "warn-version"), ({"audit": ""}, "audit")],
)
async def test_labels_of_no_level_are_refused(server, labels, field):
    with pytest.raises(Invalid) as refused:
        await a_namespace(server.client("admin"), **labels)
    assert f"metadata.labels[pod-security.kubernetes.io/{field}]" in refused.value.message
