"""The Checklist screen as text, at every size and in both sets of signs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tui_trainer.checklist.contract import Change, Check, Finding, Verdict
from tui_trainer.planning.measured_gains import Gain
from tui_trainer.ui.screens.checklist import ChecklistModel, counts_line, finding_lines, finding_row
from tui_trainer.ui.spans import ASCII, UNICODE, text_of, width_of
from tui_trainer.ui.workbench import Workbench


def finding(name: str, status: str = "pass", order: int = 0, **changes) -> Finding:
    check = Check(
        name=name,
        order=order,
        title=f"Title of {name}",
        published="2x faster (arXiv:1234.56789)",
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


def rows(model: ChecklistModel, width: int = 80, glyphs=UNICODE) -> list[str]:
    listed = [finding_row(one, one is model.selected, model.title_cells, width, glyphs) for one in model.visible]
    return text_of(listed).splitlines()


def detail(finding: Finding, width: int = 80, glyphs=UNICODE) -> str:
    return text_of(finding_lines(finding, width, glyphs))


def counted(model: ChecklistModel, first: int = 0, lines: int = 9) -> str:
    return text_of([counts_line(model, first, lines, 80, UNICODE)])


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("width", [30, 74, 80, 123])
def test_rows_have_the_width_and_nothing_in_them_does_harm(width, glyphs):
    evidence = "\x1b]0;owned\x07 \u202eabc [bold]x[/] 表示 " * 20
    hostile = finding("hostile", "fail", 99, evidence=evidence, advice="字" * 200)
    for one in (*many(), hostile):
        row, lines = finding_row(one, False, 17, width, glyphs), finding_lines(one, width, glyphs)
        assert width_of(row) == width and len(lines) >= 4 and max(map(width_of, lines)) <= width
        text = text_of([row, *lines])
        assert not set(text) & set("\x1b\x07\u202e")
        assert one is hostile or not glyphs.ascii or text.isascii()


def test_the_chosen_finding_is_in_full():
    model = model_of(many())
    text = detail(model.selected)
    for words in ("Title of check 07", "check 07 takes 12 of 34 seconds", "Because it is so.", "arXiv:1234.56789"):
        assert words in text


def test_the_worst_comes_first_and_is_chosen():
    model = model_of(many())
    assert [shown.name for shown in model.visible[:3]] == ["check 07", "check 05", "check 03"]
    assert model.visible[-1].status == "n/a"
    assert model.selected is model.visible[0]


def test_counts_have_errors_only_where_there_are_any_and_the_lines_that_are_seen():
    first = counted(model_of(many()))
    assert first.split()[:10] == ["32", "pass", "1", "warn", "1", "fail", "1", "n/a", "1", "error"]
    assert first.endswith("1-9 of 36")
    assert counted(model_of(many()), first=30).endswith("31-36 of 36")
    few = counted(model_of(many()[:5]))
    assert "error" not in few and "of" not in few


def test_a_status_is_told_by_a_sign_and_not_by_colour_alone():
    listed = "\n".join(rows(model_of(many())))
    for row in ("?  Title of check 07", "✗  Title of check 05", "!  Title of check 03", "✓  Title of check 00"):
        assert row in listed
    plain = "\n".join(rows(model_of(many()), glyphs=ASCII))
    for row in ("x  Title of check 05", "!  Title of check 03", "ok Title of check 00"):
        assert row in plain


@pytest.mark.parametrize(("glyphs", "arrow"), [(UNICODE, "→"), (ASCII, "->")])
def test_a_fix_shows_old_and_new_and_what_is_only_claimed(glyphs, arrow):
    text = detail(finding("slow", "warn", advice="look at it"), glyphs=glyphs)
    assert f"fix    training.weight_decay: 0.0 {arrow} 0.01" in text
    assert "gain   not measured yet; published: 2x faster (arXiv:1234.56789)" in text
    assert "do     look at it" in text
    gain = Gain(at="2026-11-23T10:00:00.000Z", ratios=(1.22, 1.234, 1.24))
    measured = detail(replace(finding("slow", "warn"), gain=gain), width=200, glyphs=glyphs)
    assert "gain   1.23 times as fast (measured here 2026-11-23, 3 pairs, +-1 %); published: 2x" in measured
    switched = replace(finding("on", "pass", opposite={"data.packing": False}), gain=gain)
    assert "1.23 times as fast as with data.packing = false (measured" in detail(switched, width=200, glyphs=glyphs)
    assert "gain   there is nothing to switch here; published: 2x" in detail(finding("plain"), glyphs=glyphs)


def test_the_choice_stops_at_both_ends_and_reaches_every_finding():
    model, reached = model_of(many()), list[str]()
    model.move(-5)
    assert model.cursor == 0
    for place in range(36):
        pointed = [row for row, line in enumerate(rows(model)) if line.startswith(UNICODE.pointer)]
        assert pointed == [place]
        reached.append(model.selected.name)
        model.move(1)
    assert len(set(reached)) == 36 and model.cursor == 35
    model.move(-100)
    assert model.cursor == 0


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
    model.move(100)
    last = model.selected
    model.open_only = True
    assert len(model.visible) == 3 and model.selected is model.visible[-1]
    assert "only open" in counted(model)
    model.open_only = False
    assert len(model.visible) == 36 and model.selected is last
    calm = model_of([finding("calm")])
    calm.open_only = True
    assert calm.selected is None and "nothing is open" in counted(calm)
    assert "looking" in counted(model_of([]))


def test_the_header_gets_a_summary_of_a_few_signs():
    def mark(*findings):
        return Workbench.checks_mark(SimpleNamespace(findings=findings))

    assert mark() == ("", "dim")
    assert mark(finding("a"), finding("b", "n/a")) == ("ok", "good")
    assert mark(finding("a", "warn"), finding("b", "warn")) == ("2!", "warn")
    assert mark(finding("a", "fail"), finding("b", "warn"), finding("c", "error")) == ("2x 1!", "bad")
