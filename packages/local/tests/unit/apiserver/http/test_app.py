"""The API over HTTPS, as clients in other languages meet it."""

from __future__ import annotations

import asyncio
import gc
import io
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from moorage_kube.errors import DataFolderError, StorageDamaged
from moorage_kube.resources import PODS, SERVICEACCOUNTS, Obj
from moorage_local.apiserver.pki import ensure_pki

pytestmark = pytest.mark.anyio
DEADLINE_SECONDS = 180
PATH = "/api/v1/namespaces/default/pods"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def a_pod(name: str = "p") -> Obj:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "busybox:1"}]}}


class Http:
    """Requests to one server, answered as (status, body, headers)."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def __call__(
        self, method: str, path: str, body: Any = None, *, token: str | None = "admin-token", **headers: str
    ) -> tuple[int, Any, Any]:
        sent = {key.replace("_", "-"): value for key, value in headers.items()}
        if token:
            sent["authorization"] = f"Bearer {token}"
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        if data is not None:
            sent.setdefault("content-type", "application/json")
        async with self.session.request(
            method, self.url + path, data=None if data is None else io.BytesIO(data), headers=sent
        ) as answer:
            text = await answer.text()
            return answer.status, json.loads(text) if text[:1] in ("{", "[") else text, answer.headers


@pytest.fixture
async def http(served: Any) -> AsyncIterator[Http]:
    import ssl

    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(served.ca)))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Http(session, served.url)


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_health_is_told_to_everybody(http: Http, path: str) -> None:
    assert (await http("GET", path, token=None))[:2] == (200, "ok")


async def test_the_version_is_that_of_kubernetes_marked_as_ours(http: Http) -> None:
    _, body, _ = await http("GET", "/version", token=None)
    assert body["gitVersion"].endswith("+moorage")
    assert body["minor"] == "36"


async def test_without_a_good_token_nothing_is_shown(http: Http) -> None:
    for path, cannot in ((PATH, 'list resource "pods"'), ("/apis", "get path"), ("/openapi/v3", "get path")):
        status, body, _ = await http("GET", path, token="wrong")
        assert (status, body["reason"], body["message"]) == (401, "Unauthorized", "Unauthorized")
        status, body, _ = await http("GET", path, token=None)
        assert (status, body["reason"]) == (403, "Forbidden")
        assert f'User "system:anonymous" cannot {cannot}' in body["message"]


async def test_only_masters_act_as_others(http: Http) -> None:
    review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    _, body, _ = await http("POST", review, {}, impersonate_user="bob", impersonate_group="lab")
    assert body["status"]["userInfo"] == {"username": "bob", "groups": ["lab", "system:authenticated"]}
    _, body, _ = await http("POST", review, {}, impersonate_user="jürgen", impersonate_group="Straße")
    assert body["status"]["userInfo"] == {"username": "jürgen", "groups": ["Straße", "system:authenticated"]}
    status, body, _ = await http("POST", review, {}, token="alice-token", impersonate_user="bob")
    assert (status, body["reason"]) == (403, "Forbidden")
    assert (
        body["message"]
        == 'users "bob" is forbidden: User "alice" cannot impersonate resource "users" in API group ""'
        " at the cluster scope"
    )


async def test_an_object_is_made_read_changed_and_removed(http: Http) -> None:
    status, made, _ = await http("POST", PATH, a_pod())
    assert (status, made["kind"], made["apiVersion"]) == (201, "Pod", "v1")
    assert (await http("GET", f"{PATH}/p"))[1] == made
    made["metadata"]["labels"] = {"a": "b"}
    status, changed, _ = await http("PUT", f"{PATH}/p", made)
    assert (status, changed["metadata"]["labels"]) == (200, {"a": "b"})
    status, _, _ = await http(
        "PATCH", f"{PATH}/p", {"metadata": {"labels": {"a": None}}}, content_type="application/merge-patch+json"
    )
    assert status == 200
    status, body, _ = await http("DELETE", f"{PATH}/p")
    assert (status, body["kind"]) == (200, "Pod")
    status, body, _ = await http("GET", f"{PATH}/p")
    assert body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'pods "p" not found',
        "reason": "NotFound",
        "details": {"name": "p", "kind": "pods"},
        "code": 404,
    }


async def test_what_is_removed_at_once_answers_with_a_status(http: Http) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    _, made, _ = await http("POST", path, {"metadata": {"name": "c"}})
    _, body, _ = await http("DELETE", f"{path}/c")
    assert (body["status"], body["details"]) == (
        "Success",
        {"name": "c", "kind": "configmaps", "uid": made["metadata"]["uid"]},
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "reason"),
    [
        ("GET", "/api/v1/nopes", None, {}, 404, "NotFound"),
        ("GET", f"{PATH}/p/nope", None, {}, 404, "NotFound"),
        ("PUT", PATH, {}, {}, 405, "MethodNotAllowed"),
        ("POST", f"{PATH}/p", {}, {}, 405, "MethodNotAllowed"),
        ("POST", PATH, b"{nope", {}, 400, "BadRequest"),
        ("POST", PATH, b"[1]", {}, 400, "BadRequest"),
        ("POST", PATH, b"a: [", {"content_type": "application/yaml"}, 400, "BadRequest"),
        (
            "POST",
            PATH,
            b"rubbish",
            {"content_type": "application/vnd.kubernetes.protobuf"},
            400,
            "BadRequest",
        ),
        ("PATCH", f"{PATH}/p", {}, {"content_type": "text/plain"}, 415, "UnsupportedMediaType"),
        ("POST", PATH, b" " * (3 * 1024 * 1024 + 1), {}, 413, "RequestEntityTooLarge"),
        ("GET", f"{PATH}?limit=many", None, {}, 400, "BadRequest"),
        ("GET", f"{PATH}?continue=rubbish", None, {}, 400, "BadRequest"),
        ("GET", f"{PATH}?resourceVersion=99999999", None, {}, 504, "Timeout"),
        ("GET", f"{PATH}?watch=1&resourceVersion=x", None, {}, 400, "BadRequest"),
        ("GET", f"{PATH}?resourceVersion=%2B5", None, {}, 400, "BadRequest"),
        ("POST", f"{PATH}?dryRun=Maybe", {}, {}, 400, "BadRequest"),
        ("DELETE", f"{PATH}?propagationPolicy=Maybe", None, {}, 422, "Invalid"),
        ("POST", f"{PATH}?fieldValidation=Strict", {**a_pod(), "zap": 1}, {}, 400, "BadRequest"),
    ],
)
async def test_what_is_refused_is_refused_with_a_status(
    http: Http, method: str, path: str, body: Any, headers: dict[str, str], status: int, reason: str
) -> None:
    found, answer, _ = await http(method, path, body, **headers)
    assert (found, answer["kind"], answer["reason"], answer["code"]) == (status, "Status", reason, status)


async def test_unknown_fields_are_warned_of(http: Http) -> None:
    status, _, headers = await http("POST", PATH, {**a_pod(), "zap": 1})
    assert (status, headers["warning"]) == (201, '299 - "unknown field \\"zap\\""')


async def test_parts_of_a_byte_are_stored_with_a_warning(http: Http) -> None:
    pod = a_pod()
    pod["spec"]["containers"][0]["resources"] = {"limits": {"memory": "400m", "cpu": "400m"}}
    status, _, headers = await http("POST", PATH, pod)
    field = "spec.containers[0].resources.{}[memory]"
    text = '{}: fractional byte value \\"400m\\" is invalid, must be an integer'
    warnings = [f'299 - "{text.format(field.format(side))}"' for side in ("limits", "requests")]
    assert (status, headers.getall("warning")) == (201, warnings)


async def test_what_a_header_cannot_carry_is_not_put_into_a_warning(http: Http) -> None:
    status, _, headers = await http("POST", PATH, {**a_pod(), "z\u0010a\r\np\u20ac": 1})
    assert (status, headers["warning"]) == (201, '299 - "unknown field \\"z?a  p?\\""')


async def test_warnings_beyond_all_measure_are_cut(http: Http) -> None:
    unknown = {f"{one:04}" + "z" * 996: 1 for one in range(99)}
    status, _, headers = await http("POST", PATH, {**a_pod("many"), **unknown})
    assert status == 201
    assert len(headers["warning"]) < 400


async def test_yaml_is_read_too(http: Http) -> None:
    text = b"metadata:\n  name: p\n  annotations: {when: 2026-01-01}\nspec:\n  containers: [{name: c, image: x}]\n"
    status, made, _ = await http("POST", PATH, text, content_type="application/yaml")
    assert (status, made["metadata"]["annotations"]) == (201, {"when": "2026-01-01"})


async def test_a_list_goes_out_in_pages(http: Http) -> None:
    for number in range(3):
        await http("POST", PATH, a_pod(f"p{number}"))
    _, first, _ = await http("GET", f"{PATH}?limit=2")
    assert (first["kind"], first["apiVersion"], len(first["items"])) == ("PodList", "v1", 2)
    assert first["metadata"]["remainingItemCount"] == 1
    assert "kind" not in first["items"][0]
    _, rest, _ = await http("GET", f"{PATH}?limit=2&continue={first['metadata']['continue']}")
    assert [one["metadata"]["name"] for one in rest["items"]] == ["p2"]
    assert "continue" not in rest["metadata"]


async def test_a_collection_is_deleted_by_selector(http: Http) -> None:
    for number in range(3):
        await http("POST", PATH, {**a_pod(), "metadata": {"name": f"p{number}", "labels": {"n": str(number)}}})
    _, gone, _ = await http("DELETE", f"{PATH}?labelSelector=n!%3D1")
    assert [one["metadata"]["name"] for one in gone["items"]] == ["p0", "p2"]
    _, left, _ = await http("GET", PATH)
    assert [one["metadata"]["name"] for one in left["items"]] == ["p1"]


async def test_tables_and_metadata_alone(http: Http) -> None:
    await http("POST", PATH, a_pod())
    _, table, _ = await http("GET", PATH, accept=TABLE)
    assert [column["name"] for column in table["columnDefinitions"]][:5] == [
        "Name",
        "Ready",
        "Status",
        "Restarts",
        "Age",
    ]
    (row,) = table["rows"]
    assert row["cells"][:4] == ["p", "0/1", "Pending", "0"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    _, partial, _ = await http(
        "GET", PATH, accept="application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    )
    assert (partial["kind"], set(partial["items"][0])) == (
        "PartialObjectMetadataList",
        {"kind", "apiVersion", "metadata"},
    )


async def events(http: Http, query: str, count: int, **headers: str) -> list[Obj]:
    """The first `count` events of a watch."""
    found: list[Obj] = []
    sent = {"authorization": "Bearer admin-token", **headers}
    async with asyncio.timeout(DEADLINE_SECONDS):
        async with http.session.get(f"{http.url}{PATH}?watch=true&{query}", headers=sent) as answer:
            assert answer.status == 200
            async for line in answer.content:
                found.append(json.loads(line))
                if len(found) == count:
                    break
    return found


async def test_a_watch_without_a_version_begins_with_what_is_there(http: Http) -> None:
    await http("POST", PATH, a_pod("a"))
    watching = asyncio.ensure_future(events(http, "", 2))
    while not watching.done():
        await http("POST", PATH, a_pod("b"))
    assert [(one["type"], one["object"]["metadata"]["name"]) for one in await watching] == [
        ("ADDED", "a"),
        ("ADDED", "b"),
    ]


async def test_initial_events_end_with_a_bookmark(http: Http) -> None:
    await http("POST", PATH, a_pod("a"))
    query = "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&resourceVersion="
    added, end = await events(http, query, 2)
    assert (added["type"], end["type"]) == ("ADDED", "BOOKMARK")
    assert end["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_watch_ends_after_its_time(http: Http) -> None:
    status, body, _ = await http("GET", f"{PATH}?watch=1&timeoutSeconds=1")
    assert (status, body) == (200, "")


async def test_a_watch_from_too_long_ago_gets_an_error_event(http: Http, served: Any) -> None:
    await http("POST", PATH, a_pod("a"))
    served.server.storage.compact(served.server.storage.revision)
    status, body, _ = await http("GET", f"{PATH}?watch=1&resourceVersion=1")
    assert status == 200
    assert (body["type"], body["object"]["code"], body["object"]["reason"]) == ("ERROR", 410, "Expired")


async def test_a_watch_can_be_of_tables_of_one_object(http: Http) -> None:
    await http("POST", PATH, a_pod("a"))
    await http("POST", PATH, a_pod("b"))
    (event,) = await events(http, "fieldSelector=metadata.name%3Db", 1, accept=TABLE)
    assert (event["object"]["kind"], event["object"]["rows"][0]["cells"][0]) == ("Table", "b")


async def test_many_watches_that_go_away_leave_nothing_behind(http: Http, served: Any) -> None:
    await http("POST", PATH, a_pod("a"))
    await asyncio.gather(*(events(http, "", 1) for _ in range(10)))
    mirror = served.server.storage._mirror
    async with asyncio.timeout(DEADLINE_SECONDS):
        while mirror._watches:
            await http("GET", "/healthz")


async def test_discovery_names_every_resource(http: Http) -> None:
    _, core, _ = await http("GET", "/api/v1")
    names = {one["name"]: one for one in core["resources"]}
    assert names["pods/eviction"]["group"] == "policy"
    assert names["pods"]["shortNames"] == ["po"]
    _, groups, _ = await http("GET", "/apis")
    found = {one["name"] for one in groups["groups"]}
    assert {"apps", "batch", "policy", "apiextensions.k8s.io", "coordination.k8s.io"} <= found
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    _, aggregated, headers = await http("GET", "/apis", accept=accept)
    assert headers["content-type"] == accept
    assert {one["metadata"]["name"] for one in aggregated["items"]} == found


async def test_openapi_refers_only_to_what_it_holds(http: Http) -> None:
    _, index, _ = await http("GET", "/openapi/v3")
    assert "api/v1" in index["paths"]
    for entry in index["paths"].values():
        status, document, _ = await http("GET", entry["serverRelativeURL"])
        assert status == 200
        schemas = document["components"]["schemas"]
        text = json.dumps(document)
        for part in text.split('"#/components/schemas/')[1:]:
            assert part.split('"')[0] in schemas
    _, old, _ = await http("GET", "/openapi/v2")
    assert "io.k8s.api.core.v1.Pod" in old["definitions"]


async def test_kubectl_gets_openapi_v2_in_protobuf(http: Http) -> None:
    """It asks for a kind that /openapi/v3 does not have, such as one whose CRD is missing."""
    kind = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
    _, body, headers = await http("GET", "/openapi/v2", accept=kind)
    assert headers["content-type"] == kind.replace("@", ".")
    assert body.encode() == b"\x0a\x032.0\x12\x15\x0a\nKubernetes\x12\x07v1.36.2"


@pytest.mark.parametrize("path", ["/apis/nope.io/v1/things", "/apis/nope.io/v1", "/apis/nope.io", "/nope"])
async def test_where_no_api_is_there_is_no_page(http: Http, path: str) -> None:
    status, text, headers = await http("GET", path)
    assert (status, text) == (404, "404 page not found\n")
    assert headers["content-type"].startswith("text/plain")


async def test_logs_come_from_the_registered_source(http: Http, served: Any) -> None:
    asked: list[Any] = []

    async def source(pod: Obj, container: str, **options: Any) -> AsyncIterator[bytes]:
        asked.append((pod["metadata"]["name"], container, options))
        yield b"one\n"
        yield b"two\n"

    served.server.log_source = source
    await http("POST", PATH, a_pod())
    status, body, _ = await http("GET", f"{PATH}/p/log")
    assert (status, body) == (204, "")
    await http("POST", f"{PATH}/p/binding", {"target": {"name": "n"}})
    status, body, _ = await http("GET", f"{PATH}/p/log")
    assert (status, body["message"]) == (404, 'pods "n" not found'), (
        "the node is not there, as the real server says"
    )
    await http("POST", "/api/v1/nodes", {"metadata": {"name": "n"}})
    status, text, headers = await http(
        "GET", f"{PATH}/p/log?tailLines=5&timestamps=true&sinceSeconds=9&limitBytes=7"
    )
    assert (status, text, headers["content-type"]) == (200, "one\ntwo\n", "text/plain")
    assert asked == [
        (
            "p",
            "c",
            {
                "follow": False,
                "tail_lines": 5,
                "since_seconds": 9,
                "timestamps": True,
                "previous": False,
                "limit_bytes": 7,
            },
        )
    ]
    status, body, _ = await http("GET", f"{PATH}/p/log?container=other")
    assert (status, body["message"]) == (400, "container other is not valid for pod p")


@pytest.mark.parametrize(
    ("query", "want"),
    [
        ("tailLines=-1", "tailLines: Invalid value: -1: must be greater than or equal to 0"),
        ("limitBytes=0", "limitBytes: Invalid value: 0: must be greater than 0"),
        ("sinceSeconds=0", "sinceSeconds: Invalid value: 0: must be greater than 0"),
        (
            "sinceSeconds=5&sinceTime=2026-11-21T12:00:00Z",
            "Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
        ),
    ],
)
async def test_options_of_a_log_are_checked_in_the_real_servers_words(http: Http, query: str, want: str) -> None:
    await http("POST", PATH, a_pod())
    status, body, _ = await http("GET", f"{PATH}/p/log?{query}")
    assert (status, body["message"]) == (422, f'PodLogOptions "p" is invalid: {want}')


async def test_a_pod_of_several_containers_asks_for_a_name_and_lists_all(http: Http) -> None:
    spec = {
        "containers": [{"name": name, "image": "busybox:1"} for name in ("a", "b")],
        "initContainers": [{"name": "first", "image": "busybox:1"}],
    }
    await http("POST", PATH, {"metadata": {"name": "p"}, "spec": spec})
    for query in ("", "?container="):
        status, body, _ = await http("GET", f"{PATH}/p/log{query}")
        want = "a container name must be specified for pod p, choose one of: [first a b]"
        assert (status, body["message"]) == (400, want)


async def test_followed_logs_stream_and_end_with_the_client(http: Http, served: Any) -> None:
    ended = asyncio.Event()

    async def source(pod: Obj, container: str, **options: Any) -> AsyncIterator[bytes]:
        try:
            yield b"begun\n"
            await asyncio.Event().wait()
        finally:
            ended.set()

    served.server.log_source = source
    await http("POST", "/api/v1/nodes", {"metadata": {"name": "n"}})
    await http("POST", PATH, a_pod())
    await http("POST", f"{PATH}/p/binding", {"target": {"name": "n"}})
    async with asyncio.timeout(DEADLINE_SECONDS):
        async with http.session.get(
            f"{http.url}{PATH}/p/log?follow=true", headers={"authorization": "Bearer admin-token"}
        ) as answer:
            assert await answer.content.readline() == b"begun\n"
        await ended.wait()


async def test_empty_logs_and_watches_that_were_closed_leave_no_task_to_the_garbage_collector(
    http: Http, served: Any
) -> None:
    async def source(pod: Obj, container: str, **options: Any) -> AsyncIterator[bytes]:
        for line in ():
            yield line

    served.server.log_source = source
    await http("POST", "/api/v1/nodes", {"metadata": {"name": "n"}})
    await http("POST", PATH, a_pod())
    await http("POST", f"{PATH}/p/binding", {"target": {"name": "n"}})
    who = {"authorization": "Bearer admin-token"}

    async def ask(times: int) -> int:
        """How many tasks that ended are still in memory after so many logs and watches."""
        for _ in range(times):
            assert (await http("GET", f"{PATH}/p/log"))[:2] == (200, "")
            async with http.session.get(f"{http.url}{PATH}?watch=true", headers=who) as answer:
                await answer.content.readline()
        return sum(isinstance(each, asyncio.Task) and each.done() for each in gc.get_objects())

    gc.disable()
    try:
        few, more = await ask(5), await ask(20)
    finally:
        gc.enable()
    assert more < few + 10


async def test_a_service_account_token_is_good_until_it_expires_or_its_account_goes(
    http: Http, served: Any
) -> None:
    path = "/api/v1/namespaces/default/serviceaccounts"
    await http("POST", path, {"metadata": {"name": "robot"}})
    status, answer, _ = await http("POST", f"{path}/robot/token", {"spec": {"expirationSeconds": 3600}})
    assert status == 201
    token = answer["status"]["token"]
    _, me, _ = await http("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, token=token)
    assert me["status"]["userInfo"]["username"] == "system:serviceaccount:default:robot"
    assert me["status"]["userInfo"]["groups"] == [
        "system:serviceaccounts",
        "system:serviceaccounts:default",
        "system:authenticated",
    ]
    review = {"spec": {"token": token}}
    _, seen, _ = await http("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
    assert seen["status"]["authenticated"] is True
    changed = f"{token[:-3]}{'AAA' if token[-3:] != 'AAA' else 'BBB'}"
    assert (await http("GET", PATH, token=changed))[0] == 401
    await served.server.client().delete(SERVICEACCOUNTS, "robot", "default")
    assert (await http("GET", PATH, token=token))[0] == 401


async def test_a_token_expires(server: Any, clock: Any) -> None:
    api = server.client()
    await api.create(SERVICEACCOUNTS, {"metadata": {"name": "robot", "namespace": "default"}})
    answer = await api.create_subresource(SERVICEACCOUNTS, "robot", "token", {"spec": {}}, "default")
    token = answer["status"]["token"]
    assert server.authenticate(token).name == "system:serviceaccount:default:robot"
    clock.pass_by(seconds=3600)
    assert server.authenticate(token) is None


async def test_a_token_bound_to_a_pod_goes_with_the_pod(server: Any) -> None:
    api = server.client()
    await api.create(SERVICEACCOUNTS, {"metadata": {"name": "robot", "namespace": "default"}})
    pod = await api.create(PODS, a_pod(), "default")
    reference = {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": pod["metadata"]["uid"]}
    body = {"spec": {"boundObjectRef": reference}}
    token = (await api.create_subresource(SERVICEACCOUNTS, "robot", "token", body, "default"))["status"]["token"]
    assert server.authenticate(token).extra["authentication.kubernetes.io/pod-name"] == ("p",)
    await api.delete(PODS, "p", "default")
    assert server.authenticate(token) is None


def test_certificates_are_made_once_and_renewed_before_they_expire(tmp_path: Path) -> None:
    class At:
        def __init__(self, year: int) -> None:
            self.year = year

        def now(self) -> datetime:
            return datetime(self.year, 6, 1, tzinfo=UTC)

        def monotonic(self) -> float:
            return 0.0

        async def sleep(self, seconds: float) -> None:
            return None

    first = ensure_pki(tmp_path / "pki", clock=At(2026))
    again = ensure_pki(tmp_path / "pki", clock=At(2030))
    assert (again.ca_pem, again.signing_key) == (first.ca_pem, first.signing_key)
    assert (tmp_path / "pki" / "ca.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "pki" / "tokens.key").stat().st_mode & 0o777 == 0o600
    before = first.certificate.read_bytes()
    late = ensure_pki(tmp_path / "pki", clock=At(2036))
    assert late.ca_pem != first.ca_pem
    assert late.certificate.read_bytes() != before
    assert late.signing_key == first.signing_key


def test_a_lost_server_certificate_is_made_anew_under_the_same_authority(tmp_path: Path) -> None:
    first = ensure_pki(tmp_path)
    first.certificate.unlink()
    assert ensure_pki(tmp_path).ca_pem == first.ca_pem
    assert first.certificate.exists()


def test_a_lost_signing_key_is_damage_and_not_a_first_start(tmp_path: Path) -> None:
    first = ensure_pki(tmp_path)
    (tmp_path / "tokens.key").unlink()
    with pytest.raises(StorageDamaged, match=r"tokens\.key is missing"):
        ensure_pki(tmp_path)
    assert (tmp_path / "ca.crt").read_text() == first.ca_pem
    assert not (tmp_path / "tokens.key").exists()


def test_a_first_start_that_was_cut_short_is_done_again(tmp_path: Path) -> None:
    ensure_pki(tmp_path)
    for name in ("expiry.json", "tokens.key"):  # the last that it writes
        (tmp_path / name).unlink()
    assert len(ensure_pki(tmp_path).signing_key) == 32
    assert (tmp_path / "expiry.json").exists()


def test_a_lost_note_of_the_expiry_does_not_change_the_authority(tmp_path: Path) -> None:
    first = ensure_pki(tmp_path)
    (tmp_path / "expiry.json").unlink()
    assert ensure_pki(tmp_path).ca_pem == first.ca_pem


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "pki").write_text("a file")
    with pytest.raises(DataFolderError, match="could not keep certificates"):
        ensure_pki(tmp_path / "pki")
