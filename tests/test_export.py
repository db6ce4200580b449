"""Exports: each format is loaded again and compared with the trained model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.version import Version
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from tests.programs import run_program
from tests.served_models import save_served_model, write_sums
from tests.tiny_models import TOWERS, save_tiny_model, save_tiny_model_with_towers
from tui_trainer.cli import main
from tui_trainer.exporting.contract import Tolerance, format_of
from tui_trainer.exporting.export import Certificate, MeasuredExport, expected_seconds
from tui_trainer.exporting.formats import format_names, merged, onnx
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.launching.export_process import choices
from tui_trainer.lines.guides import FOLDER
from tui_trainer.models.files import shards
from tui_trainer.runs.folder import folder_size

needs_exporter = pytest.mark.skipif(
    Version(version("transformers")) < Version(onnx._LEAST_TRANSFORMERS), reason="no exporter of whole models before it"
)
SETTINGS = {
    "data.max_length": 64, "data.eval_fraction": 0.2, "training.effective_batch_size": 8,
    "training.learning_rate": 0.05, "training.max_steps": 6, "evaluation.eval_steps": 0, "checkpoint.save_steps": 0,
    "logging.sample_steps": 0,
}  # fmt: skip


@pytest.fixture
def trained(tmp_path, sheep):
    """Return `trained("llama", "lora", {...})`: the model of a tiny finished run."""

    def train(
        family: str = "llama",
        method: str = "lora",
        changes: dict | None = None,
        *,
        data: Path = sheep,
        dtype: torch.dtype = torch.float32,
        **config,
    ) -> TrainedModel:
        from tui_trainer.config.load import Request
        from tui_trainer.launching.open_run import load_config, open_new
        from tui_trainer.launching.run_lifecycle import execute_run

        if family not in TOWERS:
            save_tiny_model(tmp_path / family, family, **config)
        if dtype != torch.float32:
            AutoModelForCausalLM.from_pretrained(tmp_path / family).to(dtype).save_pretrained(tmp_path / family)
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
        run = open_new(load_config(Request(assignments=assignments, shortcuts={"data.path": str(data)})))
        assert execute_run(run).exit_code == 0
        return TrainedModel.of(run.folder)

    return train


@pytest.fixture
def classified(trained, tmp_path):
    """A finished classifier of two kinds of texts."""
    rows = [{"text": f"{word} and {n}", "label": word} for n in range(12) for word in ("sheep", "goat")]
    data = tmp_path / "kinds.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    return trained("bert", "lora", {"task.type": "sequence_classification"}, data=data)


def logits(model) -> torch.Tensor:
    ids = torch.arange(3, 43).reshape(2, 20)
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


# Weights in bf16 with fp32 masters.
WITH_MASTERS = {"model.dtype": "bfloat16", "training.mixed_precision": "bf16"}
MERGED = [
    ("llama", {"tuning.modules_to_save": "embed_tokens"}),
    ("llama", {"tuning.modules_to_save": "embed_tokens"} | WITH_MASTERS),
    ("gpt2", {"tuning.use_rslora": "true"}),
    ("qwen2", {"tuning.use_dora": "true", "tuning.modules_to_save": "lm_head"}),
]


@pytest.mark.parametrize(
    ("family", "changes"), [pytest.param(*case, marks=pytest.mark.full if n else []) for n, case in enumerate(MERGED)]
)
def test_merged_model_equals_the_adapted_one_and_loads_with_transformers_alone(
    family, changes, trained, bf16_on_the_cpu, tmp_path
):
    model = trained(family, "lora", changes)
    assert main(["export", model.run.name, "--to", "merged"]) == 0
    folder = model.run.root / "export/merged"
    found = AutoModelForCausalLM.from_pretrained(folder)
    wanted = model.load(dtype=torch.float32)
    torch.testing.assert_close(logits(found), logits(wanted), atol=1e-5, rtol=1e-5)
    assert (logits(found) - logits(AutoModelForCausalLM.from_pretrained(tmp_path / family))).abs().max() > 1e-2
    certificate = json.loads((folder / "certificate.json").read_text())
    assert certificate["is_good"] and certificate["logit_difference"] < 1e-4 and certificate["rows"] == 3
    assert expected_seconds(model, format_of("merged")) == certificate["seconds"] > 0
    assert (folder / "tokenizer.json").is_file()
    # The size of what is there is exact, and that of the others goes by their number formats.
    known = {choice.name: choice for choice in choices(model.run)}
    assert known["merged"].is_there and known["merged"].size_bytes == folder_size(folder).bytes
    assert known["onnx-int8"].size_bytes < known["int8"].size_bytes < known["onnx"].size_bytes
    assert all(choice.size_bytes <= choice.needed_bytes for name, choice in known.items() if name != "merged")


@pytest.fixture
def adapted(adapted_run):
    """A finished adapter of the simplest kind."""
    return TrainedModel.of(adapted_run)


@pytest.mark.full
def test_merged_model_is_written_in_several_files(adapted, monkeypatch):
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


def test_export_that_differs_from_the_trained_model_fails_and_is_kept_under_another_name(
    adapted, monkeypatch, capsys, subtests
):
    write = merged.Merged.write
    for spoil, words in (
        (swapped, "the logits differ"),
        (without_tokenizer, "the export has no tokenizer"),
        (without_weights, "the export cannot be loaded"),
    ):

        def spoiled(self, trained, folder, tell, spoil=spoil) -> None:
            write(self, trained, folder, tell)
            spoil(folder)

        monkeypatch.setattr(merged.Merged, "write", spoiled)
        with subtests.test(words):
            assert main(["export", adapted.run.name, "--to", "merged"]) == 1
            printed = capsys.readouterr()
            assert words in printed.out and "failed-" in printed.err
            certificate = json.loads((adapted.run.exports / "failed-merged/certificate.json").read_text())
            assert not certificate["is_good"] and any(words in fault for fault in certificate["faults"])
            assert [path.name for path in adapted.run.exports.iterdir()] == ["failed-merged"]


def test_certificate_is_valid_json_for_losses_that_are_not_finite():
    before, after = (MeasuredExport(loss=loss, scores={}, seconds_per_row=0.1, bytes=9) for loss in (2.5, float("nan")))
    found = Certificate(
        format="int8", rows=3, logit_difference=float("inf"), tolerance=Tolerance(logits=0.25, loss=0.05),
        trained=before, exported=after, faults=("the held-out loss is nan instead of 2.5000",),
    )  # fmt: skip
    read = json.loads(found.text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert (read["is_good"], read["logit_difference"], read["exported"]["loss"]) == (False, "Infinity", "NaN")


@pytest.mark.full
def test_export_with_another_order_of_labels_fails(classified, monkeypatch, capsys):
    write = merged.Merged.write

    def spoiled(self, trained, folder, tell) -> None:
        write(self, trained, folder, tell)
        config = json.loads((folder / "config.json").read_text())
        config["id2label"] = {"0": config["id2label"]["1"], "1": config["id2label"]["0"]}
        (folder / "config.json").write_text(json.dumps(config))

    assert main(["export", classified.run.name, "--to", "merged"]) == 0
    config = json.loads((classified.run.root / "export/merged/config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    monkeypatch.setattr(merged.Merged, "write", spoiled)
    assert main(["export", classified.run.name, "--to", "merged"]) == 1
    assert "the labels are" in capsys.readouterr().out


def test_impossible_export_is_refused_in_one_sentence_and_leaves_nothing(adapted, tmp_path, monkeypatch, capsys):
    name, full = adapted.run.name, adapted.run.root / "full"
    full.write_text("a file")
    before = sorted(path.name for path in adapted.run.root.iterdir())
    cases = {
        ("export", name): "no format was given",
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
    assert ", 5 B are free" in capsys.readouterr().err
    assert sorted(path.name for path in adapted.run.root.iterdir()) == before
    (adapted.run.model / "adapter_model.safetensors").unlink()
    assert main(["export", name, "--to", "merged"]) == 2
    assert "contains no weights" in capsys.readouterr().err


@pytest.mark.full
def test_merged_chat_model_keeps_its_stop_token_and_the_dtype_of_its_weights(trained, tmp_path):
    base = save_served_model(tmp_path / "base", "llama3")
    AutoModelForCausalLM.from_pretrained(base).to(torch.bfloat16).save_pretrained(base)
    settings = json.loads((base / "generation_config.json").read_text()) | {"min_length": 7, "num_beams": 3}
    (base / "generation_config.json").write_text(json.dumps(settings))
    changes = {"task.type": "chat", "task.chat_template": "chatml", "data.max_length": 120}
    changes["model.model_name_or_path"] = str(base)
    model = trained("llama", "lora", changes, data=write_sums(tmp_path / "sums.jsonl"))
    ends = GenerationConfig.from_pretrained(model.folder).eos_token_id
    assert ends == [4, 2] != settings["eos_token_id"]
    assert main(["export", model.run.name, "--to", "merged"]) == 0
    folder = model.run.exports / "merged"
    merged_model = AutoModelForCausalLM.from_pretrained(folder)
    assert {weight.dtype for weight in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    assert merged_model.dtype == torch.bfloat16
    assert merged_model.generation_config.eos_token_id == model.load(merge=True).generation_config.eos_token_id == ends
    serving, tokenizer = json.loads((folder / "serving.json").read_text()), AutoTokenizer.from_pretrained(folder)
    assert [stop["id"] for stop in serving["stops"]] == ends and serving["stops"][0]["token"] == "<|im_end|>"
    assert len(serving["conversations"]) + len(serving["rejected"]) == 12 and len(serving["conversations"]) > 8
    for row in serving["conversations"]:
        options = {"tools": row["tools"] or None, "add_generation_prompt": True}
        text = tokenizer.apply_chat_template(row["messages"], tokenize=False, **options)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert (row["text"], row["ids"]) == (text, ids), row["name"]
    row = next(row for row in serving["conversations"] if row["answer"])
    ids = torch.tensor([row["ids"]])
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 32, "do_sample": False}
    written = model.load(dtype=torch.float32).generate(input_ids=ids, **options)[0, ids.shape[1] :].tolist()
    assert [number for number in written if number not in ends] == row["answer"]["ids"]
    assert (written[-1] in ends) == row["answer"]["stops"]
    notes = json.loads((folder / "certificate.json").read_text())["notes"]
    assert notes == [
        "generation stops at <|im_end|>, </s>",
        "left out of the base model's generation settings, as the data contradicts them: min_length = 7, num_beams = 3",
    ]


def test_export_that_fails_midway_leaves_nothing(adapted, monkeypatch, capsys):
    def fails(*_):
        raise MemoryError("no room")

    monkeypatch.setattr(merged, "_write_shards", fails)
    assert main(["export", adapted.run.name, "--to", "merged"]) == 1
    assert "could not be exported to merged: MemoryError: no room" in capsys.readouterr().err
    assert list((adapted.run.root / "export").iterdir()) == []


def test_adapter_is_exported_and_a_fully_tuned_model_has_none(adapted, finished, capsys):
    assert main(["export", adapted.run.name, "--to", "adapter", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_good"] and found["logit_difference"] == 0 and found["folder"].endswith("export/adapter")
    whole = finished("causal_lm").root
    for name in ("adapter", "merged"):
        assert main(["export", str(whole), "--to", name]) == 2
        assert "trained all weights" in capsys.readouterr().err


def test_onnx_export_needs_a_transformers_with_exporters(adapted, monkeypatch, capsys):
    monkeypatch.setattr(onnx, "version", lambda _: "5.17.0")
    for name in ("onnx", "onnx-int8"):
        assert main(["export", adapted.run.name, "--to", name]) == 2
        assert "transformers 5.17.0 cannot export models to ONNX" in capsys.readouterr().err
        assert not (adapted.run.exports / name).exists()


def test_help_and_guide_name_every_export_format(capsys):
    assert {"merged", "adapter", "onnx"} <= set(format_names())
    assert main(["export", "--help"]) == 0
    help_text = " ".join(capsys.readouterr().out.split())
    guide = (FOLDER / "after-training.md").read_text()
    assert all(name in help_text and f"`{name}`" in guide for name in format_names())


ALONE = """
import json, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, {folder!r})
from run_onnx import Graphs
graphs = Graphs(Path({folder!r}))
ids = np.arange(3, 23).reshape(1, 20)
found = {{"written": graphs.generate(list(range(3, 23)), 30)}}
if not graphs.has_encoder:
    found["logits"] = graphs.logits(ids, np.ones_like(ids)).tolist()
assert "torch" not in sys.modules and "transformers" not in sys.modules
print(json.dumps(found))
"""


def answers_alone(folder: str) -> dict:
    """Return the answers of the graphs in a process with ONNX Runtime and without torch."""
    command = [sys.executable, "-c", ALONE.format(folder=folder)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def written_by(model) -> list[int]:
    """Return the greedy continuation of the trained model, without the stop token."""
    ids = torch.arange(3, 23)[None]
    end = model.generation_config.eos_token_id
    new = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False, num_beams=1, min_length=0
    )[0].tolist()
    new = new[1:] if model.config.is_encoder_decoder else new[20:]
    return new[: new.index(end)] if end in new else new


NEW_TOKENS = {"model.add_tokens": '"<|sheep|>,said the"'}
TEXT_ONLY = {"model.text_only": "true"}


@needs_exporter
@pytest.mark.parametrize(
    ("family", "method", "changes", "config"),
    [
        # A graph takes a minute.
        pytest.param(
            "mistral", "lora", NEW_TOKENS, {"sliding_window": 12, "num_hidden_layers": 1}, marks=pytest.mark.e2e
        ),
        pytest.param("gemma3", "full", TEXT_ONLY | WITH_MASTERS, {}, marks=pytest.mark.e2e),
        pytest.param("llama", "full", WITH_MASTERS, {}, marks=pytest.mark.slow),
        pytest.param("gpt2", "full", {}, {}, marks=pytest.mark.slow),
        pytest.param("gemma2", "full", {}, {"sliding_window": 12}, marks=pytest.mark.slow),
        pytest.param("opt", "full", {}, {}, marks=pytest.mark.slow),
    ],
)
def test_onnx_graph_gives_the_logits_of_the_trained_model_without_torch(
    family, method, changes, config, trained, bf16_on_the_cpu, tmp_path, capsys
):
    model = trained(family, method, on_towers(tmp_path, family) | changes, **config)
    assert main(["export", model.run.name, "--to", "onnx", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["logit_difference"] < 1e-4
    alone, own = answers_alone(plain["folder"]), model.load(dtype="float32", merge=True)
    with torch.no_grad():
        wanted = own(input_ids=torch.arange(3, 23)[None]).logits
    torch.testing.assert_close(torch.tensor(alone["logits"]), wanted, atol=1e-4, rtol=1e-4)
    assert alone["written"] == written_by(own)
    if changes is NEW_TOKENS:
        knows_new_tokens(plain["folder"])


def on_towers(folder: Path, family: str) -> dict:
    """Return the settings of a run on a model with towers, which is saved for them."""
    if family not in TOWERS:
        return {}
    return {"model.model_name_or_path": save_tiny_model_with_towers(folder / f"{family}-with-towers", family)}


def knows_new_tokens(folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_tokens_to_ids(["<|sheep|>", "said the"]) == [384, 385]
    assert tokenizer("<|sheep|>")["input_ids"][-1] == 384


@needs_exporter
@pytest.mark.parametrize(
    ("family", "method", "changes", "formats"),
    [
        pytest.param("llama", "lora", NEW_TOKENS, ("merged",), marks=pytest.mark.full),
        pytest.param("llama", "lora", NEW_TOKENS, ("merged", "onnx", "onnx-int8", "int8"), marks=pytest.mark.slow),
        *(
            # The linear attention of Qwen 3.5 becomes a graph of as many parts as it has positions: seven minutes.
            pytest.param(
                family,
                "full",
                TEXT_ONLY,
                ("onnx", "onnx-int8", "int8"),
                marks=[pytest.mark.slow, pytest.mark.timeout(1800)],
            )
            for family in TOWERS
        ),
    ],
)
def test_every_format_keeps_new_tokens_and_takes_text_only_models(
    family, method, changes, formats, trained, tmp_path, capsys
):
    model = trained("llama" if family in TOWERS else family, method, on_towers(tmp_path, family) | changes)
    for name in formats:
        if name == "int8" and not find_spec("torchao"):
            continue
        assert format_of(name).reason_against(model) == ""
        assert main(["export", model.run.name, "--to", name, "--json"]) == 0, name
        found = json.loads(capsys.readouterr().out)
        assert found["logit_difference"] < (0.25 if "int8" in name else 1e-3), name
        if changes is NEW_TOKENS:
            knows_new_tokens(found["folder"])


@needs_exporter
@pytest.mark.parametrize(
    "family", [pytest.param("t5", marks=pytest.mark.e2e), pytest.param("bart", marks=pytest.mark.slow)]
)
def test_encoder_decoder_becomes_three_graphs_that_write_as_the_trained_model(family, trained, tmp_path, capsys):
    rows = [{"source": f"{n} and {n}", "target": f"{2 * n} in all"} for n in range(24)]
    data = tmp_path / "sums.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    layer = {"num_layers": 1} if family == "t5" else {}
    model = trained(family, "full", {"task.type": "seq2seq"}, data=data, **layer)
    assert main(["export", model.run.name, "--to", "onnx", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["logit_difference"] < 1e-4
    folder = Path(found["folder"])
    assert {path.stem for path in folder.glob("*.onnx")} == {"encoder", "decoder", "decoder_with_past"}
    [weights] = folder.glob("*.data")
    assert weights.stat().st_size < 1.5 * model.weight_bytes, "the graphs share their weights"
    assert answers_alone(found["folder"])["written"] == written_by(model.load(dtype="float32"))


@needs_exporter
@pytest.mark.e2e
def test_int8_classifier_answers_with_its_labels(classified, capsys):
    formats = ["onnx-int8", *(["int8"] if find_spec("torchao") else [])]
    for name in formats:
        assert main(["export", classified.run.name, "--to", name, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert 0 < found["logit_difference"] < 0.25
    run = subprocess.run(
        [sys.executable, str(classified.run.root / "export/onnx-int8/run_onnx.py"), "sheep and 3"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(r"(sheep|goat) 0\.\d\d, (sheep|goat) 0\.\d\d\n", run.stdout)


@pytest.mark.full
@pytest.mark.skipif(find_spec("torchao") is None, reason="needs torchao")
def test_model_without_linear_layers_is_refused_by_int8(trained, capsys):
    model = trained("gpt2", "full")
    assert main(["export", model.run.name, "--to", "int8"]) == 2
    assert "no linear layers" in capsys.readouterr().err
    assert list((model.run.root / "export").iterdir()) == []


@pytest.mark.full
def test_gguf_without_its_converter_names_the_command_that_downloads_it(adapted, finished, monkeypatch, capsys):
    monkeypatch.setenv("LLAMA_CPP_DIR", "/nowhere")
    monkeypatch.setattr("tui_trainer.exporting.contract.find_spec", lambda _: True)
    assert main(["export", adapted.run.name, "--to", "gguf"]) == 2
    assert "unset LLAMA_CPP_DIR" in capsys.readouterr().err
    monkeypatch.delenv("LLAMA_CPP_DIR")
    monkeypatch.setenv("HOME", "/nowhere")
    assert main(["export", adapted.run.name, "--to", "gguf"]) == 2
    assert "converter was not found: run `tui-trainer install gguf`" in capsys.readouterr().err
    assert main(["export", str(finished("sequence_classification").root), "--to", "gguf"]) == 2
    assert "does not support classifiers" in capsys.readouterr().err


def test_last_line_of_a_failing_converter_is_reported(adapted, tmp_path, monkeypatch, capsys):
    words = "Traceback\nNotImplementedError: unknown tokenizer"
    (tmp_path / "convert_hf_to_gguf.py").write_text(f"import sys\nprint({words!r}, file=sys.stderr)\nsys.exit(1)")
    monkeypatch.setenv("LLAMA_CPP_DIR", str(tmp_path))
    monkeypatch.setattr("tui_trainer.exporting.contract.find_spec", lambda _: True)
    assert main(["export", adapted.run.name, "--to", "gguf"]) == 1
    assert "converter failed: NotImplementedError: unknown tokenizer" in capsys.readouterr().err
    assert list((adapted.run.root / "export").iterdir()) == []


@pytest.mark.full
def test_run_is_locked_during_an_export(adapted, tmp_path, monkeypatch, capsys):
    run, out, refused = adapted.run, tmp_path / "elsewhere", []
    write = merged.Merged.write

    def write_while_others_start(self, *args):
        write(self, *args)
        for command in (["export", run.name, "--to", "merged"], ["delete", run.name, "--yes"],
                        ["rename", run.name, "another"]):  # fmt: skip
            refused.append(run_program(command))

    with monkeypatch.context() as patch:
        patch.setattr(merged.Merged, "write", write_while_others_start)
        assert main(["export", run.name, "--to", "merged"]) == 0
    assert main(["export", run.name, "--to", "merged", "--out", str(out)]) == 0
    for done in refused:
        assert (done.returncode, done.stdout) == (2, ""), done
        assert re.search(
            rf"in use by `export {run.name}.*`, process {os.getpid()} on this host since 20\S+; "
            rf"wait until it ends, or end it with `kill {os.getpid()}`$",
            done.stderr.strip(),
        ), done.stderr
    assert len(refused) == 3
    assert {path.name for path in out.iterdir()} == {path.name for path in (run.exports / "merged").iterdir()}
    assert not run.in_use.exists() and [path.name for path in run.exports.iterdir()] == ["merged"]
    assert main(["delete", run.name, "--yes"]) == 0


@pytest.mark.full
def test_killed_export_does_not_block_the_next_one(adapted, monkeypatch):
    run = adapted.run
    killed = """
from tui_trainer.exporting.formats import merged
def write(self, *args):
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
merged.Merged.write = write
"""
    assert run_program(["export", run.name, "--to", "merged"], prelude=killed).returncode == -9
    assert len(list(run.in_use.iterdir())) == 1 and (run.exports / ".writing-merged").is_dir()
    assert main(["export", run.name, "--to", "merged"]) == 0
    assert [path.name for path in run.exports.iterdir()] == ["merged"]
    assert main(["rename", run.name, "another"]) == 0
    assert not run.in_use.exists()
