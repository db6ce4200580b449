"""The Checklist screen as text, at every size and in both sets of signs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tui_trainer.checklist.contract import Change, Check, Finding, Verdict
from tui_trainer.ui.glyphs import ASCII, UNICODE
from tui_trainer.ui.screens.checklist_view import ChecklistModel, draw_checklist, list_rows, summary
from tui_trainer.ui.spans import text_of, width_of

SIZES = [(80, 22), (100, 28), (119, 30), (120, 33), (200, 48)]


def finding(name: str, status: str = "pass", order: int = 0, **changes) -> Finding:
    check = Check(
        name=name,
        order=order,
        title=f"Title of {name}",
        guides=("A quick win 1", "E should see 2"),
        claim="2x faster (guide A)",
        why="Because it is so.",
        look=lambda context: Verdict(status="pass", evidence=""),
    )
    evidence = f"{name} takes 12 of 34 seconds"
    fix = {"training.weight_decay": 0.01} if status == "warn" else None
    verdict = Verdict(**{"status": status, "evidence": evidence, "fix": fix} | changes)
    old = tuple(Change(key=key, old=0.0, new=new) for key, new in (fix or {}).items())
    return Finding(check=check, verdict=verdict, changes=old)


def many() -> list[Finding]:
    statuses = ["pass", "n/a", "pass", "warn", "pass", "fail", "pass", "error"] + ["pass"] * 28
    return [finding(f"check {n:02}", status, n) for n, status in enumerate(statuses)]


def model_of(findings: list[Finding]) -> ChecklistModel:
    model = ChecklistModel()
    model.replace(findings)
    return model


def drawn(model: ChecklistModel, width: int = 80, height: int = 22, glyphs=UNICODE) -> str:
    return text_of(draw_checklist(model, width=width, height=height, glyphs=glyphs))


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize(("width", "height"), [*SIZES, (40, 8), (80, 3), (20, 1)])
def test_every_line_has_the_width_and_there_are_as_many_as_asked_for(width, height, glyphs):
    hostile = finding(
        "hostile", "fail", 99, evidence="\x1b]0;owned\x07 \u202eabc [bold]x[/] 表示 " * 20, advice="字" * 200
    )
    swept = 0
    for findings in ([], many(), [hostile], [*many(), hostile]):
        model = model_of(findings)
        for _ in range(max(len(findings), 1)):
            lines = draw_checklist(model, width=width, height=height, glyphs=glyphs)
            assert len(lines) == height and all(width_of(line) == width for line in lines)
            text = text_of(lines)
            assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
            assert not glyphs.ascii or text.isascii()
            model.move(1)
            swept += 1
    assert swept == 1 + 36 + 1 + 37


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_titles_are_whole_and_the_chosen_finding_is_in_full(width, height):
    text = drawn(model_of(many()), width, height)
    for row in range(min(list_rows(width, height), 36)):
        listed = model_of(many()).visible[row]
        assert listed.title in text
    for words in ("Title of check 07", "check 07 takes 12 of 34 seconds", "Because it is so."):
        assert words in text


def test_the_worst_comes_first_and_is_chosen():
    model = model_of(many())
    assert [shown.name for shown in model.visible[:3]] == ["check 07", "check 05", "check 03"]
    assert model.visible[-1].status == "n/a"
    assert model.selected is model.visible[0]


def test_counts_stand_on_top_with_errors_only_where_there_are_any():
    first = drawn(model_of(many())).splitlines()[0]
    assert first.split()[:10] == ["32", "pass", "1", "warn", "1", "fail", "1", "n/a", "1", "error"]
    assert first.endswith("1-9 of 36")
    assert "error" not in drawn(model_of(many()[:5])).splitlines()[0]


def test_a_status_is_told_by_a_sign_and_not_by_colour_alone():
    text = drawn(model_of(many()))
    for row in ("? Title of check 07", "✗  Title of check 05", "!  Title of check 03", "✓  Title of check 00"):
        assert row.replace("? ", "?  ") in text
    plain = drawn(model_of(many()), glyphs=ASCII)
    for row in ("x  Title of check 05", "!  Title of check 03", "ok Title of check 00"):
        assert row in plain


@pytest.mark.parametrize(("glyphs", "arrow"), [(UNICODE, "→"), (ASCII, "->")])
def test_a_fix_shows_old_and_new_and_what_is_only_claimed(glyphs, arrow):
    text = drawn(model_of([finding("slow", "warn", advice="look at it")]), glyphs=glyphs)
    assert f"fix    training.weight_decay: 0.0 {arrow} 0.01" in text
    assert "gain   not measured yet; the guides claim: 2x faster (guide A)" in text
    assert "do     look at it" in text and "guides A quick win 1, E should see 2" in text
    measured = drawn(model_of([finding("slow", "warn", measured_gain=1.234)]), glyphs=glyphs)
    assert "gain   1.23 times as fast, measured here; the guides claim" in measured


def test_what_does_not_fit_is_counted():
    long = finding("long", "warn", evidence="word " * 20, details=tuple(f"detail {n}" for n in range(12)))
    text = drawn(model_of([long]))
    assert "detail 11" not in text and "lines more" in text.splitlines()[-1]
    assert "detail 11" in drawn(model_of([long]), 200, 48)


def test_moving_within_a_page_changes_the_pointer_and_the_detail_only():
    model = model_of(many())
    before = drawn(model).splitlines()
    model.move(1)
    after = drawn(model).splitlines()
    rows = list_rows(80, 22)
    changed = [row for row in range(2 + rows) if before[row] != after[row]]
    assert changed == [2, 3]
    assert before[2][1:] == after[2][1:] and before[3][1:] == after[3][1:]


def test_the_choice_stops_at_both_ends_and_moves_by_pages():
    model = model_of(many())
    model.move(-5)
    assert model.cursor == 0
    model.page(1, width=80, height=22)
    assert model.cursor == list_rows(80, 22)
    assert f"Title of {model.selected.name}" in drawn(model)
    model.last()
    assert model.cursor == 35 and "28-36 of 36" in drawn(model)
    model.move(7)
    assert model.cursor == 35
    model.first()
    assert model.cursor == 0


def test_every_finding_can_be_reached_and_is_listed_when_it_is_chosen():
    model, reached = model_of(many()), set()
    for _ in range(36):
        chosen = model.selected
        pointed = [line for line in drawn(model).splitlines() if line.startswith(UNICODE.pointer)]
        assert len(pointed) == 1 and chosen.title in pointed[0]
        reached.add(chosen.name)
        model.move(1)
    assert len(reached) == 36


def test_a_mended_finding_stays_in_its_place_until_it_is_sorted_anew():
    model = model_of(many())
    model.move(2)
    assert model.selected.name == "check 03"
    mended = [
        replace(f, verdict=replace(f.verdict, status="pass", fix=None)) if f.name == "check 03" else f for f in many()
    ]
    model.replace(mended)
    assert model.cursor == 2 and model.selected.name == "check 03" and model.selected.status == "pass"
    model.sort()
    assert model.cursor == 0 and model.visible[2].name != "check 03"


def test_only_open_ones_are_listed_on_request():
    model = model_of(many())
    model.last()
    model.toggle_open_only()
    assert len(model.visible) == 3 and model.selected is not None
    assert "only open" in drawn(model).splitlines()[0]
    model.toggle_open_only()
    assert len(model.visible) == 36
    calm = model_of([finding("calm")])
    calm.toggle_open_only()
    assert calm.selected is None and "nothing is open" in drawn(calm)


def test_the_header_gets_a_summary_of_a_few_signs():
    assert summary([]) == ""
    assert summary([finding("a"), finding("b", "n/a")]) == "ok"
    assert summary([finding("a", "warn"), finding("b", "warn")]) == "2!"
    assert summary([finding("a", "fail"), finding("b", "warn"), finding("c", "error")]) == "2x 1!"


def test_wide_screens_put_the_detail_beside_the_list():
    wide = drawn(model_of(many()), 120, 33).splitlines()
    assert "Title of check 07" in wide[2].split(UNICODE.vertical)[0] and "error" in wide[2].split(UNICODE.vertical)[1]
    assert "checks" in wide[1] and "finding" in wide[1]
    narrow = drawn(model_of(many()), 119, 33).splitlines()
    assert UNICODE.vertical not in "".join(narrow)
