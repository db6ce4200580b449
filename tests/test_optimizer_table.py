"""Optimizers, schedules and tuning methods are rows of tables: everything about one is read from its row."""

from __future__ import annotations

import json
import pkgutil
from itertools import product
from typing import get_args

import pytest
import torch
from torch import nn
from transformers import get_scheduler

from tui_trainer import tuning
from tui_trainer.advice.gather import gather
from tui_trainer.advice.rules.learning import Optimizer
from tui_trainer.config.explain import describe
from tui_trainer.config.fields import settings_of
from tui_trainer.config.load import Request, all_settings
from tui_trainer.config.sections import Config
from tui_trainer.errors import ConfigError
from tui_trainer.importing import rules as values
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.methods import optimizers
from tui_trainer.methods.lr_schedules import LR_SCHEDULES, DecayType, LrCurve, ScheduleSpec
from tui_trainer.methods.optimizers import OPTIMIZERS, OptimizerSpec, PeakRate
from tui_trainer.methods.tuning_methods import TUNING_METHODS
from tui_trainer.runs.events import StepDone
from tui_trainer.runs.journal import read_all
from tui_trainer.training.optimizer import RunOptimizer

ROW = OptimizerSpec(
    label="momentum",
    help="a heavy ball",
    build=lambda groups, lr, _training: torch.optim.SGD(groups, lr=lr, momentum=0.5),
    learning_rates={start: PeakRate(0.25, 0.1, 0.5) for start in ("scratch", "lora", "full")},
    learning_rate_reason="a ball rolls far",
    state_bytes=4.0,
    state_words="one heavy ball",
    state_keys=frozenset({"momentum_buffer"}),
    shaped_keys=frozenset({"momentum_buffer"}),
)
TOTALS = (1, 2, 7, 40)


@pytest.fixture
def heavy_ball(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "heavy_ball", ROW)
    all_settings.cache_clear()
    yield "heavy_ball"
    all_settings.cache_clear()


@pytest.fixture
def settings(tmp_path):
    """Return `settings("training.optim=sgd")`, which loads a config of a small character model."""
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 400)
    small = {"data.path": text, "data.max_length": 32, "model.scratch.hidden_size": 16, "training.max_steps": 2,
             "model.scratch.num_attention_heads": 2, "model.scratch.num_hidden_layers": 1, "logging.sample_steps": 0,
             "training.effective_batch_size": 4, "output.runs_dir": tmp_path / "runs"}  # fmt: skip
    given = tuple(f"{key}={value}" for key, value in small.items())
    return lambda *more: load_config(Request(assignments=(*given, *more)))


def test_new_row_is_a_new_optimizer(heavy_ball, settings):
    assert heavy_ball in all_settings()["training.optim"].choices
    loaded = settings(f"training.optim={heavy_ball}", "training.learning_rate=auto")
    explained = "\n".join(describe(all_settings()["training.optim"], loaded))
    assert "heavy_ball: momentum, a heavy ball" in explained and '"heavy_ball"' in explained
    assert heavy_ball in Config.model_json_schema()["$defs"]["TrainingSection"]["properties"]["optim"]["enum"]

    opened = open_new(loaded)
    assert carry_out(opened).exit_code == 0
    plan = json.loads((opened.folder.root / "plan.json").read_text())
    assert plan["learning_rate"]["value"] == 0.25 and "a ball rolls far" in plan["learning_rate"]["reason"]
    state = next(part["bytes"] for part in plan["memory_parts"] if part["name"] == "optimizer")
    assert state == 4 * plan["trained_parameters"]["value"] > 0
    assert "one heavy ball" in json.dumps(plan)
    assert Optimizer().before(gather(loaded)).evidence.startswith("momentum on ")


def test_state_of_a_new_optimizer_is_saved_and_restored(heavy_ball, settings):
    training = settings(f"training.optim={heavy_ball}").config.training
    model = nn.Linear(3, 2)
    optimizer = RunOptimizer(model, training, lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.apply(torch.tensor(1.0), lr=0.1, max_grad_norm=0.0)
    assert set(optimizer.tensors()) == {"weight.momentum_buffer", "bias.momentum_buffer"}
    again = RunOptimizer(model, training, lr=0.1)
    again.load_shards([optimizer.tensors()])
    assert again.tensors().keys() == optimizer.tensors().keys()


@pytest.mark.full
def test_adamw_has_the_losses_of_fused_adamw(settings):
    losses = {}
    for optim in ("adamw_torch_fused", "adamw_torch", "sgd"):
        opened = open_new(
            settings(
                f"training.optim={optim}", f"output.name={optim}", "training.max_steps=12", "logging.logging_steps=1"
            )
        )
        assert carry_out(opened).exit_code == 0
        plan = json.loads((opened.folder.root / "plan.json").read_text())
        assert plan["config"]["training"]["optim"] == optim
        losses[optim] = [event.loss for event in read_all(opened.folder.journal) if isinstance(event, StepDone)]
    fused, plain, other = losses.values()
    assert len(fused) == 12 and plain == pytest.approx(fused, rel=1e-5)
    assert other != pytest.approx(fused, rel=1e-3), "the control"


def test_unknown_name_is_refused_with_the_known_ones(settings):
    for key, table in (("optim", OPTIMIZERS), ("lr_scheduler_type", LR_SCHEDULES)):
        with pytest.raises(ConfigError) as caught:
            settings(f"training.{key}=heavy_ball")
        assert all(f'"{name}"' in str(caught.value) for name in table)


def test_every_tuning_method_is_a_row_and_a_file():
    files = {module.name for module in pkgutil.iter_modules(tuning.__path__)}
    # `full` of some layers, which `tuning.trainable_layers` names, and what adapters begin with.
    assert (
        files - {"some_layers", "adapter_init"} == set(TUNING_METHODS) == set(all_settings()["tuning.method"].choices)
    )
    assert all(tuning.find_method(name).name == name for name in TUNING_METHODS)
    assert [TUNING_METHODS[name].libraries for name in ("full", "lora", "qlora")] == [
        (), ("peft",), ("peft", "bitsandbytes")
    ]  # fmt: skip


def test_every_row_is_complete():
    assert len(OPTIMIZERS) >= 6 and len(LR_SCHEDULES) >= 6
    for name, row in OPTIMIZERS.items():
        assert row.label and row.help and set(row.learning_rates) == {"scratch", "lora", "full"}, name
        assert row.needed_keys | row.shaped_keys | row.number_keys <= row.state_keys, name
        assert all(rate.least < rate.auto < rate.most for rate in row.learning_rates.values()), name
        assert set(row.smaller) <= set(OPTIMIZERS) - {name}, name
    assert optimizers.DEFAULT in OPTIMIZERS and not OPTIMIZERS[optimizers.ADAFACTOR].library
    aliases = [alias for row in OPTIMIZERS.values() for alias in row.aliases]
    assert len(aliases) == len(set(aliases)) and not set(aliases) & set(OPTIMIZERS)
    assert set(values.OPTIMIZERS) == {*aliases, "adamw_torch"}, "which is imported as the fused one"


def arguments_of(name, curve):
    """Return the name of a schedule in transformers and its arguments there."""
    if name == "cosine" and curve.min_lr_rate:
        return "cosine_with_min_lr", {"min_lr_rate": curve.min_lr_rate}
    if name != "warmup_stable_decay":
        return name, None
    of_curve = {"num_decay_steps": curve.decay_steps, "decay_type": curve.decay_type, "min_lr_ratio": curve.min_lr_rate}
    return name, of_curve


SHAPES = [
    *((name, 0.0, "cosine") for name in LR_SCHEDULES),
    *(("cosine", floor, "cosine") for floor in (0.1, 0.3)),
    *(("warmup_stable_decay", floor, kind) for floor in (0.0, 0.3) for kind in get_args(DecayType)),
]


def test_every_schedule_equals_that_of_transformers_at_every_step(subtests):
    for (name, floor, kind), peak in product(SHAPES, (3e-4, 0.1)):
        with subtests.test(f"{name}, floor {floor}, {kind}, peak {peak}"):
            for total in TOTALS:
                for warmup in {0, 1, total // 3, total - 1}:
                    assert_equals_transformers(name, peak, warmup, total, kind, floor)


def assert_equals_transformers(name: str, peak: float, warmup: int, total: int, kind: DecayType, floor: float) -> None:
    curve = LrCurve(
        peak=peak, warmup_steps=warmup, total_steps=total, decay_steps=max(0, total - warmup + 1) // 2,
        decay_type=kind, min_lr_rate=floor,
    )  # fmt: skip
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=peak)
    theirs, arguments = arguments_of(name, curve)
    known = get_scheduler(theirs, optimizer, warmup, total, scheduler_specific_kwargs=arguments).lr_lambdas[0]
    rate = LR_SCHEDULES[name].learning_rate(curve)
    steps = total + 3 if warmup < total else total  # after a warm-up to the end there is no decay
    assert [rate(step) for step in range(1, steps + 1)] == [peak * known(done) for done in range(steps)]


def test_new_row_is_a_new_schedule(monkeypatch, settings):
    row = ScheduleSpec(label="half", help="half the peak", decay=lambda *_: 0.5, warms_up=False)
    monkeypatch.setitem(LR_SCHEDULES, "half", row)
    assert "half" in settings_of(Config)["training.lr_scheduler_type"].choices
    loaded = settings("training.lr_scheduler_type=half", "training.learning_rate=0.01", "logging.logging_steps=1")
    opened = open_new(loaded)
    assert carry_out(opened).exit_code == 0
    steps = [json.loads(line) for line in opened.folder.journal.read_text().splitlines() if '"StepDone"' in line]
    assert [step["lr"] for step in steps] == [0.005, 0.005]
