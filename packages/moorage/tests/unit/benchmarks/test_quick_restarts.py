"""`benchmarks/quick_restarts.py` finds all that services import."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def test_what_services_import_is_there_before_they_are_forked(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[5] / "benchmarks"))
    importlib.import_module("quick_restarts").import_services()
    assert {"moorage.server.service", "moorage_workflows.controllers.workflow.controller"} <= sys.modules.keys()
