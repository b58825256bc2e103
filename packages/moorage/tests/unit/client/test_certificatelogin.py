"""Getting a token for a kubeconfig that has a client certificate."""

from __future__ import annotations

from datetime import timedelta

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from moorage.client.certificatelogin import Prover, cached_tokens
from moorage.client.cluster import server_of
from moorage.model.proofs import SIGNER, SIGNING_REQUESTS
from moorage.server.identity.proofs import is_signed_by, proof_text
from moorage_kube.clock import SYSTEM, rfc3339
from moorage_kube.errors import Forbidden, Unauthorized
from moorage_kube.remote.config import Connection, ExecPlugin
from moorage_kube.resources import CONFIGMAPS
from moorage_kube.testing.builders import an_object
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi

CERTIFICATE = Connection(server="https://k.example", client_cert_pem=b"CERT")

pytestmark = pytest.mark.anyio


class Ours:
    """The part of the server that takes proofs."""

    def __init__(self, api):
        self.api, self.proofs, self.expires = api, [], NOON + timedelta(hours=1)

    async def answer(self, request):
        body = await request.json()
        made = await self.api.get(SIGNING_REQUESTS, body["name"])
        text = proof_text(body["name"], body["audience"])
        assert is_signed_by(made["spec"]["request"], text, body["signature"])
        assert made["spec"]["signerName"] == SIGNER
        self.proofs.append(body)
        answer = {"name": "admin", "token": f"mrp_{len(self.proofs)}", "expires": rfc3339(self.expires)}
        return web.json_response(answer, status=201)


@pytest.fixture
async def ours(monkeypatch, tmp_path):
    monkeypatch.setenv("MOORAGE_CONFIG", str(tmp_path / "config"))
    made = Ours(FakeApi())
    app = web.Application()
    app.router.add_post("/api/v1/login/proof", made.answer)
    server = TestServer(app)
    await server.start_server()
    made.url = str(server.make_url("")).rstrip("/")
    yield made
    await server.close()


async def test_a_proof_is_made_once_and_its_request_deleted(ours):
    clock = FakeClock()
    prover = Prover(ours.api, CERTIFICATE, clock=clock)
    assert [await prover.token(ours.url, "") for _ in range(2)] == ["mrp_1", "mrp_1"]
    assert [proof["audience"] for proof in ours.proofs] == [ours.url]
    assert (await ours.api.list(SIGNING_REQUESTS)).items == []


async def test_the_next_command_uses_the_token_for_as_long_as_it_holds(ours, tmp_path):
    clock = FakeClock()
    assert await Prover(ours.api, CERTIFICATE, clock=clock).token(ours.url, "") == "mrp_1"
    assert await Prover(ours.api, CERTIFICATE, clock=clock).token(ours.url, "") == "mrp_1"
    other = Connection(server="https://k.example", client_cert_pem=b"OTHER")
    assert await Prover(ours.api, other, clock=clock).token(ours.url, "") == "mrp_2"
    clock.advance(3600 - 59)
    assert await Prover(ours.api, CERTIFICATE, clock=clock).token(ours.url, "") == "mrp_3"
    assert (tmp_path / "config" / "proofs.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "config" / "proofs.json").write_text("[")
    assert cached_tokens() == {}


async def test_a_token_that_a_new_installation_does_not_know_is_proved_anew_once(ours):
    """After `moor uninstall --delete-data` and a new install the kept token is refused."""
    refused, asked = {"mrp_1"}, []

    async def whoami(request):
        asked.append(request.headers["Authorization"].removeprefix("Bearer "))
        return web.json_response({}, status=401 if asked[-1] in refused else 200)

    async def asking(method, path):
        connection = server_of(ours.api, CERTIFICATE)
        try:
            await connection.json(method, path)
        finally:
            await connection.close()

    ours.expires = SYSTEM.now() + timedelta(hours=1)
    app = web.Application()
    app.router.add_post("/api/v1/login/proof", ours.answer)
    app.router.add_route("*", "/api/v1/login", whoami)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        ours.api.put(
            CONFIGMAPS, an_object(CONFIGMAPS, "moorage", namespace="moorage-system", data={"serverUrl": url})
        )
        assert await Prover(ours.api, CERTIFICATE).token(url, "") == "mrp_1"
        await asking("POST", "/api/v1/login")
        await asking("GET", "/api/v1/login")
        assert asked == ["mrp_1", "mrp_2", "mrp_2"]
        refused |= {"mrp_2", "mrp_3"}
        with pytest.raises(Unauthorized):
            await asking("GET", "/api/v1/login")
        assert asked[3:] == ["mrp_2", "mrp_3"]


async def test_a_user_without_the_right_to_requests_gets_a_hint(ours):
    class Refusing(FakeApi):
        async def create(self, *_, **__):
            raise Forbidden("certificatesigningrequests is forbidden")

    with pytest.raises(Forbidden) as caught:
        await Prover(Refusing(), CERTIFICATE, clock=FakeClock()).token(ours.url, "")
    assert caught.value.message.startswith("the Moorage server cannot see your client certificate")
    assert "--clusterrole moorage-login-proof" in caught.value.hint


@pytest.mark.parametrize(
    ("connection", "want"),
    [
        (CERTIFICATE, True),
        (Connection(server="https://k", exec_plugin=ExecPlugin(command="plugin")), True),
        (Connection(server="https://k", token="t"), False),
        (Connection(server="https://k"), False),
    ],
)
async def test_a_proof_is_for_credentials_other_than_a_token(connection, want):
    assert Prover(FakeApi(), connection).is_of_use is want
