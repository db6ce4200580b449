"""How long a step and a run take: measured rates, published rates of cards, and operations of the model."""

from dataclasses import replace

import pytest

from tests.planning.families import config_of, setup_of
from tui_trainer.hardware.gpu_models import CARDS, Card, Rates
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.models.shape import shape_of
from tui_trainer.planning import duration
from tui_trainer.planning.duration import (
    answer_seconds,
    card_flops_per_second,
    checkpointing_cost,
    generated_token_seconds,
    recomputed_share,
    step_time,
    training_flops,
)
from tui_trainer.planning.measured_steps import Calibration
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.runs import events as e
from tui_trainer.runs.state import apply_events
from tui_trainer.runs.steps_and_eta import eta_seconds
from tui_trainer.runs.wording import planned_time_words


@pytest.fixture
def matrices_at_100_gflops(monkeypatch):
    monkeypatch.setattr(duration, "matrix_flops_per_second", lambda: 100e9)


def test_a_measured_step_is_preferred_to_a_measured_rate_and_both_to_a_timed_matrix_product(matrices_at_100_gflops):
    measured = step_time(50e9, 128, Calibration(step_seconds=0.7, flops_per_second=1e9))
    assert measured.value == 0.7 and "the same steps" in measured.reason
    assert step_time(50e9, 128, Calibration(flops_per_second=25e9)).value == pytest.approx(2.0)
    timed = step_time(50e9, 150, Calibration())
    assert timed.value == pytest.approx(0.5 / 0.5) and "numpy" in timed.reason


def test_one_slow_timing_does_not_change_the_time_of_a_plan(monkeypatch, tmp_path):
    """Matmuls that were six times as slow beside another program made a plan of 7:37 out of one of 1:09."""
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path))

    def planned(rate: float) -> float | None:
        monkeypatch.setattr(duration, "matrix_flops_per_second", lambda: rate)
        return step_time(50e9, 150, Calibration(), device="a processor, 2 threads").value

    assert [planned(rate) for rate in (100e9, 15e9, 125e9, 99e9)] == pytest.approx([1.0, 1.0, 0.8, 0.8])
    assert [planned(16e9 + n) for n in range(12)][-1] == pytest.approx(100 / 16, rel=1e-6), "only the last ones count"


def test_learning_rate_seed_and_weight_decay_do_not_change_time_or_memory_of_a_plan(tiny_config, monkeypatch):
    monkeypatch.setattr(duration, "matrix_flops_per_second", lambda: 100e9)
    changes = {"training.learning_rate": 3e-5, "training.seed": 7, "training.weight_decay": 0.3}
    before, after = estimated_plan(tiny_config("one")), estimated_plan(tiny_config("two", changes))
    assert (before.shape_key, before.step_seconds) == (after.shape_key, after.step_seconds)
    assert before.memory_key == after.memory_key


def test_a_plan_counts_the_time_to_start_operations_unless_compiled(tiny_config, monkeypatch):
    monkeypatch.setattr(duration, "_numpy_operation_seconds", lambda: 2 * duration.NUMPY_OPERATION_SECONDS)
    plan = estimated_plan(tiny_config("one"))
    layers = plan.model_shape().layers
    assert plan.compute_rates.starting_seconds == pytest.approx(2 * layers * 0.92e-3) and layers > 0
    starting = plan.gradient_accumulation_steps.value * plan.compute_rates.starting_seconds
    assert plan.step_seconds.value > starting and "launch overhead" in plan.step_seconds.reason
    compiled = estimated_plan(tiny_config("two", {"training.torch_compile": "true"}))
    assert compiled.compute_rates.starting_seconds == 0


def test_a_small_model_on_a_card_takes_as_long_as_starting_its_operations():
    setup = TrainingSetup(device="cuda", precision="bf16")
    found = step_time(1e9, 768, Calibration(), setup, card(bf16=989), starts=11e-3)
    assert found.value == 11e-3 and "launch overhead takes longer than computing" in found.reason


def test_a_generated_token_costs_more_than_a_pass_and_rows_of_one_batch_share_it():
    setup = TrainingSetup(device="cuda")
    shapes = [shape_of(config_of("llama", num_hidden_layers=layers)) for layers in (1, 2)]
    one_layer, two_layers = (generated_token_seconds(shape, setup) for shape in shapes)
    assert one_layer - (two_layers - one_layer) == pytest.approx(0.5e-3, rel=0.1)
    each = [answer_seconds(shapes[0], setup, None, rows, 10) for rows in (1, 16, 17, 33)]
    assert each == pytest.approx([each[0], each[0], 2 * each[0], 3 * each[0]])


def test_a_short_run_is_planned_to_the_second_only_where_its_steps_were_measured():
    for seconds, is_measured, words in (
        (0.2, False, "under a minute"), (59.0, False, "under a minute"), (75.0, False, "about 1 min 15 s"),
        (75.0, True, "about 1 min 15 s"), (59.0, True, "about 59.0 s after loading"), (9.0, True, "under a minute"),
        (None, False, "time unknown"),
    ):  # fmt: skip
        assert planned_time_words(seconds, is_measured=is_measured) == words


def test_an_evaluated_row_takes_a_third_of_the_time_of_a_trained_one(tiny_config):
    plan = estimated_plan(tiny_config("evaluated", {"evaluation.eval_steps": 2}))
    step_seconds = plan.step_seconds.value
    evaluations_seconds = plan.duration_seconds.value - plan.total_steps.value * step_seconds
    assert "10 steps and 5 evaluations" in plan.duration_seconds.reason
    each_seconds = step_seconds / plan.effective_batch_size.value / 3
    assert evaluations_seconds == pytest.approx(5 * plan.eval_rows.value * each_seconds)


def card(**rates):
    return Card("some card", ("some card",), (8, 0), 40, 1000, Rates(**rates), "a data sheet")


def test_a_card_reaches_a_share_of_the_rate_in_its_data_sheet():
    setup = TrainingSetup(device="cuda", precision="bf16")
    found = step_time(1e15, 2048, Calibration(), setup, card(bf16=100))
    assert found.value == pytest.approx(10 / 0.40, rel=0.02)
    assert "some card" in found.reason and "a data sheet" in found.reason
    # The utilisation of published runs on an H100, by the width of the model.
    h100 = next(card for card in CARDS if card.title == "H100 SXM")
    for width, utilisation in ((1536, 0.349), (2048, 0.418), (4096, 0.464)):
        assert 1 / step_time(989e12, width, Calibration(), setup, h100).value == pytest.approx(utilisation, rel=0.1)


def test_a_card_or_rate_that_the_catalogue_lacks_is_measured_rather_than_guessed():
    setup = TrainingSetup(device="cuda", precision="bf16")
    for unknown in (None, card(fp32=10)):
        found = step_time(1e15, 2048, Calibration(), setup, unknown)
        assert found.value is None and "measure one step first" in found.reason
        assert step_time(1e15, 2048, Calibration(step_seconds=3.0), setup, unknown).value == 3.0


def test_each_precision_has_its_own_rate():
    known = card(fp32=10, tf32=20, bf16=40, fp16=50)
    rates = [({}, 20), ({"tf32": False}, 10), ({"precision": "bf16"}, 40), ({"precision": "fp16"}, 50)]
    for changes, teraflops in rates:
        assert card_flops_per_second(known, TrainingSetup(device="cuda", **changes)) == teraflops * 1e12, changes


def flops(setup, **changes):
    return training_flops(shape_of(config_of("llama")), setup, **{"tokens": 1, "row_tokens": 10, **changes})


def test_operations_of_full_training_lora_checkpointing_and_packed_documents():
    shape, attention = shape_of(config_of("llama")), 12 * 2 * 96 * 10
    read = shape.matrix_parameters_read("source")
    assert flops(TrainingSetup()) == 6 * read + attention
    assert flops(TrainingSetup(), tokens=7) == 7 * flops(TrainingSetup())
    adapters = 5 * sum(x.count * (x.inputs + x.outputs) for x in shape.linears if not x.is_head)
    lora = flops(setup_of("llama", lora=True))
    assert lora == 4 * read + 6 * adapters + attention, "without gradients of frozen weights"
    # Checkpointing repeats the forward pass of the layers but not of the head.
    again = flops(TrainingSetup(gradient_checkpointing=True)) - flops(TrainingSetup())
    assert again == 2 * (read - 96 * 40) + attention / 3
    # A GPU attends within documents, a CPU to the whole row.
    on_card = TrainingSetup(device="cuda", packed=True)
    assert flops(on_card, document_tokens=5.0) == flops(on_card, row_tokens=5)
    assert flops(TrainingSetup(packed=True), document_tokens=5.0) == flops(TrainingSetup())


def test_gradient_checkpointing_costs_the_recomputed_share_until_both_were_measured():
    shape = shape_of(config_of("llama"))
    full, lora = TrainingSetup(), TrainingSetup(method="lora", lora_rank=8, lora_targets=("q_proj", "v_proj"))
    shares = [recomputed_share(shape, setup, 10) for setup in (full, lora)]
    assert shares[0] == flops(replace(full, gradient_checkpointing=True)) / flops(full) - 1
    # Without gradients of frozen weights one more forward pass is more of the whole; the head has none.
    assert 0 < shares[0] < 1 / 3 and shares[0] < shares[1] < 1 / 2
    assert checkpointing_cost(0.3, 1.4, None).value == checkpointing_cost(0.3, None, 1.0).value == 0.3
    cost = checkpointing_cost(0.3, 1.4, 1.0)
    assert cost.value == pytest.approx(0.4) and cost.reason == "measured here with and without checkpointing"


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
        data_seconds=0.1, forward_seconds=0.1, backward_seconds=0.2, optimizer_seconds=0.1, tokens_per_second=1.0,
        samples_per_second=1.0, peak_memory_bytes=10,
    )  # fmt: skip


def test_the_remaining_time_counts_evaluations_and_saves_that_are_still_due():
    ten_steps, thirty_steps = map(step, range(1, 11)), map(step, range(1, 31))
    # Before the first of each, the plan estimates them: 120 rows, at 8 rows a second of training, of which a third
    # is the forward pass.
    estimated_evaluation, save = 120 / 8 / 3, 12e6 / 300e6
    events = [started(), planned(eval_every_steps=30, save_every_steps=50), *ten_steps]
    assert eta_seconds(apply_events(events)) == pytest.approx(90 * 0.5 + 4 * estimated_evaluation + 2 * save)
    measured = e.EvalDone(step=30, loss_sum=1.0, tokens=1, loss=1.0, seconds=2.0, scheduled=True, best=True)
    events = [started(), planned(eval_every_steps=30, save_every_steps=0), *thirty_steps, measured]
    assert eta_seconds(apply_events(events)) == pytest.approx(70 * 0.5 + 3 * 2.0 + save)
    events = [started(), planned(eval_every_steps=10, save_every_steps=0, eval_rows=0), *map(step, range(1, 11))]
    assert eta_seconds(apply_events(events)) == pytest.approx(90 * 0.5 + save), "no held-out rows"
    events = [started(), planned(eval_every_steps=30, save_every_steps=30), *map(step, range(1, 101))]
    assert eta_seconds(apply_events(events)) == 0
