"""Workspaces as a person uses them: through the ingress and the platform's login, in Chromium.

JupyterLab and code-server run for real, as processes of a local cluster of their own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import find_kubectl

pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]

PATIENCE = 240_000  # milliseconds; a browser and a JupyterLab on a busy machine
PATIENCE_SECONDS = 240.0


class Person:
    """Who sits before the browser, signed in at the platform's page."""

    def __init__(self, cluster, browser):
        self.cluster = cluster
        self.page_url = json.loads(cluster.moor("status", "--data", str(cluster.home), "-o", "json").stdout)[
            "page"
        ]
        self.context = browser.new_context()
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.goto(self.page_url)

    @property
    def base(self):
        return self.page_url.partition("/?")[0]

    def open(self, name, path=""):
        """As the platform's own link does."""
        self.page.goto(f"{self.base}/open/default/{name}" + (f"?path={path}" if path else ""))


def phase(cluster, name):
    shown = cluster.moor("workspace", "show", name, "-o", "json")
    return json.loads(shown.stdout)["phase"]


def run_cell(page, text, answer):
    """Type into a notebook's last cell, run it, and wait for what it prints.

    A notebook that is still being drawn may lose the key: then once more, in whichever cell is the last now.
    """
    from playwright.sync_api import TimeoutError as Late

    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").first.wait_for()
    for _ in range(12):
        cell = page.locator(".jp-Notebook .jp-CodeCell .cm-content").last
        cell.click()
        page.keyboard.press("Control+A")
        page.keyboard.insert_text(text)
        page.locator(".jp-Notebook .cm-content", has_text=text[:12]).last.wait_for()
        page.keyboard.press("Shift+Enter")
        try:
            page.locator(".jp-OutputArea pre", has_text=answer).last.wait_for(timeout=20_000)
        except Late:
            continue
        return
    raise AssertionError(f"the cell printed no {answer!r}: {page.locator('.jp-Notebook').all_inner_texts()}")


@pytest.mark.skipif(importlib.util.find_spec("jupyterlab") is None, reason="jupyterlab is not installed")
def test_jupyterlab_runs_a_cell_and_after_a_stop_and_a_start_the_file_is_still_there(own_cluster, browser):
    cluster = own_cluster
    with_jupyter = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    size = ("--cpu", "500m", "--memory", "1Gi")
    cluster.moor("workspace", "create", "lab", *size, "--wait", timeout=300, env=with_jupyter)
    person = Person(cluster, browser)
    page = person.page
    sockets = []
    page.on("websocket", lambda one: sockets.append(one.url))
    person.open("lab")
    page.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
    run_cell(page, "open('kept.txt', 'w').write('still here'); print(6 * 7)", "42")
    assert any("/api/kernels/" in url for url in sockets)
    assert "--default.workspace.localhost" in page.url
    assert "token" not in page.url
    # what the application's own scripts can read of the platform: nothing
    assert "moorage" not in page.evaluate("document.cookie")
    # what its server gets of it: nothing
    run_cell(page, "import os; print(sorted(k for k in os.environ if 'COOKIE' in k), 'no cookie')", "no cookie")
    page.goto("about:blank")
    cluster.moor("workspace", "stop", "lab", "--wait", timeout=300)
    assert phase(cluster, "lab") == "Stopped"
    person.open("lab")
    page.get_by_text("This workspace is stopped").wait_for()
    cluster.moor("workspace", "start", "lab", "--wait", timeout=300)
    person.open("lab", "/files/kept.txt")
    page.get_by_text("still here").wait_for()


@contextlib.contextmanager
def tunnel(cluster, name):
    """The address that `moor workspace open` prints on a cluster without a domain, while the command runs."""
    typed = [sys.executable, "-m", "moorage.cli.main", "workspace", "open", name, "--print"]
    child = subprocess.Popen(typed, stdout=subprocess.PIPE, text=True, env=cluster.environment())
    try:
        yield child.stdout.readline().strip()
    finally:
        child.terminate()
        child.communicate(timeout=PATIENCE_SECONDS)


@pytest.mark.skipif(importlib.util.find_spec("jupyterlab") is None, reason="jupyterlab is not installed")
def test_without_a_domain_jupyterlab_runs_a_cell_through_the_tunnel_of_moor_workspace_open(own_cluster, browser):
    cluster = own_cluster
    subprocess.run(
        [
            find_kubectl(), "--kubeconfig", str(cluster.kubeconfig), "-n", "moorage-system",
            "patch", "configmap", "moorage", "--type=merge", "-p", '{"data": {"workspaceUrl": null}}',
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    with_jupyter = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    size = ("--cpu", "500m", "--memory", "1Gi")
    cluster.moor("workspace", "create", "lab", *size, "--wait", timeout=300, env=with_jupyter)
    assert json.loads(cluster.moor("workspace", "show", "lab", "-o", "json").stdout)["url"] == ""
    page = browser.new_context().new_page()
    page.set_default_timeout(PATIENCE)
    sockets = []
    page.on("websocket", lambda one: sockets.append(one.url))
    with tunnel(cluster, "lab") as url:
        assert "--default.tunnel.localhost:" in url
        page.goto(url)
        page.locator(".jp-LauncherCard[data-category=Notebook]").first.click()
        run_cell(page, "print(6 * 7)", "42")
        assert any("/api/kernels/" in url for url in sockets)
        assert "code=" not in page.url
        assert "token" not in page.url
        assert "moorage" not in page.evaluate("document.cookie")
        stranger = browser.new_context().new_page()
        stranger.set_default_timeout(PATIENCE)
        stranger.goto(page.url)
        stranger.get_by_text("open it again: moor workspace open lab -n default").wait_for()


def test_a_stranger_is_asked_to_sign_in_and_a_neighbours_script_gets_nothing(own_cluster, browser):
    cluster = own_cluster
    app = {
        "command": ["sh", "-c", "cd $(HOME) && exec python3 -m http.server --bind $(POD_IP) $(MOORAGE_PORT)"],
        "ready": "/",
    }
    for name in ("mine", "evil"):
        manifest = {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "Workspace",
            "metadata": {"name": name},
            "spec": {"app": app, "resources": {"cpu": "100m", "memory": "128Mi"}},
        }
        subprocess.run(
            [find_kubectl(), "--kubeconfig", str(cluster.kubeconfig), "apply", "-f", "-"],
            input=json.dumps(manifest), text=True, check=True, capture_output=True,
        )  # fmt: skip
    for name in ("mine", "evil"):
        wait_until(name, lambda name=name: phase(cluster, name) == "Running", patience=PATIENCE_SECONDS)
    url = json.loads(cluster.moor("workspace", "show", "mine", "-o", "json").stdout)["url"]
    stranger = browser.new_context().new_page()
    stranger.set_default_timeout(PATIENCE)
    stranger.goto(url)
    stranger.get_by_text("This page needs its token").or_(stranger.get_by_text("Sign in")).first.wait_for()
    assert "Directory listing" not in stranger.content()
    assert "127.0.0.1" in stranger.url
    person = Person(cluster, browser)
    person.open("mine")
    person.page.get_by_text("Directory listing").wait_for()
    person.open("evil")
    person.page.get_by_text("Directory listing").wait_for()
    asked = (
        f"fetch({url!r}, {{credentials: 'include', mode: 'no-cors'}}).then(r => r.type + r.status, e => 'refused')"
    )
    told = person.page.evaluate(asked)
    assert told in ("refused", "opaque0")
    posted = f"fetch({url!r}, {{credentials: 'include', method: 'POST'}}).then(r => r.status, e => 'refused')"
    assert person.page.evaluate(posted) in ("refused", 403)
    socket = (
        f"new Promise(done => {{ const one = new WebSocket({url.replace('http', 'ws')!r});"
        " one.onopen = () => done('open'); one.onerror = () => done('refused') })"
    )
    assert person.page.evaluate(socket) == "refused"


@pytest.mark.skipif(
    shutil.which("code-server") is None,
    reason="code-server is not on PATH (npm install -g code-server: Node 24, a C++ compiler, libkrb5-dev)",
)
def test_code_server_runs_a_command_and_after_a_stop_and_a_start_the_file_is_still_there(own_cluster, browser):
    cluster = own_cluster
    with_code = {"PATH": os.environ["PATH"]}
    size = ("--type", "codeserver", "--memory", "2Gi")
    cluster.moor("workspace", "create", "code", *size, "--wait", timeout=300, env=with_code)
    person = Person(cluster, browser)
    sockets = []
    person.page.on("websocket", lambda one: sockets.append(one.url))
    person.open("code")
    person.page.locator(".monaco-workbench").first.wait_for()
    person.page.keyboard.press("Control+Backquote")  # its terminal
    terminal = person.page.locator(".terminal-wrapper.active .xterm-helper-textarea")
    terminal.wait_for(state="attached")
    (volume,) = (Path(cluster.home) / "volumes").iterdir()
    kept = volume / "kept.txt"

    def written():
        if kept.exists() and kept.read_text() == "still 42\n":
            return True
        terminal.focus()  # other panes that open take the focus away
        person.page.keyboard.press("Control+C")
        person.page.keyboard.insert_text("echo still $((6 * 7)) > kept.txt")
        person.page.keyboard.press("Enter")
        person.page.wait_for_timeout(500)
        return False

    wait_until("the file", written, patience=PATIENCE_SECONDS)
    assert sockets
    person.page.goto("about:blank")
    cluster.moor("workspace", "stop", "code", "--wait", timeout=300)
    cluster.moor("workspace", "start", "code", "--wait", timeout=300)
    person.open("code")
    person.page.get_by_text("kept.txt").first.wait_for()
