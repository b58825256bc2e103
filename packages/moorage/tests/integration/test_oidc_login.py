"""People who log in at a real OpenID Connect provider: in, kept in, and put out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit, urlunsplit

import aiohttp
import pytest

from moorage.actions import people
from moorage.model.people import LOCAL, PEOPLE_NAMESPACE, SUBJECT_ANNOTATION, groups_in
from moorage.server.identity.logins import GRACE, RECHECK
from moorage.server.identity.oidc import Provider, ProviderSettings, Refused, challenge_of
from moorage.server.identity.sessions import KEYS_SECRET, LIFETIME, rotate_keys
from moorage.server.service import ServerService
from moorage_kube.clock import SYSTEM
from moorage_kube.meta import annotations_of
from moorage_kube.resources import NAMESPACES, SECRETS
from moorage_kube.serving import serve
from moorage_kube.testing.clock import FakeClock
from moorage_kube.testing.waiting import until
from moorage_local.apiserver.server import ApiServer
from moorage_local.storage.memory import MemoryStorage
from moorage_testing.oidc import Directory, oidc_provider

pytestmark = pytest.mark.anyio

ADA, GRACE_HOPPER = "ada@example.org", "grace@example.org"


@pytest.fixture(scope="module")
def directory():
    with oidc_provider("--require-nonce") as found:
        yield found


@pytest.fixture(autouse=True)
def _people(directory):
    directory.put_user("1", email=ADA, email_verified=True, groups=["ml", "ops"])
    directory.put_user("2", email=GRACE_HOPPER, email_verified=True, groups="ml")


class Site:
    def __init__(self, kube, service, base, clock, directory):
        self.kube, self.service, self.base, self.clock, self.directory = kube, service, base, clock, directory
        self.api = kube.client("system:admin")

    @contextlib.asynccontextmanager
    async def browser(self):
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
            yield Browser(self, http)

    async def whoami(self, token):
        headers = {"authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession() as http,
            http.get(self.base + "/api/v1/login", headers=headers) as answer,
        ):
            return answer.status

    async def may_use_cluster(self, token):
        return self.kube.authenticate(token) is not None


class Browser:
    def __init__(self, site, http):
        self.site, self.http = site, http

    async def get(self, path):
        async with self.http.get(self.site.base + path, allow_redirects=False) as answer:
            return answer.status, answer.headers, await answer.text()

    async def post(self, path, form, **headers):
        sent = {"origin": self.site.base, "sec-fetch-site": "same-origin"} | headers
        async with self.http.post(self.site.base + path, data=form, headers=sent, allow_redirects=False) as answer:
            return answer.status, answer.headers, await answer.text()

    async def sign_in(self, subject, then="/"):
        status, headers, _ = await self.get(f"/login/oidc?next={then}")
        assert status == 303
        back = await asyncio.to_thread(self.site.directory.sign_in, headers["location"], subject)
        return await self.get(back.removeprefix(self.site.base))

    def token(self):
        (found,) = [one.value for one in self.http.cookie_jar if one.key == "moorage_login"]
        return found

    async def cli_token(self):
        """What `moor login` gets by way of this browser."""
        verifier = "v" * 43
        form = {"challenge": challenge_of(verifier), "port": "", "state": ""}
        status, _, text = await self.post("/login/cli", form)
        assert status == 200
        code = text.partition('<code id="code">')[2].partition("<")[0]
        body = {"code": code, "verifier": verifier, "client": "test"}
        url = self.site.base + "/api/v1/login/exchange"
        async with aiohttp.ClientSession() as cli, cli.post(url, json=body) as answer:
            assert answer.status == 201
            return (await answer.json())["token"]

    async def cluster_token(self, token):
        headers = {"authorization": f"Bearer {token}"}
        async with self.http.post(self.site.base + "/api/v1/login/token", json={}, headers=headers) as answer:
            return answer.status, (await answer.json()).get("token")


@contextlib.asynccontextmanager
async def a_site(folder, directory: Directory):
    clock = FakeClock(SYSTEM.now())
    kube = ApiServer(MemoryStorage(), clock=clock)
    await kube.start()
    await kube.client("system:admin").create(NAMESPACES, {"metadata": {"name": PEOPLE_NAMESPACE}})
    provider = ProviderSettings(issuer=directory.issuer, client_id="moorage", client_secret="s")
    service = ServerService(
        kube.client("moorage-server"),
        usage_db=folder / "usage.db",
        page_token="page",
        provider=provider,
        clock=clock,
    )
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        work = [asyncio.create_task(service.run()), asyncio.create_task(serve(service.app, sock))]
        try:
            yield Site(kube, service, f"http://127.0.0.1:{sock.getsockname()[1]}", clock, directory)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await kube.stop()


@pytest.fixture
async def site(tmp_path, directory):
    async with a_site(tmp_path, directory) as found:
        yield found


async def test_a_person_comes_in_by_the_provider_and_has_an_account_with_their_groups(site):
    async with site.browser() as browser:
        assert (await browser.get("/"))[0] == 401
        status, headers, _ = await browser.sign_in("1", then="/api/v1/login")
        assert (status, headers["location"]) == (303, "/api/v1/login")
        cookie = next(one for one in headers.getall("set-cookie") if one.startswith("moorage_login="))
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert "Domain" not in cookie
        status, _, text = await browser.get("/api/v1/login")
        assert status == 200
        assert f'"name":"{ADA}"' in text
        account = await people.find_account(site.api, ADA)
        assert groups_in(account) == ("ml", "ops")
        assert annotations_of(account)[SUBJECT_ANNOTATION] == f"{site.directory.issuer} 1"


async def test_a_login_lasts_without_its_person_and_its_tokens_are_renewed(site):
    async with site.browser() as browser:
        await browser.sign_in("1")
        token = await browser.cli_token()
        _, made = await browser.cluster_token(token)
        for _ in range(6):
            site.clock.advance(timedelta(hours=1))  # beyond the ID token and every cluster token
            assert not await site.may_use_cluster(made)
            status, made = await browser.cluster_token(token)
            assert status == 201
            assert await site.may_use_cluster(made)


async def test_whom_the_provider_revokes_is_out_within_a_minute(site):
    async with site.browser() as browser:
        await browser.sign_in("1")
        token = await browser.cli_token()
        _, made = await browser.cluster_token(token)
        assert await site.may_use_cluster(made)
        site.directory.revoke("1")
        for _ in range(5):  # 50 s of the server's time; nobody asks it anything
            site.clock.advance(10.0)
            await settled(site)
        await until("the end of the token", lambda: gone(site, made))
        assert await site.whoami(token) == 401
        assert await site.whoami(browser.token()) == 401


async def test_a_revoked_person_is_turned_away_at_the_next_request_after_the_recheck(site):
    async with site.browser() as browser:
        await browser.sign_in("1")
        site.directory.revoke("1")
        site.clock.advance(RECHECK)
        assert await site.whoami(browser.token()) == 401


async def test_whom_an_administrator_disables_is_out_at_once(site):
    async with site.browser() as browser:
        await browser.sign_in("1")
        token = await browser.cli_token()
        _, made = await browser.cluster_token(token)
        await people.disable(site.api, ADA, "left")
        assert not await site.may_use_cluster(made)
        await until("the end of the session", lambda: refused(site, token))
        status, _, text = await browser.sign_in("1")
        assert status == 403
        assert "is disabled" in text
        await people.enable(site.api, ADA)
        await until("a sign-in", lambda: let_in(browser))


async def test_a_provider_that_is_away_puts_nobody_out_for_a_while(tmp_path):
    with oidc_provider() as directory:
        directory.put_user("1", email=ADA, email_verified=True)
        async with a_site(tmp_path, directory) as site, site.browser() as browser:
            await browser.sign_in("1")
            token = browser.token()
            usual = site.service.provider.settings
            site.service.provider.settings = ProviderSettings(issuer="http://127.0.0.1:9", client_id="moorage")
            site.service.provider._told = None
            site.clock.advance(RECHECK + timedelta(minutes=5))
            assert await site.whoami(token) == 200
            site.clock.advance(GRACE)
            assert await site.whoami(token) == 503
            site.service.provider.settings = usual
            assert await site.whoami(token) == 200


async def test_changing_the_keys_that_seal_puts_nobody_out(site):
    async with site.browser() as browser:
        await browser.sign_in("1")
        for _ in range(3):
            await rotate_keys(site.api)
            site.clock.advance(RECHECK)
            assert await site.whoami(browser.token()) == 200
        kept = (await site.api.get(SECRETS, KEYS_SECRET, PEOPLE_NAMESPACE))["data"]
        assert sorted(kept) == ["00000003", "00000004"]


async def test_a_session_ends_after_a_week_of_silence(site):
    async with site.browser() as browser:
        await browser.sign_in("1")
        token = browser.token()
        site.clock.advance(timedelta(days=6))
        assert await site.whoami(token) == 200
        site.clock.advance(timedelta(days=8))
        assert await site.whoami(token) == 401


async def test_a_session_ends_after_its_lifetime_however_busy(site):
    async with site.browser() as browser:
        await browser.sign_in("1")
        token = browser.token()
        for _ in range(LIFETIME.days // 5 - 1):
            site.clock.advance(timedelta(days=5))
            assert await site.whoami(token) == 200
        site.clock.advance(timedelta(days=5))
        assert await site.whoami(token) == 401


async def test_logging_out_ends_the_session_and_its_tokens_and_no_other(site):
    async with site.browser() as browser:
        await browser.sign_in("1")
        one, other = await browser.cli_token(), await browser.cli_token()
        _, first = await browser.cluster_token(one)
        _, second = await browser.cluster_token(other)
        async with browser.http.delete(
            site.base + "/api/v1/login", headers={"authorization": f"Bearer {one}"}
        ) as answer:
            assert answer.status == 204
        assert await site.whoami(one) == 401
        assert await site.whoami(other) == 200
        assert not await site.may_use_cluster(first)
        assert await site.may_use_cluster(second)


async def test_another_sites_way_back_is_not_taken_for_ours(site):
    async with site.browser() as browser, site.browser() as other:
        _, headers, _ = await browser.get("/login/oidc")
        back = await asyncio.to_thread(site.directory.sign_in, headers["location"], "1")
        path = back.removeprefix(site.base)
        assert (await other.get(path))[0] == 400  # a browser that did not begin it: login CSRF
        parts = urlsplit(path)
        query = parse_qs(parts.query)
        forged = urlunsplit(parts._replace(query=f"code={query['code'][0]}&state=forged"))
        assert (await browser.get(forged))[0] == 400
        assert (await browser.get(path))[0] == 400  # the flow was used up


async def test_a_name_that_changes_hands_at_the_provider_is_not_let_in(site):
    async with site.browser() as browser:
        await browser.sign_in("1")
        site.directory.put_user("3", email=ADA, email_verified=True)
        status, _, text = await browser.sign_in("3")
        assert status == 403
        assert "to a different user" in text


async def test_a_local_account_is_not_taken_over_by_the_provider(site):
    await people.create_account(site.api, GRACE_HOPPER, [], LOCAL)
    async with site.browser() as browser:
        status, _, text = await browser.sign_in("2")
        assert status == 403
        assert "another kind" in text


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"email": "system:admin", "email_verified": True}, "not a person"),
        ({"email": "x@example.org"}, "not verified"),
        ({"email": "x@example.org", "email_verified": "true"}, "not verified"),
        ({"email": "x@example.org", "email_verified": False}, "not verified"),
        ({"name": "no address"}, "no claim"),
        ({"email": "x@example.org", "email_verified": True, "groups": {"a": 1}}, "not a list"),
    ],
)
async def test_claims_that_name_nobody_are_refused(site, claims, said):
    site.directory.put_user("9", **claims)
    async with site.browser() as browser:
        status, _, text = await browser.sign_in("9")
        assert status == 403
        assert said in text


async def test_groups_follow_the_provider_while_the_session_lasts(site):
    async with site.browser() as browser:
        await browser.sign_in("1")
        site.directory.put_user("1", email=ADA, groups=["ops"])
        site.clock.advance(RECHECK)
        assert await site.whoami(browser.token()) == 200
        assert groups_in(await people.find_account(site.api, ADA)) == ("ops",)


async def test_after_the_login_the_browser_stays_on_this_server(site):
    for then in (
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "/ok%0d%0aX:1",
    ):
        async with site.browser() as browser:
            _, headers, _ = await browser.sign_in("1", then=then)
            assert headers["location"] == "/"


# --- ID tokens that the provider never made


@pytest.fixture
async def provider(directory):
    found = Provider(ProviderSettings(issuer=directory.issuer, client_id="moorage"))
    yield found
    await found.close()


def claims_for(issuer, **changed):
    now = SYSTEM.now().timestamp()
    return {"iss": issuer, "aud": "moorage", "sub": "1", "iat": now, "exp": now + 60, "email": ADA} | changed


@pytest.fixture
def own_key():
    from cryptography.hazmat.primitives.asymmetric import rsa

    return rsa.generate_private_key(65537, 2048)


@pytest.mark.parametrize("kid", ["unknown", ""])
async def test_a_token_signed_by_another_key_is_refused(provider, directory, own_key, kid):
    import jwt

    forged = jwt.encode(claims_for(directory.issuer), own_key, algorithm="RS256", headers={"kid": kid})
    with pytest.raises(Refused):
        await provider.verified(forged)


async def test_unsigned_tokens_and_shared_secrets_are_refused(provider, directory):
    import jwt

    for forged in (
        jwt.encode(claims_for(directory.issuer), None, algorithm="none"),
        jwt.encode(claims_for(directory.issuer), "s" * 32, algorithm="HS256"),
        "no.token.atall",
        "",
    ):
        with pytest.raises(Refused):
            await provider.verified(forged)


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": 1},
        {"iat": 9e9},
        {"nbf": 9e9},
        {"aud": "another"},
        {"aud": ["moorage", "another"]},
        {"iss": "https://evil.example"},
        {"exp": None},
        {"exp": "soon"},
        {"nonce": "of another login"},
    ],
    ids=str,
)
async def test_claims_that_are_wrong_are_refused_though_the_signature_is_right(
    provider, directory, own_key, changed
):
    import jwt

    public = jwt.algorithms.RSAAlgorithm.to_jwk(own_key.public_key(), as_dict=True) | {"kid": "own"}
    provider._keys, provider._keys_at = {"own": jwt.PyJWK.from_dict(public)}, SYSTEM.monotonic()
    claims = {key: value for key, value in claims_for(directory.issuer, **changed).items() if value is not None}
    good = jwt.encode(claims_for(directory.issuer, nonce="n"), own_key, algorithm="RS256", headers={"kid": "own"})
    assert (await provider.verified(good, nonce="n"))["email"] == ADA
    token = jwt.encode({"nonce": "n"} | claims, own_key, algorithm="RS256", headers={"kid": "own"})
    with pytest.raises(Refused):
        await provider.verified(token, nonce="n")


async def settled(site):
    """Let what was woken run: one look at the sessions takes a few turns of the loop and a thread."""
    await site.service.logins.sweep()


async def gone(site, token):
    return not await site.may_use_cluster(token)


async def refused(site, token):
    return await site.whoami(token) == 401


async def let_in(browser):
    return (await browser.sign_in("1"))[0] == 303
