"""Models that translate: inputs and answers are marked with the languages of the model's tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig, GenerationMixin
from transformers.models.m2m_100.modeling_m2m_100 import shift_tokens_right

from tests.tiny_models import save_tiny_translator
from tui_trainer.config.load import Request
from tui_trainer.config.paths import data_of
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.errors import ConfigError
from tui_trainer.exporting.generate import Writer
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.models.writing import Sampling
from tui_trainer.tasks import find_task

TASK = find_task("seq2seq")
NUMBERS = (("one", "un"), ("two", "deux"), ("three", "trois"), ("four", "quatre"))
WORDS = list(dict.fromkeys(word for pair in NUMBERS for word in pair))
# For each kind: its languages, the tokens of an answer of one word, and the first generated token.
KINDS = {
    "nllb": (("eng_Latn", "fra_Latn"), ["fra_Latn", "▁deux", "</s>"], "fra_Latn"),
    "mbart": (("en_XX", "fr_XX"), ["▁deux", "</s>", "fr_XX"], None),
    "mbart50": (("en_XX", "fr_XX"), ["fr_XX", "▁deux", "</s>"], "fr_XX"),
}


def save_translator(folder: Path, kind: str) -> Path:
    source, target = KINDS[kind][0]
    return save_tiny_translator(folder, kind, WORDS, src_lang=source, tgt_lang=target)


def loaded(folder: Path, **changes):
    """Return the config of a translation from English to French."""
    data = Path("pairs.jsonl")
    rows = [{"input": NUMBERS[n % 4][0], "output": NUMBERS[n % 4][1]} for n in range(20)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "task.type": "seq2seq", "task.max_target_length": 8, "data.path": data, "data.max_length": 8,
        "data.eval_fraction": 0.2, "model.model_name_or_path": folder, "training.effective_batch_size": 8,
        "training.max_steps": 2, "evaluation.eval_steps": 0, "evaluation.generate_rows": 2, "checkpoint.save_steps": 0,
        "output.name": "run", **{key.replace("__", "."): value for key, value in changes.items()},
    }  # fmt: skip
    return load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items())))


@pytest.mark.parametrize(
    "kind", ["mbart50", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("nllb", "mbart"))]
)
def test_texts_and_generated_answers_are_marked_with_their_languages(kind, tmp_path):
    (source, target), answer, first = KINDS[kind]
    config = loaded(save_translator(tmp_path / kind, kind)).config
    data = TASK.prepare(config, data_of(config), tmp_path / "cache", lambda *_: None)
    tokenizer = TASK.load_tokenizer(config, data)
    rows = [Rows(data.train_path).example(row) for row in range(data.counts.train_rows)]
    spelt = [tuple(map(tokenizer.convert_ids_to_tokens, (row.tokens.tolist(), row.labels.tolist()))) for row in rows]
    [(tokens, labels), *_] = [pair for pair in spelt if "▁two" in pair[0]]
    assert labels == answer
    assert tokens == [{"▁deux": "▁two", target: source}.get(token, token) for token in answer]
    assert f"texts are marked with their language: {source} to {target}" in data.notes

    model = TASK.build_model(config, data, tokenizer, torch.float32, torch.device("cpu"), print).eval()
    batch = TASK.collate(model, tokenizer.pad_token_id)(rows[:3])
    marked = torch.from_numpy(batch.labels)
    assert (
        batch.model_arguments["decoder_input_ids"].tolist()
        == model.prepare_decoder_input_ids_from_labels(marked).tolist()
    )
    if first:
        wanted = shift_tokens_right(marked, tokenizer.pad_token_id, tokenizer.eos_token_id)  # that of M2M100 and NLLB
        assert batch.model_arguments["decoder_input_ids"].tolist() == wanted.tolist()
    written = model.generate(input_ids=torch.from_numpy(batch.input_ids), max_new_tokens=4, do_sample=False)
    begins = tokenizer.convert_ids_to_tokens(written[0, :2].tolist())
    assert begins[0] == ("</s>" if first else target)
    assert first is None or begins[1] == first


@pytest.mark.full
def test_a_trained_adapter_generates_in_the_target_language(tmp_path):
    opened = open_new(loaded(save_translator(tmp_path / "nllb", "nllb"), tuning__method="lora"))
    assert execute_run(opened).exit_code == 0
    tokenizer = AutoTokenizer.from_pretrained(opened.folder.model)
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("eng_Latn", "fra_Latn")
    french = tokenizer.convert_tokens_to_ids("fra_Latn")
    assert GenerationConfig.from_pretrained(opened.folder.model).forced_bos_token_id == french
    generated = []
    with pytest.MonkeyPatch.context() as patch:
        generate = GenerationMixin.generate
        patch.setattr(
            GenerationMixin,
            "generate",
            lambda model, **asked: generated.append((asked, generate(model, **asked))) or generated[-1][1],
        )
        # The config of the adapter's base model names no target language.
        Writer(opened.folder).answer("two", Sampling(max_new_tokens=4, temperature=0, seed=1))
    [(asked, output), *_] = generated
    assert tokenizer.convert_ids_to_tokens(asked["input_ids"][0].tolist()) == ["eng_Latn", "▁two", "</s>"]
    assert output[0, 1] == french


def without(folder: Path, *names: str) -> Path:
    """Remove entries from tokenizer_config.json and return the folder."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key not in names}))
    return folder


@pytest.mark.full
def test_a_tokenizer_without_languages_is_refused_before_there_is_a_run(tmp_path, subtests):
    for kind, removed, missing in (
        ("nllb", ["src_lang", "tgt_lang"], "src_lang and tgt_lang"),
        ("mbart", ["src_lang", "tgt_lang", "tokenizer_class"], "src_lang and tgt_lang"),
        ("mbart50", ["tgt_lang"], "tgt_lang"),
    ):
        with subtests.test(kind):
            config = loaded(without(save_translator(tmp_path / kind, kind), *removed))
            with pytest.raises(ConfigError) as caught:
                open_new(config)
            [problem] = caught.value.problems
            assert problem.key == "model.model_name_or_path"
            assert f"tokenizer_config.json does not set {missing}" in problem.message
            assert '"src_lang": "eng_Latn"' in problem.hint
            assert not Path(config.config.output.runs_dir, "run").exists()


@pytest.mark.full
def test_a_classifier_needs_only_the_source_language(tmp_path):
    classifier = find_task("sequence_classification")
    for gone, problems in (("src_lang", 1), ("tgt_lang", 0)):
        folder = without(save_translator(tmp_path / gone, "mbart"), gone)
        found = [p for p in classifier.model_problems(loaded(folder).config) if "language" in p.message]
        assert len(found) == problems


@pytest.mark.full
def test_a_language_without_a_token_is_refused(tmp_path):
    folder = save_tiny_translator(tmp_path / "nllb", "nllb", WORDS, src_lang="eng_Latn", tgt_lang="french")
    asked = loaded(folder)
    with pytest.raises(ConfigError, match="has no token for the src_lang or tgt_lang"):
        TASK.prepare(asked.config, asked.data, tmp_path / "cache", lambda *_: None)
