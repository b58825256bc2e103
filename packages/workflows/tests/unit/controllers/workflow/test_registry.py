"""Commands of images, asked of a small registry that speaks the API of the distribution specification."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from tests.workflowoperators import operate

from moorage.controllers.base import Shared
from moorage.model.argo import WORKFLOWS
from moorage_kube.clock import SYSTEM
from moorage_kube.errors import Forbidden
from moorage_kube.images import parse_reference
from moorage_kube.resources import PODS, SECRETS, SERVICEACCOUNTS, Obj, Resource
from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.waiting import until
from moorage_local.testing.fakeapi import FakeApi
from moorage_testing.controllers import background
from moorage_workflows.controllers.workflow.checks import faults_of
from moorage_workflows.controllers.workflow.controller import WorkflowController
from moorage_workflows.controllers.workflow.imagecommands import Asked, ImageCommands, architectures_of
from moorage_workflows.controllers.workflow.registry import (
    Command,
    Credentials,
    Registries,
    RegistryError,
    credentials_of,
)
from moorage_workflows.decide.workflows.pods import StepRuntime
from moorage_workflows.model.workflow import NodeType
from moorage_workflows.workflows.records import LocalRecords

pytestmark = pytest.mark.anyio

ADA = Credentials("ada", "secret")
HELLO = Command(("/entry.sh",), ("serve", "--all"))


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Registry:
    """One image, `team/hello`, by tag and by digest, for two platforms; with tokens where `user` is set."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.host = ""
        self.user: Credentials | None = None
        self.hang = asyncio.Event()
        self.blob_at = ""  # where the configuration is redirected to
        self.spoil = False
        self.config = json.dumps(
            {"config": {"Entrypoint": list(HELLO.entrypoint), "Cmd": list(HELLO.cmd)}}
        ).encode()
        self.manifest = json.dumps({"config": {"digest": digest_of(self.config)}, "layers": []}).encode()
        self.other = json.dumps({"config": {"digest": digest_of(self.config)}, "layers": ["other"]}).encode()
        other = {"digest": digest_of(self.other), "platform": {"os": "linux", "architecture": "arm64"}}
        ours = {"digest": digest_of(self.manifest), "platform": {"os": "linux", "architecture": "amd64"}}
        self.index = json.dumps({"manifests": [other, ours]}).encode()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(request.path)
        if request.path == "/token":
            assert self.user is not None
            if request.headers.get("Authorization") != self.user.header:
                return web.Response(status=401)
            assert request.query["scope"] == "repository:team/hello:pull"
            return web.json_response({"token": "T"})
        if self.user is not None and request.headers.get("Authorization") != "Bearer T":
            challenge = f'Bearer realm="http://{self.host}/token",service="r",scope="repository:team/hello:pull"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        match request.path.removeprefix("/v2/team/"):
            case "hello/manifests/1":
                return web.Response(body=self.index, content_type="application/vnd.oci.image.index.v1+json")
            case name if name == f"hello/manifests/{digest_of(self.manifest)}":
                return web.Response(body=self.manifest + (b" " if self.spoil else b""))
            case name if name == f"hello/manifests/{digest_of(self.other)}":
                return web.Response(body=self.other)
            case name if name == f"hello/blobs/{digest_of(self.config)}":
                if self.blob_at:
                    return web.Response(status=307, headers={"Location": self.blob_at})
                return web.Response(body=self.config)
            case "hang/manifests/1":
                await self.hang.wait()
            case "large/manifests/1":
                return web.Response(body=b" " * (5 << 20))
            case "round/manifests/1":
                return web.Response(status=302, headers={"Location": request.path})
        if request.path == "/elsewhere":
            return web.Response(body=self.config)
        return web.Response(status=404)


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    made = Registry()
    app = web.Application()
    app.router.add_route("GET", "/{tail:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.host = f"127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
    yield made
    made.hang.set()
    await runner.cleanup()


def known(registry: Registry, **more: Any) -> Registries:
    return Registries([f"http://{registry.host}"], **more)


async def test_an_image_is_found_by_index_manifest_and_configuration(registry: Registry) -> None:
    registries = known(registry)
    assert await registries.command_of(f"{registry.host}/team/hello:1", None, ("riscv64", "amd64")) == HELLO
    assert registry.calls == [
        "/v2/team/hello/manifests/1",
        f"/v2/team/hello/manifests/{digest_of(registry.manifest)}",
        f"/v2/team/hello/blobs/{digest_of(registry.config)}",
    ]
    # a configuration is asked for once by digest, whatever name leads to it
    image = f"{registry.host}/team/hello@{digest_of(registry.manifest)}"
    assert await registries.command_of(image) == HELLO
    assert len(registry.calls) == 4


async def test_a_token_is_got_with_the_pull_secret(registry: Registry) -> None:
    registry.user = ADA
    assert await known(registry).command_of(f"{registry.host}/team/hello:1", ADA) == HELLO
    assert registry.calls.count("/token") == 1
    with pytest.raises(RegistryError, match="the token server of 127.0.0.1:.* answered 401"):
        await known(registry).command_of(f"{registry.host}/team/hello:1")


async def test_a_redirect_is_followed_where_it_may_lead(registry: Registry) -> None:
    registry.blob_at = "/elsewhere"
    assert await known(registry).command_of(f"{registry.host}/team/hello:1") == HELLO


@pytest.mark.parametrize(("where", "words"), [
    ("https://169.254.169.254/latest", "169.254.169.254 is not a public address"),
    ("https://localhost:1/x", "localhost is not a public address"),
    ("https://[::ffff:10.0.0.1]/x", "::ffff:10.0.0.1 is not a public address"),
    ("http://example.org/x", "'?example.org'? is not reached by https"),
    ("file:///etc/passwd", "is not reached by https"),
])  # fmt: skip
async def test_a_redirect_does_not_lead_to_private_addresses(registry: Registry, where: str, words: str) -> None:
    registry.blob_at = where
    with pytest.raises(RegistryError, match=words):
        await known(registry).command_of(f"{registry.host}/team/hello:1")


@pytest.mark.parametrize(
    "host", ["127.0.0.1:{port}", "localhost:{port}", "10.0.0.1", "[::1]:5000", "169.254.169.254"]
)
async def test_a_private_registry_that_nobody_named_is_not_asked(registry: Registry, host: str) -> None:
    host = host.format(port=registry.host.partition(":")[2])
    with pytest.raises(RegistryError, match="not a public address.*MOORAGE_REGISTRIES"):
        await Registries().command_of(f"{host}/team/hello:1")
    assert registry.calls == []


@pytest.mark.parametrize(("image", "words"), [
    ("team/none:1", "answered 404 for"),
    ("team/large:1", "answers with more than 4194304 bytes"),
    ("team/round:1", "redirects more than 5 times"),
    ("Team/x", "invalid image name"),
])  # fmt: skip
async def test_what_a_registry_cannot_say_is_one_sentence(registry: Registry, image: str, words: str) -> None:
    with pytest.raises(RegistryError, match=words):
        await known(registry).command_of(f"{registry.host}/{image}")


async def test_a_registry_that_hangs_is_given_up(registry: Registry) -> None:
    with pytest.raises(RegistryError, match="did not answer within 0.2 s"):
        await known(registry, seconds=0.2).command_of(f"{registry.host}/team/hang:1")


async def test_a_manifest_that_was_changed_on_the_way_is_refused(registry: Registry) -> None:
    registry.spoil = True
    with pytest.raises(RegistryError, match="has another digest"):
        await known(registry).command_of(f"{registry.host}/team/hello:1", None, ("amd64",))


def test_credentials_are_those_of_the_longest_path() -> None:
    auth = base64.b64encode(b"deep:p").decode()
    config = {"auths": {
        "r.example.org": {"username": "wide", "password": "p"},
        "https://r.example.org/team/": {"auth": auth},
        "https://index.docker.io/v1/": {"username": "hub", "password": "p"},
        "other.example.org": {"auth": "?"},
    }}  # fmt: skip
    assert credentials_of([config], parse_reference("r.example.org/team/x")) == Credentials("deep", "p")
    assert credentials_of([config], parse_reference("r.example.org/teams/x")) == Credentials("wide", "p")
    assert credentials_of([config], parse_reference("busybox")) == Credentials("hub", "p")
    assert credentials_of([config, {"auths": 3}], parse_reference("other.example.org/x")) is None


@pytest.mark.parametrize(
    ("architectures", "is_arm"),
    [
        (("arm64", "amd64"), True),
        (("amd64", "arm64"), False),
        (("s390x",), True),
        ((), True),
    ],
    ids=["the first of both", "the other of both", "none of them: the first there is", "no nodes"],
)
async def test_the_image_is_that_for_the_nodes(registry, architectures, is_arm) -> None:
    assert await known(registry).command_of(f"{registry.host}/team/hello:1", None, architectures) == HELLO
    wanted = registry.other if is_arm else registry.manifest
    assert registry.calls[1] == f"/v2/team/hello/manifests/{digest_of(wanted)}"


def a_node(architecture: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"labels": labels}, "status": {"nodeInfo": {"architecture": architecture}}}


@pytest.mark.parametrize(
    ("selector", "want"),
    [
        pytest.param({}, ("arm64", "amd64"), id="the most frequent first"),
        pytest.param({"gpu": "yes"}, ("amd64",), id="of nodes that the selector allows"),
        pytest.param({"gpu": "none"}, ("arm64", "amd64"), id="a node that does not exist yet"),
        pytest.param({"kubernetes.io/arch": "s390x"}, ("s390x",), id="as the selector says"),
    ],
)
def test_architectures_are_those_of_the_nodes(selector: dict[str, str], want: tuple[str, ...]) -> None:
    nodes = [a_node("arm64"), a_node("amd64", gpu="yes"), a_node("arm64"), {"metadata": {}}]
    assert architectures_of(nodes, selector) == want


class Source:
    """Answers when it is let; counts."""

    def __init__(self, *answers: Command | str) -> None:
        self.answers = list(answers)
        self.asked: list[Credentials | None] = []

    async def command_of(
        self, image: str, credentials: Credentials | None = None, architectures: Sequence[str] = ()
    ) -> Command:
        self.asked.append(credentials)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            raise RegistryError(answer)
        return answer


def a_secret(name: str) -> dict[str, Any]:
    config = {"auths": {"r.example.org": {"username": name, "password": "p"}}}
    data = {".dockerconfigjson": base64.b64encode(json.dumps(config).encode()).decode()}
    return {"metadata": {"name": name, "namespace": "lab"}, "data": data}


async def settled(commands: ImageCommands, asked: Asked) -> Command | str:
    known = asyncio.Event()
    if (answer := commands.ask(asked, known.set)) is not None:
        return answer
    await known.wait()
    answer = commands.ask(asked, known.set)
    assert answer is not None
    return answer


async def test_an_image_is_asked_for_once_and_again_after_a_while() -> None:
    clock = FakeClock()
    source = Source(HELLO, "gone", HELLO)
    commands = ImageCommands(FakeApi(), source, clock=clock)
    asked = Asked("lab", "r.example.org/x")
    first, second = await asyncio.gather(settled(commands, asked), settled(commands, asked))
    assert (first, second, len(source.asked)) == (HELLO, HELLO, 1)
    clock.advance(601)
    assert await settled(commands, asked) == "gone"
    assert await settled(commands, asked) == "gone"  # a failure is not repeated for each node either
    assert len(source.asked) == 2
    clock.advance(61)
    assert await settled(commands, asked) == HELLO
    await commands.aclose()


async def test_pull_secrets_are_those_of_the_workflow_and_of_its_account() -> None:
    api = FakeApi()
    api.put(SECRETS, a_secret("team"))
    account = {"metadata": {"name": "batch", "namespace": "lab"}, "imagePullSecrets": [{"name": "team"}]}
    api.put(SERVICEACCOUNTS, account)
    source = Source(HELLO, HELLO)
    commands = ImageCommands(api, source, clock=FakeClock())
    await settled(commands, Asked("lab", "r.example.org/x", (), "batch"))
    await settled(commands, Asked("lab", "r.example.org/x", ("team", "none"), "default"))
    assert source.asked == [Credentials("team", "p")] * 2


class SecretsAreClosed(FakeApi):
    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Obj:
        if resource == SECRETS:
            raise Forbidden(f"secrets {name!r} is forbidden")
        return await super().get(resource, name, namespace)


async def test_a_pull_secret_that_may_not_be_read_is_named_with_what_to_do() -> None:
    commands = ImageCommands(SecretsAreClosed(), Source("r.example.org answered 401"), clock=FakeClock())
    assert await settled(commands, Asked("lab", "r.example.org/x", ("team",))) == (
        "r.example.org answered 401; the operator may not read the Secret team: a Role in the namespace can let"
        " the ServiceAccount moorage-operator `get` it"
    )


WORKFLOW = """
metadata: {name: wf}
spec:
  entrypoint: main
  imagePullSecrets: [{name: team}]
  templates:
  - name: main
    steps: [[{name: one, template: say, withItems: [1, 2, 3]}]]
  - name: say
    container: {image: r.example.org/x, args: [ARGS]}
    outputs: {parameters: [{name: p, valueFrom: {path: /tmp/p}}]}
"""


NAMED = {"metadata": {"name": "wf", "namespace": "lab", "uid": "uid-1"}}


@contextlib.asynccontextmanager
async def operating(api: FakeApi, source: Source, folder: Path) -> AsyncIterator[None]:
    async def runtime() -> StepRuntime:
        return StepRuntime(image="moorage:1", server_url="http://127.0.0.1:1")

    commands = ImageCommands(api, source, clock=SYSTEM)
    controller = WorkflowController(
        Shared(api=api, clock=SYSTEM),
        LocalRecords(folder / "workflows.db"),
        holder="operator-1",
        runtime=runtime,
        check=faults_of,
        commands=commands,
    )
    async with background(operate(controller)), contextlib.aclosing(commands):
        yield


async def test_a_step_without_a_command_runs_that_of_its_image(tmp_path: Path) -> None:
    api, source = FakeApi(), Source(HELLO)
    api.put(WORKFLOWS, {**yaml.safe_load(WORKFLOW.replace("[ARGS]", "[]")), "kind": "Workflow"} | NAMED)

    async def pods() -> list[Obj] | None:
        items = (await api.list(PODS, "lab")).items
        return items if len(items) == 3 else None

    async with operating(api, source, tmp_path):
        made = await until("three pods", pods)
    commands = [pod["spec"]["containers"][0]["command"] for pod in made]
    assert [command[4:] for command in commands] == [["/entry.sh", "serve", "--all"]] * 3
    assert len(source.asked) == 1


async def test_an_image_whose_command_nobody_knows_is_one_error_of_the_step(tmp_path: Path) -> None:
    api = FakeApi()
    api.put(WORKFLOWS, {**yaml.safe_load(WORKFLOW), "kind": "Workflow"} | NAMED)

    async def ended() -> Obj | None:
        obj = await api.get(WORKFLOWS, "wf", "lab")
        return obj if (obj.get("status") or {}).get("phase") in ("Failed", "Error") else None

    source = Source("r.example.org answered 404")
    async with operating(api, source, tmp_path):
        await until("the end", ended)
    assert len(source.asked) == 1
    assert (await api.list(PODS, "lab")).items == []
    loaded = await LocalRecords(tmp_path / "workflows.db").load("uid-1", "test")
    (message,) = {node.message for node in loaded.nodes if node.type is NodeType.POD}
    assert message == (
        "template 'say': container.command is missing, and the command of the image 'r.example.org/x' is not"
        " known, which the outputs of the step need: set `command` (the registry was asked: r.example.org answered"
        " 404)"
    )
