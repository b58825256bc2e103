"""Numbers that people write into labels, annotations and headers: read where they are some, else as none."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from moorage.client.connection import _seconds
from moorage.decide.docker.containers import START_LABEL, start_of
from moorage.extender.cache import version_of
from moorage.model.names import CONTAINER_LABEL
from moorage.model.schedule import problem_of_cron
from moorage_kube.errors import MoorageError
from moorage_kube.remote.client import _retry_after
from moorage_kube.testing.clock import FakeClock
from moorage_local.apiserver.types.jsonpath import find
from moorage_local.controllers.cronjob.plan import Schedule, ScheduleError
from moorage_local.controllers.intorpercent import scaled
from moorage_local.controllers.job.plan import INDEX, completion_index
from moorage_local.ingress.http1 import BadHead, parse_request
from moorage_local.nodeagent.probes import port_of

ODD = ["²", "٣", "9" * 5000, "-1", "", "1_0", " 7", "1e3", "½"]


def a_pod(**meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", **meta}}


@pytest.mark.parametrize("text", ODD)
def test_an_odd_number_is_as_none(text: str) -> None:
    assert start_of(a_pod(labels={CONTAINER_LABEL: "c", START_LABEL: text})) == 1
    assert completion_index(a_pod(annotations={INDEX: text})) is None
    assert version_of(a_pod(resourceVersion=text)) == 0
    assert _seconds(text) is None


@pytest.mark.parametrize("text", [one for one in ODD if one])
def test_an_odd_number_is_refused_with_its_text_cut(text: str) -> None:
    for read in (lambda: scaled(text, 10, up=True), lambda: scaled(f"{text}%", 10, up=True)):
        with pytest.raises(MoorageError) as error:
            read()
        assert len(error.value.message) < 200
    with pytest.raises(ValueError, match=r"port"):
        port_of({}, text)


@pytest.mark.parametrize("text", ["²", "٣", "-1", "½"])
def test_an_odd_wait_is_none(text: str) -> None:
    assert _retry_after(text, FakeClock(datetime(2026, 1, 1, tzinfo=UTC))) is None


def test_a_wait_is_a_day_at_most() -> None:
    assert _retry_after("9" * 5000, FakeClock(datetime(2026, 1, 1, tzinfo=UTC))) == 86400
    assert _retry_after("7", FakeClock(datetime(2026, 1, 1, tzinfo=UTC))) == 7


@pytest.mark.parametrize("text", ["9" * 5000 + " * * * *", "*/" + "9" * 5000 + " * * * *", "² * * * *"])
def test_an_odd_number_in_a_schedule_is_refused(text: str) -> None:
    assert problem_of_cron(text)
    with pytest.raises(ScheduleError):
        Schedule.of({"spec": {"schedule": text}})


@pytest.mark.parametrize("inner", ["²", "9" * 5000, "-" + "9" * 30])
def test_an_odd_index_leads_nowhere(inner: str) -> None:
    assert find(f".a[{inner}]", {"a": [1, 2]}) == []


def test_a_long_text_takes_no_more_steps_than_its_length() -> None:
    # each would take more than 10^10 steps where two parts that match blanks stand side by side
    blanks = " " * 300_000
    assert find(f"[?(@.a =={blanks}b{blanks}c{blanks}", [{"a": "b"}]) == []
    assert find(f"[?(@.a=={blanks}'b'{blanks})]", [{"a": "b"}, {"a": "c"}]) == [{"a": "b"}]
    head = b"GET / HTTP/1.1\r\nHost: a\r\nX:" + b" " * 300_000 + b"a" + b" " * 300_000 + b"b" + b"\t" * 300_000
    assert dict(parse_request(head).fields)[b"X"] == b"a" + b" " * 300_000 + b"b"
    with pytest.raises(BadHead):
        parse_request(head + b"\x00")
