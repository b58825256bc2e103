"""The cache: lists, watches, relists; nothing missed, nothing kept that is gone."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage_kube.api import ObjList, WatchEvent
from moorage_kube.errors import Expired, ServerError
from moorage_kube.informer import Informer, index_by_controller, index_by_label, index_by_node, wait_synced
from moorage_kube.resources import PODS
from moorage_kube.testing import builders
from moorage_kube.testing.examples import examples
from moorage_kube.testing.waiting import soon

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def a_pod(name, version, node="", **labels):
    return builders.a_pod(name, uid=name, resource_version=version, node=node, labels=labels)


class Server:
    """A store with a watch that can be broken, expired or ended."""

    def __init__(self, *pods):
        self.pods = {pod["metadata"]["name"]: pod for pod in pods}
        self.version = 100
        self.stream = asyncio.Queue()
        self.lists = []
        self.watches = []
        self.refuse = []

    async def list(self, resource, namespace=None, **options):
        if self.refuse:
            raise self.refuse.pop(0)
        self.lists.append((resource, namespace, options))
        return ObjList(list(self.pods.values()), str(self.version))

    async def watch(self, resource, namespace=None, *, resource_version, **options):
        self.watches.append(resource_version)
        while True:
            event = await self.stream.get()
            if event is None:
                return
            if isinstance(event, Exception):
                raise event
            yield event

    def say(self, kind, pod):
        self.stream.put_nowait(WatchEvent(kind, pod))


async def until(informer, test):
    changed = asyncio.Event()
    informer.on_change(lambda _before, _after: changed.set())
    async with asyncio.timeout(120):
        while not test():
            changed.clear()
            await changed.wait()


@pytest.fixture
async def started():
    tasks = []

    async def start(server, **options):
        informer = Informer(server, PODS, retry_seconds=0.001, **options)
        tasks.append(asyncio.create_task(informer.run()))
        await wait_synced(informer)
        return informer

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_it_lists_then_follows(started):
    server = Server(a_pod("a", 1, "n1"))
    informer = await started(server, namespace="lab", label_selector="x=y")
    assert server.lists == [(PODS, "lab", {"label_selector": "x=y", "field_selector": None})]
    assert informer.get("a", "lab") is not None
    assert informer.get("a") is None
    heard = []
    informer.on_change(lambda before, after: heard.append((before, after)))
    assert heard == [(None, server.pods["a"])]  # what is known already is told at once
    changed, new = a_pod("a", 101, "n2"), a_pod("b", 102)
    server.say("MODIFIED", changed)
    server.say("ADDED", new)
    server.say("DELETED", a_pod("a", 103))
    await until(informer, lambda: len(heard) == 4)
    assert heard[1:] == [(server.pods["a"], changed), (None, new), (changed, None)]
    assert [pod["metadata"]["name"] for pod in informer.all()] == ["b"]
    assert len(informer) == 1
    server.say("BOOKMARK", {"metadata": {"resourceVersion": "500"}})
    server.stream.put_nowait(None)
    await until_watching(server, "500")


async def until_watching(server, version):
    await soon(f"a watch from version {version}", lambda: version in server.watches)


async def test_what_was_deleted_while_the_watch_was_away_is_reported(started):
    server = Server(a_pod("a", 1), a_pod("b", 2))
    informer = await started(server)
    heard = []
    informer.on_change(lambda before, after: heard.append((bool(before), bool(after))))
    heard.clear()
    server.pods = {"b": server.pods["b"], "c": a_pod("c", 105)}
    server.version = 106
    server.stream.put_nowait(Expired("too old"))
    await until(informer, lambda: len(heard) >= 2 and informer.get("c", "lab") is not None)
    assert heard[:2] == [(True, False), (False, True)]  # a gone, c new; b did not change
    assert sorted(pod["metadata"]["name"] for pod in informer.all()) == ["b", "c"]


@pytest.mark.parametrize("error", [ServerError("no answer"), OSError("reset"), Expired("old")])
async def test_a_broken_watch_is_taken_up_again(started, error):
    server = Server(a_pod("a", 1))
    informer = await started(server)
    server.pods["a"] = a_pod("a", 110)
    server.version = 110
    server.stream.put_nowait(error)
    await until(informer, lambda: informer.get("a", "lab")["metadata"]["resourceVersion"] == "110")


async def test_a_server_that_does_not_answer_at_first_is_asked_again(started):
    server = Server(a_pod("a", 1))
    server.refuse = [ServerError("starting"), OSError("refused")]
    informer = await started(server)
    assert len(informer) == 1


async def test_indexes_follow_the_objects(started):
    server = Server(a_pod("a", 1, "n1", app="x"), a_pod("b", 2, "n1", app="y"))
    informer = await started(server, indexes={"node": index_by_node})
    informer.add_index("app", index_by_label("app"))
    informer.add_index("app", index_by_node)  # the first of a name stays

    def names(index, value):
        return [pod["metadata"]["name"] for pod in informer.by_index(index, value)]

    assert (names("node", "n1"), names("app", "y"), names("node", "n9")) == (["a", "b"], ["b"], [])
    server.say("MODIFIED", a_pod("a", 101, "n2", app="y"))
    await until(informer, lambda: names("node", "n2") == ["a"])
    assert (names("node", "n1"), names("app", "x"), names("app", "y")) == (["b"], [], ["a", "b"])
    informer.clear()
    assert (len(informer), names("node", "n1"), names("app", "y")) == (0, [], [])


def test_objects_are_indexed_by_their_controller():
    refs = [{"uid": "1"}, {"uid": "2", "controller": True}]
    assert list(index_by_controller({"metadata": {"ownerReferences": refs}})) == ["2"]
    assert list(index_by_controller({"metadata": {}})) == []


@settings(max_examples=examples(20, full=60), deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "delete", "break", "expire", "end"]), st.sampled_from("abcd")),
        max_size=25,
    )
)
def test_the_copy_ends_equal_to_the_server_whatever_breaks(steps):
    async def play():
        server = Server()
        informer = Informer(server, PODS, indexes={"node": index_by_node}, retry_seconds=0.0005)
        known = {}

        def follow(before, after):
            name = (after or before)["metadata"]["name"]
            assert (before is None) == (name not in known)
            if after is None:
                del known[name]
            else:
                known[name] = after

        informer.on_change(follow)
        task = asyncio.create_task(informer.run())
        await informer.synced.wait()
        for what, name in steps:
            server.version += 1
            pod = a_pod(name, server.version, f"n{server.version % 3}")
            match what:
                case "put":
                    kind = "MODIFIED" if name in server.pods else "ADDED"
                    server.pods[name] = pod
                    server.say(kind, pod)
                case "delete" if name in server.pods:
                    del server.pods[name]
                    server.say("DELETED", pod)
                case "break" | "expire":
                    server.stream.put_nowait(ServerError("x") if what == "break" else Expired("x"))
                case "end":
                    server.stream.put_nowait(None)
            if server.version % 2:
                await asyncio.sleep(0)
        final = a_pod("z", 10**6)
        server.pods["z"] = final
        server.version = 10**6
        server.say("ADDED", final)
        await soon("the last pod", lambda: "z" in known and informer.all() != [])
        await soon("all pods", lambda: {pod["metadata"]["name"] for pod in informer.all()} == set(server.pods))
        assert known == {pod["metadata"]["name"]: pod for pod in informer.all()}
        for value in ("n0", "n1", "n2"):
            want = sorted(name for name, pod in known.items() if pod["spec"].get("nodeName") == value)
            assert [pod["metadata"]["name"] for pod in informer.by_index("node", value)] == want
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(play())
