"""How many steps a run has, and on how many of them it evaluates, saves, warms up and decays."""

from tui_trainer.config.load import Request
from tui_trainer.hardware.facts import Hardware
from tui_trainer.launching.open_run import load_config
from tui_trainer.lines.plan_and_events import plan_lines
from tui_trainer.planning import plan as planning
from tui_trainer.planning.batch_cut import BatchCut
from tui_trainer.planning.effective_batch import resolved
from tui_trainer.planning.steps import Steps
from tui_trainer.reporting.facts import ReportedModel
from tui_trainer.tasks.contract import DataFacts

STABLE = "warmup_stable_decay"
# 100 steps an epoch.
FACTS = DataFacts(
    rows=3200, eval_rows=10, tokens=3200, eval_tokens=10, vocabulary=9, exact=True, reason="counted", row_tokens=1.0
)
MACHINE = Hardware(
    cpu_name="Test CPU", usable_cores=2, memory_bytes=8 << 30, memory_available_bytes=7 << 30, platform="Linux",
    python_version="3.11",
)  # fmt: skip
CUT = BatchCut(
    effective_batch=32, micro_batch=32, accumulation=1, effective_reason="", micro_reason="", accumulation_reason=""
)


def steps(*assignments: str) -> Steps:
    loaded = load_config(Request(profile="qwen-lora", assignments=assignments))
    return Steps(resolved(loaded), FACTS, CUT)


def test_a_fraction_of_an_epoch_is_rounded_up_but_not_for_a_rounding_error(subtests):
    for epochs, total in [(0.07, 7), (0.071, 8), (0.0001, 1), (1, 100), (2.5, 250), (1.1, 110)]:
        with subtests.test(f"{epochs} epochs"):
            found = steps(f"training.num_train_epochs={epochs}", "training.max_steps=0")
            assert (found.per_epoch.value, found.total.value) == (100, total)


def test_early_stopping_may_save_at_every_evaluation():
    settings = ("training.max_steps=100", "evaluation.eval_steps=10", "checkpoint.save_steps=50")
    assert (steps(*settings).save_count, steps(*settings).evaluation_count) == (2, 10)
    assert steps(*settings, "evaluation.early_stopping_patience=3").save_count == 2 + 10


def test_warm_up_always_ends_before_the_last_step(subtests):
    for total, setting, warmup in [(1, 0.05, 0), (2, 0.05, 1), (3, 0.9, 2), (1, 1, 1), (100, 0.05, 5)]:
        with subtests.test(f"{setting} of {total}"):
            assert steps(f"training.max_steps={total}").warmup("cosine", setting).value == warmup


DECAYS = [
    (100, 0.1, 10, "0.1 of 100 steps"),
    (100, 20, 20, "num_decay_steps = 20"),
    (1, 0.1, 1, "0.1 of 1 step"),
    (100, 0, 0, "stays at the peak learning rate"),
    (100, 0.99, 95, "all 95 steps after warm-up; num_decay_steps = 0.99 asks for 99 steps"),
    (10, 50, 9, "all 9 steps after warm-up; num_decay_steps = 50 asks for 50 steps"),
]


def test_decay_takes_the_last_steps_and_begins_after_the_warm_up(subtests):
    for total, setting, decay, reason in DECAYS:
        with subtests.test(f"{setting} of {total}"):
            found = steps(f"training.max_steps={total}")
            warmup = found.warmup(STABLE, 0.05).value
            planned = found.decay(STABLE, setting, warmup)
            assert (planned.value, planned.reason, planned.exact) == (decay, reason, True)
            assert found.decay("cosine", setting, warmup) is None


SCHEDULES = [
    ("cosine", 0.0, {}, "0.001, cosine, warm-up 5 steps"),
    ("cosine", 0.25, {"final learning rate": "0.00025"}, "0.001, cosine, warm-up 5 steps, down to 0.25 of the peak"),
    (
        STABLE, 0.25, {"decay steps": "20", "final learning rate": "0.00025"},
        "0.001, warmup_stable_decay, warm-up 5 steps, decay 20 steps, cosine, down to 0.25 of the peak",
    ),
]  # fmt: skip


def test_plan_and_report_show_decay_and_final_learning_rate(subtests):
    for schedule, floor, shown, row in SCHEDULES:
        with subtests.test(row):
            given = {"learning_rate": 0.001, "max_steps": 100, "lr_scheduler_type": schedule}
            given |= {"num_decay_steps": 20} if schedule == STABLE else {}
            settings = tuple(f"training.{key}={value}" for key, value in {**given, "min_lr_rate": floor}.items())
            plan = planning.make(load_config(Request(profile="quickstart", assignments=settings)), MACHINE, FACTS)
            lines = [line for line in plan_lines(plan) if line.startswith(("decay steps", "final learning rate"))]
            assert {line[:19].strip(): line[19:].split()[0] for line in lines} == shown
            assert ("learning rate", row) in ReportedModel(
                step=100, weights_step=100, training_seconds=9.0, train_loss=None, eval_loss=None
            ).setting_rows(plan)
