import pytest

from tui_trainer.planning import duration
from tui_trainer.planning.calibration import Calibration
from tui_trainer.planning.duration import matrix_flops_per_second, step_time, training_share
from tui_trainer.runs import events as e
from tui_trainer.runs.state import fold


@pytest.fixture
def matrices_at_100_gflops(monkeypatch):
    monkeypatch.setattr(duration, "matrix_flops_per_second", lambda: 100e9)


def test_a_step_of_this_shape_that_was_measured_is_believed_before_all_else(matrices_at_100_gflops):
    found = step_time(50e9, 128, Calibration(step_seconds=0.7, flops_per_second=1e9))
    assert found.seconds == 0.7
    assert "this shape" in found.reason


def test_the_rate_of_another_shape_is_believed_before_numpy(matrices_at_100_gflops):
    assert step_time(50e9, 128, Calibration(flops_per_second=25e9)).seconds == pytest.approx(2.0)


def test_a_machine_without_any_run_is_timed_with_numpy(matrices_at_100_gflops):
    found = step_time(50e9, 150, Calibration())
    assert found.seconds == pytest.approx(0.5 / 0.5)
    assert "numpy" in found.reason


def test_wider_models_come_nearer_to_the_rate_of_matrix_products():
    shares = [training_share(width) for width in (64, 128, 256, 512, 4096)]
    assert shares == sorted(shares)
    assert 0.2 < shares[0] < shares[-1] < 1


def test_the_rate_of_matrix_products_is_one_that_a_processor_can_have():
    assert 1e6 < matrix_flops_per_second(size=128, at_least_seconds=0.01) < 1e15


def started():
    return e.RunStarted(name="a", task="char_lm", device="cpu", pid=1, total_steps=100)


def planned(eval_every_steps, save_every_steps, eval_rows=120, parameters=1_000_000):
    return e.PlanMade(
        total_steps=100, steps_per_epoch=50, effective_batch_size=4, per_device_train_batch_size=4,
        gradient_accumulation_steps=1, parameters=parameters, memory_bytes=1, disk_bytes=1, duration_seconds=1.0,
        eval_rows=eval_rows, eval_every_steps=eval_every_steps, save_every_steps=save_every_steps,
    )  # fmt: skip


def step(number, seconds=0.5):
    return e.StepDone(
        step=number, epoch=0.1, loss_sum=2.0, tokens=100, samples=4, lr=1e-4, grad_norm=1.0, step_seconds=seconds,
        data_seconds=0.1, forward_seconds=0.1, backward_seconds=0.2, optimiser_seconds=0.1, tokens_per_second=1.0,
        samples_per_second=1.0, peak_memory_bytes=10,
    )  # fmt: skip


def test_before_the_first_evaluation_and_save_the_plan_says_what_they_will_take():
    events = [started(), planned(eval_every_steps=30, save_every_steps=50), *map(step, range(1, 11))]
    evaluation = 120 / 8 / 3  # 120 rows, at 8 rows a second of training, of which forward is a third
    save = 12e6 / 300e6
    assert fold(events).eta_seconds == pytest.approx(90 * 0.5 + 4 * evaluation + 2 * save)


def test_what_was_measured_takes_the_place_of_the_guess_and_the_end_counts():
    events = [started(), planned(eval_every_steps=30, save_every_steps=0), *map(step, range(1, 31))]
    events.append(e.EvalDone(step=30, loss_sum=1.0, tokens=1, loss=1.0, seconds=2.0, scheduled=True, best=True))
    assert fold(events).eta_seconds == pytest.approx(70 * 0.5 + 3 * 2.0 + 12e6 / 300e6)


def test_without_held_out_rows_evaluations_take_no_time():
    events = [started(), planned(eval_every_steps=10, save_every_steps=0, eval_rows=0), *map(step, range(1, 11))]
    assert fold(events).eta_seconds == pytest.approx(90 * 0.5 + 12e6 / 300e6)


def test_at_the_last_step_nothing_is_left():
    events = [started(), planned(eval_every_steps=30, save_every_steps=30), *map(step, range(1, 101))]
    assert fold(events).eta_seconds == 0
