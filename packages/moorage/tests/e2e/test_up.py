"""`moor up`, `down`, `status` as typed, and what they say when something is in the way."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from moorage.cli.datafolder import DEFAULT_PORTS, OPTIONS
from moorage.cli.localports import port_holder
from moorage_kube.documents import parse_document
from moorage_kube.testing.ports import free_ports
from moorage_kube.testing.waiting import wait_until


def moor(*args: str, data: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "moorage.cli.main", *args, "--data", str(data)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"NO_COLOR": "1"} | (env or {}),
    )


@pytest.fixture
def data(tmp_path) -> Iterator[Path]:
    folder = tmp_path / "d"
    yield folder
    if (folder / "VERSION").exists() and (folder / "VERSION").read_text() == "1\n":
        assert moor("down", data=folder).returncode == 0


@pytest.fixture(scope="module")
def started(tmp_path_factory) -> Iterator[tuple[Path, str]]:
    """The data folder of a cluster that tests leave running, and what `moor up` said."""
    folder = tmp_path_factory.mktemp("up") / "d"
    done = up(folder, "--nodes", "1", "--ingress-port", "0")
    assert done.returncode == 0, done.stderr
    yield folder, done.stdout
    assert moor("down", data=folder).returncode == 0


def up(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return moor("up", "--port", "0", "--api-port", "0", *options, data=data)


@pytest.mark.xdist_group("up")
def test_up_status_down_and_up_again_keep_nodes_and_addresses(data):
    (port,) = free_ports(1)  # nobody else gets it while the cluster is down
    done = up(data, "--nodes", "2", "--gpus", "2", "--gpu-type", "a100", "--port", str(port))
    assert done.returncode == 0, done.stderr
    before = json.loads(moor("status", "-o", "json", data=data).stdout)
    assert [(node["name"], node["gpus"], node["gpuType"], node["state"]) for node in before["nodes"]] == [
        ("node-1", 2, "a100", "Ready"),
        ("node-2", 2, "a100", "Ready"),
    ]
    assert moor("down", data=data).returncode == 0
    stopped = moor("status", "-o", "json", data=data)
    assert (stopped.returncode, json.loads(stopped.stdout)["running"]) == (1, False)
    assert moor("up", data=data).returncode == 0
    after = json.loads(moor("status", "-o", "json", data=data).stdout)
    assert (after["page"], after["nodes"]) == (before["page"], before["nodes"])


@pytest.mark.xdist_group("up")
def test_a_second_up_is_refused_and_leaves_the_first_alone(started):
    data, _ = started
    second = up(data)
    assert second.returncode == 1
    assert "running already" in second.stderr
    assert "moor down" in second.stderr
    assert len(second.stderr.strip().splitlines()) == 2
    assert moor("status", data=data).returncode == 0


def test_a_taken_port_is_named_and_nothing_is_started(data):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = moor("up", "--port", str(port), "--api-port", "0", data=data)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: port {port} on 127.0.0.1, wanted for the server, cannot be used:"
        f" {Path('/proc/self/comm').read_text().strip()} (process {os.getpid()}) uses it\n"
        "hint: choose another with --port, or 0 for any free one\n"
    )
    assert moor("status", data=data).returncode == 1


@contextlib.contextmanager
def held(ports: Iterable[int]) -> Iterator[set[int]]:
    """Listen on these ports; those that are ours. One that another program holds may be free a moment later."""
    ours = set()
    with contextlib.ExitStack() as stack:
        for port in ports:
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                ours.add(port)
        yield ours


@pytest.mark.xdist_group("up")
def test_usual_ports_that_are_taken_yield_to_free_ones_in_every_address(data):
    with held(DEFAULT_PORTS.values()) as taken:
        done = moor("up", data=data)
        assert done.returncode == 0, done.stderr
        facts = json.loads(moor("status", "-o", "json", data=data).stdout)
        page, ingress = facts["page"], facts["ingress"]
        api = parse_document((data / "kubeconfig").read_bytes())["clusters"][0]["cluster"]["server"]
        ports = {"server": urlsplit(page).port, "api": urlsplit(api).port, "ingress": urlsplit(ingress).port}
        assert not set(ports.values()) & taken
        for name, noun, usual in (
            ("server", "web page", 8080),
            ("api", "Kubernetes API", 6443),
            ("ingress", "ingress", 8081),
        ):
            if usual not in taken:
                continue
            assert f"note: port {usual} is taken" in done.stderr
            assert f"the {noun} uses {ports[name]}; {OPTIONS[name]} chooses another" in done.stderr
        assert page in done.stdout
        assert ingress in done.stdout
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(page) as answer:
            assert answer.status == 200
        run = moor("run", "--follow", "--data", str(data), "--", "echo", "it runs", data=data)
        assert (run.returncode, "it runs" in run.stdout) == (0, True), run.stderr


@pytest.mark.xdist_group("up")
def test_ports_of_the_last_start_yield_too(data):
    assert moor("up", data=data).returncode == 0
    assert moor("down", data=data).returncode == 0
    before = json.loads((data / "config.json").read_text())["ports"]
    with held(before.values()) as taken:
        done = moor("up", data=data)
        assert done.returncode == 0, done.stderr
        after = json.loads((data / "config.json").read_text())["ports"]
        assert not taken & set(after.values())
        run = moor("run", "--follow", "--data", str(data), "--", "echo", "it runs", data=data)
        assert (run.returncode, "it runs" in run.stdout) == (0, True), run.stderr


def test_a_port_that_nobody_holds_has_no_process(tmp_path):
    assert port_holder(1, tmp_path) == ""


@pytest.mark.parametrize(
    ("content", "word"),
    [
        pytest.param({"VERSION": "99\n"}, "layout 99", id="a folder of another version"),
        pytest.param({"thesis.tex": "x"}, "not empty", id="somebody's own folder"),
    ],
)
def test_a_folder_that_is_not_ours_is_left_as_it_is(data, content, word):
    data.mkdir()
    for name, text in content.items():
        (data / name).write_text(text)
    done = up(data)
    assert done.returncode == 1
    assert word in done.stderr
    assert "hint:" in done.stderr
    assert {path.name: path.read_text() for path in data.iterdir()} == content


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (tmp_path / "shut").mkdir(mode=0o500)
    done = up(tmp_path / "shut" / "d")
    assert (done.returncode, "cannot write" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        pytest.param("- {count: 2}", "no name", id="no name"),
        pytest.param("- {name: a, gpu: 2}", "unknown field 'gpu'", id="unknown field"),
        pytest.param("- {name: a, gpus: many}", "gpus is 'many'", id="no number"),
        pytest.param("- {name: a, memory: lots}", "invalid quantity 'lots'", id="no quantity"),
        pytest.param("- {name: a}\n- {name: a}", "two nodes are named a", id="twins"),
        pytest.param("{", "is not valid YAML", id="not YAML"),
    ],
)
def test_a_wrong_node_file_is_refused_with_its_entry(data, tmp_path, text, word):
    file = tmp_path / "nodes.yaml"
    file.write_text(text)
    done = up(data, "--node-file", str(file))
    assert done.returncode == 2
    assert word in done.stderr
    assert not data.exists()


@pytest.mark.xdist_group("up")
def test_a_node_file_makes_those_nodes(data, tmp_path):
    file = tmp_path / "nodes.yaml"
    file.write_text(
        "- {name: cpu, cpu: 8, memory: 4Gi}\n"
        "- {name: big, count: 2, gpus: 4, gpuType: h100, labels: {rack: r1},\n"
        "   taints: [{key: team, value: vision, effect: NoSchedule}]}\n"
    )
    assert up(data, "--node-file", str(file)).returncode == 0
    nodes = json.loads(moor("status", "-o", "json", data=data).stdout)["nodes"]
    assert [(node["name"], node["gpus"], node["gpuType"]) for node in nodes] == [
        ("big-1", 4, "h100"),
        ("big-2", 4, "h100"),
        ("cpu", 0, ""),
    ]


@pytest.mark.xdist_group("up")
def test_nobody_else_can_read_what_is_in_the_data_folder(data):
    data.mkdir()
    data.chmod(0o755)  # as folders of older versions were
    assert up(data).returncode == 0
    assert moor("down", data=data).returncode == 0
    for name in ("cluster.db", "queue.db", "tokens.json", "log/localcluster.log"):
        (data / name).chmod(0o644)
    (data / "log").chmod(0o755)
    assert moor("up", data=data).returncode == 0
    open_to_others = {}
    for place, folders, files in os.walk(data):
        for path in (Path(place), *(Path(place, name) for name in (*folders, *files))):
            with contextlib.suppress(FileNotFoundError):  # the cluster is at work in there
                if path.lstat().st_mode & 0o077 and not path.is_symlink():
                    open_to_others[str(path.relative_to(data))] = oct(path.lstat().st_mode)
    assert open_to_others == {}


@pytest.mark.xdist_group("up")
def test_a_child_that_dies_is_started_again(started):
    data, _ = started
    pid = json.loads(moor("status", "-o", "json", data=data).stdout)["processes"]["services"]
    os.kill(pid, 9)

    def again() -> bool:
        found = json.loads(moor("status", "-o", "json", data=data).stdout)
        return found["processes"]["services"] not in (pid, None) and "error" not in found

    wait_until("the services to be back", again)


@pytest.mark.xdist_group("up")
def test_up_status_and_down_say_what_comes_next_and_erase_removes_all(data):
    started = up(data, "--nodes", "1", "--ingress-port", "0")
    assert started.returncode == 0, started.stderr
    steps = [line.strip() for line in started.stdout.partition("next:\n")[2].splitlines()]
    assert [step.split("  #")[0].strip() for step in steps] == [
        f"moor run --follow --data {data} -- python3 -c 'print(\"hello\")'",
        f"moor status --data {data}",
        f"moor down --data {data}",
    ]
    shown = moor("status", data=data).stdout
    assert shown.startswith(f"running     {data}, version ")
    assert shown.endswith(f"\nstop        moor down --data {data}\n")

    stopped = moor("down", data=data)
    assert stopped.stderr == (
        f"stopped\nruns, volumes and accounts remain in {data}\n"
        f"start again: moor up --data {data}   remove all: moor down --erase --data {data}\n"
    )
    assert f"moor down --erase --data {data}" in moor("status", data=data).stdout

    (data / "volumes" / "mine").write_text("years of work")
    assert moor("down", "--erase", "--keep-pods", data=data).returncode == 2
    asked = moor("down", "--erase", data=data)  # nobody answers
    assert (asked.returncode, asked.stderr.splitlines()[-2:]) == (
        2,
        [
            "error: nothing was removed: the question needs an answer, and the input has ended",
            "hint: without a terminal, add --yes",
        ],
    )
    assert (data / "volumes" / "mine").exists()
    assert moor("down", "--erase", "--yes", data=data).returncode == 0
    assert not data.exists()
    assert moor("down", "--erase", data=data).stderr == f"nothing to erase: {data} does not exist\n"


@pytest.mark.xdist_group("up")
def test_commands_without_data_are_told_where_the_cluster_runs(started, tmp_path):
    data, said = started
    assert f"commands:   export MOORAGE_DATA={data}, or add --data {data} to each\n" in said
    home = tmp_path / "home"
    home.mkdir()
    hidden = ("KUBE", "MOORAGE_", "XDG_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    env |= {"HOME": str(home), "NO_COLOR": "1"}

    def typed(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "moorage.cli.main", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=env | more)

    lost = typed("jobs")
    assert (lost.returncode, str(data) in lost.stderr, "export MOORAGE_DATA=" in lost.stderr) == (1, True, True)
    assert f"a cluster runs in {data}: export MOORAGE_DATA={data}" in typed("status").stdout
    assert typed("jobs", MOORAGE_DATA=str(data)).returncode == 0


@pytest.mark.xdist_group("up")
def test_a_run_from_a_folder_in_the_data_folder_says_why_it_cannot_start(started):
    data, _ = started
    project = data / "project"
    project.mkdir()
    env = os.environ | {"NO_COLOR": "1", "MOORAGE_DATA": str(data), "MOORAGE_KUBECONFIG": str(data / "kubeconfig")}

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "moorage.cli.main", *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False, env=env, cwd=project, timeout=120)

    done = typed("run", "--name", "inside", "--memory", "64Mi", "--follow", "--", "pwd")
    if done.returncode == 0:
        pytest.skip("this machine cannot keep pods from a folder: they see it")
    why = f'the working directory "{project}" lies in the data folder "{data}" of the cluster'
    assert (done.returncode, why in done.stderr) == (128, True), done.stderr
    logs = typed("logs", "-f", "inside")
    assert (logs.returncode, why in logs.stderr, logs.stderr.endswith("; it has no logs\n")) == (0, True, True)
