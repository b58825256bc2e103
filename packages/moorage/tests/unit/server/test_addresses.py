"""Under which addresses the server answers, and whose word it takes for them."""

from __future__ import annotations

import pytest

from moorage.model.names import INFO_CONFIGMAP, SYSTEM_NAMESPACE
from moorage.server.addresses import Addresses
from moorage_kube.resources import CONFIGMAPS

INSIDE = {"name": "moorage", "server": "https://10.96.0.1:443", "caData": "Y2E=", "internal": True}


def addresses(data=None, **known):
    made = Addresses(**known)
    made.read(data or {})
    return made


def an_info(**data):
    return {"metadata": {"name": INFO_CONFIGMAP, "namespace": SYSTEM_NAMESPACE}, "data": data}


@pytest.mark.parametrize(
    ("host", "data", "hosts", "want"),
    [
        pytest.param("127.0.0.1:8080", {}, (), True, id="this machine"),
        pytest.param("m.example", {}, (), False, id="a name that nobody set"),
        pytest.param("M.example:443", {"publicUrl": "https://m.example"}, (), True, id="the public address"),
        pytest.param("b.example", {"publicUrl": "https://m.example,http://b.example"}, (), True, id="the second"),
        pytest.param("x.m.example", {"publicUrl": "https://m.example"}, (), False, id="a host below it"),
        pytest.param("[2001:db8::1]:80", {"publicUrl": "http://[2001:DB8::1]"}, (), True, id="IPv6"),
        pytest.param("s.ns.svc", {"serverUrl": "http://s.ns.svc"}, (), True, id="as pods reach it"),
        pytest.param("any.example", {}, ("*",), True, id="all are allowed"),
        pytest.param("m.example.", {"publicUrl": "https://m.example"}, ("*",), False, id="an odd host"),
    ],
)
def test_hosts_of_the_server(host, data, hosts, want):
    assert addresses(data, hosts=hosts).is_ours(host) is want


def test_a_public_address_that_is_taken_away_is_answered_no_more():
    known = addresses({"publicUrl": "https://m.example"})
    known.follow(None, None)
    assert not known.is_ours("m.example")


@pytest.mark.parametrize(
    ("data", "chosen", "want"),
    [
        ({}, "", ""),
        ({"publicUrl": "http://127.0.0.1:7480"}, "", ""),  # of a cluster on this machine: people use moor's link
        ({"publicUrl": "http://127.0.0.1:1,https://m.example"}, "", "https://m.example"),
        ({"publicUrl": "https://m.example"}, "https://chosen.example", "https://chosen.example"),
    ],
)
def test_the_public_address(data, chosen, want):
    assert addresses(data, public_url=chosen).public_url == want


@pytest.mark.parametrize(
    ("host", "want"),
    [
        ("m.example", ("https://m.example", "https")),
        ("LAN.example:8080", ("http://lan.example:8080", "http")),
        ("127.0.0.1:5000", ("http://127.0.0.1:5000", "")),
    ],
)
def test_the_address_by_which_somebody_asked(host, want):
    known = addresses({"publicUrl": "https://m.example, http://lan.example:8080"})
    assert (known.base("http", host), known.scheme_of(host)) == want


@pytest.mark.parametrize(
    ("client", "data", "behind_proxy", "want"),
    [
        ("10.0.0.9", {}, False, False),
        ("10.0.0.9", {}, True, True),
        ("10.0.0.9", {"trustedProxies": "10.0.0.0/24"}, False, True),
        ("::ffff:10.0.0.9", {"trustedProxies": "10.0.0.0/24"}, False, True),
        ("10.0.1.9", {"trustedProxies": "10.0.0.0/24"}, True, False),
        ("fd00::9", {"trustedProxies": "10.0.0.0/24"}, True, False),
        ("", {"trustedProxies": "10.0.0.0/24"}, False, False),
    ],
)
def test_forwarded_headers_are_believed_of_our_proxies_alone(client, data, behind_proxy, want):
    assert addresses(data, behind_proxy=behind_proxy).believes(client) is want


@pytest.mark.parametrize(
    ("cluster", "data", "want"),
    [
        pytest.param({}, {}, {}, id="nobody knows it"),
        pytest.param(INSIDE, {}, INSIDE, id="as pods reach it"),
        pytest.param(
            INSIDE,
            {"kubernetesUrl": "https://k.example:6443"},
            {"name": "moorage", "server": "https://k.example:6443", "caData": "Y2E="},
            id="the same authority outside",
        ),
        pytest.param(
            INSIDE,
            {"kubernetesUrl": "https://k.example", "kubernetesCa": "system"},
            {"name": "moorage", "server": "https://k.example"},
            id="a certificate that every machine trusts",
        ),
        pytest.param(
            INSIDE | {"server": "https://chosen", "chosen": True},
            {"kubernetesUrl": "https://k.example"},
            INSIDE | {"server": "https://chosen"},
            id="an option of the server comes first",
        ),
    ],
)
def test_the_address_of_the_kubernetes_api(cluster, data, want):
    assert addresses(data, cluster=cluster).cluster() == want


@pytest.mark.anyio
async def test_the_server_answers_at_the_public_address_as_soon_as_it_is_set(site):
    async with site.running():
        assert (await site.ask("/api/v1/gpus", host="m.example")).json["code"] == "foreign_host"
        site.api.put(CONFIGMAPS, an_info(publicUrl="https://m.example, https://m2.example"))
        await site.until(lambda: site.service.logins.addresses.public_url)
        for host in ("m.example", "m2.example:443"):
            assert (await site.ask("/api/v1/gpus", host=host)).status == 200
        foreign = await site.ask("/api/v1/gpus", host="evil.example")
        assert (foreign.status, foreign.json["code"]) == (400, "foreign_host")


@pytest.mark.anyio
async def test_a_browser_at_a_public_https_address_gets_cookies_for_https(site):
    async with site.running():
        site.api.put(CONFIGMAPS, an_info(publicUrl="https://m.example"))
        await site.until(lambda: site.service.logins.addresses.public_url)
        answer = await site.ask(f"/?token={site.token}", host="m.example", token=False)
        assert answer.cookies[0].startswith("__Host-moorage_session=")
        own = {"cookie": answer.cookies[0].partition(";")[0], "origin": "https://m.example"}
        change = await site.ask("/logout", method="POST", host="m.example", token=False, headers=own)
        assert change.status == 303
        other = own | {"origin": "http://m.example"}
        refused = await site.ask("/logout", method="POST", host="m.example", token=False, headers=other)
        assert refused.status == 403


@pytest.mark.anyio
async def test_the_audit_log_has_the_address_that_a_trusted_proxy_names(site):
    async with site.running():
        site.api.put(CONFIGMAPS, an_info(publicUrl="https://m.example", trustedProxies="10.0.0.0/24"))
        await site.until(lambda: site.service.logins.addresses.public_url)
        for client, forwarded in (
            ("10.0.0.5", "6.6.6.6, 203.0.113.7"),
            ("10.0.0.5", "6.6.6.6, 203.0.113.8, 10.0.0.6"),  # two proxies in a row
            ("10.0.9.9", "6.6.6.6"),
        ):
            sent = {"x-forwarded-for": forwarded}
            await site.ask("/api/v1/jobs/lab/none", method="DELETE", headers=sent, client=client)
        await site.service.audit.flush()
        entries = await site.service.sessions.do(lambda store: store.audit())
        assert {entry.address for entry in entries} == {"203.0.113.7", "203.0.113.8", "10.0.9.9"}
