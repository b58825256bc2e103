"""One table of cases for maps, run through each way in: `moor` by kubeconfig and by login, REST over HTTP,
and `moorage.Map`.

A case says what there is, what is asked in the words of each way, and what comes of it: the code and the message
of the error, the maps that are in the queue afterwards, and the objects of the cluster. All ways must give the
same. A way that cannot ask for something (None) is left out: the SDK adds no items later and runs functions only.
REST without workers makes the same map in the queue, and no object.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from moorage.actions import maps
from moorage.cli.main import main
from moorage.cli.session import Session, Target
from moorage.client.cluster import SELF_SUBJECT_REVIEWS, Cluster, server_of
from moorage.client.connection import Connection, at_url
from moorage.client.itemspool import spool
from moorage.decide.maps.leasing import Policy
from moorage.decide.maps.mapjob import NO_ITEM
from moorage.decide.rates import Rate
from moorage.decide.runs.job import PASSED_ON
from moorage.model.mapjob import MAPJOBS
from moorage.model.names import (
    COMMAND_ANNOTATION,
    INFO_CONFIGMAP,
    PROCESS_RUNTIME,
    REQUEST_ANNOTATION,
    SYSTEM_NAMESPACE,
)
from moorage.sdk.functions import pack
from moorage.sdk.local import loop
from moorage.sdk.maps import AsyncMap, Options
from moorage.server.identity.sessions import SessionStore
from moorage.server.service import ServerService
from moorage_kube.clock import SYSTEM
from moorage_kube.errors import Forbidden, MoorageError
from moorage_kube.meta import is_deleting
from moorage_kube.remote.config import Connection as KubeConnection
from moorage_kube.resources import CONFIGMAPS, NODES, PVCS, Obj, Resource
from moorage_kube.serving import serve
from moorage_local.testing.fakeapi import FakeApi

NAMESPACE = "lab"
USER = "ada"
TOKEN = "kube-token"
USAGE_CODES = ("invalid", "exists", "bad_request")  # exit code 2; all others: 1
STAMPS = ("uid", "createdAt", "itemsPerSecond", "secondsLeft")
COMMAND = ("python3", "make.py", "{item}")
OF_THE_WAY = (COMMAND_ANNOTATION, REQUEST_ANNOTATION)
MAPS = f"/api/v1/maps/{NAMESPACE}"
RETRIES = Policy().retries  # commands have it by default, functions have none

Use = Callable[["Sdk"], Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """`rest` are (method, path, body), one after the other; `code` and `message` are of the error, if any."""

    name: str
    moor: Sequence[str] | None
    rest: Sequence[tuple[str, str, Any]]
    alone: bool = False  # it can be asked without workers, of the queue alone
    sdk: Use | None = None
    seed: bool = True  # there is a map `m` with three items
    closed: bool = True  # no more items may be added to it
    code: str = ""
    message: str = ""


@dataclass(frozen=True)
class Outcome:
    """What came of a case: the error, the maps and limits that are in the queue now, and the cluster's objects."""

    code: str = ""
    message: str = ""
    maps: list[Any] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)


class Api(FakeApi):
    """A cluster in memory in which everything is done as USER."""

    def __init__(self) -> None:
        super().__init__(users={TOKEN: USER})
        self.readers |= {(USER, NAMESPACE), (USER, None)}
        self.tokens: set[str] = set()  # that were used to act as their users
        self.refused: Resource | None = None  # may not be created
        amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"}
        status = {
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"containerRuntimeVersion": f"{PROCESS_RUNTIME}1"},
        }
        self.put(NODES, {"metadata": {"name": "n1"}, "spec": {}, "status": status})
        claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        self.put(PVCS, {"metadata": {"name": "data", "namespace": NAMESPACE}, "spec": claim})

    def with_token(self, token: str, *_: str) -> Api:
        self.tokens.add(token)
        return self

    async def create(self, resource: Resource, obj: Obj, *args: Any, **options: Any) -> Obj:
        if resource == SELF_SUBJECT_REVIEWS:
            return {"status": {"userInfo": {"username": USER}}}
        if resource == self.refused:
            raise Forbidden(f"{USER} may not create {resource.plural}")
        return await super().create(resource, obj, *args, **options)


class Site:
    """The server over the cluster, on loopback, in the SDK's own loop."""

    def __init__(self, folder: Path) -> None:
        self.api = Api()
        self.service = ServerService(
            self.api, usage_db=folder / "usage.db", page_token="page", clock=SYSTEM, rate=Rate(per_second=0)
        )
        self._sock = socket.create_server(("127.0.0.1", 0))
        self._sock.setblocking(False)
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"
        info = {"name": INFO_CONFIGMAP, "namespace": SYSTEM_NAMESPACE}
        self.api.put(CONFIGMAPS, {"metadata": info, "data": {"serverUrl": self.url}})
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self.service.run()),
            asyncio.create_task(serve(self.service.app, self._sock, stop=self._stop)),
        ]

    async def stop(self) -> None:
        self._stop.set()
        await self._tasks[1]
        self._tasks[0].cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def state(self) -> list[Any]:
        """The maps and limits in the queue, without what differs from one to the next."""
        queue = self.service.queue
        stored = await queue.read(lambda store: store.list_maps(None))
        limits = await queue.read(lambda store: store.limits())
        shown = [msgspec.to_builtins(maps.map_of(one, rate=None)) for one in stored]
        return [{key: one[key] for key in one if key not in STAMPS} for one in shown] + [
            (limit.name, limit.capacity) for limit in limits
        ]

    async def objects(self) -> list[Any]:
        """The MapJobs, without what is of one way alone: the command or function, and the caller's machine."""
        shown = []
        for mapjob in (await self.api.list(MAPJOBS, NAMESPACE)).items:
            meta, spec = mapjob["metadata"], dict(mapjob["spec"])
            if is_deleting(mapjob):
                continue
            function = spec.pop("function", None)
            assert bool(spec.pop("command", None)) != bool(function)
            policy = dict(spec.pop("policy", {}))
            if function and policy.get("retries") == RETRIES:
                del policy["retries"]
            if policy:
                spec["policy"] = policy
            notes = {key: value for key, value in meta["annotations"].items() if key not in OF_THE_WAY}
            pod = dict(spec["template"]["spec"])
            container = {key: value for key, value in pod["containers"][0].items() if key != "workingDir"}
            container["env"] = [variable for variable in container["env"] if variable["name"] not in PASSED_ON]
            spec["template"] = spec["template"] | {"spec": pod | {"containers": [container]}}
            shown.append((meta["name"], meta["labels"], notes, spec))
        return shown

    def rest(self, method: str, path: str, body: Any = None) -> Any:
        """The answer. Raises HTTPError."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, method=method, data=data, headers=headers)
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read())

    def refusal(self, body: Any) -> tuple[int, str, str | None]:
        """Status, code and field of the answer to a map that cannot be created."""
        with pytest.raises(urllib.error.HTTPError) as caught:
            self.rest("POST", MAPS, body)
        with caught.value as error:
            answer = json.loads(error.read())
        return error.code, answer["code"], answer.get("field")


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Site]:
    folder.mkdir()

    async def start() -> Site:
        made = Site(folder)
        await made.start()
        return made

    site = loop().run(start())
    try:
        yield site
    finally:
        loop().run(site.stop())


# -- the ways in


class CommandLine:
    """`moor map`, as typed; the server is found by the cluster's ConfigMap, or by the login."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *, by_login: bool) -> None:
        self._capsys = capsys
        self._by_login = by_login

    def __call__(self, case: Case, site: Site) -> tuple[str, str] | None:
        @contextlib.asynccontextmanager
        async def opener(_target: Target) -> AsyncIterator[Session]:
            by_kubeconfig = server_of(site.api, KubeConnection(server="https://x", token=TOKEN))
            server = Connection(at_url(site.url, TOKEN)) if self._by_login else by_kubeconfig
            try:
                yield Session(api=site.api, namespace=NAMESPACE, server=server)  # type: ignore[arg-type]
            finally:
                await server.close()

        if case.moor is None:
            return None
        self._capsys.readouterr()
        exit_code = main(["map", *case.moor], opener=opener)
        lines = self._capsys.readouterr().err.splitlines()
        message = "; ".join(line.removeprefix("error: ") for line in lines if line.startswith("error: "))
        assert exit_code == (0 if not case.code else 2 if case.code in USAGE_CODES else 1), message
        return case.code, message  # of the code, a terminal shows the exit code alone


class Rest:
    """HTTP, as any program sends it."""

    def __init__(self, *, workers: bool = True) -> None:
        self._workers = workers

    def __call__(self, case: Case, site: Site) -> tuple[str, str] | None:
        if not self._workers and not case.alone:
            return None
        try:
            for method, path, body in case.rest:
                if not self._workers and isinstance(body, dict):
                    body = {key: value for key, value in body.items() if key != "workers"}
                site.rest(method, path, body)
        except urllib.error.HTTPError as error:
            with error:
                answer = json.loads(error.read())
            return answer["code"], answer["message"]
        return "", ""


class Sdk:
    """`moorage.Map`, as its handle on the SDK's loop."""

    def __init__(self) -> None:
        self._site: Site

    def __call__(self, case: Case, site: Site) -> tuple[str, str] | None:
        if case.sdk is None:
            return None
        self._site = site
        try:
            loop().run(case.sdk(self))
        except MoorageError as error:
            return error.code, error.message
        return "", ""

    @contextlib.asynccontextmanager
    async def _opener(self, _target: Any) -> AsyncIterator[Cluster]:
        site = self._site
        server = Connection(at_url(site.url, TOKEN))
        try:
            yield Cluster(api=site.api, namespace=NAMESPACE, server=server)  # type: ignore[arg-type]
        finally:
            await server.close()

    async def start(self, **options: Any) -> None:
        given = Options(**{"progress": False, "retries": RETRIES} | options)
        made: AsyncMap[Any] = await AsyncMap.start(pack("json:dumps"), spool(range(3)), given, "m", self._opener)
        assert made._uploading is not None
        await made._uploading
        await made.close()

    async def use(self, name: str, verb: str) -> None:
        found: AsyncMap[Any] = await AsyncMap.attach(name, Options(progress=False), self._opener)
        try:
            await getattr(found, verb)()
        finally:
            await found.close()


# -- cases


def lines(values: range) -> bytes:
    return b"".join(b'{"value":%d}\n' % value for value in values)


def making(
    case: str,
    *words: str,
    body: dict[str, Any] | None = None,
    options: dict[str, Any] | None = {},  # noqa: B006  (read only)
    workers: dict[str, Any] | None = None,
    command: Sequence[str] = COMMAND,
    map_name: str = "m",
    seed: bool = False,
    code: str = "",
    message: str = "",
) -> Case:
    """`moor map create` and its kin: a map of three numbers. `workers`: their fields over REST."""
    of_workers = {"command": list(command)} | (workers or {})
    return Case(
        name=case,
        moor=["create", map_name, "--range", "0:3", *words, "--", *command],
        rest=[
            ("POST", MAPS, {"name": map_name, "request": "r1", "workers": of_workers} | (body or {})),
            ("POST", f"{MAPS}/{map_name}/items?first=0&close=true", lines(range(3))),
        ],
        alone=workers is None,
        sdk=None if options is None else lambda sdk: sdk.start(name=map_name, **options),
        seed=seed,
        code=code,
        message=message,
    )


def about(
    case: str, words: Sequence[str], verb: str, *rest: tuple[str, str, Any], map_name: str = "m", message: str = ""
) -> Case:
    """What is done to a map that is there, or to none."""
    return Case(
        name=case,
        moor=[*words, map_name],
        rest=[(method, f"{MAPS}/{map_name}{path}", body) for method, path, body in rest],
        sdk=(lambda sdk: sdk.use(map_name, verb)) if verb else None,
        code="not_found" if message else "",
        message=message,
    )


def adding(case: str, map_name: str = "m", *, closed: bool, code: str = "", message: str = "") -> Case:
    return Case(
        name=case,
        moor=["add", map_name, "--range", "3:5"],
        rest=[("POST", f"{MAPS}/{map_name}/items", lines(range(3, 5)))],
        closed=closed,
        code=code,
        message=message,
    )


NO_MAP = "map 'n' not found in namespace lab"
CANCEL = ("PATCH", "", {"state": "cancelled"})

CASES = [
    making("a map is made"),
    making(
        "a map with limits and a policy",
        *("--limit", "mysql=20:2", "--retries", "5", "--time", "90s", "--rate", "7"),
        body={"limits": {"mysql": {"tokens": 2, "capacity": 20}},
              "policy": {"retries": 5, "timeSeconds": 90, "rate": 7}},
        options={"limits": {"mysql": "20:2"}, "retries": 5, "time": 90, "rate": 7},
    ),
    making("the name is taken", seed=True, code="exists",
           message="the name 'm' is taken: another map in namespace lab has it"),
    making("a bad name", map_name="M", code="invalid", message="invalid map name 'M': use at most 52 of a-z, 0-9"
           " and '-', beginning and ending with a letter or digit"),
    making("a limit that nobody made", "--limit", "mysql", body={"limits": {"mysql": {}}}, options=None,
           code="invalid", message="the limit 'mysql', which map lab/m uses, does not exist"),
    making(
        "a map with all that workers have",
        *("--parallelism", "4", "--slots", "2", "--cpu", "500m", "--memory", "1Gi", "--volume", "data:/data:ro"),
        *("--env", "A=1", "--priority", "3", "--max-memory", "2Gi", "--idempotent"),
        *("--spot", "--notify", "mailto:ada@example.org"),
        body={"priority": 3, "policy": {"maxMemoryBytes": 2 * 2**30, "idempotent": True}},
        workers={"parallelism": 4, "slots": 2, "cpu": "500m", "memory": "1Gi", "volumes": ["data:/data:ro"],
                 "env": {"A": "1"}, "spot": True, "notify": ["mailto:ada@example.org"]},
        options={"parallelism": 4, "slots": 2, "cpu": "500m", "memory": "1Gi",
                 "volumes": ("data:/data:ro",), "env": {"A": "1"}, "priority": 3, "max_memory": "2Gi",
                 "idempotent": True, "spot": True, "notify": ("mailto:ada@example.org",)},
    ),
    making("paths are tried first, and few workers replaced",
           *("--preflight-read", "/a", "--preflight-write", "/b", "--restart-limit", "0"),
           workers={"preflightRead": ["/a"], "preflightWrite": ["/b"], "restartLimit": 0}, options=None),
    making("no command", command=("",), workers={}, options=None, code="invalid", message="no command given"),
    making("a bad command", command=("python3", "a\0b"), workers={}, options=None, code="invalid",
           message="invalid command: a word contains a NUL character"),
    making("a part of a CPU, as a number", "--cpu", "0.5", workers={"cpu": 0.5}, options={"cpu": 0.5}),
    making("a bad resource", "--cpu", "much", workers={"cpu": "much"}, options={"cpu": "much"},
           code="invalid", message="invalid cpu 'much': use a quantity such as 500m, 2 or 1.5"),
    making("no volume of that name", "--volume", "lost:/data", workers={"volumes": ["lost:/data"]},
           options={"volumes": ("lost:/data",)}, code="invalid",
           message="volume 'lost' not found in namespace lab"),
    making("too many workers", "--parallelism", "0", workers={"parallelism": 0}, options={"parallelism": 0},
           code="invalid", message="invalid parallelism 0: use 1 to 10,000"),
    about("a map is shown", ["status"], "status", ("GET", "", None)),
    about("no map to show", ["status"], "status", ("GET", "", None), map_name="n", message=NO_MAP),
    about("a map is cancelled", ["cancel"], "cancel", CANCEL),
    about("no map to cancel", ["cancel"], "cancel", CANCEL, map_name="n", message=NO_MAP),
    about("a map is retried", ["retry"], "retry", ("POST", "/retry", None)),
    about("no map to retry", ["retry"], "retry", ("POST", "/retry", None), map_name="n", message=NO_MAP),
    about("a map is paused", ["pause"], "", ("PATCH", "", {"state": "paused"})),
    about("no map to pause", ["pause"], "", ("PATCH", "", {"state": "paused"}), map_name="n", message=NO_MAP),
    about("a map is deleted", ["delete"], "delete", ("DELETE", "", None)),
    about("no map to delete", ["delete"], "", ("DELETE", "", None), map_name="n", message=NO_MAP),
    adding("items are added", closed=False),
    adding("items are added to a closed map", closed=True, code="conflict",
           message="cannot add items: the map 'm' in namespace lab is closed"),
    adding("no map to add to", "n", closed=False, code="not_found", message=NO_MAP),
    Case(name="items of an unknown state", moor=["items", "m", "--state", "lost"],
         rest=[("GET", f"{MAPS}/m/items?state=lost", None)], code="bad_request",
         message="invalid state 'lost': use ready, waiting, running, done, failed"),
    Case(name="a limit is set", moor=["limits", "set", "mysql", "40"],
         rest=[("PUT", "/api/v1/limits/mysql", {"capacity": 40})]),
]  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_every_way_in_gives_the_same(case: Case, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    outcomes: dict[str, Outcome] = {}
    ways = {
        "REST": Rest(),
        "REST without workers": Rest(workers=False),
        "moor by kubeconfig": CommandLine(capsys, by_login=False),
        "moor by server": CommandLine(capsys, by_login=True),
        "SDK": Sdk(),
    }
    for name, way in ways.items():
        with served(tmp_path / name) as site:
            if case.seed:
                site.rest("POST", MAPS, {"name": "m", "request": "seed"})
                close = str(case.closed).lower()
                site.rest("POST", f"{MAPS}/m/items?first=0&close={close}", lines(range(3)))
            answer = way(case, site)
            if answer is not None:
                outcomes[name] = Outcome(*answer, loop().run(site.state()), loop().run(site.objects()))
    first = outcomes["REST"]
    assert (first.code, first.message) == (case.code, case.message)
    assert not (case.code and first.objects), "what is refused leaves nothing behind"
    alone = outcomes.pop("REST without workers", None)
    assert alone in (None, replace(first, objects=[]))
    assert outcomes == dict.fromkeys(outcomes, first)


# -- workers over REST

NEW_MAP: dict[str, Any] = {"name": "m", "request": "r1", "workers": {"command": list(COMMAND)}}


@pytest.fixture
def site(tmp_path):
    with served(tmp_path / "site") as made:
        yield made


def left(site: Site) -> tuple[list[Any], list[Any]]:
    return loop().run(site.state()), loop().run(site.objects())


def test_the_same_request_makes_one_map_with_its_workers(site):
    first = site.rest("POST", MAPS, NEW_MAP)
    again = site.rest("POST", MAPS, NEW_MAP)
    assert (first["uid"], first["owner"]) == (again["uid"], USER)
    assert first["notes"] == [
        "no memory given: limited to 2Gi, the default; a worker that grows beyond it is killed"
    ]
    stored, objects = left(site)
    assert (len(stored), len(objects)) == (1, 1)
    assert site.api.tokens == {TOKEN}, "everything is done as the user who asks"


def test_the_same_request_with_other_values_is_refused(site):
    site.rest("POST", MAPS, NEW_MAP)
    before = left(site)
    other = NEW_MAP | {"workers": {"command": ["true"]}}
    assert site.refusal(other) == (422, "key_reused", "request")
    assert site.refusal(NEW_MAP | {"request": "r2"}) == (409, "exists", "name")
    assert left(site) == before


def test_a_map_without_workers_and_one_with_them_cannot_share_a_name(site):
    site.rest("POST", MAPS, {"name": "m", "request": "r1"})
    before = left(site)
    assert site.refusal(NEW_MAP) == (409, "exists", "name")
    assert left(site) == before


@pytest.mark.parametrize(
    ("workers", "field"),
    [
        ({}, "workers"),
        ({"command": "true"}, "workers.command"),
        ({"command": ["true"], "gpu": 1}, "workers"),
        ({"command": ["true"], "parallelism": "4"}, "workers.parallelism"),
        ({"command": []}, "command"),
        ({"command": ["true"], "env": {"A=B": "1"}}, "env"),
        ({"command": ["true"], "slots": 10**6}, "slots"),
    ],
)
def test_workers_are_decoded_strictly(site, workers, field):
    assert site.refusal(NEW_MAP | {"workers": workers}) == (422, "invalid", field)
    assert left(site) == ([], [])


def test_who_may_not_create_maps_creates_no_workers(site):
    site.api.readers.clear()
    assert site.refusal(NEW_MAP) == (403, "forbidden", None)
    assert left(site) == ([], [])


def test_a_mapjob_that_the_cluster_refuses_leaves_no_map(site):
    site.api.refused = MAPJOBS
    assert site.refusal(NEW_MAP) == (403, "forbidden", None)
    assert left(site) == ([], [])


def test_the_audit_log_names_the_map(site):
    site.rest("POST", MAPS, NEW_MAP)
    loop().run(site.service.audit.flush())
    entries = loop().run(site.service.sessions.do(SessionStore.audit))
    assert [(entry.person, entry.what) for entry in entries] == [(USER, "create map lab/m")]


def test_a_command_that_does_not_name_the_item_is_warned_of(site):
    created = site.rest("POST", MAPS, NEW_MAP | {"workers": {"command": ["python", "square.py"]}})
    assert NO_ITEM in created["notes"]
