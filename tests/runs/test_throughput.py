"""The grade of a rate, beside the best that this machine has reached with such steps."""

from dataclasses import replace

import pytest

from tests.runs.journals import start, steps
from tests.runs.test_comparison import PLANNED
from tui_trainer.lines import plan_and_events as lines
from tui_trainer.runs.events import EpochDone, PlanMade
from tui_trainer.runs.journal import read_all
from tui_trainer.runs.result import grade, grade_of
from tui_trainer.runs.state import fold


@pytest.mark.parametrize(
    ("rate", "word"), [(1.99, "excellent"), (1.6, "good"), (1.1, "acceptable"), (0.6, "slow"), (0.1, "a problem")]
)
def test_a_rate_is_graded_by_its_share_of_the_best(rate, word):
    assert grade(rate, 2.0).startswith(f"{word}, {rate / 2 * 100:.0f} % of the best here (2 rows/s)")


def test_without_a_best_there_is_no_grade():
    assert grade(2.0, None) == "" and grade(2.0, 0.0) == ""
    assert grade_of(fold([start(), PLANNED, *steps(1, 5)])) == ""


def test_the_line_of_an_epoch_has_its_grade():
    planned = replace(PLANNED, best_samples_per_second=2.0)
    done = EpochDone(step=5, epoch=1, mean_loss=1.0, seconds=5.0, samples_per_second=1.6, tokens_per_second=100.0)
    state = fold([start(), planned, *steps(1, 5), done])
    assert lines.event_line(done, state).endswith("good, 80 % of the best here (2 rows/s)")
    assert grade_of(state).startswith("excellent, 100 %")


def test_the_second_run_of_a_shape_is_graded_against_the_first(tiny_run):
    tiny_run("one", {"training.max_steps": 30})
    folder, _ = tiny_run("two", {"training.max_steps": 30})
    events = read_all(folder.journal)
    best = next(event for event in events if isinstance(event, PlanMade)).best_samples_per_second
    assert best is not None and best > 0
    assert "% of the best here" in "\n".join(lines.end_lines(fold(events), "two", str(folder.root)))
    assert "% of the best here" in (folder.root / "report.md").read_text()
