"""`moor wait`, `exec` and `port-forward` against a cluster in memory: refusals and their messages."""

from __future__ import annotations

import pytest

from moorage.cli.localports import pod_on_port
from moorage.cli.portforward import Forward, parse_forward
from moorage_kube.errors import Forbidden, UsageError
from moorage_kube.resources import JOBS
from moorage_kube.testing.clock import QuickClock
from moorage_testing.builders import a_run_job
from moorage_testing.commandline import Moor


def put_run(moor: Moor, name: str = "train", end: str = "") -> None:
    moor.api.put(JOBS, a_run_job(name, user="ada", namespace="default", end=end))


def test_waiting_for_runs_that_have_ended_says_how_each_ended(moor):
    put_run(moor, "good", "Complete")
    put_run(moor, "bad", "Failed")
    done = moor("wait", "good")
    assert (done.code, done.out, done.err) == (0, "good Succeeded\n", "")
    done = moor("wait", "good", "bad", "good")
    assert (done.code, done.out) == (1, "good Succeeded\nbad Failed\n")
    assert done.err == "bad: Failed; see moor show bad\n"
    done = moor("wait", "good", "--for", "running")
    assert (done.code, done.err) == (1, "good: Succeeded; it does not run any more; see moor show good\n")


def test_every_name_that_does_not_exist_is_named_before_anything_is_waited_for(moor):
    put_run(moor)
    done = moor("wait", "train", "trian", "x")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "error: run 'trian' not found in namespace default\nhint: did you mean train?\n"
        "error: run 'x' not found in namespace default\n"
        "hint: list the runs of namespace default: moor jobs -n default; of all: moor jobs -A\n"
    )


def test_a_wait_that_times_out_names_the_runs_that_have_not_ended(moor):
    put_run(moor)
    moor.clock = QuickClock()
    done = moor("wait", "train", "--timeout", "10m")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "error: train: not ended after 10m\nhint: nothing was stopped; wait again, or see moor jobs\n"
    )
    wrong = moor("wait", "train", "--timeout", "soon")
    assert wrong.err == "error: invalid --timeout 'soon'\nhint: use a time such as 90s, 10m or 2h\n"
    assert wrong.code == 2


def test_a_run_that_waits_cannot_be_entered(moor):
    put_run(moor)
    for words in (["exec", "train", "--", "ls"], ["port-forward", "train", "80"]):
        done = moor(*words)
        assert (done.code, done.err) == (
            1,
            "error: run train is waiting: none of its pods runs\n"
            "hint: see why: moor explain train   Wait for it: moor wait train --for running\n",
        )


def test_a_shell_needs_a_terminal(moor):
    done = moor("exec", "train")
    assert (done.code, done.err) == (
        2,
        "error: no command given, and there is no terminal for a shell\n"
        "hint: give a command: moor exec train -- nvidia-smi\n",
    )


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("8888", Forward(8888, 8888)),
        ("9000:8888", Forward(9000, 8888)),
        (":8888", Forward(0, 8888)),
        ("0:8888", Forward(0, 8888)),
    ],
)
def test_a_port_is_the_same_here_or_another_or_any(text, want):
    assert parse_forward(text) == want


@pytest.mark.parametrize("text", ["", "0", ":", "80:", "x:80", "70000", "1:2:3", "-1", "80:0"])
def test_an_invalid_port_is_refused_with_the_valid_form(text):
    with pytest.raises(UsageError) as caught:
        parse_forward(text)
    assert caught.value.message == f"invalid port {text!r}: use [LOCAL:]REMOTE, numbers from 1 to 65535"


def test_only_runs_and_workspaces_have_ports(moor):
    done = moor("port-forward", "deployment/web", "80")
    error = "error: invalid name 'deployment/web': use the name of a run, or workspace/NAME\n"
    assert (done.code, done.err) == (2, error)


RBAC = (
    'jobs.batch is forbidden: User "ada" cannot list resource "jobs" in API group "batch"'
    ' in the namespace "default"'
)
NO_TEAM = (
    "hint: you are in no team yet: ask an admin of a team, or of the cluster, for"
    " `moor tenant add TEAM --user ada`, then run `moor kubeconfig --save`\n"
)


@pytest.mark.parametrize(
    ("words", "doing"),
    [
        (("run", "--", "true"), "start runs"),
        (("rerun", "x"), "start runs"),
        (("wait", "x"), "wait for runs"),
        (("cancel", "x"), "cancel runs"),
        (("stop", "x"), "cancel runs"),
        (("ps",), "list runs"),
        (("exec", "x", "--", "true"), "run commands in runs"),
        (("port-forward", "x", "80"), "forward ports of runs"),
    ],
)
def test_a_refusal_names_the_typed_action(moor, words, doing):
    moor.api.refuse["list", "jobs"] = Forbidden(RBAC)
    moor.server.answers["/api/v1/jobs"] = Forbidden(RBAC)
    done = moor(*words)
    assert (done.code, done.err) == (1, f"error: ada may not {doing} in namespace default\n{NO_TEAM}")


@pytest.mark.parametrize(("environ", "uid"), [(b"PATH=/bin\0MOORAGE_POD_UID=u-1\0", "u-1"), (b"PATH=/bin\0", "")])
def test_the_pod_that_listens_on_a_port_is_known_by_its_process(tmp_path, environ, uid):
    (tmp_path / "net").mkdir()
    line = "0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 77 1"
    (tmp_path / "net" / "tcp").write_text(f"head\n{line}\n")
    process = tmp_path / "4711"
    (process / "fd").mkdir(parents=True)
    (process / "fd" / "3").symlink_to("socket:[77]")
    (process / "environ").write_bytes(environ)
    assert (pod_on_port(8080, tmp_path), pod_on_port(8081, tmp_path)) == (uid, "")
