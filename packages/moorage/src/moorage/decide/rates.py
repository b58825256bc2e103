"""Rate limits of requests: a token bucket that is filled at a steady rate.

https://en.wikipedia.org/wiki/Token_bucket
"""

from __future__ import annotations

from msgspec import Struct

from moorage_kube.errors import UsageError


class Rate(Struct, frozen=True, kw_only=True):
    """A rate limit: `per_second` requests on average, `burst` at once. Zero per second means no limit."""

    per_second: float = 50.0
    burst: int = 200

    def __post_init__(self) -> None:
        if not (0 <= self.per_second <= 1e6 and 1 <= self.burst <= 10**6):
            raise UsageError(
                f"invalid rate: {self.per_second} requests per second with bursts of {self.burst}",
                hint="use 0 (no limit) to 1000000 per second, and bursts of 1 to 1000000",
            )


class Bucket(Struct, frozen=True):
    """The number of tokens at one moment (monotonic seconds)."""

    tokens: float
    at: float


def take(bucket: Bucket | None, rate: Rate, now: float) -> tuple[Bucket, float]:
    """Take one request from a bucket: the new bucket, and 0 or the seconds until the next try is allowed.

    A refused request takes nothing. None is a full bucket. A clock that is set back adds nothing.
    """
    held = rate.burst if bucket is None else bucket.tokens + max(0.0, now - bucket.at) * rate.per_second
    at = now if bucket is None else max(now, bucket.at)
    held = min(float(rate.burst), held)
    if held >= 1.0:
        return Bucket(held - 1.0, at), 0.0
    return Bucket(held, at), (1.0 - held) / rate.per_second


def give_back(bucket: Bucket, rate: Rate) -> Bucket:
    """Return one token to the bucket, up to its burst, because a request does not count after all."""
    return Bucket(min(float(rate.burst), bucket.tokens + 1.0), bucket.at)
