"""One table of cases, run through each way in: the command line, REST over HTTP, and the Python client.

A case says what is in the cluster, what is asked in the words of each way, and what comes of it: the code and the
message of the error, and the objects that are there afterwards. All ways must give the same. To add a subject, add
a list of cases to CASES.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import moorage
from moorage.apimachinery.resources import JOBS, NODES, PVCS, SECRETS, Obj, Resource
from moorage.apimachinery.serving import serve
from moorage.cli.main import main
from moorage.cli.session import Session
from moorage.client.cluster import SELF_SUBJECT_REVIEWS
from moorage.clock import rfc3339
from moorage.decide.rates import Rate
from moorage.errors import MoorageError, NotFound, NotReady
from moorage.model.names import REQUEST_ANNOTATION
from moorage.sdk.local import loop
from moorage.server.service import ServerService
from moorage.testing.clock import NOON, FakeClock
from moorage.testing.fakeapi import FakeApi

NAMESPACE = "lab"
USER = "ada"
TOKEN = "kube-token"
WRITTEN: tuple[Resource, ...] = (JOBS, PVCS, SECRETS)  # what is compared after a case
STAMPS = ("uid", "resourceVersion", "creationTimestamp")
EXIT_CODES = {"": 0, "invalid": 2, "exists": 2, "bad_request": 2}  # of the command line; all others: 1

Seed = Callable[["Cluster"], None]


@dataclass(frozen=True, kw_only=True)
class Case:
    """`rest` is (method, path, body); `code` and `message` are of the error, empty where there is none."""

    name: str
    moor: Sequence[str]
    rest: tuple[str, str, Any]
    sdk: Callable[[moorage.Client], Any]
    seed: Seed = lambda _cluster: None
    code: str = ""
    message: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came of a case: the error, and what is in the cluster now."""

    code: str = ""
    message: str = ""
    hint: str = ""
    objects: dict[str, Any] = field(default_factory=dict)


class Cluster(FakeApi):
    """A cluster in memory in which everything is done as USER."""

    def __init__(self) -> None:
        super().__init__(users={TOKEN: USER})
        self.put(PVCS, {"metadata": {"namespace": NAMESPACE, "name": "code"}, "spec": {}})
        self.node("gpu-1", gpus=2)
        self.node("cpu-1", gpus=0)

    def with_token(self, *_: str) -> Cluster:
        return self

    async def create(self, resource: Resource, obj: Obj, *args: Any, **options: Any) -> Obj:
        if resource == SELF_SUBJECT_REVIEWS:
            return {"status": {"userInfo": {"username": USER}}}
        return await super().create(resource, obj, *args, **options)

    async def logs(self, pod: str, *_: Any, **_options: Any) -> Any:
        raise NotFound(f"pods {pod!r} not found")
        yield b""

    def node(self, name: str, *, gpus: int) -> None:
        amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
        self.put(
            NODES,
            {
                "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": "a100"} if gpus else {}},
                "spec": {},
                "status": {
                    "allocatable": amounts,
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "nodeInfo": {"containerRuntimeVersion": "containerd://2.1"},
                },
            },
        )

    def objects(self) -> dict[str, Any]:
        """All objects that a case may write, without what the store adds."""
        stored = {}
        for resource in WRITTEN:
            for obj in self._objects.get(resource, {}).values():
                meta = {key: value for key, value in obj["metadata"].items() if key not in STAMPS}
                notes = meta.get("annotations") or {}
                meta["annotations"] = {key: notes[key] for key in notes if key != REQUEST_ANNOTATION}
                stored[f"{resource.plural}/{meta['namespace']}/{meta['name']}"] = obj | {"metadata": meta}
        return stored


# -- the ways in


class CommandLine:
    """`moor`, by kubeconfig, as typed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, case: Case, cluster: Cluster) -> Outcome:
        @contextlib.asynccontextmanager
        async def opener(_target: Any) -> Any:
            yield Session(api=cluster, namespace=NAMESPACE, server=NoServer(), clock=FakeClock())  # type: ignore[arg-type]

        self._capsys.readouterr()
        exit_code = main(list(case.moor), opener=opener)
        lines = self._capsys.readouterr().err.splitlines()
        message = "; ".join(line.removeprefix("error: ") for line in lines if line.startswith("error: "))
        hints = dict.fromkeys(line.removeprefix("hint: ") for line in lines if line.startswith("hint: "))
        assert exit_code == EXIT_CODES.get(case.code, 1), message
        return Outcome(case.code, message, "; ".join(hints))  # of the code, a terminal shows the exit code alone


class NoServer:
    """A cluster without Moorage's server."""

    async def get(self, *_: Any) -> Any:
        raise NotReady("this cluster has no Moorage server")

    post = get


class Rest:
    """HTTP, as any program sends it."""

    def __call__(self, case: Case, cluster: Cluster) -> Outcome:
        method, path, body = case.rest
        with served(cluster) as url:
            request = urllib.request.Request(
                url + path,
                method=method,
                data=None if body is None else json.dumps(body).encode(),
                headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
            )
            try:
                with urllib.request.urlopen(request) as answer:
                    answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    told = json.loads(error.read())
                return Outcome(told["code"], told["message"], told.get("hint") or "")
        return Outcome()


class PythonClient:
    """`moorage.Client`."""

    def __call__(self, case: Case, cluster: Cluster) -> Outcome:
        with served(cluster) as url, moorage.Client(url, TOKEN, namespace=NAMESPACE) as client:
            try:
                case.sdk(client)
            except MoorageError as error:
                return Outcome(error.code, error.message, error.hint or "")
        return Outcome()


@contextlib.contextmanager
def served(cluster: Cluster) -> Iterator[str]:
    """The address of a server over the cluster, on loopback, in the SDK's own loop."""
    context = _serving(cluster)
    url = loop().run(context.__aenter__())
    try:
        yield url
    finally:
        loop().run(context.__aexit__(None, None, None))


@contextlib.asynccontextmanager
async def _serving(cluster: Cluster) -> Any:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        service = ServerService(
            cluster,
            usage_db=Path(folder) / "usage.db",
            page_token="page",
            clock=FakeClock(),
            rate=Rate(per_second=0),
        )
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        stop = asyncio.Event()
        tasks = [
            asyncio.create_task(service.run()),
            asyncio.create_task(serve(service.app, sock, stop=stop)),
        ]
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            stop.set()
            await tasks[1]
            tasks[0].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


# -- runs


def a_run(name: str, *, end: str = "") -> Seed:
    """A run of USER that waits, or whose Job has the condition `end`."""

    def seed(cluster: Cluster) -> None:
        labels = {"moorage.dev/run": name, "moorage.dev/attempt": "1"}
        conditions = [{"type": end, "status": "True", "lastTransitionTime": rfc3339(NOON)}] if end else []
        cluster.put(
            JOBS,
            {
                "metadata": {
                    "namespace": NAMESPACE,
                    "name": name,
                    "labels": labels,
                    "annotations": {"moorage.dev/owner": USER},
                    "creationTimestamp": rfc3339(NOON),
                },
                "spec": {"template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main"}]}}},
                "status": {"conditions": conditions},
            },
        )

    return seed


JOB_FIELDS = {  # option of `moor run` → field of NewJob → argument of `client.jobs.run`
    "name": ("name", "name"),
    "image": ("image", "image"),
    "gpus": ("gpus", "gpus"),
    "gpu-type": ("gpuType", "gpu_type"),
    "memory": ("memory", "memory"),
    "cpu": ("cpu", "cpu"),
    "time": ("time", "time"),
    "workdir": ("workdir", "workdir"),
    "volume": ("volumes", "volumes"),
    "priority-class": ("priorityClass", "priority_class"),
    "retries": ("retries", "retries"),
    "restart-limit": ("restartLimit", "restart_limit"),
    "grace": ("grace", "grace"),
    "checkpoint": ("checkpoint", "checkpoint"),
    "dry-run": ("dryRun", "dry_run"),
}


def submitting(
    case: str,
    /,
    *,
    command: Sequence[str] = ("python", "train.py"),
    seed: Seed = lambda _cluster: None,
    code: str = "",
    message: str = "",
    **options: Any,
) -> Case:
    """`moor run` and its kin; the options are those of the command line, with `_` for `-`."""
    given = {"name": "train", "image": "python:3.12", "memory": "1Gi", "workdir": "code:x"} | options
    words, body, arguments = ["run"], {"command": list(command), "namespace": NAMESPACE}, {}
    for option, value in given.items():
        if value is None:
            continue
        flag = option.replace("_", "-")
        on_wire, in_python = JOB_FIELDS[flag]
        listed = [value] if flag == "volume" else value
        words += [f"--{flag}"] if value is True else [f"--{flag}", str(value)]
        body[on_wire] = listed
        arguments[in_python] = listed
    return Case(
        name=case,
        seed=seed,
        moor=[*words, "--", *command],
        rest=("POST", "/api/v1/jobs", body),
        sdk=lambda client: client.jobs.run(list(command), **arguments),
        code=code,
        message=message,
    )


def about_run(
    name: str, run: str, verb: str, *, seed: Seed = lambda _cluster: None, code: str = "", message: str = ""
) -> Case:
    """`moor show`, `cancel` and `logs` of a run."""
    one = f"/api/v1/jobs/{NAMESPACE}/{run}"
    rest, sdk = {
        "show": (("GET", one, None), lambda client: client.jobs.get(run)),
        "cancel": (("DELETE", f"{one}?delete=false", None), lambda client: client.jobs.cancel(run)),
        "cancel --delete": (("DELETE", f"{one}?delete=true", None), lambda client: client.jobs.delete(run)),
        "logs": (("GET", f"{one}/logs", None), lambda client: list(client.jobs.logs(run))),
    }[verb]
    return Case(name=name, seed=seed, moor=[*verb.split(), run], rest=rest, sdk=sdk, code=code, message=message)


NO_RUN = "there is no run 'trian' in namespace lab"

RUNS = [
    submitting("a run is submitted"),
    submitting("a run with GPUs of a type", gpus=1, gpu_type="a100", time="2h", cpu="500m"),
    submitting("a run with a volume and limits", volume="code:/code:ro", retries=2, restart_limit=3, grace=5),
    submitting("a run without a memory limit", memory="none"),
    submitting("a dry run stores nothing", dry_run=True),
    submitting(
        "the name is taken",
        seed=a_run("train"),
        code="exists",
        message="the name 'train' is taken in namespace lab",
    ),
    submitting("a bad name", name="-x", code="invalid", message="invalid run name '-x': use at most 52 of a-z, 0-9"
               " and '-', beginning and ending with a letter or digit"),
    submitting("bad memory", memory="much", code="invalid",
               message="invalid memory 'much': use a quantity such as 512Mi, 8Gi or 1.5G"),
    submitting("memory without a unit", memory="8", code="invalid", message="invalid memory '8': less than 1 MiB"),
    submitting("bad time", time="soon", code="invalid",
               message="invalid time limit 'soon': the range is 1s to 365d"),
    submitting("no image", image=None, code="invalid", message="no image given, and this cluster needs one"),
    submitting("an unknown GPU type", gpus=1, gpu_type="h100", code="invalid",
               message="no node has GPUs of type 'h100'"),
    submitting("more GPUs than any node has", gpus=3, code="invalid",
               message="3 GPUs asked for; the largest node with GPUs has 2 (gpu-1)"),
    submitting("a volume that is not there", volume="data:/data", code="invalid",
               message="volume 'data' not found in namespace lab"),
    submitting("a NUL in the command", command=("python", "a\0b"), code="invalid",
               message="invalid command: a word contains a NUL character"),
    submitting("an empty command", command=("",), code="invalid", message="no command given"),
    submitting("retries without a limit", memory="none", retries=1, code="invalid",
               message="retries 1 cannot be combined with memory none:"
               " a job without a limit would take one node after the other"),
    submitting("several problems at once", memory="0", grace=0, code="invalid",
               message="invalid memory '0': use more than zero; invalid grace period 0: use 1 to 86400 seconds"),
    about_run("a run is shown", "train", "show", seed=a_run("train")),
    about_run("a run that is not there", "trian", "show", seed=a_run("train"), code="not_found", message=NO_RUN),
    about_run("a run is cancelled", "train", "cancel", seed=a_run("train")),
    about_run("a run that has ended stays as it ended", "train", "cancel", seed=a_run("train", end="Complete")),
    about_run("no run to cancel", "trian", "cancel", seed=a_run("train"), code="not_found", message=NO_RUN),
    about_run("a run is deleted", "train", "cancel --delete", seed=a_run("train", end="Failed")),
    about_run("no run to delete", "trian", "cancel --delete", code="not_found", message=NO_RUN),
    about_run("a run without a log", "train", "logs", seed=a_run("train")),
    about_run("no run whose log is there", "trian", "logs", seed=a_run("train"), code="not_found", message=NO_RUN),
    about_run("a name that no run can have", "A,b", "logs", code="not_found",
              message="there is no run 'A,b' in namespace lab"),
]  # fmt: skip

CASES: list[Case] = [*RUNS]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_every_way_in_gives_the_same(case: Case, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    outcomes = {}
    for way in (CommandLine(capsys), Rest(), PythonClient()):
        cluster = Cluster()
        case.seed(cluster)
        outcome = way(case, cluster)
        outcomes[type(way).__name__] = Outcome(outcome.code, outcome.message, outcome.hint, cluster.objects())
    first = outcomes["CommandLine"]
    assert (first.code, first.message) == (case.code, case.message)
    assert outcomes == dict.fromkeys(outcomes, first)
