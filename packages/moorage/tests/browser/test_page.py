"""The web page in a real browser."""

from __future__ import annotations

import asyncio
import contextlib
import re

import pytest

from moorage_kube.resources import JOBS, NODES, PODS
from moorage_kube.testing.ports import free_ports
from moorage_kube.testing.waiting import PATIENCE_SECONDS
from tests.browser.conftest import Scene, a_node

pytestmark = [pytest.mark.browser, pytest.mark.anyio]


@contextlib.asynccontextmanager
async def looking(chromium, site, *, signed_in=True, quiet=True, **options):
    """The page, open; with `quiet` it fails when the browser reported an error on its console."""
    context = await chromium.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
    context.set_default_timeout(PATIENCE_SECONDS * 1000)
    page = await context.new_page()
    trouble = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda said: trouble.append(said.text) if said.type in ("error", "warning") else None)
    try:
        await page.goto(site.base + (f"/?token={site.token}" if signed_in else "/"))
        if signed_in:
            await page.wait_for_selector("#live[data-state=live]")
        yield page
        if quiet:
            assert trouble == []
    finally:
        await context.close()


async def seventh(page):
    """Wait for a seventh free GPU. (No wait_for_function: the page's own policy forbids eval.)"""
    await page.locator(".tile.free").nth(6).wait_for()


async def test_the_printed_address_opens_the_page_and_the_token_leaves_it(chromium, site):
    async with looking(chromium, site) as page:
        assert page.url == f"{site.base}/"
        assert await page.locator("#live-words").inner_text() == "Live"
        cookies = await page.context.cookies()
        assert [(one["httpOnly"], one["sameSite"], site.token in one["value"]) for one in cookies] == [
            (True, "Strict", False)
        ]
        assert await page.evaluate("document.cookie") == ""
        await page.reload()
        assert await page.locator(".tile").count() == 22


async def test_without_the_token_the_page_says_where_to_find_it(chromium, site):
    async with looking(chromium, site, signed_in=False, quiet=False) as page:
        assert "needs its token" in await page.locator("h1").inner_text()


async def test_every_gpu_is_shown_free_or_whose(chromium, site):
    async with looking(chromium, site) as page:
        assert await page.locator(".tile.used").count() == 15
        assert await page.locator(".tile.free").count() == 6
        assert await page.locator(".tile.none").count() == 1
        first = await page.locator(".tile.used").first.inner_text()
        assert "ada.lovelace" in first
        assert "llm-sft-7b" in first
        assert "left" in first
        assert await page.locator("#h-queue + div tbody tr").count() == 3
        assert await page.locator(".users").first.locator("tbody tr").count() == 6
        assert await page.locator(".users").last.locator("tbody tr").count() == 3


async def test_a_change_in_the_cluster_is_seen_without_a_reload(chromium, site):
    async with looking(chromium, site) as page:
        await page.evaluate("window.untouched = true")
        site.api.remove(PODS, "eval-suite-x1", "vision")
        await seventh(page)
        assert await page.evaluate("window.untouched") is True
        seven = re.compile("^7 of 22 GPUs free")
        await page.locator("[aria-live=polite][sse-swap=spoken]", has_text=seven).wait_for(state="attached")


ROWS = "[...document.querySelectorAll('[sse-swap~=\"runs,rows-runs\"] tbody tr')].map(row => row.innerText)"


async def test_a_run_appears_changes_and_vanishes_in_the_list_and_no_other_row_is_touched(chromium, site):
    async with looking(chromium, site) as page:
        runs, waiting = page.locator("section[aria-labelledby=h-runs]"), page.locator("#h-queue + div")
        mika = runs.locator("tr", has_text="detector-yolo")
        await mika.evaluate("row => row.untouched = true")
        await mika.get_by_role("link", name="detector-yolo").focus()
        scene = Scene(site.api)
        scene.run("fresh", "lena", 8, "Tesla-T4")
        fresh = runs.locator("tr", has_text="fresh")
        await fresh.get_by_text("waiting").wait_for()
        await waiting.locator("tr", has_text="fresh").wait_for()
        scene.run("fresh", "lena", 1, "Tesla-T4", node="gpu-t-01", ago=0.1)
        await fresh.get_by_text("running").wait_for()
        await waiting.locator("tr", has_text="fresh").wait_for(state="detached")
        assert await page.evaluate("document.activeElement.innerText") == "detector-yolo"
        assert await mika.evaluate("row => row.untouched")
        scene.run("detector-yolo", "mika", 2, node="gpu-a-01", ago=1.4, state="Succeeded")
        await mika.get_by_text("succeeded").wait_for()
        assert await page.evaluate("document.activeElement.innerText") == "detector-yolo"
        site.api.remove(PODS, "fresh-x1", "vision")
        site.api.remove(JOBS, "fresh", "vision")
        await fresh.wait_for(state="detached")
        live = await page.evaluate(ROWS)
        await page.reload()
        assert [without_times(row) for row in live] == [without_times(row) for row in await page.evaluate(ROWS)]


def without_times(text):
    return re.sub(r"\d+[smhd]", "", text).split()


async def test_the_page_says_when_the_server_is_gone_and_comes_back_with_it(chromium, tmp_path, start_site):
    (port,) = free_ports(1)
    async with contextlib.AsyncExitStack() as stack:
        async with start_site(tmp_path, port=port) as first:
            page = await stack.enter_async_context(looking(chromium, first, quiet=False))
            assert await page.locator(".tile").count() == 22
        await page.wait_for_selector("#live[data-state=lost]")
        assert await page.locator("#live-words").inner_text() == "Reconnecting…"
        assert await page.locator(".tile").count() == 22
        async with start_site(tmp_path, port=port) as second:
            await page.wait_for_selector("#live[data-state=live]")
            second.api.remove(PODS, "eval-suite-x1", "vision")
            await seventh(page)
            Scene(second.api).run("after", "lena", 0, node="gpu-a-01")
            await page.locator("section[aria-labelledby=h-runs] tr", has_text="after").wait_for()
            assert await page.locator("section[aria-labelledby=h-runs] tbody tr").count() == 14


PIECE = '<ul class="nodes"><li class="node card" sse-swap="node-n">{}</li></ul>'


async def test_a_piece_that_changes_just_after_what_holds_it_was_drawn_anew_is_not_lost(chromium, site):
    """Whole parts and their pieces come one after the other, and a browser may read both at once."""
    async with looking(chromium, site, quiet=False) as page:
        sent = f"event: gpus\ndata: {PIECE.format('before')}\n\nevent: node-n\ndata: after\n\n"
        answer = {"content_type": "text/event-stream", "body": sent}
        await page.route("**/events/page**", lambda route: route.fulfill(**answer))
        await page.reload()
        await page.locator("#gpus .node", has_text=re.compile("before|after")).wait_for()
        await page.locator("#gpus .node", has_text="after").wait_for()


async def test_nothing_runs_off_the_screen(chromium, site):
    async with looking(chromium, site) as page:
        for width in (320, 390, 768, 820, 1024, 1920):
            await page.set_viewport_size({"width": width, "height": 800})
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            outside = """() => [...document.querySelectorAll('.tile, .pill, h2, h4, .big')].filter(
                one => one.getBoundingClientRect().right > innerWidth + 1).map(one => one.textContent.trim())"""
            assert await page.evaluate(outside) == [], width


CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = (colours) => {  // painted one over the other
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (c) => {
    const [r, g, b] = c.map(v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const poor = [];
  for (const one of document.querySelectorAll('main *, .top *, footer *')) {
    const own = [...one.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || one.closest('.spoken') || !one.getClientRects().length) continue;
    const behind = [];
    for (let at = one; at; at = at.parentElement) behind.unshift(getComputedStyle(at).backgroundColor);
    const back = rgb(['white', ...behind]), ink = rgb(['white', ...behind, getComputedStyle(one).color]);
    const [high, low] = [light(back), light(ink)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const text = one.textContent.trim().slice(0, 20);
    if (ratio < 4.5) poor.push(`${one.className || one.tagName}: ${text} ${ratio.toFixed(2)}`);
  }
  return [...new Set(poor)];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_text_stands_out_enough_to_be_read(chromium, site, scheme):
    """WCAG 2.2 AA: a contrast of 4.5 to 1."""
    async with looking(chromium, site, color_scheme=scheme) as page:
        assert await page.evaluate(CONTRAST) == []


async def test_a_screen_reader_meets_headings_lists_and_tables(chromium, site):
    async with looking(chromium, site) as page:
        assert await page.locator("h1").count() == 1
        assert await page.get_by_role("table").count() == 4
        names = await page.get_by_role("table").evaluate_all("all => all.map(one => one.caption.innerText)")
        assert all(names)
        await page.set_viewport_size({"width": 390, "height": 800})
        assert await page.get_by_role("row").count() > 10  # tables stay tables when laid out as cards
        assert await page.get_by_role("progressbar").count() == 12  # GPUs whose holder gave a time limit
        levels = await page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(one => +one.tagName[1])")
        assert all(later - sooner <= 1 for sooner, later in zip(levels, levels[1:], strict=False))


async def test_the_keyboard_reaches_the_content_first(chromium, site):
    async with looking(chromium, site) as page:
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        await page.keyboard.press("Enter")
        await page.locator("#main:focus").wait_for()


async def test_the_page_is_whole_without_javascript(chromium, site):
    context = await chromium.new_context(java_script_enabled=False)
    context.set_default_timeout(PATIENCE_SECONDS * 1000)
    page = await context.new_page()
    await page.goto(f"{site.base}/?token={site.token}")
    assert await page.locator(".tile").count() == 22
    assert await page.locator("noscript").count() == 4
    await context.close()


async def test_many_viewers_share_the_rendering(chromium, site):
    async with contextlib.AsyncExitStack() as stack:
        pages = [await stack.enter_async_context(looking(chromium, site)) for _ in range(3)]
        site.api.remove(PODS, "eval-suite-x1", "vision")
        await asyncio.gather(*(seventh(page) for page in pages))


async def test_in_a_large_cluster_the_keyboard_goes_from_node_to_node_and_from_gpu_to_gpu(chromium, site):
    for at in range(12):
        site.api.put(NODES, a_node(f"many-{at:02}", 8, "NVIDIA-H100"))
    site.api.remove(PODS, "eval-suite-x1", "vision")
    async with looking(chromium, site) as page:
        await page.locator(".dots .cell").nth(117).wait_for()
        assert await page.locator(".cell").count() == 118
        assert await page.locator(".cell > [tabindex='0']").count() == 16  # a node each
        first = page.locator(".cell > *").first
        name = await first.get_attribute("aria-label")
        assert name.startswith("GPU 0: ada.lovelace, llm-sft-7b")
        assert await first.inner_text() == "AL"
        await first.focus()
        await page.keyboard.press("ArrowRight")
        label = await page.evaluate("document.activeElement.ariaLabel")
        assert label.startswith("GPU 1: ada.lovelace, llm-sft-7b")
        await page.keyboard.press("End")
        assert (await page.evaluate("document.activeElement.ariaLabel")).startswith("GPU 7")
        site.api.remove(PODS, "detector-yolo-x1", "vision")  # on this node: it is drawn anew
        await page.locator(".node").first.locator(".cell.free").nth(3).wait_for()
        assert (await page.evaluate("document.activeElement.ariaLabel")).startswith("GPU 7")
        await page.keyboard.press("ArrowRight")
        assert (await page.evaluate("document.activeElement.ariaLabel")).startswith("GPU 0: sofia")


async def test_language_and_colours_are_chosen_at_the_foot_and_kept(chromium, site):
    async with looking(chromium, site) as page:
        await page.select_option("#look-language", "ja")
        await page.select_option("#look-theme", "dark")
        await page.click(".looks button")
        await page.wait_for_selector("html[lang=ja][data-theme=dark]")
        dark = await page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        await page.goto(f"{site.base}/jobs")
        assert await page.locator("html").get_attribute("lang") == "ja"
        assert await page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == dark
        await page.select_option("#look-theme", "light")
        await page.click(".looks button")
        await page.wait_for_selector("html[data-theme=light]")
        assert await page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != dark
