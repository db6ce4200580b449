"""`plan --cards`: what cards would do that this machine does not have."""

import json

import pytest

from tui_trainer.cli import main
from tui_trainer.errors import InputError
from tui_trainer.hardware.gpu_models import CARDS
from tui_trainer.launching.other_cards import find_cards
from tui_trainer.units import GIB

A100S = ["A100 40 GB", "A100 80 GB", "A100 80 GB PCIe"]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("T4", ["T4"]),
        ("NVIDIA H200", ["H200 SXM"]),
        ("4090", ["RTX 4090"]),
        ("rtx-4090,T4", ["RTX 4090", "T4"]),
        ("A100", A100S),
        ("A100-80GB", A100S[1:]),
        ("a100 40gb,A100", A100S),
        ("V100 sxm2 32", ["V100 32 GB"]),
        ("all", [card.label for card in CARDS]),
        ("RTX 409", None),
        (",", None),
    ],
)
def test_cards_are_found_by_their_words(names, expected):
    if expected is None:
        with pytest.raises(InputError) as refused:
            find_cards(names)
        assert refused.value.problems[0].hint
    else:
        assert [card.label for card in find_cards(names)] == expected


def test_cards_that_are_not_here_are_planned_beside_each_other(tmp_path, capsys, monkeypatch):
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
    assert lines[0].split()[:2] == ["card", "memory"] and "smallest that fits: RTX 4090" in lines
    assert main([*words, "--set", "distributed.processes=2"]) == 0
    assert "2 x H100 SXM" in capsys.readouterr().out
    assert main([*words, "--gpu", "none"]) == 2
    assert "--gpu is a card that is here" in capsys.readouterr().err
