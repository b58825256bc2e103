"""Routes from a kubeconfig to the server, and the error without one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from moorage.client.discovery import By, Route, choose_pod, choose_route, needs_account, needs_probe, routes
from moorage.client.logins import Saved
from moorage.model.info import Info
from moorage.model.people import account_user
from moorage_kube.errors import NotReady
from moorage_kube.remote.config import POD, Connection, ExecPlugin
from moorage_kube.testing import builders
from moorage_local.testing.fakeapi import FakeApi

SVC = "http://moorage-server.moorage-system.svc"
API = "https://k.example:6443"
PUBLIC = "https://m.example"
PLAIN = Connection(server=API, token="t")
PLUGIN = ExecPlugin(command="moor", args=("token", "--server", PUBLIC))
ADA = account_user("ada")
AS_BEN = Connection(server=API, token="t", impersonate_user="ben")
HERE = "http://127.0.0.1:1"
NAMED = Info(server_url=SVC)
PUBLISHED = Info(server_url=SVC, public_urls=(PUBLIC,))
LOCAL = Info(server_url=HERE, public_urls=(HERE,))
BY_LOGIN = Route(by=By.LOGIN, url=PUBLIC, ca="PEM")


def by_public(url):
    return Route(by=By.PUBLIC, url=url)


def a_login(url=PUBLIC, server=API, name="ada", token="session"):
    return {url: Saved(url=url, token=token, name=name, ca="PEM", cluster={"server": server})}


@pytest.mark.parametrize(
    ("info", "connection", "logins", "account", "want"),
    [
        pytest.param(NAMED, PLAIN, {}, "", [], id="a name that only pods resolve"),
        pytest.param(LOCAL, PLAIN, {}, "", [by_public(HERE)], id="a cluster on this machine"),
        pytest.param(
            Info(server_url=SVC, public_urls=("https://a.example", "https://b.example")),
            PLAIN,
            {},
            "",
            [by_public("https://a.example"), by_public("https://b.example")],
            id="public addresses in their order",
        ),
        pytest.param(
            PUBLISHED,
            Connection(server=API, source=POD),
            {},
            "",
            [Route(by=By.INSIDE, url=SVC), by_public(PUBLIC)],
            id="in a pod",
        ),
        pytest.param(
            NAMED,
            Connection(server=API, exec_plugin=PLUGIN),
            a_login(),
            "",
            [BY_LOGIN],
            id="a kubeconfig of moor login: to the server that gives its tokens",
        ),
        pytest.param(
            PUBLISHED,
            PLAIN,
            a_login(),
            "",
            [BY_LOGIN],
            id="a login at an address that the cluster names: its own credentials",
        ),
        pytest.param(
            NAMED,
            PLAIN,
            a_login(server="https://K.example:6443/"),
            ADA,
            [replace(BY_LOGIN, token="session")],
            id="the same person's login at another address: its session",
        ),
        pytest.param(NAMED, PLAIN, a_login(), "admin", [], id="another person's login"),
        pytest.param(NAMED, AS_BEN, a_login(), ADA, [], id="acting as another"),
        pytest.param(NAMED, PLAIN, a_login(server="https://o.example"), ADA, [], id="of another cluster"),
        pytest.param(NAMED, PLAIN, a_login(token=""), ADA, [], id="a login that has ended"),
    ],
)
def test_the_addresses_to_try(info, connection, logins, account, want):
    assert routes(info, connection, logins, account=account) == want


def test_no_token_of_the_kubeconfig_goes_to_a_server_that_only_claims_the_cluster():
    evil = a_login("https://evil.example")
    for account in ("", ADA, "kubernetes-admin"):
        for route in routes(PUBLISHED, PLAIN, evil, account=account):
            assert route.url == PUBLIC or route.token == "session"


@pytest.mark.parametrize(
    ("info", "connection", "logins", "want"),
    [
        (Info(), PLAIN, {}, False),
        (Info(), PLAIN, a_login(), True),
        (Info(public_urls=(PUBLIC,)), PLAIN, a_login(), False),
        (Info(), Connection(server=API, exec_plugin=PLUGIN), a_login(), False),
    ],
)
def test_the_user_is_asked_for_only_with_a_login_at_another_address(info, connection, logins, want):
    assert needs_account(info, connection, logins) is want


@pytest.mark.parametrize(
    ("route", "connection", "want"),
    [
        (Route(by=By.PUBLIC, url="http://localhost:1"), PLAIN, False),
        (Route(by=By.PUBLIC, url=PUBLIC), PLAIN, True),
        (Route(by=By.INSIDE, url=SVC), Connection(server=API, source=POD), False),
        (Route(by=By.LOGIN, url="http://127.0.0.1:1", token="session"), PLAIN, True),
    ],
)
def test_addresses_that_may_be_out_of_reach_are_tried(route, connection, want):
    assert needs_probe(route, connection) is want


def a_pod(name, ready=True, deleting=False, ports=(8080,)):
    container = {"ports": [{"name": "main", "containerPort": port} for port in ports]}
    return builders.a_pod(name, ready=ready, deleting=deleting, container=container)


def test_a_ready_pod_is_chosen():
    pods = [a_pod("c"), a_pod("b"), a_pod("a", ready=False), a_pod("a2", deleting=True), a_pod("a3", ports=())]
    assert choose_pod(pods) == ("b", 8080)
    with pytest.raises(NotReady, match="the server has no ready pod in namespace moorage-system"):
        choose_pod(pods[2:])


@pytest.mark.anyio
async def test_routes_without_an_answer_are_skipped_and_named_in_the_error():
    async def answer(request):
        return web.Response(status=int(request.headers.get("Authorization", "Bearer 200").split()[1]))

    app = web.Application()
    app.router.add_get("/healthz", answer)
    app.router.add_get("/api/v1/login", answer)
    server = TestServer(app)
    await server.start_server()
    url = str(server.make_url("")).rstrip("/")
    gone = Route(by=By.PUBLIC, url="http://gone.invalid:1")
    ended = Route(by=By.LOGIN, url=url, token="401")
    holds = Route(by=By.LOGIN, url=url, token="200")
    async with AsyncExitStack() as stack:
        assert await choose_route(FakeApi(), PLAIN, [gone, ended, holds], stack) == holds
        with pytest.raises(NotReady) as caught:
            await choose_route(FakeApi(), PLAIN, [gone, ended], stack)
    await server.close()
    assert "http://gone.invalid:1 (publicUrl of the ConfigMap): " in caught.value.message
    assert f"{url} (the address of your login): it answers HTTP 401; " in caught.value.message
    assert "set publicUrl in the ConfigMap moorage of namespace moorage-system" in caught.value.hint
