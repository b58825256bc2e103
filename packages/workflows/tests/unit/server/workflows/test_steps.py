"""What is kept of the containers of steps over HTTP: who gets it, and what is never given."""

from __future__ import annotations

import base64

import pytest

from moorage.attempts.logs import log_key
from moorage_kube.resources import PODS
from moorage_kube.testing.builders import a_pod, an_owner

pytestmark = pytest.mark.anyio

PRINTED = b"2026-11-21T12:00:00.000000001Z one\n2026-11-21T12:00:01Z two\n"


@pytest.fixture
async def site(site):
    """Its user ada may read nothing of the namespace yet."""
    site.api.with_token = lambda *_: site.api
    async with site.running():
        yield site


async def ask(site, path):
    return await site.ask(path, headers={"authorization": "Bearer kube-token"}, token=False)


async def keep_step(site):
    """A step of the Workflow nightly whose pod is gone; what its two containers printed is kept."""
    notes = {
        "workflows.argoproj.io/node-name": "nightly.fit",
        "kubectl.kubernetes.io/default-container": "train",
    }
    meta = {"uid": "s1", "labels": {"workflows.argoproj.io/workflow": "nightly"}, "annotations": notes}
    owner = an_owner("Workflow", "nightly", "w1")
    pod = a_pod("nightly-fit", owner=owner, node="n1", containers=["train", "proxy"], phase="Running", **meta)
    keeper = site.service.keeper
    site.api.put(PODS, pod)
    await site.until(lambda: keeper._pods.get("nightly-fit", "lab"))
    await keeper.step(everything=True)
    keeper._folder.append(log_key("s1"), PRINTED)
    keeper._folder.append(log_key("s1", "proxy"), b"2026-11-21T12:00:00Z listens\n")
    site.api.remove(PODS, "nightly-fit", "lab")


@pytest.mark.parametrize(
    ("container", "want"),
    [
        ("", PRINTED),
        ("train", PRINTED),
        ("proxy", b"2026-11-21T12:00:00Z listens\n"),
        ("other", b""),
        ("../s1", b""),
        ("x" * 300, b""),
    ],
)
async def test_the_kept_log_of_each_container_of_a_step_is_given(site, container, want):
    site.api.readers.add(("ada", "lab"))
    await keep_step(site)
    path = "/api/v1/workflows/lab/nightly/records/s1?uid=w1" + (f"&container={container}" if container else "")
    answer = await ask(site, path)
    assert (answer.status, base64.b64decode(answer.json["lines"])) == (200, want)


async def test_who_may_not_read_logs_gets_none_of_any_container(site):
    await keep_step(site)
    answer = await ask(site, "/api/v1/workflows/lab/nightly/records/s1?uid=w1&container=proxy")
    assert (answer.status, answer.json["code"]) == (403, "forbidden")
