"""Sentences of the audit log."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from moorage.api.people import AuditEntry
from moorage.present.audit import PAST, sentence

PACKAGES = Path(__file__).parents[5] / "packages"
SERVERS = (PACKAGES / "moorage/src/moorage/server", PACKAGES / "workflows/src/moorage_workflows/server")


def an_entry(method: str, path: str, what: str = "", status: int = 200, **fields: str) -> AuditEntry:
    known = {"person": "ada", "address": "10.0.0.7", "client": ""} | fields
    return AuditEntry(
        number=1, at="2026-01-31T08:00:00.000000Z", method=method, path=path, what=what, status=status, **known
    )


REST, PAGE = "by REST from 10.0.0.7", "on a page from 10.0.0.7"
STRANGERS = "7 more requests of strangers were refused; the server's log has them"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            an_entry("POST", "/api/v1/jobs/default/a1/cancel", "cancel run default/a1"),
            f"ada cancelled run default/a1, {REST}",
        ),
        (
            an_entry("POST", "/jobs/default/a1/delete", "delete run default/a1", 303),
            f"ada deleted run default/a1, {PAGE}",
        ),
        (
            an_entry("POST", "/v1.41/containers/c1/start", status=204, address=""),
            "ada started container c1, by Docker",
        ),
        (an_entry("DELETE", "/api/v1/containers/c1"), f"ada deleted container c1, {REST}"),
        (an_entry("POST", "/api/v1/login", status=201), f"ada logged in, {REST}"),
        (
            an_entry("POST", "/login", status=401, person=""),
            f"somebody unknown tried to log in: failed (401), {PAGE}",
        ),
        (
            an_entry("DELETE", "/api/v1/volumes/default/v", "delete volume default/v", 403),
            f"ada may not delete volume default/v: refused (403), {REST}",
        ),
        (
            an_entry("POST", "/api/v1/jobs", "start run default/a1", 409),
            f"ada tried to start run default/a1: failed (409), {REST}",
        ),
        (
            an_entry("PATCH", "/api/v1/maps/default/squares"),
            f"ada changed map default/squares, {REST}",
        ),
        (
            an_entry("POST", "/api/v1/maps/default/squares/items", status=403),
            f"ada may not add items to map default/squares: refused (403), {REST}",
        ),
        (an_entry("PUT", "/odd"), f"ada sent PUT /odd, {PAGE}"),
        (an_entry("POST", "/odd", "juggle x"), f"ada did this: juggle x, {PAGE}"),
        (
            an_entry(
                "update", "/apis/batch/v1/namespaces/t/jobs/a1", "cancel run t/a1", address="", client="moor"
            ),
            "ada cancelled run t/a1, by moor",
        ),
        (
            an_entry("delete", "/api/v1/namespaces/t/pods/p", "delete pod t/p", address=""),
            "ada deleted pod t/p, through the Kubernetes API",
        ),
        (
            an_entry("create", "/api/v1/namespaces/t/pods/p", "create pod t/p", 422, address="", client="kubectl"),
            "ada tried to create pod t/p: refused by a guardrail (422), by kubectl",
        ),
        (
            an_entry("", "", STRANGERS, 0, person=""),
            STRANGERS,
        ),
    ],
)
def test_an_entry_is_a_sentence(entry, expected):
    assert sentence(entry) == expected


def test_each_action_that_the_server_names_has_a_past():
    verbs = set()
    for path in (file for server in SERVERS for file in server.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") != "audit":
                continue
            for argument in node.args:
                for leaf in ast.walk(argument) if not isinstance(argument, ast.JoinedStr) else ():
                    if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str):
                        verbs.add(leaf.value.split(" ")[0])
    verbs -= {"a", "audit"}  # `audit("take", "a token for the cluster")`: the object
    assert len(verbs) > 10
    assert verbs <= set(PAST), "name the past of each action in moorage.present.audit.PAST"
