"""The whole REST API, asked all sorts of things by schemathesis: it never fails, and its errors have one shape.

What is asked is the same in every run, so that a run judges the change and not the dice. `make explore` asks anew
and more; what it finds becomes a case of its own (`tests/unit/server/test_inputs.py`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
import yaml

from moorage.server.rest.openapi import PREFIX
from moorage_kube.testing.examples import examples
from moorage_testing.cluster import Cluster

pytestmark = pytest.mark.cluster("scheduler", "controllers", "kubelet")


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent is answered, and not put off."""
    monkeypatch.setenv("MOORAGE_RATE_LIMIT", "0")


@pytest.fixture
def address(own_cluster: Cluster) -> tuple[str, str]:
    """(URL, token)"""
    page = urlsplit(json.loads(own_cluster.moor("status", "-o", "json").stdout)["page"])
    return f"http://{page.netloc}", token_of(own_cluster)


def token_of(cluster: Cluster) -> str:
    return str(yaml.safe_load(cluster.kubeconfig.read_text())["users"][0]["user"]["token"])


def test_every_operation_has_a_name_of_its_own(cluster: Cluster, server: str):
    described = requests.get(
        f"{server}{PREFIX}openapi.json", headers={"Authorization": f"Bearer {token_of(cluster)}"}, timeout=60
    ).json()
    operations = [operation for methods in described["paths"].values() for operation in methods.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names))


@pytest.mark.timeout(900)
def test_nothing_that_is_sent_makes_the_server_fail(address, tmp_path: Path, seed: int):
    url, token = address
    exploring = bool(os.environ.get("MOORAGE_TEST_EXPLORE"))
    usual = "100" if exploring else examples("2", full="15")
    most = os.environ.get("MOORAGE_TEST_FUZZ_EXAMPLES", usual)
    words = [
        *(sys.executable, "-m", "schemathesis.cli", "run", f"{url}{PREFIX}openapi.json"),
        *("-H", f"Authorization: Bearer {token}", "--checks", "not_a_server_error,response_schema_conformance"),
        *("--phases", "examples,coverage,fuzzing", "--max-examples", most, "--continue-on-failure"),
        *(
            "--exclude-path-regex",
            r"/api/v1/(login|work|maps/[^/]+/[^/]+/output|containers/[^/]+/(attach|wait))",
            "--request-timeout",
            "60",
        ),
        *("--suppress-health-check", "all", "--no-color", "--seed", str(seed)),
        *([] if exploring else ["--generation-deterministic"]),
    ]
    env = os.environ | {"PYTHONHASHSEED": "0"}  # the order of sets is drawn, too
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=880, check=False, env=env)
    wrong = re.split(r"(?m)^=+ (?:FAILURES|ERRORS) =+$", done.stdout, maxsplit=1)[-1]
    assert done.returncode == 0, f"seed {seed}\n{wrong[:8000]}{done.stderr[-1000:]}"
