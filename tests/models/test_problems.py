"""Problems that prevent a run from starting with a model, one line each, planted in a copy of a good model."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.models.conftest import write_tokenizer
from tui_trainer.models.facts import find_model
from tui_trainer.models.files.soundness import foreign_calls
from tui_trainer.models.problems import length_problems, length_warning, model_problems
from tui_trainer.models.shape import shape_of


@pytest.fixture
def copied(llama_folder, tmp_path) -> Path:
    return Path(shutil.copytree(llama_folder, tmp_path / "copied"))


def problems(folder: Path, init: str = "pretrained", trust_remote_code: bool = False) -> list[str]:
    found = model_problems(find_model(str(folder)), init, trust_remote_code)
    assert all(problem.key == "model.model_name_or_path" for problem in found)
    assert all("\n" not in str(problem) for problem in found)
    return list(map(str, found))


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_tensors(folder: Path, change) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def as_bin(folder: Path) -> Path:
    """Replace the safetensors file by the weights as torch.save writes them."""
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder / "pytorch_model.bin"


def test_a_model_without_weights_can_only_train_from_scratch(llama_folder, copied):
    assert problems(llama_folder) == []
    (copied / "model.safetensors").rename(copied / "weights.safetensors")
    (only,) = problems(copied)
    assert "a config.json but no weights (only weights.safetensors)" in only and 'model.init = "scratch"' in only
    assert problems(copied, "scratch") == []


def test_weights_that_do_not_fit_the_config_are_named(copied, subtests):
    original = (copied / "config.json").read_text()
    for changes, words in (
        ({"hidden_size": 64}, "model.embed_tokens.weight has the shape 96 x 32, but config.json specifies 96 x 64"),
        ({"num_key_value_heads": 4}, "k_proj.weight has the shape 16 x 32, but config.json specifies 32 x 32"),
    ):
        with subtests.test(words):
            (copied / "config.json").write_text(original)
            change_config(copied, **changes)
            found = problems(copied)
            assert any(words in problem for problem in found), found


def test_a_missing_head_is_named_unless_it_is_tied(copied):
    change_tensors(copied, lambda tensors: tensors.pop("lm_head.weight"))
    assert "no head (lm_head.weight)" in problems(copied)[0]
    change_config(copied, tie_word_embeddings=True)
    assert problems(copied) == []


@pytest.mark.full
def test_tensor_names_of_old_files_are_accepted(make_tiny, tmp_path):
    folder = make_tiny("gpt2").save(tmp_path)
    write_tokenizer(folder)

    def shorten(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)

    change_tensors(folder, shorten)
    assert problems(folder) == []


def test_code_of_a_model_needs_permission(copied, subtests):
    for file in ("config.json", "tokenizer_config.json"):
        with subtests.test(file):
            path = copied / file
            original = path.read_text()
            path.write_text(json.dumps(json.loads(original) | {"auto_map": {"AutoModelForCausalLM": "own.Own"}}))
            (only,) = problems(copied)
            assert "needs to run its own Python code" in only and "model.trust_remote_code = true" in only
            assert problems(copied, trust_remote_code=True) == []
            assert len(problems(copied, "scratch")) == 1
            path.write_text(original)


def test_a_tokenizer_larger_than_the_embedding_is_refused(copied):
    write_tokenizer(copied, words=93)
    (only,) = problems(copied)
    assert "the tokenizer has 97 tokens, but the embedding has only 96 rows" in only
    write_tokenizer(copied, words=92)
    assert problems(copied) == []


class _Payload:
    """An object whose pickle runs a command when it is loaded."""

    def __init__(self, canary: str) -> None:
        self.canary = canary

    def __reduce__(self):
        import os

        return os.system, (f"touch {self.canary}",)


def test_a_pickle_that_would_run_code_is_named_and_not_loaded(copied, tmp_path, subtests):
    import torch

    path, canary = as_bin(copied), tmp_path / "canary"
    for protocol in (2, 5):
        with subtests.test(f"protocol {protocol}"):
            torch.save({"w": torch.zeros(2), "x": _Payload(str(canary))}, path, pickle_protocol=protocol)
            (only,) = problems(copied)
            assert "contains objects other than tensors (posix.system)" in only
            assert not canary.exists()


def test_a_pickle_is_foreign_where_torch_refuses_to_load_it(tmp_path):
    import collections

    import torch

    plain = [
        {"a": torch.zeros(2, dtype=torch.bfloat16), "b": torch.ones(1, dtype=torch.int64)},
        collections.OrderedDict(c=torch.nn.Parameter(torch.zeros(3))),
        torch.nn.Linear(2, 3).state_dict(),
    ]
    plain += [{"a": collections.Counter(), "b": torch.device("cpu"), "c": {1, 2}, "d": torch.float8_e4m3fn}]
    foreign = [{"m": torch.nn.Linear(1, 1)}, {"p": Path("x")}, [print], [torch.load]]
    path = tmp_path / "x.bin"
    for content in (*plain, *foreign):
        torch.save(content, path)
        try:
            torch.load(path, weights_only=True)
            loads = True
        except pickle.UnpicklingError:
            loads = False
        assert (foreign_calls(path) == ()) == loads, content


def test_foreign_calls_in_a_pickle_are_named(tmp_path):
    import torch

    path = tmp_path / "x.bin"
    # A set is plain, setattr is not.
    for content in ([setattr], [torch.zeros(1), {1, 2}, setattr]):
        torch.save(content, path)
        assert foreign_calls(path) == ("__builtin__.setattr",)
    with zipfile.ZipFile(path, "w") as archive:  # by the oldest opcode for a call
        archive.writestr("x/data.pkl", b"(S'touch canary'\niposix\nsystem\n.")
    assert foreign_calls(path) == ("posix.system",)


def test_broken_or_missing_bin_files_are_one_sentence(copied):
    path = as_bin(copied)
    facts = find_model(str(copied))
    assert facts.weights == "bin" and facts.weight_files == ("pytorch_model.bin",) and facts.weights_bytes > 80_000
    assert model_problems(facts, "pretrained", False) == []
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/other", b"")
    assert "pytorch_model.bin is damaged: it contains no list of tensors" in problems(copied)[0]
    path.unlink()
    index = {"weight_map": {"w": "pytorch_model-00001-of-00001.bin"}}
    (copied / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert "pytorch_model-00001-of-00001.bin is missing" in problems(copied)[0]


def test_rows_beyond_learnt_positions_are_refused_and_beyond_rotary_ones_cause_a_warning(make_tiny, subtests):
    import torch

    for variant, limit in (("gpt2", 24), ("opt", 24), ("llama", 2048)):
        with subtests.test(variant):
            tiny = make_tiny(variant)
            shape = shape_of(tiny.config)
            assert length_problems(shape, limit) == [] and length_warning(shape, limit) == ""
            if variant == "llama":
                assert length_problems(shape, limit + 1) == []
                assert f"exceeds the {limit} tokens" in length_warning(shape, limit + 1)
                continue
            (only,) = length_problems(shape, limit + 1)
            assert only.key == "data.max_length" and f"set data.max_length = {limit} or less" in str(only)
            assert length_warning(shape, limit + 1) == ""
            tiny.model(torch.ones(1, limit, dtype=torch.long))
            with pytest.raises(IndexError):
                tiny.model(torch.ones(1, limit + 1, dtype=torch.long))
