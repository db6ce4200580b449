"""Exports: what is written is loaded again in a fresh process, and is what was trained."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.tiny_models import save_tiny_model
from tui_trainer.cli import main
from tui_trainer.exporting.contract import format_names
from tui_trainer.exporting.formats import merged
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.models.files import shards

SETTINGS = {
    "data.max_length": 64,
    "data.eval_fraction": 0.2,
    "training.effective_batch_size": 8,
    "training.learning_rate": 0.05,
    "training.max_steps": 6,
    "evaluation.eval_steps": 0,
    "checkpoint.save_steps": 0,
    "logging.sample_steps": 0,
}


@pytest.fixture
def trained(tmp_path, sheep):
    """`trained("llama", "lora", {...})`: a tiny run that is finished, by its name."""

    def train(family: str = "llama", method: str = "lora", changes: dict | None = None) -> TrainedModel:
        from tui_trainer.config.load import Request
        from tui_trainer.launching.carry_out import carry_out
        from tui_trainer.launching.start import load_config, open_new

        save_tiny_model(tmp_path / family, family)
        settings = {
            **SETTINGS,
            "task.type": "causal_lm",
            "tuning.method": method,
            "output.runs_dir": tmp_path / "runs",
            "output.name": f"{family}-{method}",
            "model.model_name_or_path": tmp_path / family,
            **(changes or {}),
        }
        assignments = tuple(f"{key}={value}" for key, value in settings.items())
        run = open_new(load_config(Request(assignments=assignments, shortcuts={"data.path": str(sheep)})))
        assert carry_out(run).exit_code == 0
        return TrainedModel.of(run.folder)

    return train


def logits(model) -> torch.Tensor:
    ids = torch.arange(3, 43).reshape(2, 20)
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {}),
        ("llama", {"tuning.modules_to_save": "embed_tokens"}),
        ("gpt2", {"tuning.use_rslora": "true"}),
        ("qwen2", {"tuning.use_dora": "true"}),
        *(
            pytest.param(family, changes, marks=pytest.mark.e2e)
            for family, changes in {
                "gemma2": {},
                "phi": {"tuning.target_modules": "all-linear"},
                "mistral": {"tuning.modules_to_save": "lm_head"},
                "opt": {},
            }.items()
        ),
    ],
)
def test_a_merged_model_is_the_adapted_one_and_loads_with_transformers_alone(family, changes, trained, tmp_path):
    model = trained(family, "lora", changes)
    assert main(["export", model.run.name, "--to", "merged"]) == 0
    folder = model.run.root / "export/merged"
    found = AutoModelForCausalLM.from_pretrained(folder)
    wanted = model.load(dtype=torch.float32)
    torch.testing.assert_close(logits(found), logits(wanted), atol=1e-5, rtol=1e-5)
    assert (logits(found) - logits(AutoModelForCausalLM.from_pretrained(tmp_path / family))).abs().max() > 1e-2
    certificate = json.loads((folder / "certificate.json").read_text())
    assert certificate["is_good"] and certificate["logit_difference"] < 1e-4 and certificate["rows"] == 3
    assert (folder / "tokenizer.json").is_file()


@pytest.fixture
def adapted(trained):
    """A run of the simplest kind, and the text that `export` prints for it."""
    return trained()


def certificate_of(model: TrainedModel, name: str) -> dict:
    return json.loads((model.run.root / "export" / name / "certificate.json").read_text())


def test_a_merge_holds_one_file_of_the_result_at_a_time(adapted, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 20_000)
    assert main(["export", adapted.run.name, "--to", "merged"]) == 0
    folder = adapted.run.root / "export/merged"
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 3 and (folder / "model.safetensors.index.json").is_file()
    torch.testing.assert_close(
        logits(AutoModelForCausalLM.from_pretrained(folder)), logits(adapted.load(dtype=torch.float32))
    )


def swapped(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    one, other = (f"model.layers.{n}.mlp.up_proj.weight" for n in (0, 1))
    tensors[one], tensors[other] = tensors[other], tensors[one]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def without_tokenizer(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (swapped, "its logits differ"),
        (without_tokenizer, "there is no tokenizer beside it"),
        (without_weights, "it cannot be loaded again"),
    ],
)
def test_what_is_not_the_trained_model_is_found_kept_and_marked(spoil, words, adapted, monkeypatch, capsys):
    write = merged.Merged.write

    def spoiled(self, trained, folder, tell) -> None:
        write(self, trained, folder, tell)
        spoil(folder)

    monkeypatch.setattr(merged.Merged, "write", spoiled)
    assert main(["export", adapted.run.name, "--to", "merged"]) == 1
    shown = capsys.readouterr()
    assert words in shown.out and "failed-" in shown.err
    found = certificate_of(adapted, "failed-merged")
    assert not found["is_good"] and any(words in fault for fault in found["faults"])
    assert [path.name for path in (adapted.run.root / "export").iterdir()] == ["failed-merged"]


def test_what_cannot_be_exported_is_refused_in_a_sentence_and_leaves_nothing(adapted, tmp_path, monkeypatch, capsys):
    name, full = adapted.run.name, adapted.run.root / "full"
    full.write_text("a file")
    before = sorted(path.name for path in adapted.run.root.iterdir())
    cases = {
        ("export", name): "to which format?",
        ("export", name, "--to", "mergd"): "did you mean merged?",
        ("export", "nobody", "--to", "merged"): "nobody",
        ("export", name, "--to", "merged", "--to", "adapter", "--out", str(tmp_path / "x")): "one format",
        ("export", name, "--to", "merged", "--out", str(adapted.run.root)): "not empty",
        ("export", name, "--to", "merged", "--out", str(full)): "not empty",
    }
    for arguments, words in cases.items():
        assert main(list(arguments)) == 2, arguments
        shown = capsys.readouterr()
        assert words in shown.err and shown.err.count("\n") == 1, shown.err
    monkeypatch.setattr("tui_trainer.exporting.export.shutil.disk_usage", lambda _: SimpleNamespace(free=5))
    assert main(["export", name, "--to", "merged"]) == 2
    assert "would be written and 5 B are free" in capsys.readouterr().err
    assert sorted(path.name for path in adapted.run.root.iterdir()) == before
    (adapted.run.model / "adapter_model.safetensors").unlink()
    assert main(["export", name, "--to", "merged"]) == 2
    assert "there are no weights" in capsys.readouterr().err


def test_a_failure_in_the_middle_leaves_nothing(adapted, monkeypatch, capsys):
    def fails(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(merged, "_write_shards", fails)
    assert main(["export", adapted.run.name, "--to", "merged"]) == 1
    assert "could not be exported to merged: MemoryError: no room" in capsys.readouterr().err
    assert list((adapted.run.root / "export").iterdir()) == []


def test_an_adapter_in_its_own_folder_is_the_trained_one_and_a_full_run_has_none(trained, capsys):
    model = trained()
    assert main(["export", model.run.name, "--to", "adapter", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_good"] and found["logit_difference"] == 0 and found["folder"].endswith("export/adapter")
    whole = trained("gpt2", "full")
    for name in ("adapter", "merged"):
        assert main(["export", whole.run.name, "--to", name]) == 2
        assert "trained all weights" in capsys.readouterr().err


def test_each_file_is_one_format_and_the_help_names_them(capsys):
    assert {"merged", "adapter", "onnx"} <= set(format_names())
    assert main(["export", "--help"]) == 0
    help_text = " ".join(capsys.readouterr().out.split())
    assert all(name in help_text for name in format_names())


@pytest.mark.e2e
@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="needs onnx, onnxscript and onnxruntime")
def test_a_graph_answers_as_the_trained_model_in_onnx_runtime_alone(trained, capsys):
    model = trained()
    assert main(["export", model.run.name, "--to", "onnx", "--to", "onnx-int8", "--json"]) == 0
    plain, small = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert plain["logit_difference"] < 1e-4 < small["logit_difference"] < 0.25
    code = f"""
import numpy, onnxruntime, sys
session = onnxruntime.InferenceSession({plain["folder"] + "/model.onnx"!r})
ids = numpy.arange(3, 23).reshape(1, 20)
logits = session.run(["logits"], {{"input_ids": ids, "attention_mask": numpy.ones_like(ids)}})[0]
assert "torch" not in sys.modules
print(logits.argmax(-1).tolist()[0])
"""
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (
        json.loads(alone.stdout)
        == model.load(dtype="float32")(input_ids=torch.arange(3, 23)[None]).logits.argmax(-1).tolist()[0]
    )
