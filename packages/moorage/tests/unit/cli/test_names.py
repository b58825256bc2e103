"""Names that a shell completes: silent where anything fails, kept for a few seconds."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import click
import pytest

from moorage.cli import names
from moorage.cli.commands import COMMANDS, load
from moorage.cli.session import Session
from moorage_kube.errors import Forbidden
from moorage_kube.resources import JOBS, NODES, PVCS
from moorage_kube.testing.builders import an_object
from moorage_testing.builders import a_run_job


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOORAGE_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("MOORAGE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("MOORAGE_KUBECONFIG", str(tmp_path / "missing"))
    return tmp_path / "config"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("kind", "want"),
    [
        ("runs", ["train"]),
        ("nodes", ["gpu-1"]),
        ("gpu_types", ["a100"]),
        ("volumes", ["data"]),
        ("workspace_types", ["codeserver", "jupyterlab"]),
        ("machines", []),
    ],
)
async def test_each_kind_is_read_in_the_namespace_of_the_session(kind, want, moor):
    moor.node("gpu-1", gpus=1)
    moor.server.serves = moor.api
    moor.api.put(JOBS, a_run_job("train", name="train-1"))
    moor.api.put(JOBS, a_run_job("b", namespace="other"))
    moor.api.put(PVCS, an_object(PVCS, "data"))
    session = Session(api=moor.api, namespace="lab", server=moor.server)
    assert sorted(await names.READERS[kind](session)) == want


@pytest.mark.anyio
async def test_templates_that_may_not_be_read_leave_our_own_types(moor):
    moor.api.refuse["list", "configmaps"] = Forbidden("forbidden", status=403)
    session = Session(api=moor.api, namespace="lab", server=moor.server)
    assert sorted(await names.READERS["workspace_types"](session)) == ["codeserver", "jupyterlab"]
    assert moor.api.named(NODES) == []


def test_without_a_cluster_nothing_is_completed_and_nothing_is_printed(config, capsys):
    assert names.names_for("runs", {}) == []
    assert capsys.readouterr() == ("", "")


def test_contexts_are_read_from_the_kubeconfig_and_cached_for_their_user_only(config, tmp_path):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps({"contexts": [{"name": "lab"}, {"name": "production"}]}))
    assert names.names_for("contexts", {"kubeconfig": kubeconfig}) == ["lab", "production"]
    cache = config / names.CACHE_FILE
    assert stat.S_IMODE(cache.stat().st_mode) == 0o600
    kubeconfig.unlink()
    assert names.names_for("contexts", {"kubeconfig": kubeconfig}) == ["lab", "production"]


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"a": 1}', '{"a": ["x", []]}'])
def test_a_damaged_cache_counts_as_missing(text, config, tmp_path):
    config.mkdir()
    (config / names.CACHE_FILE).write_text(text)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps({"contexts": [{"name": "lab"}]}))
    assert names.names_for("contexts", {"kubeconfig": kubeconfig}) == ["lab"]


def test_every_argument_that_names_an_existing_thing_is_completed():
    creating = {"create", "set", "run", "login", "restore", "completion", "lint", "notify", "docker", "plan"}

    def missing(path: str, command: click.Command) -> list[str]:
        if isinstance(command, click.Group):
            return [one for name, sub in command.commands.items() for one in missing(f"{path} {name}", sub)]
        if path.split()[-1] in creating:
            return []
        return [
            f"{path} {parameter.name}"
            for parameter in command.params
            if isinstance(parameter, click.Argument)
            and parameter.name in ("name", "names", "node", "nodes", "volume")
            and parameter._custom_shell_complete is None
        ]

    assert [one for _, name, target, _ in COMMANDS for one in missing(name, load(target))] == []
