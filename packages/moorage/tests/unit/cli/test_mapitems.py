"""Where items come from, and how they are told what is wrong with them."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.cli.mapitems import Sources, parse_range, read
from moorage.client.itemspool import spool
from moorage_kube.errors import UsageError


def values(sources: Sources) -> list[Any]:
    made = read(sources)
    try:
        items = [json.loads(line) for line in made.lines()]
        assert made.count == len(items)
        return [item if "seconds" in item else item["value"] for item in items]
    finally:
        made.close()


@pytest.mark.parametrize(
    ("name", "text", "want"),
    [
        pytest.param("a.txt", "x\n\n y \r\nz", ["x", " y ", "z"], id="lines, without empty ones"),
        pytest.param("a.txt", "\ufeffü\n", ["ü"], id="a byte order mark"),
        pytest.param("a.jsonl", '{"a": 1}\n[2]\n"x"\n', [{"a": 1}, [2], "x"], id="JSON lines"),
        pytest.param("a.csv", 'a,b\n1,"x, y"\n2,\n', [{"a": "1", "b": "x, y"}, {"a": "2", "b": ""}], id="CSV"),
        pytest.param("a.jsonl", '{"a": 1}\n', [{"a": 1}], id="one"),
    ],
)
def test_files_are_read_by_their_name(tmp_path, name, text, want):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert values(Sources(file=str(tmp_path / name))) == want


def test_the_format_of_a_file_can_be_said(tmp_path):
    (tmp_path / "a").write_text("1\n2\n")
    assert values(Sources(file=str(tmp_path / "a"), format="jsonl")) == [1, 2]
    assert values(Sources(file=str(tmp_path / "a"))) == ["1", "2"]


def test_stdin_is_read_as_lines(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    assert values(Sources(file="-")) == ["a", "b"]


def test_a_glob_gives_paths_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.csv", "a.csv", "sub/c.csv", "x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert values(Sources(pattern="**/*.csv")) == ["a.csv", "b.csv", "sub/c.csv"]


@pytest.mark.parametrize(
    ("text", "want"), [("0:3", [0, 1, 2]), ("5:0:-2", [5, 3, 1]), ("10:20:5", [10, 15]), ("-2:1", [-2, -1, 0])]
)
def test_ranges_count_as_python_does(text, want):
    assert list(parse_range(text)) == want


@pytest.mark.parametrize("text", ["3", "a:b", "1:2:0", "1:2:3:4", "", "0:999999999999"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(UsageError, match="--range"):
        parse_range(text)


def test_a_single_number_is_hinted_at_the_range_that_was_meant():
    with pytest.raises(UsageError) as refused:
        parse_range("10")
    assert refused.value.hint == "0:10 counts from 0 to 9"


def test_rows_of_a_query_are_objects_and_single_columns_are_values(tmp_path):
    file = tmp_path / "races.db"
    connection = sqlite3.connect(file)
    connection.executescript("CREATE TABLE races (day TEXT, n INT); INSERT INTO races VALUES ('a', 1), ('b', 2)")
    connection.close()
    url = f"sqlite:///{file}"
    assert values(Sources(query="SELECT day, n FROM races ORDER BY n", database=url)) == [
        {"day": "a", "n": 1},
        {"day": "b", "n": 2},
    ]
    assert values(Sources(query="SELECT n FROM races", database=url + "?immutable=1")) == [1, 2]
    with pytest.raises(UsageError, match="--query: .*readonly"):
        read(Sources(query="DELETE FROM races", database=url))


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        pytest.param(Sources(query="SELECT 1"), "--query needs --database", id="no database"),
        pytest.param(Sources(query="SELECT 1", database="mysql://x/y"), "unknown kind of database", id="kind"),
        pytest.param(Sources(query="SELECT 1", database="sqlite:///none.db"), "file none.db not found", id="f"),
        pytest.param(
            Sources(range="0:1", database="sqlite:///x"), "--database can only be used with --query", id="no query"
        ),
        pytest.param(Sources(file="none.txt"), "none.txt cannot be read", id="no file"),
        pytest.param(Sources(pattern="none-*"), "--glob none-\\* has no items", id="nothing matches"),
        pytest.param(Sources(), "items come from one of", id="nothing given"),
    ],
)
def test_what_cannot_be_read_is_told(sources, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        read(sources)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        pytest.param("a.jsonl", b'1\n{"a\n', "line 2 of .*a.jsonl is not JSON", id="JSON"),
        pytest.param("a.csv", b"a,b\n1\n", "line 2 of .*a.csv has not as many fields", id="CSV, too few"),
        pytest.param("a.csv", b"a\n1,2\n", "line 2 of .*a.csv has not as many fields", id="CSV, too many"),
        pytest.param("a.txt", b"\xff\n", "is not UTF-8 text: .* at byte 0", id="no text"),
        pytest.param("a.txt", b"x" * 70_000, "item 1 of .*a.txt has 70,002 bytes; at most 65,536", id="too long"),
        pytest.param("a.jsonl", b"NaN\n", "item 1 of .*a.jsonl cannot be written as JSON", id="no number"),
        pytest.param("a.txt", b"\n", "has no items", id="none"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=message):
        read(Sources(file=str(tmp_path / name)))


def test_items_say_how_long_they_may_take(tmp_path):
    (tmp_path / "a.csv").write_text("day,sec\nx,2.5\ny,\n")
    source = Sources(file=str(tmp_path / "a.csv"), seconds_field="sec")
    assert values(source) == [{"value": {"day": "x", "sec": "2.5"}, "seconds": 2.5}, {"day": "y", "sec": ""}]
    (tmp_path / "a.csv").write_text("day,sec\nx,long\n")
    with pytest.raises(UsageError, match="invalid --item-seconds: field 'sec' of item 1 of .* is 'long'"):
        read(source)


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="reading Parquet needs pyarrow"):
        read(Sources(file="a.parquet"))


def test_rows_of_parquet_are_objects(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"a": [1, 2], "b": ["x", None]}), tmp_path / "a.parquet")
    assert values(Sources(file=str(tmp_path / "a.parquet"))) == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.lists(json_values, max_size=20), st.integers(0, 20))
def test_spooled_items_come_back_from_any_line(items, start):
    made = spool(items)
    try:
        assert [json.loads(line)["value"] for line in made.lines(start)] == items[start:]
        assert [json.loads(line)["value"] for line in made.lines(0, start)] == items[:start]
    finally:
        made.close()


def test_the_options_are_given_back_as_they_were_typed():
    sources = Sources(query="SELECT 1", database="sqlite:///a b.db", seconds_field="s")
    words = ["--query", "SELECT 1", "--database", "sqlite:///a b.db", "--item-seconds", "s"]
    assert sources.words() == words
