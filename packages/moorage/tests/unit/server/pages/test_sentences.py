"""Sentences of decisions and errors in the language of who looks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import polib
import pytest

import moorage
from moorage.server.pages.sentences import in_words
from moorage.server.pages.texts import ENGLISH, LANGUAGES

SOURCES = Path(moorage.__file__).parent
OTHERS = [tag for tag in LANGUAGES if tag != ENGLISH]
FOREIGN = {"Job has reached the specified backoff limit"}  # of Kubernetes


def catalogue(tag):
    return polib.pofile((SOURCES / "server" / "pages" / "catalogues" / f"{tag}.sentences.po").read_text("utf-8"))


@pytest.fixture(scope="module")
def said(source_trees):
    """All texts of the sources, one after another."""
    nodes = (node for tree in source_trees.values() for node in ast.walk(tree))
    texts = (node.value for node in nodes if isinstance(node, ast.Constant))
    return "\n".join(text for text in texts if isinstance(text, str)).lower()


def stands(words, said, most=3):
    """Whether the sources have these words, put together of at most so many texts."""
    if " ".join(words) in said:
        return True
    splits = (at for at in range(len(words) - 1, 0, -1) if " ".join(words[:at]) in said)
    return most > 1 and any(stands(words[at:], said, most - 1) for at in splits)


@pytest.mark.xdist_group("source")
@pytest.mark.parametrize("tag", OTHERS)
def test_every_shape_is_of_a_sentence_that_the_sources_say(tag, said):
    stale = []
    for entry in catalogue(tag):
        texts = re.split(r"[^a-z' ]+", re.sub(r"\{\w+\}", "|", entry.msgid.lower()))
        if entry.msgid not in FOREIGN and not all(stands(text.strip(" '").split(), said) for text in texts):
            stale.append(entry.msgid)
    assert not stale, f"take these out of catalogues/{tag}.sentences.po"


@pytest.mark.parametrize("tag", OTHERS)
def test_a_translation_has_the_values_of_its_shape(tag):
    def values(text):
        return sorted(re.findall(r"\{\w+\}", text))

    assert [entry.msgid for entry in catalogue(tag) if values(entry.msgid) != values(entry.msgstr)] == []


@pytest.mark.parametrize("tag", OTHERS)
def test_shapes_stand_once_and_in_order(tag):
    names = [entry.msgid for entry in catalogue(tag)]
    assert names == sorted(set(names))


@pytest.mark.parametrize(
    ("english", "japanese"),
    [
        ("needs 2 GPUs; one node has at most 1 free", "2 GPU が必要です。一つのノードの空きは最大 1 です"),
        (
            "run default/a waits: needs 2 GPUs of type a100; none is free",
            "ジョブ default/a は待っています: a100 の 2 GPU が必要です。空きがありません",
        ),
        (
            "it is cordoned (unschedulable); too little nvidia.com/gpu (asked 2, free 0 of 2)",
            "新しい Pod を受け付けません（unschedulable）。不足: nvidia.com/gpu（要求 2、空き 0 / 2）",
        ),
        ("memory 32Mi → 64Mi: 1 run killed for memory at 32Mi",
         "メモリ 32Mi → 64Mi: 1 件のジョブが 32Mi でメモリ超過により強制終了"),
        ("ada created run default/a", "ada が ジョブ default/a を作成"),
        ("Run 'a' not found in namespace default.", "名前空間 default に ジョブ 'a' はありません。"),
        ("a sentence that nobody knows", "a sentence that nobody knows"),
        ("x" * 5000, "x" * 5000),
        ("", ""),
    ],
)  # fmt: skip
def test_a_sentence_is_said_with_its_values(english, japanese):
    assert in_words(english, "ja") == japanese
    assert in_words(english, ENGLISH) == english
