"""The steps of the demo: runs, a map, a dataset, a workspace, and the page with all of them."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from moorage.api.jobs import Job
from moorage.cli.datafolder import DataFolder
from moorage.cli.demo.runner import ESSENTIAL_SECONDS, PROGRAMS, Place, Runner
from moorage.cli.session import Session, Target, open_session
from moorage.model.manifests import ROLEBINDINGS
from moorage.model.names import SYSTEM_NAMESPACE, TEMPLATE_LABEL
from moorage.model.people import subjects_of
from moorage.model.retention import USAGE_DAYS
from moorage_kube.errors import AlreadyExists, ApiError, MoorageError, NotReady
from moorage_kube.resources import CONFIGMAPS

PEOPLE = ("ada", "grace", "linus")
EPOCHS = 30
HALF = EPOCHS // 2
_HALF_WAY = re.compile(rf"epoch {HALF}/")
GRACES_EPOCH_SECONDS = 0.5  # her two GPUs are still in use when Ada's run looks for a place
LOG_SECONDS = 1.0  # between two looks at a log
ITEMS = 200
EXAM_PICTURES = 50
GPU = ("--gpu-type", "a100")
RESULT = re.compile(r"\[seed 0\] accuracy ([\d.]+) loss ([\d.]+)")


async def perform(runner: Runner) -> None:
    """Run the whole demo.

    Raises MoorageError if the interrupted training has another result than an undisturbed one.
    """
    await start_cluster(runner)
    async with open_session(Target(kubeconfig=runner.place.kubeconfig)) as session:
        await let_people_in(session)
        await show_runs(runner, session)
        await show_drain(runner, session)
        await show_map(runner)
        await show_dataset(runner)
        await show_workspace(runner, session)
        runner.step("GPU-hours of each user", f"Moorage keeps this for {USAGE_DAYS} days.")
        await runner.moor("top")
        await check_pages(runner)


async def start_cluster(runner: Runner) -> None:
    runner.step(
        "Start a cluster on this machine",
        "It has two nodes with two GPUs each. The GPUs are simulated: they are counted and assigned like",
        "real ones, but compute nothing. All else is real: your CPU runs the programs.",
    )
    ports = ("--port", "0", "--api-port", "0", "--ingress-port", "0")  # 8080 and others are left to the user
    await runner.moor("up", "--nodes", "2", "--gpus", "2", *GPU, *ports, lines=2)


async def let_people_in(session: Session) -> None:
    """Do the administrator's first step: allow these users to work in the namespace `default`."""
    binding = {
        "metadata": {"name": "team"},
        "subjects": [subject for person in PEOPLE for subject in subjects_of(person)],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
    }
    with contextlib.suppress(AlreadyExists):
        await session.api.create(ROLEBINDINGS, binding, "default")


async def show_runs(runner: Runner, session: Session) -> None:
    runner.step(
        "Ada starts a run",
        "A run is one command that the cluster executes, with limits. Ada asks for one GPU and 1 GiB of memory.",
        "--checkpoint gives it a volume that keeps its state. First a dry run: would it start now, and where?",
        "(It also prints the manifest, which is left out here.)",
    )
    limits = ("--cpu", "1", "--memory", "1Gi", "--time", "1h")
    ada = ("run", "--as", "ada", "--name", "train", "--gpus", "1", *GPU, *limits, "--checkpoint", "train-state")
    program = ("--", "python3", "train.py", "--epochs", str(EPOCHS), "--pause-after", str(HALF))
    await runner.moor(*ada, "--dry-run", *program, stdout=False)
    await runner.moor(*ada, *program)

    runner.step(
        "Grace and Linus start runs too",
        "Grace trains the same network, and a second one, on two GPUs. Linus needs no GPU.",
        "All users see the user of each GPU, and until when.",
    )
    await runner.moor(
        *("run", "--as", "grace", "--name", "ensemble", "--gpus", "2", *GPU, *limits),
        *("--", "python3", "train.py", "--epochs", str(EPOCHS), "--members", "2"),
        *("--epoch-seconds", str(GRACES_EPOCH_SECONDS)),
    )
    await runner.moor(
        *("run", "--as", "linus", "--name", "baseline", "--cpu", "1", "--memory", "1Gi"),
        *("--", "python3", "train.py", "--epochs", "5", "--seed", "7"),
    )
    await until(runner, session, "train", "Running")
    await runner.moor("gpus")


async def show_drain(runner: Runner, session: Session) -> None:
    runner.step(
        "The node of Ada's run needs maintenance: it is drained half-way",
        "A drain stops all pods of a node and keeps new ones away.",
        f"Ada's program waits after epoch {HALF} of {EPOCHS}, so that you see this half-way.",
    )
    await until_printed(runner, "train", _HALF_WAY)
    node = (await get_job(session, "train")).node
    await runner.moor("drain", node)
    await runner.moor("jobs")

    runner.step(
        "Her run starts again by itself, on the other node",
        "It waits while Grace uses both GPUs there.",
        "`moor explain` shows why a run waits, and which pods use its GPUs.",
    )
    await runner.moor("explain", "train", check=False)
    await until(runner, session, "train", "Succeeded")
    await runner.moor("logs", "train")
    await runner.moor("uncordon", node)
    job = await get_job(session, "train")
    if job.node == node or not job.restarts:
        raise MoorageError(f"the run train did not move away from {node}")

    runner.step(
        "Nothing was lost",
        "Grace's first network has the same seed and was not disturbed. Both must end exactly alike.",
    )
    await until(runner, session, "ensemble", "Succeeded")
    results = [(await until_printed(runner, name, RESULT)).groups() for name in ("train", "ensemble")]
    for words, (accuracy, loss) in zip(("drained and resumed:", "not disturbed:"), results, strict=True):
        runner.print(f"  {words:<20} accuracy {accuracy}, loss {loss}")
    if results[0] != results[1]:
        raise MoorageError("the resumed training ended with another result than the undisturbed one")


async def show_map(runner: Runner) -> None:
    runner.step(
        f"A map: one command for each of {ITEMS} items",
        "Here it draws 200 small pictures, with two workers. Some tries fail, as downloads do.",
        "Moorage tries failed items again, and keeps each result.",
    )
    await runner.moor("volume", "create", "pictures", "--size", "1Gi")
    made = await runner.moor(
        *("map", "create", "pictures", "--range", f"0:{ITEMS}", "--parallelism", "2", "--cpu", "1"),
        *("--memory", "256Mi", "--volume", "pictures:/pictures", "--wait"),
        *("--", "python3", "draw.py", "{item}", "/pictures"),
        patience=runner.patience,
    )
    if made.code is None:
        runner.print("This machine is busy. The map continues; follow it: moor map status --watch pictures")
    await runner.moor("map", "status", "pictures")


async def show_dataset(runner: Runner) -> None:
    runner.step(
        "A dataset: files that are copied once and checked, then read by any run",
        f"The demo drew {EXAM_PICTURES} other pictures into the folder exam. They become a dataset.",
        "A run reads it, with the network that Ada trained.",
    )
    await runner.program("digits.py", "exam", str(EXAM_PICTURES))
    filled = await runner.moor(
        "dataset", "create", "exam", "--source", "./exam", "--size", "1Gi", patience=runner.patience
    )
    if filled.code is None:
        runner.print("This machine is busy. The dataset fills by itself; look: moor dataset show exam")
        return
    read = await runner.moor(
        *("run", "--name", "exam", "--cpu", "1", "--memory", "256Mi", "--dataset", "exam:/exam"),
        *("--volume", "train-state:/model:ro", "--follow"),
        *("--", "python3", "exam.py", "/exam", "/model/digits-0.json"),
        patience=runner.patience,
    )
    if read.code is None:
        runner.print("This machine is busy. The run continues; follow it: moor logs -f exam")


async def show_workspace(runner: Runner, session: Session) -> None:
    runner.step(
        "A workspace: an application in your browser, with a home that stays",
        "Most people use JupyterLab or code-server, which must be installed on this machine.",
        "The demo's workspace is a small gallery that shows the pictures of the map.",
    )
    await offer_gallery(session)
    opened = await runner.moor(
        *("workspace", "create", "gallery", "--type", "gallery", "--cpu", "100m", "--memory", "128Mi"),
        *("--volume", "pictures:/pictures:ro", "--wait"),
        patience=runner.patience,
    )
    if opened.code is None:
        runner.print("This machine is busy. The workspace still starts; look: moor workspace show gallery")
    await runner.moor("workspace", "list")


async def offer_gallery(session: Session) -> None:
    """Do the administrator's step for an application: create a template, from which users create workspaces."""
    template = {
        "image": "python:3.12",  # on a cluster; here the pod is a process with this machine's Python
        "command": ["python3", "-c", (PROGRAMS / "gallery.py").read_text()],
        "port": 8000,
        "home": "/home/gallery",
        "ready": "/",
    }
    configmap = {
        "metadata": {"name": "workspace-gallery", "labels": {TEMPLATE_LABEL: "gallery"}},
        "data": {"template.yaml": yaml.safe_dump(template)},
    }
    with contextlib.suppress(AlreadyExists):
        await session.api.create(CONFIGMAPS, configmap, SYSTEM_NAMESPACE)


async def check_pages(runner: Runner) -> None:
    """Open the web page like a browser. Raises NotReady if it does not answer."""
    import aiohttp

    address = page_address(runner.place)
    jar = aiohttp.CookieJar(unsafe=True)  # cookies of an address in numbers
    async with aiohttp.ClientSession(cookie_jar=jar) as browser:
        for path in (address, *(address.partition("?")[0] + name for name in ("jobs", "maps", "datasets"))):
            async with browser.get(path) as answer:
                if answer.status != 200:
                    raise NotReady(f"the page {path} answers with status {answer.status}")


def page_address(place: Place) -> str:
    """The address of the page, with the token that logs in the user who started the demo."""
    folder = DataFolder(place.cluster)
    config = folder.load_config()
    if config is None:
        raise NotReady(f"there is no cluster in {place.cluster}")
    return f"http://127.0.0.1:{config.ports['server']}/?token={folder.tokens(config.user)['page']}"


# --- waiting


async def get_job(session: Session, name: str) -> Job:
    return await session.server.ask(Job, "GET", f"/api/v1/jobs/default/{name}")


async def until(runner: Runner, session: Session, name: str, state: str) -> None:
    """Wait until the run has that state or has succeeded.

    Raises MoorageError if the run fails, NotReady after a timeout.
    """
    current = ""
    async for waited in runner.looks():
        try:
            current = (await get_job(session, name)).state
        except ApiError:
            continue  # a busy server answers later
        if current in (state, "Succeeded"):
            return
        if current in ("Failed", "OOMKilled", "Cancelled"):
            await runner.moor("show", name)
            await runner.moor("logs", name)
            raise MoorageError(f"the run {name} ended as {current}")
        runner.waiting(f"run {name} is {current}", waited)
    raise NotReady(f"the run {name} is {current} after {ESSENTIAL_SECONDS:g} s; expected {state}")


async def until_printed(runner: Runner, name: str, pattern: re.Pattern[str]) -> re.Match[str]:
    """The first match in a run's log. Raises NotReady if the log does not contain one in time."""
    async for waited in runner.looks(every=LOG_SECONDS):
        log = await runner.moor("logs", name, show=False, check=False)
        if match := pattern.search(log.text):
            return match
        runner.waiting(f"run {name} trains", waited)
    raise NotReady(f"the log of the run {name} lacks {pattern.pattern!r} after {ESSENTIAL_SECONDS:g} s")


# --- the end


def next_steps(place: Place, *, option: str) -> Sequence[str]:
    """Commands to try after the demo, most with a comment; each can be copied and run."""
    moor = Path(sys.executable).with_name("moor")
    path = shutil.which("moor")
    steps: list[tuple[str, str]] = []
    if not (path and Path(path).resolve() == moor.resolve()) and moor.with_name("activate").exists():
        steps.append((f". {shlex.quote(str(moor.with_name('activate')))}", ""))
    steps += [
        (f"cd {shlex.quote(str(place.files))}", ""),
        (f"export MOORAGE_KUBECONFIG={shlex.quote(str(place.kubeconfig))}", ""),
        ("moor jobs", "all runs: owner, node and state"),
        ("moor show train", "its attempts, memory and checkpoints"),
        ("moor run --gpus 1 --follow -- python3 train.py", "your own run"),
        ("moor map items pictures --limit 5", "items of the map, and how each ended"),
        ("moor dataset show exam", "its files, and the users who read them"),
        ("moor workspace open gallery", "the gallery, in your browser"),
        (f"moor demo --down{option}", "stop the cluster, remove all that the demo made"),
    ]
    return [f"{command:<48}  # {comment}" if comment else command for command, comment in steps]
