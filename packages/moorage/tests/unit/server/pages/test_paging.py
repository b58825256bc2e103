"""Lists on pages: the search, the state, the page and the links to the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.server.pages.paging import PAGE_SIZE, Wanted, address, page_of, wanted_of

ROWS = [("team/alpha", "Running"), ("team/beta", "Failed"), ("lab/Alpha-2", "Running")]


def listed(rows, wanted):
    return page_of(
        rows, wanted, "/jobs", words=lambda row: (row[0],), state=lambda row: row[1], states=("Running",)
    )


@pytest.mark.parametrize(
    ("query", "want"),
    [
        ({}, Wanted()),
        ({"q": "  a   b ", "state": " Running ", "page": "3"}, Wanted(text="a b", state="Running", page=3)),
        ({"page": "0"}, Wanted()),
        ({"page": "-1"}, Wanted()),
        ({"page": "x"}, Wanted()),
        ({"page": "٣"}, Wanted()),
        ({"page": "9" * 5000}, Wanted()),
        ({"q": "x" * 500}, Wanted(text="x" * 200)),
    ],
)
def test_what_an_address_asks_for_is_bounded(query, want):
    assert wanted_of(query) == want


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Wanted(), ["team/alpha", "team/beta", "lab/Alpha-2"]),
        (Wanted(text="ALPHA"), ["team/alpha", "lab/Alpha-2"]),
        (Wanted(text="alpha team"), ["team/alpha"]),
        (Wanted(state="Failed"), ["team/beta"]),
        (Wanted(text="alpha", state="Failed"), []),
        (Wanted(state="<b>"), []),
    ],
)
def test_each_word_is_searched_for_in_any_case_and_the_state_is_exact(wanted, names):
    shown = listed(ROWS, wanted)
    assert [row[0] for row in shown.rows] == names
    assert (shown.matched, shown.total, shown.is_filtered) == (len(names), 3, wanted != Wanted())


def test_the_links_keep_the_search_and_what_else_the_address_had():
    rows = [(f"run-{number}", "Running") for number in range(120)]
    shown = listed(rows, Wanted(text="run", state="Running", page=2, more=(("whose", "all"),)))
    assert (shown.first, shown.last, shown.pages) == (51, 100, 3)
    assert shown.previous == "/jobs?whose=all&q=run&state=Running"
    assert shown.following == "/jobs?whose=all&q=run&state=Running&page=3"
    assert shown.unfiltered == "/jobs?whose=all"
    assert address("/jobs", [("q", "a&b=<c>")]) == "/jobs?q=a%26b%3D%3Cc%3E"


@given(count=st.integers(0, 400), page=st.integers(1, 20))
def test_every_row_is_on_one_page_and_each_page_knows_its_neighbours(count, page):
    rows = [(str(number), "Running") for number in range(count)]
    shown = listed(rows, Wanted(page=page))
    assert len(shown.rows) == (shown.last - shown.first + 1 if count else 0) <= PAGE_SIZE
    assert bool(shown.following) == (shown.last < count)
    assert bool(shown.previous) == (shown.first > 1)
    everything = [row for number in range(1, shown.pages + 1) for row in listed(rows, Wanted(page=number)).rows]
    assert everything == rows


@pytest.mark.anyio
async def test_the_page_and_its_live_part_show_the_same_of_what_is_searched_for(site):
    for number in range(60):
        site.run(f"job-{number:03}", pod=False)
    site.run("other", owner="ben", pod=False)
    site.api.with_token = lambda token, *_: site.api
    site.api.readers |= {("ada", None)}
    async with site.running():
        page = (await site.ask("/jobs?page=2")).page
        assert page.texts(".pager .more") == ["51–61 of 61 runs"]
        assert page.links(".pager") == [("Previous", "/jobs?whose=all")]
        caption = "Runs: those at work first, then those that ended"
        searched = (await site.ask("/jobs?q=ben&whose=all")).page
        live = (await site.ask("/jobs/live?q=ben&whose=all&page=7")).page
        assert searched.element("#find-q").attributes["value"] == "ben"
        assert [row["Run"] for row in searched.rows(caption)] == ["other ben lab"]
        assert live.rows(caption) == searched.rows(caption)
        assert live.texts(".pager .more") == ["1 run found, 61 in all. Show all"]
        none = (await site.ask("/jobs?q=%3Cscript%3E")).text
        assert ("No run matches “&lt;script&gt;”" in none, "<script>" in none) == (True, False)
        for path in ("/maps", "/workspaces", "/volumes", "/datasets"):
            for part in ("", "/live"):
                answer = await site.ask(
                    f"{path}{part}?q=x&state=Running&page=2", headers={"authorization": "Bearer kube-token"}
                )
                assert answer.status == 200, answer.text
