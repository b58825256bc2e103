"""Texts of users in manifests: none keeps a pattern busy."""

from __future__ import annotations

from moorage_testing.cputime import run_all

# each kept a process busy for minutes or for ever, with a pattern that was made of it or that went back in it
HOSTILE = {
    "layout of many numbers": """
        from moorage_workflows.decide.workflows.text.expressions import evaluate
        refused(lambda: evaluate('date("' + "1" * 60 + 'x", "' + "1" * 60 + '")', {}))
        refused(lambda: evaluate('sprig.toDate("' + "1" * 60 + '", "' + "1" * 60 + 'x")', {}))""",
    "layout of 1.6 MB": """
        from moorage_workflows.decide.workflows.text.expressions import evaluate
        refused(lambda: evaluate("sprig.toDate(a, a)", {"a": "2006 " * 320_000}))""",
    "range of a JSON path": """
        from moorage_workflows.decide.workflows.text.jsonpath import parse_path
        refused(lambda: parse_path("$[" + " " * 60_000 + "x"))""",
    "span of versions": """
        from moorage_workflows.decide.workflows.text.semver import compare
        refused(lambda: compare("1" * 400_000, "1.2.3"))""",
    "camelcase of blanks": """
        from moorage_workflows.decide.workflows.text.expressions import evaluate
        evaluate("sprig.camelcase(a)", {"a": "x" + "_" * 400_000 + "x"})""",
    "condition of open expressions": """
        from moorage_workflows.decide.workflows.graph.children import _names_item
        assert not _names_item("{{=" * 200_000)""",
    "tags that are not closed": """
        from moorage_workflows.decide.workflows.scopes import tags_in, without_inner_tags
        from moorage_workflows.decide.workflows.text.tags import references, substitute
        for text in ("{{" * 200_000, "{{=" * 200_000, "{{a" * 200_000 + "}}"):
            list(tags_in(text, ()))
            without_inner_tags(text)
            references(text)
            refused(lambda: substitute([text[: len(text) // 2], text], {}))
        refused(lambda: substitute([*["{{"] * 200_000, "}}"], {}))""",
    "tags of a cron's condition": """
        from datetime import datetime, UTC
        from moorage_workflows.decide.workflows.crons import is_wanted
        refused(lambda: is_wanted("{{=" * 200_000, {}, datetime(2024, 1, 1, tzinfo=UTC)))""",
    "span of a schedule": """
        from moorage_workflows.decide.workflows.schedules import parse_schedule
        refused(lambda: parse_schedule("@every " + "1" * 200_000))""",
    "lock of a message": """
        from moorage_workflows.decide.workflows.waiting import _LOCK
        _LOCK.match("Waiting for x" + " lock: x" * 50_000 + "\\nx")""",
    "name that is like another": """
        from moorage_workflows.decide.workflows.scopes import Scope
        name = "".join(chr(0x4E00 + number * 7919 % 20000) for number in range(200_000))
        assert not Scope(frozenset((name + "x",))).nearest("y" + name)""",
    "schedules that never come": """
        from datetime import datetime, UTC
        from moorage_workflows.decide.workflows.schedules import latest_slot, parse_timetable
        first, last = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 3, tzinfo=UTC)
        table = parse_timetable(["0 0 31 2,4,6,9,11 *"] * 100, "Europe/Zurich", anchor=first)
        for _ in range(20):
            assert latest_slot(table, first, last) is None""",
    "tags within tags that are not closed": """
        from moorage_workflows.decide.workflows.text.tags import substitute
        for _ in range(20):
            refused(lambda: substitute("{{b" * 42_000 + "{{a}}" * 25_000, {"a": "x" * 50}))""",
}


def test_no_text_keeps_a_pattern_busy() -> None:
    run_all(HOSTILE)
