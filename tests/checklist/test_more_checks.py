"""What the checks say of disks, names of models, and what the guides list beside speed."""

import json

import pytest

from tests.checklist import test_on_gpus as cards
from tests.checklist.test_on_gpus import H200, T4
from tests.checklist.test_single_checks import context, look
from tui_trainer.checklist.guides import GUIDES, items_of, of_guide
from tui_trainer.checklist.run import all_checks, run_checks
from tui_trainer.cli import main
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
    assert "smaller: " in verdict.evidence and "larger: " in verdict.evidence and "would be done at" in verdict.evidence
    week = cards.seen(asked("tinyllama-lora"), H200, seconds=7 * 86_400.0)
    slow = look("model_choice", week)
    assert slow.status == "warn" and "download" in slow.advice and "would be done at" in slow.evidence
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
