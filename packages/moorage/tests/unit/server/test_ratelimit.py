"""How often one person may ask, and what `Idempotency-Key` does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.rates import Bucket, Rate, take
from moorage.server.ratelimit import KEPT, Limiter, rate_settings
from moorage.server.service import ServerService
from moorage_kube.errors import UsageError
from moorage_kube.testing.clock import FakeClock

SLOW = Rate(per_second=2.0, burst=3)


@given(
    pauses=st.lists(st.floats(-5, 20), max_size=60),
    per_second=st.floats(0.1, 100),
    burst=st.integers(1, 50),
)
def test_no_stretch_of_time_sees_more_than_a_burst_and_the_rate(pauses, per_second, burst):
    rate, bucket, now = Rate(per_second=per_second, burst=burst), None, 1000.0
    seen, newest = [], -math.inf
    for pause in pauses:
        now += pause
        newest = max(newest, now)
        bucket, wait = take(bucket, rate, now)
        assert 0.0 <= bucket.tokens <= burst
        if wait:
            assert wait <= 1.0 / per_second + 1e-6
        else:
            seen.append(newest)
    for first, began in enumerate(seen):
        for last in range(first, len(seen)):
            assert last - first + 1 <= burst + (seen[last] - began) * per_second + 1e-6


@given(tokens=st.floats(0, 0.999), per_second=st.floats(0.1, 1000))
def test_who_waits_as_long_as_told_is_let_in(tokens, per_second):
    rate = Rate(per_second=per_second, burst=5)
    bucket, wait = take(Bucket(tokens, 10.0), rate, 10.0)
    assert wait > 0
    assert take(bucket, rate, 10.0 + wait * 1.000001 + 1e-9)[1] == 0.0


def test_each_has_a_bucket_of_their_own_and_the_silent_are_forgotten():
    clock = FakeClock()
    limiter = Limiter(SLOW, clock=clock)
    assert [limiter.ask("ada") > 0 for _ in range(4)] == [False, False, False, True]
    assert limiter.ask("ben") == 0
    assert limiter.refused == 1
    clock.advance(0.5)
    assert limiter.ask("ada") == 0
    for number in range(KEPT + 10):
        limiter.ask(str(number))
    assert len(limiter._buckets) == KEPT


def test_a_rate_of_zero_is_no_limit():
    limiter = Limiter(Rate(per_second=0, burst=1))
    assert not any(limiter.ask("ada") for _ in range(1000))


@pytest.mark.parametrize(
    "env", [{"MOORAGE_RATE_LIMIT": "much"}, {"MOORAGE_RATE_LIMIT": "-1"}, {"MOORAGE_RATE_BURST": "0"}]
)
def test_a_rate_that_cannot_be_is_refused(env):
    with pytest.raises(UsageError):
        rate_settings(env)


@pytest.fixture
def limited(site, tmp_path):
    site.service.usage.close()
    (tmp_path / "limited").mkdir()
    site.service = ServerService(
        site.api, usage_db=tmp_path / "limited/usage.db", page_token=site.token, clock=site.clock, rate=SLOW
    )
    return site


@pytest.mark.anyio
async def test_a_stranger_with_a_network_of_addresses_is_one_stranger(limited):
    async with limited.running():
        answers = [await limited.ask("/login", token=False, client=f"2001:db8:0:7::{n}") for n in range(4)]
        assert [one.status for one in answers] == [200, 200, 200, 429]
        assert (await limited.ask("/login", token=False, client="2001:db8:0:8::1")).status == 200


@pytest.mark.anyio
async def test_who_asks_too_often_is_told_when_to_come_again(limited):
    ada = {"authorization": "Bearer kube-token"}
    async with limited.running():
        answers = [await limited.ask("/api/v1/jobs", headers=ada) for _ in range(5)]
        assert [one.status for one in answers] == [200, 200, 200, 429, 429]
        assert answers[-1].json["code"] == "too_many_requests"
        assert answers[-1].headers["retry-after"] == "1"
        assert answers[-1].headers["x-content-type-options"] == "nosniff"
        assert (await limited.ask("/api/v1/jobs")).status == 200  # another person
        for path in ("/healthz", "/api/v1/work", "/api/v1/runs/lab/r1/checkpoint"):
            method = "GET" if path == "/healthz" else "POST"
            for _ in range(5):
                assert (await limited.ask(path, method=method, headers=ada)).status != 429
        assert "moorage_requests_limited_total 2.0" in (await limited.ask("/metrics")).text
        limited.clock.advance(1)
        assert (await limited.ask("/api/v1/jobs", headers=ada)).status == 200
