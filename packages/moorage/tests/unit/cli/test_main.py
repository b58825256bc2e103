"""The way into `moor`: help, version, wrong words, and how errors look."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

from moorage import __version__
from moorage.cli.commands import ALIASES, COMMANDS, MEANT, find_command, load
from moorage.cli.hints import remember
from moorage.cli.main import MEANT_OPTIONS, help_text, main
from moorage_kube.resources import PVCS
from moorage_kube.testing.builders import an_object
from moorage_testing.laptops import HIDE_UNIX


@pytest.fixture(autouse=True)
def no_options_of_earlier_commands():
    """A process of users runs one command; here, other tests of the process may have typed options."""
    remember({})


def test_the_help_names_every_command_with_one_line(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for section, name, _, text in COMMANDS:
        assert f"\n{section}:\n" in out
        assert any(line.split()[:1] == [name] and line.endswith(text) for line in out.splitlines())
    assert max(len(line) for line in out.splitlines()) <= 80


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"]])
def test_moor_alone_shows_its_help(words, capsys):
    assert main(words) == 0
    assert capsys.readouterr().out == help_text()


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"moor {__version__}\n"


def test_the_help_imports_neither_click_nor_anything_of_ours_but_its_table():
    code = (
        "import sys; before = set(sys.modules); from moorage.cli.main import main; main(['--help']);"
        "new = {name for name in set(sys.modules) - before if not name.startswith('_')};"
        "print(sorted(new), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert eval(done.stderr) == ["moorage", "moorage.cli", "moorage.cli.commands", "moorage.cli.main"]


def test_commands_of_users_and_python_need_no_module_that_only_unix_has():
    of_the_cluster = ("This machine", "On a cluster")
    code = HIDE_UNIX + (
        "import moorage; from moorage.cli.main import main; moorage.Client, moorage.AsyncClient, moorage.map;"
        f"names = {[name for section, name, _, _ in COMMANDS if section not in of_the_cluster]};"
        "sys.exit(any([main([name, '--help']) for name in names]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", [name for _, name, _, _ in COMMANDS])
def test_every_command_of_the_table_exists_and_explains_itself(name, capsys):
    target = next(target for _, listed, target, _ in COMMANDS if listed == name)
    module = target.partition(":")[0]
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        pytest.skip(f"{module} is not there yet")
    command = load(target)
    assert isinstance(command, click.Command)
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: moor {name}")


def test_words_of_other_tools_lead_to_commands_and_options_that_exist():
    for word, meant in MEANT.items():
        assert find_command(word) is None
        first = meant.split()[1]
        assert first == "--version" or find_command(first) is not None, meant
    for (command, _), option in MEANT_OPTIONS.items():
        match = find_command(command.removeprefix("moor "))
        assert match is not None
        known = {name for parameter in load(match[1]).params for name in parameter.opts}
        assert option.split()[0] in known or option.startswith("nothing"), option


@pytest.mark.parametrize(
    ("words", "err"),
    [
        (["jbos"], "error: moor has no command 'jbos'\nhint: did you mean `moor jobs`?\n"),
        (["xyzzy"], "error: moor has no command 'xyzzy'\nhint: `moor --help` lists them all\n"),
        (
            ["--gpus", "1"],
            "error: moor has no option --gpus\n"
            "hint: options follow the command: moor run --gpus 1 -- python train.py\n",
        ),
        (["run"], "error: no command given\nhint: moor run [OPTIONS] -- python train.py\n"),
        (
            ["jobs", "--nope"],
            "error: no such option '--nope'\n"
            "hint: did you mean --mine or --since or --owner? Or see `moor jobs --help`\n",
        ),
        (
            ["volume", "lst"],
            "error: no such command 'lst'\nhint: did you mean list? Or see `moor volume --help`\n",
        ),
        (["descrbe"], "error: moor has no command 'descrbe'\nhint: did you mean `moor describe`?\n"),
        (
            ["volume", "create"],
            "error: missing argument 'NAME'\n"
            "hint: such as: moor volume create data --size 50Gi   Or see `moor volume create --help`\n",
        ),
        (
            ["delete", "x"],
            "error: moor has no command 'delete'\nhint: did you mean `moor cancel --delete NAME`?\n",
        ),
        (["retry", "x"], "error: moor has no command 'retry'\nhint: did you mean `moor rerun NAME`?\n"),
        (
            ["jobs", "--failed"],
            "error: no such option '--failed'\nhint: did you mean --state failed? Or see `moor jobs --help`\n",
        ),
        (
            ["run", "--gpu", "1", "--", "true"],
            "error: no such option '--gpu'\nhint: did you mean --gpus? Or see `moor run --help`\n",
        ),
    ],
)
def test_wrong_usage_is_one_error_one_hint_and_exit_code_2(words, err, capsys):
    assert main(words) == 2
    assert capsys.readouterr() == ("", err)


@pytest.mark.parametrize(
    ("typed", "usage"),
    [
        (["ls"], "moor jobs"),
        (["ps"], "moor jobs"),
        (["rm"], "moor cancel"),
        (["stop"], "moor cancel"),
        (["kill"], "moor cancel"),
        (["describe"], "moor show"),
        (["ws"], "moor workspace"),
        (["vol", "ls"], "moor volume list"),
        (["ds", "rm"], "moor dataset delete"),
        (["workspace", "get", "lab"], "moor workspace show"),
        (["workspace", "get"], "moor workspace list"),
        (["workspace", "describe", "lab"], "moor workspace show"),
        (["map", "get", "features"], "moor map status"),
        (["map", "get", "-A"], "moor map list"),
        (["volume", "get"], "moor volume list"),
    ],
)
def test_words_of_docker_kubectl_and_the_shell_call_the_command(typed, usage, capsys):
    assert main([*typed, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: {usage} ")


def test_the_helps_say_the_other_words(capsys):
    assert "\n  ls, ps          the same as jobs\n" in help_text()
    main(["volume", "--help"])
    assert "\nOther words: ls = list, rm = delete, get = list\n" in capsys.readouterr().out


def test_no_other_word_hides_a_command():
    assert not ALIASES.keys() & {name for _, name, _, _ in COMMANDS}
    assert set(ALIASES.values()) <= {name for _, name, _, _ in COMMANDS}


def test_help_of_a_command_may_be_asked_for_by_word(capsys):
    assert main(["help", "jobs"]) == 0
    assert capsys.readouterr().out.startswith("Usage: moor jobs")


def test_a_cluster_that_is_not_configured_is_one_error(capsys, monkeypatch, tmp_path):
    for name in ("KUBECONFIG", "MOORAGE_KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MOORAGE_DATA", str(tmp_path / "data"))
    assert main(["jobs"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: cannot find a Kubernetes cluster")
    hint = "log in to your team's server: moor login https://HOST; or start a cluster on this machine: moor up"
    assert f"hint: {hint}" in err


@pytest.mark.parametrize(
    ("answer", "code", "says"),
    [
        ("", 2, "the input has ended\nhint: without a terminal, add --yes\n"),
        ("n\n", 130, "Delete data and all files on them? [y/N]: "),
    ],
)
def test_without_a_yes_nothing_is_removed(moor, monkeypatch, answer, code, says):
    moor.api.put(PVCS, an_object(PVCS, "data", namespace="default"))
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    done = moor("volume", "delete", "data")
    assert (done.code, done.err.endswith(says)) == (code, True), done.err
    assert moor.api.named(PVCS) == ["data"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed(shell, moor):
    done = moor("completion", shell)
    assert done.code == 0
    assert "_MOOR_COMPLETE" in done.out


def completing(shell: str, words: str, at: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"_MOOR_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": at}
    command = [sys.executable, "-m", "moorage.cli.main"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def in_shell(words: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m moorage.cli.main {words}"
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=False)


@pytest.mark.processes
def test_the_shell_completes_commands_and_options():
    def complete(words: str, at: int | str) -> list[str]:
        done = completing("bash", words, str(at))
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert complete("moor j", 1) == ["jobs"]
    assert complete("moor run --gpu", 2) == ["--gpus", "--gpu-type", "--gpu-resource", "--gpu-claim"]
    assert complete("moor volume cr", 2) == ["create"]
    assert complete("moor vol cr", 2) == ["create"]
    assert complete("moor ds ls --out", 3) == ["--output"]
    assert complete("moor", "a broken call") == []


@pytest.mark.processes
@pytest.mark.parametrize(
    ("line", "word", "want"),
    [("moor j", "j", ["jobs"]), ("moor volume cr", "cr", ["create"]), ("moor vol rm --for", "--for", ["--force"])],
)
def test_fish_gives_the_word_instead_of_its_number(line, word, want):
    done = completing("fish", line, word)
    names = [shown.partition(",")[2].partition("\t")[0] for shown in done.stdout.splitlines()]
    assert (names, done.stderr) == (want, "")


@pytest.mark.processes
def test_a_reader_that_goes_away_is_no_traceback():
    assert "Traceback" not in in_shell("--help | head -1").stderr


@pytest.mark.processes
@pytest.mark.parametrize("words", ["--help", "--version", "jobs --help", "plan --help"])
def test_a_full_disk_is_one_error(words):
    done = in_shell(f"{words} > /dev/full")
    error = "error: cannot write the output: no space left on device\n"
    assert (done.returncode, done.stderr) == (1, f"{error}hint: free some space, or write to another place\n")


def test_the_kubeconfig_of_a_running_local_cluster_is_used_unless_another_is_named(monkeypatch, tmp_path):
    from moorage.cli.datafolder import DataFolder
    from moorage.client.target import Target, choose_kubeconfig, chosen_connection
    from moorage_kube.errors import NotReady

    monkeypatch.setenv("MOORAGE_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    folder = DataFolder(tmp_path)
    folder.prepare()
    (tmp_path / "kubeconfig").write_text("{}")
    assert choose_kubeconfig(Target(), {}) is None  # it does not run
    with pytest.raises(NotReady) as stopped:
        chosen_connection(Target())
    assert stopped.value.hint == f"start the cluster in {tmp_path}: moor up"
    with pytest.raises(NotReady):
        choose_kubeconfig(Target(data=tmp_path), {})
    lock = folder.lock()
    try:
        assert choose_kubeconfig(Target(), {}) == tmp_path / "kubeconfig"
        assert choose_kubeconfig(Target(data=tmp_path), {}) == tmp_path / "kubeconfig"
        assert choose_kubeconfig(Target(), {"KUBECONFIG": "/x"}) is None
        assert choose_kubeconfig(Target(), {"MOORAGE_KUBECONFIG": "/x"}) is None
        assert choose_kubeconfig(Target(context="c"), {}) is None
        assert choose_kubeconfig(Target(kubeconfig=Path("/k")), {}) == Path("/k")
    finally:
        os.close(lock)


@pytest.mark.parametrize(
    ("login", "namespace"),
    [
        ({}, "team"),
        ({"server": "https://10.0.0.1:6443"}, "default"),  # of another cluster
        ({"ca_data": "b3RoZXI="}, "default"),  # of an erased one at the same address
        ({"name": ""}, "default"),  # none
    ],
)
def test_a_login_to_the_running_local_cluster_itself_is_used(monkeypatch, tmp_path, login, namespace):
    from moorage.cli.datafolder import DataFolder
    from moorage.client.target import Target, chosen_connection

    monkeypatch.setenv("MOORAGE_DATA", str(tmp_path))
    monkeypatch.setenv("MOORAGE_CONFIG", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    folder = DataFolder(tmp_path)
    folder.prepare()
    cluster = {"server": "https://127.0.0.1:6443", "certificate-authority-data": "Y2E="}
    (tmp_path / "kubeconfig").write_text(json.dumps({
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "users": [{"name": "c", "user": {"token": "t"}}],
        "current-context": "c",
    }))  # fmt: skip
    fields = {"server": cluster["server"], "name": "c", "ca_data": "Y2E="} | login
    saved = {"url": "http://h", "name": "ada", "cluster": fields, "namespace": "team"}
    known = {"http://h": saved} if fields["name"] else {}
    (tmp_path / "logins.json").write_text(json.dumps({"current": "http://h", "logins": known}))
    lock = folder.lock()
    try:
        assert chosen_connection(Target()).namespace == namespace
        assert chosen_connection(Target(data=tmp_path)).namespace == "default"
        assert chosen_connection(Target(kubeconfig=tmp_path / "kubeconfig")).namespace == "default"
    finally:
        os.close(lock)


def test_a_reader_that_has_read_enough_is_no_error():
    words = [sys.executable, "-m", "moorage.cli.main", "completion", "bash"]
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(words, stdout=write_end, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")
