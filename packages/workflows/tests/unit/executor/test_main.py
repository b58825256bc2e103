"""`init` and `wait` as processes of a step's pod, against a real small HTTP server."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest

from moorage_kube.testing.ports import free_ports
from moorage_workflows.executor.__main__ import main
from moorage_workflows.executor.errors import Passing, StepError
from moorage_workflows.executor.fetching import prepare
from moorage_workflows.executor.folders import sum_of
from moorage_workflows.executor.order import read_order
from moorage_workflows.executor.retrying import Retrying
from moorage_workflows.executor.saving import START_SECONDS, wait_for_end
from moorage_workflows.executor.stores import Stores
from moorage_workflows.executor.web import UNKNOWN_NAME_SECONDS, unreachable
from moorage_workflows.model.workflow import StepReport

PATIENCE_SECONDS = 180
UID, POD, TOKEN = "7c1e", "wf-hello-1", "secret-token"
KEYS = {"MOORAGE_SECRET_0": "id", "MOORAGE_SECRET_1": "key"}


@dataclass
class Site:
    """A server that keeps artifacts and reports; it can fail, and go away in the middle of a request."""

    artifacts: dict[str, bytes] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    failures: list[int | str] = field(default_factory=list)  # answers given first: a status, "cut" or "spoilt"
    url: str = ""
    stop: Callable[[], None] = lambda: None

    def start(self, port: int = 0) -> None:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_PUT(self) -> None:
                self._answered(self._put)

            def do_GET(self) -> None:
                self._answered(self._get)

            def do_POST(self) -> None:
                self._answered(self._post)

            def _answered(self, work: Callable[[], None]) -> None:
                site.calls.append(f"{self.command} {self.path}")
                failure = site.failures.pop(0) if site.failures else None
                if failure == "cut":
                    self.rfile.read(10)
                    self.close_connection = True
                    self.connection.close()
                elif isinstance(failure, int):
                    self._send(failure, {"code": "x", "message": f"failure {failure}"})
                elif self.headers["Authorization"] != f"Bearer {TOKEN}":
                    self._send(401, {"code": "unauthorized", "message": "no such token"})
                else:
                    self._spoils = failure == "spoilt"
                    work()

            def _put(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                start = f"/api/v1/steps/{UID}/{POD}/artifacts/"
                match = re.fullmatch(
                    start + r"([^/?]+)\?archive=(\w+)(?:&key=([^&]*))?(?:&below=(.*))?", self.path
                )
                assert match is not None
                key = match[3].replace("%2F", "/") if match[3] else f"wf/{POD}/{match[1]}"
                key += f"/{unquote(match[4])}" if match[4] else ""
                site.artifacts[key] = data
                digest = "sha256:0" if self._spoils else f"sha256:{sha256(data).hexdigest()}"
                answer = {"name": match[1], "key": key, "sizeBytes": len(data), "digest": digest, "version": "1"}
                self._send(200, answer | ({"archive": match[2]} if match[2] != "tar" else {}))

            def _get(self) -> None:
                key = unquote(self.path.partition("key=")[2])
                if "below=true" in self.path:
                    names = [name.removeprefix(f"{key}/") for name in site.artifacts if name.startswith(f"{key}/")]
                    body = json.dumps(names).encode()
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                    return
                if key not in site.artifacts:
                    self._send(404, {"code": "not_found", "message": f"artifact {key} does not exist"})
                    return
                data = site.artifacts[key]
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[:-1] + b"?" if self._spoils else data)

            def _post(self) -> None:
                assert self.path == f"/api/v1/steps/{UID}/{POD}/report"
                site.reports.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def _send(self, status: int, document: Any) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self.stop = stop

    @property
    def report(self) -> StepReport:
        """The only report; it is one in the words of the model."""
        (document,) = self.reports
        return msgspec.convert(document, StepReport)


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    made.start()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """`main` sets a handler for SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class Pod:
    """A pod's folder, with `init`, the step and `wait` to be run one after the other."""

    folder: Path
    site: Site

    @property
    def step(self) -> Path:
        return self.folder / "step"

    def order(self, **more: Any) -> None:
        document = {
            "workflow": UID,
            "pod": POD,
            "inputs": [],
            "parameters": [],
            "artifacts": [],
            "result": False,
            "logs": False,
            "shell": False,
            **more,
        }
        self.step.mkdir(exist_ok=True)
        (self.folder / "order.json").write_text(json.dumps(document))

    @property
    def words(self) -> list[str]:
        volumes = str(self.folder / "volumes")
        return ["--step", str(self.step), "--order", str(self.folder / "order.json"), "--volumes", volumes]

    def env(self, **more: str) -> dict[str, str]:
        return {"MOORAGE_SERVER": self.site.url, "MOORAGE_STEP_TOKEN": TOKEN, **more}

    def init(self, *, seconds: float = 60, **more: str) -> int:
        return main(["init", *self.words, "--try-seconds", str(seconds)], self.env(**more))

    def command(self, script: str) -> list[str]:
        return ["/bin/sh", str(self.step / "wrapper.sh"), str(self.step), "/bin/sh", "-c", script]

    def run(self, script: str) -> int:
        command = self.command(script)
        return subprocess.run(command, cwd=self.folder, timeout=PATIENCE_SECONDS, check=False).returncode

    def wait(self, *, seconds: float = 60, **more: str) -> int:
        return main(["wait", *self.words, "--try-seconds", str(seconds)], self.env(**more))

    def start_wait(self) -> subprocess.Popen[bytes]:
        env = {**os.environ, **self.env()}
        return subprocess.Popen([sys.executable, "-m", "moorage_workflows.executor", "wait", *self.words], env=env)


@pytest.fixture
def pod(tmp_path: Path, site: Site) -> Pod:
    return Pod(tmp_path, site)


def an_artifact(path: Path, **more: Any) -> dict[str, Any]:
    return {"name": "a", "path": str(path), "archive": "tar", "location": {}, "kept": {}, **more}


def test_outputs_of_one_step_are_inputs_of_the_next(pod: Pod, site: Site) -> None:
    out = pod.folder / "out"
    pod.order(
        parameters=[{"name": "p", "path": f"{out}/p"}, {"name": "q", "path": f"{out}/q", "default": "7"}],
        artifacts=[an_artifact(out)],
        result=True,
        logs=True,
    )
    assert pod.init() == 0
    assert pod.run(f"mkdir {out}; echo value > {out}/p; echo hello") == 0
    assert pod.wait() == 0
    report = site.report
    assert report.pod == POD
    assert report.error == ""
    assert (report.outputs.parameters, report.outputs.result) == ({"p": "value", "q": "7"}, "hello")
    assert report.outputs.exit_code == "0"
    artifact, log = report.outputs.artifacts
    assert (artifact.name, artifact.key, artifact.archive) == ("a", f"wf/{POD}/a", "tar")
    assert artifact.size_bytes == len(site.artifacts[artifact.key])
    assert (log.name, log.archive, site.artifacts[log.key]) == ("main-logs", "none", b"hello\n")
    # the next step
    location = {"key": artifact.key, "digest": artifact.digest}
    pod.order(inputs=[{"name": "in", "location": location, "archive": "tar", "below": None}])
    assert pod.init() == 0
    assert (pod.step / "in" / "0" / "p").read_text() == "value\n"
    assert list((pod.step / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("written", "want"),
    [
        pytest.param(b"a", "a", id="no newline"),
        pytest.param(b"a\n\n", "a\n", id="one newline is taken off"),
        pytest.param(b"", "", id="empty"),
        pytest.param(b"x" * 262144 + b"\n", "x" * 262144, id="as long as may be"),
    ],
)
def test_a_parameter_is_the_files_text(pod: Pod, site: Site, written: bytes, want: str) -> None:
    (pod.folder / "p").write_bytes(written)
    pod.order(parameters=[{"name": "p", "path": str(pod.folder / "p")}])
    assert [pod.init(), pod.run("true"), pod.wait()] == [0, 0, 0]
    assert site.report.outputs.parameters == {"p": want}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        pytest.param(None, ["does not exist", "no default"], id="no file"),
        pytest.param(b"x" * 262145, ["more than 262144 bytes"], id="too long"),
        pytest.param(b"x" * 262145 + b"\n", ["more than 262144 bytes"], id="too long, with a newline"),
        pytest.param(b"\xff", ["not UTF-8"], id="not text"),
    ],
)
def test_a_parameter_that_cannot_be_is_an_error_that_names_its_path(pod, site, written, words) -> None:
    if written is not None:
        (pod.folder / "p").write_bytes(written)
    pod.order(parameters=[{"name": "p", "path": str(pod.folder / "p")}])
    assert [pod.init(), pod.run("true"), pod.wait()] == [0, 0, 1]
    for word in ("output parameter 'p'", str(pod.folder / "p"), *words):
        assert word in site.report.error


def test_an_artifact_may_have_a_key_of_its_own(pod: Pod, site: Site) -> None:
    (pod.folder / "file").write_text("x")
    pod.order(artifacts=[an_artifact(pod.folder / "file", archive="none", key="mine/file.txt")])
    assert [pod.init(), pod.run("true"), pod.wait()] == [0, 0, 0]
    assert site.artifacts == {"mine/file.txt": b"x"}
    assert [artifact.key for artifact in site.report.outputs.artifacts] == ["mine/file.txt"]


def test_a_missing_artifact_is_an_error_unless_it_is_optional(pod: Pod, site: Site) -> None:
    gone = pod.folder / "gone"
    pod.order(artifacts=[an_artifact(gone), an_artifact(gone, name="b", optional=True)])
    assert [pod.init(), pod.run("true"), pod.wait()] == [0, 0, 1]
    assert site.report.error == f"output artifact 'a': {gone} does not exist, and the artifact is not optional"
    assert site.report.outputs.artifacts == ()


def test_what_a_failed_step_did_not_leave_is_no_error_of_its_own(pod: Pod, site: Site) -> None:
    pod.order(parameters=[{"name": "p", "path": "/nowhere"}], result=True)
    assert [pod.init(), pod.run("echo no; exit 4"), pod.wait()] == [0, 4, 0]
    assert msgspec.to_builtins(site.report) == {"pod": POD, "outputs": {"result": "no", "exitCode": "4"}}


def test_a_step_that_was_killed_reports_nothing_but_its_log(pod: Pod, site: Site) -> None:
    pod.order(parameters=[{"name": "p", "path": "/nowhere"}], logs=True)
    pod.init()
    words = pod.command("echo up; sleep 60 >&- 2>&-")
    with pod.start_wait() as waiting:
        with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as step:
            assert step.stdout.readline() == b"up\n"
            os.killpg(step.pid, signal.SIGKILL)  # as the kernel kills a container for its memory
        assert waiting.wait(PATIENCE_SECONDS) == 0
    assert site.report.error == ""
    assert site.report.outputs.exit_code is None
    assert [artifact.name for artifact in site.report.outputs.artifacts] == ["main-logs"]


def test_a_step_that_was_killed_before_anybody_looked_is_seen(pod: Pod) -> None:
    pod.order(result=True)
    prepare(pod.step, read_order(pod.folder / "order.json"))
    (pod.step / "out" / "started").touch()
    assert wait_for_end(pod.step, threading.Event(), look_seconds=0.01) is None


def test_wait_reports_though_it_is_told_to_end(pod: Pod, site: Site) -> None:
    pod.order(result=True)
    pod.init()
    words = pod.command("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    with pod.start_wait() as waiting, subprocess.Popen(words, stdout=subprocess.PIPE) as step:
        assert step.stdout.readline() == b"up\n"
        # before its handler is there, SIGTERM would end it
        while not _catches_sigterm(waiting.pid):
            assert waiting.poll() is None
        waiting.terminate()
        step.terminate()
        step.communicate(timeout=PATIENCE_SECONDS)
        assert waiting.wait(PATIENCE_SECONDS) == 0
    assert site.report.outputs.result == "up\nbye"


def test_wait_ends_with_a_pod_whose_command_never_started(pod: Pod, site: Site) -> None:
    pod.order(result=True)
    pod.init()
    with pod.start_wait() as waiting:
        while not _catches_sigterm(waiting.pid):
            assert waiting.poll() is None
        waiting.terminate()
        try:
            assert waiting.wait(PATIENCE_SECONDS) == 1
        finally:
            waiting.kill()
    assert not site.reports
    assert START_SECONDS < 25  # the grace period of a pod is 30 seconds by default


def test_a_command_that_starts_while_its_pod_is_told_to_end_is_waited_for(pod: Pod) -> None:
    pod.order(result=True)
    prepare(pod.step, read_order(pod.folder / "order.json"))

    class Cleanup(threading.Event):
        """The pod is told to end; the command starts when that is first looked at."""

        def is_set(self) -> bool:
            (pod.step / "out" / "started").touch()
            return True

    assert wait_for_end(pod.step, Cleanup(), look_seconds=0.01, start_seconds=PATIENCE_SECONDS) is None


def _catches_sigterm(pid: int) -> bool:
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return caught is not None and bool(int(caught[1], 16) & 1 << signal.SIGTERM - 1)


@pytest.mark.parametrize(
    "failures",
    [
        pytest.param([503], id="the server is not ready"),
        pytest.param(["cut"], id="the connection breaks in the middle of the upload"),
        pytest.param(["spoilt"], id="the server stored something else"),
        pytest.param([429, "cut", 500], id="one after the other"),
    ],
)
def test_uploads_are_tried_again(pod: Pod, site: Site, failures: list[int | str]) -> None:
    (pod.folder / "file").write_bytes(os.urandom(3_000_000))
    pod.order(artifacts=[an_artifact(pod.folder / "file", archive="none")])
    assert [pod.init(), pod.run("true")] == [0, 0]
    site.failures += failures
    assert pod.wait() == 0
    (artifact,) = site.report.outputs.artifacts
    assert site.artifacts[artifact.key] == (pod.folder / "file").read_bytes()
    assert len([call for call in site.calls if call.startswith("PUT")]) == len(failures) + 1


def test_a_server_that_is_away_is_waited_for(pod: Pod, site: Site) -> None:
    pod.order(result=True)
    assert [pod.init(), pod.run("echo x")] == [0, 0]
    site.stop()
    (port,) = free_ports(1)  # which nobody else gets meanwhile
    site.url = f"http://127.0.0.1:{port}"
    with pod.start_wait() as waiting:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.3)
        site.start(port)
        assert waiting.wait(PATIENCE_SECONDS) == 0
    assert site.report.outputs.result == "x"


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        pytest.param(413, ["answered 413", "failure 413"], id="too large"),
        pytest.param(507, ["answered 507", "failure 507"], id="the store is full"),
        pytest.param(401, ["answered 401"], id="a wrong token"),
    ],
)
def test_what_the_server_refuses_is_the_steps_error(pod: Pod, site: Site, failure: int, words: list[str]) -> None:
    (pod.folder / "file").write_text("x")
    pod.order(artifacts=[an_artifact(pod.folder / "file")])
    assert [pod.init(), pod.run("true")] == [0, 0]
    site.failures.append(failure)
    assert pod.wait() == 1
    for word in ("output artifact 'a'", *words):
        assert word in site.report.error


def test_a_report_that_the_server_refuses_ends_with_an_error(pod, site, capsys) -> None:
    pod.order(result=True)
    assert [pod.init(), pod.run("true")] == [0, 0]
    site.failures.append(404)
    assert pod.wait() == 1
    assert "failure 404" in capsys.readouterr().err.splitlines()[-1]


def test_trying_ends_some_day() -> None:
    def work() -> None:
        raise Passing("nobody answers")

    with pytest.raises(StepError, match="nobody answers"):
        Retrying(threading.Event(), seconds=0).call("x", work)


@pytest.mark.parametrize(
    ("number", "seconds"),
    [
        pytest.param(socket.EAI_NONAME, UNKNOWN_NAME_SECONDS, id="a name that nobody knows: not for long"),
        pytest.param(socket.EAI_AGAIN, None, id="no answer of the name server: as long as usual"),
    ],
)
def test_a_host_with_an_unknown_name_is_not_tried_for_hours(number: int, seconds: float | None) -> None:
    error = urllib.error.URLError(socket.gaierror(number, "the name"))
    assert unreachable("GET http://nowhere/x", error).seconds == seconds


def test_an_error_may_say_for_how_long_it_is_tried_again() -> None:
    tries = []

    def work() -> None:
        tries.append(1)
        raise Passing("unknown host", seconds=0)

    with pytest.raises(StepError, match="unknown host"):
        Retrying(threading.Event(), seconds=3600).call("x", work)
    assert len(tries) == 1


def an_input(location: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "in", "location": location, "archive": "", "below": None, **more}


def test_a_key_may_stand_for_all_that_is_stored_below_it(pod: Pod, site: Site) -> None:
    site.artifacts |= {"k/parts/a.json": b"1", "k/parts/deep/b.json": b"2"}
    pod.order(inputs=[an_input({"key": "k/parts"})])
    assert pod.init() == 0
    assert texts_of(pod.step / "in" / "0") == {"a.json": "1", "deep/b.json": "2"}


def a_folder(pod: Pod) -> Path:
    """Two files and a link to one of them; a link that leads out, an empty folder, and a pipe."""
    folder = pod.folder / "parts"
    (folder / "deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "a file.txt").write_text("1")
    (folder / "deep" / "b.json").write_text("22")
    (folder / "deep" / "link").symlink_to("../a file.txt")
    (folder / "out").symlink_to("/etc/passwd")
    (folder / "round").symlink_to("round")
    os.mkfifo(folder / "pipe")
    return folder


FILES = {"a file.txt": "1", "deep/b.json": "22", "deep/link": "1"}


def texts_of(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("key", ["", "k/parts"])
def test_a_folder_that_is_not_packed_is_stored_file_by_file(pod: Pod, site: Site, key: str) -> None:
    pod.order(artifacts=[an_artifact(a_folder(pod), archive="none", **({"key": key} if key else {}))])
    assert [pod.init(), pod.run("true"), pod.wait()] == [0, 0, 0]
    root = key or f"wf/{POD}/a"
    assert site.artifacts == {f"{root}/{name}": text.encode() for name, text in FILES.items()}
    (artifact,) = site.report.outputs.artifacts
    assert (artifact.key, artifact.archive, artifact.files, artifact.size_bytes) == (root, "none", 3, 4)
    assert artifact.version == sum_of(dict.fromkeys(FILES, "1"))
    site.artifacts[root] = b"of an earlier workflow"
    pod.order(inputs=[an_input({"key": f"{root}/"}, archive="none")])
    assert pod.init() == 0
    assert texts_of(pod.step / "in" / "0") == FILES


def test_a_folder_without_a_file_is_stored_packed(pod: Pod, site: Site) -> None:
    (pod.folder / "empty").mkdir()
    pod.order(artifacts=[an_artifact(pod.folder / "empty", archive="none")])
    assert [pod.init(), pod.run("true"), pod.wait()] == [0, 0, 0]
    (artifact,) = site.report.outputs.artifacts
    assert (artifact.archive, artifact.files, list(site.artifacts)) == ("tar", 0, [artifact.key])


def test_a_file_of_a_folder_that_cannot_be_stored_is_named(pod: Pod, site: Site) -> None:
    pod.order(artifacts=[an_artifact(a_folder(pod), archive="none")])
    assert [pod.init(), pod.run("true")] == [0, 0]
    site.failures.append(422)
    assert pod.wait() == 1
    assert site.report.error.startswith("output artifact 'a': its file 'a file.txt': ")


def test_a_bucket_gets_a_folder_as_many_objects(pod: Pod, site: Site, bucket: dict[str, Any]) -> None:
    stores = Stores(KEYS, pod.folder)
    location = {"s3": {**bucket, "key": "many/dir"}}
    stores.write(location, Path(__file__))  # of an earlier workflow, under the same key
    pod.order(artifacts=[an_artifact(a_folder(pod), archive="none", location=location, kept=location)])
    assert [pod.init(), pod.run("true"), pod.wait(**KEYS)] == [0, 0, 0]
    assert sorted(stores.keys(location)) == [f"many/dir/{name}" for name in sorted(FILES)]
    (artifact,) = site.report.outputs.artifacts
    assert (artifact.files, artifact.size_bytes) == (3, 4)
    prefix = {"s3": {**bucket, "key": "many/dir/"}}
    pod.order(inputs=[an_input(prefix, archive="none")])
    assert pod.init(**KEYS) == 0
    assert texts_of(pod.step / "in" / "0") == FILES
    assert not stores.delete(location, "another version", is_folder=True)
    assert stores.delete(location, artifact.version, is_folder=True)
    assert stores.keys(location) == []
    assert stores.read(location, pod.folder / "earlier") is False, "what is not a file of the folder stays"


def test_what_lies_in_a_folder_that_was_stored_whole_is_fetched_by_its_own_key(pod: Pod, site: Site) -> None:
    (pod.folder / "parts").mkdir()
    (pod.folder / "parts" / "a.json").write_text("1")
    pod.order(artifacts=[an_artifact(pod.folder / "parts", archive="tar", key="k/parts")])
    assert [pod.init(), pod.run("true"), pod.wait()] == [0, 0, 0]
    pod.order(inputs=[an_input({"key": "k/parts/a.json"})])
    assert pod.init() == 0
    assert (pod.step / "in" / "0").read_text() == "1"
    pod.order(inputs=[an_input({"key": "k/parts/no.json"})])
    assert pod.init() == 1


def test_inputs_are_tried_again_and_checked(pod: Pod, site: Site) -> None:
    site.artifacts["k/x"] = b"text"
    digest = f"sha256:{sha256(b'text').hexdigest()}"
    pod.order(inputs=[an_input({"key": "k/x", "digest": digest}, archive="none")])
    site.failures += [503, "spoilt"]
    assert pod.init() == 0
    assert (pod.step / "in" / "0").read_text() == "text"


@pytest.mark.parametrize(
    ("location", "words"),
    [
        pytest.param({"key": "gone"}, ["artifact gone does not exist"], id="not in the store"),
        pytest.param({"http": {"url": "file:///etc/passwd"}}, ["http:// or https://"], id="a file as a URL"),
        pytest.param({"git": {"repo": "ext::sh -c id"}}, ["git clone failed"], id="a command as a repository"),
        pytest.param({"git": {"repo": "-u"}}, ["git clone failed"], id="an option as a repository"),
        pytest.param({"tape": {}}, ["'tape' is not known"], id="an unknown store"),
        pytest.param(
            {"s3": {"bucket": "b", "key": "k", "accessKeySecret": {"secret": 3}}},
            ["the Secret of accessKeySecret is missing"],
            id="a Secret that is missing",
        ),
    ],
)
def test_an_input_that_cannot_be_had_ends_init_with_its_name(pod, capsys, location, words) -> None:
    pod.order(inputs=[an_input(location)])
    assert pod.init(seconds=0, PATH=os.environ["PATH"]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    for word in ("input artifact 'in'", *words):
        assert word in message


def test_raw_text_has_its_mode(pod: Pod) -> None:
    pod.order(inputs=[an_input({"raw": {"data": "#!/bin/sh\necho ä\n"}}, mode=0o755)])
    assert pod.init() == 0
    done = subprocess.run([str(pod.step / "in" / "0")], capture_output=True, check=True)
    assert done.stdout == "ä\n".encode()


def test_http_is_fetched_with_its_headers_and_unpacked(pod: Pod, site: Site) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in ("top/a", "top/b"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    site.artifacts["x"] = buffer.getvalue()
    headers = [{"name": "Authorization", "value": f"Bearer {TOKEN}"}]
    pod.order(inputs=[an_input({"http": {"url": f"{site.url}/?key=x", "headers": headers}})])
    assert pod.init() == 0
    assert sorted(path.name for path in (pod.step / "in" / "0").iterdir()) == ["a", "b"]


def test_a_git_repository_is_cloned_at_its_revision(pod: Pod, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    git = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "-q", "-b", "main", str(repo)], check=True)
    for text in ("first", "second"):
        (repo / "file").write_text(text)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", text], check=True)
        subprocess.run([*git, "tag", text], check=True)
    places = ({"repo": str(repo)}, {"repo": f"file://{repo}", "revision": "first", "depth": 1})
    pod.order(inputs=[an_input({"git": place}) for place in places])
    assert pod.init(PATH=os.environ["PATH"], HOME=str(tmp_path)) == 0
    assert [(pod.step / "in" / name / "file").read_text() for name in ("0", "1")] == ["second", "first"]


def test_an_input_in_a_volume_is_put_there_and_leaves_nothing_else(pod: Pod) -> None:
    volume = pod.folder / "volumes" / "0"
    volume.mkdir(parents=True)
    (volume / "kept").write_text("kept")
    pod.order(inputs=[an_input({"raw": {"data": "x"}}, below="deep/er/file")])
    assert pod.init() == 0
    assert texts_of(volume) == {"kept": "kept", "deep/er/file": "x"}


def test_a_link_in_a_volume_does_not_lead_an_input_out(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    volume, outside = pod.folder / "volumes" / "0", pod.folder / "outside"
    volume.mkdir(parents=True)
    outside.mkdir()
    (volume / "link").symlink_to(outside)
    pod.order(inputs=[an_input({"raw": {"data": "x"}}, below="link/file")])
    assert pod.init() == 1
    assert "leads out of the volume" in capsys.readouterr().err
    assert list(outside.iterdir()) == []


def test_links_that_the_step_laid_are_not_followed(pod: Pod, site: Site) -> None:
    """The folder is shared with the step, which could point at files of `wait` that are not its own."""
    secret = pod.folder / "secret"
    secret.write_text("12")
    pod.order(parameters=[{"name": "p", "path": "/nowhere"}], artifacts=[an_artifact(secret)], result=True)
    pod.init()
    out = pod.step / "out"
    for name in ("0.parameter", "1.tar", "result"):
        (out / name).symlink_to(secret)
    (out / "done").write_text("0\n")
    assert pod.wait() == 1
    report = site.report
    assert (report.outputs.parameters, report.outputs.artifacts, report.outputs.result) == ({}, (), "")


def test_a_shell_that_the_image_lacks_is_told(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    pod.order(result=True, shell=True)
    with pytest.raises(StepError, match="no /nowhere/busybox"):
        prepare(pod.step, read_order(pod.folder / "order.json"), busybox=Path("/nowhere/busybox"))


def test_an_order_that_cannot_be_read_is_told(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    pod.step.mkdir()
    (pod.folder / "order.json").write_text("{}")
    assert pod.init() == 1
    assert "cannot be read" in capsys.readouterr().err


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, Any]]:
    """An S3 location of a bucket on a server of this process."""
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    client = boto3.client(
        "s3",
        endpoint_url=f"http://{host}:{port}",
        aws_access_key_id="id",
        aws_secret_access_key="key",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="lab")
    yield {
        "endpoint": f"{host}:{port}",
        "insecure": True,
        "bucket": "lab",
        "region": "us-east-1",
        "accessKeySecret": {"secret": 0},
        "secretKeySecret": {"secret": 1},
    }
    server.stop()


def test_a_bucket_takes_outputs_and_gives_inputs(pod: Pod, site: Site, bucket: dict[str, Any]) -> None:
    location = {"s3": {**bucket, "key": "wf/out.tgz"}}
    (pod.folder / "folder").mkdir()
    (pod.folder / "folder" / "file").write_text("x")
    pod.order(
        artifacts=[an_artifact(pod.folder / "folder", location=location, kept={"s3": {"key": "wf/out.tgz"}})]
    )
    assert [pod.init(), pod.run("true"), pod.wait(**KEYS)] == [0, 0, 0]
    (artifact,) = site.report.outputs.artifacts
    assert artifact.location == {"s3": {"key": "wf/out.tgz"}}
    assert artifact.size_bytes > 0
    by_path = {"s3": {**bucket, "key": "wf/out.tgz", "addressingStyle": "path"}}
    pod.order(inputs=[an_input(by_path), an_input({"s3": {**bucket, "key": "wf"}}, archive="none")])
    assert pod.init(**KEYS) == 0
    assert (pod.step / "in" / "0" / "file").read_text() == "x"
    assert [path.name for path in (pod.step / "in" / "1").iterdir()] == ["out.tgz"]


def list_keys(pod: Pod, location: dict[str, Any], *expressions: str, **env: str) -> int:
    pod.order(data={"location": location, "expressions": expressions})
    return main(["data", *pod.words, "--try-seconds", "0"], pod.env(**env))


def test_the_keys_of_a_bucket_are_listed_and_transformed(pod: Pod, site: Site, bucket: dict[str, Any]) -> None:
    stores = Stores(KEYS, pod.folder)
    for key in ("logs/b/main.log", "logs/a.txt", "logs/a/main.log", "logs2/main.log"):
        stores.write({"s3": {**bucket, "key": key}}, Path(__file__))
    assert list_keys(pod, {"s3": {**bucket, "key": "logs/"}}, 'filter(data, {# endsWith "main.log"})', **KEYS) == 0
    assert list_keys(pod, {"s3": bucket}, "filter(data, # contains 'main')", 'map(data, {# + "!"})', **KEYS) == 0
    assert list_keys(pod, {"s3": {**bucket, "key": "nothing"}}, **KEYS) == 0
    assert [report["outputs"]["result"] for report in site.reports] == [
        '["logs/a/main.log","logs/b/main.log"]',
        '["logs/a/main.log!","logs/b/main.log!","logs2/main.log!"]',
        "[]",
    ]


def test_keys_of_our_own_store_are_listed_as_artifacts_name_them(pod: Pod, site: Site) -> None:
    site.artifacts = {"wf/p/a.tgz": b"", "wf/p/b.tgz": b"", "other/c.tgz": b""}
    assert list_keys(pod, {"key": "wf"}, "len(data)") == 0
    assert list_keys(pod, {"key": "wf"}) == 0
    assert [report["outputs"]["result"] for report in site.reports] == ["2", '["wf/p/a.tgz","wf/p/b.tgz"]']


@pytest.mark.parametrize(("expression", "words"), [
    ("data.a.b", "transformation[0] 'data.a.b'"),
    ("map(1..30000, 'a long text')", "and a result has at most 262144"),
])  # fmt: skip
def test_a_list_that_cannot_be_made_is_an_error(pod, site, capsys, expression, words) -> None:
    assert list_keys(pod, {"key": "wf"}, expression) == 1
    assert words in capsys.readouterr().err
    assert site.reports == []


def test_what_a_bucket_does_not_have_is_told(tmp_path: Path, bucket: dict[str, Any]) -> None:
    stores = Stores(KEYS, tmp_path)
    with pytest.raises(StepError, match="s3://lab/none does not exist"):
        stores.read({"s3": {**bucket, "key": "none"}}, tmp_path / "in")


def test_an_optional_input_that_its_store_does_not_have_is_left_out(pod: Pod, bucket: dict[str, Any]) -> None:
    location = {"s3": {**bucket, "key": "none"}}
    pod.order(inputs=[an_input(location, optional=True)])
    assert pod.init(**KEYS) == 0
    pod.order(inputs=[an_input(location)])
    assert pod.init(**KEYS) == 1


def test_what_was_written_again_since_is_not_deleted(tmp_path, bucket, capsys, monkeypatch) -> None:
    stores, file = Stores(KEYS, tmp_path), tmp_path / "file"
    file.write_text("x")
    places = [{"s3": {**bucket, "key": f"gc/{name}"}} for name in ("mine", "theirs")]
    versions = [stores.write(place, file) for place in places]
    file.write_text("y")
    stores.write(places[1], file)
    away = {"http": {"url": "http://127.0.0.1/x"}}
    entries = [*zip(places, versions, strict=True), (places[0], versions[0]), (places[1], ""), (away, "")]
    rows = [
        {"node": "n", "name": f"a{n}", "location": place, "version": v} for n, (place, v) in enumerate(entries)
    ]
    order = tmp_path / "order.json"
    order.write_text(json.dumps({"delete": rows}))
    assert main(["delete", "--step", str(tmp_path), "--order", str(order)], KEYS) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("left=4 artifact 'a4'")
    with pytest.raises(StepError):
        stores.read(places[0], tmp_path / "in")
    stores.read(places[1], tmp_path / "in")
    assert (tmp_path / "in").read_text() == "y"
