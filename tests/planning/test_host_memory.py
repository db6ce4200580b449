"""Memory of the machine beside a run on a GPU, by part, and what is reported if there is too little of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tui_trainer.advice.checklist import run_checks
from tui_trainer.advice.gather import gather
from tui_trainer.config.load import Request
from tui_trainer.errors import ConfigError
from tui_trainer.hardware.facts import Driver, Gpu, Hardware
from tui_trainer.launching.open_run import load_config
from tui_trainer.lines.plan_and_events import plan_lines
from tui_trainer.models.files.shards import SHARD_BYTES
from tui_trainer.planning import plan as planning
from tui_trainer.planning.memory.host import LIBRARIES_BYTES
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.units import GIB

CARD = Gpu(
    index=0, name="NVIDIA H200", uuid="GPU-0", capability=(9, 0), memory_bytes=141 * GIB, memory_free_bytes=140 * GIB
)
MACHINE = Hardware(
    cpu_name="Test CPU", usable_cores=8, memory_bytes=64 * GIB, memory_available_bytes=60 * GIB, platform="Linux",
    python_version="3.11", gpus=(CARD,), driver=Driver(version="580", cuda=(13, 0)), torch_cuda=(13, 0),
    libraries={"torch": "2.15.0", "peft": "0.18"},
)  # fmt: skip
FACTS = DataFacts(
    rows=400, eval_rows=0, tokens=40_000, eval_tokens=0, vocabulary=128_256, row_tokens=100.0, exact=True, reason="",
)  # fmt: skip


def planned(recipe, hardware=MACHINE, **settings):
    assignments = tuple(f"{key.replace('__', '.')}={value}" for key, value in settings.items())
    return planning.make(load_config(Request(profile=recipe, assignments=assignments)), hardware, FACTS)


def parts(plan):
    return {part.name: part.bytes for part in plan.host_memory_parts}


def test_neither_model_nor_optimizer_state_is_ever_whole_on_the_host():
    huge = replace(CARD, memory_bytes=400 * GIB, memory_free_bytes=400 * GIB)
    plan = planned("llama-8b-lora", replace(MACHINE, gpus=(huge,)), tuning__method="full")
    embedding = 128_256 * 4096
    assert plan.checkpoint_bytes.value > 12 * 8e9
    found = parts(plan)
    # The embedding is the largest parameter: its two moments are more than a shard, and four readers hold it at once.
    assert 8 * embedding > SHARD_BYTES and found.pop("libraries") == LIBRARIES_BYTES
    assert found.pop("batches") < 1 << 22
    assert [*found.values()] == [16 * embedding]
    plan = planned("llama-8b-lora")
    adapters = parts(plan)
    assert adapters["loading"] == 16 * embedding and "saving" not in adapters
    shown = "\n".join(plan_lines(plan))
    assert "host memory" in shown and "torch, transformers and CUDA" in shown


@pytest.mark.full
def test_a_model_from_scratch_is_counted_on_the_host():
    shape = {"model__scratch__hidden_size": 2048, "model__scratch__num_hidden_layers": 24}
    plan = planned("finetune", model__init="scratch", tuning__method="full", **shape)
    assert parts(plan)["loading"] == 4 * plan.parameters.value


@pytest.mark.full
def test_a_text_only_model_is_loaded_on_the_host():
    named = {"model__model_name_or_path": "google/gemma-3-4b-it", "tuning__method": "full", "data__path": "rows.jsonl"}
    named["model__dtype"] = "float32"
    plan = planned("finetune", model__text_only="true", **named)
    assert parts(plan)["loading"] == 4 * plan.parameters.value
    assert parts(planned("finetune", **named)).get("loading", 0) < parts(plan)["loading"]


def test_a_run_on_the_cpu_has_no_separate_host_memory():
    plan = planned("quickstart", replace(MACHINE, gpus=(), driver=None))
    assert plan.device == "cpu" and plan.host_memory_bytes is None and plan.host_memory_parts == ()
    assert not any("host memory" in line for line in plan_lines(plan))


def test_too_little_host_memory_is_refused():
    small = replace(MACHINE, memory_bytes=2 * GIB, memory_available_bytes=2 * GIB)
    with pytest.raises(ConfigError, match=r"of host memory in addition to GPU memory, but the machine has 2\.0 GiB"):
        planned("llama-8b-lora", small)


def test_the_checklist_fails_if_too_little_host_memory_is_free(tmp_path):
    data = tmp_path / "texts.txt"
    data.write_text("a line of text\n" * 400)
    loaded = load_config(Request(profile="llama-8b-lora", assignments=(f"data.path={data}",)))
    for free, status in ((60 * GIB, "pass"), (3 * GIB, "fail")):
        context = replace(gather(loaded, hardware=MACHINE), load_average=0.0)
        context = replace(context, hardware=replace(MACHINE, memory_available_bytes=free))
        (memory,) = [finding for finding in run_checks(context) if finding.name == "memory"]
        assert memory.status == status, memory.verdict.evidence
    assert "of host memory in addition to GPU memory, but only 3.0 GiB are free" in memory.verdict.evidence
    assert any(detail.startswith("host memory, libraries") for detail in memory.verdict.details)
