"""`plan --cards`: plans for GPUs that this machine does not have."""

import json
from dataclasses import replace

import pytest

from tui_trainer.cli import main
from tui_trainer.errors import InputError
from tui_trainer.hardware.gpu_models import CARDS
from tui_trainer.hardware.probe import probe
from tui_trainer.launching import estimate_other_gpus
from tui_trainer.launching.estimate_other_gpus import find_cards
from tui_trainer.units import GIB

A100S = ["A100 40 GB", "A100 80 GB", "A100 80 GB PCIe"]


FOUND = {
    "T4": ["T4"],
    "NVIDIA H200": ["H200 SXM"],
    "4090": ["RTX 4090"],
    "rtx-4090,T4": ["RTX 4090", "T4"],
    "A100": A100S,
    "A100-80GB": A100S[1:],
    "a100 40gb,A100": A100S,
    "V100 sxm2 32": ["V100 32 GB"],
    "all": [card.label for card in CARDS],
}


def test_cards_are_found_by_the_words_of_their_names(subtests):
    for names, labels in FOUND.items():
        with subtests.test(names):
            assert [card.label for card in find_cards(names)] == labels
    for names in ("RTX 409", ","):
        with subtests.test(names), pytest.raises(InputError) as refusal:
            find_cards(names)
        assert refusal.value.problems[0].hint


def test_cards_are_planned_side_by_side(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path))
    data = tmp_path / "text.txt"
    data.write_text("\n\n".join(f"A paragraph of some words, number {number}. " * 40 for number in range(60)))
    words = ["plan", "--profile", "llama-8b-lora", "--data", str(data), "--cards", "T4,4090,H100 SXM"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    small, middle, large = found["cards"]
    assert (small["fits"], middle["fits"], large["fits"]) == (False, True, True) and found["smallest"] == "RTX 4090"
    assert "qlora" in small["problem"]
    assert 16 * GIB < middle["memory_bytes"] < 24 * GIB < large["memory_bytes"] < large["card_memory_bytes"] == 80 * GIB
    assert middle["step_seconds"] > 3 * large["step_seconds"] and "data sheet" in large["step_seconds_reason"]
    assert large["hardware_profile"] == "h100-h200" and middle["effective_batch_size"] == large["effective_batch_size"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["GPU", "memory"] and "smallest sufficient GPU: RTX 4090" in lines
    assert main([*words, "--set", "distributed.processes=2"]) == 0
    assert "2 x H100 SXM" in capsys.readouterr().out
    assert main([*words, "--gpu", "none"]) == 2
    assert "--gpu cannot be combined with --cards" in capsys.readouterr().err


def test_libraries_that_a_card_needs_are_assumed_and_named(tmp_path, capsys, monkeypatch):
    here = probe()
    without = replace(here, libraries={**here.libraries, "bitsandbytes": None, "peft": None})
    monkeypatch.setattr(estimate_other_gpus, "probe", lambda: without)
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path))
    data = tmp_path / "text.txt"
    data.write_text("\n\n".join(f"A paragraph of some words, number {number}. " * 40 for number in range(60)))
    words = ["plan", "--data", str(data), "--cards", "3060", "--profile"]
    assert main([*words, "llama-8b-qlora"]) == 0
    told = capsys.readouterr().out
    assert "smallest sufficient GPU: RTX 3060" in told
    assert told.endswith("these plans assume libraries that are not installed here: bitsandbytes, peft\n")
    assert main([*words, "scratch-llama", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cards"][0]["assumed_libraries"] == []
