"""Models that cannot be trained: one sentence for each mistake, exit code 2, no run folder, and no foreign code.

`main` runs in this process on a machine without a GPU, with an empty cache of the hub and no network.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils.logging import disable_progress_bar

from tests.programs import run_program
from tests.runs.journals import read_all
from tests.tiny_models import save_tiny_model, texts
from tui_trainer.cli import main
from tui_trainer.hardware.probe import probe
from tui_trainer.models.catalogue import all_entries
from tui_trainer.models.heads import supported_heads
from tui_trainer.runs.events import RunFailed, RunProblem
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.registry import known_runs
from tui_trainer.terminal.safe_text import show_control_characters

SETTINGS = {
    "data.path": "documents.jsonl",
    "task.type": "causal_lm",
    "data.max_length": 64,
    "data.eval_fraction": 0.2,
    "training.max_steps": 2,
    "training.effective_batch_size": 4,
    "logging.sample_steps": 0,
}
MODEL = "model.model_name_or_path"
MIB = 1024**2


def words(settings: dict) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def train(model: str | Path, **changes: object) -> int:
    """Run `tui-trainer --no-ui --model MODEL` with settings given as `data__max_length=256`."""
    settings = SETTINGS | {key.replace("__", "."): value for key, value in changes.items()}
    return main(["--no-ui", "--model", str(model), *words(settings)])


@pytest.fixture(scope="session")
def good_models(tmp_path_factory) -> Callable[[str], Path]:
    """Return `good_models(family)`: the folder of a whole tiny model, which must not be changed."""
    root = tmp_path_factory.mktemp("good")
    disable_progress_bar()

    def folder(family: str) -> Path:
        return root / family if (root / family).exists() else save_tiny_model(root / family, family)

    return folder


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """A folder with data, an empty cache of the hub, and a machine without a GPU."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts(60))
    (tmp_path / "documents.jsonl").write_text(rows)
    machine(monkeypatch)
    return tmp_path


def machine(monkeypatch, **changes: object) -> None:
    """Plan for a machine without a GPU, and with these facts."""
    facts = replace(probe(), gpus=(), nvidia_pci_devices=0, cpu_flags=frozenset(), **changes)
    for user in ("launching.open_run", "launching.prepare"):
        monkeypatch.setattr(f"tui_trainer.{user}.probe", lambda: facts)


@pytest.fixture
def barred(monkeypatch) -> None:
    """Make training end with exit code 1 at its start."""
    monkeypatch.setitem(sys.modules, "tui_trainer.training.run", None)


@pytest.fixture
def copied(good_models, tmp_path) -> Callable[[str], Path]:
    """Return `copied(family, name)`: a copy of a good model to damage."""
    return lambda family="llama", name="model": Path(shutil.copytree(good_models(family), tmp_path / name))


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: change_tensors(folder, lambda tensors: tensors.pop(name))


def configure(**changes: object) -> Callable[[Path], None]:
    return lambda folder: change_config(folder, **changes)


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def remove(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def tear(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def enlarge_tokenizer(folder: Path) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    template = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    content["added_tokens"] += [{"id": 384 + n, "content": f"<more{n}>", **template} for n in range(3)]
    path.write_text(json.dumps(content))


def as_adapter(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base", "r": 8}))
    (folder / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")


def as_bin(folder: Path, *, old_form: bool = False, **more: object) -> None:
    """Store the weights as torch.save does, with `more` beside the tensors."""
    content = load_file(folder / "model.safetensors") | more
    torch.save(content, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not old_form)
    (folder / "model.safetensors").unlink()


@dataclass(frozen=True)
class Case:
    """One mistake: the change to a copy of a good model, and the words of the message."""

    name: str
    damage: Callable[[Path], object]
    words: tuple[str, ...]
    family: str = "llama"
    lines: int = 1


CASES = [
    Case("no weights", remove("model.safetensors"), ("a config.json but no weights", "copy model.safetensors")),
    Case("another vocabulary", configure(vocab_size=500), ("has the shape 384 x 32, but config.json specifies 500",)),
    Case("more layers", configure(num_hidden_layers=3), ("config.json specifies 3 layers, but the weights have 2",)),
    Case("fewer layers", configure(num_hidden_layers=1), ("config.json specifies 1 layers, but the weights have 2",)),
    Case("another width", configure(intermediate_size=80), ("gate_proj.weight has the shape 64 x 32", " 80 x"),
         lines=3),
    Case("no matrix", drop("model.layers.1.mlp.up_proj.weight"), ("tensors mlp.up_proj.weight are missing",)),
    Case("no norm", drop("model.layers.0.input_layernorm.weight"), ("1 of 2 tensors input_layernorm.weight are",)),
    Case("no last norm", drop("model.norm.weight"), ("the weights have no model.norm.weight", "of the same model")),
    Case("no head", drop("lm_head.weight"), ("the weights have no head (lm_head.weight)",), family="qwen2"),
    Case("torn file", tear, ("model.safetensors is truncated: 100 of", "copy or download the model again")),
    Case("garbage", write("model.safetensors", b"\0" * 999), ("model.safetensors is not a safetensors file",)),
    Case("pointer of git-lfs", write("model.safetensors", b"version https://git-lfs.x/v1\n"), ("`git lfs pull`",)),
    Case("no tensors", write("model.safetensors", b"\2" + b"\0" * 7 + b"{}"), ("contain no tensors",)),
    Case("garbage as .bin", lambda f: (remove("model.safetensors")(f), write("pytorch_model.bin", b"x" * 99)(f)),
         ("pytorch_model.bin is damaged", "copy the model again")),
    Case("larger tokenizer", enlarge_tokenizer, ("has only 384 rows",)),
    Case("no tokenizer", remove("tokenizer.json"), ("the folder has no tokenizer", "copy tokenizer.json")),
    Case("damaged tokenizer", write("tokenizer.json", b"{}"), ("tokenizer.json is damaged; copy it again",)),
    Case("damaged config", write("config.json", b"{"), ("config.json cannot be read as JSON",)),
    Case("hostile config", configure(model_type="\x1b[0m", architectures=["\x1b[31mForMaskedLM"]), ("is a masked",)),
    Case("encoder", configure(model_type="bert", architectures=["BertForMaskedLM"]),
         ("BertForMaskedLM is a masked language model", "text; plain text and conversations need a decoder")),
    Case("seq2seq", configure(model_type="t5", is_encoder_decoder=True, architectures=["T5ForConditionalGeneration"]),
         ("an encoder-decoder model", "need a decoder")),
    Case("classifier", configure(architectures=["LlamaForSequenceClassification"]), ("is a text classifier",)),
    Case("adapter", as_adapter, ("the adapter is for org/base: the model", "tui-trainer download org/base")),
    Case("empty folder", lambda f: (shutil.rmtree(f), f.mkdir()), ("the folder has no config.json",)),
    Case("quantised", configure(quantization_config={"quant_method": "gptq"}), ("stored quantised (gptq)", "16-bit")),
]  # fmt: skip


def refused(capsys, code: int, *, lines: int = 1) -> str:
    """Return the message after checking for exit code 2, one line for each problem, no traceback and no run."""
    message = capsys.readouterr().err
    assert code == 2, message
    assert message.count("\n") == message.count("tui-trainer: ") == lines and message.endswith("\n"), message
    assert show_control_characters(message) == message and "Traceback" not in message
    assert not Path("runs").exists() and known_runs() == []
    return message


def test_bad_model_is_refused_in_one_line_before_there_is_a_run(copied, capsys, barred, subtests):
    for number, case in enumerate(CASES):
        with subtests.test(case.name):
            folder = copied(case.family, f"model-{number}")
            case.damage(folder)
            message = refused(capsys, train(folder), lines=case.lines)
            assert message.count(f"{folder}: {MODEL}: ") == case.lines
            for word in case.words:
                assert word in message


def test_data_that_no_run_of_this_model_can_learn_is_refused_by_name(copied, capsys, barred, tmp_path, subtests):
    model = copied("bert", "bert")
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    (tmp_path / "chat.jsonl").write_text("\n".join([json.dumps({"messages": turns})] * 30))
    (tmp_path / "notes.txt").write_text("A text without labels.\n" * 30)
    stars = [f"{n},review {n} as it was,{n % 5}" for n in range(30)]
    (tmp_path / "stars.csv").write_text("\n".join(["id,review,stars", *stars]))
    for data, told in (
        ("bert", "is the folder of a model, not data; give the path of the data here, and the model with --model"),
        ("chat.jsonl", "plain text and conversations need a decoder, such as a Llama"),
        ("notes.txt", "texts without labels need a decoder as the model"),
        ("stars.csv", "there is no column 'text'; columns found: id, review, stars; set data.text_column"),
    ):
        with subtests.test(data):
            words = ["plan", "--model", str(model), "--data", str(tmp_path / data), "--set", "data.text_column=text"]
            assert main(words[: None if data == "stars.csv" else -2]) == 2
            assert told in capsys.readouterr().err


def test_missing_folder_file_and_hub_name_are_told_apart(place, capsys, barred):
    (place / "weights.safetensors").write_bytes(b"x")
    assert "is a file, not a folder; give the folder that holds" in refused(capsys, train("./weights.safetensors"))
    assert "--model: model.model_name_or_path: the folder ./nowhere" in refused(capsys, train("./nowhere"))
    message = refused(capsys, train("org/unheard-of"))
    assert "org/unheard-of is not on this machine" in message
    assert "`tui-trainer download org/unheard-of`" in message and "./unheard-of" in message


def test_catalogued_model_can_be_planned_and_not_trained(capsys, barred):
    decoders = [entry for entry in all_entries() if "causal_lm" in supported_heads(str(entry.config["model_type"]))]
    name = min(decoders, key=lambda entry: entry.parameters).name
    assert main(["plan", "--model", name, "--json", *words(SETTINGS)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["parameters"]["value"] > 10**6 and plan["memory_bytes"]["value"] > plan["parameters"]["value"]
    message = refused(capsys, train(name))
    assert f"a run with {name} can be planned but not started, because the model is not on this machine" in message
    assert f"tui-trainer download {name}" in message


def test_target_modules_that_match_nothing_name_the_nearest(good_models, capsys, barred):
    message = refused(capsys, train(good_models("llama"), tuning__target_modules="q_prj"))
    assert "--set: tuning.target_modules" in message and "did you mean q_proj" in message and "down_proj" in message
    message = refused(capsys, train(good_models("gpt2"), tuning__target_modules="q_proj,v_proj"), lines=2)
    assert message.count("linear layers of the model: c_attn, c_proj, c_fc") == 2


def test_random_weights_cannot_be_frozen(good_models, capsys, barred):
    message = refused(capsys, train(good_models("llama"), model__init="scratch", tuning__method="lora"))
    assert "--set: tuning.method: a model with random weights" in message and '"full"' in message


def test_precision_and_optimizer_that_a_cpu_lacks_are_reported_together(good_models, capsys, barred):
    code = train(good_models("llama"), training__mixed_precision="fp16", training__optim="adamw_8bit")
    first, second = refused(capsys, code, lines=2).splitlines()
    assert "training.mixed_precision: fp16 needs a GPU" in first and "set it to auto" in first
    assert "training.optim: adamw_8bit needs a GPU" in second and "adafactor" in second


def test_rows_longer_than_the_learnt_positions_are_refused(good_models, capsys, barred):
    message = refused(capsys, train(good_models("gpt2"), data__max_length=256))
    assert (
        "--set: data.max_length: 256 is above 128, the number of positions that this gpt2 model has learned" in message
    )
    assert "set data.max_length = 128 or less" in message


@pytest.mark.full
def test_rows_of_a_recipe_are_shortened_to_the_learnt_positions_and_a_note_says_so(
    good_models, capsys, barred, subtests
):
    settings = {key: value for key, value in SETTINGS.items() if key != "data.max_length"}
    for family, length in (("gpt2", 128), ("opt", 128), ("llama", 1024)):
        with subtests.test(family):
            arguments = ["plan", "--model", str(good_models(family)), *words(settings)]
            assert main([*arguments, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["config"]["data"]["max_length"] == length
            assert main(arguments) == 0
            note = f"data.max_length is 128 instead of 1024 (recipe finetune): this {family} model has 128 positions"
            lines = capsys.readouterr().out.splitlines()
            assert (note in lines) == (length == 128)
            source = [line for line in lines if line.startswith("trains on documents.jsonl (")]
            assert source and "JSON Lines, the text in" in source[0]


LARGE = {"data.max_length": 2048, "training.effective_batch_size": 16, "training.per_device_train_batch_size": 16}


@pytest.fixture
def long_text(tmp_path) -> Path:
    """A file of documents that fill rows of 2048 tokens."""
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps({"text": f"{n} is a number, " * 3000}) + "\n" for n in range(20)))
    return path


@pytest.mark.full
@pytest.mark.parametrize(("memory_mib", "method"), [(100, "full"), (60, "full"), (30, "full"), (30, "lora")])
def test_advice_for_a_plan_that_does_not_fit_makes_it_fit(
    memory_mib, method, good_models, capsys, monkeypatch, barred, long_text
):
    machine(monkeypatch, memory_bytes=memory_mib * MIB)
    settings = LARGE | {"tuning.method": method, "data.path": long_text}
    message = refused(capsys, train(good_models("llama"), **{key.replace(".", "__"): v for key, v in settings.items()}))
    assert f"of memory; this machine has {memory_mib}.0 MiB; try in this order: " in message
    ways = re.findall(r'([a-z_.]+ = "?\w+"?)[^(]*\(then ([\d.]+) MiB\)', message)
    needed = [float(size_mib) for _, size_mib in ways]
    assert needed == sorted(needed, reverse=True) and len(set(needed)) == len(needed)
    assert needed[-1] < memory_mib and all(size_mib > 0.8 * memory_mib for size_mib in needed[:-1])

    changed = settings | {key: value.strip('"') for key, _, value in (way.partition(" = ") for way, _ in ways)}
    assert main(["plan", "--model", str(good_models("llama")), "--json", *words(SETTINGS | changed)]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["memory_bytes"]["value"] / MIB == pytest.approx(needed[-1], rel=0.05)


@pytest.mark.full
def test_refusal_names_the_largest_micro_batch_that_fits(good_models, capsys, monkeypatch, barred, long_text):
    settings = {key.replace(".", "__"): value for key, value in (LARGE | {"data.path": long_text}).items()}
    found = []
    for memory_mib in (400, 200, 100):
        machine(monkeypatch, memory_bytes=memory_mib * MIB)
        message = refused(capsys, train(good_models("llama"), **settings))
        rows = int(re.search(r"per_device_train_batch_size = (\d+)", message)[1])
        found.append(rows)
        larger = {**settings, "training__per_device_train_batch_size": 2 * rows}
        assert "of memory; this machine has" in refused(capsys, train(good_models("llama"), **larger))
    assert found == sorted(found, reverse=True) and len(set(found)) == 3, found


def test_machine_that_is_too_small_for_the_smallest_setup_is_reported(
    good_models, capsys, monkeypatch, barred, long_text
):
    machine(monkeypatch, memory_bytes=2 * MIB)
    message = refused(capsys, train(good_models("llama"), data__max_length=2048, data__path=long_text))
    assert message.endswith("then choose a smaller model (these settings together are not enough)\n")


@pytest.mark.full
def test_plain_tensors_in_a_bin_file_are_trained(copied):
    folder = copied()
    as_bin(folder)
    assert train(folder, output__name="from-bin") == 0
    run = RunFolder(Path("runs") / "from-bin")
    assert (run.model / "adapter_model.safetensors").is_file()
    assert not [event for event in read_all(run.journal) if isinstance(event, RunProblem | RunFailed)]


class _Payload:
    """An object whose pickle runs a command when it is loaded."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self):
        return os.system, (f"touch {shlex.quote(str(self.canary))}",)


def test_pickle_that_calls_a_function_is_refused_without_loading_it(copied, place, capsys, barred, subtests):
    for old_form in (False, True):
        with subtests.test("before torch 1.6" if old_form else "zip"):
            folder, canary = copied(name=f"model-{old_form}"), place / f"canary-{old_form}"
            as_bin(folder, old_form=old_form, extra=_Payload(canary))
            message = refused(capsys, train(folder))
            assert "pytorch_model.bin contains objects other than tensors (posix.system)" in message
            assert "use the version of the model with .safetensors files" in message
            assert "convert it, which runs the code in the file with all your permissions: python" in message
            assert not canary.exists()
            torch.load(folder / "pytorch_model.bin", weights_only=False)
            assert canary.exists(), "the payload works"


@pytest.mark.e2e
@pytest.mark.parametrize("old_form", [pytest.param(False, id="zip"), pytest.param(True, id="before torch 1.6")])
def test_command_of_the_refusal_converts_a_pickle(old_form, copied, capsys, barred):
    folder = copied()
    as_bin(folder, old_form=old_form, came_from=Path("somewhere"))
    message = refused(capsys, train(folder))
    command = message.rpartition("with all your permissions: python ")[2].strip()
    subprocess.run(f"{shlex.quote(sys.executable)} {command}", shell=True, check=True, capture_output=True)
    assert main(["plan", "--model", str(folder), *words(SETTINGS)]) == 0


@pytest.mark.full
def test_weights_that_are_not_finite_are_named_while_loading(copied, capsys):
    folder, name = copied(), "model.layers.1.mlp.up_proj.weight"
    change_tensors(folder, lambda tensors: tensors[name].__setitem__((3, 4), float("nan")))
    assert train(folder, output__name="poisoned") == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and f"{folder}: {MODEL}: {name} contains 1 " in message and "not finite" in message
    run = RunFolder(Path("runs") / "poisoned")
    last = read_all(run.journal)[-1]
    assert isinstance(last, RunFailed) and name in last.message
    assert not list(run.logs.glob("error*")) and not run.model.exists()


OWN_CONFIG = """
from pathlib import Path
from transformers import LlamaConfig
Path({canary!r}).touch()
class OwnConfig(LlamaConfig):
    model_type = "own"
"""
OWN_CODE = """
from transformers import LlamaForCausalLM
from .own_config import OwnConfig
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""


def with_own_code(folder: Path, place: Path) -> tuple[Path, Path]:
    """Return the folder, and the file that its code creates when it runs."""
    canary = place / "canary"
    (folder / "own.py").write_text(OWN_CODE)
    (folder / "own_config.py").write_text(OWN_CONFIG.format(canary=str(canary)))
    names = {"AutoConfig": "own_config.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    change_config(folder, model_type="own", architectures=["OwnModel"], auto_map=names)
    return folder, canary


def test_code_of_a_model_does_not_run_without_consent(copied, place, capsys):
    folder, canary = with_own_code(copied(), place)
    message = refused(capsys, train(folder))
    assert "needs to run its own Python code" in message and "model.trust_remote_code = true" in message
    assert not canary.exists()


@pytest.mark.e2e
def test_code_of_a_model_runs_where_it_is_trusted(copied, place):
    folder, canary = with_own_code(copied(), place)
    settings = words(SETTINGS | {"model.trust_remote_code": "true", "output.name": "trusted"})
    # In a process of its own: transformers keeps such code in a folder that it looks up once.
    done = run_program(["--no-ui", "--model", str(folder), *settings])
    assert done.returncode == 0, done.stderr
    assert canary.exists()


@pytest.mark.e2e
def test_an_adapter_for_a_model_with_code_of_its_own_is_merged_and_measured(copied, place):
    folder, _ = with_own_code(copied(), place)
    settings = words(SETTINGS | {"model.trust_remote_code": "true", "tuning.method": "lora", "output.name": "own"})
    for command in (
        ["--no-ui", "--model", str(folder), *settings],
        ["export", "own", "--to", "merged"],
        ["evaluate", "own", str(place / "runs/own/export/merged")],
    ):
        done = run_program(command)
        assert done.returncode == 0, done.stderr


def test_architecture_that_transformers_does_not_know_is_reported_in_one_sentence(copied, capsys):
    folder = copied()
    change_config(folder, model_type="of_tomorrow", architectures=["TomorrowForCausalLM"])
    assert train(folder) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "does not know the architecture of_tomorrow; install a newer version" in message
