"""The policy of a map, as rows of older releases have it."""

from __future__ import annotations

import json
from dataclasses import asdict

from moorage.decide.maps.leasing import Policy
from moorage.queue.policies import read_policy, write_policy


def test_a_policy_is_read_as_it_was_written():
    policy = Policy(retries=5, time_seconds=9.0, max_memory_bytes=2**30, limits={"mysql": 2}, rate=3.0)
    assert read_policy(json.dumps(asdict(policy))) == policy
    assert read_policy(write_policy(policy)) == policy


def test_a_policy_with_the_names_of_before_keeps_its_limits():
    text = '{"retries":5,"timeout_seconds":9.0,"memory_limit_bytes":64,"backoff_limit_seconds":7.0}'
    assert read_policy(text) == Policy(retries=5, time_seconds=9.0, max_memory_bytes=64, max_backoff_seconds=7.0)


def test_a_policy_is_written_with_the_names_of_before_too():
    fields = json.loads(write_policy(Policy(time_seconds=9.0, max_memory_bytes=64, max_backoff_seconds=7.0)))
    old = {name: fields[name] for name in ("timeout_seconds", "memory_limit_bytes", "backoff_limit_seconds")}
    assert old == {"timeout_seconds": 9.0, "memory_limit_bytes": 64, "backoff_limit_seconds": 7.0}
    assert set(fields) - set(old) == set(asdict(Policy()))
