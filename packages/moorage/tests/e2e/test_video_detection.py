"""`examples/video-detection` as its README says: a video through the page, workers 1 → 4 → 2 while it runs.

The video is drawn here, so what moves in it is known. The GPUs are simulated: each worker holds one and computes
on the CPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from moorage_kube.remote.client import KubeClient
from moorage_kube.testing import waiting
from moorage_kube.testing.ports import free_ports
from moorage_testing.cluster import Cluster

with mock.patch.dict(os.environ):  # OpenCV puts its folder into LD_LIBRARY_PATH, which runs and maps pass on
    cv2 = pytest.importorskip("cv2", reason="opencv-python-headless is not installed")
np = pytest.importorskip("numpy", reason="numpy is not installed")

EXAMPLE = Path(__file__).parents[4] / "examples/video-detection"
FRAMES, WIDTH, HEIGHT = 240, 640, 360
PATIENCE = 300.0  # seconds; only bounds a hang
until = partial(waiting.read_until, patience=PATIENCE)
Place = tuple[int, int, int, int]  # x, y, width, height
HELD = """
import pathlib, time
import detect

LIMIT = pathlib.Path({limit!r})

def find(item):
    while item["frame"] >= int(LIMIT.read_text()):
        time.sleep(0.05)
    return detect.find(item)
"""  # what happens while the video is detected does not hang on how fast the machine is


def film(path: Path, frames: int) -> list[list[Place]]:
    """A camera that stands still, a cart that drives through, and a person who walks; where both are, by frame."""
    still = np.full((HEIGHT, WIDTH, 3), 185, np.uint8)
    still[250:] = 120
    cv2.rectangle(still, (250, 40), (330, 120), (150, 165, 170), -1)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 25, (WIDTH, HEIGHT))
    assert writer.isOpened()
    truth = []
    for number in range(frames):
        image = still.copy()
        cart = (20 + 7 * number % 540, 290, 70, 40)
        person = (30 + 3 * number % 520, 90, 60, 160)
        draw_person(image, person)
        cv2.rectangle(image, cart[:2], (cart[0] + cart[2], cart[1] + cart[3]), (30, 30, 200), -1)
        writer.write(image)
        truth.append([cart, person])
    writer.release()
    return truth


def draw_person(image: Any, place: Place) -> None:
    """Head, body, arms and legs, as tall and wide as `place`."""
    left, top, width, height = place
    middle, scale, colour = left + width // 2, height / 112, (50, 40, 40)

    def at(x: float, y: float) -> tuple[int, int]:
        return round(middle + x * scale), round(top + y * scale)

    cv2.circle(image, at(0, 10), round(10 * scale), colour, -1, cv2.LINE_AA)
    cv2.ellipse(image, at(0, 42), (round(15 * scale), round(26 * scale)), 0, 0, 360, colour, -1, cv2.LINE_AA)
    for side in (-1, 1):
        cv2.line(image, at(5 * side, 56), at(8 * side, 107), colour, round(10 * scale), cv2.LINE_AA)
        cv2.line(image, at(13 * side, 26), at(17 * side, 60), colour, round(6 * scale), cv2.LINE_AA)


def load(name: str) -> ModuleType:
    """A module of the example, which is no package."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def as_box(place: Place) -> dict[str, Any]:
    return dict(zip(("x", "y", "width", "height"), place, strict=True))


def frames_right(detect: ModuleType, truth: list[list[Place]], results: list[dict[str, Any]]) -> float:
    """Share of the frames in which each thing has a box that overlaps it by half."""
    right = 0
    for result in results:
        places = truth[result["frame"]]
        right += all(any(detect.overlap(as_box(place), box) >= 0.5 for box in result["boxes"]) for place in places)
    return right / len(results)


def test_a_video_is_cut_and_each_frame_has_its_boxes(tmp_path, monkeypatch):
    monkeypatch.setenv("VIDEO_FOLDER", str(tmp_path))
    app, detect = load("app"), load("detect")
    (tmp_path / "a1").mkdir()
    truth = film(tmp_path / "film.mp4", 120)
    (tmp_path / "film.mp4").rename(tmp_path / "a1/original")
    batches: dict[str, list[dict[str, Any]]] = {}

    def add(items: list[dict[str, Any]], request: str) -> None:
        assert batches.setdefault(request, items) == items, "a batch of one id is the same each time"

    for _ in range(2):  # a second time, as after a kill
        video = app.Video("a1", "film.mp4")
        app.cut(video, tmp_path / "a1", add, lambda: None)
        assert (video.frames, video.width, video.height, video.cut) == (120, WIDTH, HEIGHT, True)
    items = [item for batch in batches.values() for item in batch]
    assert items == [{"video": "a1", "frame": number} for number in range(120)]
    results = [detect.find(item) for item in items[::4]]
    assert frames_right(detect, truth, results) >= 0.95
    assert {box["label"] for result in results for box in result["boxes"]} == {"person", "moving"}
    assert not video.add(results[0]) or not video.add(results[0]), "a frame counts once"


def test_a_result_that_comes_while_another_is_sent_is_sent_at_once(tmp_path):
    app = load("app")

    async def follow() -> str:
        videos = app.Videos(tmp_path)
        videos.by_id["a1"] = app.Video("a1", "film.mp4")
        request = SimpleNamespace(
            app=SimpleNamespace(state=SimpleNamespace(videos=videos)), query_params={"video": "a1"}
        )
        answer = await app.events(request)
        lines = aiter(answer.body_iterator)
        await anext(lines)
        videos.take([{"video": "a1", "frame": 7}])  # before the reader asks for more
        asking = asyncio.ensure_future(anext(lines))
        await asyncio.wait({asking}, timeout=app.ALIVE_SECONDS / 3)
        assert asking.done()
        return await asking

    assert '"frame": 7' in asyncio.run(follow())


def test_what_is_no_video_and_an_unknown_detector_are_refused(tmp_path, monkeypatch):
    app, detect = load("app"), load("detect")
    (tmp_path / "original").write_bytes(b"not a film")
    with pytest.raises(ValueError, match="no video that OpenCV can read"):
        app.cut(app.Video("a1", "x"), tmp_path, lambda *_: None, lambda: None)
    monkeypatch.setenv("DETECTOR", "magic")
    with pytest.raises(ValueError, match="invalid DETECTOR 'magic': use auto, opencv or torch"):
        detect.chosen()


# --- the whole path


class Scene:
    """The cluster as its person sees it."""

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster, self.address = cluster, address
        page = json.loads(cluster.moor("status", "-o", "json").stdout)["page"]
        self.server, _, self.token = page.partition("/?token=")

    def map(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.cluster.moor("map", "status", "detect", "-o", "json").stdout)
        return shown

    def holders(self) -> dict[str, list[str]]:
        """Node → pods that hold its GPUs, by `moor gpus`."""
        gpus = json.loads(self.cluster.moor("gpus", "-o", "json").stdout)
        nodes: dict[str, list[str]] = {gpu["node"]: [] for gpu in gpus}
        for gpu in gpus:
            if gpu["state"] == "used":
                nodes[gpu["node"]].append(gpu["pod"])
        return nodes

    def used(self) -> list[int]:
        """GPUs in use by node, the fullest first; `moor gpus` and the metric must agree before it is believed."""
        by_command = {node: len(pods) for node, pods in self.holders().items()}
        asked = urllib.request.Request(f"{self.server}/metrics", headers={"authorization": f"Bearer {self.token}"})
        with urllib.request.urlopen(asked) as answer:
            text = answer.read().decode()
        found = re.findall(r'^moorage_gpus\{node="([^"]+)",state="used",type="[^"]*"\} ([\d.]+)$', text, re.M)
        by_metric = {node: int(float(value)) for node, value in found}
        return sorted(by_command.values(), reverse=True) if by_metric == by_command else []

    def boxes(self, video: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.address}/videos/{video}/boxes") as answer:
            answered: dict[str, Any] = json.load(answer)
        return answered


async def an_account(cluster: Cluster) -> str:
    """Make the account of the example's manifest, with its rights; a token, as of `kubectl create token`."""
    import yaml

    from moorage_kube.resources import Resource

    rbac = "rbac.authorization.k8s.io"
    resources = {
        "ServiceAccount": Resource("", "v1", "serviceaccounts", "ServiceAccount"),
        "Role": Resource(rbac, "v1", "roles", "Role"),
        "RoleBinding": Resource(rbac, "v1", "rolebindings", "RoleBinding"),
    }
    async with KubeClient.from_kubeconfig(cluster.kubeconfig) as api:
        for document in yaml.safe_load_all((EXAMPLE / "app.yaml").read_text()):
            if document["kind"] in resources:
                for subject in document.get("subjects") or ():
                    subject["namespace"] = "default"  # as kubectl apply -n fills it in
                await api.create(resources[document["kind"]], document, "default")
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        answer = await api.create_subresource(resources["ServiceAccount"], "video", "token", request, "default")
    return str(answer["status"]["token"])


@contextlib.contextmanager
def forwarded(cluster: Cluster) -> Iterator[str]:
    """The address of the page while `moor port-forward` runs."""
    (port,) = free_ports(1)
    typed = [sys.executable, "-m", "moorage.cli.main", "port-forward", "video", f"{port}:8000"]
    child = subprocess.Popen(typed, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=cluster.environment())
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with contextlib.suppress(OSError):
            with urllib.request.urlopen(address) as answer:
                return bool(answer.status == 200)
        return False

    try:
        until(answers, lambda ready: ready)
        yield address
    finally:
        child.terminate()
        child.communicate()


def kill_processes_of(pod: str) -> int:
    """kill -9 to each process of a pod of the local cluster; how many."""
    killed = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"MOORAGE_POD={pod}\0".encode() in (folder / "environ").read_bytes() + b"\0":
                os.kill(int(folder.name), signal.SIGKILL)
                killed += 1
    return killed


@pytest.mark.browser
@pytest.mark.timeout(900)
@pytest.mark.parametrize("own_cluster", [("--nodes", "2", "--gpus", "4", "--gpu-type", "a100")], indirect=True)
def test_workers_come_and_go_while_a_video_is_detected_and_no_frame_is_lost(own_cluster, browser, tmp_path):
    cluster = own_cluster
    truth = film(tmp_path / "street.mp4", FRAMES)
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    example = shutil.copytree(EXAMPLE, tmp_path / "example")
    (example / "held.py").write_text(HELD.format(limit=str(tmp_path / "limit")))

    def allow(frames: int) -> None:
        (tmp_path / "limit.new").write_text(str(frames))
        (tmp_path / "limit.new").rename(tmp_path / "limit")

    allow(FRAMES // 6)

    # as the README says
    cluster.moor("volume", "create", "video", "--size", "5Gi", "--access-mode", "rwx")
    size = ("--gpus", "1", "--cpu", "500m", "--memory", "1Gi")
    cluster.moor(
        *("map", "create", "detect", "--open", *size, "--volume", "video:/video", "--function", "held:find"),
        cwd=example,
        env=env,
    )
    page_url = json.loads(cluster.moor("status", "-o", "json").stdout)["page"]
    with ThreadPoolExecutor(1) as thread:  # the browser's own loop is in this one
        token = thread.submit(lambda: asyncio.run(an_account(cluster))).result()
    access = {"MOORAGE_SERVER": page_url.partition("/?")[0], "MOORAGE_TOKEN": token}
    words = ("--cpu", "1", "--memory", "1Gi", "--volume", "video:/video")
    words += ("--env", "MOORAGE_SERVER", "--env", "MOORAGE_TOKEN")
    cluster.moor("run", "--name", "video", *words, "--", "python", "app.py", cwd=EXAMPLE, env=env | access)

    with forwarded(cluster) as address:
        scene = Scene(cluster, address)
        page = browser.new_page(viewport={"width": 1100, "height": 1000})
        page.set_default_timeout(PATIENCE * 1000)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        page.locator("#file").set_input_files(tmp_path / "street.mp4")
        page.get_by_role("button", name="Upload").click()
        page.locator("#picture[data-boxes]:not([data-boxes='0'])").wait_for()

        assert until(scene.used, lambda used: used == [1, 0])
        cluster.moor("map", "scale", "detect", "4")
        until(scene.used, lambda used: used == [4, 0])  # packed: the other node stays empty
        allow(FRAMES // 2)
        rows = page.locator("#workers tr")
        until(rows.count, lambda count: count >= 4)

        # one of them dies without a word
        (pods,) = [pods for pods in scene.holders().values() if pods]
        assert kill_processes_of(pods[0])
        until(
            scene.holders,
            lambda nodes: sum(map(len, nodes.values())) == 4 and pods[0] not in sum(nodes.values(), []),
        )

        cluster.moor("map", "scale", "detect", "2")
        until(scene.used, lambda used: used == [2, 0])
        assert scene.map()["counts"]["done"] < FRAMES, "all this happened while it ran"
        if shots := os.environ.get("MOORAGE_TEST_PICTURES"):
            page.screenshot(path=f"{shots}/video-detection.png")

        allow(FRAMES)
        page.locator("#player[data-whole=true]").wait_for()
        assert page.locator("#progress").inner_text() == f"{FRAMES} of {FRAMES} frames, all done"
        assert not problems
        (video,) = {result["video"] for result in scene_results(scene, page)}
        answered = scene.boxes(video)

    results = answered["results"]
    assert [result["frame"] for result in results] == list(range(FRAMES)), "each frame once"
    assert not [result for result in results if result.get("problem")]
    assert frames_right(load("detect"), truth, results) >= 0.95
    assert len({result["worker"] for result in results}) >= 4
    counts = scene.map()["counts"]
    assert (counts["total"], counts["done"], counts["dead"]) == (FRAMES, FRAMES, 0)
    assert counts["lost"] <= 20, "no more than a batch of the killed worker is done again"


def scene_results(scene: Scene, page: Any) -> list[dict[str, Any]]:
    """The results that the page has, as it got them."""
    video = page.evaluate("chosen")
    results: list[dict[str, Any]] = scene.boxes(video)["results"]
    assert page.evaluate("results.size") == len(results)
    return results
