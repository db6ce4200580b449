"""What the checks say of disks, of loader threads and processes, and names of models."""

import json
from dataclasses import replace

import pytest

from tests.advice import test_on_gpus as cards
from tests.advice.test_on_gpus import H200, T4
from tests.advice.test_single_checks import context, look
from tests.tiny_models import save_tiny_model, texts
from tui_trainer.advice.context import EarlierRun
from tui_trainer.advice.rules import model_size
from tui_trainer.config.load import Request
from tui_trainer.hardware.storage import read_rate, write_rate
from tui_trainer.launching.open_run import load_config
from tui_trainer.models.catalogue import CatalogueEntry
from tui_trainer.planning.training_setup import MeasuredPeak
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
    idle = replace(cards.seen(asked("qwen-lora"), H200, seconds=7200.0), earlier=EarlierRun(name="r", steps=50))
    assert "larger: " not in look("model_choice", idle).evidence
    idle = replace(idle, earlier=replace(idle.earlier, busy_share=0.3))
    assert "kept the card 30 % busy in run r" in look("model_choice", idle).evidence
    assert "larger: " in look("model_choice", idle).evidence
    week = cards.seen(asked("tinyllama-lora"), H200, seconds=7 * 86_400.0)
    slow = look("model_choice", week)
    assert slow.status == "warn" and "download" in slow.advice and "would take about" in slow.evidence
    short = look("model_choice", cards.seen(asked("llama-8b-lora", {"tuning.method": "full"}), T4))
    assert short.status == "warn" and "do not fit" in short.evidence


def test_a_smaller_model_needs_less_memory_and_speaks_the_language_of_the_data(tmp_path, monkeypatch):
    own, other = (save_tiny_model(tmp_path / name, "llama") for name in ("own", "other"))
    (tmp_path / "data.txt").write_text("\n".join(texts()))
    settings = (f"model.model_name_or_path={own}", f"data.path={tmp_path / 'data.txt'}", "data.max_length=32")
    seen = context(load_config(Request(assignments=settings)))
    shape = json.loads((own / "config.json").read_text())
    half = seen.planned.parameters.value // 2

    def evidence(**changes):
        (other / "config.json").write_text(json.dumps(shape | changes))
        more = {"weights_bytes": None, "gated": False, "license": "mit", "source": ""}
        entry = CatalogueEntry(name=str(other), parameters=half, config=shape | changes, **more)
        monkeypatch.setattr(model_size, "all_entries", lambda: [entry])
        return look("model_choice", seen).evidence

    assert f"smaller: {other}" in evidence(num_hidden_layers=1)
    assert "tokens a character, this model " in evidence(num_hidden_layers=1)
    # Fewer parameters, by the catalogue, and more memory.
    assert "smaller" not in evidence(vocab_size=100_000)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    letters = {name: number for name, number in tokenizer["model"]["vocab"].items() if len(name) == 1 or name[0] == "<"}
    tokenizer["model"] |= {"merges": [], "vocab": letters}
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "smaller" not in evidence(num_hidden_layers=1)


def test_the_rules_of_guides_for_loader_threads_stand_beside_the_measured_wait(asked):
    def details(data_share=None):
        earlier = None if data_share is None else EarlierRun(name="r", steps=50, data_share=data_share)
        return " ".join(look("loader_workers", replace(cards.seen(asked("qwen-lora"), H200), earlier=earlier)).details)

    assert "min(8, cores - 2) = 6 " in details() and "min(16, cores - 1) = 7 " in details()
    assert "is measured by the first run of this kind" in details()
    assert "run r waited for data 0.4% of its steps, so the rule does not hold" in details(0.004)
    assert "run r waited for data 30.0% of its steps, so the rule holds, up to 6 threads" in details(0.3)


def test_a_measured_peak_is_of_the_setup_it_was_measured_with_and_corrects_others_in_proportion():
    seen = context()
    basis = seen.basis
    reckoned, other = basis.needed_bytes(), basis.changed({"training.gradient_checkpointing": True}).needed_bytes()
    peak = MeasuredPeak(rows=basis.micro_batch, eval_rows=basis.eval_batch, bytes=2 * reckoned, runs=1)
    measured = replace(basis, setup=replace(basis.setup, measured_peaks=(peak,)))
    assert measured.needed_bytes() > 1.5 * reckoned > 1.5 * other
    times = measured.changed({"training.gradient_checkpointing": True}).needed_bytes() / other
    assert times == pytest.approx(measured.needed_bytes() / reckoned, rel=1e-3)
    again = measured.changed({"training.gradient_checkpointing": False})
    assert again.needed_bytes() == measured.needed_bytes()
