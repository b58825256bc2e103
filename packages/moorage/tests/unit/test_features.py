"""The features that the project's files name are those that are found, and all they refer to exists."""

from __future__ import annotations

import tomllib
from pathlib import Path
from pkgutil import resolve_name

from msgspec.structs import asdict

from moorage.features import GROUP, features

ROOT = Path(__file__).parents[4]


def test_all_features_of_the_project_are_installed() -> None:
    files = [tomllib.loads(file.read_text())["project"] for file in ROOT.glob("packages/*/pyproject.toml")]
    named = [name for project in files for name in project.get("entry-points", {}).get(GROUP, ())]
    installed = [feature.name for feature in features()]
    assert installed == sorted(named), "the installed package is older than pyproject.toml: run `make setup`"


def test_each_reference_of_a_feature_leads_somewhere() -> None:
    references = [value for feature in features() for name, value in asdict(feature).items() if name != "name"]
    assert all(resolve_name(reference) for reference in references if reference)
