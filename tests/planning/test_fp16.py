"""Model families that overflow in fp16: never chosen, refused on request, and named for a loss that is not finite."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.planning.test_profiles_on_machines import loaded_on, machine
from tui_trainer.errors import RunError
from tui_trainer.models.config_json import fp16_problems
from tui_trainer.planning import automatic_values as choices

T4, A100 = machine("Tesla T4", (7, 5), 15360), machine("NVIDIA A100-SXM4-40GB", (8, 0), 40960)


CHOSEN_ON_T4 = [("llama", "fp16"), ("gemma2", "fp16")]
CHOSEN_ON_T4 += [(family, "fp32") for family in ("t5", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt_oss")]


def test_auto_never_chooses_fp16_for_a_family_that_overflows(subtests):
    for family, on_t4 in CHOSEN_ON_T4:
        with subtests.test(family):
            for hardware, expected in ((T4, on_t4), (A100, "bf16")):
                shape = SimpleNamespace(model_type=family, hidden_size=640)
                found = choices.precision(loaded_on(hardware), hardware, choices.TrainingDevice.of(hardware), shape)
                assert found.value == expected
                assert ("overflows in fp16" in found.reason) == (expected == "fp32")


def test_fp16_on_request_is_refused_for_a_family_that_overflows():
    assert not fp16_problems(loaded_on(T4).config, "gemma3_text")
    for setting in ("training.mixed_precision=fp16", "model.dtype=float16"):
        config = loaded_on(T4, assignments=(setting,)).config
        (problem,) = fp16_problems(config, "gemma3_text")
        assert problem.key == setting.partition("=")[0] and "gemma3_text overflows in fp16" in problem.message
        assert "auto" in problem.hint
        assert not fp16_problems(config, "llama")


@pytest.mark.full
def test_a_loss_that_is_not_finite_asks_for_fp32_under_fp16_and_else_for_a_lower_learning_rate():
    import torch

    from tui_trainer.training.clock import BetweenStepsTimer
    from tui_trainer.training.position import Position
    from tui_trainer.training.recorder import Recorder
    from tui_trainer.training.step import StepReport

    marks = {"data_seconds": 0.0, "forwards": ((0.0, 1.0),), "accumulated_mark": 2.0, "updated_mark": 3.0}
    nan = torch.tensor(float("nan"))
    report = StepReport(loss_sum=nan, grad_norm=nan, token_count=4, input_tokens=4, samples=1, lr=0.0, **marks)
    for fp16, hint, other in (
        (True, 'training.mixed_precision = "no"', "lower training.learning_rate"),
        (False, "lower training.learning_rate", "mixed_precision"),
    ):
        events: list[object] = []
        journal = SimpleNamespace(append=lambda *more, events=events: events.extend(more))
        settings = {"steps_per_epoch": 1, "group": 1, "clipped_by_scale": fp16}
        recorder = Recorder(journal, Position(), torch.device("cpu"), BetweenStepsTimer(journal), **settings)
        with pytest.raises(RunError) as raised:
            recorder.add(1, report)
        assert hint in str(raised.value) and other not in str(raised.value)
        assert len(events) == 1
