"""The drawing of the README's terminal: valid SVG that shows every command and every line."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

MAKE = Path(__file__).parents[4] / "docs" / "pictures" / "make.py"
TEXT = "{http://www.w3.org/2000/svg}text"


@pytest.fixture(scope="module")
def make():
    spec = importlib.util.spec_from_file_location("make_pictures", MAKE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_and_line_is_drawn(make):
    scenes = [[("moor jobs", ["NAME   STATE", "a<b    Running"])], [("moor explain a", ["  2 GPUs & more", ""])]]
    texts = [one.text for one in ET.fromstring(make.animated(scenes)).iter(TEXT)]
    assert texts == [
        "moor", "jobs", "$", "NAME   STATE", "a<b    Running", "moor", "explain", "a", "$", "2 GPUs & more",
    ]  # fmt: skip


def test_a_scene_is_hidden_while_another_is_shown(make):
    drawn = make.animated([[("moor jobs", [])], [("moor gpus", [])]])
    half = f"{100 / 2:.2f}%"
    assert f"{half}{{opacity:0}}" in drawn or f"{half},100%{{opacity:0}}" in drawn


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        pytest.param("web page:   http://127.0.0.1:38211/?x", "web page:   http://127.0.0.1:8080/", id="the port"),
        pytest.param(
            "at /tmp/moor-pictures-ab_1/data/kubeconfig", "at ~/.local/share/moorage/kubeconfig", id="the folder"
        ),
        pytest.param("x" * 200, "x" * 111 + "…", id="a long line"),
    ],
)
def test_what_differs_between_machines_is_left_out(make, line, shown):
    assert make.tidy(line) == [shown]
