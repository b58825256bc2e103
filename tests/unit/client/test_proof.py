"""Getting a token for a kubeconfig that has a client certificate."""

from __future__ import annotations

from datetime import timedelta

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from moorage.client.proof import Prover, kept_tokens
from moorage.clock import rfc3339
from moorage.errors import Forbidden
from moorage.kube.config import Connection, ExecPlugin
from moorage.model.proofs import SIGNER, SIGNING_REQUESTS
from moorage.server.identity.proofs import is_signed_by, proof_text
from moorage.testing.clock import NOON, FakeClock
from moorage.testing.fakeapi import FakeApi

CERTIFICATE = Connection(server="https://k.example", client_cert_pem=b"CERT")

pytestmark = pytest.mark.anyio


class Ours:
    """The part of the server that takes proofs."""

    def __init__(self, api):
        self.api, self.proofs = api, []

    async def answer(self, request):
        body = await request.json()
        made = await self.api.get(SIGNING_REQUESTS, body["name"])
        text = proof_text(body["name"], body["audience"])
        assert is_signed_by(made["spec"]["request"], text, body["signature"])
        assert made["spec"]["signerName"] == SIGNER
        self.proofs.append(body)
        expires = rfc3339(NOON + timedelta(hours=1))
        answer = {"name": "admin", "token": f"mrp_{len(self.proofs)}", "expires": expires}
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
    assert kept_tokens() == {}


async def test_who_may_not_make_requests_reads_what_to_do(ours):
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
async def test_a_proof_is_for_who_has_something_else_than_a_token(connection, want):
    assert Prover(FakeApi(), connection).is_of_use is want
