"""Scores on the Train screen: the newest beside the loss, the table on a key, and what was beaten at the end."""

from dataclasses import replace

import pytest

from tests.ui.test_train_view import drawn as drawn_scene
from tests.ui.test_train_view import prepared, scene
from tui_trainer.runs import events as e
from tui_trainer.ui.screens.train_story import table_rows
from tui_trainer.ui.spans import ASCII, UNICODE, text_of, width_of

SIZES = ((80, 22), (120, 33), (200, 48))


def evaluated(classes=8, columns=(), **more):
    names = [f"class {n}" for n in range(classes)]
    rows = {
        name: [10.0 if at == place else float(at > place) for at in range(classes)] for place, name in enumerate(names)
    }
    return e.EvalDone(
        step=3, loss_sum=5, tokens=10, loss=0.5, seconds=1, scheduled=True, best=True, scores={"accuracy": 0.834},
        table_title="true class / predicted", table_columns=list(columns or names), table_rows=rows, **more,
    )  # fmt: skip


def events(*more):
    step = e.StepDone(
        step=3, epoch=0.1, loss_sum=20, tokens=10, samples=10, lr=1e-3, grad_norm=0.5, step_seconds=0.1,
        data_seconds=0, forward_seconds=0.05, backward_seconds=0.05, optimizer_seconds=0, tokens_per_second=100,
        samples_per_second=100, peak_memory_bytes=1000,
    )  # fmt: skip
    measured = e.BaselinesMeasured(
        losses={}, eval_tokens=10, unit="token", scores={"accuracy of the most frequent class": 0.31}
    )
    return [*prepared(), measured, e.PhaseChanged(phase="training"), step, *more]


def drawn(journal, width=80, height=22, glyphs=UNICODE, **options):
    return drawn_scene(scene(journal, glyphs=glyphs, told=(), **options), width, height)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
def test_the_newest_score_stands_beside_the_loss_and_the_table_opens(size, glyphs):
    journal = events(evaluated())
    closed, opened = (drawn(journal, *size, glyphs, table_open=is_open) for is_open in (False, True))
    assert "held out 0.5000   accuracy 0.834" in closed and "true class / predicted" not in closed
    assert "scores: true class / predicted" in opened and "after step 3" in opened
    assert all(f"{n + 1} class {n}" in opened for n in range(8))
    assert not glyphs.ascii or opened.isascii()


def test_without_a_table_a_word_is_said():
    assert "no evaluation with a table of classes so far" in drawn(events(), table_open=True)


def test_before_the_first_step_it_is_told_what_is_to_be_beaten():
    journal = events()[:-2]
    assert "to beat: accuracy 0.310 of the most frequent class" in drawn(journal, 120, 33)


def test_the_end_tells_what_was_beaten():
    end = e.RunFinished(step=3, reason="done", loss=0.1, eval_loss=0.5, seconds=9.0, model_path="model")
    text = drawn(events(evaluated(), end), 120, 33)
    (line,) = [line for line in text.split("\n") if line.strip().startswith("accuracy")]
    assert "0.834" in line and "most frequent class 0.310" in line and "beaten" in line


def test_what_does_not_fit_is_counted():
    rows = table_rows(evaluated(20), 60, 12, UNICODE)
    assert len(rows) == 12
    assert text_of(rows).split("\n")[-1] == "8 columns and 10 rows more do not fit here"
    assert max(width_of(row) for row in rows) <= 60


def test_counts_are_whole_and_shares_have_decimals():
    done = e.EvalDone(
        step=3, loss_sum=5, tokens=10, loss=0.5, seconds=1, scheduled=True, best=True,
        table_columns=["precision", "rows"], table_rows={"PER": [1.0, 1.0], "LOC": [0.5, 12.0]},
    )  # fmt: skip
    head, person, place = text_of(table_rows(done, 80, 10, UNICODE)).split("\n")
    assert head.split() == ["precision", "rows"]
    assert person.split() == ["PER", "1.00", "1"] and place.split() == ["LOC", "0.50", "12"]


def test_names_of_classes_pass_no_control_signs():
    rows = {"\x1b[2J": [1.0, 2.0], "b": [1.0, 2.0]}
    hostile = replace(evaluated(2), table_columns=list(rows), table_rows=rows)
    assert "\x1b" not in text_of(table_rows(hostile, 80, 10, UNICODE))
