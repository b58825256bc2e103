"""Docker's own clients against our server: the Python package, and the command line where there is one."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import docker
import pytest
import requests
import yaml

from moorage_kube.testing.waiting import PATIENCE_SECONDS, read_until
from moorage_testing.cluster import Cluster

pytestmark = [
    pytest.mark.cluster("scheduler", "controllers", "kubelet"),
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning"
    ),  # the package leaves sockets open
]

IMAGE = "localhost/host"  # this machine's environment
SMALL: dict[str, Any] = {"mem_limit": "128m", "nano_cpus": 250_000_000}


@pytest.fixture(scope="module")
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """(address, folder of Docker's config.json)"""
    found: Cluster = request.getfixturevalue("_session_cluster")
    if reason := found.lacks({"scheduler", "controllers", "kubelet"}):
        pytest.skip(reason)
    page = urlsplit(json.loads(found.moor("status", "-o", "json").stdout)["page"])
    token = yaml.safe_load(found.kubeconfig.read_text())["users"][0]["user"]["token"]
    folder = tmp_path_factory.mktemp("docker")
    headers = {"Authorization": f"Bearer {token}", "X-Moorage-Namespace": "default"}  # other tests make tenants
    (folder / "config.json").write_text(json.dumps({"HttpHeaders": headers}))
    return page.netloc, folder


@pytest.fixture
def client(config: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[docker.DockerClient]:
    monkeypatch.setenv("DOCKER_CONFIG", str(config[1]))
    made = docker.DockerClient(base_url=f"tcp://{config[0]}", timeout=120)
    yield made
    made.close()
    del made
    gc.collect()


@pytest.fixture
def name(client: docker.DockerClient, unique: str) -> Iterator[str]:
    yield unique
    for one in client.containers.list(all=True, filters={"name": unique}):
        one.remove(force=True)


def test_run_prints_what_the_container_printed_and_removes_it(client, name):
    said = client.containers.run(IMAGE, ["sh", "-c", "echo one; echo two"], name=name, remove=True, **SMALL)
    assert said == b"one\ntwo\n"
    assert client.containers.list(all=True, filters={"name": name}) == []


def test_a_container_that_fails_says_with_what(client, name):
    with pytest.raises(docker.errors.ContainerError) as failed:
        client.containers.run(IMAGE, ["sh", "-c", "echo broken >&2; exit 3"], name=name, **SMALL)
    assert (failed.value.exit_status, failed.value.stderr) == (3, b"broken\n")


def test_run_ps_logs_stop_start_rm(client, name):
    made = client.containers.run(
        IMAGE,
        ["sh", "-c", "echo begun $WHO; exec sleep 600"],
        name=name,
        detach=True,
        environment={"WHO": "ada"},
        labels={"team": name},
        **SMALL,
    )
    follow = made.logs(stream=True, follow=True)
    assert next(follow) == b"begun ada\n"
    (listed,) = client.containers.list(filters={"label": f"team={name}"})
    assert (listed.id, listed.name, listed.status) == (made.id, name, "running")
    assert listed.attrs["HostConfig"]["Memory"] == 128 * 2**20
    assert listed.labels["moorage.dev/owner"]
    if shutil.which("ps"):
        assert [row[-1] for row in made.top()["Processes"]] == ["sleep 600"]
        assert made.top(ps_args="-o pid,comm -A")["Titles"] == ["PID", "COMMAND"]

    made.stop()
    made.reload()
    assert (made.status, made.attrs["State"]["ExitCode"]) == ("exited", 143)
    assert made.logs() == b"begun ada\n"
    assert client.containers.list(filters={"name": name}) == []
    assert list(follow) == []

    made.start()
    with contextlib.closing(made.logs(stream=True, follow=True)) as again:
        assert next(again) == b"begun ada\n"
    assert client.containers.get(name).id == made.id
    with pytest.raises(docker.errors.APIError, match="cannot remove a running container"):
        made.remove()
    made.remove(force=True)
    with pytest.raises(docker.errors.NotFound, match="No such container"):
        client.containers.get(name)


def test_commands_run_in_a_running_container_with_their_input_output_and_exit_code(client, config, name):
    made = client.containers.run(IMAGE, ["sleep", "600"], name=name, detach=True, environment={"A": "1"}, **SMALL)
    script = "echo out $A $B; echo err >&2; exit 5"
    done = printed_by(made, ["sh", "-c", script], environment={"B": "2"}, demux=True)
    assert (done.exit_code, done.output) == (5, (b"out 1 2\n", b"err\n"))
    assert printed_by(made, ["pwd"], workdir="/tmp").output == b"/tmp\n"
    with pytest.raises(docker.errors.APIError, match="User is not available"):
        made.exec_run(["id"], user="root")
    if program := shutil.which("docker"):
        env = os.environ | {"DOCKER_HOST": f"tcp://{config[0]}", "DOCKER_CONFIG": str(config[1])}
        words = [program, "exec", "-i", name, "sh", "-c", "cat; exit 3"]
        typed = subprocess.run(
            words, env=env, input="typed\n", capture_output=True, text=True, timeout=180, check=False
        )
        assert (typed.returncode, typed.stdout) == (3, "typed\n")
    made.stop()
    with pytest.raises(docker.errors.APIError, match="is not running"):
        made.exec_run(["true"])


def printed_by(made, command, **options):
    """The answer of a command that prints.

    The docker package reads beneath its own buffer: output that comes in one piece with the head of the answer is
    lost to it, on a busy machine now and then. The exit code comes all the same, so the command is run again.
    """
    for _ in range(20):
        done = made.exec_run(command, **options)
        if done.output not in (None, b"", (None, None)):
            return done
    raise AssertionError(f"20 times no output: {done}")


def test_a_command_runs_over_a_websocket(client, config, name):
    from websockets.sync.client import connect

    until_running(client.containers.run(IMAGE, ["sleep", "600"], name=name, detach=True, **SMALL))
    headers = json.loads((config[1] / "config.json").read_text())["HttpHeaders"]
    where = f"ws://{config[0]}/api/v1/containers/{name}/exec?command=cat"
    patient = {"open_timeout": PATIENCE_SECONDS, "ping_timeout": PATIENCE_SECONDS}
    with connect(where, additional_headers=headers, subprotocols=["v5.channel.k8s.io"], **patient) as socket:
        socket.send(b"\x00hello")
        assert socket.recv(PATIENCE_SECONDS) == b"\x01hello"
        socket.send(b"\xff\x00")
        assert socket.recv(PATIENCE_SECONDS) == b'\x03{"exitCode": 0}'
    with pytest.raises(Exception, match="1008|403"), connect(where, **patient) as socket:
        socket.recv(PATIENCE_SECONDS)


def until_running(made):
    def status():
        made.reload()
        return made.status

    read_until(status, "running".__eq__)


def test_a_container_with_open_input_goes_on_and_its_log_comes_line_by_line(client, name):
    words = ["sh", "-c", "echo one; echo two; exec cat"]
    made = client.containers.run(IMAGE, words, name=name, detach=True, stdin_open=True, **SMALL)
    follow = made.logs(stream=True, follow=True)
    assert [next(follow), next(follow)] == [b"one\n", b"two\n"]
    assert printed_by(made, ["echo", "three"]).output == b"three\n"
    # in frames: the start asks for no terminal; again and again as in `printed_by`
    with_terminal = (client.api.exec_create(made.id, ["echo", "four"], tty=True) for _ in range(20))
    assert next(filter(None, map(client.api.exec_start, with_terminal))) == b"four\r\n"
    assert (made.logs(until=1), made.logs(until=2**33)) == (b"", b"one\ntwo\n")
    made.reload()
    assert (made.status, made.attrs["HostConfig"]["Runtime"]) == ("running", "runc")


def test_wait_tells_the_exit_code(client, name):
    made = client.containers.run(IMAGE, ["sh", "-c", "exit 7"], name=name, detach=True, **SMALL)
    assert made.wait()["StatusCode"] == 7


def test_a_detached_container_takes_a_command_at_once_and_shows_its_use(client, name):
    made = client.containers.run(IMAGE, ["sleep", "600"], name=name, detach=True, **SMALL)
    assert made.exec_run(["true"]).exit_code == 0
    shown = made.stats(stream=False)
    assert (shown["id"], shown["memory_stats"]["limit"]) == (made.id, 128 * 1024**2)
    with pytest.raises(docker.errors.APIError, match="is not supported: a pod cannot be paused"):
        made.pause()


def test_a_failed_run_that_is_removed_has_its_error_text(client, name):
    command = ["python3", "-c", "import nosuchmodule"]
    with pytest.raises(docker.errors.ContainerError) as failed:
        client.containers.run(IMAGE, command, name=name, remove=True, **SMALL)
    assert b"No module named 'nosuchmodule'" in failed.value.stderr


def test_an_image_is_pulled_where_it_is_missing_and_its_container_is_counted(client, name):
    assert client.images.pull(IMAGE, tag=name).tags == [f"{IMAGE}:{name}"]
    assert client.images.get(f"{IMAGE}:{name}").id in [image.id for image in client.images.list()]
    client.images.remove(f"{IMAGE}:{name}")
    with pytest.raises(docker.errors.ImageNotFound, match="No such image"):
        client.images.get(f"{IMAGE}:{name}")
    made = client.containers.create(IMAGE, ["true"], name=name, **SMALL)
    assert name in [row["Names"][0].lstrip("/") for row in client.df()["Containers"]]
    assert client.containers.prune({"name": [name]})["ContainersDeleted"] == [made.id]


def test_a_volume_is_created_listed_and_removed(client, name):
    made = client.volumes.create(name, driver_opts={"size": "64Mi"})
    try:
        assert name in [volume.name for volume in client.volumes.list()]
        assert client.volumes.get(name).attrs["Options"] == {"size": "64Mi"}
    finally:
        made.remove()
    assert [network.name for network in client.networks.list()] == ["bridge"]


def test_what_cannot_be_is_refused_with_its_place_and_nothing_is_made(client, name):
    with pytest.raises(docker.errors.APIError, match="--privileged is not available"):
        client.containers.create(IMAGE, "true", name=name, privileged=True)
    with pytest.raises(docker.errors.APIError, match="'/etc' is a path of the node"):
        client.containers.create(IMAGE, "true", name=name, volumes=["/etc:/x"])
    with pytest.raises(docker.errors.APIError, match=r"cannot pull image 'python:3\.12'"):
        client.containers.create("python:3.12", "true", name=name)
    with pytest.raises(docker.errors.NotFound, match=f"no such volume: {name}"):
        client.containers.create(IMAGE, "true", name=name, volumes=[f"{name}:/x"])
    assert client.containers.list(all=True, filters={"name": name}) == []


def test_a_name_is_taken_once_and_a_key_is_used_once(client, config, name):
    client.containers.create(IMAGE, "true", name=name, **SMALL)
    with pytest.raises(docker.errors.APIError, match="is already in use") as taken:
        client.containers.create(IMAGE, "true", name=name, **SMALL)
    assert taken.value.status_code == 409

    headers = json.loads((config[1] / "config.json").read_text())["HttpHeaders"] | {"Idempotency-Key": name}
    url = f"http://{config[0]}/api/v1/containers?name={name}-k"
    first = requests.post(url, headers=headers, json={"Image": IMAGE, "Cmd": ["true"]}, timeout=120)
    again = requests.post(url, headers=headers, json={"Image": IMAGE, "Cmd": ["true"]}, timeout=120)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json()["Id"] == again.json()["Id"]
    other = requests.post(url, headers=headers, json={"Image": "other"}, timeout=120)
    assert (other.status_code, other.json()["code"]) == (422, "key_reused")


def test_long_lists_come_in_pages(client, config, name):
    for n in range(3):
        client.containers.create(IMAGE, "true", name=f"{name}-{n}", **SMALL)
    headers = json.loads((config[1] / "config.json").read_text())["HttpHeaders"]
    filters = json.dumps({"name": [name]})
    seen, after = [], None
    while True:
        params = {"all": "true", "limit": 2, "filters": filters} | ({"after": after} if after else {})
        answer = requests.get(f"http://{config[0]}/api/v1/containers", headers=headers, params=params, timeout=120)
        seen += [one["Names"][0] for one in answer.json()]
        after = answer.headers.get("x-next-after")
        if not after:
            break
    assert sorted(seen) == [f"/{name}-{n}" for n in range(3)]


def test_nobody_comes_in_without_a_token(config):
    for path in ("/_ping", "/version", "/containers/json", "/v1.41/containers/json", "/api/v1/containers"):
        assert requests.get(f"http://{config[0]}{path}", timeout=120).status_code == 401


def test_dockers_own_command_line_runs_a_container_in_the_foreground(config, client, name):
    program = shutil.which("docker")
    if program is None:
        pytest.skip("there is no docker command on this machine")

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"DOCKER_HOST": f"tcp://{config[0]}", "DOCKER_CONFIG": str(config[1])}
        return subprocess.run([program, *words], env=env, capture_output=True, text=True, timeout=120, check=False)

    done = typed("run", "--name", name, "-m", "128m", "--cpus", "0.25", IMAGE, "sh", "-c", "echo hello; exit 4")
    assert (done.returncode, done.stdout) == (4, "hello\n")
    assert name in typed("ps", "-a", "--format", "{{.Names}}").stdout.split()
    assert typed("logs", name).stdout == "hello\n"
    assert typed("rm", name).stdout == f"{name}\n"
    for _ in range(5):  # what ends at once is read to its end before it is removed
        assert typed("run", "--rm", "--name", name, "-m", "128m", IMAGE, "echo", "short").stdout == "short\n"
    assert name not in typed("ps", "-a", "--format", "{{.Names}}").stdout.split()
