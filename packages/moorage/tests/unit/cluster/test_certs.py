"""The webhook's certificate: made once, trusted before it is used, renewed in time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509

from moorage.cluster.certs import (
    CHECK_SECONDS,
    LIFETIME,
    RENEW_BEFORE,
    contents,
    ensure_audit_token,
    ensure_certificate,
    ensure_scheduler_files,
    ensure_token,
    issue,
    keep_certificates,
    service_names,
    trusting,
    why_renew,
)
from moorage.model.names import EXTENDER_SECRET, PAGE_SECRET
from moorage.model.secondscheduler import make_scheduler_switch
from moorage_kube.errors import Forbidden, NotFound, ServerError
from moorage_kube.resources import CONFIGMAPS, MUTATING_WEBHOOKS, SECRETS, SERVICES, VALIDATING_WEBHOOKS
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi

pytestmark = pytest.mark.anyio

NAMES = service_names()
HOST = "moorage-webhook.moorage-system.svc"
BOTH = (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)


def a_registration(*clients: Any) -> Any:
    webhooks = [{"name": f"w{n}", "clientConfig": client} for n, client in enumerate(clients)]
    return {"metadata": {"name": "moorage"}, "webhooks": webhooks}


@pytest.fixture
def api() -> FakeApi:
    fake = FakeApi()
    for resource in BOTH:
        fake.put(resource, a_registration({"service": {"name": "moorage-webhook"}}))
    return fake


async def stored(api: FakeApi) -> dict[str, bytes]:
    return contents(await api.get(SECRETS, "moorage-webhook-tls", "moorage-system"))


async def trusted(api: FakeApi) -> list[bytes]:
    found = [await api.get(resource, "moorage") for resource in BOTH]
    return [base64.b64decode(one["webhooks"][0]["clientConfig"]["caBundle"]) for one in found]


def writes(api: FakeApi) -> list[tuple[str, str]]:
    return [(call.verb, call.resource) for call in api.calls if call.verb not in ("get", "list", "watch")]


def test_a_certificate_serves_under_the_names_of_the_service():
    issued = issue(NAMES, now=NOON)
    data = {"tls.crt": issued.certificate, "tls.key": issued.key, "ca.crt": issued.authority}
    assert why_renew(data, NAMES, now=NOON) is None
    certificate = x509.load_pem_x509_certificate(issued.certificate)
    alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alternatives.get_values_for_type(x509.DNSName)[0] == HOST
    assert certificate.not_valid_after_utc == NOON + LIFETIME


def test_a_tls_client_accepts_it_by_its_authority_alone(tmp_path):
    from moorage_kube.clock import SYSTEM

    issued = issue(NAMES, now=SYSTEM.now())
    for name, data in (("crt", issued.certificate), ("key", issued.key)):
        (tmp_path / name).write_bytes(data)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    client_side = ssl.create_default_context(cadata=issued.authority.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_side.wrap_bio(to_client, to_server, server_hostname=HOST)
    server = server_side.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert client.version() == "TLSv1.3"
    assert client.getpeercert()["subjectAltName"][0] == ("DNS", HOST)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"tls.key": b""}, "tls.key is missing"),
        ({"tls.crt": b"no PEM"}, "it cannot be read"),
        ({"ca.crt": b"no PEM"}, "it cannot be read"),
        ({"tls.key": issue(NAMES, now=NOON).key}, "the key is not that of the certificate"),
        ({"ca.crt": issue(NAMES, now=NOON).authority}, "its authority did not sign it"),
    ],
)
def test_what_cannot_serve_is_made_again(change, why):
    issued = issue(NAMES, now=NOON)
    data = {"tls.crt": issued.certificate, "tls.key": issued.key, "ca.crt": issued.authority} | change
    assert (why_renew(data, NAMES, now=NOON) or "").startswith(why)


def test_a_certificate_is_renewed_thirty_days_before_it_ends():
    issued = issue(NAMES, now=NOON)
    data = {"tls.crt": issued.certificate, "tls.key": issued.key, "ca.crt": issued.authority}
    last = NOON + LIFETIME - RENEW_BEFORE
    assert why_renew(data, NAMES, now=last) is None
    assert (why_renew(data, NAMES, now=last + timedelta(seconds=1)) or "").startswith("it expires at 2027-11-21")
    assert why_renew(data, [*NAMES, "other"], now=NOON) == "it does not name other"


async def test_the_registration_that_records_trusts_it_too(api):
    api.put(VALIDATING_WEBHOOKS, a_registration({"service": {}}) | {"metadata": {"name": "moorage-audit"}})
    await ensure_certificate(api, clock=FakeClock())
    audit = await api.get(VALIDATING_WEBHOOKS, "moorage-audit")
    bundle = base64.b64decode(audit["webhooks"][0]["clientConfig"]["caBundle"])
    assert bundle == (await stored(api))["ca.crt"]


async def test_the_api_server_asks_under_a_token_that_a_new_certificate_leaves_as_it_is(api):
    service = {"name": "moorage-webhook", "path": "/audit"}
    api.put(VALIDATING_WEBHOOKS, a_registration({"service": service}) | {"metadata": {"name": "moorage-audit"}})

    async def path():
        audit = await api.get(VALIDATING_WEBHOOKS, "moorage-audit")
        return audit["webhooks"][0]["clientConfig"]["service"]["path"]

    clock = FakeClock()
    await ensure_certificate(api, clock=clock)
    first = await stored(api)
    token = first["audit-token"].decode()
    assert (len(token), await path()) == (48, f"/audit/{token}")
    clock.advance(LIFETIME)
    await ensure_certificate(api, clock=clock)
    assert (await stored(api))["tls.crt"] != first["tls.crt"]
    assert await path() == f"/audit/{token}"


async def test_the_secret_of_an_older_version_gets_a_token_and_keeps_its_certificate(api):
    await ensure_certificate(api, clock=FakeClock())
    secret = await api.get(SECRETS, "moorage-webhook-tls", "moorage-system")
    before = await stored(api)
    del secret["data"]["audit-token"]
    api.put(SECRETS, secret)
    await ensure_certificate(api, clock=FakeClock())
    after = await stored(api)
    assert after.pop("audit-token")
    del before["audit-token"]
    assert after == before


async def test_without_a_secret_one_is_made_after_the_registrations_trust_it(api):
    await ensure_certificate(api, clock=FakeClock())
    data = await stored(api)
    assert await trusted(api) == [data["ca.crt"]] * 2
    assert writes(api) == [
        ("update", "mutatingwebhookconfigurations"),
        ("update", "validatingwebhookconfigurations"),
        ("create", "secrets"),
    ]
    api.calls.clear()
    await ensure_certificate(api, clock=FakeClock())
    assert writes(api) == []


async def test_a_renewal_keeps_the_old_authority_trusted_until_the_next(api):
    clock, seen = FakeClock(), []
    for _ in range(3):
        await ensure_certificate(api, clock=clock)
        data = await stored(api)
        seen.append(data["ca.crt"])
        assert await trusted(api) == [data["ca.crt"]] * 2
        clock.advance(LIFETIME - RENEW_BEFORE + timedelta(days=1))
    counts = [len(x509.load_pem_x509_certificates(one)) for one in seen]
    assert counts == [1, 2, 2]
    assert seen[1].endswith(seen[0])
    assert seen[0] not in seen[2]


async def test_an_authority_that_has_expired_is_trusted_no_more(api):
    clock = FakeClock()
    await ensure_certificate(api, clock=clock)
    clock.advance(LIFETIME + timedelta(days=1))
    await ensure_certificate(api, clock=clock)
    assert len(x509.load_pem_x509_certificates((await stored(api))["ca.crt"])) == 1


async def test_a_registration_that_lost_its_authority_gets_it_back(api):
    await ensure_certificate(api, clock=FakeClock())
    before = await stored(api)
    api.put(MUTATING_WEBHOOKS, a_registration({"service": {"name": "moorage-webhook"}}))
    await ensure_certificate(api, clock=FakeClock())
    assert await trusted(api) == [before["ca.crt"]] * 2
    assert await stored(api) == before


async def test_without_registrations_the_certificate_is_made_all_the_same():
    api = FakeApi()
    await ensure_certificate(api, clock=FakeClock())
    assert why_renew(await stored(api), NAMES, now=NOON) is None


def test_a_registration_by_url_is_left_alone():
    by_url = {"url": "https://127.0.0.1:1/mutate", "caBundle": "x"}
    assert trusting(a_registration(by_url), b"PEM", b"token") is None
    mended = trusting(a_registration(by_url, {"service": {}}), b"PEM", b"token")
    assert mended is not None
    assert [webhook["clientConfig"].get("caBundle") for webhook in mended["webhooks"]] == ["x", "UEVN"]


@pytest.mark.parametrize("name", [PAGE_SECRET, EXTENDER_SECRET])
async def test_a_token_is_made_once_and_never_changed(name):
    api = FakeApi()
    await ensure_token(api, name)
    first = await api.get(SECRETS, name, "moorage-system")
    assert len(contents(first)["token"]) >= 32
    await ensure_token(api, name)
    assert await api.get(SECRETS, name, "moorage-system") == first


def the_extender(address: str = "10.96.0.9") -> FakeApi:
    fake = FakeApi()
    fake.put(
        SERVICES,
        {"metadata": {"name": "moorage-extender", "namespace": "moorage-system"}, "spec": {"clusterIP": address}},
    )
    return fake


async def scheduler_urls(api: FakeApi) -> list[str]:
    secret = await api.get(SECRETS, "moorage-scheduler", "moorage-system")
    configs = [json.loads(text) for text in contents(secret).values()]
    return [config["extenders"][0]["urlPrefix"] for config in configs]


async def test_kube_schedulers_find_their_configurations_with_the_token_in_a_secret():
    api = the_extender()
    await ensure_scheduler_files(api)
    with pytest.raises(NotFound):  # there is no token yet
        await scheduler_urls(api)
    await ensure_token(api, EXTENDER_SECRET)
    await ensure_scheduler_files(api)
    token = contents(await api.get(SECRETS, EXTENDER_SECRET, "moorage-system"))["token"].decode()
    assert await scheduler_urls(api) == [
        f"http://moorage-extender.moorage-system.svc:8888/scheduler/{token}",
        f"http://10.96.0.9:8888/scheduler/{token}",
    ]
    api.calls.clear()
    await ensure_scheduler_files(api)
    assert writes(api) == []


async def test_the_configurations_follow_the_address_of_the_extender_and_the_admins_choice():
    api = the_extender()
    await ensure_token(api, EXTENDER_SECRET)
    await ensure_scheduler_files(api)
    service = await api.get(SERVICES, "moorage-extender", "moorage-system")
    api.put(SERVICES, service | {"spec": {"clusterIP": "10.96.0.10"}})
    api.put(CONFIGMAPS, make_scheduler_switch(50))
    await ensure_scheduler_files(api)
    assert (await scheduler_urls(api))[1].startswith("http://10.96.0.10:8888/scheduler/")
    files = contents(await api.get(SECRETS, "moorage-scheduler", "moorage-system")).values()
    assert {json.loads(text)["percentageOfNodesToScore"] for text in files} == {50}


async def test_a_certificate_of_cert_manager_is_left_alone_and_the_token_is_kept_beside_it():
    """It writes the Secret and the trust of the registrations; the path of the audit log is ours."""
    api = FakeApi()
    given = {"service": {"name": "moorage-webhook", "path": "/audit"}, "caBundle": "by cert-manager"}
    for resource in BOTH:
        api.put(resource, a_registration(dict(given)))
    await ensure_audit_token(api)  # there is no Secret yet: nothing is made in its place
    with pytest.raises(NotFound):
        await stored(api)
    data = {name: base64.b64encode(name.encode()).decode() for name in ("tls.crt", "tls.key", "ca.crt")}
    meta = {"name": "moorage-webhook-tls", "namespace": "moorage-system", "annotations": {"of": "cert-manager"}}
    api.put(SECRETS, {"metadata": meta, "type": "kubernetes.io/tls", "data": data})
    for _ in range(2):
        await ensure_audit_token(api)
    contents_now = await stored(api)
    token = contents_now.pop("audit-token").decode()
    assert contents_now == {name: name.encode() for name in data}
    assert (await api.get(SECRETS, "moorage-webhook-tls", "moorage-system"))["metadata"]["annotations"] == {
        "of": "cert-manager"
    }
    for resource in BOTH:
        (webhook,) = (await api.get(resource, "moorage"))["webhooks"]
        assert webhook["clientConfig"]["caBundle"] == "by cert-manager"
        assert webhook["clientConfig"]["service"]["path"] == f"/audit/{token}"


class Refusing(FakeApi):
    """Lets nobody read what concerns kube-schedulers, as the roles of an older version."""

    async def get(self, resource: Any, name: str, namespace: str | None = None) -> Any:
        if resource == SERVICES:
            raise Forbidden("services is forbidden")
        return await super().get(resource, name, namespace)


async def test_the_certificate_is_made_though_kube_schedulers_get_no_configuration():
    api, clock = Refusing(), FakeClock()
    keeping = asyncio.create_task(keep_certificates(api, clock=clock))
    async with asyncio.timeout(120):
        while not clock._sleepers:  # noqa: ASYNC110
            await asyncio.sleep(0)
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping
    assert why_renew(await stored(api), NAMES, now=NOON) is None


async def test_an_api_that_is_away_is_asked_again_later(api):
    clock = FakeClock()
    api.failing = ServerError("away", status=0)
    keeping = asyncio.create_task(keep_certificates(api, clock=clock))
    async with asyncio.timeout(120):
        while not clock._sleepers:  # noqa: ASYNC110
            await asyncio.sleep(0)
        api.failing = None
        clock.advance(CHECK_SECONDS)
        while True:
            with contextlib.suppress(Exception):
                await stored(api)
                break
            await asyncio.sleep(0)
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping
