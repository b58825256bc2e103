from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moorage.server.pages.liveparts import LiveParts, RowNumbers, face_of


def read(events):
    """What a browser has after these events: name → text."""
    parts = {}
    for block in events.decode().split("\n\n"):
        lines = block.splitlines()
        names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
        if names:
            parts[names[0]] = "\n".join(line.removeprefix("data:").removeprefix(" ") for line in lines[1:])
    return parts


def test_a_part_is_sent_when_it_changes_and_not_for_what_the_browser_moves_on():
    live = LiveParts("e")
    assert live.put({"a": "<time>1m</time> x", "b": "y"})
    mark = live.mark
    assert read(live.since("")) == {"a": "<time>1m</time> x", "b": "y"}
    assert not live.put({"a": "<time>2m</time> x", "b": "y"})
    assert live.since(mark) == b""
    assert read(live.since(""))["a"] == "<time>2m</time> x"
    assert live.put({"a": "<time>3m</time> z", "b": "y"})
    assert read(live.since(mark)) == {"a": "<time>3m</time> z"}


def test_pieces_are_sent_alone_until_what_holds_them_changes():
    live = LiveParts("e")
    within = {"node-1": "gpus", "node-2": "gpus"}
    live.put({"node-1": "a", "node-2": "b", "gpus": "[a b]"}, within=within, outside={"gpus": "1 2"})
    mark = live.mark
    live.put({"node-1": "c", "node-2": "b", "gpus": "[c b]"}, within=within, outside={"gpus": "1 2"})
    assert read(live.since(mark)) == {"node-1": "c"}
    assert read(live.since("")) == {"gpus": "[c b]"}
    mark = live.mark
    live.put({"node-1": "d", "gpus": "[d]"}, within=within, outside={"gpus": "1"}, gone=["node-2"])
    assert read(live.since(mark)) == {"gpus": "[d]"}


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.text("xy\n", max_size=3), max_size=3)), st.data())
def test_who_joins_at_any_moment_has_in_the_end_what_all_have(puts, data):
    live, seen, mark = LiveParts("e"), {}, ""
    for parts in puts:
        live.put(parts)
        if data.draw(st.booleans()):
            seen |= read(live.since(mark))
            mark = live.mark
    seen |= read(live.since(mark))
    assert seen == {name: "\n".join(text.splitlines()) for name, text in live.parts.items()}


def apply(rows, text):
    """What a browser has of a list after its event (`rows.js` does the same): number → row, in order."""
    order, *changed = text.split("\n")
    rows = rows | {row.partition(" ")[0]: row for row in changed}
    return {number: rows[number] for number in order.split()}


def drawn(rows, numbers):
    return {number: f"{number} {text}" for number, text in zip(numbers.of(rows), rows.values(), strict=True)}


def test_of_a_list_the_rows_that_changed_are_sent_and_the_order_of_all():
    live, numbers = LiveParts("e"), RowNumbers()
    live.put({}, lists={"rows-a": drawn({"x": "<time>1m</time>", "y": "b"}, numbers)})
    mark = live.mark
    assert read(live.since("")) == {"rows-a": "1 2\n1 <time>1m</time>\n2 b"}
    assert not live.put({}, lists={"rows-a": drawn({"x": "<time>2m</time>", "y": "b"}, numbers)})
    assert live.since(mark) == b""
    assert read(live.since("")) == {"rows-a": "1 2\n1 <time>2m</time>\n2 b"}
    live.put({}, lists={"rows-a": drawn({"z": "c", "y": "b2"}, numbers)})
    assert read(live.since(mark)) == {"rows-a": "3 2\n3 c\n2 b2"}
    mark = live.mark
    live.put({}, lists={"rows-a": drawn({"y": "b2", "z": "c"}, numbers)})
    assert read(live.since(mark)) == {"rows-a": "2 3"}
    mark = live.mark
    live.put({}, lists={"rows-a": drawn({"y": "b2"}, numbers)})
    assert read(live.since(mark)) == {"rows-a": "2"}


def test_a_row_that_returns_is_new_to_who_has_seen_it_go():
    live, numbers = LiveParts("e"), RowNumbers()
    for rows in ({"x": "a", "y": "b"}, {"y": "b"}):
        live.put({}, lists={"rows-a": drawn(rows, numbers)})
    mark = live.mark
    live.put({}, lists={"rows-a": drawn({"x": "a", "y": "b"}, numbers)})
    assert read(live.since(mark)) == {"rows-a": "3 2\n3 a"}


def test_rows_are_not_sent_beside_the_list_that_holds_them():
    live = LiveParts("e")
    within = {"rows-a": "a"}
    live.put({"a": "none"}, within=within, outside={"a": "0"}, lists={"rows-a": {}})
    mark = live.mark
    live.put({"a": "[1 x]"}, within=within, outside={"a": "1"}, lists={"rows-a": {1: "1 x"}})
    assert read(live.since(mark)) == {"a": "[1 x]"}
    mark = live.mark
    live.put({"a": "[1 x, 2 y]"}, within=within, outside={"a": "1"}, lists={"rows-a": {1: "1 x", 2: "2 y"}})
    assert read(live.since(mark)) == {"rows-a": "1 2\n2 y"}
    assert read(live.since("")) == {"a": "[1 x, 2 y]"}


lists = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.sampled_from(["x", "y", "<time>1</time>", "<time>2</time>"]))
)


@given(st.lists(lists.map(dict), max_size=6), st.data())
def test_who_looks_at_a_list_at_any_moments_has_it_in_the_end_in_its_order(puts, data):
    live, numbers, shown, mark, rows = LiveParts("e"), RowNumbers(), {}, "", {}
    for wanted in puts:
        rows = drawn(wanted, numbers)
        live.put({}, lists={"rows-a": rows})
        if data.draw(st.booleans()):
            shown, mark = looked(shown, live, mark)
    shown, _ = looked(shown, live, mark)
    assert [face_of(row) for row in shown.values()] == [face_of(row) for row in rows.values()]


def looked(shown, live, mark):
    events = read(live.since(mark))
    return (apply(shown, events["rows-a"]) if "rows-a" in events else shown), live.mark
