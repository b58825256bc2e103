from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from moorage.server.pages.liveparts import LiveParts


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
