"""The tree: every room stands in the contracts, rooms import downwards only, and no two files import each other.

import-linter holds the contracts (`make lint`); this holds that they are whole. The graph here is of every import
statement, also those inside functions and for types alone.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
SRC = ROOT / "packages/moorage/src/moorage"
PACKAGES = {path.name: path for path in ROOT.glob("packages/*/src/moorage*") if path.name != "moorage_testing"}
MAY_IMPORT = {
    "moorage_kube": set(),
    "moorage_local": {"moorage_kube"},
    "moorage": {"moorage_kube"},
    "moorage_workflows": {"moorage", "moorage_kube"},
}
IO = {"aiohttp", "asyncio", "logging", "psycopg", "socket", "sqlite3", "ssl", "subprocess", "threading", "time"}


def _linter() -> Mapping[str, Any]:
    settings: Mapping[str, Mapping[str, Any]] = tomllib.loads((SRC.parents[1] / "pyproject.toml").read_text())[
        "tool"
    ]
    return settings["importlinter"]


def _contract(name: str) -> Mapping[str, Any]:
    (found,) = (contract for contract in _linter()["contracts"] if contract["name"] == name)
    return found


def _rooms() -> set[str]:
    """Packages and modules right under `moorage`."""
    folders = {path.parent.name for path in SRC.glob("*/__init__.py")}
    return folders | {path.stem for path in SRC.glob("*.py") if path.stem != "__init__"}


def _module(path: Path, root: Path, package: str) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join((package, *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imports_of(trees: Mapping[Path, ast.Module], packages: Mapping[str, Path]) -> dict[str, set[str]]:
    """Module → what it imports: modules of the packages by their whole name, others by their first word."""
    files = {
        _module(path, root, package): path
        for package, root in packages.items()
        for path in trees
        if root in path.parents
    }
    return {name: set(_imported(name, path, trees[path], files)) for name, path in files.items()}


def _imported(name: str, path: Path, tree: ast.Module, files: Mapping[str, Path]) -> Iterator[str]:
    for node in _statements(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
                base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])
            for alias in node.names:
                names.append(f"{base}.{alias.name}" if f"{base}.{alias.name}" in files else base)
        for imported in names:
            if imported != name:
                yield imported if imported in files else imported.split(".")[0]


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements within: a tenth of all nodes of the tree."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from _statements(child)


def circles_of(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, in whatever number of steps."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        known: set[str] = set()
        todo = [start]
        while todo:
            for imported in graph.get(todo.pop(), ()):
                if imported in graph and imported not in known:
                    known.add(imported)
                    todo.append(imported)
        reach[start] = known
    groups = {frozenset({one} | {other for other in reach[one] if one in reach[other]}) for one in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def test_every_room_stands_in_the_layers_each_on_one_line() -> None:
    contract = _contract("layers")
    layers = [layer.split(" | ") for layer in contract["layers"]]
    named = [room for layer in layers for room in layer]
    assert contract["exhaustive"] is True
    assert sorted(named) == sorted(_rooms())
    assert not [layer for layer in contract["layers"] if ":" in layer]


def test_the_contracts_ignore_no_import() -> None:
    assert not [name for contract in _linter()["contracts"] if (name := contract.get("ignore_imports"))]


@pytest.fixture(scope="module")
def graph(source_trees: Mapping[Path, ast.Module]) -> dict[str, set[str]]:
    return imports_of(source_trees, PACKAGES)


@pytest.mark.xdist_group("source")
def test_packages_import_each_other_as_they_may(graph: dict[str, set[str]]) -> None:
    found = {
        (module.split(".")[0], imported.split(".")[0])
        for module, names in graph.items()
        for imported in names
        if imported.startswith("moorage")
    }
    ours = {(package, other) for package, others in MAY_IMPORT.items() for other in (package, *others)}
    assert set(PACKAGES) == set(MAY_IMPORT)
    assert found == ours


@pytest.mark.xdist_group("source")
def test_no_two_files_import_each_other(graph: dict[str, set[str]]) -> None:
    assert circles_of(graph) == []


@pytest.mark.xdist_group("source")
def test_the_model_reaches_no_room_with_input_or_output(graph: dict[str, set[str]]) -> None:
    known: set[str] = set()
    todo = [module for module in graph if module.startswith("moorage.model")]
    while todo:
        module = todo.pop()
        if module not in known and module != "moorage_kube.clock":  # for its pure half: `moorage_kube.moments`
            known.add(module)
            todo += [imported for imported in graph[module] if imported in graph]
    assert {".".join(module.split(".")[:2]) for module in known if module.startswith("moorage.")} == {
        "moorage.model"
    }
    assert not [module for module in known if module.startswith("moorage_kube.remote")]
    assert {(module, name) for module in known for name in graph[module] & IO} == set()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "__init__.py": "",
        "a.py": "def f():\n    from pkg.b import x",
        "b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg import c",
        "c/__init__.py": "from .d import y",
        "c/d.py": "import pkg.a",
        "e.py": "import pkg.a, asyncio.events",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_graph_has_imports_inside_functions_for_types_and_relative_ones(tree: Path) -> None:
    graph = imports_of({path: ast.parse(path.read_text()) for path in tree.rglob("*.py")}, {"pkg": tree})
    assert graph["pkg.a"] == {"pkg.b"}
    assert graph["pkg.c"] == {"pkg.c.d"}
    assert graph["pkg.e"] == {"pkg.a", "asyncio"}
    assert circles_of(graph) == [["pkg.a", "pkg.b", "pkg.c", "pkg.c.d"]]


@pytest.mark.xdist_group("source")
def test_tests_of_a_group_stay_on_one_worker(request: pytest.FixtureRequest) -> None:
    """Otherwise each worker builds again what a group shares. pytest-xdist 3.8.0 groups by a suffix of the id."""
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("not a worker of `--dist loadgroup`")
    assert request.node.nodeid.endswith("@source")


MIRRORED = {  # a distribution's folder of unit tests → the packages that it mirrors
    "kube": {"": "kube/src/moorage_kube"},
    "local": {"": "local/src/moorage_local"},
    "workflows": {"": "workflows/src/moorage_workflows"},
    "moorage": {"": "moorage/src/moorage", "testing": "testing/src/moorage_testing"},
}
OF_THE_WHOLE = {  # tests of no single module: of all sources, of the docs, of the benchmarks
    "kube": set(),
    "local": {"apiserver/test_with_kubectl.py"},
    "workflows": {"test_patterns.py", "actions/test_changed_meanwhile.py", "server/test_page_texts.py"},
    "moorage": {
        "actions/test_changed_meanwhile.py",
        "benchmarks/test_idle_truth.py",
        "benchmarks/test_kills.py",
        "benchmarks/test_promises.py",
        "benchmarks/test_quick_restarts.py",
        "cli/test_examples.py",
        "cli/test_forged_texts.py",
        "test_docs.py",
        "test_documents_from_outside.py",
        "test_layers.py",
        "test_names.py",
        "test_odd_numbers.py",
        "test_patterns.py",
        "test_pictures.py",
        "test_sleeps_and_patches.py",
        "test_watches.py",
    },
}


@pytest.mark.parametrize("distribution", MIRRORED)
def test_a_unit_test_is_at_the_path_of_its_module(distribution):
    """`decide/cost/test_report.py` tests `decide/cost/report.py`; `test_report_prices.py` tests a part of it."""
    unit = ROOT / "packages" / distribution / "tests/unit"
    misplaced = {
        str(test.relative_to(unit))
        for test in unit.rglob("test_*.py")
        if not any(
            _tests_of(test, unit / folder, ROOT / "packages" / src)
            for folder, src in MIRRORED[distribution].items()
        )
    }
    assert misplaced == OF_THE_WHOLE[distribution]


def _tests_of(test: Path, unit: Path, src: Path) -> bool:
    """Whether a module or package of `src`, in the folder of this test, has the name of the test or begins it."""
    if unit not in test.parents:
        return False
    folder = src / test.parent.relative_to(unit)
    modules = {path.stem.strip("_") for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    name = test.stem.removeprefix("test_")
    return any(name == module or name.startswith(f"{module}_") for module in modules)
