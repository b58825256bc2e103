from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.server.pages.preferences import back_to
from moorage.server.pages.texts import LANGUAGES, preferred


@pytest.mark.parametrize(
    ("accept", "chosen", "want"),
    [
        ("", "", "en"),
        ("ja", "", "ja"),
        ("ja-JP,ja;q=0.9,en-US;q=0.8,en;q=0.7", "", "ja"),
        ("en-US,en;q=0.9,ja;q=0.8", "", "en"),
        ("de,fr;q=0.5", "", "en"),
        ("de, ja;q=0.5, en;q=0.4", "", "ja"),
        ("ja;q=0, en;q=0.1", "", "en"),
        ("ja;q=x, *;q=0.1", "", "en"),
        ("ja", "en", "en"),
        ("en", "ja", "ja"),
        ("en", "<script>", "en"),
    ],
)
def test_the_language_is_the_first_that_the_browser_prefers_and_we_have(accept, chosen, want):
    assert preferred(accept, chosen) == want


@given(st.text(), st.text())
def test_any_header_gives_a_language(accept, chosen):
    assert preferred(accept, chosen) in LANGUAGES


@pytest.mark.parametrize(
    ("referer", "want"),
    [
        ("http://host:80/jobs?whose=all", "/jobs?whose=all"),
        ("http://evil/jobs", "/"),
        ("http://host:80//evil", "/"),
        ("http://host:80/\\evil", "/"),
        ("", "/"),
        ("http://[", "/"),
    ],
)
def test_the_way_back_is_a_page_of_ours(referer, want):
    assert back_to(referer, "host:80") == want


@pytest.mark.anyio
async def test_what_somebody_chose_is_kept_in_cookies(site):
    async with site.running():
        answer = await site.ask("/look?language=ja&theme=dark", headers={"referer": "http://127.0.0.1:8080/jobs"})
        assert (answer.status, answer.headers["location"]) == (303, "/jobs")
        names = [cookie.partition(";")[0] for cookie in answer.cookies]
        assert names == ["moorage_language=ja", "moorage_theme=dark"]
        for cookie, attributes in (
            ("; ".join(names), {"lang": "ja", "data-theme": "dark"}), ("moorage_theme=x", {"lang": "en"}),
        ):  # fmt: skip
            page = (await site.ask("/", headers={"cookie": cookie})).page
            assert page.element("html").attributes == attributes
        odd = await site.ask("/look?language=xx&theme=", token=False)
        assert [cookie.partition(";")[0] for cookie in odd.cookies] == ['moorage_theme=""']


@pytest.mark.anyio
async def test_a_browser_gets_the_page_in_its_language(site):
    async with site.running():
        page = (await site.ask("/", headers={"accept-language": "ja-JP,ja;q=0.9"})).page
        assert page.element("html").attributes == {"lang": "ja"}
