"""Tags of words: tokens, labels, loss, baselines, runs and refusals."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForTokenClassification, AutoTokenizer, BertConfig, BertForTokenClassification

from tests.tasks.tiny_tasks import TINY, examples, finish, load, of_kind, set_options, write_rows
from tests.tiny_models import save_tiny_model, tiny_tokenizer
from tui_trainer.cli import main
from tui_trainer.config.paths import data_of
from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.data.columns.tagged_rows import entities
from tui_trainer.data.preparing.token_rows import Rows, TokenRow
from tui_trainer.data.samples import find_sample
from tui_trainer.errors import ConfigError, DataError
from tui_trainer.losses.classification import TokenLabelLoss
from tui_trainer.models.writing import Sampling
from tui_trainer.runs.events import BaselinesMeasured, EvalDone, TextSampled
from tui_trainer.tasks.token_classification import (
    TASK,
    enable_prefix_space,
    labelled_words,
    mark_tags,
    most_frequent_tags,
    refuse_slow,
    word_tokens,
    word_windows,
)
from tui_trainer.training.batches import Layout

NAMES = ("Paris", "Jordan", "Sofia", "Austin", "Florence", "Sydney")
SETTINGS = {
    **TINY, "task.type": "token_classification", "data.max_length": 32, "model.init": "scratch",
    "training.effective_batch_size": 16, "training.max_steps": 40,
}  # fmt: skip


def sentences(count: int, seed: int = 1) -> list[dict[str, list[str]]]:
    """Return sentences in which only the words around a name show whether it is a person or a place."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        words, tags = [], []
        for part in draw.choice(("P met P in L", "in L P saw P", "P left L", "P and P came from L")).split():
            name = draw.sample(NAMES, draw.randint(1, 2))
            kind = {"P": "PER", "L": "LOC"}.get(part)
            words += name if kind else [part]
            tags += [f"B-{kind}", *[f"I-{kind}"] * (len(name) - 1)] if kind else ["O"]
        rows.append({"tokens": words, "ner_tags": tags})
    return rows


def config_of(data, changes=None):
    return load(SETTINGS, {"data.path": data}, changes or {}).config


def prepared(tmp_path, rows, changes=None):
    config = config_of(write_rows(tmp_path / "rows.jsonl", rows), changes)
    return config, TASK.prepare(config, data_of(config), tmp_path / "cache", lambda *_: None)


# Words and their tokens.


def test_the_label_is_on_the_first_token_of_each_word():
    tokenizer = tiny_tokenizer("bert")
    row = word_tokens(tokenizer, [["plus", "horseplus", "is", "1234"]], 64)[0]
    tokens = tokenizer.convert_ids_to_tokens(row.ids)
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]" and not row.truncated
    assert [word for _, word in row.firsts] == [0, 1, 2, 3]
    firsts = [place for place, _ in row.firsts]
    assert all(not tokens[place].startswith("##") for place in firsts)
    assert all(tokens[place].startswith("##") for place in range(1, len(tokens) - 1) if place not in firsts)
    assert len(tokens) - 2 > len(firsts), "some word has several tokens"


def test_windows_of_a_long_row_have_each_word_once_with_words_around_it(subtests):
    words = ["plus", "horse", "agreed", "agreedhorse", "is"] * 6
    for family in ("bert", "roberta", "llama", "t5"):
        tokenizer = enable_prefix_space(tiny_tokenizer(family))
        whole = word_tokens(tokenizer, [words], 999)[0]
        assert [one.ids for one in word_windows(tokenizer, [words], 999)[0]] == [whole.ids]
        for width in (24, 40, len(whole.ids) - 1):
            with subtests.test(family, width=width):
                [windows] = word_windows(tokenizer, [words], width)
                assert len(windows) > 1 and all(len(one.ids) <= width and not one.truncated for one in windows)
                assert [word for one in windows for _, word in one.firsts] == list(range(len(words)))
                firsts = [one.ids[place] for one in windows for place, _ in one.firsts]
                assert firsts == [whole.ids[place] for place, _ in whole.firsts]
                assert windows[0].ids == word_tokens(tokenizer, [words], width)[0].ids
    [[too_long]] = word_windows(tiny_tokenizer("roberta"), [["%" * 60]], 12)
    assert too_long.truncated and len(too_long.ids) == 12 and too_long.firsts == [(1, 0)]


def test_a_long_row_is_cut_between_words(subtests):
    for family in ("bert", "roberta", "llama", "t5"):
        tokenizer = enable_prefix_space(tiny_tokenizer(family))
        words = ["plus", "horse", "agreed", "agreedhorse", "is"] * 3
        whole = word_tokens(tokenizer, [words], 999)[0]
        with subtests.test(family):
            assert not whole.truncated and [word for _, word in whole.firsts] == list(range(15))
            for width in range(4, len(whole.ids)):
                row = word_tokens(tokenizer, [words], width)[0]
                assert row.truncated and len(row.ids) <= width
                kept = len(row.firsts)
                assert row.firsts == whole.firsts[:kept]
                if kept:
                    assert row.ids == word_tokens(tokenizer, [words[:kept]], 999)[0].ids
                longer = word_tokens(tokenizer, [words[: kept + 1]], 999)[0]
                assert len(longer.ids) > width, "no more words would have fitted"


def test_a_saved_byte_level_tokenizer_keeps_the_space_before_words(tmp_path):
    save_tiny_model(tmp_path / "a", "roberta")
    # The class that real RoBERTa names makes its own pre-tokenizer from a setting.
    for number, kind in enumerate(("PreTrainedTokenizerFast", "RobertaTokenizer")):
        path = tmp_path / "a" / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": kind}))
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
        words = ["plus", "horse", "is"]
        bare = tokenizer(words, is_split_into_words=True)["input_ids"]
        spaced = enable_prefix_space(tokenizer)(words, is_split_into_words=True)["input_ids"]
        in_a_text = tokenizer("plus horse is")["input_ids"]
        assert spaced == in_a_text != bare
        tokenizer.save_pretrained(tmp_path / str(number))
        again = AutoTokenizer.from_pretrained(tmp_path / str(number))
        assert again(words, is_split_into_words=True)["input_ids"] == spaced


def test_a_slow_tokenizer_is_refused():
    class CanineTokenizer:
        is_fast = False

    with pytest.raises(ConfigError, match=r"\(CanineTokenizer\) is not a fast tokenizer.*choose a model with"):
        refuse_slow(CanineTokenizer())


def test_prepared_rows_have_the_tags_of_their_words(tmp_path):
    rows = sentences(40)
    config, data = prepared(tmp_path, rows, {"data.eval_fraction": 0})
    names, closing = data.details["names"], data.details["closing_tokens"]
    assert names == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"] and closing == 1
    tokenizer = TASK.load_tokenizer(config, data)
    read = Rows(data.train_path)
    assert len(read) == 40
    for index, row in enumerate(rows):
        found = list(labelled_words(read.example(index), closing))
        assert [names[number] for _, number in found] == row["ner_tags"]
        assert [tokenizer.decode(list(tokens)).strip() for tokens, _ in found] == row["tokens"]
        assert tokenizer(row["tokens"], is_split_into_words=True)["input_ids"] == read.row(index).tolist()
    assert data.counts.train_labels == sum(len(row["tokens"]) for row in rows)
    assert "the tags mark entities, in IOB2: LOC, PER" in " ".join(data.notes)


def test_rows_of_all_forms_give_the_same_tokens(tmp_path):
    rows = sentences(30)
    conll = "\n\n".join("\n".join(map(" ".join, zip(row["tokens"], row["ner_tags"], strict=True))) for row in rows)
    (tmp_path / "rows.conll").write_text(conll)
    spans = []
    for row in rows:
        starts = np.cumsum([0, *(len(word) + 1 for word in row["tokens"])]).tolist()
        found = [[starts[start], starts[end] - 1, kind] for start, end, kind in entities(row["ner_tags"])]
        spans.append({"text": " ".join(row["tokens"]), "entities": found})
    write_rows(tmp_path / "spans.jsonl", spans)
    write_rows(tmp_path / "words.jsonl", rows)
    contents = []
    for name in ("words.jsonl", "rows.conll", "spans.jsonl"):
        config = config_of(tmp_path / name)
        data = TASK.prepare(config, data_of(config), tmp_path / "cache", lambda *_: None)
        contents.append([(row.tokens.tolist(), row.labels.tolist()) for row in examples(data.train_path)])
    assert contents[0] == contents[1] == contents[2]


def test_a_tag_only_of_the_evaluation_data_is_refused_or_skipped(tmp_path):
    other = sentences(5, seed=2)
    other[3]["ner_tags"][0] = "B-PERS"
    write_rows(tmp_path / "eval.jsonl", other)
    changes = {"data.eval_path": tmp_path / "eval.jsonl"}
    expected = r"eval.jsonl, line 4: no training row has the tag 'B-PERS'; did you mean 'B-PER'"
    with pytest.raises(DataError, match=expected):
        prepared(tmp_path, sentences(30), changes)
    _, data = prepared(tmp_path, sentences(30), {**changes, "data.on_bad_rows": "skip"})
    assert data.counts.eval_rows == 4 and "B-PERS" in " ".join(data.notes)


def test_notes_describe_the_tags_of_the_data(tmp_path):
    loose = [{"text": "Paris saw footballs", "entities": [[0, 5, "X"], [10, 14, "Y"]]}] * 3
    _, data = prepared(tmp_path, loose, {"data.eval_fraction": 0})
    assert "3 spans start or end inside a word; the whole word gets the tag" in data.notes
    _, data = prepared(tmp_path, [{"tokens": ["a", "b", "c"], "tags": ["B-X", "O", "I-X"]}], {"data.eval_fraction": 0})
    assert "1 entity starts with I- instead of B-; this is accepted, as in conlleval" in data.notes
    _, data = prepared(tmp_path, [{"tokens": ["a", "b"], "pos": ["N", "V"]}], {"data.eval_fraction": 0})
    assert "2 tags, with the number of words: N 1, V 1" in data.notes and data.details["scheme"] == "plain"


def test_rows_that_are_cut_and_held_out_words_beyond_the_limit_are_counted(tmp_path):
    rows = [*sentences(20), {"tokens": ["Paris"] * 60, "ner_tags": ["B-LOC"] * 60}]
    held_out = write_rows(tmp_path / "held_out.jsonl", rows)
    _, data = prepared(tmp_path, rows, {"data.eval_path": held_out})
    counts = data.counts
    assert counts.truncated_rows == 2 and counts.longest_row <= 32
    assert counts.eval_labels + counts.eval_labels_beyond == sum(len(one["tokens"]) for one in rows)
    assert 30 <= counts.eval_labels_beyond < 60


def test_labels_of_the_model_keep_their_numbers(tmp_path):
    save_tiny_model(tmp_path / "model", "bert")
    own = ["I-PER", "O", "B-MISC", "B-PER", "B-LOC", "I-LOC"]
    path = tmp_path / "model" / "config.json"
    content = json.loads(path.read_text()) | {"id2label": {str(n): name for n, name in enumerate(own)}}
    path.write_text(json.dumps(content | {"label2id": {name: n for n, name in enumerate(own)}}))
    changes = {"model.init": "pretrained", "model.model_name_or_path": tmp_path / "model"}
    config, data = prepared(tmp_path, sentences(20), changes)
    assert data.details["names"] == own and TASK.facts(config, data).class_count == 6
    rows = [{"tokens": ["a", "b"], "ner_tags": ["O", "B-OTHER"]}, *sentences(5)]
    _, data = prepared(tmp_path, rows, changes)
    assert data.details["names"][0] == "O" and "B-MISC" not in data.details["names"]


# The loss and its gradient.


def tagged_rows(lengths=(9, 4, 6, 3), classes=5) -> list[TokenRow]:
    draw = np.random.default_rng(3)
    rows = []
    for length in lengths:
        labels = draw.integers(0, classes, size=length, dtype=np.int32)
        labels[draw.random(length) < 0.3] = IGNORE
        labels[0], labels[1] = IGNORE, 1
        rows.append(TokenRow(draw.integers(5, 60, size=length, dtype=np.int32), labels))
    return rows


def small_bert():
    torch.manual_seed(1)
    shape = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=16, num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForTokenClassification(shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5.0) if parameter.ndim >= 2 else None
    return model


def gradient(model) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def test_loss_and_gradients_are_those_of_transformers(subtests):
    rows, theirs = tagged_rows(), small_bert()
    direct = torch.zeros(())
    for row in rows:
        logits = theirs(input_ids=torch.tensor(row.tokens.astype(np.int64))[None]).logits[0]
        labels = torch.tensor(row.labels.astype(np.int64))
        direct = direct + F.cross_entropy(logits, labels, ignore_index=IGNORE, reduction="sum")
    direct.backward()
    assert gradient(theirs).abs().max() > 0.1
    for batch_rows in (1, 2, 3, 4):
        with subtests.test(f"{batch_rows} rows in a batch"):
            mine = small_bert()
            loss, total, label_count = TokenLabelLoss(mine), 0.0, 0
            for batch in Layout(collate=TASK.collate(mine, 0), rows_per_pass=batch_rows).micro_batches(rows):
                part = loss(batch)
                part.backward()
                total, label_count = total + part.item(), label_count + batch.label_count
            assert label_count == sum(int((row.labels != IGNORE).sum()) for row in rows)
            assert total == pytest.approx(direct.item(), rel=1e-6)
            torch.testing.assert_close(gradient(mine), gradient(theirs), atol=2e-5, rtol=1e-5)


def test_balanced_weights_count_the_words_of_the_training_data(tmp_path):
    """Tokens without a tag, such as special ones and the later ones of a word, are not counted."""
    draw = random.Random(3)
    rows = [{"tokens": ["Parisian", str(n), "eats"], "ner_tags": [draw.choice("AB"), "O", "O"]} for n in range(40)]
    config, data = prepared(tmp_path, rows, {"task.class_weights": "balanced"})
    model = small_bert().eval()
    train = examples(data.train_path)
    labels = np.concatenate([row.labels for row in train])
    labels = torch.from_numpy(labels[labels != IGNORE].astype(np.int64))
    counts = labels.bincount()
    assert len(labels) == 3 * len(train) and data.eval_path is not None
    logits_NC = torch.randn(len(labels), 3, generator=torch.Generator().manual_seed(1))
    wanted = F.cross_entropy(logits_NC, labels, weight=len(labels) / (3 * counts), reduction="sum")
    loss = TASK.objective(config, data, model, chunk_tokens=0)
    assert loss.of_logits(logits_NC, labels).item() == pytest.approx(wanted.item())
    plain = TASK.objective(config_of(tmp_path / "rows.jsonl"), data, model, chunk_tokens=0)
    unweighted = F.cross_entropy(logits_NC, labels, reduction="sum").item()
    assert plain.of_logits(logits_NC, labels).item() == pytest.approx(unweighted) != pytest.approx(wanted.item())


# Scores.


def test_the_scorer_keeps_sentences_apart(subtests):
    rows = [
        TokenRow(np.array([5, 6, 7], np.int32), np.array([IGNORE, 0, 1], np.int32)),
        TokenRow(np.array([5, 6, 7], np.int32), np.array([IGNORE, 2, IGNORE], np.int32)),
    ]

    class PerfectLoss:
        """Predicts the true tags."""

        def logits(self, batch):
            return 9.0 * F.one_hot(torch.as_tensor(batch.labels).long(), 3)

        def of_logits(self, logits, labels):
            return F.cross_entropy(logits, labels, reduction="sum")

    counts = SimpleNamespace(eval_labels=3, eval_labels_beyond=1)
    data = SimpleNamespace(details={"names": ["O", "B-X", "I-X"], "scheme": "IOB2"}, counts=counts)
    for batch_rows in (1, 2):
        with subtests.test(f"{batch_rows} rows in a batch"):
            scorer = TASK.scorer(None, data, PerfectLoss())
            for batch in Layout(collate=TASK.collate(small_bert(), 0), rows_per_pass=batch_rows).micro_batches(rows):
                assert float(scorer.observe(batch)) == pytest.approx(0.0, abs=1e-3)
            # In one sentence the I- of the second row would continue the entity of the first.
            assert scorer.scores().table_rows["X"] == (1.0, 1.0, 1.0, 2)
            assert scorer.scores().values["words_left_out"] == 0.25


def test_baselines_are_the_most_frequent_tag_of_each_word_and_overall(tmp_path):
    train = [{"tokens": ["Ada", "saw", "Bo", "Bo"], "ner_tags": ["B-P", "O", "B-P", "O"]}] * 2
    train.append({"tokens": ["Bo", "is"], "ner_tags": ["O", "O"]})
    write_rows(tmp_path / "eval.jsonl", [{"tokens": ["Ada", "Bo", "Cy"], "ner_tags": ["B-P", "B-P", "B-P"]}] * 2)
    config, data = prepared(tmp_path, train, {"data.eval_path": tmp_path / "eval.jsonl"})
    usual, most = most_frequent_tags(Rows(data.train_path), data.details["closing_tokens"])
    assert len(usual) == 4 and data.details["names"][most] == "O"
    # Ada is found, Bo is mostly O, Cy is not known: 1 right of 1 told and 3 true.
    baselines = TASK.baselines(config, data, [0])
    assert baselines.eval_tokens == 3
    assert baselines.scores == pytest.approx(
        {"f1 of the most frequent tag of each word": 2 / 4, "f1 of O for every word": 0.0}
    )
    plain = [{"tokens": ["a", "b"], "pos": ["N", "V"]}, {"tokens": ["a", "c"], "pos": ["N", "N"]}]
    write_rows(tmp_path / "eval.jsonl", plain)
    config, data = prepared(tmp_path, plain, {"data.eval_path": tmp_path / "eval.jsonl"})
    assert TASK.baselines(config, data, [0, 1]).scores == pytest.approx(
        {"accuracy of the most frequent tag of each word": 1.0, "accuracy of N for every word": 3 / 4}
    )


def test_entities_are_shown_in_brackets():
    assert (
        mark_tags("Ada Lovelace saw Paris .".split(), "B-P I-P O B-L O".split(), "IOB2")
        == "[Ada Lovelace P] saw [Paris L] ."
    )
    assert mark_tags(["a", "b"], ["N", "V"], "plain") == "a/N b/V"


# The sample.


def test_the_shipped_sample_has_names_with_several_tags():
    rows = [row for _, row in find_sample("python-tokens").content()]
    assert 2500 < len(rows) < 6000
    assert len({" ".join(row["tokens"]) for row in rows}) == len(rows)
    kinds: dict[str, set[str]] = {}
    for row in rows:
        assert len(row["tokens"]) == len(row["ner_tags"]) and entities(row["ner_tags"])
        for word, tag in zip(row["tokens"], row["ner_tags"], strict=True):
            kinds.setdefault(word, set()).add(tag)
    assert len(kinds["name"]) >= 4 and len(kinds["self"]) >= 3
    assert len({tag for tags in kinds.values() for tag in tags}) >= 10


# Whole runs.


@pytest.mark.full
def test_a_run_learns_from_context_and_its_model_tags_with_plain_transformers(tmp_path):
    data = write_rows(tmp_path / "rows.jsonl", sentences(250))
    changes = {"data.path": data, "logging.sample_steps": 40, "evaluation.metric_for_best_model": "f1"}
    folder = finish(load(SETTINGS, changes))
    evaluation, baselines = of_kind(folder, EvalDone)[-1], of_kind(folder, BaselinesMeasured)[0]
    beaten = baselines.scores["f1 of the most frequent tag of each word"]
    assert evaluation.scores["f1"] > beaten + 0.2
    assert set(evaluation.table_rows) == {"LOC", "PER"}
    model = AutoModelForTokenClassification.from_pretrained(folder.model)
    tokenizer = AutoTokenizer.from_pretrained(folder.model)
    words = "Paris and Sofia came from Austin".split()
    encoded = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    told = [model.config.id2label[number] for number in model(**encoded).logits[0].argmax(-1).tolist()]
    firsts = [encoded.word_ids().index(number) for number in range(len(words))]
    assert [told[place] for place in firsts] == ["B-PER", "O", "B-PER", "O", "O", "B-LOC"]
    shown = of_kind(folder, TextSampled)[-1]
    assert " PER]" in shown.text and "(expected: " in shown.text
    sampling = Sampling(max_new_tokens=1, temperature=0, seed=1)
    answer = TASK.answer(config_of(data), model, tokenizer, " ".join(words), sampling)
    assert answer == "[Paris PER] and [Sofia PER] came from [Austin LOC]"


# What is refused.

GOOD_ROW = {"tokens": ["a", "b"], "ner_tags": ["O", "B-X"]}
OVERLAP = {"text": "a b", "entities": [[0, 3, "X"], [2, 3, "Y"]]}


def row(tokens, tags):
    return {"tokens": tokens, "ner_tags": tags}


BAD = {
    "tags and tokens of different length": ([row(["a"], [])], (), "line 2: the row has 1 word but 0 tags"),
    "no words": ([row([], [])], (), "line 2: the row has no words"),
    "empty word": ([row([""], ["O"])], (), "line 2: word 1 is empty"),
    "null word": ([row([None], ["O"])], (), "line 2: word 1 is null"),
    "number for a word": ([row([1], ["O"])], (), "line 2: word 1 is a number, not a string"),
    "number without a name": ([row(["a"], [4])], (), "line 2: tag 1 is the number 4, which has no name"),
    "null tags": ([row(["a"], None)], (), "line 2: the column 'ner_tags' is null, not a list of tags"),
    "wrong column": ([], ("data.label_column=ner_tag",), "did you mean 'ner_tags'?"),
    "metric of another task": ([], ("evaluation.metric_for_best_model=rouge1",), "available: loss, f1"),
    "metric of other tags": ([], ("evaluation.metric_for_best_model=macro_f1",), "not measured if the tags mark"),
    "no room for a word": ([], ("data.max_length=2",), "2 special tokens must fit around the words"),
}
BAD = {name: ([GOOD_ROW, *rows], changes, words) for name, (rows, changes, words) in BAD.items()} | {
    "numbers without names": ([row(["a"], [4])], (), "'ner_tags' are numbers, which have no names"),
    "one tag": ([row(["a"], ["O"])], (), "all words have the tag 'O'"),
    "overlapping spans": ([OVERLAP], (), "line 1: the spans 0-3 (X) and 2-3 (Y) overlap"),
}


def test_bad_input_is_refused_in_one_sentence_before_there_is_a_run(tmp_path, capsys, subtests):
    options = set_options(SETTINGS, {"output.runs_dir": tmp_path / "runs"})
    for name, (rows, changes, words) in BAD.items():
        with subtests.test(name):
            data = write_rows(tmp_path / "rows.jsonl", rows)
            sets = [part for setting in changes for part in ("--set", setting)]
            assert main(["train", "--no-ui", "--data", str(data), *options, *sets]) == 2
            messages = [line for line in capsys.readouterr().err.splitlines() if words in line]
            assert len(messages) == 1 and not list(tmp_path.glob("runs/*"))


def test_an_unknown_tag_of_the_evaluation_data_is_refused_before_there_is_a_run(tmp_path, capsys):
    write_rows(tmp_path / "rows.jsonl", [GOOD_ROW])
    write_rows(tmp_path / "eval.jsonl", [{"tokens": ["a"], "ner_tags": ["B-Y"]}])
    sets = set_options(SETTINGS, {"output.runs_dir": tmp_path / "runs", "data.eval_path": tmp_path / "eval.jsonl"})
    assert main(["train", "--no-ui", "--data", str(tmp_path / "rows.jsonl"), *sets]) == 2
    assert "eval.jsonl, line 1: no training row has the tag 'B-Y'" in capsys.readouterr().err
    assert not list((tmp_path / "runs").glob("*"))
