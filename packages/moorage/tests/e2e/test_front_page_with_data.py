"""The front page and a run's page in Chromium, where prices, a policy for idle work and a budget are at work."""

from __future__ import annotations

import itertools
import json
import sys

import pytest

from moorage_kube.testing.waiting import read_until
from moorage_testing.cluster import find_kubectl
from tests.e2e.test_cost_as_typed import PRICES
from tests.e2e.test_pages_in_browser import DOUBLED, LOOKS, OUTSIDE, SERIOUS, WIDTHS, Person, axe_source, kubectl

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(find_kubectl() is None, reason="kubectl is not installed"),
]
API = "moorage.dev/v1alpha1"
IDLE_POLICY = {
    "apiVersion": API,
    "kind": "IdlePolicy",
    "metadata": {"name": "short"},
    "spec": {"warnAfter": "1m", "idle": {"window": "30s"}},
}
BUDGET = {
    "apiVersion": API,
    "kind": "Budget",
    "metadata": {"name": "small"},
    "spec": {"users": ["*"], "period": "month", "gpuHours": "0.001", "whenOver": "warn"},
}
BURN = "import time\nwhile True: sum(range(10**6)); time.sleep(0.1)"  # a fifth of a processor: other tests run too


@pytest.mark.parametrize("own_cluster", [("--nodes", "1", "--gpus", "2", "--gpu-type", "a100")], indirect=True)
def test_idle_work_cost_budgets_and_utilisation_have_their_places(own_cluster, browser, tmp_path):
    """Readings come every half minute, and work is idle after a minute: this takes some."""
    moor = own_cluster.moor
    for obj in (IDLE_POLICY, BUDGET):
        kubectl(own_cluster, "apply", "-f", "-", obj=obj)
    prices = tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    moor("cost", "prices", str(prices))
    ask = ("run", "--gpus", "1", "--cpu", "100m", "--memory", "64Mi")
    moor(*ask, "--name", "busy", "--", sys.executable, "-c", BURN)
    moor(*ask, "--name", "stalls", "--", "sleep", "100000")

    def held_idle():
        return [row["name"] for row in json.loads(moor("idle", "-o", "json").stdout)]

    def over():
        return any(row["percent"] >= 100 for row in json.loads(moor("budget", "list", "-o", "json").stdout))

    read_until(held_idle, lambda names: "stalls" in names, patience=600.0)
    read_until(over, bool, patience=300.0)
    person = Person(own_cluster, browser)
    page, axe = person.page, axe_source()
    for (scheme, _, language), width in itertools.product(LOOKS, WIDTHS):
        where = f"{scheme} {width} {language}"
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        person.context.add_cookies([{"name": "moorage_language", "value": language, "url": person.base}])
        person.go("/")
        page.locator("#glance-work").get_by_role("link", name="stalls", exact=True).wait_for()
        page.locator("#glance-cost .budgets .b-over").wait_for()
        page.locator("#glance-cost a[href='/rightsize']").wait_for()
        page.locator("#glance-history figure[data-drawn='1'] canvas").first.wait_for()
        measured = page.locator(".tile.measured .use")
        measured.nth(1).wait_for()
        assert sorted(text.endswith("%") for text in measured.all_inner_texts()) == [True, True], where
        check(page, axe, where)
        person.go("/jobs/default/busy")
        page.locator("#live-use figure[data-drawn='1'] canvas").nth(2).wait_for()
        check(page, axe, where)
    person.go("/")
    page.locator("#glance-work").get_by_role("link", name="stalls", exact=True).click()
    page.locator("h1", has_text="stalls").wait_for()
    assert person.trouble == []


def check(page, axe, where):
    page.evaluate(axe)
    assert page.evaluate(SERIOUS) == [], where
    assert page.evaluate(DOUBLED) == [], where
    assert page.evaluate(OUTSIDE) == [], where
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width, where
