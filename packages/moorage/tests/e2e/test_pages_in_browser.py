"""The pages of what is people's own, in Chromium, on a local cluster: by keyboard, narrow, in both schemes."""

from __future__ import annotations

import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
import yaml

from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import UNIFORM, find_kubectl, local_cluster
from moorage_testing.gitserver import git_server
from moorage_testing.plugin import short_folder
from tests.pageaddresses import PAGES

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_kubectl() is None, reason="kubectl is not installed"),
]

PATIENCE = 120_000  # milliseconds; a browser and a cluster on a busy machine
LIGHT = {
    "command": ["sh", "-c", "cd $(HOME) && exec python3 -m http.server --bind $(POD_IP) $(MOORAGE_PORT)"],
    "ready": "/",
}
DIAMOND = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: diamond}
spec:
  entrypoint: main
  templates:
    - name: main
      dag:
        tasks:
          - {name: a, template: echo}
          - {name: b, template: echo, depends: a}
          - {name: fan, template: echo, depends: a, withSequence: {count: "8"}}
          - {name: d, template: echo, depends: b && fan}
    - name: echo
      container: {image: busybox, command: [echo, "hello from a step"]}
"""
NIGHTLY = """
apiVersion: argoproj.io/v1alpha1
kind: CronWorkflow
metadata: {name: nightly}
spec:
  schedules: ["0 3 * * *"]
  timezone: Asia/Tokyo
  workflowSpec:
    entrypoint: main
    templates: [{name: main, container: {image: busybox, command: ["true"]}}]
"""
PAUSED = """
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: paused}
spec:
  entrypoint: main
  templates:
    - {name: main, steps: [[{name: wait, template: wait}]]}
    - {name: wait, suspend: {}}
"""
STEPS = "import time\nfor i in range(3600): print('step', i, flush=True); time.sleep(1)"
LOOKS = (("light", 1200, "en"), ("dark", 360, "ja"))  # in which a page is loaded; it is laid out in both widths
WIDTHS = (1200, 360)
OPEN_ALL = "document.querySelectorAll('details').forEach(fold => { fold.open = true; })"
SERIOUS = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .filter(fault => ['serious', 'critical'].includes(fault.impact))
  .map(fault => fault.id + ': ' + fault.nodes.map(node => node.html.slice(0, 160)).join(' | '))"""
UNNAMED = """() => [...document.querySelectorAll(
  'input:not([type=hidden]), select, textarea, button, a')].filter(one => {
  const label = one.labels && one.labels.length ? one.labels[0].textContent : '';
  return !(label || one.getAttribute('aria-label') || (one.matches('a, button') && one.textContent)).trim();
}).map(one => one.outerHTML)"""
DOUBLED = """() => { const ids = [...document.querySelectorAll('[id]')].map(one => one.id);
  return ids.filter((id, at) => ids.indexOf(id) !== at); }"""
DANGLING = """() => [...document.querySelectorAll('[aria-labelledby], [aria-describedby], label[for]')]
  .flatMap(one => ((one.getAttribute('aria-labelledby') || '') + ' '
    + (one.getAttribute('aria-describedby') || '') + ' ' + (one.htmlFor || '')).split(' ')
    .filter(id => id && !document.getElementById(id)))"""
REACHABLE = """() => [...document.querySelectorAll(
  'a[href], button, input:not([type=hidden]), select, summary')].filter(
  one => one.getClientRects().length && getComputedStyle(one).visibility === 'visible').length"""
FOCUS = """() => { const one = document.activeElement;
  return one === document.body ? '' : [...document.querySelectorAll('*')].indexOf(one) + ''; }"""
OUTSIDE = """() => [...document.querySelectorAll('main *, .top *')].filter(one => !one.closest('.spoken') &&
  !one.closest('pre, thead, .scroll, caption, svg') && one.getClientRects().length &&
  one.getBoundingClientRect().right > innerWidth + 1).map(one => one.outerHTML.slice(0, 120))"""

# Sentences that are English on a page in Japanese, and do not say so.
ENGLISH = """() => { const texts = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), isEnglish = /[A-Za-z]{2,} [a-z]{2,} [a-z]{2,}/.test(text);
    const within = walker.currentNode.parentElement.closest('code, pre, textarea, script, noscript, [lang=en]');
    if (isEnglish && !within && !/[\\u3040-\\u9fff]/.test(text)) texts.push(text);
  }
  return texts; }"""


TWO_FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


@pytest.fixture(scope="module")
def shared_cluster():
    """For tests that make things of different kinds, and look at no others."""
    with short_folder() as folder, local_cluster(folder / "home") as cluster:
        yield cluster


def axe_source():
    """axe-core, as its package on PyPI carries it."""
    package = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    return (Path(package.__file__).parent / "axe.min.js").read_text()


class Person:
    """Who sits before the browser, signed in by the address that `moor up` printed."""

    def __init__(self, cluster, browser, **options):
        told = json.loads(cluster.moor("status", "--data", str(cluster.home), "-o", "json").stdout)
        self.base = told["page"].partition("/?")[0]
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.trouble = []
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on(
            "console",
            lambda said: self.trouble.append(said.text) if said.type in ("error", "warning") else None,
        )
        self.page.goto(told["page"])

    def go(self, path):
        return self.page.goto(self.base + path)

    def tab_to(self, name):
        """Press Tab until the element with this id has the focus."""
        self.page.locator(f"#{name}").wait_for()
        for _ in range(120):
            if self.page.evaluate("document.activeElement.id") == name:
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"Tab does not reach #{name}")

    def press(self, name):
        self.tab_to(name)
        self.page.keyboard.press("Enter")

    def write(self, name, text):
        self.tab_to(name)
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(text)


def kubectl(cluster, *args, obj=None):
    done = subprocess.run(
        [find_kubectl(), "--kubeconfig", str(cluster.kubeconfig), *args],
        input=json.dumps(obj) if obj is not None else None,
        text=True,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def add_template(cluster, name="light", template=LIGHT):
    kubectl(
        cluster, "apply", "-f", "-",
        obj={
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": f"template-{name}",
                "namespace": "moorage-system",
                "labels": {"moorage.dev/workspace-template": name},
            },
            "data": {"template.yaml": yaml.safe_dump(template)},
        },
    )  # fmt: skip


def test_a_workspace_is_made_opened_stopped_and_deleted_with_the_keyboard_alone(own_cluster, browser):
    cluster = own_cluster
    add_template(cluster)
    person = Person(cluster, browser)
    page = person.page
    person.go("/workspaces")
    page.get_by_text("No workspace yet").wait_for()
    assert page.locator("nav [aria-current=page]").inner_text() == "Workspaces"
    person.press("new-summary")
    person.write("f-name", "lab")
    person.tab_to("f-kind")
    page.keyboard.press("l")  # one key: of several, Chromium takes those that come late for another word
    assert page.locator("#f-kind").input_value() == "light"
    person.write("f-cpu", "100m")
    person.write("f-memory", "much")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("resources.memory").wait_for()
    assert page.locator("#f-memory").get_attribute("aria-invalid") == "true"
    assert page.locator("#f-name").input_value() == "lab"  # what was written stays
    person.trouble.clear()  # Chromium reports the 422
    person.write("f-memory", "128Mi")
    page.keyboard.press("Enter")
    page.get_by_role("status").get_by_text("default/lab is created").wait_for()
    page.locator("#live-workspaces .pill", has_text="Running").wait_for()
    person.press("open-default--lab")
    page.get_by_text("Directory listing").wait_for()
    assert "lab--default.workspace.localhost" in page.url
    person.go("/workspaces")
    person.trouble.clear()  # of the application's own page
    person.press("stop-default--lab")
    page.get_by_role("status").get_by_text("default/lab stops").wait_for()
    page.locator("#live-workspaces .pill", has_text="Stopped").wait_for()
    person.press("start-default--lab")
    page.locator("#live-workspaces .pill", has_text="Running").wait_for()
    person.press("delete-default--lab")
    page.locator("h1", has_text="Delete workspace lab?").wait_for()
    person.tab_to("f-deleteHome")
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.get_by_role("status").get_by_text("default/lab is deleted").wait_for()
    page.get_by_text("No workspace yet").wait_for()
    wait_until("the home gone", lambda: "lab-home" not in kubectl(cluster, "get", "pvc", "-o", "name"))
    assert person.trouble == []


def test_pages_of_jobs_volumes_and_datasets_serve_everybody(own_cluster, browser, tmp_path):
    cluster = own_cluster
    for name, manifest in (("diamond.yaml", DIAMOND), ("nightly.yaml", NIGHTLY), ("paused.yaml", PAUSED)):
        (tmp_path / name).write_text(manifest)
    for name in ("diamond.yaml", "paused.yaml"):
        cluster.moor("workflow", "submit", str(tmp_path / name), "--host-env")
    cluster.moor("cron", "create", str(tmp_path / "nightly.yaml"))
    cluster.moor("run", "--name", "train", "--gpus", "1", "--", "python3", "-uc", STEPS)
    cluster.moor("dataset", "create", "images", "--source", "https://nowhere.invalid/x/", "--size", "1Gi")
    cluster.moor("map", "create", "squares", "--range", "0:3", "--", "echo", "{item}")
    cluster.moor("workspace", "create", "lab", "--type", "codeserver", "--stopped")
    cluster.moor("secret", "create", "git", "GIT_TOKEN", stdin="a token\n")
    cluster.moor("user", "create", "ada", "--password-stdin", stdin="a password of some length\n")
    cluster.moor("tenant", "create", "team", "--admin", "ada", "--quota", "gpu=8")
    cluster.moor("budget", "set", "month", "--tenant", "team", "--gpu-hours", "500", "--when-over", "queue")
    cluster.moor("idle", "set", "gpus", "--warn-after", "4h", "--suspend-after", "12h", "--quiet", "20:00-08:00")
    person = Person(cluster, browser)
    page = person.page

    # volumes: made, made larger, deleted
    person.go("/volumes")
    person.press("new-summary")
    person.write("f-name", "data")
    person.write("f-size", "1Gi")
    page.keyboard.press("Enter")
    page.get_by_role("status").get_by_text("default/data is created").wait_for()
    assert "1Gi" in page.locator("#live-volumes").inner_text()

    # every page, in both schemes, wide and narrow
    axe = axe_source()
    for scheme, loaded_at, language in LOOKS:
        page.emulate_media(color_scheme=scheme)
        person.context.add_cookies([{"name": "moorage_language", "value": language, "url": person.base}])
        for path in PAGES:
            page.set_viewport_size({"width": loaded_at, "height": 800})
            answer = person.go(path)
            where = f"{path} {scheme} {language}"
            assert answer.status == 200, where
            page.evaluate(OPEN_ALL)
            assert page.locator("h1").count() == 1, where
            assert page.locator("nav.nav").first.locator("a").count() == 9, where
            assert page.locator(f"html[lang={language}]").count() == 1, where
            page.evaluate(axe)
            assert page.evaluate(SERIOUS) == [], where
            assert page.evaluate(UNNAMED) == [], where
            assert page.evaluate(DOUBLED) == [], where
            assert page.evaluate(DANGLING) == [], where
            if language == "ja":
                assert page.evaluate(ENGLISH) == [], where
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 800})
                page.evaluate(TWO_FRAMES)  # charts are told of their new width while a frame is drawn
                assert page.evaluate("document.documentElement.scrollWidth") <= width, (where, width)
                assert page.evaluate(OUTSIDE) == [], (where, width)
                if folder := os.environ.get("MOORAGE_SCREENSHOTS"):
                    name = path.strip("/").replace("/", "-").replace("?", "-") or "gpus"
                    page.screenshot(path=f"{folder}/{scheme}-{width}-{language}-{name}.png", full_page=True)
        for path in ("/jobs/default/nothing", "/nowhere"):  # what is refused is a page, too
            where = f"{path} {scheme} {language}"
            page.set_viewport_size({"width": loaded_at, "height": 800})
            assert person.go(path).status == 404, where
            page.evaluate(axe)
            assert page.evaluate(SERIOUS) == [], where
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 800})
                assert page.evaluate(OUTSIDE) == [], (where, width)
        person.trouble.clear()  # Chromium reports the 404
    person.context.add_cookies([{"name": "moorage_language", "value": "en", "url": person.base}])
    person.go("/volumes")
    page.evaluate("document.querySelector('details').open = true")  # the focus stays where a page begins
    wanted, met = page.evaluate(REACHABLE), set()
    page.keyboard.press("Tab")  # the way past the head of the page comes first
    assert page.evaluate("document.activeElement.className") == "skip"
    while (at := page.evaluate(FOCUS)) and at not in met:
        met.add(at)
        page.keyboard.press("Tab")
    assert len(met) >= wanted
    person.go("/volumes")
    person.press("resize-default--data")
    person.write("f-size", "500Mi")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("cannot make volume").wait_for()
    person.trouble.clear()  # Chromium reports the 409
    person.go("/volumes")
    person.press("delete-default--data")
    page.get_by_role("button", name="Delete").press("Enter")
    page.get_by_role("status").get_by_text("default/data is deleted").wait_for()

    # workflows: the graph goes on by itself, a box opens, and a step shows its log
    person.go("/workflows/default/diamond")
    page.locator("#live-state .pill", has_text="Succeeded").wait_for()
    page.locator("#live-graph").get_by_role("link", name="Open fan").press("Enter")
    page.locator("#live-graph").get_by_role("link", name="fan(3:3): Succeeded").press("Enter")
    page.locator("#log-text").get_by_text("hello from a step").wait_for()
    page.locator("#live-times").get_by_role("link", name="Close fan").press("Enter")
    page.locator("#live-graph").get_by_role("link", name="Open fan").wait_for()

    # jobs: the log goes on by itself, keeps the focus, and ends with the run
    person.go("/jobs")
    person.press("log-default--train")
    log = page.locator("#log-text")
    log.get_by_text("step").wait_for()
    page.wait_for_load_state()
    page.evaluate(TWO_FRAMES)  # going to #log takes the focus away, once all of the page is there
    log.focus()
    last = log.inner_text().splitlines()[-1]  # not their number: a page has the end of a long log
    wait_until("more lines", lambda: page.locator("#log-text").inner_text().splitlines()[-1] != last)
    assert page.evaluate("document.activeElement.id") == "log-text"
    person.press("cancel")
    page.get_by_role("button", name="Cancel the run").press("Enter")
    page.locator("#live-job .pill", has_text="Cancelled").wait_for()
    assert person.trouble == []

    # out
    page.get_by_role("button", name="Sign out").press("Enter")
    page.wait_for_url("**/login")
    assert person.go("/login").status == 200
    page.evaluate(axe)
    assert page.evaluate(SERIOUS) == []
    person.go("/workspaces")
    assert page.locator("h1").inner_text() in ("Sign in", "This page needs its token")


COUNT = "i=0; while true; do i=$((i+1)); echo step $i; sleep 1; done"


@pytest.mark.parametrize("own_cluster", [UNIFORM], indirect=True, ids=["two nodes"])
def test_a_newcomer_starts_a_run_sees_why_it_waits_cancels_it_and_runs_it_again(own_cluster, browser):
    cluster = own_cluster
    for number in range(4):
        cluster.moor("run", "--name", f"hog-{number}", "--gpus", "1", "--cpu", "100m", "--", "sleep", "3600")
    cluster.moor("wait", *(f"hog-{number}" for number in range(4)), "--for", "running")
    person = Person(cluster, browser)
    page = person.page
    person.go("/jobs")
    page.get_by_role("link", name="New job").click()
    page.locator("#h-gpus").get_by_text("0 of 4 are free").wait_for()

    # what is refused stands beside its field, and what was written stays
    page.locator("#f-name").fill("First")
    page.locator("#f-command").fill(COUNT)
    page.locator("#more-summary").click()
    page.locator("#f-labels").fill("project=vision\nstage=test")
    page.locator("#check").click()
    page.locator("#p-name").get_by_text("nvalid run name 'First'").wait_for()
    assert page.locator("#f-command").input_value() == COUNT
    person.trouble.clear()  # Chromium reports the 422

    # a check says what would happen, and shows the command
    page.locator("#f-name").fill("first")
    page.locator("#check").click()
    page.locator("#verdict").get_by_text("would start now").wait_for()
    line = page.locator("#line").inner_text()
    assert line.startswith("moor run -n default --name first --label project=vision --label stage=test -- sh -c")
    page.locator("#f-gpus").fill("1")
    page.locator("#check").click()
    page.locator("#verdict").get_by_text("Run default/first waits").wait_for()

    # it waits, says why, and starts by itself
    page.locator("#send").click()
    page.get_by_role("status").get_by_text("default/first is submitted").wait_for()
    page.locator("#live-job .why-line").get_by_text("waits").wait_for()
    page.locator("#live-facts").get_by_text("project=vision").wait_for()
    cluster.moor("cancel", "hog-0")
    page.locator("#log-text").get_by_text("step 2", exact=False).wait_for()
    page.locator("#live-job .pill", has_text="Running").wait_for()

    # cancelled: its log stays
    page.locator("#cancel").click()
    page.get_by_role("button", name="Cancel the run").click()
    page.locator("#live-job .pill", has_text="Cancelled").wait_for()
    page.reload()
    page.locator("#log-text").get_by_text("step 2", exact=False).wait_for()

    # again, with another command, to its end
    page.locator("#again").click()
    assert page.locator("#f-command").input_value() == COUNT
    assert page.locator("#f-labels").input_value() == "project=vision\nstage=test"
    page.locator("#f-command").fill("echo step one && echo last step")
    page.locator("#f-gpus").fill("0")
    page.locator("#send").click()
    page.locator("#live-job .pill", has_text="Succeeded").wait_for()
    page.reload()
    page.locator("#f-q").fill("LAST")
    page.locator("#search-log").click()
    page.wait_for_url("**q=LAST**")
    assert page.locator("#log-text").inner_text().strip() == "last step"
    with page.expect_download() as download:
        page.locator("#download-log").click()
    assert "step one" in download.value.path().read_text()
    assert person.trouble == []


@pytest.mark.xdist_group("pages")
def test_a_gpu_tile_leads_to_its_run_its_node_and_its_owner(shared_cluster, browser):
    shared_cluster.moor("run", "--name", "train", "--gpus", "1", "--cpu", "100m", "--", "sleep", "3600")
    person = Person(shared_cluster, browser)
    page = person.page
    tile = page.locator(".tile.used")
    tile.get_by_role("link", name="train").click()
    page.locator("h1", has_text="train").wait_for()
    node = page.locator("#live-facts a[href^='/nodes/']").first
    where = node.inner_text()
    node.click()
    page.locator("h1", has_text=where).wait_for()
    tile.get_by_role("link").first.click()
    page.locator("#live-jobs").get_by_role("link", name="train", exact=True).wait_for()
    assert person.trouble == []


@pytest.mark.xdist_group("pages")
def test_a_workspace_that_cannot_start_says_why_and_shows_its_log(shared_cluster, browser):
    cluster = shared_cluster
    broken = {**LIGHT, "command": ["sh", "-c", "echo no such program >&2; exit 3"]}
    add_template(cluster, "broken", broken)
    person = Person(cluster, browser)
    page = person.page
    person.go("/workspaces")
    page.locator("#make").click()
    page.locator("#f-name").fill("lab")
    page.locator("#f-kind").select_option("broken")
    page.locator("#f-cpu").fill("100m")
    page.locator("#f-memory").fill("128Mi")
    page.get_by_role("button", name="Create and start").click()
    page.locator("#live-workspaces .pill", has_text="Failed").wait_for()
    page.locator("#live-workspaces").get_by_role("link", name="Log").click()
    page.locator("#live-workspace").get_by_text("exit code 3").wait_for()
    page.locator("#log-text").get_by_text("no such program").wait_for()
    assert person.trouble == []


@pytest.mark.xdist_group("pages")
def test_forms_need_no_script(shared_cluster, browser):
    person = Person(shared_cluster, browser, java_script_enabled=False)
    person.go("/volumes")
    page = person.page
    page.locator("#new-summary").click()
    page.locator("#f-name").fill("plain")
    page.locator("#f-size").fill("1Gi")
    page.get_by_role("button", name="Create").click()
    page.get_by_text("default/plain is created").wait_for()


@pytest.mark.xdist_group("pages")
def test_a_newcomer_makes_a_map_and_a_dataset(shared_cluster, browser):
    person = Person(shared_cluster, browser)
    page = person.page
    person.go("/maps")
    page.get_by_role("link", name="New map").click()
    page.locator("#f-name").fill("squares")
    page.locator("#f-command").fill("python3 -c 'import sys; print(int(sys.argv[1]) ** 2)' {item}")
    page.locator("#f-range").fill("0:9")
    page.locator("#check").click()
    page.locator("#verdict").get_by_text("would be made with 9 items").wait_for()
    page.locator("#send").click()
    page.get_by_role("status").get_by_text("default/squares is created").wait_for()
    page.locator("#live-map .pill", has_text="finished").wait_for()
    with page.expect_download() as download:
        page.locator("#results").click()
    assert len(download.value.path().read_text().splitlines()) == 9
    page.locator("#items").click()
    page.locator("#f-state").select_option("done")
    page.locator("#search-items").click()
    page.wait_for_url("**state=done**")
    assert page.locator("tbody tr").count() == 9
    person.go("/datasets")
    page.get_by_role("link", name="New dataset").click()
    page.locator("#f-name").fill("images")
    page.locator("#f-url").fill("volume:nowhere")
    page.locator("#f-size").fill("1Gi")
    page.locator("#send").click()
    page.get_by_role("status").get_by_text("default/images is created").wait_for()
    page.locator("#live-dataset").get_by_text("volume:nowhere").wait_for()
    assert person.trouble == []


def test_a_newcomer_uses_files_of_a_volume(shared_cluster, browser, tmp_path):
    cluster = shared_cluster
    cluster.moor("volume", "create", "code", "--size", "1Gi")
    (tmp_path / "train.py").write_text("print('hello from the page')\n")
    (tmp_path / "weights.bin").write_bytes(bytes(range(256)) * 8192)
    person = Person(cluster, browser)
    page = person.page
    person.go("/volumes/default/code")
    person.press("files")
    person.press("open-files")  # the page shows the folder by itself when the helper pod runs
    page.locator("#f-files").set_input_files([tmp_path / "train.py", tmp_path / "weights.bin"])
    person.press("upload")
    page.get_by_role("status").get_by_text("The files are on default/code").wait_for()
    page.get_by_role("link", name="weights.bin", exact=True).press("Enter")
    page.get_by_text("This file is not text").wait_for()
    with page.expect_download() as download:
        person.press("download")
    assert Path(download.value.path()).read_bytes() == (tmp_path / "weights.bin").read_bytes()
    person.go("/volumes/default/code/files/text?path=train.py")
    assert page.locator("#text").inner_text() == "print('hello from the page')\n"

    # the code of the folder runs; a file that it lacks is refused beside the folder
    person.go("/volumes/default/code/files")
    page.get_by_role("link", name="Run the code of this folder").press("Enter")
    assert page.locator("#f-workingDir").input_value() == "code:"
    person.write("f-command", "python3 other.py")
    person.press("check")
    page.locator("#p-workingDir").get_by_text("Volume code has no file other.py").wait_for()
    person.trouble.clear()  # Chromium reports the 422
    person.write("f-command", "python3 train.py")
    person.press("check")
    page.locator("#verdict").get_by_text("would start now").wait_for()
    person.press("send")
    page.locator("#log-text").get_by_text("hello from the page").wait_for()

    # a rerun has the folder; without it, the file is missing
    person.press("again")
    assert page.locator("#f-workingDir").input_value() == "code:"
    person.write("f-workingDir", "")
    person.press("send")
    page.locator("#p-command").get_by_text("The file train.py is missing").wait_for()
    person.trouble.clear()
    person.go("/volumes/default/code/files")
    person.press("close-files")
    page.get_by_role("status").get_by_text("are closed").wait_for()
    assert person.trouble == []


@pytest.mark.xdist_group("pages")
def test_a_newcomer_uploads_code_and_runs_it(shared_cluster, browser, tmp_path):
    with zipfile.ZipFile(tmp_path / "project.zip", "w") as packed:
        packed.writestr("project/train.py", "import model; print(model.NAME)")
        packed.writestr("project/model.py", "NAME = 'uploaded code runs'")
    person = Person(shared_cluster, browser)
    page = person.page
    person.go("/jobs/new")
    page.locator("#f-upload").set_input_files(tmp_path / "project.zip")
    page.locator("#f-command").fill("python3 tain.py")
    page.locator("#check").click()
    page.locator("#p-upload").get_by_text("The upload has no file tain.py").wait_for()
    person.trouble.clear()  # Chromium reports the 422

    # the files are sent once: the form keeps them
    page.locator("#f-command").fill("python3 train.py")
    page.locator("#check").click()
    page.locator("#verdict").get_by_text("would start now").wait_for()
    page.get_by_text("2 files").wait_for()
    page.locator("#send").click()
    page.locator("#log-text").get_by_text("uploaded code runs").wait_for()
    page.locator("#again").click()
    page.get_by_text("The files that were sent with it are not sent again").wait_for()
    assert person.trouble == []


@pytest.mark.xdist_group("pages")
def test_a_newcomer_types_a_secret_and_a_run_and_a_map_use_it(shared_cluster, browser):
    person = Person(shared_cluster, browser)
    page = person.page
    person.go("/secrets")
    page.get_by_role("link", name="New secret").click()
    page.locator("#f-name").fill("hf")
    page.locator("#f-key").fill("HF_TOKEN")
    page.locator("#f-value").fill("not-for-your-eyes")
    page.locator("#f-values").fill("no sign")
    page.locator("#send").click()
    page.locator("#p-values").get_by_text("Line 1 is invalid").wait_for()
    person.trouble.clear()  # Chromium reports the 422
    assert page.locator("#f-value").input_value() == ""
    page.locator("#f-value").fill("not-for-your-eyes")
    page.locator("#send").click()
    page.get_by_role("status").get_by_text("default/hf is created").wait_for()
    assert "not-for-your-eyes" not in page.content()

    # a run gets it by its name
    person.go("/jobs/new")
    page.locator("#f-command").fill("echo ${#HF_TOKEN} characters")
    page.locator("#more-summary").click()
    page.locator("#h-secrets").get_by_text("There are hf").wait_for()
    page.locator("#f-secrets").fill("hf")
    page.locator("#send").click()
    page.locator("#log-text").get_by_text("17 characters").wait_for()
    page.locator("#live-job .pill", has_text="Succeeded").wait_for()

    # so do the items of a map
    person.go("/maps/new")
    page.locator("#f-name").fill("tokens")
    page.locator("#f-command").fill("echo ${#HF_TOKEN}{item}")
    page.locator("#f-range").fill("0:2")
    page.locator("#more-summary").click()
    page.locator("#f-secrets").fill("hf")
    page.locator("#check").click()
    page.locator("#line").get_by_text("--secret hf").wait_for()

    person.go("/secrets")
    page.get_by_role("link", name="Delete hf").click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("status").get_by_text("default/hf is deleted").wait_for()
    page.get_by_text("No secret yet").wait_for()
    assert person.trouble == []


@pytest.mark.xdist_group("pages")
def test_a_newcomer_runs_a_git_branch_and_again_its_commit(shared_cluster, browser, tmp_path):
    person = Person(shared_cluster, browser)
    page = person.page
    with git_server(tmp_path / "served") as repository:
        commit = repository.commit({"train.py": "print('the first commit')"})
        person.go("/jobs/new")
        page.locator("#f-command").fill("python3 train.py")
        page.locator("#f-git").fill(f"{repository.url}@main")
        page.locator("#send").click()
        page.locator("#log-text").get_by_text("the first commit").wait_for()
        page.locator("#live-job .pill", has_text="Succeeded").wait_for()
        page.reload()
        page.locator("#live-facts").get_by_text(f"{repository.url}@{commit}").wait_for()

        # the branch moves on; the rerun does not
        repository.commit({"train.py": "print('another commit')"})
        page.locator("#again").click()
        page.get_by_text("It uses the commit of that run").wait_for()
        assert page.locator("#f-git").input_value() == f"{repository.url}@{commit}"
        page.locator("#send").click()
        page.locator("#log-text").get_by_text("the first commit").wait_for()
        name = page.url.partition("?")[0].rpartition("/")[2]
        shown = shared_cluster.moor("show", name).stdout
        again = shared_cluster.moor("rerun", name, "--follow", "--git", f"{repository.url}@main")
    assert f"{repository.url}@{commit}" in shown
    assert "another commit" in again.stdout
    assert person.trouble == []
