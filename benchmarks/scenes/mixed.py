"""All kinds of work side by side while everything is killed: nothing is lost, doubled or stuck.

Each kind writes a line into a log of its own when a step, item or run begins and ends. At the end the cluster is
left alone, and each kind is judged by its log and by the API:

workflows   DAGs of 40 steps in five chains that hand on artifacts; some steps take a mutex; an exit handler
crons       a CronWorkflow and a CronJob each minute: one start for each slot; slots of the first are all there
maps        maps with items: one result for each item, also where their workers are killed
runs        runs with checkpoints: no step is missing; a step is repeated only after the shim was killed
guests      pods of a Machine with four places
idle        a run that does nothing is suspended by an IdlePolicy, and is started once
turns       two runs of a team take turns on one GPU; no step is missing or done twice
budget      a team over its Budget waits; when the budget is raised, each of its runs ends
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from moorage.model.argo import CRON_LABEL, CRON_WORKFLOWS, SCHEDULED_ANNOTATION, WORKFLOWS
from moorage.model.budget import BUDGETS
from moorage.model.idle import IDLE_POLICIES
from moorage.model.machine import MACHINES
from moorage.model.names import CATCH_UP_ANNOTATION, GUARD_LABEL, HOST_ENV_ANNOTATION
from moorage.model.tenant import TENANTS
from moorage_kube.clock import SYSTEM
from moorage_kube.errors import AlreadyExists, ApiError
from moorage_kube.informer import wait_synced
from moorage_kube.remote.client import KubeClient
from moorage_kube.resources import JOBS, NAMESPACES, Obj, Resource
from moorage_testing.killing import EVERYTHING, LAUNCHER, Trouble, parent_of, pids_with, until_gone, until_so
from moorage_workflows.model.workflow import ENDED_PHASES
from scenes import guests
from scenes.map import workers
from scenes.outcome import Outcome, tell
from scenes.runs import moor

NODES = """
- {name: node, count: 2, gpus: 2, gpuType: a100}
- {name: node-3, cpu: 32, memory: 16Gi}
- {name: node-4, gpus: 1, gpuType: t4, taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]}
- {name: node-5, gpus: 2, gpuType: l4, cpu: 32, memory: 16Gi}
"""
ACTS = (  # two go on at once; what they kill, each as often as it stands here
    (
        *("localcluster",) * 4,
        *("services",) * 5,
        *("admission",) * 2,
        *("ingress",) * 2,
        "supervisor",
        *(EVERYTHING,) * 2,
    ),
    (*("worker",) * 4, *("shim",) * 4, LAUNCHER),
)
AT_ONCE, PROGRESS = 8, 6  # 9 of 14 kills come at once; the others after 1 to 5 steps, guests or slots more
PROGRESS_SECONDS = (8.0, 3.0)  # or so long without that many, for each of `ACTS`
AHEAD = 2  # workflows, and as much of the other kinds, that go on beside those whose share of the kills is over
STEPS, CHAINS, LOCKED = 40, 5, 7  # each seventh step takes the mutex
ITEMS = 20  # of a map; one map, two runs, three guests and one run on a budget for each workflow
RUN_STEPS = 40
PATIENCE_SECONDS = 300.0  # without any answer, or progress once nothing is killed; bounds a hang
T = TypeVar("T")
TURNS, BUDGETED = "turns", "budgeted"  # teams
POLICY = {"warnAfter": "1m", "suspendAfter": "10s", "idle": {"window": "30s"}, "tenants": ["idle"]}
RUN = """
import os, pathlib, signal, sys, time
log, name, steps, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
def note(*words):
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, (" ".join(map(str, (*words, name, os.getpid()))) + "\\n").encode())
    os.close(fd)
folder = os.environ.get("MOORAGE_CHECKPOINT_DIR")
saved = pathlib.Path(folder, "step") if folder else None
step = int(saved.read_text()) if saved and saved.exists() else 0
note("start")
while step < steps and not stopped:
    time.sleep(seconds if step else min(seconds, 3))
    note("step", step)
    step += 1
    if saved:
        saved.with_suffix(".new").write_text(str(step))
        saved.with_suffix(".new").replace(saved)
note("end" if step == steps else "stop")
sys.exit(0 if step == steps else 143)
"""


NOTES = "/notes"  # folder of the logs in pods that have a /tmp of their own
MOUNTS = [{"name": "notes", "mountPath": NOTES}]


def volumes(log: Path) -> list[Obj]:
    return [{"name": "notes", "hostPath": {"path": str(log.parent)}}]


def a_workflow(name: str, log: Path) -> Obj:
    """Step N takes the artifact of step N - 5 and hands it on with its own number added; the last one notes it."""
    seen = f"{NOTES}/{log.name}"
    say = 'note() { echo "$@" >> ' + seen + "; }\n"
    work = f"{say}note start {name} $0\n(cat /tmp/in; echo $0) > /tmp/out\n"
    lock = f"{seen}.lock"
    locked = f"mkdir {lock} || note two {name} $0\nsleep 0.3\nrmdir {lock}\n"
    last = f"note content {name} $(cat /tmp/out)\n"
    end = f"note end {name} $0\n"
    artifact = {"name": "text", "path": "/tmp/in", "optional": True}
    resources = {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}}

    def template(kind: str, script: str, **more: Any) -> dict[str, Any]:
        container = {
            "image": "busybox",
            "command": ["sh", "-c", script, "{{inputs.parameters.step}}"],
            "resources": resources,
            "volumeMounts": MOUNTS,
        }
        return {
            "name": kind,
            "inputs": {"parameters": [{"name": "step"}], "artifacts": [artifact]},
            "outputs": {"artifacts": [{"name": "text", "path": "/tmp/out"}]},
            "container": container,
        } | more

    def task(number: int) -> dict[str, Any]:
        kind = "last" if number == STEPS - 1 else "locked" if number % LOCKED == 0 else "work"
        before = [number - CHAINS] if number >= CHAINS else []
        needs = range(STEPS - 1) if number == STEPS - 1 else before
        return {
            "name": f"t{number}",
            "template": kind,
            "dependencies": [f"t{each}" for each in needs],
            "arguments": {
                "parameters": [{"name": "step", "value": str(number)}],
                "artifacts": [
                    {"name": "text", "from": f"{{{{tasks.t{each}.outputs.artifacts.text}}}}"} for each in before
                ],
            },
        }

    bye = {"image": "busybox", "command": ["sh", "-c", f"{say}note exit {name} {{{{workflow.status}}}}"]}
    return {
        "apiVersion": WORKFLOWS.api_version,
        "kind": WORKFLOWS.kind,
        "metadata": {"name": name},
        "spec": {
            "entrypoint": "main",
            "onExit": "bye",
            "parallelism": 5,
            "volumes": volumes(log),
            "podMetadata": {"annotations": {HOST_ENV_ANNOTATION: "true"}},
            "templates": [
                {"name": "main", "dag": {"tasks": [task(number) for number in range(STEPS)]}},
                template("work", work + end),
                template("locked", work + locked + end, synchronization={"mutexes": [{"name": "one"}]}),
                template("last", work + last + end),
                {"name": "bye", "container": bye | {"resources": resources, "volumeMounts": MOUNTS}},
            ],
        },
    }


def a_cron_workflow(log: Path) -> Obj:
    script = f"echo start {{{{workflow.name}}}} >> {NOTES}/{log.name}"
    container = {"image": "busybox", "command": ["sh", "-c", script], "volumeMounts": MOUNTS}
    return {
        "apiVersion": CRON_WORKFLOWS.api_version,
        "kind": CRON_WORKFLOWS.kind,
        "metadata": {"name": "minutely", "annotations": {CATCH_UP_ANNOTATION: "10"}},
        "spec": {
            "schedules": ["* * * * *"],
            "startingDeadlineSeconds": 600,
            "successfulJobsHistoryLimit": 1000,
            "workflowSpec": {
                "entrypoint": "main",
                "podMetadata": {"annotations": {HOST_ENV_ANNOTATION: "true"}},
                "volumes": volumes(log),
                "templates": [{"name": "main", "container": container}],
            },
        },
    }


CRON_JOB = "each-minute"
CRON_JOBS = Resource("batch", "v1", "cronjobs", "CronJob")


def a_cron_job(log: Path) -> Obj:
    script = f"echo start $JOB >> {log}"
    job_name = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/job-name']"}}
    container = {
        "name": "main",
        "image": "localhost/host",
        "command": ["sh", "-c", script],
        "env": [{"name": "JOB", "valueFrom": job_name}],
    }
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "metadata": {"name": CRON_JOB},
        "spec": {
            "schedule": "* * * * *",
            "startingDeadlineSeconds": 600,
            "successfulJobsHistoryLimit": 1000,
            "jobTemplate": {"spec": {"template": pod}},
        },
    }


class Mixed:
    """The work of one scene: what was submitted of each kind, and where its log is."""

    def __init__(self, api: KubeClient, trouble: Trouble, outcome: Outcome, *, kills: int, objects: int) -> None:
        self.api, self.trouble, self.outcome = api, trouble, outcome
        self.kills, self.objects = kills, objects
        self.folder = trouble.cluster.home.parent
        self.script = self.folder / "run.py"
        self.workflows: list[str] = []
        self.maps: list[str] = []
        self.runs: list[tuple[str, str]] = []  # namespace, name
        self.shims_killed: Counter[str] = Counter()  # by the name of the run
        self.killed_at_the_end: Counter[str] = Counter()  # of these: after the program noted its end
        self.crons_since = SYSTEM.now()

    def log(self, kind: str) -> Path:
        return self.folder / f"{kind}.log"

    def lines(self, kind: str) -> list[list[str]]:
        return (
            [line.split() for line in self.log(kind).read_text().splitlines()] if self.log(kind).exists() else []
        )

    async def create(self, resource: Resource, obj: Obj, namespace: str | None = None) -> None:
        with contextlib.suppress(AlreadyExists):  # of a request whose answer was lost
            await until_ready(lambda: self.api.create(resource, obj, namespace))

    async def type(self, *words: str, taken: str = "") -> str:
        """The output of a command that is typed until it succeeds, or until it says that its name is taken."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while True:
            code, output, errors = await moor(self.trouble.cluster, *words)
            if code == 0 or (taken and taken in errors):
                return output
            assert time.monotonic() < ends, f"moor {' '.join(words[:4])} failed: {errors.strip()}"
            await asyncio.sleep(0.2)

    async def run(self, name: str, steps: int, seconds: float, *options: str, namespace: str = "default") -> None:
        what = (str(self.log("runs")), name, str(steps), f"{seconds:.2f}")
        size = ("--cpu", "50m", "--memory", "64Mi", "--restart-limit", "998")
        words = ("run", "--name", name, "-n", namespace, *size, *options, "--", sys.executable, str(self.script))
        await self.type(*words, *what, taken=f"the name '{name}' is taken")
        self.runs.append((namespace, name))

    async def begin(self) -> None:
        self.script.write_text(RUN)
        for team, spec in ((TURNS, {"timeSharing": {"guaranteedSeconds": 3}}), (BUDGETED, {}), ("idle", {})):
            await self.api.create(TENANTS, {"metadata": {"name": team}, "spec": {"namespace": team} | spec})
        await self.api.create(IDLE_POLICIES, {"metadata": {"name": "short"}, "spec": POLICY})
        budget = {"tenants": [BUDGETED], "period": "month", "gpuHours": "0.01", "whenOver": "queue"}
        await self.api.create(BUDGETS, {"metadata": {"name": "small"}, "spec": budget})
        await self.api.create(
            NAMESPACES, {"metadata": {"name": guests.NAMESPACE, "labels": {GUARD_LABEL: "enabled"}}}
        )
        await self.api.create(MACHINES, guests.a_machine())
        await self.create(CRON_WORKFLOWS, a_cron_workflow(self.log("cronworkflow")), "default")
        await self.create(CRON_JOBS, a_cron_job(self.log("cronjob")), "default")
        self.crons_since = SYSTEM.now()
        turns = 2 * self.kills
        for number in range(2):
            share = ("--gpus", "1", "--gpu-type", "t4", "--checkpoint", f"turn-{number}", "--share")
            await self.run(f"turn-{number}", turns, 0.2, *share, namespace=TURNS)
        await self.run("idle", 2, 1e6, "--gpus", "1", "--gpu-type", "l4", "--checkpoint", "idle", namespace="idle")

    async def submit(self) -> None:
        """A workflow, a map, two runs and one on a budget, with each share of the kills."""
        for number in range(self.objects):
            await until_so(lambda number=number: number <= AHEAD + self.trouble.total * self.objects // self.kills)
            name = f"dag-{number:03}"
            await self.create(WORKFLOWS, a_workflow(name, self.log("workflows")), "default")
            self.workflows.append(name)
            name = f"map-{number:03}"
            item = f"echo start {name} $0 >> {self.log('maps')}; sleep 1; echo end {name} $0 >> {self.log('maps')}"
            items, what = ("--range", f"0:{ITEMS}"), ("--", "sh", "-c", item, "{item}")
            size = ("--parallelism", "2", "--cpu", "10m", "--memory", "256Mi")
            limits = ("--retries", "0", "--restart-limit", "100000", "--host-env")
            taken = f"the name '{name}' is taken"
            await self.type("map", "create", name, *items, *size, *limits, *what, taken=taken)
            await self.type("map", "add", name, *items, "--resume", taken="closed")  # where that was cut off
            self.maps.append(name)
            for each in ("a", "b"):
                name = f"run-{number:03}{each}"
                await self.run(name, RUN_STEPS, 0.8, "--checkpoint", name)
            await self.run(f"paid-{number:03}", 10, 0.5, "--gpus", "1", "--gpu-type", "l4", namespace=BUDGETED)

    async def strike(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for acts, seconds in zip(ACTS, PROGRESS_SECONDS, strict=True):
                tasks.create_task(self._strike(acts, seconds))
        await self.trouble.bring_back()

    async def _strike(self, acts: tuple[str, ...], seconds: float) -> None:
        trouble = self.trouble
        while trouble.total < self.kills:
            await self._progress(max(0, trouble.chance.randrange(-AT_ONCE, PROGRESS)), seconds)
            before, name = trouble.total, trouble.chance.choice(acts)
            if name == "worker":
                if alive := workers(self.folder):
                    trouble.kill_process(trouble.chance.choice(alive), name)
            elif name == "shim":
                await self._kill_a_shim()
            elif name == LAUNCHER:
                await trouble.kill(name)
            else:
                await trouble.strike(name)
            if trouble.total // 10 != before // 10:
                tell(f"{trouble.total} kills: {self.seen()}")

    async def _progress(self, wanted: int, seconds: float) -> None:
        """Wait until so many more lines are in the logs of what goes on only with the control plane."""
        kinds = ("workflows", "guests", "cronworkflow", "cronjob")

        def count() -> int:
            return sum(len(self.lines(kind)) for kind in kinds)

        before = count()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await until_so(lambda: count() >= before + wanted)
        await asyncio.sleep(0.1)

    async def _kill_a_shim(self) -> None:
        """Of a run with a checkpoint; perhaps after its program's end, while the last report is sent."""
        alive = [
            (pid, name)
            for _, name in self.runs
            if name.startswith(("run-", "turn-"))
            for pid in pids_with(str(self.script), name)
        ]
        if not alive:
            return
        pid, name = self.trouble.chance.choice(alive)
        shim: int | None = pid
        while shim is not None and not _is_shim(shim):
            shim = parent_of(shim)
        if shim is not None and self.trouble.kill_process(shim, "shim"):
            self.shims_killed[name] += 1
            await until_gone([pid])
            self.killed_at_the_end[name] += any(words[:2] == ["end", name] for words in self.lines("runs"))

    def seen(self) -> str:
        counts = {kind: len(self.lines(kind)) for kind in ("workflows", "maps", "runs", "cronworkflow", "cronjob")}
        return ", ".join(f"{kind} {count} lines" for kind, count in counts.items())

    async def list(self, resource: Resource) -> list[Obj]:
        """All of namespace default."""
        return (await until_ready(lambda: self.api.list(resource, "default"))).items

    async def settle(self) -> None:
        """Leave the cluster alone until all has ended, or nothing has changed for long."""
        await until_ready(lambda: self.api.patch(BUDGETS, "small", {"spec": {"gpuHours": "1000"}}))
        paid = {words[1] for words in self.lines("runs") if words[1].startswith("paid-")}
        self.outcome.notes["runs begun before the budget was raised"] = len(paid)
        since, before = time.monotonic(), None
        while time.monotonic() - since < PATIENCE_SECONDS:
            left, now = await self._left(), self.seen()
            if not left:
                return
            if (left, now) != before:
                since, before = time.monotonic(), (left, now)
                tell(f"waiting for {len(left)}: {left[0]}")
            await asyncio.sleep(2.0)
        self.outcome.stuck += before[0] if before else []

    async def _left(self) -> list[str]:
        """What has not ended."""
        left = []
        for obj in await self.list(WORKFLOWS):
            if (obj.get("status") or {}).get("phase") not in ENDED_PHASES:
                left.append(f"workflow {obj['metadata']['name']} is {(obj.get('status') or {}).get('phase')}")
        for name, run in (await self.states()).items():
            if run["state"] != "Suspended" if name == "idle" else run["ended"] is None:
                left.append(f"run {name} is {run['state']}: {run['reason']}")
        for each in json.loads(await self.type("map", "list", "-o", "json")):
            if each["state"] != "finished":
                left.append(f"map {each['name']} is {each['state']}")
        for obj in await self.list(JOBS):
            name, status = obj["metadata"]["name"], obj.get("status") or {}
            if name.startswith(CRON_JOB) and not status.get("succeeded"):
                left.append(f"job {name}: {status}")
        return left

    async def states(self) -> dict[str, dict[str, Any]]:
        names = {name for _, name in self.runs}
        runs = json.loads(await self.type("jobs", "-A", "-o", "json"))
        return {run["name"]: run for run in runs if run["name"] in names}

    async def judge(self) -> None:
        outcome = self.outcome
        objects = {obj["metadata"]["name"]: obj for obj in await self.list(WORKFLOWS)}
        phases = {name: (obj.get("status") or {}).get("phase") for name, obj in objects.items()}
        messages = {name: (obj.get("status") or {}).get("message") for name, obj in objects.items()}
        judge_workflows(outcome, self.workflows, phases, messages, self.lines("workflows"))
        slots = {
            name: obj["metadata"]["annotations"][SCHEDULED_ANNOTATION]
            for name, obj in objects.items()
            if (obj["metadata"].get("labels") or {}).get(CRON_LABEL) == "minutely"
        }
        judge_slots(outcome, slots, phases, self.lines("cronworkflow"), self.crons_since, SYSTEM.now())
        names = [obj["metadata"]["name"] for obj in await self.list(JOBS)]
        jobs = [name for name in names if name.startswith(CRON_JOB)]
        starts = Counter(words[1] for words in self.lines("cronjob"))
        for name in jobs:
            if starts[name] != 1:
                (outcome.doubled if starts[name] else outcome.lost).append(f"job {name}: {starts[name]} starts")
        judge_runs(
            outcome,
            self.runs,
            await self.states(),
            self.lines("runs"),
            self.shims_killed,
            self.killed_at_the_end,
        )
        starts = Counter((words[0], words[1], words[2]) for words in self.lines("maps"))
        for name in self.maps:
            output = await self.type("map", "results", name)
            results = Counter(json.loads(line)["item"] for line in output.splitlines())
            for item in range(ITEMS):
                if results[item] != 1:
                    (outcome.doubled if results[item] else outcome.lost).append(
                        f"{name} item {item}: {results[item]} results"
                    )
                if not starts["end", name, str(item)]:
                    outcome.lost.append(f"{name} item {item} never ended")
        outcome.notes |= {
            "map items begun": sum(count for key, count in starts.items() if key[0] == "start"),
            "shims of runs killed": sum(self.shims_killed.values()),
            "cron slots": len(slots),
            "CronJob slots": len(jobs),
        }
        steps, items = len(self.workflows) * (STEPS + 1), len(self.maps) * ITEMS
        outcome.objects = steps + items + len(self.runs) + len(slots) + len(jobs)


async def until_ready(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer to a request that is repeated until the API gives one."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return await ask()
        except ApiError as error:
            if isinstance(error, AlreadyExists) or time.monotonic() > ends:
                raise
        await asyncio.sleep(0.2)


def _is_shim(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"podshim" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def judge_workflows(
    outcome: Outcome, names: list[str], phases: dict[str, Any], messages: dict[str, Any], lines: list[list[str]]
) -> None:
    counted = Counter((words[0], words[1], words[2]) for words in lines)
    contents = {words[1]: words[2:] for words in lines if words[0] == "content"}
    chain = [str(number) for number in range((STEPS - 1) % CHAINS, STEPS, CHAINS)]
    for name in names:
        if name not in phases:
            outcome.lost.append(f"workflow {name} is not there")
            continue
        if phases[name] in ENDED_PHASES and phases[name] != "Succeeded":
            outcome.lost.append(f"workflow {name} is {phases[name]}: {messages[name]}")
        for step in map(str, range(STEPS)):
            starts, ends = counted["start", name, step], counted["end", name, step]
            if starts > 1 or ends > 1:
                outcome.doubled.append(f"workflow {name} step {step}: {starts} starts, {ends} ends")
            elif phases[name] == "Succeeded" and (starts, ends) != (1, 1):
                outcome.lost.append(f"workflow {name} step {step}: {starts} starts, {ends} ends")
            if counted["two", name, step]:
                outcome.doubled.append(f"workflow {name} step {step}: its mutex was held by another step")
        exits = sum(count for (word, of, _), count in counted.items() if (word, of) == ("exit", name))
        if phases[name] == "Succeeded" and exits != 1:
            (outcome.doubled if exits else outcome.lost).append(f"workflow {name}: {exits} exit handlers")
        if phases[name] == "Succeeded" and contents.get(name) != chain:
            outcome.lost.append(f"workflow {name}: the last artifact is {contents.get(name)}, should be {chain}")


def judge_slots(
    outcome: Outcome,
    slots: dict[str, str],
    phases: dict[str, Any],
    lines: list[list[str]],
    since: datetime,
    until: datetime,
) -> None:
    """Every minute between the first slot and a minute before the end has one workflow, which began once."""
    starts = Counter(words[1] for words in lines)
    times = Counter(datetime.fromisoformat(at) for at in slots.values())
    for name in slots:
        if starts[name] != 1:
            (outcome.doubled if starts[name] else outcome.lost).append(f"{name}: {starts[name]} starts")
        if phases[name] in ENDED_PHASES and phases[name] != "Succeeded":
            outcome.lost.append(f"{name} is {phases[name]}")
    at = since.replace(second=0, microsecond=0) + timedelta(minutes=1)
    while at < until - timedelta(minutes=1):
        if times[at] != 1:
            (outcome.doubled if times[at] else outcome.lost).append(f"slot {at:%H:%M}: {times[at]} workflows")
        at += timedelta(minutes=1)


def judge_runs(
    outcome: Outcome,
    names: list[tuple[str, str]],
    runs: dict[str, dict[str, Any]],
    lines: list[list[str]],
    shims_killed: Counter[str],
    killed_at_the_end: Counter[str],
) -> None:
    """Steps have no hole; a step or the end is repeated only where the shim was killed after its note."""
    steps: dict[str, list[int]] = {}
    counted = Counter((words[0], words[-2]) for words in lines)
    for words in lines:
        if words[0] == "step":
            steps.setdefault(words[2], []).append(int(words[1]))
    for _, name in names:
        run, done = runs.get(name), steps.get(name, [])
        if run is None:
            outcome.lost.append(f"run {name} is not there")
            continue
        if name == "idle":
            if counted["start", name] != 1:
                outcome.doubled.append(f"run idle: {counted['start', name]} starts")
            continue
        if run["ended"] is not None and run["state"] != "Succeeded":
            outcome.lost.append(f"run {name} is {run['state']}: {run['reason']}")
        if sorted(set(done)) != list(range(max(done, default=-1) + 1)):
            outcome.lost.append(f"run {name}: steps are missing of {len(set(done))}")
        if run["state"] == "Succeeded" and not 1 <= counted["end", name] <= 1 + killed_at_the_end[name]:
            (outcome.doubled if counted["end", name] else outcome.lost).append(
                f"run {name}: {counted['end', name]} ends, {killed_at_the_end[name]} of its shims killed after one"
            )
        if len(done) - len(set(done)) > shims_killed[name]:
            outcome.doubled.append(f"run {name}: {len(done) - len(set(done))} steps repeated")
        if not name.startswith("turn-") and counted["start", name] > 1 + shims_killed[name]:
            outcome.doubled.append(
                f"run {name}: {counted['start', name]} starts, {shims_killed[name]} shims killed"
            )


async def play(trouble: Trouble, outcome: Outcome, *, kills: int, objects: int) -> None:
    """So many workflows, and the other kinds beside them, under so many kills."""
    async with KubeClient.from_kubeconfig(trouble.cluster.kubeconfig) as api:
        mixed = Mixed(api, trouble, outcome, kills=kills, objects=objects)
        await mixed.begin()
        lab = guests.Lab(api, trouble, outcome, mixed.log("guests"), objects=3 * objects)
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(lab.pods.run())
            await wait_synced(lab.pods)
            living = tasks.create_task(lab.live(kills))
            submitting = tasks.create_task(mixed.submit())
            await mixed.strike()
            await submitting
            await mixed.settle()
            await living
            following.cancel()
        outcome.stuck += [f"guest {name} did not end" for name in sorted(lab.made - lab.succeeded)]
        guests.judge(lab, mixed.log("guests").read_text().splitlines(), outcome)
        await mixed.judge()
        outcome.objects += len(lab.made)
