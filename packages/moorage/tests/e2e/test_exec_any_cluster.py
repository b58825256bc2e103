"""Who may run commands in pods, and what is answered when that cannot be: as on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from moorage_kube.errors import BadRequest, Forbidden, NotFound
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import NAMESPACES, PODS, Resource
from moorage_kube.testing.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api")]

RBAC = "rbac.authorization.k8s.io"
ROLES = Resource(RBAC, "v1", "roles", "Role")
ROLEBINDINGS = Resource(RBAC, "v1", "rolebindings", "RoleBinding")


@pytest.fixture
async def namespace(api: KubeClient, unique: str) -> AsyncIterator[str]:
    await api.create(NAMESPACES, {"metadata": {"name": unique}})
    spec = {
        "schedulingGates": [{"name": "example.org/wait"}],  # it never gets a node
        "automountServiceAccountToken": False,
        "containers": [{"name": name, "image": "x:1", "command": ["true"]} for name in ("one", "two")],
    }
    account = Resource("", "v1", "serviceaccounts", "ServiceAccount")
    await api.create(account, {"metadata": {"name": "mine"}}, unique)
    await api.create(PODS, {"metadata": {"name": "p"}, "spec": spec | {"serviceAccountName": "mine"}}, unique)
    yield unique
    await api.delete(NAMESPACES, unique)


async def allow(api: KubeClient, namespace: str, user: str, *verbs: str) -> KubeClient:
    rules = [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": list(verbs)}]
    await api.create(ROLES, {"metadata": {"name": user}, "rules": rules}, namespace)
    subject = {"kind": "User", "name": user, "apiGroup": RBAC}
    ref = {"kind": "Role", "name": user, "apiGroup": RBAC}
    await api.create(ROLEBINDINGS, {"metadata": {"name": user}, "roleRef": ref, "subjects": [subject]}, namespace)
    return api.as_user(user)


async def test_a_command_takes_both_get_and_create_of_pods_exec(api, namespace):
    for verbs in (("get",), ("create",), ()):
        user = await allow(api, namespace, f"{namespace}{''.join(verbs)}", *(verbs or ("list",)))
        with pytest.raises(Forbidden) as caught:
            await user.exec("p", namespace, ["true"], container="one")
        assert caught.value.message.startswith('pods "p" is forbidden: ')
    both = await allow(api, namespace, f"{namespace}both", "get", "create")

    async def refusal() -> str:
        """Why it is not done, when the API server knows of the rights."""
        try:
            await both.exec("p", namespace, ["true"], container="one")
        except BadRequest as refused:
            return refused.message
        except Forbidden:
            return ""
        raise AssertionError("a command ran in a pod without a node")

    assert await until("the rights to count", refusal) == "pod p does not have a host assigned"


@pytest.mark.parametrize(
    ("pod", "container", "kind", "said"),
    [
        ("nope", "one", NotFound, 'pods "nope" not found'),
        ("p", "three", BadRequest, "container three is not valid for pod p"),
        ("p", None, BadRequest, "a container name must be specified for pod p, choose one of: [one two]"),
    ],
)
async def test_what_cannot_be_is_said_in_the_real_servers_words(api, namespace, pod, container, kind, said):
    with pytest.raises(kind) as caught:
        await api.exec(pod, namespace, ["true"], container=container)
    assert caught.value.message == said
