"""Every way of training on a simulated card: two steps, an evaluation and checkpoints of a real run.

The places where the host may wait for the card are listed in `waits.py`; any other wait fails the test and names its
line.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product

import pytest
import torch
from safetensors.torch import load_file

from tests.simulated_card.cases import TASKS, of_kind, saved_tensors
from tests.simulated_card.kernels import VARLEN, VARLEN_BACKWARD, WIDE_PRODUCT
from tests.simulated_card.liger_stand_in import calls as liger
from tests.simulated_card.waits import EVALUATION, LOG, ONCE_AN_EVALUATION, unexpected_waits
from tests.tiny_models import save_tiny_model, tiny_model
from tui_trainer.launching.prepare import read_plan
from tui_trainer.methods.optimizers import MUON, OPTIMIZERS
from tui_trainer.runs.events import CheckpointSaved, EvalDone, RunProblem, StepDone

METHODS = ("full", "lora", "qlora")
PRECISIONS = ("bf16", "fp16", "fp32")
LAYOUTS = ("by lengths", "by mask", "padded")
SWITCHES = {
    "one pass": {"training.per_device_train_batch_size": 4},
    "accumulation": {"training.per_device_train_batch_size": 2},
    "checkpointing": {"training.gradient_checkpointing": "true"},
    "chunked loss": {"training.loss_chunk_tokens": 8},
    "deterministic": {"training.deterministic": "true"},
}
KERNELS = ("none", "liger")
HEADS = ("classifier", "pooler", "qa_outputs", "score")
PACKED_TASKS = ("causal_lm", "chat", "preference", "kto")
CHUNKED_TASKS, DECODERS = (*PACKED_TASKS, "char_lm", "seq2seq"), (*PACKED_TASKS, "char_lm")
# States in 4 bits are stopped and resumed in `test_resume.py`: what differs from 8 is their shape.
OPTIMIZERS_HERE = tuple(name for name in OPTIMIZERS if name != "adamw_torch_4bit")
# The problems that are none here: parts of a model that are new, which a classifier's head is.
EXPECTED_PROBLEMS = {"new weights", "kernels", "compiled"}


def is_possible(task: str, method: str, precision: str, layout: str, switch: str, optim: str, kernels: str) -> bool:
    if kernels == "liger" and task not in DECODERS:
        return False  # it has none for BERT and BART
    if OPTIMIZERS[optim].compiles and task != "causal_lm":
        return False  # no optimizer knows the task, and each more in all tasks is as many cases more
    if task == "char_lm" and method != "full":
        return False  # nothing pretrained: no weight can be frozen
    if optim == MUON and method != "full":
        return False  # adapters are narrow: refused by the plan
    if layout != "padded" and task not in PACKED_TASKS:
        return False  # each row is read alone
    if layout == "by lengths" and precision == "fp32":
        return False  # the kernel takes 16 bits: by mask
    if switch == "deterministic" and (kernels == "liger" or OPTIMIZERS[optim].compiles):
        return False  # no library promises the same bits
    return switch != "chunked loss" or task in CHUNKED_TASKS  # a classifier has no vocabulary


def settings_of(task, method, precision, layout, switch, optim, kernels):
    packing = {"data.packing": str(layout != "padded").lower()} if task in PACKED_TASKS else {}
    named = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}[precision]
    chosen = {"tuning.method": method, "training.mixed_precision": named, "training.optim": optim}
    chosen["model.kernels"] = kernels
    return chosen | packing | SWITCHES[switch]


AXES = {
    "task": TASKS, "method": METHODS, "precision": PRECISIONS, "layout": LAYOUTS, "switch": SWITCHES,
    "optim": OPTIMIZERS_HERE, "kernels": KERNELS,
}  # fmt: skip


# No optimizer knows what a loss is made of: these values are not combined with each of its own.
NEED_NO_PAIR = {("optim", other) for other in ("task", "layout", "switch", "kernels")}


def covering(possible: Sequence[tuple[str, ...]], together: int) -> Iterator[tuple[str, ...]]:
    """Yield combinations greedily until all values (or pairs of values of axes that need them) are covered."""
    axes = [axes for axes in combinations(AXES, together) if NEED_NO_PAIR.isdisjoint([axes, axes[::-1]])]
    found = {
        values: {(names, *(value[name] for name in names)) for names in axes}
        for values in possible
        for value in [dict(zip(AXES, values, strict=True))]
    }
    missing = set().union(*found.values())
    while missing:
        best = max(possible, key=lambda values: len(found[values] & missing))
        missing -= found[best]
        yield best


def pytest_generate_tests(metafunc):
    """Mark combinations that cover each single value `full`, those that cover each pair `e2e`, and all others `slow`.

    The thousands of others take hours, and are generated on request only: collecting them takes seconds.
    """
    if AXES.keys() <= set(metafunc.fixturenames):
        possible = [values for values in product(*AXES.values()) if is_possible(*values)]
        pairs = list(covering(possible, 2))
        singles = set(covering(pairs, 1))
        marks = {values: pytest.mark.full if values in singles else pytest.mark.e2e for values in pairs}
        chosen = possible if metafunc.config.option.markexpr == "slow" else pairs
        metafunc.parametrize(
            tuple(AXES), [pytest.param(*values, marks=marks.get(values, pytest.mark.slow)) for values in chosen]
        )


def test_each_combination_trains_evaluates_and_saves(
    task, method, precision, layout, switch, optim, kernels, run_on_card
):
    check_run(run_on_card, task, method, precision, layout, switch, optim, kernels)


def test_a_packed_run_with_kernels_waits_for_the_card_only_where_listed(run_on_card):
    check_run(run_on_card, "causal_lm", "lora", "bf16", "by lengths", "accumulation", "adamw_torch_fused", "liger")


def check_run(run_on_card, task, method, precision, layout, switch, optim, kernels):
    settings = settings_of(task, method, precision, layout, switch, optim, kernels)
    card, folder, failure = run_on_card(task, settings, layout)
    assert not failure, failure
    plan = read_plan(folder)
    assert (plan.device, plan.precision.value) == ("cuda", precision)
    assert plan.packing.value == (layout != "padded")
    assert bool(card.computed.get(VARLEN_BACKWARD)) == (layout == "by lengths") == bool(card.computed.get(VARLEN))
    problems = of_kind(folder, RunProblem)
    assert [problem for problem in problems if problem.kind not in EXPECTED_PROBLEMS] == []
    assert ("kernels" in {problem.kind for problem in problems}) == (kernels == "liger") == bool(liger.norms_backward)
    assert bool(liger.losses) == (kernels == "liger")
    steps, evaluations = of_kind(folder, StepDone), of_kind(folder, EvalDone)
    assert [step.step for step in steps] == [1, 2] and len(evaluations) == 1
    assert all(step.grad_norm > 0 and step.peak_memory_bytes > 0 for step in steps)
    assert bool(card.tf32_products) == (precision == "fp32" and switch != "deterministic")
    check_waits(card, plan, steps)
    check_checkpoint(folder, plan, method, precision)
    gc.collect()
    assert card.allocated_bytes == 0, "a finished run leaves memory allocated on the card"


@pytest.mark.full
def test_adapters_are_cast_once_a_step_however_often_they_are_used(run_on_card, subtests):
    """Two passes a step, each layer computed twice in a pass; r is a size that nothing else has."""
    for method, precision in (("lora", "bf16"), ("qlora", "bf16"), ("lora", "fp16")):
        with subtests.test(f"{method} {precision}"):
            settings = {
                "tuning.method": method, "training.mixed_precision": precision, "tuning.r": 3, "tuning.lora_dropout": 0,
                "training.per_device_train_batch_size": 2, "training.gradient_checkpointing": "true",
                "evaluation.eval_steps": 1, "output.name": f"{method}-{precision}",
            }  # fmt: skip
            card, folder, failure = run_on_card("causal_lm", settings)
            assert not failure, failure
            assert of_kind(folder, RunProblem) == [] and card.computed[WIDE_PRODUCT] > 0
            phases = ("micro-batches", "evaluation")
            assert [shape for phase, shape in card.casts if phase in phases and 3 in shape] == []


# These pass a step over by themselves.
FUSED = ("adamw_torch_fused", "sgd")


def check_waits(card, plan, steps) -> None:
    assert unexpected_waits(card) == []
    times = Counter((wait.phase, wait.function) for wait in card.waits)
    spec = OPTIMIZERS[plan.config.training.optim]
    asked = [wait for wait in card.waits if wait.phase == "update" and wait.what != "synchronize"]
    assert len(asked) == (0 if plan.config.training.optim in FUSED else len(steps))
    assert (spec.library == "bitsandbytes") == any(
        wait.phase == "update" and wait.what == "synchronize" for wait in card.waits
    )
    # The first step of a start is written at once, so that a person sees it.
    assert times[LOG] == 2
    # KTO's loss needs a mean over all rows, which takes a pass of its own.
    passes = 2 if plan.config.task.type == "kto" else 1
    assert times[EVALUATION] == passes and all(times[place] <= passes for place in ONCE_AN_EVALUATION)


def check_checkpoint(folder, plan, method, precision) -> None:
    last = of_kind(folder, CheckpointSaved)[-1]
    files = {path.name: load_file(path) for path in (folder.root / last.path).glob("*.safetensors")}
    weights = files["model.safetensors" if method == "full" else "adapter_model.safetensors"]
    state = files["optimizer.safetensors"]
    adapters = {name: tensor for name, tensor in weights.items() if "lora_" in name}
    heads = weights.keys() - adapters.keys()
    assert bool(adapters) == (method != "full")
    assert {tensor.dtype for tensor in adapters.values()} <= {torch.float32}
    # All of the model, or the head of a classifier, which is as the rest of it: in 16 bits with a copy in fp32.
    in_16_bits = {name for name in heads if weights[name].dtype in (torch.bfloat16, torch.float16)}
    assert not adapters or all(any(head in name for head in HEADS) for name in heads)
    assert all(tensor.isfinite().all() for tensor in (*weights.values(), *state.values()) if tensor.is_floating_point())
    keys = {name.rpartition(".")[2] for name in state}
    assert ("master" in keys) == bool(in_16_bits)
    spec = OPTIMIZERS[plan.config.training.optim]
    assert spec.needed_keys <= keys - {"master"} <= spec.state_keys
    random = files["rng_state.safetensors"]
    assert random.keys() == {"cpu", "cuda"} | ({"loss_scale", "loss_scale_steps"} if precision == "fp16" else set())


@pytest.mark.full
@pytest.mark.parametrize("task", ["preference", "kto"])
def test_a_loss_of_named_parts_waits_for_the_card_nowhere_in_a_step(run_on_card, task):
    """The parts have scores beside them: `preference` has two parts, and `kto` a mean over the whole step."""
    settings = {"training.per_device_train_batch_size": 2, "evaluation.generate_rows": 0}
    settings |= {"task.sft_weight": 0.5} if task == "preference" else {}
    card, folder, failure = run_on_card(task, settings)
    assert not failure, failure
    assert unexpected_waits(card) == []
    steps, [held_out] = of_kind(folder, StepDone), of_kind(folder, EvalDone)
    assert len(steps) == 2 and all(step.sums.keys() == step.counts.keys() for step in steps)
    # The accuracy and the margin of marked answers are those of an evaluation.
    assert steps[0].sums.keys() <= held_out.scores.keys() and {"accuracy", "reward_margin"} <= held_out.scores.keys()
    assert {"likelihood"} <= steps[0].sums.keys() if task == "preference" else {"kl"} <= steps[0].sums.keys()


@pytest.mark.full
@pytest.mark.skipif(
    torch.__version__ < "2.12", reason="the gradient of torch 2.11's router makes a tensor that is not the card's"
)
def test_a_mixture_of_experts_waits_for_the_card_only_where_listed(run_on_card, monkeypatch, subtests):
    monkeypatch.setitem(TASKS, "causal_lm", replace(TASKS["causal_lm"], family="mixtral"))
    for layout in LAYOUTS:
        with subtests.test(layout):
            settings = {"data.packing": str(layout != "padded").lower(), "training.per_device_train_batch_size": 2}
            card, folder, failure = run_on_card("causal_lm", settings, layout, name=layout.replace(" ", "-"))
            assert not failure, failure
            assert unexpected_waits(card) == []
            assert len(of_kind(folder, StepDone)) == 2


@pytest.mark.full
def test_a_model_stored_in_16_bits_trains_in_bf16_with_masters_of_its_stored_weights(run_on_card, models, subtests):
    for dtype in (torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        with subtests.test(name):
            folder = save_tiny_model(models / f"llama-{name}", "llama")
            tiny_model("llama").to(dtype).save_pretrained(folder)
            settings = {"model.model_name_or_path": folder, "tuning.method": "full", "training.learning_rate": 1e-9}
            card, run, failure = run_on_card("causal_lm", settings | {"training.mixed_precision": "auto"}, name=name)
            assert not failure, failure
            planned = read_plan(run).weights_dtype
            assert (planned.value, card.tf32_products) == ("bfloat16", 0) and f"stored in {name}" in planned.reason
            stored, state = load_file(folder / "model.safetensors"), saved_tensors(run, 2)
            masters = {key.removesuffix(".master"): x for (_, key), x in state.items() if key.endswith(".master")}
            assert masters.keys() <= stored.keys() and len(masters) > 10
            for key, master in masters.items():
                torch.testing.assert_close(master, stored[key].float(), atol=1e-8, rtol=0)
