"""`moor cost compare --jobs`: a list of jobs as one writes it in YAML."""

from __future__ import annotations

import pytest

PATH = "/api/v1/cost/compare"
PRICES = "source: list\ndate: 2026-04-01\ncurrency: USD\npods:\n- {cpu: 0.04, memory: 0.005}\n"
PRICED = {"source": "list", "date": "2026-04-01", "currency": "USD"}
PERIOD = {"since": "2026-01-01T00:00:00Z", "until": "2026-01-31T00:00:00Z", "isMonth": True}
COMPARED = PERIOD | {"nodePrices": PRICED, "podPrices": PRICED, "nodes": "10.00", "idle": "1.00", "pods": "5.00"}


@pytest.fixture
def compare(moor, tmp_path):
    """Type it with this text as the list of jobs."""

    def typed(jobs):
        (tmp_path / "prices.yaml").write_text(PRICES)
        (tmp_path / "jobs.yaml").write_text(jobs)
        moor.server.answers[PATH] = COMPARED
        prices, jobs = (str(tmp_path / name) for name in ("prices.yaml", "jobs.yaml"))
        return moor("cost", "compare", "--node-billing", prices, "--pod-billing", prices, "--jobs", jobs)

    return typed


def test_quantities_of_jobs_are_numbers_or_texts(moor, compare):
    done = compare(
        "- {name: nightly, cpu: 4, memory: 8Gi, seconds: 3600, times: 30}\n- {name: b, seconds: 60, cpu: 0.5}"
    )
    assert done.code == 0, done.err
    nightly, other = moor.server.asked[-1][1]["jobs"]
    assert (nightly["cpu"], nightly["memory"], other["cpu"]) == ("4", "8Gi", "0.5")


def test_the_list_that_the_hint_shows_is_one(compare):
    refused = compare("- {name: nightly, memory: []}")
    assert (refused.code, "is not a list of jobs" in refused.err) == (2, True)
    shown = next(line for line in refused.err.splitlines() if line.startswith("hint: ")).removeprefix("hint: ")
    assert compare(shown).code == 0
