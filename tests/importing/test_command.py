"""The command `tui-trainer import`."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tui_trainer.cli import main
from tui_trainer.config.load import Request, load
from tui_trainer.importing.detection import all_importers

CONFIGS = Path(__file__).parent / "configs"
AXOLOTL, FRAGMENT = str(CONFIGS / "axolotl_qlora.yaml"), str(CONFIGS / "guide_a_06.yaml")
HEAVY = ("torch", "transformers", "datasets", "textual", "peft")


def test_the_config_goes_to_standard_output_and_the_report_to_standard_error(capsys):
    assert main(["import", FRAGMENT]) == 0
    shown = capsys.readouterr()
    assert tomllib.loads(shown.out)["training"] == {
        "learning_rate": 5e-5,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.1,
    }
    assert "warmup_ratio: 0.1 -> training.warmup_steps = 0.1 (a share of all steps)\n" in shown.err
    assert 'lr_scheduler_type: cosine -> training.lr_scheduler_type = "cosine"\n' in shown.err
    assert "(transformers): the keys also match trl, training_script" in " ".join(shown.err.split())


def test_to_writes_the_file_and_names_the_next_command(capsys, tmp_path):
    out = tmp_path / "out.toml"
    assert main(["import", AXOLOTL, "--to", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    message = " ".join(shown.out.split())  # long lines are wrapped
    assert "micro_batch_size 2 x gradient_accumulation_steps 4 -> training.effective_batch_size = 8 (" in message
    assert "lora_r: 32 -> tuning.r = 32\n" in shown.out
    assert shown.out.endswith(f"next: tui-trainer plan {out}\n")
    config = load(Request(config_file=out), lambda name: (None, "")).config
    assert (config.tuning.r, config.training.effective_batch_size) == (32, 8)
    assert config.data.path == str(tmp_path / "conversations.jsonl")
    text = out.read_text()
    assert "r = 32  # lora_r: 32\n" in text
    assert '#   special_tokens: {"pad_token": "<pad>"} (not needed: padding is excluded from the loss)\n' in text
    assert main(["import", FRAGMENT, "--to", "part.toml"]) == 0
    assert capsys.readouterr().out.endswith("next: tui-trainer plan part.toml --model FOLDER --data FILE\n")
    assert main(["import", str(CONFIGS / "guide_e_03.yaml"), "--to", "chars.toml"]) == 0
    assert capsys.readouterr().out.endswith("next: tui-trainer plan chars.toml\n")


def test_an_existing_file_is_overwritten_only_if_forced(capsys, tmp_path):
    out = tmp_path / "out.toml"
    out.write_text("seed = 1\n")
    assert main(["import", FRAGMENT, "--to", str(out)]) == 2
    assert capsys.readouterr().err == f"tui-trainer: {out}: already exists; use --force to overwrite the file\n"
    assert out.read_text() == "seed = 1\n"
    assert main(["import", FRAGMENT, "--to", str(out), "--force"]) == 0
    assert "learning_rate" in out.read_text()


def test_template_of_a_file_is_written_beside_the_config(capsys, tmp_path):
    template, out = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}", tmp_path / "folder" / "out.toml"
    out.parent.mkdir()
    given = {"model_name_or_path": "m", "max_length": 64, "chat_template": template}
    (tmp_path / "sft.yaml").write_text(json.dumps(given))
    assert main(["import", "sft.yaml", "--as", "trl"]) == 2
    assert "--to OUT.toml writes that file next to OUT.toml" in capsys.readouterr().err
    assert main(["import", "sft.yaml", "--as", "trl", "--to", str(out)]) == 0
    config = load(Request(config_file=out), lambda name: (None, "")).config
    beside = out.with_suffix(".jinja")
    assert config.task.chat_template == str(beside) and beside.read_text() == template
    out.unlink()
    assert main(["import", "sft.yaml", "--as", "trl", "--to", str(out)]) == 2
    assert (
        f"{beside}: already exists; use --force to overwrite the file" in capsys.readouterr().err and not out.exists()
    )
    assert main(["import", "sft.yaml", "--as", "trl", "--to", str(out), "--force"]) == 0 and out.exists()


WRONG_OPTIONS = [
    (["--to", "none/out.toml"], "none/out.toml: cannot be written: No such file or directory"),
    (["--to", "out.yaml"], "out.yaml: the file name does not end in .toml"),
    (["--force"], "--force works only with --to; name the file with --to OUT.toml"),
    (["--as", "axolotol"], "--as: unknown tool 'axolotol'; did you mean axolotl?"),
]


def test_a_wrong_option_is_refused(capsys, subtests):
    for words, expected in WRONG_OPTIONS:
        with subtests.test(words=words):
            assert main(["import", FRAGMENT, *words]) == 2
            shown = capsys.readouterr()
            assert expected in shown.err
            assert shown.out == ""


def test_a_broken_file_is_reported_in_one_line(capsys, tmp_path):
    (tmp_path / "x.json").write_text('{"fp16": true,\n "bf16": }')
    assert main(["import", "x.json"]) == 2
    shown = capsys.readouterr()
    assert shown.err == "tui-trainer: x.json: line 2 is not valid JSON: Expecting value\n"
    assert shown.out == ""


def test_unknown_keys_are_reported_with_all_importers(capsys, tmp_path):
    (tmp_path / "x.yaml").write_text("colour: red\n")
    assert main(["import", "x.yaml"]) == 2
    shown = capsys.readouterr().err
    assert "has no known key (keys found: colour)" in shown
    assert all(name in shown for name in all_importers())
    assert main(["import", "x.yaml", "--as", "trl"]) == 2
    shown = capsys.readouterr()
    assert "colour: red is not known: trl has no such key" in shown.err and shown.out == ""
    path = tmp_path / "config.json"
    path.write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32"}')
    assert main(["import", str(path)]) == 2
    assert "is the config.json of a model" in capsys.readouterr().err


def test_a_file_that_sets_nothing_is_refused_with_the_reason(capsys, tmp_path):
    out, config = tmp_path / "out.toml", tmp_path / "config.json"
    config.write_text('{"provider": "huggingface"}')
    assert main(["import", str(config), "--as", "modelforge", "--to", str(out)]) == 2
    shown = capsys.readouterr()
    assert not out.exists() and shown.out == "" and shown.err.count("\n") == 1
    assert "contains no setting that can be imported: provider: huggingface (always the case: models" in shown.err


NOT_TRAINABLE = [
    ("task: table-question-answering", "modelforge", ("task: table-question-answering", "question_answering")),
    ("task: text-classification", "modelforge", ("nearest: sequence_classification",)),
    ("task: text-generations", "modelforge", ("nearest: causal_lm (text-generation)",)),
    ("task: paint", "modelforge", ("tasks: causal_lm, char_lm, chat,",)),
    ("strategy: dpo", "modelforge", ("strategy: dpo", "full, lora and qlora")),
    ("task_type: FEATURE_EXTRACTION", "peft", ("task_type: FEATURE_EXTRACTION",)),
    ("peft_type: IA3", "peft", ("peft_type: IA3", "full, lora and qlora")),
    ("stage: ppo", "llama_factory", ("stage: ppo", "answers that they generate")),
    ("stage: sft2", "llama_factory", ("stage: sft2", "task.type must be one of causal_lm,")),
    ("finetuning_type: oft", "llama_factory", ("finetuning_type: oft", "full, lora and qlora")),
    ("rl: ppo", "axolotl", ("rl: ppo", "the supported values are dpo,")),
    ("adapter: llama-adapter", "axolotl", ("adapter: llama-adapter", "full, lora and qlora")),
    ("datasets: [{path: a.jsonl, type: house}]", "axolotl", ("the type house", "nearest: chat_template")),
    ("datasets: [{path: a.jsonl, type: alpaca}, {path: b.jsonl, type: completion}]", "axolotl",
     ("a run has one task, but its data sets have the types alpaca, completion",)),
    ("loss_type: hinge", "trl", ("loss_type: hinge", "the supported losses are sigmoid,")),
    ("use_lora: perhaps", "training_script", ("use_lora: perhaps", "full, lora and qlora")),
]  # fmt: skip


def test_what_cannot_be_trained_is_refused_with_the_nearest_and_nothing_is_written(capsys, tmp_path, subtests):
    """Leaving out the key would give a config for the task or method of the presets."""
    for given, kind, words in NOT_TRAINABLE:
        with subtests.test(given=given):
            (tmp_path / "x.yaml").write_text(f"{given}\n{'r: 8' if kind == 'peft' else 'learning_rate: 1.0e-4'}\n")
            assert main(["import", "x.yaml", "--as", kind, "--to", "out.toml"]) == 2
            shown = capsys.readouterr()
            assert shown.out == "" and shown.err.count("\n") == 1 and not (tmp_path / "out.toml").exists()
            assert shown.err.startswith("tui-trainer: x.yaml: ") and re.search(
                "cannot be used here: |cannot be imported: ", shown.err
            )
            assert all(word in shown.err for word in words), shown.err


def test_json_holds_the_whole_result(capsys, tmp_path):
    (tmp_path / "x.yaml").write_text("lora_r: 8\ntpu_num_cores: .inf\nlogging_dir: 2024-01-02\nadapter: lora\n")
    assert main(["import", "x.yaml", "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out, parse_constant=pytest.fail)
    assert found["kind"] == "axolotl"
    assert {name: found["rewrites"][0][name] for name in ("from", "key", "value")} == {
        "from": {"lora_r": 8},
        "key": "tuning.r",
        "value": 8,
    }
    assert {one["key"]: (one["value"], one["why"]) for one in found["left_out"]} == {
        "tpu_num_cores": ("inf", "not needed"),
        "logging_dir": ("2024-01-02", "not needed"),
    }
    assert tomllib.loads(found["toml"])["tuning"] == {"method": "lora", "r": 8}


@pytest.mark.full
def test_an_import_loads_no_heavy_library(tmp_path):
    program = (
        "import sys; from tui_trainer.cli import main; assert main(['import', sys.argv[1]]) == 0; "
        f"sys.exit(','.join(name for name in {HEAVY!r} if name in sys.modules) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, AXOLOTL],
        env=os.environ | {"TUI_TRAINER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr
