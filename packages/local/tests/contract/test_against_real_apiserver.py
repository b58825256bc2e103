"""The local API server beside a real one: the same requests, the same answers.

Every story of `requests_for_both` is told to servers with nothing else at work in them. What an API server makes
up (uids, times, versions, addresses, generated suffixes) and `managedFields` are put alike; of what is left each
part is compared. Not compared: the sentences that describe a table's columns (none of ours), and the order of
a refusal's causes (the real server's own order changes from run to run where it walks a map).

With KUBEBUILDER_ASSETS (a folder with etcd and kube-apiserver) both servers are asked. Without, ours is held to
the fingerprints of what the real one answered last; `MOORAGE_RENEW=1` with KUBEBUILDER_ASSETS writes them anew.
"""

from __future__ import annotations

import asyncio
import base64
import difflib
import hashlib
import json
import os
import re
import runpy
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from moorage_kube.testing.waiting import until
from moorage_testing.cluster import control_plane

TOLD = runpy.run_path(str(Path(__file__).with_name("requests_for_both.py")))
STORIES, Step, Until, PARTS = TOLD["STORIES"], TOLD["Step"], TOLD["Until"], TOLD["PARTS"]
MUTATED = TOLD["MUTATED"]

ASSETS = os.environ.get("KUBEBUILDER_ASSETS")
RENEW = bool(os.environ.get("MOORAGE_RENEW"))
FINGERPRINTS = Path(__file__).with_name("fingerprints_of_real_apiserver.json")

against_both = pytest.mark.skipif(not ASSETS, reason="no real API server: set KUBEBUILDER_ASSETS")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One of the two, spoken to as an admin."""

    name: str
    address: str
    token: str
    session: aiohttp.ClientSession

    async def ask(self, step: Any, ns: str) -> Answer:
        def filled(text: str) -> str:
            return text.replace("{ns}", ns).replace("{token}", self.token)

        data = step.body
        if data is not None and not isinstance(data, bytes):
            data = filled(json.dumps(data)).encode()
        headers = {
            "Authorization": f"Bearer {step.token or self.token}",
            "Accept": step.accept,
            "Content-Type": step.content_type,
        }
        if step.user:
            headers["Impersonate-User"] = filled(step.user)
        url = self.address + filled(step.path)
        async with self.session.request(
            step.method, _as_written(url), data=data, headers=headers, ssl=False
        ) as response:
            text = (await response.text()).replace(self.token, "{token}")
            warnings = tuple(sorted(response.headers.getall("Warning", ())))
            return Answer(response.status, json.loads(text) if text[:1] in ("{", "[") else text, warnings)

    async def until(self, wanted: Any, ns: str) -> None:
        async def is_so() -> bool:
            method = "GET" if wanted.body is None else "POST"
            answer = await self.ask(Step("wait", method, wanted.path, wanted.body, user=wanted.user), ns)
            if wanted.body is not None:
                return answer.status == wanted.status and wanted.says in json.dumps(answer.body)
            if wanted.gone:
                return answer.status == 404
            if answer.status != 200:
                return False
            conditions = (answer.body.get("status", {}).get("conditions") or ()) if wanted.condition else ()
            return wanted.condition in {None} | {each["type"] for each in conditions if each["status"] == "True"}

        await until(f"{wanted} of {self.name}", is_so)


def _as_written(url: str) -> Any:
    from yarl import URL

    return URL(url, encoded=True)


@pytest.fixture(scope="module")
def real_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(address, token)"""
    assert ASSETS
    with control_plane(Path(ASSETS), tmp_path_factory.mktemp("real"), need_accounts=True) as plane:
        config = yaml.safe_load(plane.kubeconfig.read_text())
        yield config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from moorage_local.apiserver.pki import ensure_pki

    return ensure_pki(tmp_path_factory.mktemp("ours") / "pki")


@pytest.fixture
async def ours(keys: Any) -> AsyncIterator[Server]:
    from moorage_kube.serving import serve
    from moorage_local.apiserver.server import ApiServer
    from moorage_local.storage.memory import MemoryStorage

    admin = {"user": "admin", "uid": "admin", "groups": ["system:masters"]}
    local = ApiServer(MemoryStorage(), tokens={"a-token-of-ours": admin}, signing_key=keys.signing_key)
    await local.start()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sock.setblocking(False)
        address = f"https://127.0.0.1:{sock.getsockname()[1]}"
        stop = asyncio.Event()
        serving = asyncio.create_task(
            serve(local.app, sock, certificate=keys.certificate, key=keys.key, stop=stop)
        )
        try:
            async with aiohttp.ClientSession() as session:
                yield Server(name="ours", address=address, token="a-token-of-ours", session=session)
        finally:
            stop.set()
            await serving
            await local.stop()


@pytest.fixture
async def real(real_one: tuple[str, str]) -> AsyncIterator[Server]:
    address, token = real_one
    async with aiohttp.ClientSession() as session:
        yield Server(name="real", address=address, token=token, session=session)


async def tell(server: Server, story: str) -> dict[str, dict[str, Any]]:
    """The parts of every answer, by the names of the steps."""
    ns = story.replace(" ", "-")
    account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
    for path, body in (
        ("/api/v1/namespaces", {"metadata": {"name": ns}}),
        ("/api/v1/namespaces/{ns}/serviceaccounts", account),
    ):
        made = await server.ask(Step("prepare", "POST", path, body), ns)
        assert made.status == 201, made
    told = {}
    for step in STORIES[story]:
        if isinstance(step, Until):
            await server.until(step, ns)
        else:
            told[step.name] = parts(await server.ask(step, ns))
    return told


# --- what is put alike, and what is compared

MADE_UP = frozenset(
    {"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "lastTransitionTime"}
    | {"lastPhaseTransitionTime", "time", "clusterIP", "clusterIPs"}
)
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
AGE = re.compile(r"\d+[smhd](\d+[smhd])?")
SOURCE = re.compile(r'"(?:[\w.-]+/)*kubernetes/pkg/')
ADDRESS = re.compile(r"10\.96\.\d+\.\d+")
VERSION = re.compile(r"current: \d+")


def put_alike(value: Any) -> Any:
    if isinstance(value, dict):
        out = {
            key: "made up" if key in MADE_UP and one else put_alike(one)
            for key, one in value.items()
            if key != "managedFields" and one is not None
        }
        if "generateName" in out and "name" in out:
            out["name"] = "made up"
        return out
    if isinstance(value, list):
        return [put_alike(one) for one in value]
    if isinstance(value, str):
        if AGE.fullmatch(value):
            return "an age"
        value = SOURCE.sub('"pkg/', value)  # how much a build keeps of a source file's path
        value = VERSION.sub("current: a version", TIME.sub("a time", UID.sub("a uid", value)))
        return ADDRESS.sub("an address", value)
    return value


def parts(answer: Answer) -> dict[str, Any]:
    """The answer by part; see `PARTS`."""
    body = put_alike(answer.body)
    out: dict[str, Any] = {"status": answer.status, "reason": None, "causes": None, "words": None}
    if isinstance(body, dict) and body.get("kind") == "Status" and body.get("status") == "Failure":
        details = dict(body.get("details") or {})
        causes = details.pop("causes", [])
        message = body.pop("message", "")
        if len(causes) > 1:
            message = message.partition(" is invalid: [")[0]
        out["reason"] = body.pop("reason", None)
        out["causes"] = sorted((one.get("reason", ""), one.get("field", "")) for one in causes)
        out["words"] = (message, sorted(one.get("message", "") for one in causes))
        body["details"] = details
    if isinstance(body, dict) and body.get("kind") == "Table":
        for column in body.get("columnDefinitions", ()):
            column["description"] = ""
    out["object"] = body
    out["warnings"] = answer.warnings
    return out


def differences(real: dict[str, Any], ours: dict[str, Any]) -> frozenset[str]:
    """The parts that differ. Where one of them answers with an object and the other refuses, what is said about
    the refusal follows from the status and is not counted again."""
    if (real["status"] < 400) != (ours["status"] < 400):
        return frozenset({"status"})
    return frozenset(part for part in PARTS if as_text(real[part]) != as_text(ours[part]))


def as_text(value: Any) -> str:
    """In JSON 1, 1.0 and true are three things."""
    return json.dumps(value, sort_keys=True)


def fingerprint(answer: dict[str, Any]) -> dict[str, Any]:
    """Of each part a few characters of its hash: to know it again, none of its words. The status as it is."""

    def short(value: Any) -> str:
        return hashlib.sha256(as_text(value).encode()).hexdigest()[:12]

    return {part: one if part == "status" else short(one) for part, one in answer.items()}


def unexpected(story: str, real: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """What differs and is not known to, and what is known to differ and does not."""
    wrong = []
    for step in STORIES[story]:
        if isinstance(step, Until):
            continue
        theirs, mine = real[step.name], ours[step.name]
        found = differences(theirs, mine)
        expected = step.known.parts if step.known else frozenset()
        if found != expected:
            said = [f"\n  {one}\n    real {theirs[one]}\n    ours {mine[one]}" for one in sorted(found | expected)]
            known = f" (known: {', '.join(sorted(expected))})" if expected else ""
            wrong.append(f"{step.name}: differs in {', '.join(sorted(found)) or 'nothing'}{known}{''.join(said)}")
    return wrong


@against_both
@pytest.mark.anyio
@pytest.mark.parametrize("story", STORIES)
async def test_both_servers_tell_the_story_alike(real: Server, ours: Server, story: str) -> None:
    theirs, mine = await tell(real, story), await tell(ours, story)
    prints = {name: fingerprint(one) for name, one in theirs.items()}
    kept = json.loads(FINGERPRINTS.read_text()) if FINGERPRINTS.exists() else {}
    if RENEW:
        FINGERPRINTS.write_text(json.dumps(kept | {story: prints}, indent=1, sort_keys=True) + "\n")
        kept[story] = prints
    wrong = unexpected(story, theirs, mine)
    assert not wrong, "\n" + "\n".join(wrong)
    known = {step.name: step.known.parts for step in STORIES[story] if isinstance(step, Step) and step.known}
    stale = [name for name, one in prints.items() if differences(kept[story][name], one) - known.get(name, set())]
    assert not stale, "the real server's answers have changed: renew the fingerprints"


@pytest.mark.anyio
@pytest.mark.parametrize("story", STORIES)
async def test_ours_tells_the_story_as_the_real_one_did(ours: Server, story: str) -> None:
    mine = {name: fingerprint(one) for name, one in (await tell(ours, story)).items()}
    wrong = unexpected(story, json.loads(FINGERPRINTS.read_text())[story], mine)
    assert not wrong, "the words are shown by a run with KUBEBUILDER_ASSETS\n" + "\n".join(wrong)


# --- mutating webhooks: what they are shown, and what becomes of their patches

WEBHOOK_STORY = "a mutating webhook"  # the key of its fingerprints
WEBHOOK_NAMESPACE = "hooked"


class Asked:
    """A webhook that notes what it is asked about, and answers with the patch of the moment."""

    def __init__(self) -> None:
        self.patch: tuple[Any, ...] = ()
        self.seen: list[Any] = []

    async def answer(self, request: web.Request) -> web.Response:
        review = json.loads(await request.read())
        self.seen.append(review["request"]["object"])
        response = {"uid": review["request"]["uid"], "allowed": True}
        if self.patch:
            encoded = base64.b64encode(json.dumps(self.patch).encode()).decode()
            response |= {"patchType": "JSONPatch", "patch": encoded}
        return web.json_response(
            {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}
        )


@pytest.fixture
async def webhook(keys: Any) -> AsyncIterator[tuple[Asked, dict[str, str]]]:
    """The webhook, and the clientConfig that leads to it."""
    asked, app = Asked(), web.Application()
    app.router.add_post("/", asked.answer)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(keys.certificate, keys.key)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        port = runner.addresses[0][1]
        bundle = base64.b64encode(keys.ca_pem.encode()).decode()
        yield asked, {"url": f"https://127.0.0.1:{port}/", "caBundle": bundle}
    finally:
        await runner.cleanup()


async def mutated(server: Server, asked: Asked, client: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What the webhook was shown and what the server answered, by the names of `MUTATED`."""
    ns = WEBHOOK_NAMESPACE
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*"]}
    hook = {
        "name": "sees.example.test",
        "clientConfig": client,
        "rules": [rule],
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ns}},
    }
    group = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    calm = {"metadata": {"name": "calm"}, "value": 0, "preemptionPolicy": "Never"}
    account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
    for path, body in (
        ("/api/v1/namespaces", {"metadata": {"name": ns}}),
        ("/api/v1/namespaces/{ns}/serviceaccounts", account),
        ("/apis/scheduling.k8s.io/v1/priorityclasses", calm),
        (group, {"metadata": {"name": "sees"}, "webhooks": [hook]}),
    ):
        made = await server.ask(Step("prepare", "POST", path, body), ns)
        assert made.status == 201, made
    told: dict[str, dict[str, Any]] = {}
    try:
        probe = Step("probe", "POST", "/api/v1/namespaces/{ns}/configmaps?dryRun=All", {"metadata": {"name": "p"}})
        asked.patch, asked.seen = (), []

        async def is_asked() -> bool:
            await server.ask(probe, ns)
            return bool(asked.seen)

        await until(f"a request of {server.name} to the webhook", is_asked)
        for case in MUTATED:
            asked.patch, asked.seen = case.patch, []
            answer = await server.ask(Step(case.name, "POST", case.path, case.body), ns)
            told[case.name] = {"seen": [put_alike(one) for one in asked.seen]} | parts(answer)
    finally:
        await server.ask(Step("remove", "DELETE", f"{group}/sees"), ns)
    return told


def fingerprints_of(told: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: fingerprint(one) for name, one in told.items()}


@against_both
@pytest.mark.anyio
async def test_both_servers_show_a_webhook_the_same_and_do_the_same_with_its_patch(
    real: Server, ours: Server, webhook: tuple[Asked, dict[str, str]]
) -> None:
    theirs, mine = await mutated(real, *webhook), await mutated(ours, *webhook)
    wrong = []
    for name, answer in theirs.items():
        one, other = (json.dumps(each, indent=1, sort_keys=True).splitlines() for each in (answer, mine[name]))
        wrong += [f"{name}: {line}" for line in difflib.unified_diff(one, other, "real", "ours", n=1, lineterm="")]
    assert not wrong, "\n" + "\n".join(wrong)
    kept = json.loads(FINGERPRINTS.read_text())
    if RENEW:
        kept |= {WEBHOOK_STORY: fingerprints_of(theirs)}
        FINGERPRINTS.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    assert kept[WEBHOOK_STORY] == fingerprints_of(theirs), "renew the fingerprints"


@pytest.mark.anyio
async def test_ours_shows_a_webhook_what_the_real_one_did(
    ours: Server, webhook: tuple[Asked, dict[str, str]]
) -> None:
    mine = fingerprints_of(await mutated(ours, *webhook))
    assert mine == json.loads(FINGERPRINTS.read_text())[WEBHOOK_STORY]


# --- the comparison itself, which needs no server


def test_every_step_of_a_story_has_a_name_of_its_own() -> None:
    for story, steps in STORIES.items():
        names = [step.name for step in steps if isinstance(step, Step)]
        assert len(names) == len(set(names)), story


def test_what_a_server_makes_up_is_put_alike() -> None:
    obj = {
        "metadata": {
            "uid": "x",
            "name": "a-5",
            "generateName": "a-",
            "resourceVersion": "5",
            "managedFields": [1],
        },
        "age": "5m3s",
        "text": "at 2026-01-01T00:00:00Z from 10.96.3.4 by 00000000-0000-0000-0000-000000000000, current: 5",
        "none": None,
    }
    assert put_alike(obj) == {
        "metadata": {
            "uid": "made up",
            "name": "made up",
            "generateName": "a-",
            "resourceVersion": "made up",
        },
        "age": "an age",
        "text": "at a time from an address by a uid, current: a version",
    }


def refusal(*fields: str, status: int = 422, message: str = "no") -> Answer:
    causes = [{"reason": "Invalid", "field": one, "message": one} for one in fields]
    body = {
        "kind": "Status",
        "status": "Failure",
        "reason": "Invalid",
        "message": message,
        "details": {"name": "a", "causes": causes},
    }
    return Answer(status, body, ())


@pytest.mark.parametrize(
    ("real", "ours", "want"),
    [
        pytest.param(refusal("a"), refusal("a"), set(), id="alike"),
        pytest.param(refusal("a", "b"), refusal("b", "a"), set(), id="causes in another order"),
        pytest.param(refusal("a"), refusal("b"), {"causes", "words"}, id="another field"),
        pytest.param(refusal("a"), refusal("a", message="yes"), {"words"}, id="other words"),
        pytest.param(refusal("a"), refusal("a", status=409), {"status"}, id="another status"),
        pytest.param(refusal("a"), Answer(200, {}, ()), {"status"}, id="refused here, accepted there"),
        pytest.param(Answer(200, {"a": 1}, ()), Answer(200, {"a": 2}, ()), {"object"}, id="another object"),
        pytest.param(Answer(200, {"a": 1}, ("x",)), Answer(200, {"a": 1}, ()), {"warnings"}, id="a warning less"),
        pytest.param(Answer(200, {"a": 1}, ()), Answer(200, {"a": 1.0}, ()), {"object"}, id="another number"),
        pytest.param(Answer(200, {"a": None}, ()), Answer(200, {}, ()), set(), id="null is nothing"),
    ],
)
def test_answers_are_compared_part_by_part(real: Answer, ours: Answer, want: set[str]) -> None:
    assert differences(parts(real), parts(ours)) == want
