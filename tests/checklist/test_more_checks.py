"""Checks of what the guides list beside speed, of storage, swap and names of models: good, bad, not applying."""

import json
from dataclasses import replace

import pytest

from tests.checklist import test_on_gpus as cards
from tests.checklist.test_on_gpus import H200, RTX, T4, WITH_BITSANDBYTES, WITH_LIGER
from tests.checklist.test_single_checks import context, look
from tui_trainer.checklist.earlier_run import EarlierRun, Exported
from tui_trainer.checklist.guides import GUIDES, items_of, of_guide
from tui_trainer.checklist.run import all_checks, run_checks
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.hardware.storage import ReadRate, read_rate, write_rate
from tui_trainer.launching.start import load_config
from tui_trainer.units import GIB, MIB

asked, large_disk = cards.asked, cards.large_disk


def quick(**settings):
    assignments = tuple(f"{key.replace('__', '.')}={value}" for key, value in settings.items())
    return load_config(Request(assignments=assignments))


def test_answers_are_written_in_batches():
    single = quick(profile="signature-summaries", evaluation__per_device_eval_batch_size=1)
    verdict = look("batched_writing", context(single))
    assert verdict.status == "warn" and (verdict.fix or verdict.advice)
    assert look("batched_writing", context(quick(profile="signature-summaries"))).status == "pass"
    assert look("batched_writing", context(quick(profile="docstring-topics"))).status == "n/a"


def test_decoding_is_greedy():
    assert "greedy, 1 beam" in look("greedy_writing", context(quick(profile="signature-summaries"))).evidence
    assert look("greedy_writing", context()).status == "pass"
    assert look("greedy_writing", context(quick(profile="docstring-topics"))).status == "n/a"


INT8 = Exported(format="int8", bytes=MIB, trained_bytes=4 * MIB, seconds_per_row=0.1, trained_seconds_per_row=0.2)


def test_what_eight_bits_saved_is_told():
    run = EarlierRun(name="r", steps=50, data_share=0.0)
    assert look("quantized_model", context(earlier=None)).status == "n/a"
    assert "export r --to int8" in look("quantized_model", context(earlier=run)).evidence
    verdict = look("quantized_model", context(earlier=replace(run, exports=(INT8,))))
    assert verdict.status == "pass" and "4.0 MiB -> 1.0 MiB, 2.00 times as fast" in verdict.evidence
    bad = replace(run, exports=(replace(INT8, faults="logits differ"),))
    assert look("quantized_model", context(earlier=bad)).status == "warn"


def test_what_unsloth_does_is_counted(asked):
    assert look("unsloth", context()).status == "n/a"
    assert look("unsloth", cards.seen(asked("distilgpt2-full"), RTX)).status == "n/a"
    on = look("unsloth", cards.seen(asked("qwen-lora", {"data.packing": "true"}), WITH_LIGER))
    assert on.status == "pass" and "fused kernels" in on.evidence
    plain = {"data.packing": "false", "training.loss_chunk_tokens": 0}
    off = look("unsloth", cards.seen(asked("qwen-lora", plain), RTX))
    assert off.status == "warn" and "liger-kernel" in off.advice


def test_four_bits_where_memory_is_short(asked):
    assert look("four_bits", context()).status == "n/a"
    assert look("four_bits", cards.seen(asked("qwen-lora"), H200)).status == "pass"
    assert "in 4 bits" in look("four_bits", cards.seen(asked("mistral-7b-qlora"), WITH_BITSANDBYTES)).evidence
    short = {"tuning.method": "full", "training.learning_rate": "auto"}
    fixed = look("four_bits", cards.seen(asked("llama-8b-lora", short), WITH_BITSANDBYTES))
    assert fixed.status == "warn" and fixed.fix == {"tuning.method": "qlora"}
    absent = look("four_bits", cards.seen(asked("llama-8b-lora", short), T4))
    assert absent.status == "warn" and absent.advice.startswith("uv pip install")


def test_loader_threads_suit_the_cores(asked):
    assert look("loader_workers", context()).status == "n/a"
    assert look("loader_workers", cards.seen(asked("qwen-lora"), RTX)).status == "pass"
    many = look("loader_workers", cards.seen(asked("qwen-lora", {"dataloader.num_workers": 32}), RTX))
    assert many.status == "warn" and many.fix == {"dataloader.num_workers": 6}
    processes = look("loader_workers", context(quick(data__num_proc=64)))
    assert processes.status == "warn" and processes.fix == {"data.num_proc": 4}


def test_length_is_judged_by_the_task(asked):
    assert look("length_by_task", context()).status == "n/a"
    assert look("length_by_task", cards.seen(asked("qwen-lora"), RTX)).status == "pass"
    seen = cards.seen(asked("qwen-lora", {"data.max_length": 8192}), H200)
    long = replace(seen, facts=replace(seen.facts, longest_row=5000))
    verdict = look("length_by_task", long)
    assert verdict.status == "warn" and "data.max_length = 2048" in verdict.advice


def test_a_slow_disk_is_told_with_its_rate():
    assert look("storage_speed", context(data_read=None)).status == "n/a"
    quick_disk = ReadRate(path="/data/a", bytes_per_second=500e6)
    assert look("storage_speed", context(data_read=quick_disk)).status == "pass"
    slow = look("storage_speed", context(data_read=replace(quick_disk, bytes_per_second=2e3)))
    assert slow.status == "warn" and "2.0 KiB/s" in slow.evidence and "TUI_TRAINER_HOME" in slow.advice


def test_the_rate_of_a_disk_is_measured(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"x" * 8 * MIB)
    found = read_rate(path)
    assert found.path == str(path) and found.bytes_per_second > MIB
    (tmp_path / "small").write_bytes(b"x")
    assert read_rate(tmp_path / "small") is None and read_rate(tmp_path / "none") is None
    assert write_rate(tmp_path, most_bytes=4 * MIB) > MIB / 10 and write_rate(tmp_path / "none") is None
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data", "small"]


def test_swap_in_use_is_told():
    assert look("swap", context(swap_used_bytes=None)).status == "n/a"
    assert look("swap", context(swap_used_bytes=0)).status == "pass"
    verdict = look("swap", context(swap_used_bytes=3 * GIB))
    assert verdict.status == "warn" and "3.0 GiB of swap" in verdict.evidence


def test_other_models_are_named_with_numbers(asked):
    assert look("model_choice", context()).status == "n/a"
    there = cards.seen(asked("qwen-lora"), H200, seconds=600.0)
    verdict = look("model_choice", there)
    assert verdict.status == "pass"
    assert "smaller: " in verdict.evidence and "larger: " in verdict.evidence and "would take about" in verdict.evidence
    week = cards.seen(asked("tinyllama-lora"), H200, seconds=7 * 86_400.0)
    slow = look("model_choice", week)
    assert slow.status == "warn" and "download" in slow.advice and "would take about" in slow.evidence
    short = look("model_choice", cards.seen(asked("llama-8b-lora", {"tuning.method": "full"}), T4))
    assert short.status == "warn" and "do not fit" in short.evidence


def test_the_lists_of_the_guides_are_whole():
    """Every item of the four lists has a check."""
    numbers = {guide: {item for check in all_checks() for item in items_of(check, guide)} for guide in GUIDES}
    assert numbers["A"] == set(range(1, 9)) and numbers["C"] == set(range(1, 10))
    assert numbers["D"] == set(range(1, 6)) and numbers["E"] == set(range(1, 5))


def test_a_view_of_a_guide_has_its_order():
    found = of_guide(run_checks(context()), "A")
    items = [items_of(one.check, "A") for one in found]
    assert items == sorted(items) and {item for some in items for item in some} == set(range(1, 9))


def test_check_shows_the_list_of_one_guide(capsys):
    assert main(["check", "--guide", "c"]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("C: ")
    assert next(int(line[:2]) for line in lines if line[:2].strip().isdigit()) == 1
    assert main(["check", "--guide", "C", "--json"]) in (0, 1)
    document = json.loads(capsys.readouterr().out)
    assert all(any(place.startswith("C ") for place in one["guides"]) for one in document["findings"])


@pytest.mark.parametrize("guide", ["F", "B"])
def test_a_guide_without_a_list_is_one_sentence(guide, capsys):
    assert main(["check", "--guide", guide]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "A, C, D, E" in line
