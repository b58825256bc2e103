"""Whatever a file, an annotation or an answer holds, those who read it say what is wrong, or go on without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moorage.cli.lint import _policy
from moorage.cli.plan import load_sheet
from moorage.cli.up import nodes_of_file
from moorage.controllers.dataset.filler import last_result
from moorage.decide.docker.containers import CONFIG_ANNOTATION, config_of
from moorage.decide.maps.facts import plan_of
from moorage.decide.tools.lint import lint
from moorage.extender.app import parse_arguments
from moorage.model.names import MAP_PLAN_ANNOTATION, TEMPLATE_LABEL
from moorage.model.people import GROUPS_ANNOTATION, groups_in
from moorage.model.workspace import TEMPLATE_KEY, parse_template
from moorage_kube.errors import ApiError, MoorageError
from moorage_kube.remote.config import load_connection
from moorage_kube.remote.credentials import _parse_credential
from moorage_kube.remote.exec import exit_code_of
from moorage_local.scheduler.extenders import load_extenders

ALIASES = "a0: &a0 [x]\n" + "\n".join(f"a{at}: &a{at} [{','.join([f'*a{at - 1}'] * 9)}]" for at in range(1, 12))
YAML_BOMBS = {
    "deep": "[" * 100_000,
    "deep mappings": "{a: " * 25_000,
    "aliases": ALIASES,
    "holds itself": "a: &a [*a]",
    "base 60": "a: 1" + ":1" * 200_000,
    "not UTF-8": "a: \udcff",
}
JSON_BOMBS = {"deep": b"[" * 100_000, "closed": b"[" * 3000 + b"]" * 3000, "objects": b'{"a":' * 5000}


@pytest.mark.parametrize("bomb", YAML_BOMBS)
@pytest.mark.parametrize(
    "read",
    [
        lambda path: load_connection(env={"KUBECONFIG": str(path)}),
        load_sheet,
        nodes_of_file,
        load_extenders,
        lambda path: _policy(str(path)),
    ],
    ids=["kubeconfig", "prices", "nodes", "scheduler", "policy"],
)
def test_a_file_beyond_the_bounds_is_refused(tmp_path: Path, read: Callable[[Path], Any], bomb: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(YAML_BOMBS[bomb].encode(errors="surrogateescape"))
    with pytest.raises(MoorageError) as error:
        read(path)
    assert len(error.value.message) < 2000


@pytest.mark.parametrize("bomb", YAML_BOMBS)
def test_a_manifest_beyond_the_bounds_is_a_finding(bomb: str) -> None:
    assert lint([("f", YAML_BOMBS[bomb])]).denied


@pytest.mark.parametrize("bomb", sorted(YAML_BOMBS.keys() - {"base 60"}))  # which is a text, not a number
def test_a_template_beyond_the_bounds_is_bad(bomb: str) -> None:
    meta = {"name": "t", "labels": {TEMPLATE_LABEL: "t"}}
    with pytest.raises(MoorageError):
        parse_template({"metadata": meta, "data": {TEMPLATE_KEY: YAML_BOMBS[bomb]}})


@pytest.mark.parametrize("bomb", JSON_BOMBS)
def test_an_annotation_beyond_the_bounds_is_as_none(bomb: str) -> None:
    text = JSON_BOMBS[bomb].decode()

    def annotated(key: str) -> dict[str, Any]:
        return {"metadata": {"annotations": {key: text}}}

    assert groups_in(annotated(GROUPS_ANNOTATION)) == ()
    assert config_of(annotated(CONFIG_ANNOTATION)) == {}
    assert plan_of(annotated(MAP_PLAN_ANNOTATION)) == {}
    assert last_result(JSON_BOMBS[bomb]) is None


@pytest.mark.parametrize("bomb", JSON_BOMBS)
def test_an_answer_beyond_the_bounds_is_an_error(bomb: str) -> None:
    with pytest.raises(ApiError):
        exit_code_of(JSON_BOMBS[bomb])
    with pytest.raises(MoorageError, match="printed no ExecCredential"):
        _parse_credential(JSON_BOMBS[bomb], "plugin x")
    for body in (JSON_BOMBS[bomb], b'{"Pod":{"a":' + JSON_BOMBS[bomb]):
        with pytest.raises(ApiError):
            parse_arguments(body)


@pytest.mark.parametrize("code", ["²", "9" * 5000, "-1", "1.5", ""])
def test_an_odd_exit_code_is_an_error(code: str) -> None:
    import json

    causes = [{"reason": "ExitCode", "message": code}]
    status = {"status": "Failure", "reason": "NonZeroExitCode", "message": "m", "details": {"causes": causes}}
    with pytest.raises(MoorageError):
        exit_code_of(json.dumps(status).encode())
