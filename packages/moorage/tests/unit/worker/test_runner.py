"""The runner inside the pod: a child treated as if nothing stood between it and the kubelet."""

from __future__ import annotations

import ast
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.decide.runs.terminationmessage import split_termination_message
from moorage.worker import runner
from moorage_testing.gitserver import git_server

RUNNER = Path(runner.__file__)
FINISHED = "open(os.environ['MOORAGE_DONE_FILE'], 'w').close()"


def waiting(number: int, handler: str) -> str:
    """A program that prints "ready", and calls `handler` at the signal."""
    return (
        "import os, signal, sys\n"
        f"signal.signal({int(number)}, lambda *_: ({handler},))\n"
        "print('ready', flush=True)\n"
        "while True: signal.pause()\n"
    )


def run(
    *args: str, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(RUNNER), *args],
        capture_output=True,
        text=True,
        env=os.environ | (env or {}),
        cwd=cwd,
        timeout=180,
        check=False,
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    ("command", "code"),
    [
        pytest.param(["sh", "-c", "exit 0"], 0, id="success"),
        pytest.param(["sh", "-c", "exit 7"], 7, id="the child's own code"),
        pytest.param(["sh", "-c", "kill -TERM $$"], 143, id="128 + SIGTERM"),
        pytest.param(["sh", "-c", "kill -KILL $$"], 137, id="128 + SIGKILL"),
        pytest.param(["/etc/passwd"], 126, id="not executable"),
    ],
)
def test_it_ends_with_the_code_a_shell_would_give(command, code):
    assert run("--", *command).returncode == code


@pytest.mark.processes
def test_a_missing_command_is_one_line():
    done = run("--", "no-such-program-here")
    assert done.returncode == 127
    assert done.stderr == "moorage: the command 'no-such-program-here' does not exist here\n"


@pytest.mark.processes
def test_the_command_keeps_its_own_dashes_and_streams():
    done = run(
        "--", sys.executable, "-c", "import sys; print(sys.argv[1:]); print('e', file=sys.stderr)", "--", "-x"
    )
    assert (done.stdout, done.stderr, done.returncode) == ("['--', '-x']\n", "e\n", 0)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "handler", "code"),
    [
        pytest.param(signal.SIGUSR1, "sys.exit(42)", 42, id="another signal"),
        pytest.param(signal.SIGINT, "sys.exit(42)", runner.STOPPED, id="interrupted"),
        pytest.param(signal.SIGTERM, "sys.exit(42)", runner.STOPPED, id="stopped"),
        pytest.param(signal.SIGTERM, "sys.exit(0)", runner.STOPPED, id="it leaves with 0"),
        pytest.param(signal.SIGTERM, "os.kill(os.getpid(), 9)", runner.STOPPED, id="it is killed"),
        pytest.param(signal.SIGTERM, f"{FINISHED}, sys.exit(0)", 0, id="it has finished"),
        pytest.param(signal.SIGTERM, f"{FINISHED}, sys.exit(143)", 0, id="it had finished"),
    ],
)
def test_a_command_ends_by_a_signal_and_has_finished_only_by_its_done_file(number, handler, code):
    command = [sys.executable, str(RUNNER), "--", sys.executable, "-c", waiting(number, handler)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(120) == code


@pytest.mark.processes
def test_a_command_that_had_ended_when_the_signal_came_keeps_its_exit_code():
    """The runner is stopped meanwhile, so that it gets the end of the command and the signal at once."""
    child = "import os, sys; print('ready', flush=True); sys.stdin.read(); print('ended', flush=True); sys.exit(0)"
    process = subprocess.Popen(
        [sys.executable, str(RUNNER), "--", sys.executable, "-c", child],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGSTOP)
    process.stdin.close()
    assert process.stdout.readline() == "ended\n"
    [pid] = _children(process.pid)
    _wait_for_zombie(pid)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    assert process.wait(120) == 0
    process.stdout.close()


def _children(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait_for_zombie(pid):
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        os.sched_yield()


@pytest.mark.processes
def test_a_signal_that_comes_with_another_reaches_the_child_though_a_thread_reports(tmp_path):
    """A process that is woken from a stop has two signals at once, and the kernel hands them to any thread."""
    (tmp_path / "token").write_text("secret")
    child = waiting(signal.SIGTERM, "sys.exit(42)")
    report = ["--report", "http://127.0.0.1:1/", "--token-file", str(tmp_path / "token")]
    processes = [
        subprocess.Popen(
            [sys.executable, str(RUNNER), *report, "--", sys.executable, "-S", "-c", child],
            env=os.environ | {runner.CHECKPOINT_ENV: str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(12)
    ]
    codes = []
    for process in processes:
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
                process.send_signal(number)
            try:
                codes.append(process.wait(120))
            except subprocess.TimeoutExpired:
                codes.append(None)
                process.kill()
                process.stdout.close()
    assert codes == [runner.STOPPED] * len(processes)


@pytest.mark.processes
def test_the_shipped_directory_is_where_the_command_starts(tmp_path):
    archive = tmp_path / "work.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        info = tarfile.TarInfo("pkg/data.txt")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"hello"))
    into = tmp_path / "into"
    done = run("--unpack", str(archive), "--into", str(into), "--", "cat", "pkg/data.txt")
    assert (done.returncode, done.stdout) == (0, "hello")


@pytest.mark.processes
def test_a_spoilt_archive_fails_before_the_command_starts(tmp_path):
    archive = tmp_path / "work.tar.gz"
    archive.write_bytes(b"nonsense")
    done = run("--unpack", str(archive), "--into", str(tmp_path / "into"), "--", "echo", "started")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("moorage: the shipped directory cannot be unpacked into")


@pytest.mark.processes
def test_the_command_starts_in_a_copy_and_the_next_attempt_in_what_the_first_left(tmp_path):
    code, into = tmp_path / "code", tmp_path / "train"
    (code / "pkg").mkdir(parents=True)
    (code / "pkg" / "a").write_text("old")
    (code / "data").symlink_to(tmp_path / "data")
    (tmp_path / "train.new").mkdir()  # a runner was killed
    (tmp_path / "train.new" / "half").write_text("")
    options = ("--copy", str(code), "--into", str(into), "--", "sh", "-c")
    first = run(*options, "cat pkg/a; echo changed >pkg/a; echo 1 >out")
    assert (first.returncode, first.stdout) == (0, "old")
    second = run(*options, "cat pkg/a out; ls")
    assert (second.returncode, second.stdout) == (0, "changed\n1\ndata\nout\npkg\n")
    assert os.readlink(into / "data") == str(tmp_path / "data")
    assert (code / "pkg" / "a").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["code", "train"]


@pytest.mark.processes
def test_code_that_was_deleted_fails_before_the_command_starts(tmp_path):
    done = run("--copy", str(tmp_path / "no"), "--into", str(tmp_path / "into"), "--", "echo", "started")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("moorage: the code of the run cannot be copied from")
    assert os.listdir(tmp_path) == []


class _Server(http.server.BaseHTTPRequestHandler):
    seen: list[tuple[str, str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, self.headers["Authorization"], body))  # type: ignore[attr-defined]
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Server) as running:
        running.seen = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.mark.processes
def test_the_checkpoint_of_a_command_that_ended_is_reported_with_the_runs_token(tmp_path, server):
    (tmp_path / "token").write_text("secret\n")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write = f"touch {folder}/a.pt; touch -d '2020-02-02 10:00:00 UTC' {folder}/a.pt; touch {folder}/b.tmp"
    report = ["--report", f"http://127.0.0.1:{server.server_address[1]}/report"]
    token = ["--token-file", str(tmp_path / "token")]
    done = run(
        *report,
        *token,
        *("--", "sh", "-c", write),
        env={runner.CHECKPOINT_ENV: str(folder), "http_proxy": "http://127.0.0.1:1"},
    )
    assert done.returncode == 0, done.stderr
    [(path, token, body)] = server.seen
    assert (path, token, body["newest"]) == ("/report", "Bearer secret", "2020-02-02T10:00:00Z")
    assert body["checked"] > body["newest"]


@pytest.mark.processes
def test_a_server_that_is_away_changes_nothing_for_the_command(tmp_path):
    (tmp_path / "token").write_text("secret")
    report = ["--report", "http://127.0.0.1:1/report", "--token-file", str(tmp_path / "token")]
    done = run(*report, "--", "sh", "-c", "echo done; exit 3", env={runner.CHECKPOINT_ENV: str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (3, "done\n", "")


class _Post:
    """Takes reports, or fails; stores their bodies."""

    def __init__(self) -> None:
        self.works = True
        self.tried = 0
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, body: dict[str, Any], timeout: float) -> None:
        self.tried += 1
        if not self.works:
            raise OSError("away")
        self.bodies.append(body)


def touch(path: Path, at: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    os.utime(path, (at, at))


def test_a_report_goes_out_when_something_is_new_and_now_and_then(tmp_path):
    post = _Post()
    reporter = runner.Reporter(str(tmp_path), post)
    assert reporter.step(0, 1000.0)  # at first, though there is nothing
    assert not reporter.step(5, 1005.0)
    touch(tmp_path / "a.pt", 1007)
    assert reporter.step(10, 1010.0)
    assert not reporter.step(15, 1015.0)
    assert reporter.step(70, 1070.0)  # nothing new, but still looked at
    assert [body["newest"] for body in post.bodies] == [None, "1970-01-01T00:16:47Z", "1970-01-01T00:16:47Z"]


def test_failed_reports_are_tried_less_and_less_often_and_then_as_before(tmp_path):
    post = _Post()
    post.works = False
    reporter = runner.Reporter(str(tmp_path), post)
    for second in range(0, 3600, 5):
        reporter.step(second, 1e9 + second)
    assert post.tried == 17  # after 5, 10, 20 … s, then every 300 s
    post.works = True
    assert reporter.step(4000, 1e9 + 4000)
    touch(tmp_path / "a.pt", 1e9)
    assert reporter.step(4005, 1e9 + 4005)


def test_a_file_from_the_future_counts_as_just_written(tmp_path):
    touch(tmp_path / "a.pt", 5000)
    post = _Post()
    runner.Reporter(str(tmp_path), post).step(0, 1000.0)
    assert post.bodies[0]["newest"] == runner.rfc3339(1000.0)


def test_files_being_written_links_and_missing_folders_do_not_count(tmp_path):
    touch(tmp_path / "step-1" / "model.pt", 100)
    for name in (".model.pt.x", "model.pt.tmp", "model.pt~", "tmpabc", "model.part"):
        touch(tmp_path / "step-1" / name, 900)
    touch(tmp_path / ".git" / "index", 900)
    (tmp_path / "latest").symlink_to("step-1/model.pt")
    os.utime(tmp_path / "latest", (900, 900), follow_symlinks=False)
    assert runner.newest_file(str(tmp_path)) == 100
    assert runner.newest_file(str(tmp_path / "none")) is None


def test_a_tree_too_large_to_scan_is_read_from_its_newest_folder_on(tmp_path):
    for step in range(20):
        folder = tmp_path / f"step-{step}"
        for part in range(10):
            touch(folder / f"{part}.pt", 1000 + step)
        os.utime(folder, (1000 + step, 1000 + step))
    assert runner.newest_file(str(tmp_path), limit=35) == 1019


@given(st.lists(st.tuples(st.sampled_from(["a", "b/c", "b/d/e", ".x", "q.tmp"]), st.integers(1, 10**9))))
def test_the_newest_finished_file_is_found_whatever_the_tree(tmp_path_factory, files):
    root = tmp_path_factory.mktemp("tree")
    want: dict[str, int] = {}
    for name, at in files:
        touch(root / name, at)
        want[name] = at
    finished = [at for name, at in want.items() if not name.startswith(".") and not name.endswith(".tmp")]
    assert runner.newest_file(str(root)) == (max(finished) if finished else None)


def test_python_3_8_reads_the_source_and_it_imports_only_the_standard_library():
    tree = ast.parse(RUNNER.read_text(), feature_version=(3, 8))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert imported <= sys.stdlib_module_names


# -- memory


class Cgroup:
    """A folder as a container sees its own cgroup in."""

    def __init__(self, folder: Path, version: int) -> None:
        self.folder = folder / "memory" if version == 1 else folder
        self.folder.mkdir(exist_ok=True)
        self.used = "memory.usage_in_bytes" if version == 1 else "memory.current"
        self.cached = "total_inactive_file" if version == 1 else "inactive_file"

    def says(self, used: object, cached: int = 0) -> None:
        (self.folder / self.used).write_text(f"{used}\n")
        (self.folder / "memory.stat").write_text(f"anon 5\n{self.cached} {cached}\nslab 1\n")


@pytest.mark.parametrize("version", [1, 2])
def test_memory_in_use_is_the_working_set(tmp_path: Path, version: int) -> None:
    cgroup = Cgroup(tmp_path, version)
    cgroup.says(1000, cached=300)
    assert runner.memory_used(str(tmp_path)) == 700
    cgroup.says(100, cached=300)  # the two files are not read at one moment
    assert runner.memory_used(str(tmp_path)) == 0


@pytest.mark.parametrize("text", ["", "max", "1 2"])
def test_a_cgroup_that_says_nothing_of_use_is_no_measurement(tmp_path: Path, text: str) -> None:
    assert runner.memory_used(str(tmp_path)) is None
    Cgroup(tmp_path, 2).says(text)
    assert runner.memory_used(str(tmp_path)) is None


@pytest.fixture
def watch(tmp_path: Path) -> runner.MemoryWatch:
    (tmp_path / "log").touch()
    return runner.MemoryWatch(str(tmp_path / "log"), str(tmp_path))


def test_the_highest_use_is_in_the_file_at_any_moment(tmp_path: Path, watch: runner.MemoryWatch) -> None:
    seen = []
    for used in (1000, 900, 1010, 2000, 5):
        Cgroup(tmp_path, 2).says(used)
        watch.look()
        seen.append((tmp_path / "log").read_text())
    assert seen == [f"moorage: peak-memory-bytes={peak}\n" for peak in (1000, 1000, 1000, 2000, 2000)]
    assert split_termination_message(seen[-1]) == (2000, "")


def test_what_the_program_says_stays_and_the_peak_follows_it_at_the_end(tmp_path, watch):
    Cgroup(tmp_path, 2).says(10**15)
    watch.look()
    (tmp_path / "log").write_text("my last words")
    Cgroup(tmp_path, 2).says(2 * 10**15)
    watch.look()
    assert (tmp_path / "log").read_text() == "my last words"
    watch.finish()
    assert split_termination_message((tmp_path / "log").read_text()) == (2 * 10**15, "my last words")


def test_words_that_fill_the_file_are_left_alone(tmp_path: Path, watch: runner.MemoryWatch) -> None:
    (tmp_path / "log").write_text("x" * runner.LAST_WORDS_BYTES)
    Cgroup(tmp_path, 2).says(1000)
    watch.finish()
    assert (tmp_path / "log").read_text() == "x" * runner.LAST_WORDS_BYTES


def test_without_a_kubelets_file_none_is_made(tmp_path: Path) -> None:
    Cgroup(tmp_path, 2).says(1000)
    watch = runner.MemoryWatch(str(tmp_path / "none"), str(tmp_path))
    watch.look()
    watch.finish()
    assert not (tmp_path / "none").exists()


@pytest.mark.processes
def test_the_peak_of_a_command_is_written_where_the_kubelet_reads_it(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    hog = "x = bytearray(200 << 20); x[::4096] = b'1' * len(x[::4096])"
    done = run("--peak-file", str(tmp_path / "log"), "--", sys.executable, "-c", hog)
    assert done.returncode == 0
    peak, rest = split_termination_message((tmp_path / "log").read_text())
    assert rest == ""
    assert peak is not None
    assert peak >= 200 << 20


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", (None, "")),
        ("out of memory", (None, "out of memory")),
        ("moorage: peak-memory-bytes=5\n", (5, "")),
        ("bad\nmoorage: peak-memory-bytes=5\n", (5, "bad")),
        ("moorage: peak-memory-bytes=5\nmoorage: peak-memory-bytes=7\n", (7, "")),
        ("moorage: peak-memory-bytes=x\n", (None, "moorage: peak-memory-bytes=x\n")),
    ],
)
def test_last_words_are_split_into_the_peak_and_the_rest(text: str, want: tuple[int | None, str]) -> None:
    assert split_termination_message(text) == want


@pytest.mark.processes
def test_a_repository_is_cloned_at_a_branch_a_tag_or_a_commit(tmp_path):
    with git_server(tmp_path / "served") as repository:
        first = repository.commit({"pkg/data.txt": "first"})
        repository.git("tag", "v1")
        repository.git("branch", "feature/x")
        newest = repository.commit({"pkg/data.txt": "newest"})
        for number, (ref, text, commit) in enumerate((
            ("", "newest", newest), ("main", "newest", newest), ("v1", "first", first),
            ("feature/x", "first", first), (first, "first", first), (first[:9], "first", first),
        )):  # fmt: skip
            into = tmp_path / f"work-{number}"
            done = run("--git", repository.url, "--ref", ref, "--into", str(into), "--", "cat", "pkg/data.txt")
            assert (done.stdout, done.returncode) == (text, 0), done.stderr
            assert f"moorage: commit {commit} of {repository.url}\n" in done.stderr


@pytest.mark.processes
def test_a_later_attempt_gets_the_commit_that_the_server_names(tmp_path):
    reported = []
    with git_server(tmp_path / "served") as repository:
        first = repository.commit({"a.txt": "one"})
        newest = repository.commit({"a.txt": "two"})
        for number, answer in enumerate([{"commit": first}, {}, None]):
            folder = tmp_path / f"work-{number}"

            def post(body, timeout, answer=answer):
                reported.append(body["commit"])
                if answer is None:
                    raise OSError("no route to host")
                return json.dumps(answer).encode()

            assert runner.checkout(
                repository.url, "main", str(folder), lambda at, post=post: runner.settled(at, post)
            )
            assert (folder / "a.txt").read_text() == ("one" if answer else "two")
    assert reported == [newest] * 3


@pytest.mark.processes
def test_a_later_attempt_gets_the_commit_of_the_first_one_if_it_has_a_checkpoint_folder(tmp_path):
    env, words = {"MOORAGE_CHECKPOINT_DIR": str(tmp_path / "ckpt")}, ("--", "cat", "a.txt")
    (tmp_path / "ckpt").mkdir()
    with git_server(tmp_path / "served") as repository:
        seen = []
        for number, (ref, text) in enumerate([("main", "one"), ("main", "two"), ("HEAD", "three")]):
            repository.commit({"a.txt": text})
            into = str(tmp_path / f"work-{number}")
            seen.append(run("--git", repository.url, "--ref", ref, "--into", into, *words, env=env).stdout)
    assert seen == ["one", "one", "three"]  # another reference is another program
    assert runner.newest_file(str(tmp_path / "ckpt")) is None


@pytest.mark.processes
@pytest.mark.parametrize(
    ("ref", "path", "says"),
    [
        ("nowhere", None, "has no branch, tag or commit nowhere"),
        ("", "missing", "cannot be cloned: git prints the reason above"),
    ],
)
def test_a_repository_that_cannot_be_used_is_a_clear_failure(tmp_path, ref, path, says):
    with git_server(tmp_path / "served") as repository:
        repository.commit({"a.txt": "text"})
        url = f"{repository.url}/{path}" if path else repository.url
        done = run("--git", url, "--ref", ref, "--into", str(tmp_path / "work"), "--", "echo", "started")
    assert (done.stdout, done.returncode, says in done.stderr) == ("", 1, True), done.stderr


@pytest.mark.processes
def test_an_image_without_git_is_named(tmp_path):
    done = run("--git", "https://host/x", "--into", str(tmp_path / "w"), "--", "echo", env={"PATH": str(tmp_path)})
    assert (done.returncode, "git is not in this image" in done.stderr) == (1, True)


def test_a_token_goes_to_the_host_of_the_repository_and_to_no_other_and_into_no_argument(monkeypatch):
    monkeypatch.setenv("GIT_TOKEN", "secret\n")
    env = runner.git_environment("https://git.lab:8443/org/repo.git")
    assert (env["GIT_CONFIG_KEY_0"], env["GIT_CONFIG_VALUE_0"]) == (
        "http.https://git.lab:8443/.extraHeader", "Authorization: Basic eC1hY2Nlc3MtdG9rZW46c2VjcmV0",
    )  # fmt: skip
    assert "GIT_CONFIG_COUNT" not in runner.git_environment("http://127.0.0.1/x")
