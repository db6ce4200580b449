"""Text classification: labels, weights, baselines, runs and refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.tasks.tiny_tasks import TINY, finish, load, of_kind, set_options, write_rows
from tests.tiny_models import save_tiny_model, texts
from tui_trainer.cli import main
from tui_trainer.config.paths import data_of
from tui_trainer.data.preparing.token_rows import LABELS, Rows
from tui_trainer.errors import ConfigError, DataError
from tui_trainer.hardware.storage import prepared_data_folder
from tui_trainer.runs.events import BaselinesMeasured, EvalDone
from tui_trainer.tasks.sequence_classification import TASK, class_weights

ANIMALS = ("sheep", "goat", "cow", "horse", "hen")
SETTINGS = {
    **TINY, "task.type": "sequence_classification", "model.init": "scratch", "tuning.method": "full",
    "data.max_length": 32, "model.scratch.hidden_size": 16, "model.scratch.num_hidden_layers": 1,
    "model.scratch.num_attention_heads": 2, "training.max_steps": 4,
}  # fmt: skip


def labelled(count=60):
    """Return texts that name an animal, labelled with it."""
    found = [next(place for place, animal in enumerate(ANIMALS) if f"the {animal}." in text) for text in texts(count)]
    return [
        {"text": text, "label": ANIMALS[at], "number": at * 1.5} for text, at in zip(texts(count), found, strict=True)
    ]


def loaded(path, **changes):
    return load(SETTINGS, {"data.path": path}, {key.replace("__", "."): value for key, value in changes.items()})


def prepared(path, **changes):
    config = loaded(path, **changes).config
    return config, TASK.prepare(config, data_of(config), prepared_data_folder(), lambda *_: None)


@pytest.fixture
def classify(tmp_path):
    """`classify(rows, **settings)`: the folder of a finished run."""

    def make(rows, **changes):
        return finish(loaded(write_rows(tmp_path / "rows.jsonl", rows), output__runs_dir=tmp_path / "runs", **changes))

    return make


# Reading


def test_class_names_are_found_and_noted(tmp_path):
    rows = labelled(40)
    _, data = prepared(write_rows(tmp_path / "rows.jsonl", rows))
    names = data.details["names"]
    assert names == sorted({row["label"] for row in rows}) and data.details["classes"] == len(names)
    labels = np.concatenate([Rows(path).values(LABELS) for path in (data.train_path, data.eval_path)])
    assert np.bincount(labels).tolist() == [sum(row["label"] == name for row in rows) for name in names]
    found = "the labels are in the column 'label': single label classification, inferred from the first rows"
    assert found in data.notes
    assert any(note.startswith(f"{len(names)} classes: ") for note in data.notes)


def test_each_class_gives_the_same_share_to_the_evaluation(tmp_path):
    rows = [{"text": f"text {n}", "label": "rare" if n % 10 == 0 else "usual"} for n in range(100)]
    _, data = prepared(write_rows(tmp_path / "rows.jsonl", rows))
    assert np.bincount(Rows(data.eval_path).values(LABELS)).tolist() == [2, 18]


def test_several_labels_and_numbers_are_stored_unchanged(tmp_path):
    several = [{"text": f"text {n}", "tags": ["a"] * (n % 2) + ["b"] * (n % 3 == 0)} for n in range(20)]
    path = write_rows(tmp_path / "several.jsonl", several)
    config, data = prepared(path, data__label_column="tags", data__eval_fraction=0)
    assert TASK.facts(config, data).details["label_rows"] == {"a": (10, None), "b": (7, None)}
    assert data.details["problem_type"] == "multi_label_classification"
    found = Rows(data.train_path).values(LABELS).reshape(-1, 2)
    assert found.tolist() == [[n % 2, int(n % 3 == 0)] for n in range(20)]
    path = write_rows(tmp_path / "numbers.jsonl", [{"text": f"text {n}", "score": n / 4} for n in range(20)])
    _, data = prepared(path, data__eval_fraction=0)
    assert data.details["problem_type"] == "regression" and data.details["classes"] == 1
    assert Rows(data.train_path).values(LABELS).view(np.float32).tolist() == [n / 4 for n in range(20)]


def test_a_pair_of_texts_has_segments_and_is_cut_to_the_length(tmp_path):
    rows = [{"text": "one " * (n + 1), "other": "two " * 3, "label": n % 2} for n in range(30)]
    _, data = prepared(
        write_rows(tmp_path / "rows.jsonl", rows),
        data__text_pair_column="other",
        data__max_length=16,
        data__eval_fraction=0,
    )
    found = [Rows(data.train_path).example(place) for place in range(30)]
    segments = [row.model_arguments["token_type_ids"].tolist() for row in found]
    assert all(len(row) == len(segment) <= 16 for row, segment in zip(found, segments, strict=True))
    assert all(segment == sorted(segment) and {0, 1} == set(segment) for segment in segments)
    assert max(map(len, found)) == 16 and data.counts.truncated_rows > 0


def test_an_unknown_label_of_the_evaluation_data_is_refused_or_skipped(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", labelled())
    other = write_rows(tmp_path / "other.jsonl", [*labelled(5), {"text": "x", "label": "sheeep"}])
    with pytest.raises(DataError, match=r"other.jsonl, line 6: no training row has the label 'sheeep'"):
        prepared(path, data__eval_path=other)
    _, data = prepared(path, data__eval_path=other, data__on_bad_rows="skip")
    assert data.counts.eval_rows == 5 and data.counts.bad_rows == 1


BAD_TABLES = [
    ([{"text": "a", "label": "x"}, {"text": "b", "label": "x"}], {}, "'label' holds 1 label: 'x'"),
    ([{"text": f"a {n}", "label": f"free text {n}"} for n in range(30)], {}, "30 different labels in 30 rows"),
    ([{"text": " ", "label": "x"}, {"text": "b", "label": "y"}], {}, "rows.jsonl, line 1: the column 'text' is empty"),
    ([{"text": "a", "label": "x"}, {"text": 3, "label": "y"}], {}, "line 2: the column 'text' is a number"),
    ([{"text": "a", "label": "x"}, {"text": "b", "label": None}], {}, "line 2: the label is missing"),
    ([{"text": "a", "label": "x"}, {"text": "b", "label": 1}], {}, "line 2: the label is a number, but earlier labels"),
    ([{"text": "a", "label": "x"}], {"data__text_pair_column": "txt"}, "did you mean 'text'"),
]  # fmt: skip


def test_a_table_without_usable_labels_is_refused_in_one_sentence(tmp_path, subtests):
    for rows, settings, words in BAD_TABLES:
        with subtests.test(words):
            with pytest.raises(DataError) as caught:
                prepared(write_rows(tmp_path / "rows.jsonl", rows), **settings)
            assert words in str(caught.value) and "\n" not in str(caught.value)


BAD_SETTINGS = [
    ({"evaluation__metric_for_best_model": "pearson"}, "pearson is not measured for a single label classification"),
    ({"data__label_column": "number", "task__class_weights": "balanced"}, "a regression has no classes to weight"),
    ({"data__label_column": "number", "training__label_smoothing_factor": 0.1}, "does not apply to regression"),
    ({"data__max_length": 2}, "data.max_length: is 2, but 2 special tokens must fit around a text; set it to 128"),
]  # fmt: skip


def test_settings_that_contradict_the_labels_are_refused(tmp_path, subtests):
    path = write_rows(tmp_path / "rows.jsonl", labelled())
    for settings, words in BAD_SETTINGS:
        with subtests.test(words):
            with pytest.raises(ConfigError) as caught:
                prepared(path, **settings)
            assert words in str(caught.value)


BAD = [
    ({"text": "b", "label": "y"}, ("--set", "data.label_column=lable"), "did you mean 'label'"),
    ({"text": "b", "label": "y"}, ("--set", "evaluation.metric_for_best_model=acuracy"), "did you mean accuracy?"),
    ({"text": None, "label": "y"}, (), "line 2: the column 'text' is null"),
    ({"text": "b", "label": ["y"]}, (), "line 2: the labels are a list, but earlier labels are names"),
]


def test_bad_input_is_refused_in_one_sentence_before_there_is_a_run(tmp_path, capsys, subtests):
    sets = set_options(SETTINGS)
    for row, arguments, words in BAD:
        with subtests.test(words):
            path = write_rows(tmp_path / "rows.jsonl", [{"text": "a", "label": "x"}, row])
            assert main(["train", "--no-ui", *sets, "--set", f"data.path={path}", *arguments]) == 2
            assert len([line for line in capsys.readouterr().err.splitlines() if words in line]) == 1
            assert not list(tmp_path.glob("runs/*"))


def test_an_unmeasured_metric_is_refused_with_the_nearest_one(tmp_path):
    from tui_trainer.planning.conflicts import setting_problems

    path = write_rows(tmp_path / "rows.jsonl", labelled())
    (problem,) = setting_problems(loaded(path, evaluation__metric_for_best_model="f1"))
    assert "did you mean macro_f1? available: loss, accuracy, macro_f1, weighted_f1" in str(problem)
    assert not setting_problems(loaded(path, evaluation__metric_for_best_model="accuracy"))


# What is compared, and how rows weigh


# Labels of the training rows, of the held-out rows, and the scores of the same answer for all of these.
BASELINES = {
    "class": (
        ["no" if n % 4 else "yes" for n in range(40)],
        ["no" if n < 3 else "yes" for n in range(10)],
        {"accuracy of the most frequent class": 0.3, "macro_f1 of the most frequent class": 2 * 3 / (2 * 3 + 7) / 2},
    ),
    "several labels": (
        [["a"] * (n % 4 > 0) + ["b"] * (n % 4 == 1) for n in range(40)],
        [["a"], ["a"], ["a", "b"], ["b"], []],
        {
            "exact_match of the most frequent answer for each class": 2 / 5,
            "micro_f1 of the most frequent answer for each class": 2 * 3 / (2 * 3 + 2 + 2),
            "macro_f1 of the most frequent answer for each class": 2 * 3 / (2 * 3 + 2) / 2,
        },
    ),
    "number": (
        [1.5 if n % 2 else 2.5 for n in range(40)],
        [2.0, 3.0, 0.0, 1.0],
        {"mse of the mean of the training rows": 6 / 4, "mae of the mean of the training rows": 4 / 4},
    ),
}


def test_the_baseline_is_the_most_frequent_class_or_the_mean_of_the_training_rows(tmp_path, subtests):
    for name, (*labels, scores) in BASELINES.items():
        train, held_out = (
            write_rows(
                tmp_path / f"{name} {n}.jsonl", [{"text": f"{n} {m}", "label": one} for m, one in enumerate(some)]
            )
            for n, some in enumerate(labels)
        )
        with subtests.test(name):
            config, data = prepared(train, data__eval_path=held_out)
            assert TASK.baselines(config, data, range(len(labels[1]))).scores == pytest.approx(scores)


def test_balanced_weights_have_a_mean_of_one(tmp_path):
    rows = [{"text": f"text {n}", "label": "no" if n % 4 else "yes"} for n in range(40)]
    _, data = prepared(write_rows(tmp_path / "rows.jsonl", rows), data__eval_fraction=0)
    weights = class_weights(Rows(data.train_path), "single_label_classification", 3)
    # Classes that no training row has any more, as it was a repeat or drawn randomly, are classes all the same.
    assert weights.tolist() == pytest.approx([40 / (2 * 30), 40 / (2 * 10), 1])
    assert weights[Rows(data.train_path).values(LABELS)].mean() == pytest.approx(1)


# Runs


@pytest.mark.full
@pytest.mark.parametrize(("kind", "metric"), [("multi_label_classification", "micro_f1"), ("regression", "mse")])
def test_runs_with_several_labels_and_numbers_train_and_load(classify, kind, metric):
    from transformers import AutoModelForSequenceClassification

    several = kind == "multi_label_classification"
    rows = [{"text": row["text"], "label": [row["label"], "x"] if several else row["number"]} for row in labelled()]
    folder = classify(rows, logging__sample_steps=2, task__class_weights="balanced" if several else "none")
    (evaluation,), (baselines,) = of_kind(folder, EvalDone), of_kind(folder, BaselinesMeasured)
    assert metric in evaluation.scores and any(name.startswith(f"{metric} of ") for name in baselines.scores)
    model = AutoModelForSequenceClassification.from_pretrained(folder.model)
    assert model.config.problem_type == kind
    assert model.config.num_labels == (6 if several else 1)


@pytest.mark.full
def test_an_adapter_is_saved_with_its_head_and_predicts_the_same(classify, tmp_path, capsys):
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    save_tiny_model(tmp_path / "base", "roberta")
    folder = classify(
        labelled(), model__init="pretrained", model__model_name_or_path=tmp_path / "base", tuning__method="lora",
        tuning__r=4, data__max_length=64, training__learning_rate=0.01, training__max_steps=6,
    )  # fmt: skip
    (evaluation,) = of_kind(folder, EvalDone)
    saved = load_file(folder.model / "adapter_model.safetensors")
    assert any("lora_A" in name for name in saved) and any("score" in name or "classifier" in name for name in saved)
    config = AutoConfig.from_pretrained(folder.model)
    assert sorted(config.id2label.values()) == sorted(evaluation.table_rows)
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", config=config)
    model = PeftModel.from_pretrained(base, folder.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder.model)
    text = labelled(1)[0]["text"]
    with torch.no_grad():
        chances = model(**tokenizer(text, return_tensors="pt")).logits[0].softmax(-1)
    capsys.readouterr()
    assert main(["generate", str(folder.root), text]) == 0
    name, chance = capsys.readouterr().out.splitlines()[0].split()
    assert name == config.id2label[int(chances.argmax())] and float(chance) == pytest.approx(
        float(chances.max()), abs=0.01
    )


@pytest.mark.full
def test_a_model_that_reads_the_end_token_takes_texts_that_spell_it(classify, tmp_path):
    """Web pages spell it for words that are struck out. BART reads the class at the end token, and needs one a row."""
    model = save_tiny_model(tmp_path / "bart", "bart")
    struck = "it was <s>good</s> bad {}"
    rows = [{"text": struck.format(n) if n % 5 == 0 else f"it was so {n}", "label": n % 2} for n in range(40)]
    folder = classify(rows, model__init="pretrained", model__model_name_or_path=model)
    asked = write_rows(tmp_path / "asked.jsonl", rows[:6])
    command = ["predict", str(folder.root), "--data", str(asked), "--out", str(tmp_path / "said.jsonl")]
    assert main(command) == 0
    assert len((tmp_path / "said.jsonl").read_text().splitlines()) == 6


def test_a_fine_tuned_model_keeps_the_order_of_its_labels(tmp_path):
    save_tiny_model(tmp_path / "base", "roberta", id2label={0: "sheep", 1: "hen", 2: "cow", 3: "horse", 4: "goat"})
    config, data = prepared(
        write_rows(tmp_path / "rows.jsonl", labelled(100)), model__init="pretrained",
        model__model_name_or_path=tmp_path / "base", data__max_length=64,
    )  # fmt: skip
    assert data.details["names"] == ["sheep", "hen", "cow", "horse", "goat"]
    assert TASK.labels(config, data).names == ("sheep", "hen", "cow", "horse", "goat")


@pytest.mark.full
def test_a_model_that_reads_the_last_position_is_refused(tmp_path, capsys):
    from transformers import XLNetConfig, XLNetForSequenceClassification

    save_tiny_model(tmp_path / "model", "bert")
    config = XLNetConfig(vocab_size=400, d_model=32, n_layer=1, n_head=2, d_inner=64)
    XLNetForSequenceClassification(config).save_pretrained(tmp_path / "model")
    data = write_rows(tmp_path / "rows.jsonl", [{"text": f"text {n}", "label": "ab"[n % 2]} for n in range(8)])
    command = ["--no-ui", "--task", "sequence_classification", "--model", str(tmp_path / "model"), "--data", str(data)]
    assert main([*command, "--set", f"output.runs_dir={tmp_path / 'runs'}"]) == 2
    told = capsys.readouterr().err
    assert "xlnet classifies by the last position" in told and "use another encoder" in told
    assert not (tmp_path / "runs").exists()
