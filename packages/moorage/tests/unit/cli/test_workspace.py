"""`moor workspace`: its options, their errors, hosts, templates and schedules."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest

from moorage.actions.workspaces import plan_workspace, workspace_of
from moorage.cli.browser import SCREENS
from moorage.cli.workspace import make_request, size_of
from moorage.model.schedule import last_moment, next_moment, problem_of_cron
from moorage.model.workspace import (
    BUILT_IN,
    WORKSPACES,
    App,
    BadWorkspace,
    Platform,
    check_workspace,
    host_label,
    parse_platform,
    templates_of,
)
from moorage_kube.errors import Forbidden, UsageError
from moorage_kube.resources import CONFIGMAPS
from moorage_kube.testing.builders import an_object
from moorage_testing.builders import keyed

NOTHING = {
    "kind": "jupyterlab", "machine": None, "cpu": None, "memory": None, "gpus": 0, "gpu_type": None, "image": None,
    "gpu_resource": None, "gpu_claim": None, "queue": None, "image_pull_secrets": (),
    "env": (), "volumes": (), "home": None, "home_size": None,
    "access": None, "start": None, "stop": None, "time_zone": None, "running": True, "host_env": False,
    "dry_run": False,
}  # fmt: skip


DATA = {"claimName": "data", "mountPath": "/data"}


def made(*, on_processes=False, **options):
    return plan_workspace(make_request("lab", "team", NOTHING | options, on_processes=on_processes))


@pytest.mark.parametrize(
    ("options", "spec"),
    [
        ({}, {"type": "jupyterlab", "running": True}),
        ({"running": False}, {"type": "jupyterlab", "running": False}),
        ({"machine": "gpu/large"}, {"machine": {"group": "gpu", "type": "large"}}),
        (
            {"cpu": "2", "gpus": 1, "gpu_type": "a100", "gpu_resource": "mig"},
            {"resources": {"cpu": "2", "gpus": 1, "gpuType": "a100", "gpuResource": "mig"}},
        ),
        ({"volumes": ("data:/data:ro",)}, {"volumes": [DATA | {"readOnly": True}]}),
        ({"volumes": ("data:/data", "own:/own")}, {"volumes": [DATA, {"claimName": "own", "mountPath": "/own"}]}),
        ({"env": ("A=1=2",)}, {"env": [{"name": "A", "value": "1=2"}]}),
        ({"start": "0 8 * * *", "time_zone": "UTC"}, {"schedule": {"start": "0 8 * * *", "timeZone": "UTC"}}),
        ({"home_size": "1Gi"}, {"home": {"size": "1Gi"}}),
    ],
)
def test_the_options_make_the_spec(options, spec):
    obj = made(**options)
    assert check_workspace(obj) == []
    assert {key: obj["spec"][key] for key in spec} == spec


@pytest.mark.parametrize(
    "options",
    [{"machine": "large"}, {"volumes": ("data",)}, {"volumes": ("data:/x:no",)}, {"env": ("NOT_SET_HERE",)}],
)
def test_unreadable_options_are_wrong_usage(options):
    with pytest.raises(UsageError):
        made(**options)


def test_a_process_of_this_machine_finds_what_the_caller_finds(monkeypatch):
    monkeypatch.setenv("PATH", "/here/bin")
    env = {variable["name"]: variable["value"] for variable in made(on_processes=True)["spec"]["env"]}
    assert env["PATH"] == "/here/bin"
    assert "env" not in made(on_processes=True, image="x")["spec"]


def test_the_size_of_a_workspace_is_a_few_words():
    assert size_of(workspace_of(made(machine="gpu/large"))) == "gpu/large"
    assert size_of(workspace_of(made(cpu="2", gpus=2, gpu_type="a100"))) == "2 cpu 4Gi 2 a100"


# --- hosts, addresses, templates, schedules


def test_no_two_workspaces_share_a_host():
    names = ["a", "a-b", "a--b", "xn", "ab", "a" * 43, "b" * 43]
    spaces = ["c", "b--c", "c-d", "n" * 63, "b"]
    labels = [host_label(space, name) for space in spaces for name in names]
    assert len(set(labels)) == len(labels)
    assert all(len(label) <= 63 and label[2:4] != "--" and not label.startswith("xn--") for label in labels)
    assert host_label("team", "lab") == "lab--team"


@pytest.mark.parametrize("name", ["a-notebook-with-a-long-name-of-its-own", "lab--2", "ab"])
@pytest.mark.parametrize("namespace", ["a-team-with-a-very-long-name-indeed-alpha", "team--2", "team"])
def test_no_name_can_be_chosen_that_gives_a_workspace_the_host_of_another(name: str, namespace: str) -> None:
    host = host_label(namespace, name)
    assert len(host) <= 63
    assert host[2:4] != "--", "a reserved label (RFC 5891, 4.2.3.1)"
    for at in range(len(host) - 1):
        if host[at : at + 2] == "--":
            theirs = host[at + 2 :], host[:at]
            assert theirs == (namespace, name) or host_label(*theirs) != host


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://*.apps.example.org", "https://lab--team.apps.example.org/lab"),
        ("http://*.localhost:8081", "http://lab--team.localhost:8081/lab"),
        ("", ""),
    ],
)
def test_the_address_of_a_workspace(text, url):
    platform = parse_platform({"workspaceUrl": text})
    address = platform.url(platform.host("team", "lab"), "/lab") if platform.domain else ""
    assert address == url


@pytest.mark.parametrize(
    "text", ["https://apps.example.org", "*.x", "ftp://*.x", "https://*.x:99999", "https://*.x/y"]
)
def test_an_address_of_another_form_is_refused(text):
    with pytest.raises(BadWorkspace, match="workspaceUrl"):
        parse_platform({"workspaceUrl": text})


def test_the_platforms_own_host_is_no_workspace():
    platform = Platform(scheme="https", domain="example.org", page="https://moorage.example.org")
    assert platform.serves("lab--team.example.org")
    assert not platform.serves("moorage.example.org")
    assert not platform.serves("example.org")
    assert not platform.serves("lab--team.example.org.evil.test")


def templates(texts):
    return [
        an_object(CONFIGMAPS, f"t-{name}", labels=keyed(workspace_template=name), data={"template.yaml": text})
        for name, text in texts.items()
    ]


def test_an_admins_template_takes_the_place_of_ours_and_a_bad_one_is_named():
    texts = {"jupyterlab": "port: 1234", "odd": "port: many", "yaml": "{"}
    good, bad = templates_of(templates(texts))
    assert good["jupyterlab"].port == 1234
    assert set(bad) == {"odd", "yaml"}
    assert "codeserver" in good


def test_a_template_of_ours_with_another_image_keeps_all_else():
    texts = {
        "jupyterlab": "image: registry.example.org/lab:4",
        "codeserver": "{image: c:1, home: /home/me, fsGroup: 0}",
        "own": "image: registry.example.org/own:1",
    }
    good, bad = templates_of(templates(texts))
    assert bad == {}
    assert good == {
        "jupyterlab": msgspec.structs.replace(BUILT_IN["jupyterlab"], image="registry.example.org/lab:4"),
        "codeserver": msgspec.structs.replace(BUILT_IN["codeserver"], image="c:1", home="/home/me", fs_group=0),
        "own": App(image="registry.example.org/own:1"),
    }


def test_moments_of_a_schedule_in_a_zone():
    berlin, noon = ZoneInfo("Europe/Berlin"), datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert next_moment("0 8 * * *", noon, berlin) == datetime(2026, 7, 2, 6, tzinfo=UTC)
    june = datetime(2026, 6, 1, tzinfo=UTC)
    assert last_moment("0 8 * * *", noon, june, berlin) == datetime(2026, 7, 1, 6, tzinfo=UTC)
    assert last_moment("0 14 * * *", noon, june, berlin) == noon  # that very moment
    assert last_moment("0 8 * * *", noon, noon, berlin) is None
    assert next_moment("0 0 29 2 *", noon) == datetime(2028, 2, 29, tzinfo=UTC)
    for wrong in ("", "0 8 * *", "0 0 8 * * *", "61 8 * * *", "0 0 30 2 *", "x"):
        assert problem_of_cron(wrong)


def put_workspace(moor, **status):
    obj = plan_workspace(make_request("lab", "default", NOTHING, on_processes=False))
    obj["metadata"]["generation"] = 1
    running = {"phase": "Running", "url": "https://lab.test/", "access": "login", "observedGeneration": 1}
    moor.api.put(WORKSPACES, obj | {"status": running | status})


@pytest.fixture
def no_screen(monkeypatch):
    for name in SCREENS:
        monkeypatch.delenv(name, raising=False)


def test_a_workspace_opens_over_ssh_by_its_printed_address(moor, no_screen):
    put_workspace(moor)
    moor.server.answers["/api/v1/workspaces/default/lab/open"] = {"url": "https://lab.test/?code=c"}
    done = moor("workspace", "open", "lab")
    assert (done.code, done.out) == (0, "https://lab.test/?code=c\n"), done.err
    assert done.err == "cannot open a browser here; open this address in yours:\n"


def test_an_owner_who_may_read_no_secret_gets_the_token_of_the_workspace_from_the_server(moor, no_screen):
    put_workspace(moor, access="token", secret="s")
    moor.api.refuse["get", "secrets"] = Forbidden("secrets is forbidden")
    path = "/api/v1/workspaces/default/lab/open"
    moor.server.answers[path] = {"url": "https://lab.test/", "password": "pw"}
    done = moor("workspace", "open", "lab")
    assert (done.code, done.out) == (0, "https://lab.test/\n"), done.err
    assert done.err.startswith("its password is pw\n")
    del moor.server.answers[path]  # as where there is no server
    done = moor("workspace", "open", "lab")
    assert done.code == 1
    assert done.err.splitlines() == [
        "error: you may not read the token of workspace 'lab'",
        "hint: its owner and administrators of the team may; with `access: login` it is opened by a login",
    ]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        pytest.param("", (), id="it has no address"),
        pytest.param("https://lab.test/", ("--tunnel",), id="asked for"),
        pytest.param("https://lab.test/", ("--port", "8888"), id="a port of this machine is named"),
    ],
)
def test_without_an_address_or_when_asked_a_workspace_is_opened_through_a_tunnel(moor, url, options):
    put_workspace(moor, url=url, access="login" if url else "token")
    done = moor("workspace", "open", "lab", *options)
    assert done.code == 1
    assert "error: a tunnel needs a Moorage server, and this cluster has none" in done.err
