"""Families that overflow in fp16: never chosen, refused where it is asked for, and named where a loss is not finite."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.planning.test_profiles_on_machines import loaded_on, machine
from tui_trainer.errors import RunError
from tui_trainer.models.config_json import OVERFLOWS_IN_FP16, fp16_problems
from tui_trainer.planning import automatic_values as choices
from tui_trainer.training.clock import Between
from tui_trainer.training.position import Position
from tui_trainer.training.recorder import Recorder
from tui_trainer.training.step import StepReport

T4, A100 = machine("Tesla T4", (7, 5), 15360), machine("NVIDIA A100-SXM4-40GB", (8, 0), 40960)


@pytest.mark.parametrize(
    ("family", "on_t4"),
    [("llama", "fp16"), ("gemma2", "fp16"), ("t5", "fp32"), ("gemma3_text", "fp32"), ("gemma3n_text", "fp32"),
     ("gemma4_text", "fp32"), ("gpt_oss", "fp32")],
)  # fmt: skip
def test_auto_does_not_choose_fp16_for_a_family_that_overflows_in_it(family, on_t4):
    for hardware, expected in ((T4, on_t4), (A100, "bf16")):
        shape = SimpleNamespace(model_type=family, hidden_size=640)
        found = choices.precision(loaded_on(hardware), hardware, choices.TrainingDevice.of(hardware), shape)
        assert found.value == expected
        assert ("overflows in fp16" in found.reason) == (expected == "fp32")


@pytest.mark.parametrize("setting", ["training.mixed_precision=fp16", "model.dtype=float16"])
def test_fp16_that_is_asked_for_is_refused_with_what_to_do(setting):
    config = loaded_on(T4, assignments=(setting,)).config
    (problem,) = fp16_problems(config, "gemma3_text")
    assert problem.key == setting.partition("=")[0] and "gemma3_text overflows in fp16" in problem.message
    assert "auto" in problem.hint
    assert not fp16_problems(config, "llama")
    assert not fp16_problems(loaded_on(T4).config, "gemma3_text")


def test_every_family_names_its_source():
    assert all("/" in source for source in OVERFLOWS_IN_FP16.values())
    assert len(OVERFLOWS_IN_FP16) == 14


@pytest.mark.parametrize(("fp16", "said", "unsaid"), [
    (True, 'training.mixed_precision = "no"', "lower training.learning_rate"),
    (False, "lower training.learning_rate", "mixed_precision"),
])  # fmt: skip
def test_a_loss_of_fp16_that_is_not_finite_asks_for_fp32_and_not_for_a_lower_rate(fp16, said, unsaid):
    marks = {"data_seconds": 0.0, "forwards": ((0.0, 1.0),), "accumulated": 2.0, "updated": 3.0}
    report = StepReport(loss_sum=torch.tensor(float("nan")), grad_norm=torch.tensor(float("nan")), tokens=4,
                        input_tokens=4, samples=1, lr=0.0, **marks)  # fmt: skip
    written: list[object] = []
    journal = SimpleNamespace(append=lambda *events: written.extend(events))
    recorder = Recorder(
        journal, Position(), torch.device("cpu"), Between(journal), steps_per_epoch=1, group=1, clipped_by_scale=fp16
    )
    with pytest.raises(RunError) as raised:
        recorder.add(1, report)
    assert said in str(raised.value) and unsaid not in str(raised.value)
    assert len(written) == 1
