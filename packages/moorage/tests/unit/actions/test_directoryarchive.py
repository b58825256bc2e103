"""Packing a directory for a pod."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.actions.directoryarchive import Ignore, pack
from moorage.decide.runs.job import ARCHIVE_LIMIT_BYTES
from moorage_kube.errors import UsageError


def names_in(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.getnames()


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def test_what_belongs_to_tools_stays_behind(tmp_path):
    write(
        tmp_path,
        "train.py",
        "pkg/a.py",
        "pkg/__pycache__/a.pyc",
        ".git/config",
        ".venv/bin/python",
        "node_modules/x/y.js",
    )
    assert names_in(pack(tmp_path).archive) == ["pkg/a.py", "train.py"]


def test_credentials_stay_behind_by_name_by_content_and_through_a_link(tmp_path):
    here = tmp_path / "project"
    write(here, "train.py", ".env", ".aws/credentials", "sub/.netrc", "id_rsa.pub")
    write(tmp_path, "home/.ssh/work")
    (here / "data.bin").write_bytes(b"\0-----BEGIN PRIVATE KEY-----")
    (here / "settings.py").write_text("TOKEN = 'hf_" + "x1" * 17 + "'")
    (here / "innocent").symlink_to(tmp_path / "home/.ssh/work")
    sent = pack(here)
    assert names_in(sent.archive) == ["data.bin", "id_rsa.pub", "train.py"]
    assert sent.credentials == {
        ".aws/": "credentials",
        ".env": "credentials",
        "innocent": "credentials",
        "settings.py": "a token of Hugging Face",
        "sub/.netrc": "credentials",
    }


def test_a_line_of_the_ignore_file_sends_a_credential_on_purpose(tmp_path):
    write(tmp_path, ".env", "a/.netrc", "b/.netrc")
    (tmp_path / "key.txt").write_text("-----BEGIN PRIVATE KEY-----")
    (tmp_path / ".moorageignore").write_text("!.env\n!/a/.netrc\n!key.txt\n")
    sent = pack(tmp_path)
    assert names_in(sent.archive) == [".env", ".moorageignore", "a/.netrc", "key.txt"]
    assert sent.credentials == {"b/.netrc": "credentials"}


def test_what_is_ignored_anyway_is_not_reported(tmp_path):
    write(tmp_path, "train.py", ".env")
    (tmp_path / ".moorageignore").write_text(".env\n")
    assert pack(tmp_path).credentials == {}


@pytest.mark.parametrize("folder", ["home", "home/..", "link", "home/.ssh", "home/.config/gcloud/x"])
def test_a_home_folder_what_holds_it_and_folders_of_credentials_are_refused(tmp_path, monkeypatch, folder):
    write(tmp_path, "home/.ssh/id", "home/.config/gcloud/x/y", "home/project/a.py")
    (tmp_path / "link").symlink_to(tmp_path / "home")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert names_in(pack(tmp_path / "home/project").archive) == ["a.py"]
    with pytest.raises(UsageError, match="cannot send the folder") as error:
        pack(tmp_path / folder)
    assert error.value.hint


def test_the_ignore_file_leaves_out_and_takes_back(tmp_path):
    write(tmp_path, "train.py", "data/a.csv", "data/keep.csv", "out/1.log", "sub/out/2.log", "notes.txt")
    (tmp_path / ".moorageignore").write_text("# comment\n\n*.csv\n!data/keep.csv\n/out/\nnotes.txt\n")
    assert names_in(pack(tmp_path).archive) == [".moorageignore", "data/keep.csv", "sub/out/2.log", "train.py"]


@pytest.mark.parametrize(
    ("pattern", "path", "is_folder", "out"),
    [
        ("*.pt", "a/b/model.pt", False, True),
        ("/model.pt", "a/model.pt", False, False),
        ("/model.pt", "model.pt", False, True),
        ("data/", "data", True, True),
        ("data/", "data", False, False),
        ("a/**/z", "a/b/c/z", False, True),
        ("a/**/z", "a/z", False, True),
        ("**/logs", "x/y/logs", True, True),
        ("logs/**", "logs/a/b", False, True),
        ("doc/*.txt", "doc/a/b.txt", False, False),
        ("[ab].py", "a.py", False, True),
        ("[!ab].py", "a.py", False, False),
        ("?.py", "ab.py", False, False),
        ("\\#x", "#x", False, True),
        ("\\!x", "!x", False, True),
        ("a.b", "axb", False, False),
    ],
)
def test_a_pattern_means_what_git_means_by_it(pattern, path, is_folder, out):
    assert Ignore([pattern]).leaves_out(path, is_folder=is_folder) is out


def test_the_same_files_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        write(tmp_path / name, "b.py", "a/c.py")
        os.utime(tmp_path / name / "b.py", (len(name) * 1000, 5))
    assert pack(tmp_path / "one").archive == pack(tmp_path / "two").archive


def test_a_program_stays_executable(tmp_path):
    write(tmp_path, "run.sh")
    (tmp_path / "run.sh").chmod(0o700)
    with tarfile.open(fileobj=io.BytesIO(pack(tmp_path).archive)) as tar:
        assert tar.getmember("run.sh").mode == 0o755


def test_links_stay_links_inside_become_files_from_outside_and_are_told_of_otherwise(tmp_path):
    write(tmp_path, "outside/file", "outside/folder/x", "root/real.py", "root/pkg/x.py")
    root = tmp_path / "root"
    (root / "inside").symlink_to("real.py")
    (root / "linked").symlink_to("pkg")
    (root / "copied").symlink_to(tmp_path / "outside" / "file")
    (root / "elsewhere").symlink_to(tmp_path / "outside" / "folder")
    (root / "broken").symlink_to("nothing")
    archived = pack(root)
    assert archived.left_out == ("broken", "elsewhere")
    into = tmp_path / "into"
    with tarfile.open(fileobj=io.BytesIO(archived.archive)) as tar:
        tar.extractall(into, filter="data")
    assert (into / "inside").readlink() == Path("real.py")
    assert (into / "linked" / "x.py").read_text() == "root/pkg/x.py"
    assert not (into / "copied").is_symlink()
    assert (into / "copied").read_text() == "outside/file"


def test_too_much_is_refused_with_the_largest_files_and_the_way_out(tmp_path):
    for at, size in enumerate((600_000, 500_000, 10)):
        (tmp_path / f"{at}.bin").write_bytes(os.urandom(size))
    with pytest.raises(UsageError) as caught:
        pack(tmp_path)
    assert "at most 900Ki can be sent; the largest files are 0.bin (585.9Ki), 1.bin (488.2Ki)" in (
        caught.value.message
    )
    assert "--working-dir VOLUME:PATH" in (caught.value.hint or "")


def test_a_huge_directory_is_refused_without_being_read(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10 * 2**30)
    with pytest.raises(UsageError, match="has 10Gi; at most .* can be sent; the largest files are sparse"):
        pack(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_named(tmp_path):
    write(tmp_path, "secret")
    (tmp_path / "secret").chmod(0)
    with pytest.raises(UsageError, match="secret cannot be read"):
        pack(tmp_path)


part = st.text(alphabet="ab.*?[]!/\\#- ", min_size=1, max_size=8)


@given(st.lists(part, max_size=3), st.sampled_from(["a", "a/b", "b.a/-", "a/b/a"]))
def test_any_text_is_a_pattern_or_a_clear_error(lines, path):
    try:
        assert Ignore(lines).leaves_out(path, is_folder=False) in (True, False)
    except UsageError as error:
        message = error.message
        assert "invalid pattern in .moorageignore" in message  # noqa: PT017


@given(st.lists(st.tuples(st.sampled_from(["a.py", "b/c.py", "b/d/e"]), st.binary(max_size=2000))))
def test_what_is_packed_is_unpacked_the_same(tmp_path_factory, files):
    root = tmp_path_factory.mktemp("pack")
    for name, content in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    archive = pack(root).archive
    assert len(archive) <= ARCHIVE_LIMIT_BYTES
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert {member.name: tar.extractfile(member).read() for member in tar.getmembers()} == dict(files)  # type: ignore[union-attr]


def test_packing_tells_what_it_has_packed(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 1000)
    (tmp_path / "b").write_bytes(b"y" * 24)
    calls = []
    pack(
        tmp_path,
        on_start=lambda *total: calls.append(("all", *total)),
        on_progress=lambda *more: calls.append(more),
    )
    assert calls == [("all", 2, 1024), (1, 1000), (1, 24)]
