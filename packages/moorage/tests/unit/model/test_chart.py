"""The Helm chart gives what `moor install` applies, for several values."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import jsonschema_rs
import pytest
import yaml

from moorage.cli.installobjects import wanted_objects
from moorage.cli.manifests import chart_files, write_tree
from moorage.decide.install.values import InstallValues
from tests.helmtemplates import TemplateError, render

CHART = chart_files()
HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not on PATH: the tests' own evaluator stands for it")
OWN = ("Namespace", "moorage-system")  # Helm creates it

CASES = [
    InstallValues(image="registry.example.org/moorage:0.1.0"),
    InstallValues(
        image="registry.example.org:5000/moorage@sha256:" + "0" * 64,
        public_url="https://moorage.example.org",
        kubernetes_url="https://kube.example.org:6443",
        workspace_url="https://*.apps.example.org",
        ingress_class="nginx",
        tls_secret="moorage-tls",
        trusted_proxies="10.244.0.0/16, 10.0.0.0/8",
        storage_class="fast",
        pause_image="registry.example.org/pause:3.10",
        run_image="python:3.12-slim",
        node_selector={"pool": "system", "yes": "true"},
        tolerations=({"key": "system", "operator": "Exists"}, {"key": "a", "value": "1", "effect": "NoSchedule"}),
        image_pull_secrets=("registry", "other"),
    ),
    InstallValues(
        image="moorage:1",
        database_secret="postgres",
        replicas={"webhook": 3, "server": 4},
        resources={"server": {"limits": {"memory": "4Gi"}}, "operator": {"requests": {"cpu": "1"}}},
    ),
    InstallValues(image="m", database_secret="db", public_url="http://m.example.org", ingress_class="traefik"),
    InstallValues(image="m", public_url="https://m.example.org"),  # no class: no Ingress
]  # fmt: skip


def chart_values(values: InstallValues) -> dict[str, Any]:
    """The chart's own, with those that are chosen put on them as Helm does it: mappings are merged."""

    def merge(base: Any, over: Any) -> Any:
        if isinstance(base, Mapping) and isinstance(over, Mapping):
            return {**base, **{key: merge(base.get(key), value) for key, value in over.items()}}
        return over

    return merge(yaml.safe_load(CHART["values.yaml"]), values.to_document())


def rendered(values: dict[str, Any]) -> dict[tuple[str, str, str], dict[str, Any]]:
    objects: dict[tuple[str, str, str], dict[str, Any]] = {}
    for text in (CHART[path] for path in sorted(CHART) if path.startswith("templates/")):
        for obj in render(text, values):
            key = (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
            assert key not in objects, f"{key} is there twice"
            objects[key] = obj
    return objects


def plain(obj: dict[str, Any]) -> dict[str, Any]:
    """Without the annotation that keeps definitions when the release is removed."""
    obj = copy.deepcopy(obj)
    notes = obj["metadata"].get("annotations") or {}
    if notes.pop("helm.sh/resource-policy", None) and not notes:
        del obj["metadata"]["annotations"]
    return obj


def installed(values: InstallValues) -> dict[tuple[str, str, str], dict[str, Any]]:
    """What `moor install` applies, without the namespace."""
    return {
        (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): json.loads(json.dumps(obj))
        for obj in wanted_objects(values)
        if (obj["kind"], obj["metadata"]["name"]) != OWN
    }


IDS = ["image alone", "everything", "database", "plain http", "no class"]


@pytest.mark.parametrize("values", CASES, ids=IDS)
def test_the_chart_gives_what_moor_install_applies(values):
    jsonschema_rs.validate(schema(), chart_values(values))
    made = {key: plain(obj) for key, obj in rendered(chart_values(values)).items()}
    wanted = installed(values)
    assert set(made) == set(wanted)
    for key, obj in wanted.items():
        assert made[key] == obj, key


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *words], capture_output=True, text=True, check=False)


@needs_helm
@pytest.mark.parametrize("values", CASES, ids=IDS)
def test_helm_itself_gives_what_moor_install_applies(values, tmp_path):
    """Seen with Helm 4.1.4."""
    chosen, chart = tmp_path / "values.yaml", tmp_path / "chart"
    write_tree(chart, CHART)
    chosen.write_text(yaml.safe_dump(values.to_document()))
    assert helm("lint", "--strict", str(chart), "-f", str(chosen)).returncode == 0
    result = helm("template", "moorage", str(chart), "-n", "moorage-system", "-f", str(chosen))
    assert result.returncode == 0, result.stderr
    made = [obj for obj in yaml.safe_load_all(result.stdout) if obj]
    keyed = {
        (obj["kind"], obj["metadata"].get("namespace", ""), obj["metadata"]["name"]): plain(obj) for obj in made
    }
    assert len(keyed) == len(made)
    assert keyed == installed(values)


def schema() -> dict[str, Any]:
    return json.loads(CHART["values.schema.json"])


WRONG = [
    {"image": ""},
    {"publicURL": "https://m"},
    {"publicUrl": "m.example.org"},
    {"publicUrl": "https://a,https://b"},
    {"workspaceUrl": "https://apps.example.org"},
    {"replicas": {"server": 0}},
    {"replicas": {"scheduler": 1}},
    {"resources": {"server": {"memory": "1Gi"}}},
    {"imagePullSecrets": [{"name": "x"}]},
]


@pytest.mark.parametrize("wrong", WRONG, ids=json.dumps)
def test_wrong_values_are_refused_by_the_schema(wrong):
    values = yaml.safe_load(CHART["values.yaml"])
    jsonschema_rs.validate(schema(), values)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema(), {**values, **wrong})


@needs_helm
@pytest.mark.parametrize("wrong", WRONG, ids=json.dumps)
def test_helm_itself_refuses_wrong_values(wrong, tmp_path):
    chosen, chart = tmp_path / "values.yaml", tmp_path / "chart"
    write_tree(chart, CHART)
    chosen.write_text(yaml.safe_dump({"image": "m", **wrong}))
    result = helm("template", "moorage", str(chart), "-n", "moorage-system", "-f", str(chosen))
    assert result.returncode != 0
    assert "schema" in result.stderr


def test_what_holds_data_outlives_the_release():
    """Definitions, whose removal takes all objects of the kind; the namespace of accounts; the history volume."""
    objects = rendered(chart_values(InstallValues(image="m")))
    kept = {
        (kind, name)
        for (kind, _, name), obj in objects.items()
        if (obj["metadata"].get("annotations") or {}).get("helm.sh/resource-policy") == "keep"
    }
    definitions = {(kind, name) for kind, _, name in objects if kind == "CustomResourceDefinition"}
    assert len(definitions) > 5
    assert kept == definitions | {("Namespace", "moorage-users"), ("PersistentVolumeClaim", "moorage-usage")}


def test_the_chart_says_what_it_is():
    """https://helm.sh/docs/topics/charts/#the-chartyaml-file"""
    from moorage import __version__

    chart = yaml.safe_load(CHART["Chart.yaml"])
    assert (chart["apiVersion"], chart["name"], chart["type"]) == ("v2", "moorage", "application")
    assert chart["version"] == chart["appVersion"] == __version__
    assert {path.partition("/")[0] for path in CHART} == {
        "Chart.yaml",
        "values.yaml",
        "values.schema.json",
        "templates",
    }


@pytest.mark.parametrize(
    "text",
    [
        '{{ include "x" . }}',
        "{{ .Values.nothing }}",
        "{{ .Release.Name }}",
        "{{- if .Values.a }}",
        "{{ lookup 1 2 }}",
    ],
)
def test_a_template_with_other_words_is_refused(text):
    with pytest.raises(TemplateError):
        render(text, {"a": True})
