"""Which unit tests a change affects."""

from __future__ import annotations

import pytest

from moorage_testing.affected import ALWAYS, REPOSITORY, Tree, count, read_tree, references, report, select, spread

SRC, TESTS = "packages/moorage/src/moorage", "packages/moorage/tests"
KUBE, KUBE_TESTS = "packages/kube/src/moorage_kube", "packages/kube/tests/unit"
IMPORTS = {
    f"{KUBE}/clock.py": (),
    f"{SRC}/model/jobs.py": (f"{KUBE}/clock.py",),
    f"{SRC}/server/app.py": (f"{SRC}/model/jobs.py",),
    f"{SRC}/server/pages/jobs.py": (),
    f"{SRC}/cli/run.py": (),
    f"{SRC}/cli/main.py": (f"{SRC}/cli/run.py",),
    "benchmarks/scale.py": (),
    f"{TESTS}/unit/cli/conftest.py": (f"{SRC}/cli/main.py",),
    f"{TESTS}/unit/cli/test_options.py": (f"{TESTS}/unit/cli/conftest.py",),
    f"{TESTS}/unit/model/test_jobs.py": (f"{SRC}/model/jobs.py",),
    f"{TESTS}/unit/server/test_server_jobs.py": (f"{SRC}/server/app.py",),
    f"{TESTS}/unit/server/test_server_users.py": (f"{SRC}/server/app.py",),
    f"{KUBE_TESTS}/test_clock.py": (f"{KUBE}/clock.py",),
    f"{KUBE_TESTS}/test_jobs.py": (),
    f"{TESTS}/unit/test_names.py": (),
    f"{TESTS}/e2e/test_jobs.py": (f"{SRC}/model/jobs.py",),
}
TEXTS = {
    path: "def test_a():\n    pass\n\n\nasync def test_b():\n    pass\n"
    for path in IMPORTS
    if "/unit/" in path and "/test_" in path
}
TEXTS[f"{TESTS}/unit/model/test_jobs.py"] += 'SCALE = "scale"\nCHART = "Chart.yaml"\n'
TREE = Tree(IMPORTS, TEXTS)
NAMES = f"{TESTS}/unit/test_names.py"


def unit(*names: str) -> tuple[str, ...]:
    return tuple(f"{TESTS}/unit/{name}.py" for name in names)


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        pytest.param(
            f"{SRC}/server/app.py", unit("server/test_server_jobs", "server/test_server_users"), id="module"
        ),
        pytest.param(
            f"{SRC}/model/jobs.py",
            unit("model/test_jobs", "server/test_server_jobs", "server/test_server_users"),
            id="importers of importers come later, tests of its name first",
        ),
        pytest.param(f"{SRC}/cli/run.py", unit("cli/test_options"), id="through a conftest.py"),
        pytest.param(f"{TESTS}/unit/cli/conftest.py", unit("cli/test_options"), id="conftest.py"),
        pytest.param(f"{TESTS}/unit/model/test_jobs.py", unit("model/test_jobs"), id="test"),
        pytest.param(
            f"{SRC}/server/templates/jobs.html",
            unit("server/test_server_jobs", "server/test_server_users"),
            id="other file: modules of the nearest folder",
        ),
        pytest.param(
            f"{SRC}/model/deleted.py",
            unit("model/test_jobs", "server/test_server_jobs", "server/test_server_users"),
            id="deleted module: its folder",
        ),
        pytest.param("benchmarks/scale.py", unit("model/test_jobs"), id="benchmark: tests that mention it"),
        pytest.param("deploy/helm/Chart.yaml", unit("model/test_jobs"), id="other file: tests that mention it"),
        pytest.param("docs/index.md", (), id="a file that no test mentions"),
        pytest.param(
            "packages/kube/pyproject.toml",
            (f"{KUBE_TESTS}/test_clock.py", f"{KUBE_TESTS}/test_jobs.py"),
            id="settings of a package",
        ),
        pytest.param("uv.lock", tuple(sorted(TEXTS.keys() - {NAMES})), id="dependencies: all"),
        pytest.param(f"{TESTS}/e2e/test_jobs.py", (), id="a test that is not a unit test"),
    ],
)
def test_tests_that_reach_a_change_run(changed: str, wanted: tuple[str, ...]):
    assert select([changed], TREE).files == (NAMES, *wanted)


def test_without_changes_tests_of_all_packages_run():
    selection = select([], TREE, limit=4)
    assert len(selection.files) == 4
    assert {file.split("/")[1] for file in selection.files} == {"kube", "moorage"}


def test_the_nearest_tests_are_within_the_limit():
    selection = select([f"{SRC}/model/jobs.py"], TREE, limit=3)
    assert selection.files == (NAMES, *unit("model/test_jobs", "server/test_server_jobs"))
    assert selection.affected == 3


def test_what_exceeds_the_limit_is_taken_from_all_over():
    assert spread(range(10), 4) == [0, 2, 5, 7]
    assert spread(range(3), 4) == [0, 1, 2]
    assert spread(range(3), 0) == []


def test_a_table_of_references_imports_what_it_names():
    texts = {
        f"{SRC}/cli/commands.py": '("run", "moorage.cli.run:run"), "moorage.cli.absent:x", "moorage.cli.run"',
        f"{SRC}/cli/run.py": "",
        f"{SRC}/server/budgets/__init__.py": 'FEATURE = Feature(parts="moorage.cli.run:parts")',
        f"{TESTS}/unit/test_names.py": '"moorage.server.budgets:FEATURE"',
    }
    assert references(texts) == {
        f"{SRC}/cli/commands.py": {f"{SRC}/cli/run.py"},
        f"{SRC}/cli/run.py": set(),
        f"{SRC}/server/budgets/__init__.py": {f"{SRC}/cli/run.py"},
        f"{TESTS}/unit/test_names.py": {f"{SRC}/server/budgets/__init__.py"},
    }


def test_the_report_counts_what_runs_and_what_does_not():
    changed = [f"{SRC}/cli/run.py", f"{TESTS}/e2e/test_jobs.py"]
    selection = select(changed[:1], TREE)
    assert count(TEXTS, selection.files) == 4
    assert list(report(selection, TREE, changed, "since 012345678")) == [
        "quick: 2 files changed since 012345678; they affect 1 of 7 test files",
        "quick: runs 2 test files with 4 tests",
        "quick: leaves out 5 files with 10 tests: make unit runs them, make test runs all",
        f"quick: does not run 1 changed files of other tests, such as {TESTS}/e2e/test_jobs.py",
    ]


def test_the_imports_of_the_repository_are_read():
    tree = read_tree()
    assert set(ALWAYS) <= tree.tests.keys()
    assert len(tree.tests) > 400
    this = f"{TESTS}/unit/testing/test_affected.py"
    assert "packages/testing/src/moorage_testing/affected.py" in tree.imports[this]
    assert f"{SRC}/cli/map.py" in tree.imports[f"{SRC}/cli/commands.py"]
    shared = {
        file for file in tree.imports if file.startswith("packages/workflows/tests/") and file.count("/") == 3
    }
    assert shared & {name for imported in tree.imports.values() for name in imported}
    assert f"{TESTS}/unit/cli/test_map.py" in select([f"{SRC}/cli/map.py"], tree).files
    assert all((REPOSITORY / test).is_file() for test in tree.tests)
