"""The web pages as each role sees them: buttons that work, links that lead somewhere, light, dark, on a phone.

One tenant with an admin, a member and a viewer, and who administers the cluster.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from moorage.model.people import PEOPLE_NAMESPACE, account_name
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import Resource
from moorage_kube.testing.waiting import wait_until
from tests.e2e.test_pages_in_browser import TWO_FRAMES

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

PATIENCE = 120_000  # milliseconds
BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
PASSWORD = "a password of some length"
ROLES = ("admin", "member", "viewer")
CLUSTER = "cluster"  # the role of who administers the cluster
VIEWS = (("light", 1280), ("dark", 1280), ("light", 390))  # a page is loaded for the first; changed for the others
PAGES = (
    "/",
    "/workspaces",
    "/jobs",
    "/jobs?whose=all",
    "/rightsize",
    "/volumes",
    "/datasets",
    "/secrets",
    "/maps",
    "/workflows",
    "/crons",
)
ADMIN_PAGES = ("users", "tenants", "budgets", "idle", "nodes", "machines", "reservations", "audit")
# moorage-machines lets everybody who is logged in list two of these; members see their own tenants and budgets
SEEN_BY_ALL = {"tenants", "budgets", "machines", "reservations"}
OUTSIDE = """() => [...document.querySelectorAll('main *, .top *')].filter(one => !one.closest('.spoken') &&
  !one.closest('pre, thead, .scroll, caption, svg, table') && one.getClientRects().length &&
  one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 120))"""
UNNAMED = """() => [...document.querySelectorAll(
  'input:not([type=hidden]), select, textarea, button, a')].filter(one => {
  const label = one.labels && one.labels.length ? one.labels[0].textContent : '';
  return !(label || one.getAttribute('aria-label') || (one.matches('a, button') && one.textContent)).trim();
}).map(one => one.outerHTML)"""
DOUBLED = """() => { const ids = [...document.querySelectorAll('[id]')].map(one => one.id);
  return ids.filter((id, at) => ids.indexOf(id) !== at); }"""
FAINT = """() => {
  const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const numbers = color => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = color; pen.fillRect(0, 0, 1, 1);
    return pen.getImageData(0, 0, 1, 1).data; };
  const linear = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = color => { const [r, g, b] = [...numbers(color)].map(v => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = one => { for (; one; one = one.parentElement) {
    const color = getComputedStyle(one).backgroundColor; if (numbers(color)[3] === 255) return color; }
    return 'white'; };
  return [...document.querySelectorAll('main *, .top *')].filter(one => !one.closest('.spoken, svg') &&
    one.getClientRects().length && [...one.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
    .filter(one => { const [a, b] = [light(getComputedStyle(one).color), light(ground(one))];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.3; })
    .map(one => one.outerHTML.slice(0, 100)); }"""


@dataclass(frozen=True)
class Answer:
    status: int
    text: str


class Site:
    """The server, and a session of each role."""

    def __init__(self, base: str, tokens: Mapping[str, str]) -> None:
        self.base = base
        self.tokens = tokens

    def ask(self, role: str, path: str, form: Mapping[str, str] | None = None) -> Answer:
        """As a browser asks that follows no redirect; a form is posted."""
        headers = {"authorization": f"Bearer {self.tokens[role]}", "accept": "text/html"}
        data = None if form is None else urllib.parse.urlencode(form).encode()
        request = urllib.request.Request(self.base + path, data=data, headers=headers)
        try:
            with urllib.request.build_opener(Unmoved).open(request, timeout=120) as answer:
                return Answer(answer.status, answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode())


class Unmoved(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@pytest.fixture
def site(own_cluster: Any) -> Site:
    cluster = own_cluster
    people = {"admin": "tess", "member": "mia", "viewer": "vera", CLUSTER: "clio"}
    for name in people.values():
        cluster.moor("user", "create", name, "--password-stdin", stdin=PASSWORD + "\n")
    cluster.moor("tenant", "create", "team", "--admin", "tess", "--member", "mia", "--quota", "requests.cpu=64")
    cluster.moor("tenant", "add", "team", "--user", "vera", "--role", "viewer")
    bind_cluster_admin(cluster, "clio")
    wait_until("the tenant", lambda: "True" in cluster.moor("tenant", "list").stdout)
    for role in people:
        sleep = ("python3", "-c", "import time; time.sleep(3600)")
        cluster.moor("run", "-n", "team", "--name", f"train-{role}", "--cpu", "100m", "--", *sleep)
        cluster.moor("volume", "create", f"data-{role}", "-n", "team", "--size", "1Gi")
        source = ("--source", "https://nowhere.invalid/x/", "--size", "1Gi")
        cluster.moor("dataset", "create", f"images-{role}", "-n", "team", *source)
        cluster.moor("workspace", "create", f"lab-{role}", "-n", "team", "--type", "codeserver", "--stopped")
        items = ("--range", "0:9", "--cpu", "100m", "--", "sleep", "3600")
        cluster.moor("map", "create", f"squares-{role}", "-n", "team", *items)
    base = json.loads(cluster.moor("status", "--data", str(cluster.home), "-o", "json").stdout)["page"]
    base = base.partition("/?")[0]
    return Site(base, {role: log_in(base, name) for role, name in people.items()})


def bind_cluster_admin(cluster: Any, person: str) -> None:
    obj = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"admin-{person}"},
        "subjects": [
            {"kind": "ServiceAccount", "name": account_name(person), "namespace": PEOPLE_NAMESPACE},
        ],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    }

    async def work() -> None:
        async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
            await api.create(BINDINGS, obj)

    with ThreadPoolExecutor(1) as thread:  # Playwright has an event loop in this one
        thread.submit(asyncio.run, work()).result()


def log_in(base: str, name: str) -> str:
    body = json.dumps({"username": name, "password": PASSWORD}).encode()
    request = urllib.request.Request(
        f"{base}/api/v1/login", data=body, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return str(json.loads(answer.read())["token"])


# (page, what shows the control, what pressing it asks for, form). Each role has a run and a volume of its own;
# the other presses are refused for another reason than rights, or change nothing that the next role needs.
CONTROLS = (
    ("/volumes", 'href="/volumes/team/data-{role}/resize"', "/volumes/team/data-{role}/resize", {"size": "2Gi"}),
    ("/volumes", 'id="new"', "/volumes", {"name": "data-{role}", "namespace": "team", "size": "1Gi"}),
    ("/admin/users", 'id="new"', "/admin/users", {"name": "mia"}),
    ("/admin/users/mia", 'id="disable"', "/admin/users/mia/enable", {}),
    ("/admin/users/mia", 'id="groups"', "/admin/users/mia/groups", {"groups": ""}),
    ("/admin/tenants", 'id="new"', "/admin/tenants", {"name": "team"}),
    ("/admin/tenants/team", 'id="add"', "/admin/tenants/team/add", {"role": "member", "people": "mia"}),
    ("/admin/tenants/team", 'id="change"', "/admin/tenants/team/change", {"quota": "gpu=8"}),
    (
        "/admin/budgets",
        'id="new"',
        "/admin/new-budget",
        {"name": "month-{role}", "users": "mia", "gpuHours": "500"},
    ),
    ("/admin/idle", 'id="new"', "/admin/new-idle-policy", {"name": "gpus-{role}", "warnAfter": "4h"}),
    ("/admin/nodes", "/drain", "/admin/nodes/none/uncordon", {}),
    ("/admin/audit", 'id="h-audit"', "/admin/audit", None),
    (
        "/datasets",
        'href="/datasets/team/images-{role}/delete"',
        "/datasets/team/images-{role}/delete",
        {"force": "yes"},
    ),
    ("/jobs?whose=all", 'href="/jobs/team/train-{role}/cancel"', "/jobs/team/train-{role}/cancel", {}),
    ("/volumes", 'href="/volumes/team/data-{role}/delete"', "/volumes/team/data-{role}/delete", {}),
    ("/jobs", 'id="new"', "/jobs/new", {"command": "true", "namespace": "team", "do": "check"}),
    (
        "/secrets",
        'id="new"',
        "/secrets/new",
        {"name": "more-{role}", "namespace": "team", "key": "KEY", "value": "value"},
    ),
    (
        "/maps",
        'id="new"',
        "/maps/new",
        {"name": "more-{role}", "command": "true {{item}}", "namespace": "team", "range": "0:1"},
    ),
    (
        "/datasets",
        'id="new"',
        "/datasets/new",
        {"name": "more-{role}", "url": "volume:none", "namespace": "team", "size": "1Gi"},
    ),
    ("/workspaces", 'id="make"', "/workspaces", {"name": "lab-{role}", "namespace": "team", "kind": "codeserver"}),
    (
        "/workspaces",
        'action="/workspaces/team/lab-{role}/start"',
        "/workspaces/team/lab-{role}/start",
        {},
    ),
    (
        "/workspaces/team/lab-{role}",
        'href="/workspaces/team/lab-{role}/delete"',
        "/workspaces/team/lab-{role}/delete",
        {},
    ),
    ("/maps/team/squares-{role}", 'id="pause"', "/maps/team/squares-{role}/pause", {}),
    ("/maps/team/squares-{role}", 'id="workers"', "/maps/team/squares-{role}/workers", {"workers": "2"}),
    ("/maps/team/squares-{role}", 'id="cancel"', "/maps/team/squares-{role}/cancel", {}),
    ("/maps/team/squares-{role}", 'id="delete"', "/maps/team/squares-{role}/delete", {}),
)
# Pages that ask before something is done: who may not do it gets none.
ASKING = (
    ("/jobs?whose=all", "/jobs/team/train-{role}/cancel"),
    ("/workspaces", "/workspaces/team/lab-{role}/delete"),
    ("/volumes", "/volumes/team/data-{role}/resize"),
    ("/volumes", "/volumes/team/data-{role}/delete"),
    ("/datasets", "/datasets/team/images-{role}/delete"),
    ("/maps/team/squares-{role}", "/maps/team/squares-{role}/cancel"),
    ("/maps/team/squares-{role}", "/maps/team/squares-{role}/delete"),
    ("/admin/users/mia", "/admin/users/mia/disable"),
    ("/admin/tenants/team", "/admin/tenants/team/change"),
    ("/admin/nodes", "/admin/nodes/node-1/drain"),
)


def test_pages_and_buttons_are_sound_for_every_role(site: Site, browser: Any) -> None:
    """On one site, which takes a minute to make: first every page is looked at, then every button is pressed."""
    assert {role: walk(site, browser, role) for role in (*ROLES, CLUSTER)} == dict.fromkeys((*ROLES, CLUSTER), [])
    assert differences(site) == []


def differences(site: Site) -> list[tuple[object, ...]]:
    """Buttons that are shown to somebody whom they are refused, or hidden from somebody who may."""
    wrong: list[tuple[object, ...]] = []
    for role in (*ROLES, CLUSTER):
        for page, asking in ASKING:
            to = asking.format(role=role)
            shown, status = (
                f'href="{to}"' in site.ask(role, page.format(role=role)).text,
                site.ask(role, to).status,
            )
            if shown != (status == 200):
                wrong.append((role, to, shown, status))
        for page, mark, path, form in CONTROLS:
            filled = {key: value.format(role=role) for key, value in form.items()} if form is not None else None
            shown = mark.format(role=role) in site.ask(role, page.format(role=role)).text
            answer = site.ask(role, path.format(role=role), filled)
            if shown == (answer.status == 403):
                wrong.append((role, page, mark, shown, answer.status))
    return wrong


def walk(site: Site, browser: Any, role: str) -> list[object]:
    """Look at every page that the role has a link to, in every view; what is wrong with them."""
    context = browser.new_context()
    context.add_cookies([{"name": "moorage_login", "value": site.tokens[role], "url": site.base}])
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    trouble: list[str] = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("console", lambda said: trouble.append(said.text) if said.type in ("error", "warning") else None)
    page.goto(f"{site.base}/")
    links = page.locator("nav[aria-label=Administration] a").evaluate_all("all => all.map(a => a.pathname)")
    wanted = ADMIN_PAGES if role == CLUSTER else tuple(name for name in ADMIN_PAGES if name in SEEN_BY_ALL)
    assert links == [f"/admin/{name}" for name in wanted]
    mine = ["/admin/tenants/team", *(["/admin/users/mia"] if role == CLUSTER else [])]
    known: set[str] = set()
    faults: list[object] = []
    for path in (*PAGES, "/jobs/team/train-viewer", "/explain/team/train-viewer", *links, *mine):
        for scheme, width in VIEWS:
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})
            if (scheme, width) == VIEWS[0]:
                page.goto(site.base + path)
            page.evaluate(TWO_FRAMES)  # charts are told of their new width while a frame is drawn
            where = f"{path} {scheme} {width}"
            for name, found in (
                ("headings", page.locator("h1").count() - 1),
                ("wide", max(0, page.evaluate("document.documentElement.scrollWidth") - width)),
                ("outside", page.evaluate(OUTSIDE)),
                ("unnamed", page.evaluate(UNNAMED)),
                ("doubled", page.evaluate(DOUBLED)),
                ("faint", page.evaluate(FAINT)),
                ("console", list(trouble)),
            ):
                if found:
                    faults.append((where, name, found))
            trouble.clear()
            if folder := os.environ.get("MOORAGE_SCREENSHOTS"):
                name = re.sub(r"[^a-z]+", "-", path).strip("-") or "gpus"
                page.screenshot(path=f"{folder}/{role}-{name}-{scheme}-{width}.png", full_page=True)
        known |= set(page.locator("a[href]").evaluate_all("all => all.map(a => a.pathname + a.search)"))
    dead = [(path, status) for path in sorted(known) if (status := site.ask(role, path).status) != 200]
    context.close()
    return [*faults, *dead]
