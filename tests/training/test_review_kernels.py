"""What only a GPU or a compiler does, as far as it can be shown without one."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.tiny_models import SHAPES, save_tiny_model, texts, tiny_model
from tui_trainer.config.load import Request
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.planning.attention import BY_LENGTHS, NOT_PLANNED, Attention
from tui_trainer.runs.events import RunProblem
from tui_trainer.runs.journal import read_all
from tui_trainer.training import compiled, components, process, varlen
from tui_trainer.training import evaluate as sample
from tui_trainer.training import probes as leak_probe
from tui_trainer.training.precision import MixedPrecision

CPU = torch.device("cpu")


def test_deterministic_kernels_are_demanded_and_not_only_wished_for(monkeypatch):
    """With `warn_only`, torch's attention kernels keep their backward pass that differs from run to run."""
    training, threads = SimpleNamespace(deterministic=True, tf32=True), SimpleNamespace(value=torch.get_num_threads())
    plan = SimpleNamespace(device="cuda", gpu_uuid="", threads=threads, config=SimpleNamespace(training=training))
    plan.attention = NOT_PLANNED
    monkeypatch.setattr(process, "device_of", lambda plan: CPU)
    with process.settings_of(plan):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        with sample._any_kernels():
            assert not torch.are_deterministic_algorithms_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_tf32_is_judged_as_coarse_as_16_bits():
    asked = SimpleNamespace(
        device=torch.device("cuda"), mixed_precision=MixedPrecision("fp32", CPU), model=torch.nn.Linear(2, 2)
    )
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert leak_probe._is_coarse(asked)
        torch.set_float32_matmul_precision("highest")
        assert not leak_probe._is_coarse(asked)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("family", "attention", "expected"), [
    ("llama", "sdpa", True), ("llama", "eager", False), ("gemma2", None, False),
])  # fmt: skip
def test_attention_by_lengths_stands_in_for_sdpa_only(family, attention, expected, monkeypatch):
    """Gemma 2 caps its scores: neither SDPA nor the kernel does, so the probe could not see the difference."""
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 8} if family == "gemma2" else {}  # fmt: skip
    monkeypatch.setitem(SHAPES, "gemma2", shape)
    model = tiny_model(family)
    if attention:
        model.set_attn_implementation(attention)
    before = model.config._attn_implementation
    (kernel,) = varlen.kernels(CPU)
    assert (not varlen.switch_on(model, kernel)) == expected
    assert model.config._attn_implementation == (varlen.NAME if expected else before)


def test_a_kernel_that_refuses_leaves_packing_to_the_mask(monkeypatch):
    def refuse(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size=(-1, -1), enable_gqa=False):
        raise RuntimeError("this head size is not supported")

    monkeypatch.setattr(varlen, "find_kernel", lambda: refuse)
    asked = components.Components.__new__(components.Components)
    asked.model, asked.device, asked.mixed_precision = tiny_model("llama"), CPU, MixedPrecision("fp32", CPU)
    asked.tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=2)
    asked.plan = SimpleNamespace(packing=SimpleNamespace(value=True), longest_row=64)
    asked.plan.attention = Attention(kernel=BY_LENGTHS, reason="documents are packed")
    draw = np.random.default_rng(5)
    rows = [draw.integers(3, 380, size=length, dtype=np.int32) for length in (12, 7, 19)]

    class Rows(list):
        def row(self, index):
            return self[index]

    told = []
    assert asked._packing(Rows(rows), lambda *what: told.append(what)) == (64, False)
    assert asked.model.config._attn_implementation == "sdpa"
    assert [kind for kind, *_ in told] == ["attention changed"]
    assert "torch: RuntimeError: this head size is not supported" in told[0][1]


# torch.compile


@pytest.mark.e2e
def test_a_run_that_could_not_be_compiled_is_not_padded_to_full_width(tmp_path, monkeypatch):
    seen, limit = [], torch._dynamo.config.recompile_limit

    def fail(found, tell):
        seen.append(found)
        return compile_layers(found, tell)

    compile_layers = compiled.compile_layers
    monkeypatch.setattr(compiled, "_try_one_pass", lambda *_: 1 / 0)
    monkeypatch.setattr(components, "compile_layers", fail)
    documents = tmp_path / "documents.jsonl"
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(60)))
    settings = {"data.max_length": 64, "training.effective_batch_size": 4, "training.max_steps": 2,
                "tuning.method": "full", "output.runs_dir": tmp_path / "runs",
                "training.torch_compile": "true", "data.packing": "false"}  # fmt: skip
    shortcuts = {"data.path": str(documents), "model.model_name_or_path": str(save_tiny_model(tmp_path / "m", "llama"))}
    assignments = tuple(f"{key}={value}" for key, value in settings.items())
    opened = open_new(load_config(Request(assignments=assignments, shortcuts=shortcuts)))
    outcome = carry_out(opened)
    assert outcome.exit_code == 0, outcome
    problems = [event.kind for event in read_all(opened.folder.journal) if isinstance(event, RunProblem)]
    assert problems == ["not compiled"]
    assert seen[0].batches.layout.fixed_width == seen[0].eval_layout.fixed_width == 0
    widths = {batch.inputs["input_ids"].shape[1] for step in (1, 2) for batch in seen[0].batches.at(step)}
    assert max(widths) < 64
    assert torch._dynamo.config.recompile_limit == limit, "the compiler's settings are put back"


@pytest.mark.parametrize(
    ("passes", "packed", "processes", "expected"),
    [(1, False, 1, "reduce-overhead"), (2, False, 1, None), (1, True, 1, None), (1, False, 2, None)],
)
def test_cuda_graphs_are_for_steps_of_one_pass(passes, packed, processes, expected):
    training = SimpleNamespace(torch_compile_mode="reduce-overhead")
    plan = SimpleNamespace(
        config=SimpleNamespace(training=training),
        packing=SimpleNamespace(value=packed),
        gradient_accumulation_steps=SimpleNamespace(value=passes),
        processes=SimpleNamespace(value=processes),
    )
    told = []
    assert compiled._mode(plan, lambda *what: told.append(what)) == expected
    assert bool(told) == (expected is None)


def test_passes_that_become_several_in_mid_run_leave_cuda_graphs(monkeypatch):
    """When memory has run out: layers compiled for one pass in a step are compiled anew."""
    model = torch.nn.Module()
    model._no_split_modules = ["Linear"]
    model.compiled, model.plain = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    model.compiled.compile(mode="reduce-overhead")
    modes, told = [], []
    monkeypatch.setattr(torch.nn.Linear, "compile", lambda self, mode: modes.append((self is model.compiled, mode)))
    compiled.without_cuda_graphs(model, lambda *what: told.append(what[0]))
    assert (modes, told) == ([(True, None)], ["another compile mode"])
