"""Models with towers for images: their language model is trained on text, and the towers do not change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from peft import PeftModel
from PIL import Image
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    Gemma3ImageProcessorPil,
    PixtralImageProcessorPil,
    Qwen2VLImageProcessorPil,
)

from tests.combinations import in_the_sweep
from tests.compilations import counted_compilations
from tests.runs.journals import read_all
from tests.tiny_models import (
    PACKED_TOWERS,
    TOWERS,
    save_tiny_model,
    save_tiny_model_with_towers,
    texts,
    tiny_model_with_towers,
)
from tui_trainer.config.load import Request
from tui_trainer.config.sections import ModelSection, TuningSection
from tui_trainer.errors import ConfigError
from tui_trainer.exporting.contract import find_format, format_of
from tui_trainer.exporting.generate import Writer
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.launching.open_run import load_config, open_new, reopen_run
from tui_trainer.launching.prepare import read_plan
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.models.loading import load_pretrained
from tui_trainer.models.towers import is_of_tower, language_model, tower_modules
from tui_trainer.models.writing import Sampling
from tui_trainer.runs.events import RunProblem, StepDone
from tui_trainer.runs.folder import RunFolder
from tui_trainer.tuning import find_method

pytestmark = pytest.mark.versions
RATE, STEPS = 0.003, 6
TEXT_CLASSES = {
    "gemma3": "Gemma3ForCausalLM", "mistral3": "MistralForCausalLM", "qwen2_5_vl": "Qwen2ForCausalLM",
    "qwen3_vl": "Qwen3ForCausalLM", "qwen3_5": "Qwen3_5ForCausalLM",
}  # fmt: skip
TOWERS_OF = {
    "gemma3": {"vision_tower": 0, "multi_modal_projector": 0},
    "mistral3": {"vision_tower": 0, "multi_modal_projector": 0},
    "qwen2_5_vl": {"visual": 0},
    "qwen3_vl": {"visual": 0},
    "qwen3_5": {"visual": 0},
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("towers")
    for family in TOWERS:
        save_tiny_model_with_towers(folder / family, family)
        image_processor(family).save_pretrained(folder / family)
    return folder


def trained_run(base: Path, place: Path, task: str = "causal_lm", **changes: Any) -> RunFolder:
    """Train on four rows. All of them are in each step, so their order does not matter."""
    data = place / "rows.jsonl"
    rows: list[dict[str, Any]] = [{"text": text} for text in texts(4)]
    if task == "chat":
        turns = [[("user", row["text"]), ("assistant", "Yes.")] for row in rows]
        rows = [{"messages": [{"role": role, "content": text} for role, text in each]} for each in turns]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "task.type": task,
        "task.chat_template": "chatml" if task == "chat" else "",
        "data.path": data,
        "model.model_name_or_path": base,
        "data.max_length": 96,
        "data.eval_fraction": 0,
        "training.effective_batch_size": 4,
        "training.learning_rate": RATE,
        "training.lr_scheduler_type": "constant",
        "training.warmup_steps": 0,
        "training.max_grad_norm": 0,
        "training.max_steps": STEPS,
        "evaluation.eval_steps": 0,
        "checkpoint.save_steps": 3,
        "logging.sample_steps": 0,
        "output.runs_dir": place / "runs",
        "output.name": task,
        **changes,
    }
    run = open_new(load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items()))))
    assert execute_run(run).exit_code == 0
    return run.folder


def losses_of(folder: RunFolder) -> list[float]:
    return [event.loss for event in read_all(folder.journal) if isinstance(event, StepDone)]


def bare_losses(family: str, base: Path) -> list[float]:
    """Return the losses of a plain loop over the layers and the head of the language model."""
    model = tiny_model_with_towers(family)
    _, layers = language_model(model)
    head, tokenizer = model.get_output_embeddings(), AutoTokenizer.from_pretrained(base)
    rows = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts(4)]
    weights = {id(weight): weight for part in (layers, head) for weight in part.parameters()}
    optimizer = torch.optim.AdamW(weights.values(), lr=RATE, weight_decay=0)
    found = []
    for _ in range(STEPS):
        nats, count = torch.zeros(()), 0
        for row in rows:
            ids = torch.tensor([row])
            logits = head(layers(input_ids=ids, use_cache=False).last_hidden_state)
            nats = nats + F.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum")
            count += len(row) - 1
        (nats / count).backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(nats.item() / count)
    return found


def stored(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def assert_towers_are_the_same(family: str, before: Path, after: Path) -> None:
    old, new = stored(before), stored(after)
    assert old.keys() == new.keys()
    of_towers = [name for name in old if is_of_tower(name, TOWERS_OF[family])]
    assert of_towers and all(torch.equal(old[name], new[name]) for name in of_towers)
    assert any(not torch.equal(old[name], new[name]) for name in old.keys() - set(of_towers))


def image_processor(family: str) -> Any:
    """Return the processor of the family for images of the size that its tiny tower takes."""
    if family == "gemma3":
        return Gemma3ImageProcessorPil(size={"height": 16, "width": 16})
    if family == "mistral3":
        return PixtralImageProcessorPil(size={"longest_edge": 32}, patch_size={"height": 16, "width": 16})
    return Qwen2VLImageProcessorPil(min_pixels=256, max_pixels=256, patch_size=4)


def answer_about_an_image(folder: Path, family: str) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the logits and the outputs of the towers for an image, with the model and processor in a folder.

    `AutoImageProcessor` is not used, because it needs torchvision in transformers 5.17.
    """
    dots = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    inputs = type(image_processor(family)).from_pretrained(folder)(images=Image.fromarray(dots), return_tensors="pt")
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    found: list[torch.Tensor] = []

    def keep(_module: Any, _args: Any, output: Any) -> None:
        parts = [output] if isinstance(output, torch.Tensor) else output.values()
        found.extend(part for part in parts if isinstance(part, torch.Tensor))

    for tower in tower_modules(model).values():
        tower.register_forward_hook(keep)
    # In each family an image is four tokens.
    ids = torch.tensor([[1, 40, 5, 3, 3, 3, 3, 6, 41, 42]])
    marks = {"mm_token_type_ids": (ids == 3).long()} if "image_grid_thw" in inputs else {}
    inputs.pop("num_crops", None)
    with torch.no_grad():
        return model(input_ids=ids, **inputs, **marks).logits, found


def assert_answers_change_only_with_the_language_model(family: str, base: Path, trained: Path) -> None:
    (before, towers), (after, again) = (answer_about_an_image(folder, family) for folder in (base, trained))
    assert towers and all(torch.equal(one, two) for one, two in zip(towers, again, strict=True))
    assert not torch.equal(before, after)


@pytest.mark.full
@pytest.mark.parametrize("family", ["gemma3", "mistral3", "qwen3_5"])
def test_the_language_model_learns_like_a_plain_loop_and_the_towers_do_not_change(family, bases, tmp_path):
    base = bases / family
    folder = trained_run(base, tmp_path, **{"tuning.method": "full"})
    losses = losses_of(folder)
    assert losses == pytest.approx(bare_losses(family, base), abs=1e-5)
    assert losses[-1] < losses[0]
    assert_towers_are_the_same(family, base, folder.model)
    assert (folder.model / "preprocessor_config.json").read_bytes() == (base / "preprocessor_config.json").read_bytes()
    # The tokenizer class of Qwen 3.5 sets a normalizer, so not all files are equal to the byte.
    one, other = (AutoTokenizer.from_pretrained(place).backend_tokenizer.to_str() for place in (base, folder.model))
    assert one == other
    told = json.loads((folder.model / "config.json").read_text())
    assert told["model_type"] == family and told["architectures"][0].endswith("ForConditionalGeneration")
    assert_answers_change_only_with_the_language_model(family, base, folder.model)
    assert Writer(folder).answer("3 plus 4", Sampling(max_new_tokens=4, temperature=0, seed=0)) is not None


@pytest.mark.full
@pytest.mark.parametrize("family", TOWERS)
def test_an_adapter_learns_a_conversation_is_resumed_merged_and_loaded_by_transformers(family, bases, tmp_path):
    base = bases / family
    folder = trained_run(base, tmp_path, "chat", **{"tuning.method": "lora", "tuning.lora_dropout": 0.1})
    assert losses_of(folder)[-1] < losses_of(folder)[0]
    adapter = load_file(folder.model / "adapter_model.safetensors")
    assert adapter and all(".language_model." in name for name in adapter)
    assert (folder.model / "preprocessor_config.json").read_bytes() == (base / "preprocessor_config.json").read_bytes()
    shutil.rmtree(folder.model)
    shutil.rmtree(folder.checkpoints / f"step-{STEPS}")
    assert execute_run(reopen_run(folder)).exit_code == 0
    again = load_file(folder.model / "adapter_model.safetensors")
    assert all(torch.equal(tensor, again[name]) for name, tensor in adapter.items())

    trained = TrainedModel.of(folder)
    merged = tmp_path / "merged"
    merged.mkdir()
    find_format("merged").write(trained, merged, lambda *told: None)
    assert_towers_are_the_same(family, base, merged)
    assert_answers_change_only_with_the_language_model(family, base, merged)
    assert (merged / "preprocessor_config.json").read_bytes() == (base / "preprocessor_config.json").read_bytes()
    ids = torch.arange(6, 40)[None]
    whole = AutoModelForImageTextToText.from_pretrained(merged).eval()
    beside = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(base), folder.model).eval()
    with torch.no_grad():
        torch.testing.assert_close(whole(input_ids=ids).logits, beside(input_ids=ids).logits, atol=1e-4, rtol=1e-4)
    for other, words in (("int8", "would be quantised"), ("gguf", "second file"), ("onnx", "reads text")):
        assert words in format_of(other).reason_against(trained)
        assert "model.text_only = true" in format_of(other).reason_against(trained)
    assert "AutoModelForImageTextToText" in (folder.model / "README.md").read_text()


@pytest.mark.full
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (n % 2)) for n, name in enumerate(PACKED_TOWERS)]
)
def test_packed_rows_have_the_losses_of_padded_rows(family, bases, tmp_path):
    padded, packed = (
        trained_run(bases / family, tmp_path, **{"tuning.method": "full", "data.packing": packing, "output.name": name})
        for name, packing in (("padded", "false"), ("packed", "true"))
    )
    assert not [one for one in read_all(packed.journal) if isinstance(one, RunProblem) and one.kind == "not packed"]
    assert losses_of(packed) == pytest.approx(losses_of(padded), abs=1e-5)
    one, two = (stored(folder.model) for folder in (padded, packed))
    assert all(torch.allclose(tensor, two[name], atol=1e-4) for name, tensor in one.items())


@pytest.mark.full
@pytest.mark.parametrize("family", TOWERS)
def test_the_language_model_alone_is_a_text_model_with_the_same_logits(family, bases):
    base = bases / family
    alone = load_pretrained(base, ModelSection(text_only=True), torch.float32).eval()
    assert not tower_modules(alone) and type(alone).__name__ == TEXT_CLASSES[family]
    ids = torch.arange(6, 46).reshape(2, 20)
    with torch.no_grad():
        wanted = AutoModelForImageTextToText.from_pretrained(base).eval()(input_ids=ids).logits
        torch.testing.assert_close(alone(input_ids=ids).logits, wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("family", ["gemma3", "qwen3_5"])
def test_a_run_of_the_language_model_alone_learns_as_with_towers_and_saves_a_text_model(family, bases, tmp_path):
    base = bases / family
    folder = trained_run(base, tmp_path, **{"tuning.method": "full", "model.text_only": "true"})
    assert losses_of(folder) == pytest.approx(bare_losses(family, base), abs=1e-5)
    again = AutoModelForCausalLM.from_pretrained(folder.model)
    assert type(again).__name__ == TEXT_CLASSES[family]
    plan = read_plan(folder)
    assert plan.parameters.value == again.num_parameters() and not plan.model_shape().towers
    assert not any(is_of_tower(name, TOWERS_OF[family]) for name in stored(folder.model))
    assert not (folder.model / "preprocessor_config.json").exists()
    # A run resumed from its middle ends with the same weights.
    whole = (folder.model / "model.safetensors").read_bytes()
    shutil.rmtree(folder.model)
    shutil.rmtree(folder.checkpoints / f"step-{STEPS}")
    assert execute_run(reopen_run(folder)).exit_code == 0
    assert (folder.model / "model.safetensors").read_bytes() == whole
    trained = TrainedModel.of(folder)
    for other in ("int8", "gguf", "onnx"):
        assert "towers" not in format_of(other).reason_against(trained)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["gemma3", in_the_sweep("qwen3_5")])
def test_only_layers_of_the_language_model_are_compiled(family, bases, tmp_path):
    settings = {"tuning.method": "full", "training.max_steps": 2}
    plain = trained_run(bases / family, tmp_path, **settings)
    with counted_compilations(carried_out=False):
        folder = trained_run(
            bases / family, tmp_path, **settings, **{"training.torch_compile": "true", "output.name": "compiled"}
        )
    told = {event.kind: event.message for event in read_all(folder.journal) if isinstance(event, RunProblem)}
    assert "not compiled" not in told and told["compiled"].startswith("2 layers were compiled")
    assert losses_of(folder) == pytest.approx(losses_of(plain), abs=1e-5)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.full] * (name != "gemma3")) for name in TOWERS]
)
def test_no_target_matches_a_tower_or_a_projector(family, subtests):
    for names in ("all-linear", "q_proj, fc1, qkv, gate_proj", "self_attn.k_proj"):
        with subtests.test(names):
            assert_targets_are_in_the_language_model(family, names)


def assert_targets_are_in_the_language_model(family, names):
    model = tiny_model_with_towers(family)
    outside = {id(part) for tower in tower_modules(model).values() for part in tower.modules()}
    inside, _ = language_model(model)
    section = TuningSection(method="lora", target_modules=names, modules_to_save="norm")
    adapted = find_method("lora").apply(model, section, seed=0, autocast=False)
    trained = [name for name, weight in adapted.named_parameters() if weight.requires_grad]
    assert trained and all(f".{inside}." in name for name in trained)
    in_towers = [part for part in adapted.modules() if id(part) in outside]
    assert in_towers and not any(weight.requires_grad for part in in_towers for weight in part.parameters())
    if names == "all-linear":
        layers = [name for name in trained if "lora_A" in name]
        # q, k, v, o, gate, up and down; a recurrent layer has five in the place of the first four.
        assert len(layers) == 2 * 7 + (family == "qwen3_5")


@pytest.mark.full
def test_untested_settings_are_refused(bases, tmp_path, subtests):
    rows = [
        ({"model.init": "scratch", "tuning.method": "full"}, 'is "scratch", which has not been tested with gemma3'),
        ({"distributed.strategy": "deepspeed-2"}, 'is "deepspeed-2", which has not been tested with gemma3'),
        ({"model.text_only": "true", "tuning.method": "lora"}, "the text model is saved only after"),
        ({"task.type": "sequence_classification"}, "can only be trained to continue text"),
    ]
    for change, words in rows:
        with subtests.test(str(change)):
            with pytest.raises(ConfigError) as caught:
                trained_run(bases / "gemma3", tmp_path, **change)
            assert words in str(caught.value)


def test_settings_of_towers_are_refused_for_a_model_without_any(tmp_path):
    base = save_tiny_model(tmp_path / "base", "llama")
    for key, value, words, scratch in (
        ("model.towers", "card", 'is "card", but llama has no vision towers', "the model has no vision towers"),
        ("model.text_only", "true", "which reads only text", "model.text_only"),
    ):
        with pytest.raises(ConfigError, match=words):
            trained_run(base, tmp_path, **{key: value})
        with pytest.raises(ConfigError, match=scratch):
            trained_run(Path(), tmp_path, **{key: value, "model.init": "scratch", "model.model_name_or_path": ""})
