"""People as accounts of the cluster, on whichever cluster the environment chose."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from moorage.actions import people
from moorage.model.manifests import ROLEBINDINGS
from moorage.model.names import OWNER_ANNOTATION, OWNER_LABEL, label_value
from moorage.model.people import LOCAL, account_user, subjects_of
from moorage_kube.errors import ApiError, Forbidden
from moorage_kube.meta import annotations_of, labels_of
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import JOBS, NAMESPACES
from moorage_kube.testing.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.cluster("api")]


@pytest.fixture
async def ada(api: KubeClient, unique: str) -> AsyncIterator[str]:
    """A person with an account, who may edit the namespace that bears the test's name."""
    person = f"ada-{unique}@example.org"
    await people.create_account(api, person, [], LOCAL)
    await api.create(NAMESPACES, {"metadata": {"name": unique, "labels": {"moorage.dev/guard": "enabled"}}})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    binding: Any = {"metadata": {"name": "ada"}, "subjects": subjects_of(person), "roleRef": role}
    await api.create(ROLEBINDINGS, binding, unique)
    yield person
    await api.delete(NAMESPACES, unique)
    if await people.find_account(api, person):
        await people.delete_account(api, person)


def a_job(name: str) -> Any:
    container = {"name": "main", "image": "x", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}
    return {
        "metadata": {"name": name},
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    }


async def test_what_an_account_makes_bears_the_persons_name(api: KubeClient, ada: str, unique: str) -> None:
    token = await people.kube_token(api, ada, 600)
    for acting, name in ((api.with_token(token.token), "by-token"), (api.as_user(account_user(ada)), "by-server")):
        made = await acting.create(JOBS, a_job(name), unique)
        assert annotations_of(made)[OWNER_ANNOTATION] == ada
        assert labels_of(made)[OWNER_LABEL] == label_value(ada)
        with pytest.raises(Forbidden):
            await acting.create(JOBS, a_job(name), "default")


async def test_without_the_secret_it_is_bound_to_a_token_is_good_for_nothing(
    api: KubeClient, ada: str, unique: str
) -> None:
    token = await people.kube_token(api, ada, 600)
    acting = api.with_token(token.token)
    await acting.list(JOBS, unique)
    assert await people.end_tokens(api, ada)

    async def refused() -> bool:
        try:
            await acting.list(JOBS, unique)
        except ApiError as error:
            return error.status == 401
        return False

    await until("the token to be refused", refused)  # a real API server keeps its verdict for 10 s
    assert await api.with_token((await people.kube_token(api, ada, 600)).token).list(JOBS, unique)
