"""Local accounts over HTTP: passwords, sessions, who asks from where, and the audit log."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.actions import people
from moorage.model.people import LOCAL, PEOPLE_NAMESPACE, account_name, account_user, is_disabled
from moorage.server.identity.attempts import ADDRESS, FREE_FAILURES, PLACE, Attempts, Origin
from moorage.server.identity.audit import STRANGERS
from moorage.server.identity.auth import is_same_origin
from moorage.server.identity.logins import BELIEVED_SECONDS, HASHES_WAITING, Hashing, Logins
from moorage.server.identity.oidc import Login, Refused
from moorage.server.identity.people import People
from moorage.server.identity.sessions import (
    STRANGER_SECONDS,
    AuditEntry,
    Sessions,
    SessionStore,
    digest,
    new_token,
    open_sessions,
    rotate_keys,
)
from moorage.server.problems import Problem
from moorage_kube.databasefile import read_mark
from moorage_kube.errors import NotFound, StorageError
from moorage_kube.resources import SERVICEACCOUNTS
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_kube.texts import hidden_characters

pytestmark = pytest.mark.anyio

PASSWORD = "correct horse"
JSON = {"content-type": "application/json"}
SAME = {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}


async def ada(site, *groups):
    await people.create_account(site.api, "ada", groups, LOCAL)
    await people.set_password(site.api, "ada", PASSWORD, cost=2)


async def log_in(site, password=PASSWORD, name="ada"):
    body = json.dumps({"username": name, "password": password}).encode()
    return await site.ask("/api/v1/login", method="POST", body=body, headers=JSON, token=False)


def bearer(token):
    return {"authorization": f"Bearer {token}"}


def known(site):
    return site.service.people._accounts.get(account_name("ada"), PEOPLE_NAMESPACE)


async def whoami(site, headers):
    return await site.ask("/api/v1/login", headers=headers, token=False)


async def test_a_password_opens_a_session_and_the_session_knows_its_person(site):
    async with site.running():
        await ada(site, "ml")
        answer = await log_in(site)
        assert answer.status == 201
        assert answer.json["token"].startswith("mrs_")
        told = (await whoami(site, bearer(answer.json["token"]))).json
        assert (told["name"], told["account"], told["groups"]) == ("ada", account_user("ada"), ["ml"])
        listed = await site.ask("/api/v1/login/sessions", headers=bearer(answer.json["token"]), token=False)
        assert [one["current"] for one in listed.json["sessions"]] == [True]


@pytest.mark.parametrize(
    ("name", "password"), [("ada", "wrong"), ("nobody", PASSWORD), ("", ""), ("system:x", "x")]
)
async def test_a_wrong_name_and_a_wrong_password_get_one_answer(site, name, password):
    async with site.running():
        await ada(site)
        answer = await log_in(site, password, name)
        assert (answer.status, answer.json["message"]) == (401, "the name or the password is wrong")


async def test_after_five_wrong_passwords_the_next_one_has_to_wait(site):
    async with site.running():
        await ada(site)
        for _ in range(5):
            assert (await log_in(site, "wrong")).status == 401
        answer = await log_in(site)
        assert answer.status == 429
        assert answer.headers["retry-after"] == "180"
        site.clock.advance(180)
        assert (await log_in(site)).status == 201


async def test_of_many_passwords_at_once_no_more_are_looked_at_than_one_after_the_other(site, monkeypatch):
    hashed, scrypt = [], hashlib.scrypt

    def counted(password, **options):
        hashed.append(password)
        return scrypt(password, **options)

    async with site.running():
        await ada(site)
        monkeypatch.setattr(hashlib, "scrypt", counted)
        answers = await asyncio.gather(*(log_in(site, f"wrong {number}") for number in range(150)))
        assert sorted({one.status for one in answers}) == [401, 429]
        assert len(hashed) == 5


async def test_a_flood_from_one_address_keeps_nobody_out_who_was_there_before(site):
    async with site.running():
        await ada(site)
        await people.create_account(site.api, "grace", (), LOCAL)
        await people.set_password(site.api, "grace", PASSWORD)
        assert (await log_in(site)).status == 201  # from this address: it is a team's
        refused = [(await log_in(site, "wrong", f"name-{number}")).status for number in range(80)]
        assert refused[:60] == [401] * 60
        assert refused[-1] == 429
        assert (await log_in(site)).status == 201
        newcomer = await log_in(site, PASSWORD, "grace")
        assert (newcomer.status, newcomer.headers["retry-after"]) == (429, "1")
        site.clock.advance(1)  # a rate, no lock
        assert (await log_in(site, PASSWORD, "grace")).status == 201


async def test_wrong_passwords_for_a_name_keep_its_person_not_out_of_their_own_browser(site):
    async with site.running():
        await ada(site)
        form = f"username=ada&password={PASSWORD.replace(' ', '+')}".encode()
        answer = await site.ask("/login", method="POST", body=form, headers=SAME, token=False)
        device = next(one for one in answer.cookies if one.startswith("moorage_device="))
        assert "HttpOnly" in device
        assert "SameSite=strict" in device
        for _ in range(6):
            refused = await log_in(site, "wrong")
        assert refused.status == 429
        mine = SAME | {"cookie": device.partition(";")[0]}
        assert (await site.ask("/login", method="POST", body=form, headers=mine, token=False)).status == 303
        other = SAME | {"cookie": "moorage_device=forged"}
        assert (await site.ask("/login", method="POST", body=form, headers=other, token=False)).status == 429
        wrong = b"username=ada&password=wrong"
        tries = [await site.ask("/login", method="POST", body=wrong, headers=mine, token=False) for _ in range(6)]
        assert [one.status for one in tries] == [401] * 5 + [429]  # a stolen mark is good for no more guesses


async def test_a_mark_is_good_for_its_own_person_alone(site):
    async with site.running():
        await ada(site)
        mark = await site.service.logins.device_mark("grace")
        assert await site.service.logins._device_of(mark, "grace")
        assert not await site.service.logins._device_of(mark, "ada")


async def test_guesses_of_the_old_password_at_once_are_counted_too(site):
    async with site.running():
        await ada(site)
        token = (await log_in(site)).json["token"]
        body = json.dumps({"old": "wrong", "new": "battery staple"}).encode()
        sent = JSON | bearer(token)
        tries = [
            site.ask("/api/v1/login/password", method="POST", body=body, headers=sent, token=False)
            for _ in range(40)
        ]
        answers = await asyncio.gather(*tries)
        assert sorted(one.status for one in answers) == [403] * 5 + [429] * 35


async def test_no_more_passwords_wait_for_their_turn_than_a_few():
    hashing, begun, go_on = Hashing(), asyncio.Event(), asyncio.Event()
    at_once = []

    async def slow():
        at_once.append(True)
        assert len(at_once) == 1
        begun.set()
        await go_on.wait()
        at_once.pop()

    tasks = [asyncio.create_task(hashing.run(slow)) for _ in range(HASHES_WAITING)]
    await begun.wait()
    with pytest.raises(Problem) as refused:
        await hashing.run(slow)
    assert refused.value.status == 503
    tasks[0].cancel()  # who asked has gone: the turn is not another's before the work is done
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    await hashing.run(slow)


async def test_of_those_who_come_in_one_turn_of_the_loop_no_more_wait_than_a_few():
    hashing, go_on = Hashing(), asyncio.Event()
    asking = [asyncio.create_task(hashing.run(go_on.wait)) for _ in range(HASHES_WAITING + 5)]
    await asyncio.sleep(0)  # each has come, and none has begun
    go_on.set()
    answers = await asyncio.gather(*asking, return_exceptions=True)
    assert [one for one in answers if one is not True] == answers[HASHES_WAITING:]
    assert {(type(one), one.status) for one in answers[HASHES_WAITING:]} == {(Problem, 503)}


def stranger(name, address):
    return Origin(name=name, address=address)


class MemoryCounts:
    """Counts of tries in a dict."""

    def __init__(self):
        self.values = {}

    def get(self, key, now):
        value = self.values.get(key)
        return value.body if value is not None and value.end > now else None

    def change(self, keys, work, now):
        values, outcome = work([self.get(key, now) for key in keys])
        self.values.update(zip(keys, values, strict=True))
        return outcome


def test_guesses_at_one_name_from_many_addresses_come_slower_and_slower():
    clock = FakeClock()
    attempts = Attempts(MemoryCounts(), clock)
    waits = []
    for number in range(20):
        waits.append(attempts.begin(stranger("ada", f"10.0.0.{number}")))
        if waits[-1]:
            clock.advance(waits[-1])
            assert attempts.begin(stranger("ada", f"10.0.0.{number}")) == 0
    assert waits[:10] == [0] * 10
    assert waits[10:15] == [30, 60, 120, 240, 480]
    assert max(waits) <= 3600
    assert attempts.begin(stranger("grace", "10.9.9.9")) == 0
    assert attempts.begin(Origin(name="ada", address="10.1.1.1", known=True)) == 0


@given(st.lists(st.tuples(st.sampled_from(["ada", "grace"]), st.integers(0, 3), st.floats(0, 4000)), max_size=80))
def test_however_one_guesses_a_day_gives_no_more_tries_than_its_waits_allow(tries):
    clock = FakeClock()
    attempts = Attempts(MemoryCounts(), clock)
    begun = clock.monotonic()
    looked_at = 0
    for name, address, pause in tries:
        looked_at += attempts.begin(stranger(name, f"10.0.0.{address}")) == 0 and name == "ada"
        clock.advance(pause)
    hours = (clock.monotonic() - begun) / 3600
    assert looked_at <= 20 + 2.5 * hours


def test_tries_that_were_not_checked_push_out_no_counts_of_others():
    counts = MemoryCounts()
    attempts = Attempts(counts, FakeClock())
    for _ in range(5):
        assert attempts.begin(stranger("ada", "10.0.0.1")) == 0
    for number in range(40):
        other = stranger(f"name-{number}", f"10.1.0.{number}")
        assert attempts.begin(other) == 0
        attempts.undo(other)
    assert attempts.begin(stranger("ada", "10.0.0.1")) > 0
    assert sum(value is not None for value in counts.values.values()) == 3  # of ada, her place and its address


def test_a_network_of_addresses_that_one_customer_has_counts_as_one_address():
    attempts = Attempts(MemoryCounts(), FakeClock())
    here = [stranger(f"name-{number}", f"2001:db8:0:7::{number:x}") for number in range(ADDRESS.burst + 1)]
    assert [attempts.begin(one) > 0 for one in here] == [False] * ADDRESS.burst + [True]
    assert attempts.begin(stranger("ada", "2001:db8:0:8::1")) == 0
    for _ in range(PLACE.burst):
        attempts.begin(stranger("ada", "10.0.0.1"))
    assert attempts.begin(stranger("ada", "::ffff:10.0.0.1")) > 0


async def test_a_person_is_known_at_all_addresses_of_their_network(site):
    async with site.running():
        await ada(site)
        by_password = site.service.logins.by_password
        await by_password("ada", PASSWORD, address="2001:db8:0:7::1", client="c")
        for number in range(FREE_FAILURES):
            with pytest.raises(Problem):
                await by_password("ada", "wrong", address=f"10.0.0.{number}", client="c")
        await by_password("ada", PASSWORD, address="2001:db8:0:7::3", client="c")


async def test_a_name_longer_than_a_persons_is_refused(site):
    async with site.running():
        await ada(site)
        for name in ("a" * 254, "a" * 1000):
            answer = await log_in(site, "wrong", name)
            assert (answer.status, answer.json["field"]) == (422, "username")
            assert "253" in answer.json["message"]
            assert len(answer.json["message"]) < 200
        form = b"username=" + b"a" * 10_000 + b"&password=wrong"
        assert (await site.ask("/login", method="POST", body=form, headers=SAME, token=False)).status == 422
        assert (await log_in(site, "wrong", "a" * 253)).status == 401


async def test_a_name_that_forges_a_line_is_refused_and_not_written_down_as_it_is(site):
    forged = "ada\n2026-01-31T08:00:00Z   root   10.0.0.1\x1b[2K"
    async with site.running():
        for name in (forged, "ada\u202eroot", "ada\u009b2J", "ada\x00"):
            answer = await log_in(site, "wrong", name)
            assert (answer.status, answer.json["field"]) == (422, "username")
            assert not hidden_characters(answer.json["message"])
        await site.service.audit.flush()
        entries = await site.service.sessions.do(SessionStore.audit)
        assert len(entries) == 4
        assert not any(hidden_characters(one.person) for one in entries)


async def test_a_form_gives_a_cookie_that_no_script_reads_and_no_other_site_uses(site):
    async with site.running():
        await ada(site)
        form = f"username=ada&password={PASSWORD.replace(' ', '+')}&next=/maps".encode()
        answer = await site.ask("/login", method="POST", body=form, headers=SAME, token=False)
        assert (answer.status, answer.headers["location"]) == (303, "/maps")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        mine = {"cookie": cookie.partition(";")[0]}
        assert (await whoami(site, mine)).json["name"] == "ada"
        for headers in (
            {},
            {"origin": "http://evil.example"},
            {"sec-fetch-site": "cross-site"},
            {"origin": "null"},
        ):
            refused = await site.ask("/logout", method="POST", headers=mine | headers, token=False)
            assert (refused.status, refused.json["code"]) == (403, "cross_site")
        out = await site.ask("/logout", method="POST", headers=mine | SAME, token=False)
        assert out.status == 303
        assert (await whoami(site, mine)).status == 401


async def test_a_form_of_another_site_does_not_log_its_visitor_in(site):
    async with site.running():
        await ada(site)
        form = f"username=ada&password={PASSWORD.replace(' ', '+')}".encode()
        evil = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
        assert (await site.ask("/login", method="POST", body=form, headers=evil, token=False)).status == 403
        assert (await site.ask("/api/v1/login", method="POST", body=b"{}", token=False)).status == 415


async def test_a_changed_password_ends_the_other_sessions(site):
    async with site.running():
        await ada(site)
        one, other = [(await log_in(site)).json["token"] for _ in range(2)]
        body = json.dumps({"old": PASSWORD, "new": "battery staple"}).encode()
        headers = JSON | bearer(one)
        done = await site.ask("/api/v1/login/password", method="POST", body=body, headers=headers, token=False)
        assert done.status == 204
        assert (await whoami(site, bearer(one))).status == 200
        assert (await whoami(site, bearer(other))).status == 401
        assert (await log_in(site, "battery staple")).status == 201


async def test_a_shut_account_and_a_deleted_one_have_no_sessions(site):
    async with site.running():
        await ada(site)
        token = (await log_in(site)).json["token"]
        await people.disable(site.api, "ada", "left")
        await site.until(lambda: is_disabled(known(site)))
        assert (await whoami(site, bearer(token))).status == 401
        await people.enable(site.api, "ada")
        await site.until(lambda: not is_disabled(known(site)))
        token = (await log_in(site)).json["token"]
        await people.delete_account(site.api, "ada")
        with pytest.raises(NotFound):
            await site.api.get(SERVICEACCOUNTS, account_name("ada"), PEOPLE_NAMESPACE)
        assert (await whoami(site, bearer(token))).status == 401


async def test_a_session_that_another_server_ended_is_out_here_however_often_it_asks(site):
    async with site.running():
        await ada(site)
        token = (await log_in(site)).json["token"]
        other = Logins(site.api, People(site.api), site.service.sessions, clock=site.clock)
        session = await other.session_of(token)
        await site.service.logins.end(session, "logged out")
        for _ in range(2):
            site.clock.advance(BELIEVED_SECONDS / 2)
            still = await other.session_of(token)
        assert still is None


class SlowPeople(People):
    """Looks an account up when it is told to."""

    def __init__(self, api):
        super().__init__(api)
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def account(self, person):
        self.asked.set()
        await self.go_on.wait()
        return await super().account(person)


async def test_a_request_under_way_at_the_logout_brings_no_session_back(site):
    async with site.running():
        await ada(site)
        token = (await log_in(site)).json["token"]
        slow = SlowPeople(site.api)
        logins = Logins(site.api, slow, site.service.sessions, clock=site.clock)
        asking = asyncio.create_task(logins.session_of(token))
        await slow.asked.wait()
        (session,) = await logins.sessions("ada")
        await logins.end(session, "logged out")
        slow.go_on.set()
        assert await asking is not None  # it was open when it was looked at
        assert await logins.session_of(token) is None


class AProvider:
    """Lets everybody in who comes with the code `right`."""

    async def authorization_url(self, **asked):
        return f"https://provider.example/?state={asked['state']}"

    async def exchange(self, code, **asked):
        if code != "right":
            raise Refused("the code is used up")
        return Login(subject="1", name="ada", groups=(), refresh_token="r", expires=0)


async def begun(logins, then="/"):
    url, binding = await logins.start_oidc(redirect="https://here.example/login/callback", then=then)
    return binding, url.partition("state=")[2]


def come_back(logins, binding, state, code="right"):
    return logins.finish_oidc(binding=binding, state=state, code=code, address="10.0.0.1", client="browser")


async def test_logins_that_strangers_begin_at_the_provider_are_not_written(site):
    async with site.running():
        sessions = site.service.sessions
        logins = Logins(site.api, People(site.api), sessions, clock=site.clock)
        logins.provider = AProvider()
        await sessions.do(lambda store: store.all())
        before = read_mark(site.folder / "people.db")
        for _ in range(3):
            binding, state = await begun(logins)
            other, _ = await begun(logins)
            for wrong in (("made-up", state), ("", state), (other, state), (binding, "forged")):
                with pytest.raises(Problem) as refused:
                    await come_back(logins, *wrong)
                assert (refused.value.status, refused.value.code) == (400, "bad_login")
        mark = await logins.device_mark("ada")  # sealed with the same key
        with pytest.raises(Problem):
            await come_back(logins, mark, state)
        with pytest.raises(Problem) as refused:
            await come_back(logins, binding, state, code="used")
        assert refused.value.status == 403
        assert read_mark(site.folder / "people.db") == before


async def test_the_keys_are_not_read_again_for_every_cookie_that_a_stranger_makes_up(site):
    async with site.running():
        logins = Logins(site.api, People(site.api), site.service.sessions, clock=site.clock)
        logins.provider = AProvider()

        def reads():
            return sum(call.resource == "secrets" and call.verb == "get" for call in site.api.calls)

        mark = await logins.device_mark("ada")
        before = reads()
        for number in range(20):
            assert await logins._device_of(f"made-up {number}", "ada") == ""
            with pytest.raises(Problem):
                await come_back(logins, f"made-up {number}", "state")
        assert reads() == before
        await rotate_keys(site.api)
        other = Logins(site.api, People(site.api), site.service.sessions)  # of another server
        new = await other.device_mark("ada")
        site.clock.advance(STRANGER_SECONDS)
        assert await logins._device_of(new, "ada")
        assert await logins._device_of(mark, "ada")


async def test_a_login_at_the_provider_ends_where_it_began_and_takes_no_longer_than_ten_minutes(site):
    async with site.running():
        logins = Logins(site.api, People(site.api), site.service.sessions, clock=site.clock)
        logins.provider = AProvider()
        then = "/maps?" + "x" * 1900
        binding, state = await begun(logins, then)
        for odd in (then, '/"' * 1000):
            assert len((await begun(logins, odd))[0]) < 4000  # of a cookie; browsers drop longer ones
        assert "x" * 9 not in binding
        site.clock.advance(599)
        _, session, where = await come_back(logins, binding, state)
        assert (session.person, where) == ("ada", then)
        site.clock.advance(1)
        with pytest.raises(Problem) as refused:
            await come_back(logins, binding, state)
        assert (refused.value.status, refused.value.code) == (400, "bad_login")


async def test_what_a_person_has_open_ends_when_they_are_put_out_and_not_before(site, monkeypatch):
    site.service.auth.recheck_seconds = 0.01
    looked = []
    identify = site.service.auth.identify

    async def counted(headers):
        looked.append(headers)
        return await identify(headers)

    async with site.running():
        await ada(site)
        token = (await log_in(site)).json["token"]
        monkeypatch.setattr(site.service.auth, "identify", counted)
        async with site.stream("/events/page", token) as chunks:
            assert (await chunks.get())["body"]
            await site.until(lambda: len(looked) > 3)
            await people.disable(site.api, "ada", "left")
            while (one := await chunks.get()) is not None:
                assert one["more_body"]
        begun = len(looked)
        async with site.stream("/events/page") as chunks:  # by the page's token
            await site.until(lambda: len(looked) > begun + 3)
            while not chunks.empty():
                assert chunks.get_nowait() is not None


async def test_every_change_is_in_the_audit_log_and_no_look_is(site, caplog):
    caplog.set_level(logging.INFO, logger="moorage.audit")
    async with site.running():
        await ada(site)
        await log_in(site, "wrong")
        token = (await log_in(site)).json["token"]
        await whoami(site, bearer(token))
        await site.ask("/api/v1/login", method="DELETE", headers=bearer(token), token=False)
        await site.ask("/api/v1/users", method="POST", body=b"{}", headers=JSON, token=False)
        await site.service.audit.flush()
        rows = await site.service.sessions.do(lambda store: store.audit())
        told = [(one.person, one.method, one.path, one.status, one.address) for one in reversed(rows)]
        assert told == [
            ("ada", "POST", "/api/v1/login", 401, "127.0.0.1"),
            ("ada", "POST", "/api/v1/login", 201, "127.0.0.1"),
            ("ada", "DELETE", "/api/v1/login", 204, "127.0.0.1"),
            ("", "POST", "/api/v1/users", 401, "127.0.0.1"),
        ]
        assert [one.status for one in caplog.records if one.name == "moorage.audit"] == [401, 201, 204, 401]


async def test_a_flood_of_strangers_fills_no_disk_and_hides_nobody_elses_changes(site):
    async with site.running():
        await ada(site)
        for number in range(STRANGERS.burst + 5):
            await site.ask(f"/api/v1/users/{number}", method="POST", body=b"{}", headers=JSON, token=False)
        token = (await log_in(site)).json["token"]
        await site.ask("/api/v1/login", method="DELETE", headers=bearer(token), token=False)
        site.service.audit.sum_up()
        await site.service.audit.flush()
        rows = await site.service.sessions.do(lambda store: store.audit(limit=2 * STRANGERS.burst))
        assert len(rows) == STRANGERS.burst + 3
        assert rows[0].what.startswith("5 more requests of strangers were refused")
        assert [(one.person, one.method) for one in rows[1:3]] == [("ada", "DELETE"), ("ada", "POST")]


async def test_the_audit_log_is_for_who_may_get_it(site):
    async with site.running():
        kube = bearer("kube-token")
        assert (await site.ask("/api/v1/audit", headers=kube, token=False)).status == 403
        assert (
            await site.ask("/api/v1/audit?since=24h&action=x")
        ).status == 403  # the page's token stands for nobody


@pytest.mark.parametrize(
    ("headers", "is_same"),
    [
        ({"origin": "http://a:1", "host": "a:1"}, True),
        ({"sec-fetch-site": "same-origin", "host": "a"}, True),
        ({"origin": "http://A", "host": "a:80"}, True),
        ({"origin": "https://a:1", "host": "a:1"}, False),  # another scheme is another site
        ({"origin": "https://a", "sec-fetch-site": "same-origin", "host": "a"}, True),  # a proxy is before us
        ({"origin": "http://a", "host": "a", "x-forwarded-proto": "https"}, True),  # no proxy is known here
        ({"origin": "http://u@a", "host": "a"}, False),
        ({"origin": "http://a.", "host": "a"}, False),
        ({"origin": "null", "sec-fetch-site": "same-origin", "host": "a"}, False),
        ({"origin": "http://a:2", "host": "a:1"}, False),
        ({"origin": "http://a:1", "sec-fetch-site": "same-site", "host": "a:1"}, False),
        ({"sec-fetch-site": "none", "host": "a"}, False),
        ({"host": "a"}, False),
    ],
)
def test_the_origin_of_a_change(headers, is_same):
    from starlette.datastructures import Headers

    assert is_same_origin(Headers(headers), "http") is is_same


async def test_a_persons_token_for_the_cluster_is_believed_for_ten_seconds(site):
    async with site.running():
        await ada(site, "ml")
        site.api.users["of-ada"] = account_user("ada")
        told = (await whoami(site, bearer("of-ada"))).json
        assert (told["name"], told["account"], told["groups"]) == ("ada", account_user("ada"), ["moorage.dev:ml"])
        del site.api.users["of-ada"]
        site.clock.advance(9)
        assert (await whoami(site, bearer("of-ada"))).status == 200
        site.clock.advance(2)
        assert (await whoami(site, bearer("of-ada"))).status == 401


async def a_socket(site, **headers):
    """What a request for a WebSocket is answered."""
    said = []
    scope = {
        "type": "websocket",
        "path": "/api/v1/nowhere",
        "raw_path": b"/api/v1/nowhere",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8080"), *((k.encode(), v.encode()) for k, v in headers.items())],
        "client": ("127.0.0.1", 5000),
        "server": ("127.0.0.1", 8080),
        "scheme": "ws",
        "subprotocols": [],
    }

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        said.append(message)

    await site.service.app(scope, receive, send)
    return said


async def test_a_websocket_is_asked_who_it_is_and_where_its_page_came_from(site):
    async with site.running():
        await ada(site)
        token = (await log_in(site)).json["token"]
        assert await a_socket(site) == [{"type": "websocket.close", "code": 1008}]
        cookie = f"moorage_login={token}"
        refused = await a_socket(site, cookie=cookie, origin="http://evil.example")
        assert refused == [{"type": "websocket.close", "code": 1008}]
        (closed,) = await a_socket(site, cookie=cookie, origin="http://127.0.0.1:8080")
        assert closed.get("code") != 1008  # let in, and there is nothing
        await site.service.audit.flush()
        rows = await site.service.sessions.do(lambda store: store.audit())
        assert [(one.person, one.status) for one in rows if one.method == "CONNECT"][1:] == [
            ("ada", 403),
            ("", 401),
        ]


# --- the store


@pytest.fixture
def store(tmp_path):
    found = open_sessions(tmp_path / "people.db")
    yield found
    found.close()


def test_the_file_is_its_owners_and_holds_no_token(tmp_path, store):
    token = new_token()
    store.add_code(token, b"x", NOON + timedelta(minutes=1), NOON)
    for path in tmp_path.glob("people.db*"):
        assert path.stat().st_mode & 0o077 == 0, path
        assert token.encode() not in path.read_bytes()
    assert len(digest(token)) == 32


def test_a_transaction_that_changes_nothing_is_not_written(tmp_path, store):
    store.add_code("a", b"x", NOON + timedelta(minutes=1), NOON)
    before = read_mark(tmp_path / "people.db")
    assert not store.remove("none")
    assert not store.gave_token("none", NOON)
    assert read_mark(tmp_path / "people.db") == before


def test_a_code_is_good_once_and_not_for_long(store):
    store.add_code("a", b"x", NOON + timedelta(minutes=1), NOON)
    assert store.take_code("a", NOON) == b"x"
    assert store.take_code("a", NOON) is None
    store.add_code("b", b"x", NOON + timedelta(minutes=1), NOON)
    assert store.take_code("b", NOON + timedelta(minutes=1)) is None


def test_old_audit_rows_are_forgotten_and_pages_go_on_where_they_ended(store):
    rows = [
        AuditEntry(at=NOON + timedelta(days=day), person="ada", method="POST", path=f"/{day}", status=200)
        for day in range(5)
    ]
    store.note(rows)
    first = store.audit(limit=2)
    assert [one.path for one in first] == ["/4", "/3"]
    assert [one.path for one in store.audit(limit=2, before=first[-1].number)] == ["/2", "/1"]
    assert store.forget_audit(NOON + timedelta(days=3)) == 3
    assert len(store.audit(person="ada", since=NOON)) == 2


async def test_a_database_that_cannot_be_opened_is_tried_again(tmp_path):
    folder = tmp_path / "not yet"
    sessions = Sessions(folder / "people.db")
    with pytest.raises(StorageError):
        await sessions.do(lambda store: store.all())
    folder.mkdir()
    assert await sessions.do(lambda store: store.all()) == []
    sessions.close()
