"""Choose the unit tests that a change affects, and run them: the tests of `make quick`.

    python -m moorage_testing.affected [--list] [--most] [OPTION OF PYTEST …]

A change is all that differs from the commit where the branch left main. On main itself, with nothing changed, it
is the last commit. Ruff lists the imports. Tests that import a changed module come first, then tests that reach it
through other modules, up to `LIMIT` test files. The tests of the whole tree in `ALWAYS` run each time.

`--list` prints the files and runs none. `--most` runs as many as there ever are: all dependencies have changed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

REPOSITORY = Path(__file__).parents[4]
RUFF = str(Path(sys.executable).with_name("ruff"))
ROOTS = (
    *(f"packages/{name}/src" for name in ("kube", "local", "moorage", "testing", "workflows")),
    *(f"packages/{name}" for name in ("kube", "local", "moorage", "workflows")),
)
WHOLE_TREE = "packages/moorage/tests/unit"
ALWAYS = tuple(f"{WHOLE_TREE}/test_{name}.py" for name in ("docs", "layers", "names"))
LIMIT = 140  # test files: they take some 85 s of CPU, when taken from all packages
# A change of these affects each test.
SHARED = (
    "pyproject.toml",
    "uv.lock",
    "packages/kube/src/moorage_kube/testing/plugin.py",
    "packages/testing/src/moorage_testing/plugin.py",
)
REFERENCE = re.compile(r'"(moorage\w*(?:\.\w+)+):\w+"')

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Tree:
    """Paths are relative to the repository, with `/`. `imports`: Python file → files that it imports or names.

    `tests`: each file of unit tests → its text.
    """

    imports: Mapping[str, Collection[str]]
    tests: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Selection:
    """`files`: what to run, nearest first. `affected`: how many test files the change affects."""

    files: tuple[str, ...]
    affected: int


def spread(values: Sequence[T], count: int) -> list[T]:
    """At most `count` of the values, at equal distances."""
    if len(values) <= count:
        return list(values)
    return [values[index * len(values) // count] for index in range(count)]


def parents(path: str) -> Iterator[str]:
    return (str(folder) for folder in PurePosixPath(path).parents)


def start(file: str, tree: Tree) -> set[str]:
    """The Python files that stand for a changed file.

    - A Python file stands for itself, and for the tests that have its name in theirs.
    - Each other file has the tests that mention its name. In a package it also has the Python files of its folder,
      or of the nearest folder above.
    - A file in `SHARED` has all tests; the pyproject.toml of a package has all tests of the package.
    """
    path = PurePosixPath(file)
    package = "/".join(path.parts[:2]) + "/" if path.parts[0] == "packages" else "/"
    if file in SHARED:
        return set(tree.tests)
    if path.name == "pyproject.toml":
        return {test for test in tree.tests if test.startswith(package)}
    if file in tree.imports and package != "/":
        name = f"_{path.stem}_"
        return {file} | {
            test for test in tree.tests if test.startswith(package) and name in f"{PurePosixPath(test).stem}_"
        }
    mention = re.compile(rf"\b{re.escape(path.stem if path.suffix == '.py' else path.name)}\b")
    starts = {test for test, text in tree.tests.items() if mention.search(text)}
    for folder in parents(file):
        neighbours = {module for module in tree.imports if str(PurePosixPath(module).parent) == folder}
        if neighbours and folder.startswith(package):
            return starts | neighbours
    return starts


def distances(starts: Collection[str], tree: Tree) -> dict[str, int]:
    """File → by how many imports it reaches one of the starts; files that reach none are left out."""
    importers: dict[str, list[str]] = {}
    for file, imported in tree.imports.items():
        for name in imported:
            importers.setdefault(name, []).append(file)
    reached = dict.fromkeys(starts, 0)
    layer = list(starts)
    while layer:
        following = []
        for file in layer:
            for importer in importers.get(file, ()):
                if importer not in reached:
                    reached[importer] = reached[file] + 1
                    following.append(importer)
        layer = following
    return reached


def select(changed: Collection[str], tree: Tree, limit: int = LIMIT) -> Selection:
    """The nearest tests first. Of tests at the same distance that exceed the limit, some are taken from all over.

    Without changes they are taken from all tests. It never selects nothing.
    """
    starts = {name for file in changed for name in start(file, tree)}
    reached = distances(starts, tree) if changed else dict.fromkeys(tree.tests, 0)
    layers: dict[int, list[str]] = {}
    for test in sorted(tree.tests):
        if test in reached:
            layers.setdefault(reached[test], []).append(test)
    files = [test for test in ALWAYS if test in tree.tests]
    for _, tests in sorted(layers.items()):
        more = [test for test in tests if test not in files]
        files += spread(more, limit - len(files))
    return Selection(tuple(files), sum(map(len, layers.values())))


def references(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """File → the modules that its text refers to as "module:name", as the table of commands does."""
    files = {}
    for path in texts:
        _, source, module = path.partition("/src/")
        if source:
            files[module.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = path
    return {
        path: {files[name] for name in REFERENCE.findall(text) if name in files} - {path}
        for path, text in texts.items()
    }


def read_tree() -> Tree:
    configuration = f"src = {json.dumps(ROOTS)}"
    command = [
        RUFF,
        "analyze",
        "graph",
        "--quiet",
        "--config",
        configuration,
        "packages",
        "benchmarks",
        "examples",
    ]
    printed = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True).stdout
    imports = {path: set(imported) for path, imported in json.loads(printed).items()}
    texts = {path: (REPOSITORY / path).read_text(encoding="utf-8") for path in imports}
    for path, named in references(texts).items():
        imports[path] |= named
    for path in imports:
        if "/tests/" in path:
            imports[path] |= {f"{folder}/conftest.py" for folder in parents(path)} & imports.keys() - {path}
    tests = {
        path: text
        for path, text in texts.items()
        if "/tests/unit/" in path and PurePosixPath(path).name.startswith("test_")
    }
    return Tree(imports, tests)


def git(*arguments: str) -> list[str]:
    """The lines that git prints; raises CalledProcessError."""
    command = ["git", "-c", "core.quotePath=false", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.splitlines()


def succeeds(*arguments: str) -> list[str]:
    try:
        return git(*arguments)
    except subprocess.CalledProcessError:
        return []


def changes() -> tuple[str, list[str]]:
    """What they are counted from, and the changed files, new and deleted ones too.

    Raises CalledProcessError or FileNotFoundError where there is no repository of git.
    """
    head = git("rev-parse", "HEAD")
    since = next(filter(None, (succeeds("merge-base", "HEAD", main) for main in ("main", "origin/main"))), head)
    files = git("diff", "--name-only", "--no-renames", *since) + git("ls-files", "--others", "--exclude-standard")
    if files:
        return f"since {since[0][:9]}", files
    return "in the last commit", succeeds("diff", "--name-only", "--no-renames", "HEAD~1", "HEAD")


def count(tests: Mapping[str, str], files: Collection[str]) -> int:
    """Test functions in these files; each may have many cases."""
    return sum(len(re.findall(r"^(?:async )?def test_", tests[file], re.MULTILINE)) for file in files)


def report(selection: Selection, tree: Tree, changed: Sequence[str], since: str) -> Iterator[str]:
    tests = tree.tests
    left_out = tests.keys() - set(selection.files)
    runs, rest = count(tests, selection.files), count(tests, left_out)
    affected = f"{selection.affected} of {len(tests)} test files"
    yield f"quick: {len(changed)} files changed {since}; they affect {affected}"
    yield f"quick: runs {len(selection.files)} test files with {runs} tests"
    yield f"quick: leaves out {len(left_out)} files with {rest} tests: make unit runs them, make test runs all"
    others = [file for file in changed if "/tests/" in file and "/unit/" not in file and "/test_" in file]
    if others:
        yield f"quick: does not run {len(others)} changed files of other tests, such as {others[0]}"


def main() -> None:
    options = {"--list", "--most"} & set(sys.argv)
    arguments = [argument for argument in sys.argv[1:] if argument not in options]
    try:
        since, changed = changes() if "--most" not in options else ("as an example", ["uv.lock"])
    except (OSError, subprocess.CalledProcessError):
        print("quick: git cannot list the changes in this folder; it runs some tests of all packages", flush=True)
        since, changed = "that git lists", []
    tree = read_tree()
    selection = select(changed, tree)
    for line in report(selection, tree, changed, since):
        print(line, flush=True)
    if "--list" in options:
        print(*selection.files, sep="\n")
        return
    command = [sys.executable, "-m", "pytest", "--dist", "loadgroup", "-m", "not processes", *arguments]
    os.chdir(REPOSITORY)
    # in the order of folders: pytest 9.1 loses the fixtures of a conftest.py whose folder comes twice
    os.execv(sys.executable, [*command, *sorted(selection.files)])


if __name__ == "__main__":
    main()
