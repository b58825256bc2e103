"""`moor map` as typed: a real queue and server on this machine, a Kubernetes API in memory, the server's part of a
MapJob played by `Bridge`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import msgspec
import pytest
import yaml

from moorage.api.maps import NewMap
from moorage.cli.main import main
from moorage.cli.session import Session, Target
from moorage.client.connection import Connection, at_url
from moorage.client.maps import AT_ONCE, UPLOAD_LINES, MapClient
from moorage.model.mapjob import MAPJOBS
from moorage.sdk.local import LocalSite, loop
from moorage.sdk.maps import Map
from moorage.server.identity.auth import User
from moorage_kube.clock import SYSTEM, Clock
from moorage_kube.errors import Conflict, Invalid, NotFound, ServerError
from moorage_kube.resources import CONFIGMAPS, NODES, PVCS, SECRETS, Obj, Resource
from moorage_kube.serving import serve
from moorage_kube.testing.builders import an_object
from moorage_kube.testing.clock import QuickClock

PRICES = {
    "source": "made up",
    "date": "2026-01-01",
    "currency": "USD",
    "machines": [
        {"name": "big", "cpu": 8, "memory": "32Gi", "disk": "100Gi", "prices": [{"region": "r", "onDemand": 1.0}]}
    ],
}


class Served(LocalSite):
    """A local site whose users' part has an address too.

    `added`: the first number of each request for more items; those at the turns of `failing` get no answer.
    """

    added: list[int]
    failing: frozenset[int] = frozenset()

    async def _start(self) -> None:
        await super()._start()
        self.added = []
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.sock.setblocking(False)
        self.address = f"http://127.0.0.1:{self.sock.getsockname()[1]}"

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope.setdefault("state", {})["user"] = User("local")
            if scope["path"].endswith("/items") and scope["method"] == "POST":
                query = parse_qs(scope["query_string"].decode())
                self.added.append(int(query.get("first", ["0"])[0]))
                if len(self.added) in self.failing:
                    await send({"type": "http.response.start", "status": 503, "headers": []})
                    await send({"type": "http.response.body", "body": b"{}"})
                    return
            await self.app(scope, receive, send)

        self._tasks.append(asyncio.create_task(serve(app, self.sock, stop=self._stop)))

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.wait({self._tasks[2]})
        await super().stop()

    def client(self) -> MapClient:
        return MapClient(Connection(at_url(self.address), patience=AT_ONCE))


@dataclass
class Bridge:
    """Takes up MapJobs as the server does."""

    site: Served
    client: MapClient
    says: str = "True"
    message: str = ""
    closed: list[str] = field(default_factory=list)

    async def address(self) -> tuple[str, dict[str, str]]:
        return self.site.address, {}

    async def ask(self, *_: Any, **_options: Any) -> Any:
        raise ServerError("not asked here", status=0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Served]:
    async def start() -> Served:
        made = Served()
        await made.start()
        return made

    made = loop().run(start())
    yield made
    loop().run(made.stop())


@pytest.fixture
def typed(moor: Any, site: Served, capsys: Any) -> Any:
    """Type `moor map …`; `typed.api` is the Kubernetes API."""
    moor.node("n1")
    bridge = Bridge(site, site.client())

    class Api(type(moor.api)):  # type: ignore[misc]
        async def create(self, resource: Resource, obj: Obj, namespace: str | None = None, **given: Any) -> Obj:
            made: Obj = await super().create(resource, obj, namespace, **given)
            if resource is MAPJOBS and not given.get("dry_run"):
                condition = {"type": "Accepted", "status": bridge.says, "message": bridge.message}
                if bridge.says == "True":
                    async with site.client() as client:
                        spec = made["spec"]
                        body = {"name": made["metadata"]["name"], "request": made["metadata"]["uid"]}
                        body |= {key: spec.get(key, {}) for key in ("policy", "limits")}
                        await client.create("default", msgspec.convert(body, NewMap))
                self.put(MAPJOBS, made | {"status": {"conditions": [condition]}})
            return made

    moor.api.__class__ = Api

    class Typed:
        api = moor.api
        clock: Clock = SYSTEM
        server = bridge

        def __call__(self, *words: str) -> Any:
            @contextlib.asynccontextmanager
            async def opener(target: Target) -> AsyncIterator[Session]:
                yield Session(
                    api=moor.api, namespace=target.namespace or "default", server=bridge, clock=self.clock
                )

            capsys.readouterr()
            code = main(["map", *words], opener=opener)
            out, err = capsys.readouterr()
            return type("Done", (), {"code": code, "out": out, "err": err})

        def work(self, name: str, *, failing: frozenset[int] = frozenset()) -> None:
            """Play a worker until nothing is left: the result of an item is its value, doubled in a list."""
            loop().run(_work(site, name, failing))

        def work_at_second_look(self, *, failing: frozenset[int] = frozenset()) -> None:
            """Play a worker of the map m when its MapJob is read for the second time."""

            def played(verb: str, plural: str, _name: str) -> None:
                if (verb, plural) == ("get", "mapjobs") and self.api.count("get", "mapjobs", "m") == 2:
                    loop().submit(_work(site, "m", failing))

            self.api.on_call = played

    return Typed()


async def _work(site: Served, name: str, failing: frozenset[int]) -> None:
    import aiohttp

    async with site.client() as client, aiohttp.ClientSession() as http:
        token, session = await client.token("default", name), secrets.token_hex(8)
        reports: list[Obj] = []
        number = 0
        while True:
            number += 1
            body = {"session": session, "request": number, "want": 100, "reports": reports, "held": []}
            headers = {"Authorization": f"Bearer {token}"}
            async with http.post(f"{site.url}/api/v1/work", json=body, headers=headers) as answer:
                reply = await answer.json()
            if not reply.get("items"):
                return
            reports = []
            for item, lease, value in reply["items"]:
                head = {"item": item, "lease": lease, "seconds": 2.0}
                end = {"outcome": "done", "value": {"twice": [value, value]}}
                if item in failing:
                    end = {"outcome": "error", "message": f"no {value}", "output": "c29ycnkK", "exit": 3}
                reports.append(head | end)


def lines(tmp_path: Path, count: int = 5) -> str:
    file = tmp_path / "items.txt"
    file.write_text("".join(f"d{n}\n" for n in range(count)))
    return str(file)


WORDS = ("--", "python3", "make.py", "{item}")


@pytest.fixture
def prices(tmp_path: Path) -> str:
    file = tmp_path / "prices.yaml"
    file.write_text(yaml.safe_dump(PRICES))
    return str(file)


def test_a_map_is_made_accepted_filled_and_closed(typed, tmp_path):
    done = typed(
        "create", "m", "-f", lines(tmp_path), "--parallelism", "7", "--memory", "1Gi", "--limit", "mysql=20",
        "--retries", "2", "--time", "90s", "--slots", "2", "--spot", "--preflight-write", "/out",
        "--notify", "https://hooks.example.com/x", *WORDS,
    )  # fmt: skip
    assert (done.code, done.out) == (0, "m\n"), done.err
    spec = typed.api.objects[("mapjobs", "default", "m")]["spec"]
    template = spec.pop("template")
    assert spec == {
        "parallelism": 7,
        "command": ["python3", "make.py", "{item}"],
        "slots": 2,
        "policy": {"retries": 2, "timeSeconds": 90},
        "limits": {"mysql": {"capacity": 20}},
        "preflight": {"write": ["/out"]},
        "spot": True,
        "notify": {"targets": ["https://hooks.example.com/x"]},
    }
    container = template["spec"]["containers"][0]
    assert "command" not in container
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "1Gi"} == container["resources"]["requests"]
    assert template["spec"]["restartPolicy"] == "Never"
    shown = json.loads(typed("status", "m", "-o", "json").out)
    assert (shown["closed"], shown["counts"]["total"], shown["state"]) == (True, 5, "running")


def test_volumes_are_tried_before_any_item_is_given_out(typed, tmp_path):
    for claim in ("races", "out"):
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        typed.api.put(PVCS, an_object(PVCS, claim, namespace="default", spec=spec))
    mounts = ("--volume", "races:/data:ro", "--volume", "out:/out")

    def preflight(*more: str) -> Any:
        done = typed("create", "m", "--range", "0:2", *mounts, *more, "--dry-run", *WORDS)
        assert done.code == 0, done.err
        (mapjob,) = (document for document in yaml.safe_load_all(done.out) if document["kind"] == "MapJob")
        return mapjob["spec"]["preflight"]

    assert preflight() == {"read": ["/data"], "write": ["/out"]}
    deeper = preflight("--preflight-read", "/data/2019", "--preflight-write", "/out/2019")
    assert deeper == {"read": ["/data/2019"], "write": ["/out/2019"]}


def test_results_have_the_order_of_the_items_and_missing_ones_are_counted(typed, tmp_path):
    typed("create", "m", "-f", lines(tmp_path), "--retries", "0", *WORDS)
    typed.work("m", failing=frozenset({3}))
    done = typed("results", "m")
    assert done.code == 1
    assert [json.loads(line)["item"] for line in done.out.splitlines()] == [0, 1, 2, 4]
    assert "1 of 5 are missing: 1 failed" in done.err
    failed = typed("items", "--failed", "m")
    assert failed.out.splitlines() == [
        "INDEX   ITEM   STATE    TRIES   TIME   MEMORY   REASON",
        "3       d3     failed   1       -      -        error: no d3",
    ]
    assert typed("retry", "m").out == "m: 1 item will be run again\n"
    typed.work("m")
    file = tmp_path / "found.csv"
    done = typed("results", "m", "-o", str(file))
    assert (done.code, done.err) == (0, f"5 results in {file}, none missing\n")
    assert file.read_text().splitlines()[:2] == ["item,input,twice", '0,d0,"[""d0"", ""d0""]"']
    assert sorted(tmp_path.iterdir()) == [file, tmp_path / "items.txt"]


def test_the_fields_of_items_are_columns_before_those_of_their_results(typed, tmp_path):
    settings = tmp_path / "grid.csv"
    settings.write_bytes(b'\xef\xbb\xbfday,file name,twice\n2026-01-01,"a, b.csv",1\n')  # as Excel writes it
    done = typed("create", "m", "-f", str(settings), "--", "echo", "{item.file name}")
    assert done.code == 0, done.err
    typed.work("m")
    file = tmp_path / "results.csv"
    assert typed("results", "m", "-o", str(file)).code == 0
    assert file.read_text().splitlines()[0] == "item,day,file name,twice,value.twice"
    assert json.loads(typed("results", "m").out)["input"]["file name"] == "a, b.csv"


@pytest.mark.parametrize("option", [("create", "m", "--open"), ("add", "m")])
def test_a_field_that_an_item_lacks_is_an_error_before_anything_is_sent(typed, tmp_path, option):
    items = tmp_path / "items.jsonl"
    items.write_text('{"day": 1}\n')
    words = ("--", "echo", "{item.day}")
    if option[0] == "add":
        assert typed("create", "m", "--open", "-f", str(items), *words).code == 0
        words = ()
    items.write_text('{"day": 1}\n{"dya": 2}\n')
    done = typed(*option, "-f", str(items), *words)
    want = f"error: the command does not fit item 2 of {items}: {{item.day}}: this item has the fields dya\n"
    assert (done.code, done.err.endswith(want)) == (2, True), done.err
    total = json.loads(typed("status", "m", "-o", "json").out)["counts"]["total"] if option[0] == "add" else 0
    assert total == len(typed.api.named(MAPJOBS))


def test_parquet_without_pyarrow_is_refused_before_anything_is_read(typed, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = typed("results", "m", "-o", "x.parquet")
    assert done.code == 2
    assert done.err.startswith("error: x.parquet: writing Parquet needs pyarrow")
    assert typed("results", "m", "-o", "x.xls").code == 2


def test_a_map_that_the_server_refuses_is_removed_again(typed, tmp_path):
    typed.server.says, typed.server.message = "False", "the name belongs to another map"
    done = typed("create", "m", "-f", lines(tmp_path), "--function", "json:dumps")
    assert done.code == 1
    assert "the server refused the map m: the name belongs to another map" in done.err
    assert typed.api.named(MAPJOBS) == []


def test_objects_made_before_a_refusal_are_removed_again(typed, tmp_path):
    typed.api.refuse[("create", "mapjobs")] = Invalid("spec.parallelism: too many")
    done = typed("create", "m", "-f", lines(tmp_path), "--function", "json:dumps")
    assert (done.code, done.err.splitlines()[-1]) == (1, "error: spec.parallelism: too many")
    assert (typed.api.named(CONFIGMAPS), typed.api.named(SECRETS)) == ([], [])


def test_a_function_goes_along_in_a_config_map_that_the_map_owns(typed, tmp_path):
    assert typed("create", "m", "-f", lines(tmp_path), "--function", "json:dumps").code == 0
    mapjob = typed.api.objects[("mapjobs", "default", "m")]
    assert mapjob["spec"]["function"] == {"configMap": "m-function"}
    made = typed.api.objects[("configmaps", "default", "m-function")]
    assert list(made["binaryData"]) == ["function.zip"]
    assert [owner["name"] for owner in made["metadata"]["ownerReferences"]] == ["m"]


def test_a_name_that_is_taken_is_refused_with_a_hint(typed, tmp_path):
    file = lines(tmp_path)
    assert typed("create", "m", "-f", file, *WORDS).code == 0
    done = typed("create", "m", "-f", file, *WORDS)
    assert done.code == 2
    error, hint = done.err.splitlines()[:2]
    assert error == "error: the name 'm' is taken: another map in namespace default has it"
    assert hint.startswith("hint: look at it: moor map status m")
    assert "moor map add m --resume -f FILE, with the same items" in hint


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param([], "items come from one of -f FILE, --glob, --range and --query", id="no items"),
        pytest.param(["--range", "0:3", "--glob", "*"], "and --query; 2 are given", id="two sources"),
        pytest.param(
            ["--range", "0:3", "--limit", "a=b"], "invalid limit 'a=b': use NAME, NAME=CAPACITY", id="limit"
        ),
        pytest.param(["--range", "0:3", "--time", "x"], "invalid time 'x': use a time such as", id="time"),
        pytest.param(
            ["--range", "0:3", "--parallelism", "0"], "invalid parallelism 0: use 1 to 10,000", id="none at work"
        ),
        pytest.param(["--range", "0:3", "--notify", "ftp://x"], "notify: ", id="notify"),
        pytest.param(
            ["--range", "0:3", "--max-memory", "x"], "invalid maximum of memory 'x': use a quantity", id="memory"
        ),
        pytest.param(["--range", "0:3", "--volume", "a:/moorage/x"], "cannot be mounted", id="our own folder"),
        pytest.param(["--range", "0:3", "--env", "MOORAGE_X=1"], "env: ", id="our own variable"),
        pytest.param(["--range", "3:0"], "--range 3:0 has no items", id="an empty range"),
        pytest.param(
            ["--range", "0:3", "--function", "a:b"], "one of a command and --function, not both", id="both"
        ),
        pytest.param(["--range", "0:3", "--sample", "2"], "--sample needs --machines", id="sample without prices"),
    ],
)
def test_wrong_usage_is_refused_and_nothing_is_created(typed, words, message):
    done = typed("create", "m", *words, *WORDS)
    assert done.code == 2
    assert message in done.err
    assert (typed.api.named(MAPJOBS), typed.api.named(CONFIGMAPS)) == ([], [])


def test_a_dry_run_prints_the_mapjob_and_makes_nothing(typed, tmp_path):
    done = typed("create", "m", "-f", lines(tmp_path), "--dry-run", *WORDS)
    assert done.code == 0
    assert yaml.safe_load(done.out)["spec"]["command"] == ["python3", "make.py", "{item}"]
    assert done.err.endswith("5 items; nothing was created\n")
    assert typed.api.named(MAPJOBS) == []


def test_a_plan_is_printed_stored_and_compared_with_the_result(typed, prices, tmp_path):
    given = ["--machines", prices, "--seconds", "2", "--memory", "1Gi"]
    done = typed("create", "m", "-f", lines(tmp_path), *given, *WORDS)
    assert done.code == 0, done.err
    assert "MACHINE" in done.err
    typed.work("m")
    shown = json.loads(typed("status", "m", "-o", "json").out)
    assert (shown["plan"]["items"], shown["plan"]["machine"], shown["plan"]["meanSeconds"]) == (5, "big", 2.0)
    assert shown["fact"]["items"] == 5
    assert shown["fact"]["money"] == round(10 / 3600 / shown["plan"]["podsPerNode"], 4)
    text = typed("status", "m").out
    assert "state       finished" in text
    assert "Plan: on" in text


def test_a_sample_runs_first_and_the_rest_is_planned_by_it(typed, prices, tmp_path):
    typed.clock = QuickClock()
    typed.work_at_second_look()
    words = ["--machines", prices, "--sample", "4", "--memory", "1Gi", "--yes"]
    done = typed("create", "m", "-f", lines(tmp_path, 20), *words, *WORDS)
    typed.api.on_call = None
    assert done.code == 0, done.err
    shown = json.loads(typed("status", "m", "-o", "json").out)
    assert (shown["counts"]["total"], shown["closed"], shown["plan"]["items"]) == (20, True, 16)
    assert shown["plan"]["meanSeconds"] == 2.0


def test_an_upload_that_broke_off_goes_on_where_it_was(typed, tmp_path):
    count = 2 * UPLOAD_LINES + 5
    file = lines(tmp_path, count)
    typed.clock, site = QuickClock(), typed.server.site
    site.failing = frozenset(range(2, 1000))
    done = typed("create", "m", "-f", file, *WORDS)
    assert done.code == 1
    assert f"the upload was interrupted. Continue: moor map add m --resume -f {file}" in done.err
    site.failing, site.added = frozenset(), []
    done = typed("add", "m", "--resume", "-f", file)
    assert (done.code, done.err) == (0, f"m has {count:,} items; the list is complete\n")
    assert site.added == [UPLOAD_LINES, 2 * UPLOAD_LINES]
    listed = typed("items", "m", "-o", "json", "--limit", "3").out
    assert [item["value"] for item in json.loads(listed)] == ["d0", "d1", "d2"]


def test_requests_to_a_server_that_is_away_for_a_moment_are_repeated(typed, tmp_path):
    typed.clock, site = QuickClock(), typed.server.site
    site.failing = frozenset({1, 2, 3})
    assert typed("create", "m", "-f", lines(tmp_path), *WORDS).code == 0
    assert site.added == [0, 0, 0, 0]


def test_an_open_map_takes_more_and_a_closed_one_does_not(typed, tmp_path):
    typed("create", "m", "--range", "0:3", "--open", *WORDS)
    assert typed("add", "m", "--range", "3:6").err == "m has 6 items\n"
    assert typed("add", "m", "--close").err == "m has 6 items; the list is complete\n"
    done = typed("add", "m", "--range", "0:1")
    error = "error: cannot add items: the map 'm' in namespace default is closed"
    assert (done.code, done.err.splitlines()[0]) == (1, error)


def test_maps_are_paused_resumed_cancelled_and_deleted(typed, tmp_path):
    typed("create", "m", "--range", "0:3", *WORDS)
    verbs = (("pause", "paused", "paused"), ("resume", "resumed", "running"), ("cancel", "cancelled", "cancelled"))
    for verb, outcome, state in verbs:
        assert typed(verb, "m").out == f"m {outcome}\n"
        assert json.loads(typed("status", "m", "-o", "json").out)["state"] == state
    listed = typed("list").out.splitlines()
    assert listed[0].split() == ["NAME", "OWNER", "STATE", "DONE", "FAILED", "WORKERS", "RATE", "LEFT", "AGE"]
    assert listed[1].split()[:4] == ["m", "local", "cancelled", "0/3"]
    assert typed("delete", "m").out == "m deleted\n"
    assert typed.api.named(MAPJOBS) == []
    done = typed("pause", "m", "none", "other")
    assert done.code == 1
    assert done.err.count("not found in namespace") == 2


def test_a_map_is_scaled(typed):
    typed("create", "m", "--range", "0:3", *WORDS)
    assert typed("scale", "m", "4").out == "m may have 4 workers\n"
    assert typed.api.objects[("mapjobs", "default", "m")]["spec"]["parallelism"] == 4
    done = typed("scale", "none", "1")
    assert done.err.splitlines()[0] == "error: map 'none' in namespace default has no MapJob"
    assert typed("scale", "m", "0").code == 2


def test_a_program_without_a_kubeconfig_attaches_to_a_map_by_the_server(typed, site, monkeypatch):
    typed("create", "m", "--open", *WORDS)
    monkeypatch.setenv("MOORAGE_SERVER", site.address)
    monkeypatch.setenv("MOORAGE_TOKEN", "a-token")
    with Map.attach("m", progress=False) as items:
        assert (items.namespace, items.status().total) == ("default", 0)
        assert items.add(["a", "b"], request="once") == 2
        assert items.add(["a", "b"], request="once") == 2
        assert items.add(["c"], close=True) == 3
        with pytest.raises(Conflict, match="is closed"):
            items.add(["d"])
        with pytest.raises(NotFound, match="has no MapJob"):
            items.scale(2)  # this server has no cluster
        typed.work("m")
        assert [result["twice"][0] for result in items.results()] == ["a", "b", "c"]
    with pytest.raises(NotFound):
        Map.attach("none")


def test_limits_are_listed_and_set(typed):
    assert typed("limits").err.startswith("no limits; create one")
    assert typed("limits", "set", "mysql", "40").out == "mysql has 40 tokens\n"
    assert typed("limits").out.splitlines() == ["NAME    CAPACITY   HELD", "mysql   40         0"]
    assert typed("limits", "-o", "name").out == "mysql\n"
    assert json.loads(typed("limits", "-o", "json").out) == [{"name": "mysql", "capacity": 40, "held": 0}]


def test_the_output_of_a_failed_item_is_shown_without_stored_output(typed, tmp_path):
    typed("create", "m", "--range", "0:2", "--retries", "0", *WORDS)
    typed.work("m", failing=frozenset({1}))
    done = typed("logs", "m", "1")
    assert (done.code, done.out) == (0, "sorry\n")


def test_waiting_ends_with_the_map(typed):
    typed.clock = QuickClock()
    typed.work_at_second_look(failing=frozenset({0}))
    done = typed("create", "m", "--range", "0:3", "--retries", "0", "--wait", *WORDS)
    assert (done.code, done.out) == (1, "m\n")
    assert "m finished: 2 of 3 done, 1 failed" in done.err


def test_a_directory_goes_along_to_a_real_cluster(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "make.py").write_text("print()")
    typed.api.remove(NODES, "n1")
    done = typed("create", "m", "--range", "0:1", "--image", "python:3.12", "--memory", "1Gi", *WORDS)
    assert done.code == 0, done.err
    pod = typed.api.objects[("mapjobs", "default", "m")]["spec"]["template"]["spec"]
    (unpack,) = pod["initContainers"]
    assert (unpack["image"], unpack["command"][0]) == ("python:3.12", "python3")
    assert pod["containers"][0]["workingDir"] == "/moorage-work"
    assert {"name": "work", "emptyDir": {}} in pod["volumes"]
    [secret] = typed.api.named(SECRETS)
    assert {"name": "shipped", "secret": {"secretName": secret}} in pod["volumes"]
    assert sorted(typed.api.objects[("secrets", "default", secret)]["data"]) == ["runner.py", "work.tar.gz"]


def test_results_are_written_as_parquet_with_a_type_for_each_column(typed, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    typed("create", "m", "-f", lines(tmp_path), *WORDS)
    typed.work("m")
    file = tmp_path / "found.parquet"
    assert typed("results", "m", "-o", str(file)).code == 0
    table = parquet.read_table(file)
    assert [str(column.type) for column in table.schema] == ["int64", "string"]
    assert table.to_pylist()[0] == {"item": 0, "twice": '["d0", "d0"]'}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--range", "5:8"), "3 items (5 to 7) on 1 worker (more: --parallelism)"),
        (("--range", "5:6"), "1 item (5) on 1 worker (more: --parallelism)"),
        (("--range", "0:10:3", "--parallelism", "8"), "4 items (0 to 9) on at most 8 workers"),
    ],
)
def test_a_new_map_prints_its_items_and_the_number_of_workers(typed, words, message):
    done = typed("create", "m", *words, *WORDS)
    assert done.err.splitlines()[-1] == f"{message}; follow it with: moor map status --watch m"


def test_items_have_an_index_a_value_and_the_tries_that_were_started(typed):
    typed("create", "m", "--range", "5:8", "--retries", "0", *WORDS)
    typed.work("m", failing=frozenset({1}))
    rows = [" ".join(line.split()[:4]) for line in typed("items", "m").out.splitlines()]
    assert rows == ["INDEX ITEM STATE TRIES", "0 5 done 1", "1 6 failed 1", "2 7 done 1"]
    assert "  index 1: 6  error: " in typed("status", "m").out
    for word in ("failed", "dead"):
        assert len(typed("items", "m", "--state", word).out.splitlines()) == 2
    refused = typed("items", "m", "--state", "over")
    assert refused.err == "error: invalid state 'over': use ready, waiting, running, done, failed\n"
