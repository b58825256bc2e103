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
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

import moorage
from moorage.cli.main import main
from moorage.cli.session import Session
from moorage.client.cluster import SELF_SUBJECT_REVIEWS
from moorage.client.connection import Connection, at_url
from moorage.decide.rates import Rate
from moorage.model.dataset import DATASETS
from moorage.model.names import REQUEST_ANNOTATION, SYSTEM_NAMESPACE, TEMPLATE_LABEL
from moorage.model.workspace import WORKSPACES
from moorage.sdk.local import loop
from moorage.server.service import ServerService
from moorage_kube.clock import rfc3339
from moorage_kube.errors import Forbidden, MoorageError, NotFound, NotReady
from moorage_kube.resources import CONFIGMAPS, JOBS, NODES, PODS, PVCS, SECRETS, STORAGECLASSES, Obj, Resource
from moorage_kube.serving import serve
from moorage_kube.testing.clock import NOON, FakeClock
from moorage_local.testing.fakeapi import FakeApi

NAMESPACE = "lab"
USER = "ada"
TOKEN = "kube-token"
WRITTEN: tuple[Resource, ...] = (JOBS, PVCS, SECRETS, PODS, WORKSPACES, DATASETS)  # compared after a case
STAMPS = ("uid", "resourceVersion", "creationTimestamp")
EXIT_CODES = {"": 0, "invalid": 2, "exists": 2, "bad_request": 2}  # of the command line; all others: 1

Seed = Callable[["Cluster"], None]
Way = Callable[["Case", "Cluster"], "Outcome"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """`rest` is (method, path, body); `code` and `message` are of the error, empty where there is none.

    `exit_code` None: that of EXIT_CODES.
    """

    name: str
    moor: Sequence[str]
    rest: tuple[str, str, Any]
    sdk: Callable[[moorage.Client], Any]
    seed: Seed = lambda _cluster: None
    code: str = ""
    message: str = ""
    exit_code: int | None = None
    lists: bool = False  # what it gives is compared, too
    needs_server: bool = False  # by kubeconfig alone it cannot be answered


@dataclass(frozen=True)
class Outcome:
    """What came of a case: the error, and what is in the cluster now."""

    code: str = ""
    message: str = ""
    hint: str = ""
    objects: dict[str, Any] = field(default_factory=dict)
    listed: Any = None  # by a case that lists


class Cluster(FakeApi):
    """A cluster in memory in which everything is done as USER."""

    def __init__(self) -> None:
        super().__init__(users={TOKEN: USER})
        self.confines = False
        self.put(PVCS, {"metadata": {"namespace": NAMESPACE, "name": "code"}, "spec": {}})
        self.node("gpu-1", gpus=2)
        self.node("cpu-1", gpus=0)

    def with_token(self, *_: str) -> Any:
        return self.as_user()

    def as_user(self) -> Any:
        """The API as USER, who may be confined to NAMESPACE."""
        return Confined(self) if self.confines else self

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


class Confined:
    """A cluster for a user who may list in single namespaces only."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def list(self, resource: Resource, namespace: str | None = None, **options: Any) -> Any:
        if namespace is None:
            raise Forbidden(f"{USER} cannot list {resource.plural} of all namespaces")
        return await self._cluster.list(resource, namespace, **options)


# -- the ways in


class CommandLine:
    """`moor`, by kubeconfig, as typed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, case: Case, cluster: Cluster) -> Outcome:
        return self.type(case, cluster, NoServer)

    def type(self, case: Case, cluster: Cluster, server_of: Callable[[], Any]) -> Outcome:
        @contextlib.asynccontextmanager
        async def opener(_target: Any) -> Any:
            server = server_of()
            session = Session(api=cluster.as_user(), namespace=NAMESPACE, server=server, clock=FakeClock())  # type: ignore[arg-type]
            try:
                yield session
            finally:
                await server.close()

        self._capsys.readouterr()
        exit_code = main(list(case.moor), opener=opener)
        printed = self._capsys.readouterr()
        lines = printed.err.splitlines()
        message = "; ".join(line.removeprefix("error: ") for line in lines if line.startswith("error: "))
        hints = dict.fromkeys(line.removeprefix("hint: ") for line in lines if line.startswith("hint: "))
        wanted = EXIT_CODES.get(case.code, 1) if case.exit_code is None else case.exit_code
        assert exit_code == wanted, message
        listed = json.loads(printed.out) if case.lists else None
        # of the code, a terminal shows the exit code alone
        return Outcome(case.code, message, "; ".join(hints), listed=listed)


class CommandLineByServer(CommandLine):
    """`moor`, which asks Moorage's server where it can."""

    def __call__(self, case: Case, cluster: Cluster) -> Outcome:
        with served(cluster) as url:
            return self.type(case, cluster, lambda: Connection(at_url(url, TOKEN)))


class NoServer:
    """A cluster without Moorage's server."""

    async def ask(self, *_: Any, **_options: Any) -> Any:
        raise NotReady("this cluster has no Moorage server")

    async def close(self) -> None:
        pass


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
                    body = answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    told = json.loads(error.read())
                return Outcome(told["code"], told["message"], told.get("hint") or "")
        return Outcome(listed=next(value for value in json.loads(body).values() if value) if case.lists else None)


class PythonClient:
    """`moorage.Client`."""

    def __call__(self, case: Case, cluster: Cluster) -> Outcome:
        with served(cluster) as url, moorage.Client(url, TOKEN, namespace=NAMESPACE) as client:
            try:
                answer = case.sdk(client)
                listed = json.loads(msgspec.json.encode(answer)) if case.lists else None
            except MoorageError as error:
                return Outcome(error.code, error.message, error.hint or "")
        return Outcome(listed=listed)


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
    "user": ("user", "user"),
    "gpus": ("gpus", "gpus"),
    "gpu-type": ("gpuType", "gpu_type"),
    "memory": ("memory", "memory"),
    "cpu": ("cpu", "cpu"),
    "time": ("time", "time"),
    "working-dir": ("workingDir", "working_dir"),
    "volume": ("volumes", "volumes"),
    "priority-class": ("priorityClass", "priority_class"),
    "retries": ("retries", "retries"),
    "restart-limit": ("restartLimit", "restart_limit"),
    "grace-period": ("gracePeriodSeconds", "grace_period_seconds"),
    "checkpoint": ("checkpoint", "checkpoint"),
    "dry-run": ("dryRun", "dry_run"),
    "label": ("labels", "labels"),
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
    given = {"name": "train", "image": "python:3.12", "memory": "1Gi", "working_dir": "code:x"} | options
    words, body, arguments = ["run"], {"command": list(command), "namespace": NAMESPACE}, {}
    for option, value in given.items():
        if value is None:
            continue
        flag = option.replace("_", "-")
        on_wire, in_python = JOB_FIELDS[flag]
        listed = [value] if flag == "volume" else dict([value.split("=")]) if flag == "label" else value
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
        "explain": (("GET", f"/api/v1/explain/{NAMESPACE}/{run}", None), lambda client: client.explain(run)),
    }[verb]
    return Case(
        name=name,
        seed=seed,
        moor=[*verb.split(), run],
        rest=rest,
        sdk=sdk,
        code=code,
        message=message,
        needs_server=verb in ("show", "explain"),
    )


NO_RUN = "run 'trian' not found in namespace lab"

RUNS = [
    submitting("a run is submitted"),
    submitting("a run with GPUs of a type", gpus=1, gpu_type="a100", time="2h", cpu="500m"),
    submitting(
        "a run with a volume and limits", volume="code:/code:ro", retries=2, restart_limit=3, grace_period=5
    ),
    submitting("a run without a memory limit", memory="none"),
    submitting("a run as another user", user="1000:100"),
    submitting("a user by name", user="ada", code="invalid",
               message="invalid user 'ada': use numbers from 0 to 2147483647"),
    submitting("a dry run stores nothing", dry_run=True),
    submitting("a run with a label", label="project=vision"),
    submitting("a reserved label", label="moorage.dev/run=x", code="invalid",
               message="label 'moorage.dev/run' is reserved"),
    submitting("an invalid label", label="project=-", code="invalid",
               message="invalid value '-' of label project"),
    Case(
        name="an invalid selector",
        moor=["jobs", "-l", "project=-"],
        rest=("GET", f"/api/v1/jobs?namespace={NAMESPACE}&selector=project%3D-", None),
        sdk=lambda client: list(client.jobs.list(selector="project=-")),
        code="bad_request",
        needs_server=True,
        message="'project=-' is not a label requirement",
    ),
    Case(
        name="an invalid moment",
        moor=["jobs", "--since", "yesterday"],
        rest=("GET", f"/api/v1/jobs?namespace={NAMESPACE}&since=yesterday", None),
        sdk=lambda client: list(client.jobs.list(since="yesterday")),
        code="bad_request",
        needs_server=True,
        message="invalid since 'yesterday': use a span, a day or a time",
    ),
    submitting(
        "the name is taken",
        seed=a_run("train"),
        code="exists",
        message="the name 'train' is taken in namespace lab",
    ),
    submitting("a bad name", name="-x", code="invalid", message="invalid run name '-x': use at most 52 of a-z, 0-9"
               " and '-', beginning and ending with a letter or digit"),
    submitting("a part of a CPU, as a number", cpu=0.5),
    submitting("bad memory", memory="much", code="invalid",
               message="invalid memory 'much': use a quantity such as 512Mi, 8Gi or 1.5G"),
    submitting("memory without a unit", memory="8", code="invalid", message="invalid memory '8': less than 1 MiB"),
    submitting("bad time", time="soon", code="invalid",
               message="invalid time limit 'soon': the range is 1s to 365d"),
    submitting("no image", image=None, code="invalid", message="no image given, and this cluster needs one"),
    submitting("an unknown GPU type", gpus=1, gpu_type="h100", code="invalid",
               message="GPU type 'h100' not found on any node"),
    submitting("more GPUs than any node has", gpus=3, code="invalid",
               message="3 GPUs asked for; the largest node with GPUs has 2 (gpu-1)"),
    submitting("a volume that is not there", volume="data:/data", code="invalid",
               message="volume 'data' not found in namespace lab"),
    submitting("a NUL in the command", command=("python", "a\0b"), code="invalid",
               message="invalid command: a word contains a NUL character"),
    submitting("an empty command", command=("",), code="invalid", message="no command given"),
    submitting("retries without a limit", memory="none", retries=1, code="invalid",
               message="retries 1 cannot be combined with memory none:"
               " retries without a limit could fill one node after another"),
    submitting("several problems at once", memory="0", grace_period=0, code="invalid",
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
    about_run("a run is explained", "train", "explain", seed=a_run("train")),
    about_run("no run to explain", "trian", "explain", seed=a_run("train"), code="not_found", message=NO_RUN),
    about_run("a name that no run can have", "A,b", "logs", code="not_found",
              message="run 'A,b' not found in namespace lab"),
]  # fmt: skip

# -- volumes, workspaces, datasets


def seeds(*seeded: Seed) -> Seed:
    def seed(cluster: Cluster) -> None:
        for each in seeded:
            each(cluster)

    return seed


def a_volume(name: str = "data", *, expands: bool | None = None, used: bool = False) -> Seed:
    """A volume of 10Gi; `expands`: what its StorageClass says, None: it has none; `used`: a pod mounts it."""

    def seed(cluster: Cluster) -> None:
        asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}
        if expands is not None:
            storage_class = {"metadata": {"name": "disks"}, "provisioner": "x", "allowVolumeExpansion": expands}
            cluster.put(STORAGECLASSES, storage_class)
            asked["storageClassName"] = "disks"
        cluster.put(PVCS, {"metadata": {"namespace": NAMESPACE, "name": name}, "spec": asked})
        if used:
            mount = {"name": "v", "persistentVolumeClaim": {"claimName": name}}
            cluster.put(
                PODS,
                {
                    "metadata": {"namespace": NAMESPACE, "name": "p", "labels": {"moorage.dev/run": "train"}},
                    "spec": {"containers": [], "volumes": [mount]},
                    "status": {"phase": "Running"},
                },
            )

    return seed


def creating_volume(case: str, /, *, size: str = "10Gi", **outcome: Any) -> Case:
    body = {"name": "data", "namespace": NAMESPACE, "size": size}
    return Case(
        name=case,
        moor=["volume", "create", "data", "--size", size],
        rest=("POST", "/api/v1/volumes", body),
        sdk=lambda client: client.volumes.create("data", size),
        **outcome,
    )


def resizing(case: str, size: str, /, **outcome: Any) -> Case:
    return Case(
        name=case,
        moor=["volume", "resize", "data", size],
        rest=("PATCH", f"/api/v1/volumes/{NAMESPACE}/data", {"size": size}),
        sdk=lambda client: client.volumes.resize("data", size),
        **outcome,
    )


def deleting(case: str, kind: str, name: str, /, *, force: bool = False, **outcome: Any) -> Case:
    """A volume or a dataset."""
    return Case(
        name=case,
        moor=[kind, "delete", name, "--yes", *(["--force"] if force else [])],
        rest=("DELETE", f"/api/v1/{kind}s/{NAMESPACE}/{name}" + ("?force=true" if force else ""), None),
        sdk=lambda client: getattr(client, f"{kind}s").delete(name, force=force),
        **outcome,
    )


NO_VOLUME = "volume 'data' not found in namespace lab"

VOLUMES = [
    creating_volume("a volume is created"),
    creating_volume("a volume whose name is taken", seed=a_volume(), code="exists", exit_code=1,
                    message="the name 'data' is taken: another volume in namespace lab has it"),
    creating_volume("a volume of no size", size="0", code="invalid",
                    message="invalid size '0': use more than zero, such as 10Gi"),
    resizing("a volume grows", "20Gi", seed=a_volume(expands=True)),
    resizing("a volume that has the size already", "10Gi", seed=a_volume(expands=False)),
    resizing("a volume cannot become smaller", "5Gi", seed=a_volume(expands=True), code="conflict", exit_code=2,
             message="cannot make volume 'data' smaller: it has 10Gi, 5Gi was asked for"),
    resizing("a class that cannot expand volumes", "20Gi", seed=a_volume(expands=False), code="conflict",
             message="cannot resize volume 'data': its StorageClass disks does not allow expansion"),
    resizing("no volume to resize", "20Gi", code="not_found", message=NO_VOLUME),
    deleting("a volume is deleted", "volume", "data", seed=a_volume()),
    deleting("a volume in use", "volume", "data", seed=a_volume(used=True), code="in_use",
             message="volume 'data' is in use by train"),
    deleting("a volume in use, by force", "volume", "data", force=True, seed=a_volume(used=True)),
    deleting("no volume to delete", "volume", "data", code="not_found", message=NO_VOLUME),
]  # fmt: skip


def a_workspace(*, running: bool = True) -> Seed:
    spec = {"type": "jupyterlab", "running": running}
    return lambda cluster: cluster.put(
        WORKSPACES, {"metadata": {"namespace": NAMESPACE, "name": "desk"}, "spec": spec}
    )


def templates(cluster: Cluster) -> None:
    """An admin's templates: one that can be used, and one that cannot be read."""
    for name, text in (("rstudio", "{command: [rserver], port: 8787}"), ("broken", "port: none")):
        meta = {"namespace": SYSTEM_NAMESPACE, "name": f"workspace-{name}", "labels": {TEMPLATE_LABEL: name}}
        cluster.put(CONFIGMAPS, {"metadata": meta, "data": {"template.yaml": text}})


def creating_workspace(
    case: str, /, *, name: str = "desk", cpu: str | float = "2", type: str = "jupyterlab", **outcome: Any
) -> Case:
    spec = {"type": type, "resources": {"cpu": cpu}}
    return Case(
        name=case,
        moor=["workspace", "create", name, "--cpu", str(cpu), "--type", type],
        rest=("POST", "/api/v1/workspaces", {"name": name, "namespace": NAMESPACE, "spec": spec}),
        sdk=lambda client: client.workspaces.create(name, cpu=cpu, type=type),
        **outcome,
    )


def switching(case: str, verb: str, /, **outcome: Any) -> Case:
    return Case(
        name=case,
        moor=["workspace", verb, "desk"],
        rest=("POST", f"/api/v1/workspaces/{NAMESPACE}/desk/{verb}", None),
        sdk=lambda client: getattr(client.workspaces, verb)("desk"),
        **outcome,
    )


def deleting_workspace(case: str, /, *, home: bool = False, **outcome: Any) -> Case:
    path = f"/api/v1/workspaces/{NAMESPACE}/desk"
    return Case(
        name=case,
        moor=["workspace", "delete", "desk", "--yes", *(["--delete-home"] if home else [])],
        rest=("DELETE", f"{path}?deleteHome=true" if home else path, None),
        sdk=lambda client: client.workspaces.delete("desk", delete_home=home),
        **outcome,
    )


def listing(case: str, noun: str, /, *words: str, query: str = f"?namespace={NAMESPACE}", **outcome: Any) -> Case:
    return Case(
        name=case,
        moor=[noun, "list", "-o", "json", *words],
        rest=("GET", f"/api/v1/{noun}s{query}", None),
        sdk=lambda client: list(getattr(client, f"{noun}s").list(all_namespaces="-A" in words)),
        lists=True,
        **outcome,
    )


def confined(cluster: Cluster) -> None:
    """USER may list nothing of all namespaces; beside theirs there is another with a workspace."""
    cluster.confines = True
    cluster.readers.add((USER, NAMESPACE))
    cluster.put(WORKSPACES, {"metadata": {"namespace": "vision", "name": "other"}, "spec": {"type": "jupyterlab"}})


NO_WORKSPACE = "workspace 'desk' not found in namespace lab"

WORKSPACE_CASES = [
    listing("workspaces are listed", "workspace", seed=a_workspace()),
    listing("workspaces of all namespaces are listed", "workspace", "-A", query="", seed=a_workspace()),
    listing("workspaces of the namespaces in which the user may list them", "workspace", "-A", query="",
            seed=seeds(a_workspace(), confined), needs_server=True),
    creating_workspace("a workspace is created"),
    creating_workspace("a workspace whose name is taken", seed=a_workspace(), code="exists", exit_code=1,
                       message="the name 'desk' is taken: another workspace in namespace lab has it"),
    creating_workspace("a workspace with a part of a CPU, as a number", cpu=0.5),
    creating_workspace("a workspace of no CPUs", cpu="0", code="invalid",
                       message="resources.cpu: '0' must be a quantity above zero, such as 500m, 2 or 8Gi"),
    creating_workspace("a workspace whose name is too long", name="d" * 44, code="invalid",
                       message=f"name: '{'d' * 44}' must be at most 43 of a-z, 0-9 and '-',"
                       " a letter or digit at both ends"),
    creating_workspace("a workspace of an admin's type", type="rstudio", seed=templates),
    creating_workspace("a workspace of an unknown type", type="rstudo", seed=templates, code="invalid",
                       message="type: 'rstudo' must be one of codeserver, jupyterlab, rstudio"
                       " (did you mean rstudio?)"),
    creating_workspace("a workspace of an invalid template", type="broken", seed=templates, code="invalid",
                       message="type: 'broken' this template is invalid: ConfigMap workspace-broken,"
                       " template.yaml: Expected `int`, got `str` - at `$.port`"),
    switching("a workspace is started", "start", seed=a_workspace(running=False)),
    switching("a workspace that runs is started", "start", seed=a_workspace()),
    switching("a workspace is stopped", "stop", seed=a_workspace()),
    switching("no workspace to start", "start", code="not_found", message=NO_WORKSPACE),
    deleting_workspace("a workspace is deleted, its home stays", seed=seeds(a_workspace(), a_volume("desk-home"))),
    deleting_workspace("a workspace is deleted with its home", home=True,
                       seed=seeds(a_workspace(), a_volume("desk-home"))),
    deleting_workspace("a workspace without a home is deleted with it", home=True, seed=a_workspace()),
    deleting_workspace("no workspace to delete", code="not_found", message=NO_WORKSPACE),
]  # fmt: skip


def a_dataset(*, reader: bool = False) -> Seed:
    """`reader`: a run of another namespace mounts it."""
    use = {"namespace": "vision", "name": "eval", "active": True}
    return lambda cluster: cluster.put(
        DATASETS,
        {
            "metadata": {"namespace": NAMESPACE, "name": "photos"},
            "spec": {"source": {"url": "s3://b/x"}, "size": "1Gi", "readers": ["vision"]},
            "status": {"phase": "Ready", "usedBy": [use] if reader else []},
        },
    )


def creating_dataset(case: str, /, *, name: str = "photos", source: str = "s3://b/x", **outcome: Any) -> Case:
    spec = {"source": {"url": source}, "size": "1Gi"}
    return Case(
        name=case,
        moor=["dataset", "create", name, "--source", source, "--size", "1Gi"],
        rest=("POST", "/api/v1/datasets", {"name": name, "namespace": NAMESPACE, "spec": spec}),
        sdk=lambda client: client.datasets.create(name, source, "1Gi"),
        **outcome,
    )


def sharing(case: str, readers: Sequence[str], /, *, words: Sequence[str], **outcome: Any) -> Case:
    return Case(
        name=case,
        moor=["dataset", "share", "photos", *words],
        rest=("PATCH", f"/api/v1/datasets/{NAMESPACE}/photos", {"readers": readers}),
        sdk=lambda client: client.datasets.share("photos", readers),
        **outcome,
    )


def a_shared_dataset(*names: str) -> Seed:
    """What the namespace vision shares with this one: the claims that the operator made here."""

    def seed(cluster: Cluster) -> None:
        for name in names:
            cluster.put(
                PVCS,
                {
                    "metadata": {
                        "namespace": NAMESPACE,
                        "name": f"dataset-vision-{name}",
                        "labels": {"moorage.dev/dataset-namespace": "vision", "moorage.dev/dataset": name},
                    },
                    "spec": {},
                    "status": {"phase": "Bound", "capacity": {"storage": "10Gi"}},
                },
            )

    return seed


NO_DATASET = "dataset 'photos' not found in namespace lab"

DATASET_CASES = [
    creating_dataset("a dataset is created"),
    creating_dataset("a dataset whose name is taken", seed=a_dataset(), code="exists", exit_code=1,
                     message="the name 'photos' is taken: another dataset in namespace lab has it"),
    creating_dataset("a dataset from nowhere", source="volume:../x", code="invalid",
                     message="source.url: 'volume:../x' must be volume:NAME or volume:NAME/FOLDER,"
                     " without .. in it"),
    creating_dataset("a dataset whose name is too long", name="p" * 41, code="invalid",
                     message=f"name: '{'p' * 41}' must be at most 40 of a-z, 0-9 and '-'"),
    sharing("a dataset is shared with one more", ["vision", "speech"], words=["--with", "speech"],
            seed=a_dataset()),
    sharing("a dataset is shared with one less", [], words=["--without", "vision"], seed=a_dataset()),
    sharing("no dataset to share", ["speech"], words=["--with", "speech"], code="not_found", message=NO_DATASET),
    listing("datasets are listed", "dataset", seed=a_dataset()),
    listing("datasets that others share are listed, too", "dataset",
            seed=seeds(a_dataset(), a_shared_dataset("scans", "faces"))),
    deleting("a dataset is deleted", "dataset", "photos", seed=a_dataset()),
    deleting("a dataset in use here", "dataset", "photos", code="in_use",
             seed=seeds(a_dataset(), a_volume("dataset-photos", used=True)),
             message="dataset 'photos' is in use by train"),
    deleting("a dataset in use elsewhere", "dataset", "photos", seed=a_dataset(reader=True), code="in_use",
             message="dataset 'photos' is in use by vision/eval"),
    deleting("a dataset in use, by force", "dataset", "photos", force=True,
             seed=seeds(a_dataset(reader=True), a_volume("dataset-photos", used=True))),
    deleting("no dataset to delete", "dataset", "photos", code="not_found", message=NO_DATASET),
]  # fmt: skip

CASES: list[Case] = [*RUNS, *VOLUMES, *WORKSPACE_CASES, *DATASET_CASES]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_every_way_in_gives_the_same(case: Case, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    outcomes = {}
    way_of_command = CommandLineByServer(capsys) if case.needs_server else CommandLine(capsys)
    ways: list[Way] = [Rest(), PythonClient(), way_of_command]
    for way in ways:
        cluster = Cluster()
        case.seed(cluster)
        outcome = way(case, cluster)
        outcomes[type(way).__name__] = replace(outcome, objects=cluster.objects())
    first = outcomes[type(way_of_command).__name__]
    assert not case.lists or first.listed
    assert (first.code, first.message) == (case.code, case.message)
    assert outcomes == dict.fromkeys(outcomes, first)
