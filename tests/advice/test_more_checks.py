"""What the checks say of disks, and names of models."""

from tests.advice import test_on_gpus as cards
from tests.advice.test_on_gpus import H200, T4
from tests.advice.test_single_checks import context, look
from tui_trainer.hardware.storage import read_rate, write_rate
from tui_trainer.units import MIB

asked, large_disk = cards.asked, cards.large_disk


def test_the_rate_of_a_disk_is_measured(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"x" * 8 * MIB)
    found = read_rate(path)
    assert found.path == str(path) and found.bytes_per_second > MIB
    (tmp_path / "small").write_bytes(b"x")
    assert read_rate(tmp_path / "small") is None and read_rate(tmp_path / "none") is None
    assert write_rate(tmp_path, most_bytes=4 * MIB) > MIB / 10 and write_rate(tmp_path / "none") is None
    assert sorted(one.name for one in tmp_path.iterdir()) == ["data", "small"]


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
