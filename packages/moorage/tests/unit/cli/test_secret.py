"""`moor secret`: values come in by many ways, and go out by none."""

from __future__ import annotations

import base64
import io
import json
from types import SimpleNamespace

import pytest

from moorage_kube.resources import CONFIGMAPS, JOBS, SECRETS
from moorage_kube.testing.builders import an_object
from moorage_kube.testing.clock import QuickClock

VALUE = "hf_not-for-your-eyes"


@pytest.fixture
def typed(monkeypatch):
    """Give the commands a standard input."""

    def give(text):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    give("")
    return give


def stored(moor, name="hf"):
    data = moor.api.objects["secrets", "default", name]["data"]
    return {key: base64.b64decode(value).decode() for key, value in data.items()}


def test_a_secret_is_created_listed_used_and_deleted(moor, typed, tmp_path, monkeypatch):
    moor.node("node-1")
    typed(f"{VALUE}\n")
    (tmp_path / "key.json").write_text("{}\n")
    monkeypatch.setenv("S3_KEY", "abc=")
    words = ("--from-env", "S3_KEY", "--from-file", f"key.json={tmp_path}/key.json")
    made = moor("secret", "create", "hf", "HF_TOKEN", *words)
    assert (made.code, made.out) == (0, "hf\n")
    assert stored(moor) == {"HF_TOKEN": VALUE, "S3_KEY": "abc=", "key.json": "{}\n"}
    [keys] = [moor.api.objects["configmaps", "default", "hf.secret-keys"]]
    secret = moor.api.objects["secrets", "default", "hf"]
    assert secret["metadata"]["ownerReferences"][0]["uid"] == keys["metadata"]["uid"]
    assert secret["metadata"]["labels"]["moorage.dev/secret"] == "hf"
    run = moor("run", "--name", "train", "--secret", "hf", "--", "true")
    assert (run.code, run.out) == (0, "train\n")
    [row] = json.loads(moor("secret", "list", "-o", "json").out)
    assert (row["keys"], row["usedBy"], row["owner"]) == (["HF_TOKEN", "S3_KEY", "key.json"], ["train"], "ada")
    refused = moor("secret", "delete", "hf")
    assert refused.code == 1
    assert "secret 'hf' is in use by train" in refused.err
    forced = moor("secret", "delete", "hf", "--force")
    assert (forced.code, forced.out) == (0, "hf deleted\n")
    assert "hf.secret-keys" not in moor.api.named(CONFIGMAPS)
    texts = json.dumps([made, run, refused, forced, moor.api.objects["jobs", "default", "train"]], default=str)
    assert VALUE not in texts
    assert {call.verb for call in moor.api.calls if call.resource == "secrets"} == {"create", "update"}


def test_a_value_in_the_command_line_is_noted(moor, typed):
    done = moor("secret", "create", "hf", "HF_TOKEN=abc")
    assert stored(moor) == {"HF_TOKEN": "abc"}
    assert done.err.splitlines()[0] == (
        "note: the value of HF_TOKEN is in the history of your shell now; next time leave out =VALUE"
    )


def test_on_a_terminal_the_value_is_typed_without_echo(moor, monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("getpass.getpass", lambda text: f"typed after {text}")
    moor("secret", "create", "s3", "KEY", "PASSWORD")
    assert stored(moor, "s3")["PASSWORD"] == "typed after Value of PASSWORD (not shown): "


def test_values_are_replaced_only_where_this_is_typed(moor, typed):
    moor("secret", "create", "hf", "A=1", "B=1")
    again = moor("secret", "create", "hf", "A=2")
    assert (again.code, stored(moor)["A"]) == (1, "1")
    assert "another secret in namespace default has it" in again.err
    assert moor("secret", "create", "hf", "C=3", "--replace").code == 0
    assert stored(moor) == {"C": "3"}
    assert json.loads(moor("secret", "list", "-o", "json").out)[0]["keys"] == ["C"]
    assert "secret 'no' not found" in moor("secret", "create", "no", "C=3", "--replace").err


def test_a_secret_of_another_program_is_never_overwritten(moor, typed):
    moor.clock = QuickClock()
    moor.api.put(SECRETS, an_object(SECRETS, "database", namespace="default", data={"url": "eA=="}))
    done = moor("secret", "create", "database", "url=mine")
    assert done.code == 1
    assert "a Kubernetes Secret 'database' exists that `moor secret` did not create" in done.err
    assert stored(moor, "database") == {"url": "x"}
    assert moor.api.named(CONFIGMAPS) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["hf"], "a secret needs at least one value"),
        (["hf", "A B=1"], "invalid key 'A B'"),
        (["hf", "A"], "the value of A is empty"),
        (["hf", "A", "B"], "standard input has one value, and the keys are A, B"),
        (["HF", "A=1"], "invalid secret name 'HF'"),
        (["hf", "--from-env", "NO_SUCH"], "--from-env: 'NO_SUCH' is not set in your environment"),
        (["hf", "--from-file", "key.json"], "invalid --from-file 'key.json': use KEY=PATH"),
    ],
)
def test_wrong_input_creates_nothing(words, says, moor, typed):
    done = moor("secret", "create", *words)
    assert done.code == 2
    assert says in done.err
    assert moor.api.named(SECRETS) == moor.api.named(CONFIGMAPS) == []


def test_a_run_with_a_missing_secret_is_refused_with_the_names_that_exist(moor, typed):
    moor.node("node-1")
    moor("secret", "create", "hf", "A=1")
    done = moor("run", "--secret", "hg", "--", "true")
    assert done.code == 2
    assert "secret 'hg' not found in namespace default" in done.err
    assert "available: hf" in done.err
    assert moor.api.named(JOBS) == []
