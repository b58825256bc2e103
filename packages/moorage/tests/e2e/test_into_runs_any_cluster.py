"""`moor exec`, `moor port-forward` and `moor wait`, as typed, into a run that really runs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage_kube.testing.ports import free_ports
from moorage_kube.testing.waiting import wait_until
from moorage_testing.cluster import Cluster

pytestmark = pytest.mark.cluster("scheduler", "controllers", "kubelet")

PATIENCE = 180.0  # seconds; only bounds a hang
SERVER = (  # with its port at the end
    "import functools, http.server, pathlib, tempfile\n"
    "folder = tempfile.mkdtemp(); pathlib.Path(folder, 'page').write_text('hello')\n"
    "handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)\n"
    "server = http.server.ThreadingHTTPServer(('127.0.0.1', {port}), handler)\n"
    "print('listening', flush=True); server.serve_forever()"
)


def submit(cluster: Cluster, name: str, folder: Path, code: str) -> None:
    """`folder`: what a real cluster is shipped."""
    words = ("run", "--memory", "128Mi", "--name", name, *cluster.image_options)
    cluster.moor(*words, "--", cluster.python, "-c", code, cwd=folder)


@pytest.fixture
def name(cluster: Cluster, unique: str) -> Iterator[str]:
    """A run's name; what bears it is gone after the test."""
    yield unique
    cluster.moor("cancel", "--delete", unique, check=False)


@pytest.fixture
def port() -> int:
    """Chosen just before it is used: pods of a local cluster share this machine's ports with other tests."""
    return free_ports(1)[0]


@pytest.fixture
def server(cluster: Cluster, name: str, port: int, tmp_path: Path) -> str:
    """A run that runs, and serves HTTP on a port of its own localhost."""
    submit(cluster, name, tmp_path, SERVER.format(port=port))
    done = cluster.moor("wait", name, "--for", "running", "--timeout", "3m")
    assert done.stdout == f"{name} Running\n"
    wait_until("the run to listen", lambda: "listening" in cluster.moor("logs", name).stdout)
    return name


def test_a_command_runs_beside_the_run_with_its_output_input_and_exit_code(cluster, server):
    script = "echo $MOORAGE_RUN; echo aside >&2; exit 7"
    done = cluster.moor("exec", server, "--", "sh", "-c", script, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, f"{server}\n", "aside\n")
    piped = cluster.moor("exec", "-i", server, "--", "cat", stdin="line\n" * 50_000)
    assert piped.stdout == "line\n" * 50_000
    without = cluster.moor("exec", "-t", server, "--", "true")
    assert without.stderr == "note: -t is left out: standard input and output are not a terminal\n"
    missing = cluster.moor("exec", "--attempt", "9", server, "--", "true", check=False)
    assert (missing.returncode, missing.stderr) == (
        1,
        f"error: run {server} has no attempt 9\nhint: it has only 1\n",
    )


def test_a_shell_has_a_terminal_of_the_size_of_this_one(cluster, server):
    typed = [sys.executable, "-m", "moorage.cli.main", "exec", server]
    with terminal(cluster, typed) as (fd, child):
        resize(fd, 100, 31)
        read_until(fd, rb"[$#] ")
        os.write(fd, b"PS1=; stty size; [ -t 0 ] && echo a terminal: $((6*7))\n")
        read_until(fd, rb"31 100\r\n(.|\n)*a terminal: 42")
        resize(fd, 64, 20)
        # the command itself says when it may be interrupted: a shell that just starts it may keep Ctrl-C
        command = b"""sh -c 'echo interrupt m""e; exec sleep 1000'"""
        os.write(fd, b"until stty size | grep '20 64'; do sleep 0.1; done; " + command + b"\n")
        read_until(fd, rb"interrupt me\r\n")
        os.write(fd, b"\x03")  # Ctrl-C ends the command there, not ours
        os.write(fd, b"exit 5\n")
        assert child.wait(PATIENCE) == 5
        modes = termios.tcgetattr(fd)
        assert modes[3] & termios.ECHO  # the terminal is as it was
        assert modes[3] & termios.ICANON


def test_a_port_of_the_run_is_one_here_until_ctrl_c(cluster, server, port):
    typed = [sys.executable, "-m", "moorage.cli.main", "port-forward", server, f":{port}"]
    child = subprocess.Popen(
        typed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=cluster.environment()
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        match = re.fullmatch(rf"forwarding (http://127\.0\.0\.1:(\d+)) to port {port} of pod {server}.*\n", line)
        assert match is not None, line
        for _ in range(5):
            with urllib.request.urlopen(f"{match[1]}/page", timeout=PATIENCE) as answer:
                assert answer.read() == b"hello"
        taken = cluster.moor("port-forward", server, f"{match[2]}:{port}", check=False)
        assert taken.returncode == 1
        assert taken.stderr.startswith(f"error: port {match[2]} of 127.0.0.1 is taken\nhint: use another one")
    finally:
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=PATIENCE)
    assert (child.returncode, out, err) == (0, "", "Ctrl-C stops it\n")


def test_on_a_local_cluster_a_port_that_the_run_holds_itself_needs_no_forwarding(cluster, server, port):
    if cluster.kind != "local":
        pytest.skip("only pods of a local cluster share this machine's ports")
    typed = [sys.executable, "-m", "moorage.cli.main", "port-forward", server, str(port)]
    child = subprocess.Popen(
        typed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=cluster.environment()
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        assert re.fullmatch(rf"http://127\.0\.0\.1:{port} is port {port} of pod {server}\S* itself\n", line), line
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/page", timeout=PATIENCE) as answer:
            assert answer.read() == b"hello"
    finally:
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=PATIENCE)
    note = "note: the pod is a process of this machine and has its ports: nothing is forwarded\n"
    assert (child.returncode, err) == (0, f"{note}Ctrl-C stops it\n")
    other = cluster.moor("port-forward", server, f"{port}:80", check=False)
    assert re.match(rf"error: port {port} of 127\.0\.0\.1 is taken by pod {server}\S* itself\nhint:", other.stderr)


def test_on_a_local_cluster_a_second_run_on_the_port_is_told_why_it_cannot_have_it(
    cluster, server, port, tmp_path
):
    if cluster.kind != "local":
        pytest.skip("only pods of a local cluster share this machine's ports")
    code = f"import http.server; http.server.HTTPServer(('127.0.0.1', {port}), http.server.BaseHTTPRequestHandler)"
    try:
        words = ("--memory", "128Mi", "--name", f"{server}-2", "--follow", "--", sys.executable, "-c", code)
        done = cluster.moor("run", *words, cwd=tmp_path, check=False)
        again = cluster.moor("logs", f"{server}-2")
    finally:
        cluster.moor("cancel", "--delete", f"{server}-2", check=False)
    why = "runs of a local cluster share the ports of this machine: give each run another port, or port 0"
    assert (done.returncode, why in done.stderr, why in again.stderr) == (1, True, True), done.stderr


def test_a_request_that_ends_its_side_still_gets_its_answer(cluster, server, port):
    typed = [sys.executable, "-m", "moorage.cli.main", "port-forward", server, f":{port}"]
    child = subprocess.Popen(typed, stdout=subprocess.PIPE, text=True, env=cluster.environment())
    try:
        assert child.stdout is not None
        port = int(child.stdout.readline().split()[1].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            connection.sendall(b"GET /page HTTP/1.0\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert answer.endswith(b"\r\n\r\nhello")
    finally:
        child.terminate()
        child.communicate(timeout=PATIENCE)


def test_waiting_ends_with_the_run_and_says_how_it_ended(cluster, name, tmp_path):
    submit(cluster, name, tmp_path, "raise SystemExit(3)")
    done = cluster.moor("wait", name, check=False)
    assert (done.returncode, done.stdout) == (1, f"{name} Failed\n")
    assert done.stderr.startswith(f"{name}: Failed (exit code 3)")
    entered = cluster.moor("exec", name, "--", "true", check=False)
    assert entered.returncode == 1
    assert entered.stderr == (
        f"error: run {name} has ended: Failed (exit code 3)\n"
        f"hint: read its logs: moor logs {name}   Run it again: moor rerun {name}\n"
    )
    explained = cluster.moor("explain", name).stdout.splitlines()
    assert explained[0].startswith(f"run default/{name} failed at ")
    assert explained[1:] == [
        "Exit code 3: the program itself reported an error; the end of its log usually says which",
        f"Its last output: `moor logs --tail 20 {name}`",
        f"To run it again: `moor rerun {name}`",
    ]


def test_a_cancelled_run_is_explained_as_cancelled(cluster, name, tmp_path):
    submit(cluster, name, tmp_path, "import time; time.sleep(1000)")
    assert cluster.moor("cancel", name).stdout == f"{name} cancelled\n"
    explained = cluster.moor("explain", name).stdout.splitlines()
    assert explained[0].startswith(f"run default/{name} was cancelled by ")
    assert explained[1:] == [
        "A cancelled run does not start again by itself",
        f"Its last output: `moor logs --tail 20 {name}`",
        f"To run it again: `moor rerun {name}`",
    ]


def test_a_reader_that_has_read_enough_ends_a_command_without_an_error(cluster, server):
    for words in (
        ["exec", server, "--", "yes"],
        ["exec", server, "--", "sh", "-c", "echo y; sleep 1000"],
        ["jobs"],
    ):
        child = subprocess.Popen(
            [sys.executable, "-m", "moorage.cli.main", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=cluster.environment(),
        )
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.read(1)
        child.stdout.close()
        assert (child.wait(PATIENCE), child.stderr.read()) == (0, b"")
        child.stderr.close()


@contextlib.contextmanager
def terminal(cluster: Cluster, typed: list[str]) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A command in a terminal of its own, and our end of that."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        typed,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=cluster.environment() | {"TERM": "xterm"},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    try:
        yield ours, child
    finally:
        child.kill()
        child.wait()
        os.close(theirs)
        os.close(ours)


def resize(fd: int, columns: int, rows: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def read_until(fd: int, pattern: bytes) -> bytes:
    """What the terminal shows, until it matches. Raises AssertionError where it ends before."""
    seen = b""
    while not re.search(pattern, seen):
        try:
            data = os.read(fd, 1 << 16)
        except OSError:
            data = b""
        assert data, seen
        seen += data
    return seen
