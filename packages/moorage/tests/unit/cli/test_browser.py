"""Opening a browser: where there is one, and where there is none."""

from __future__ import annotations

import webbrowser

import pytest

from moorage.cli.browser import open_browser

URL = "http://127.0.0.1:8080/"


class Browser(webbrowser.BaseBrowser):
    def __init__(self, *, works: bool = True) -> None:
        super().__init__()
        self.works = works
        self.opened: list[str] = []

    def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
        self.opened.append(url)
        return self.works


def missing() -> webbrowser.BaseBrowser:
    raise webbrowser.Error("could not locate runnable browser")


@pytest.mark.parametrize(
    ("env", "platform"),
    [
        ({"DISPLAY": ":0"}, "linux"),
        ({"WAYLAND_DISPLAY": "w"}, "linux"),
        ({"BROWSER": "b"}, "linux"),
        ({}, "darwin"),
    ],
)
def test_a_browser_is_opened_where_there_is_a_screen(env, platform):
    browser = Browser()
    assert open_browser(URL, env=env, platform=platform, find=lambda: browser)
    assert browser.opened == [URL]


def test_without_a_screen_no_browser_of_the_terminal_takes_it_over():
    browser = Browser()
    assert not open_browser(URL, env={"TERM": "xterm"}, platform="linux", find=lambda: browser)
    assert browser.opened == []


@pytest.mark.parametrize("find", [missing, lambda: Browser(works=False)])
def test_a_browser_that_is_missing_or_fails_is_no_error(find):
    assert not open_browser(URL, env={"DISPLAY": ":0"}, platform="linux", find=find)
