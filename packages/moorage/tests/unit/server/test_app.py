from __future__ import annotations

from urllib.parse import urlsplit

from starlette.routing import Match, Route

from moorage.server.app import site_pages
from tests.pageaddresses import OTHERS, PAGES


def test_a_browser_looks_at_every_page(site):
    """Each page has an address in the list of the test in the browser, or a reason why it has none."""
    parts = {page.path for page in site_pages() if page.live}  # of pages
    routes = [
        route
        for route in site.service.app.routes
        if isinstance(route, Route) and "GET" in (route.methods or ()) and route.path not in parts
    ]
    opened = set()
    for address in PAGES:
        scope = {"type": "http", "method": "GET", "path": urlsplit(address).path, "headers": []}
        matching = [route.path for route in routes if route.matches(scope)[0] is Match.FULL]
        assert matching, f"{address} is the address of no page"
        opened.add(matching[0])
    excuses = {route.path: _excuse(route.path) for route in routes}
    forgotten = [path for path, excuse in excuses.items() if path not in opened and not excuse]
    assert forgotten == [], "add an address of each to tests/pageaddresses.py"
    assert set(OTHERS) == set(excuses.values()) - {""}, "these have no route any more"
    assert not opened & set(OTHERS)


def _excuse(path):
    """The entry of OTHERS that holds for a path; empty: none."""
    for other in OTHERS:
        if path == other or (other.endswith("/") and path.startswith(other)):
            return other
    return ""
