"""The docs say what the code does: generated pages are fresh, links lead somewhere, commands exist."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import click
import grimp
import pytest

from moorage.cli.commands import COMMANDS, load
from moorage.decide.runs.runfile import parse_run_file
from moorage.model.crds import KINDS
from moorage.model.info import PAUSE_IMAGE
from moorage.model.workspace import BUILT_IN
from moorage_kube.yamldocuments import parse_yaml
from moorage_testing.reference import pages as reference
from moorage_testing.reference.kinds import fields_of
from moorage_testing.translations import translations

ROOT = Path(__file__).parents[4]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])


@pytest.mark.parametrize("name", reference.PAGES)
def test_a_generated_page_is_what_its_source_gives(name):
    page = ROOT / "docs" / "reference" / name
    assert page.read_text() == reference.PAGES[name](), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_docs_leads_somewhere(page):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    missing = [one for one in targets if "://" not in one and not (page.parent / one).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_in_the_docs_exists(page):
    """Each `moor NAME --option …`, in running text and in blocks, is one that the command takes."""
    known = {name: target for _, name, target, _ in COMMANDS}
    wrong = []
    for name, rest in re.findall(r"(?m)(?:^|[`\s])moor ([a-z-]+)((?:(?! -- )[^`\n#;])*)", page.read_text()):
        if name not in known:
            wrong.append(f"moor {name}")
            continue
        command = load(known[name])
        options = {
            option
            for one in _commands(command)
            for param in one.params
            for option in (*param.opts, *param.secondary_opts)
        }
        wrong += [
            f"moor {name} {one}" for one in re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest) if one not in options
        ]
    assert [one for one in wrong if not one.endswith(" --help")] == []


def _commands(command):
    yield command
    for one in getattr(command, "commands", {}).values():
        yield from _commands(one)


TYPED = {  # by a test that runs the commands and compares what they print
    "docs/tutorial/first-training.md": "test_demo.py",
    "docs/tutorial/first-day-as-a-member.md": "test_member_first_day.py",
    "docs/howto/bring-your-packages.md": "test_packages_as_typed.py",
    "docs/howto/map-many-items.md": "test_packages_as_typed.py",
}
NOT_TYPED = {  # other programs in blocks, and why no test types them; their `moor` commands are parsed
    ".": "the shell",
    "cd": "the shell",
    "export": "the shell",
    "make": "test_make_help_lists_every_target",
    "docker": "test_docker_as_typed.py",
    "kubectl": "a cluster with the objects of the page",
    "helm": "a cluster with the objects of the page",
    "pip": "a package index",
    "python": "a program of the user",
    "python3": "a program of the user",
}
TYPED_PAGES = [ROOT / "README.md", *sorted([*ROOT.glob("docs/tutorial/*.md"), *ROOT.glob("docs/howto/*.md")])]


@pytest.mark.parametrize("page", TYPED_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_block_is_typed_by_a_test_or_parsed_or_named_with_the_reason(page):
    name = str(page.relative_to(ROOT))
    if name in TYPED:
        assert page.name in (ROOT / "packages/moorage/tests/e2e" / TYPED[name]).read_text()
    problems = []
    for language, text in _code(page.read_text()):
        for line in text.replace("\\\n", " ").splitlines():
            program, _, rest = line.strip().removeprefix("$ ").partition(" ")
            if program == "moor" and re.match("[a-z]", rest):
                problems += [f"moor {rest}: {problem}" for problem in _problems_of_command(rest)]
            elif language in ("sh", "shell", "bash") and program and program not in NOT_TYPED:
                problems += [] if program.startswith("#") or name in TYPED else [f"{program}: add it to NOT_TYPED"]
    assert problems == []


def _code(text):
    """The language and text of each block, fenced or indented, also in lists."""
    blocks = r"(?m)^ *```(\w*)\n((?:.*\n)*?) *```$|((?:^ {4}.*\n(?:\n(?= {4}))?)+)"
    for language, fenced, indented in re.findall(blocks, text):
        yield language, fenced or indented


def _problems_of_command(text):
    """The errors of the arguments of a command of `moor`, up to a pipe or the next command."""
    words = shlex.shlex(text, posix=True, punctuation_chars="|&;<>")
    words.whitespace_split = True
    name, *args = itertools.takewhile(lambda word: not set(word) <= set("|&;<>"), words)
    command, context = load({name: target for _, name, target, _ in COMMANDS}[name]), None
    try:
        context = command.make_context(name, args)
        while isinstance(command, click.Group) and (rest := [*context._protected_args, *context.args]):
            name, command, args = command.resolve_command(context, rest)
            context = command.make_context(name, args, parent=context)
    except click.exceptions.Exit:  # --help
        pass
    except click.ClickException as error:
        if "does not exist" not in error.message:  # a file of the reader
            yield error.message


def test_make_help_lists_every_target():
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    assert phony
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in phony[1].split():
        assert f"make {target}" in shown


def test_the_architecture_page_names_every_room_in_the_order_of_the_layers():
    settings = tomllib.loads((ROOT / "packages/moorage/pyproject.toml").read_text())
    [layers] = [one for one in settings["tool"]["importlinter"]["contracts"] if one["name"] == "layers"]
    rooms = [room for layer in layers["layers"] for room in layer.split(" | ")]
    named = re.findall(
        r"^\| `packages/moorage/src/moorage/([a-z]+)(?:\.py)?` \|",
        (ROOT / "ARCHITECTURE.md").read_text(),
        re.MULTILINE,
    )
    assert named == rooms  # import-linter holds the layers to the tree


FOR_CONTRIBUTORS = [
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/contributing/*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_of_the_tree_that_a_page_names_exists(page):
    paths = re.findall(r"(?<![\w/.-])(?:packages|docs|examples|benchmarks|deploy)/[\w./+-]*\w", page.read_text())
    assert paths or page not in FOR_CONTRIBUTORS
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", FOR_CONTRIBUTORS, ids=lambda page: page.name)
def test_a_page_for_contributors_names_what_is_in_the_file(page):
    """`NAME` in `FILE` is somewhere in that file; so are a decorator and a field."""
    named = re.findall(r"`([^`\n]+)`\s+(?:in|of)\s+`(packages/[\w./-]+\.\w+)`", page.read_text())
    wrong = [f"{name}: {file}" for name, file in named if name not in (ROOT / file).read_text()]
    assert wrong == []


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/contributing/*.md")), ids=lambda page: page.name)
def test_a_checklist_is_short(page):
    assert len(page.read_text().splitlines()) <= 60


NAMES = {"kube": "moorage_kube", "local": "moorage_local"}


def test_every_arrow_of_the_map_of_rooms_is_an_import():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = page.split("## Rooms")[1]
    arrows = re.findall(r"^    (\w+)(?:\[\w+\])? --> (\w+)(?:\[\w+\])?$", rooms, re.MULTILINE)
    assert len(arrows) > 10
    graph = grimp.build_graph("moorage", "moorage_kube", "moorage_local", cache_dir=None)
    missing = [
        f"{importer} --> {imported}"
        for importer, imported in arrows
        if not graph.direct_import_exists(
            importer=NAMES.get(importer, f"moorage.{importer}"),
            imported=NAMES.get(imported, f"moorage.{imported}"),
            as_packages=True,
        )
    ]
    assert missing == []


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.resource.kind)
def test_every_field_of_our_kinds_has_a_description(kind):
    assert [path for path, schema, _ in fields_of(kind.struct) if not schema.get("description")] == []


def test_every_target_that_contributing_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:`|^    )make ([a-z][a-z-]*)", (ROOT / "CONTRIBUTING.md").read_text(), re.M))
    assert named - targets == set()
    assert {"setup", "quick", "test", "test-all", "explore"} <= named


def test_the_index_links_to_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    linked = set(re.findall(r"\]\(([^)#:]+)\)", index))
    pages = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")} - {"README.md"}
    assert linked == pages  # ja/README.md too: it has the links to the translations


def test_the_design_notes_are_numbered_without_gaps():
    notes = sorted((ROOT / "docs" / "design").glob("*.md"))
    numbers = [int(note.name.split("-")[0]) for note in notes]
    assert numbers == list(range(numbers[0], numbers[0] + len(notes)))
    assert [note.name for note in notes if not note.read_text().startswith(f"# {note.name[:4]}: ")] == []


LACKING = {  # parts of the template that a note of before the template does not have
    "0001": {"Non-goals", "Tests", "Alternatives"},
    "0002": {"Motivation", "Non-goals", "Tests"},
    "0003": {"Non-goals"},
    "0004": {"Tests", "Alternatives"},
    "0005": {"Tests"},
    "0007": {"Non-goals"},
    "0008": {"Tests"},
    "0009": {"Tests"},
    "0010": {"Non-goals", "Tests", "Alternatives"},
    "0011": {"Tests"},
    "0013": {"Non-goals", "Tests"},
    "0014": {"Non-goals"},
    "0015": {"Non-goals"},
    "0016": {"Non-goals", "Tests"},
    "0017": {"Non-goals", "Tests", "Alternatives"},
    "0018": {"Non-goals"},
    "0019": {"Non-goals", "Tests"},
}


@pytest.mark.parametrize("note", sorted((ROOT / "docs" / "design").glob("*.md")), ids=lambda note: note.name[:4])
def test_a_design_note_has_the_parts_of_the_template(note):
    def parts(page: Path) -> list[str]:
        return re.findall(r"^## (.+)$", page.read_text(), re.MULTILINE)

    template = parts(ROOT / "docs/design/0000-template.md")
    assert set(template) - set(parts(note)) == LACKING.get(note.name[:4], set())


def test_every_design_note_that_a_file_names_exists():
    """By its full path, or by its number: `docs/design/0005-map.md`, `docs/design/0005`."""
    names = {f"docs/design/{note.stem}" for note in (ROOT / "docs" / "design").glob("*.md")}
    known = names | {name[: len("docs/design/0005")] for name in names}
    files = [*ROOT.glob("packages/**/*.py"), *ROOT.glob("packages/*/pyproject.toml"), *PAGES]
    wrong = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in files
        for name in re.findall(r"docs/design/\d{4}(?:-[a-z-]*[a-z])?", file.read_text())
        if name not in known
    }
    assert wrong == set()


def test_the_page_without_internet_names_every_image_that_we_name():
    page = (ROOT / "docs" / "howto" / "install-air-gapped.md").read_text()
    assert [image for image in (PAUSE_IMAGE, *(app.image for app in BUILT_IN.values())) if image not in page] == []


def test_no_page_links_out_of_the_docs():
    """The site is built from docs/ alone."""
    wrong = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in ROOT.glob("docs/**/*.md")
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if "://" not in target and not (page.parent / target).resolve().is_relative_to(ROOT / "docs")
    ]
    assert wrong == []


def test_the_glossary_is_in_order_and_its_links_lead_somewhere():
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text()
    anchors = re.findall(r'<a id="([a-z-]+)">', text)
    assert anchors == sorted(anchors)
    assert set(re.findall(r"\]\(#([a-z-]+)\)", text)) - set(anchors) == set()


TRANSLATIONS = translations(ROOT)


@pytest.mark.parametrize("translation", TRANSLATIONS, ids=lambda each: str(each.path.relative_to(ROOT)))
def test_a_translation_has_the_commands_headings_links_and_pictures_of_its_page(translation):
    def shape(page: Path) -> dict[str, object]:
        text = page.read_text()
        blocks = [line.split("  #")[0].rstrip() for line in text.splitlines() if line.startswith("    ")]
        links = [
            target.partition("#")
            for target in re.findall(r"\]\(([^)]+)\)", text)
            if not target.startswith("README")
        ]
        return {
            "headings": [len(marks) for marks in re.findall(r"^(#+) ", text, re.MULTILINE)],
            "commands": blocks,
            "fenced": re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL),
            "links": [((page.parent / file).resolve(), anchor) for file, _, anchor in links],
            "code": sorted(re.findall(r"`[^`\n]+`", text)),
            "rows": len(re.findall(r"^\|", text, re.MULTILINE)),
        }

    translated = {each.path: each.page for each in TRANSLATIONS}
    want = shape(translation.page)
    got = shape(translation.path)
    links = [(translated.get(file, file), anchor) for file, anchor in got["links"]]
    assert {**got, "links": links} == want


def test_a_translation_is_as_new_as_its_page_or_says_that_it_is_older():
    older = [str(each.path.relative_to(ROOT)) for each in TRANSLATIONS if each.is_older and not each.has_notice]
    assert older == [], "see the first lines of moorage_testing/translations.py"


@pytest.mark.parametrize(
    "picture", sorted((ROOT / "docs" / "pictures").glob("*.[sp][vn]g")), ids=lambda path: path.name
)
def test_a_picture_is_small(picture):
    assert picture.stat().st_size < 400_000


def test_every_bullet_of_the_changelog_has_at_most_ten_words():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    bullets = re.findall(r"^- (.+(?:\n  .+)*)", changelog, re.MULTILINE)
    assert bullets
    assert [bullet for bullet in bullets if len(bullet.split()) > 10] == []


@pytest.mark.parametrize("page", ["run-again.md", "migrate-from-slurm.md"])
def test_the_file_of_a_run_in_the_docs_is_read(page):
    text = (ROOT / "docs" / "howto" / page).read_text()
    [document] = re.findall(r"^```yaml\n(.+?)^```$", text, re.MULTILINE | re.DOTALL)
    assert parse_run_file(parse_yaml(document.encode()))["gpu_type"] == "a100"
