"""Who the API server knows by a certificate shows it to the server, and gets a token."""

from __future__ import annotations

import json

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from moorage.api.logins import ByProof
from moorage.client.certificatelogin import make_request, sign
from moorage.model.proofs import FRESH, LIFETIME, SIGNER, SIGNING_REQUESTS
from moorage_kube.clock import rfc3339
from moorage_kube.resources import EVENTS
from moorage_kube.testing.clock import NOON

NAME = "moorage-login-" + "0" * 32
HERE = "http://127.0.0.1:8080"
KEY = ec.generate_private_key(ec.SECP256R1())
MASTERS = ("system:masters", "system:authenticated")


def made(site, *, name=NAME, key=KEY, username="kubernetes-admin", created=NOON, signer=SIGNER):
    """A request as the API server stores it: with who made it."""
    request = make_request(name, key)
    request["metadata"]["creationTimestamp"] = rfc3339(created)
    request["spec"] |= {"username": username, "groups": list(MASTERS), "signerName": signer}
    return site.api.put(SIGNING_REQUESTS, request)


async def prove(site, *, name=NAME, audience=HERE, key=KEY, signature=None, **asked):
    signature = sign(key, name, audience) if signature is None else signature
    body = json.dumps({"name": name, "audience": audience, "signature": signature}).encode()
    headers = {"content-type": "application/json"}
    path = "/api/v1/login/proof"
    return await site.ask(path, method="POST", headers=headers, body=body, token=False, **asked)


def bearer(answer):
    return {"authorization": f"Bearer {answer.json['token']}"}


@pytest.mark.anyio
async def test_whoever_has_the_key_of_a_request_is_who_made_it(site):
    async with site.running():
        made(site)
        answer = await prove(site)
        assert (answer.status, answer.json["name"]) == (201, "kubernetes-admin")
        who = await site.ask("/api/v1/login", token=False, headers=bearer(answer))
        assert who.json == {"name": "kubernetes-admin", "account": "kubernetes-admin", "groups": list(MASTERS)}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"username": ""}, "the request has no user", id="no name"),
        pytest.param({"username": "system:anonymous"}, "the request has no user", id="anonymous"),
        pytest.param({"created": NOON - FRESH}, "the request is too old", id="old"),
        pytest.param({"created": NOON + FRESH}, "the clocks", id="from the future"),
        pytest.param({"signer": "kubernetes.io/kube-apiserver-client"}, "not for 'moorage.dev/login'", id="other"),
        pytest.param({"key": ec.generate_private_key(ec.SECP256R1())}, "not by the key", id="another's key"),
        pytest.param({"key": ec.generate_private_key(ec.SECP384R1())}, "not by the key", id="another curve"),
    ],
)
async def test_a_request_that_proves_nothing(site, change, reason):
    async with site.running():
        made(site, **change)
        answer = await prove(site)
        assert answer.status == 401
        assert reason in answer.json["message"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("asked", "status", "reason"),
    [
        pytest.param({"name": "moorage-login-1"}, 401, "is not the name of a proof", id="a name of another form"),
        pytest.param({"name": "moorage-login-" + "1" * 32}, 401, "there is no Certificate", id="no request"),
        pytest.param({"audience": "https://evil.example"}, 400, "no address of this server", id="another server"),
        pytest.param({"audience": ""}, 400, "no address of this server", id="no server"),
        pytest.param({"signature": "AAAA"}, 401, "not by the key", id="no signature"),
        pytest.param({"signature": "ä"}, 401, "not by the key", id="not base64"),
        pytest.param({"signature": sign(KEY, NAME, "https://evil.example")}, 401, "not by the key", id="relayed"),
    ],
)
async def test_a_proof_that_is_refused(site, asked, status, reason):
    async with site.running():
        made(site)
        answer = await prove(site, **asked)
        assert answer.status == status
        assert reason in answer.json["message"]


@pytest.mark.anyio
async def test_a_token_of_a_proof_ends_and_cannot_be_made_up(site):
    async with site.running():
        made(site)
        answer = await prove(site)
        forged = {"authorization": "Bearer mrp_" + answer.json["token"][4:].swapcase()}
        for headers in (forged, {"authorization": "Bearer mrp_"}, {"authorization": "Bearer mrp_\u00e4"}):
            assert (await site.ask("/api/v1/gpus", token=False, headers=headers)).status == 401
        mark = await site.service.logins.device_mark("kubernetes-admin")  # sealed with the same key
        other = {"authorization": f"Bearer mrp_{mark}"}
        assert (await site.ask("/api/v1/gpus", token=False, headers=other)).status == 401
        site.clock.advance(LIFETIME.total_seconds() - 1)
        assert (await site.ask("/api/v1/gpus", token=False, headers=bearer(answer))).status == 200
        site.clock.advance(2)
        assert (await site.ask("/api/v1/gpus", token=False, headers=bearer(answer))).status == 401


@pytest.mark.anyio
async def test_events_of_a_run_are_shown_to_whoever_may_list_them(site):
    async with site.running():
        made(site)
        headers = bearer(await prove(site))
        site.run("train", node="n1")
        await site.until(lambda: site.service.cluster.pods_of_run("lab", "train"))
        about = {"kind": "Pod", "name": "train-x"}
        meta = {"name": "e", "namespace": "lab"}
        site.api.put(EVENTS, {"metadata": meta, "involvedObject": about, "reason": "Pulled"})
        path = "/api/v1/jobs/lab/train/overview"
        assert (await site.ask(path, token=False, headers=headers)).status == 403
        site.api.readers.add(("kubernetes-admin", "lab"))
        site.clock.advance(61)
        (event,) = (await site.ask(path, token=False, headers=headers)).json["events"]
        assert (event["reason"], event["about"]) == ("Pulled", "pod/train-x")


@pytest.mark.anyio
async def test_rights_are_those_of_the_name_and_the_server_neither_reads_nor_changes_objects_for_it(site):
    async with site.running():
        made(site)
        headers = bearer(await prove(site))
        refused = await site.ask("/metrics", token=False, headers=headers)
        assert refused.status == 403
        site.api.readers.add(("kubernetes-admin", "/metrics"))
        site.clock.advance(61)
        assert (await site.ask("/metrics", token=False, headers=headers)).status == 200
        for method, path in (("DELETE", "/api/v1/jobs/lab/none"), ("GET", "/api/v1/workflows/lab/none")):
            answer = await site.ask(path, method=method, token=False, headers=headers)
            assert (answer.status, answer.json["code"]) == (403, "only_looking")
            assert answer.json["message"] == (
                "kubernetes-admin came by a client certificate: the server cannot act as kubernetes-admin"
            )


def test_the_body_is_that_of_the_client():
    assert set(ByProof.__struct_fields__) == {"name", "audience", "signature"}
