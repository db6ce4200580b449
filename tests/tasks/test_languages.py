"""Models that translate among languages: inputs are marked with the one, answers with the other, wherever they go."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig
from transformers.models.m2m_100.modeling_m2m_100 import shift_tokens_right

from tests.combinations import first_by_default
from tests.tiny_models import save_tiny_model, save_tiny_translator, tiny_model
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.data.preparing.token_rows import Rows, TokenRow
from tui_trainer.errors import ConfigError
from tui_trainer.exporting.generate import Sampling, Writer
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.launching.start import load_config, open_new
from tui_trainer.lines import plan_lines
from tui_trainer.models.tokenizing.languages import Languages, language_problems, languages_of, set_languages
from tui_trainer.runs.events import DataPrepared, EvalDone, TextSampled
from tui_trainer.runs.journal import read_all
from tui_trainer.tasks import find_task
from tui_trainer.tasks.seq2seq import begin_answers

TASK = find_task("seq2seq")
NUMBERS = (("one", "un"), ("two", "deux"), ("three", "trois"), ("four", "quatre"))
WORDS = [word for pair in NUMBERS for word in pair]
SOURCE, TARGET = "task.source_language", "task.target_language"
# Of each kind: its languages here, how an answer of one word is marked, and the token that generation begins with.
KINDS = {
    "nllb": (("eng_Latn", "fra_Latn"), ["fra_Latn", "▁deux", "</s>"], "fra_Latn"),
    "mbart": (("en_XX", "fr_XX"), ["▁deux", "</s>", "fr_XX"], None),
    "mbart50": (("en_XX", "fr_XX"), ["fr_XX", "▁deux", "</s>"], "fr_XX"),
}


@pytest.fixture(scope="session")
def translator(tmp_path_factory):
    root = tmp_path_factory.mktemp("translators")
    return lambda kind: (
        root / kind if (root / kind).exists() else save_tiny_translator(root / kind, kind, list(dict.fromkeys(WORDS)))
    )


@pytest.fixture
def loaded(tmp_path, translator):
    """`loaded(kind, changes)`: a translation from English to French; a change to None leaves a setting out."""

    def make(kind: str, changes: dict | None = None):
        rows = [{"input": NUMBERS[n % 4][0], "output": NUMBERS[n % 4][1]} for n in range(20)]
        data = tmp_path / "pairs.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        source, target = KINDS[kind][0]
        settings = {
            "task.type": "seq2seq", SOURCE: source, TARGET: target, "task.max_target_length": 8, "data.path": data,
            "data.max_length": 8, "data.eval_fraction": 0.2, "model.model_name_or_path": translator(kind),
            "training.effective_batch_size": 8, "training.max_steps": 2, "evaluation.eval_steps": 0,
            "evaluation.generate_rows": 2, "checkpoint.save_steps": 0, "logging.sample_steps": 2,
            "output.runs_dir": tmp_path / "runs", "output.name": "run", **(changes or {}),
        }  # fmt: skip
        assignments = tuple(f"{key}={value}" for key, value in settings.items() if value is not None)
        return load_config(Request(assignments=assignments))

    return make


def prepared(config, tmp_path):
    return TASK.prepare(config, tmp_path / "cache", lambda *_: None)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_marked_as_the_target_and_inputs_as_the_source(kind, loaded, tmp_path):
    config = loaded(kind).config
    data = prepared(config, tmp_path)
    tokenizer = TASK.load_tokenizer(config, data)
    (source, target), answer, _ = KINDS[kind]
    pairs = [Rows(data.train_path).example(row) for row in range(data.counts.train_rows)]
    spelt = [tuple(map(tokenizer.convert_ids_to_tokens, (row.tokens.tolist(), row.labels.tolist()))) for row in pairs]
    [(tokens, labels), *_] = [pair for pair in spelt if "▁two" in pair[0]]
    assert labels == answer
    assert tokens == [{"▁deux": "▁two", target: source}.get(token, token) for token in answer]
    assert f"texts are marked with their languages, from {source} to {target}" in data.notes


@pytest.mark.parametrize("kind", KINDS)
def test_the_decoder_reads_the_labels_one_place_later_and_writes_in_the_target_language(kind, loaded, tmp_path):
    config = loaded(kind).config
    data = prepared(config, tmp_path)
    tokenizer = TASK.load_tokenizer(config, data)
    model = TASK.build_model(config, data, tokenizer, torch.float32, torch.device("cpu"), print).eval()
    rows = [Rows(data.train_path).example(row) for row in range(3)]
    batch = TASK.collate(model, tokenizer.pad_token_id)(rows)
    labels = torch.from_numpy(batch.labels)
    assert batch.more["decoder_input_ids"].tolist() == model.prepare_decoder_input_ids_from_labels(labels).tolist()
    if first := KINDS[kind][2]:
        wanted = shift_tokens_right(labels, tokenizer.pad_token_id, tokenizer.eos_token_id)  # that of M2M100 and NLLB
        assert batch.more["decoder_input_ids"].tolist() == wanted.tolist()
    written = model.generate(input_ids=torch.from_numpy(batch.input_ids), max_new_tokens=4, do_sample=False)
    target = KINDS[kind][0][1]
    begins = tokenizer.convert_ids_to_tokens(written[0, :2].tolist())
    assert begins[0] == ("</s>" if first else target)
    assert first is None or begins[1] == first


@pytest.mark.parametrize("method", first_by_default(["lora", "full"]))
def test_a_run_its_model_and_the_command_that_tries_it_all_write_in_the_target_language(
    method, loaded, capsys, monkeypatch
):
    opened = open_new(loaded("nllb", {"tuning.method": method}))
    assert carry_out(opened).exit_code == 0
    events = list(read_all(opened.folder.journal))
    assert any("from eng_Latn to fra_Latn" in note for e in events if isinstance(e, DataPrepared) for note in e.notes)
    assert [event for event in events if isinstance(event, EvalDone)][-1].scores
    assert any(isinstance(event, TextSampled) for event in events)
    tokenizer = AutoTokenizer.from_pretrained(opened.folder.model)
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("eng_Latn", "fra_Latn")
    french = tokenizer.convert_tokens_to_ids("fra_Latn")
    assert GenerationConfig.from_pretrained(opened.folder.model).forced_bos_token_id == french
    # An adapter's base model knows of no target.
    writer = Writer(opened.folder)
    generated = []
    generate = writer._model.generate
    monkeypatch.setattr(
        writer._model, "generate", lambda **asked: generated.append((asked, generate(**asked))) or generated[-1][1]
    )
    writer.answer("two", Sampling(max_new_tokens=4, temperature=0, seed=1))
    [(asked, output)] = generated
    assert tokenizer.convert_ids_to_tokens(asked["input_ids"][0].tolist()) == ["eng_Latn", "▁two", "</s>"]
    assert output[0, 1] == french
    capsys.readouterr()
    assert main(["plan", str(opened.folder.config)]) == 0
    assert "texts are marked with their languages: from eng_Latn to fra_Latn" in capsys.readouterr().out


def test_another_language_is_other_data(loaded):
    cut = TASK.cut(loaded("nllb").config)
    assert TASK.cut(loaded("nllb", {TARGET: "deu_Latn"}).config) != cut
    assert TASK.cut(loaded("nllb", {SOURCE: "deu_Latn"}).config).tokenizer != cut.tokenizer


def test_the_plan_names_the_languages(loaded):
    config = loaded("mbart50")
    assert "texts are marked with their languages: from en_XX to fr_XX" in plan_lines(estimated_plan(config))


@pytest.mark.parametrize(
    ("kind", "changes", "told"),
    [
        ("nllb", {SOURCE: None, TARGET: None}, {SOURCE: "is not set", TARGET: "is not set"}),
        ("mbart", {TARGET: None}, {TARGET: "one of ar_AR, cs_CZ, de_DE, ... (25 in all)"}),
        ("mbart50", {SOURCE: "fr"}, {SOURCE: "nearest: fr_XX"}),
        ("nllb", {TARGET: "french"}, {TARGET: "nearest: fra_Latn"}),
        ("nllb", {TARGET: "de"}, {TARGET: "'de', which is none of the 4 languages of the tokenizer; nearest: deu_"}),
    ],
)
def test_languages_that_are_missing_or_unknown_are_refused_before_there_is_a_run(kind, changes, told, loaded):
    config = loaded(kind, changes)
    with pytest.raises(ConfigError) as caught:
        open_new(config)
    found = {problem.key: str(problem) for problem in caught.value.problems}
    assert found.keys() == told.keys()
    assert all(words in found[key] for key, words in told.items()), found
    assert not Path(config.config.output.runs_dir).exists()


def test_a_language_for_a_tokenizer_that_marks_none_is_refused(loaded, tmp_path):
    save_tiny_model(tmp_path / "t5", "t5")
    told = TASK.problems(loaded("nllb", {"model.model_name_or_path": tmp_path / "t5"}).config)
    assert [problem.key for problem in told] == [SOURCE, TARGET]
    assert all("marks no text with its language" in problem.message for problem in told)
    assert all("task.source_prefix" in problem.hint for problem in told)


def test_a_classifier_of_such_a_model_reads_in_one_language_and_writes_in_none(loaded):
    known = Languages("MBartTokenizer", ("en_XX", "fr_XX"))
    [missing] = language_problems(loaded("mbart", {SOURCE: None, TARGET: None}).config, known, has_target=False)
    assert (missing.key, missing.message[:10]) == (SOURCE, "is not set")
    [unread] = language_problems(loaded("mbart").config, known, has_target=False)
    assert unread.key == TARGET and "writes no texts" in unread.message


def test_what_a_task_does_not_read_is_told_to_change_nothing(loaded):
    notes = loaded("nllb", {"task.loss_on": "all", "task.class_weights": "none"}).notes
    assert notes == ("task.loss_on (--set) changes nothing: seq2seq does not read it",)


# M2M100 ---------------------------------------------------------------------------------------------------------------


class Words:
    """What M2M100's tokenizer asks of sentencepiece: each word is a piece."""

    def Load(self, path):  # its name
        return True

    def encode(self, text, out_type):
        return [f"▁{word}" for word in text.split()]

    def decode(self, pieces):
        return " ".join(piece.strip("▁") for piece in pieces)


@pytest.fixture
def sentencepiece(monkeypatch):
    """A stand-in for the package, which need not be installed."""
    module = ModuleType("sentencepiece")
    module.SentencePieceProcessor = Words
    monkeypatch.setitem(sys.modules, "sentencepiece", module)

    def tokenizer_module(name: str):
        full = f"transformers.models.{name}.tokenization_{name}"
        monkeypatch.delitem(sys.modules, full, raising=False)
        return importlib.import_module(full)

    return tokenizer_module


def test_answers_of_m2m100_begin_with_their_language(sentencepiece, loaded, tmp_path):
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    vocabulary = {token: at for at, token in enumerate([*special, *(f"▁{word}" for word in dict.fromkeys(WORDS))])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"")
    kind = sentencepiece("m2m_100").M2M100Tokenizer
    tokenizer = kind(str(tmp_path / "vocab.json"), str(tmp_path / "sentencepiece.bpe.model"))
    config = loaded("nllb").config
    told = config.model_copy(
        update={"task": config.task.model_copy(update={"source_language": "en", "target_language": "fr"})}
    )
    set_languages(told, tokenizer)
    assert tokenizer.convert_ids_to_tokens(tokenizer("two")["input_ids"]) == ["__en__", "▁two", "</s>"]
    labels = tokenizer(text_target="deux")["input_ids"]
    assert tokenizer.convert_ids_to_tokens(labels) == ["__fr__", "▁deux", "</s>"]
    model = tiny_model("mbart")
    model.config.model_type = "m2m_100"
    begin_answers(model, tokenizer)
    settings = model.generation_config
    assert tokenizer.convert_ids_to_tokens([settings.forced_bos_token_id]) == ["__fr__"]
    batch = TASK.collate(model, 1)([TokenRow(np.array([1]), np.array(labels))])
    assert batch.more["decoder_input_ids"].tolist() == [[2, *labels[:-1]]]
    with pytest.raises(ConfigError, match=r"task\.target_language: is 'xx', for which the tokenizer has no token"):
        set_languages(
            told.model_copy(update={"task": told.task.model_copy(update={"target_language": "xx"})}), tokenizer
        )


@pytest.mark.parametrize(
    ("config", "settings", "special", "wanted"),
    [
        (
            {"model_type": "m2m_100"},
            {"src_lang": None, "tokenizer_class": "M2M100Tokenizer"},
            {"additional_special_tokens": ["__en__", "__zu__"], "eos_token": "</s>"},
            Languages("M2M100Tokenizer", ("en", "zu")),
        ),
        (
            {"model_type": "m2m_100"},
            {
                "tokenizer_class": "NllbTokenizerFast",
                "additional_special_tokens": ["eng_Latn", {"content": "fon_Latn"}],
            },
            {},
            Languages("NllbTokenizer", ("eng_Latn", "fon_Latn")),
        ),
        ({"model_type": "mbart"}, {"model_max_length": 1024}, {}, Languages("MBartTokenizer", ())),
        ({"model_type": "mbart"}, {"tokenizer_class": "PreTrainedTokenizerFast"}, {}, None),
        ({"model_type": "t5"}, {}, {"additional_special_tokens": ["<extra_id_0>"]}, None),
    ],
)
def test_the_languages_of_a_tokenizer_are_read_from_its_files(config, settings, special, wanted, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    assert languages_of(tmp_path, config) == wanted
    assert languages_of(None, {"model_type": "mbart"}) == Languages("MBartTokenizer", ())


def test_every_language_of_transformers_is_told_from_other_special_tokens(sentencepiece, tmp_path):
    counts = {}
    for module, kind in (
        ("nllb", "NllbTokenizer"), ("mbart", "MBartTokenizer"), ("mbart50", "MBart50Tokenizer"),
        ("m2m_100", "M2M100Tokenizer"), ("plbart", "PLBartTokenizer"),
    ):  # fmt: skip
        codes = sentencepiece(module).FAIRSEQ_LANGUAGE_CODES
        tokens = [code for part in codes.values() for code in part] if isinstance(codes, dict) else codes
        if kind == "M2M100Tokenizer":
            tokens = [f"__{code}__" for code in tokens]
        settings = {"tokenizer_class": kind, "extra_special_tokens": [*tokens, "<s>", "<mask>", "</s>"]}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        counts[kind] = len(languages_of(tmp_path, {}).names)
        assert counts[kind] == len(set(tokens))
    assert counts["NllbTokenizer"] > 200
