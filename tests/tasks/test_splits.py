"""Which rows of splits are trained on, evaluated on and never read. A mark in each row identifies it."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.config.paths import data_of
from tui_trainer.data.columns.text_columns import ColumnChoices
from tui_trainer.data.preparing.estimate import size_of
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.data.sources.source import DataChoice, open_source
from tui_trainer.errors import ConfigError, DataError
from tui_trainer.launching.open_run import load_config
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.launching.preview import make_preview
from tui_trainer.lines.plan_and_events import plan_lines
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.planning.summary import data_words
from tui_trainer.tasks import find_task

SETTINGS = {
    "task.type": "causal_lm", "model.init": "scratch", "tuning.method": "full", "data.max_length": 64,
    "model.scratch.vocab_size": 300, "model.scratch.hidden_size": 32, "model.scratch.num_hidden_layers": 1,
}  # fmt: skip
COUNTS = {"train": 20, "validation": 4, "test": 3}
JUNK = b"\x00 never opened"


def rows(split: str, count: int = 0) -> list[dict[str, str]]:
    return [{"text": f"{split}-{n}: some words", "label": "ab"[n % 2]} for n in range(count or COUNTS[split])]


def marks(*splits: str) -> set[str]:
    return {row["text"].partition(":")[0] for split in splits for row in rows(split)}


def write(path: Path, content: list[dict[str, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(content), path)
    elif path.suffix == ".arrow":
        table = pa.Table.from_pylist(content)
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["text", "label"])
            writer.writeheader()
            writer.writerows(content)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    return path


def loaded(path: Path | str, **changes: Any) -> LoadedConfig:
    settings = {**SETTINGS, "data.path": path, **{key.replace("__", "."): value for key, value in changes.items()}}
    return load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items())))


def used(path: Path | str, cache: Path, **changes: Any) -> tuple[set[str], set[str], str]:
    """Return the marks of rows that are trained on and evaluated on, and the notes about splits."""
    config = loaded(path, **changes).config
    data = find_task(config.task.type).prepare(config, data_of(config), cache, lambda *_: None)
    tokenizer = Tokenizer.from_file(str(data.tokenizer_path))

    def found(path: Path | None) -> set[str]:
        stored = Rows(path) if path else []
        texts = [tokenizer.decode(stored.row(place).tolist()) for place in range(len(stored))]
        return {mark for text in texts for mark in re.findall(r"\w+-\d+(?=:)", text)}

    return found(data.train_path), found(data.eval_path), "\n".join(use.words() for use in data.splits)


def parquet_folders(root: Path) -> None:
    for split in ("train", "validation"):
        write(root / split / "0.parquet", rows(split))
    (root / "test").mkdir()
    (root / "test/0.parquet").write_bytes(JUNK)


def json_lines(root: Path) -> None:
    write(root / "my_train.jsonl", rows("train"))
    write(root / "my_dev.jsonl", rows("validation"))
    (root / "my_test.jsonl").write_bytes(JUNK)
    (root / "README.md").write_text("README-1: no data")


def cached_arrow(root: Path) -> None:
    for shard in (0, 1):
        write(root / f"my_eval-train-0000{shard}-of-00002.arrow", rows("train")[shard::2])
    write(root / "my_eval-validation.arrow", rows("validation"))
    (root / "my_eval-test.arrow").write_bytes(JUNK)
    (root / "cache-0123456789abcdef.arrow").write_bytes(JUNK)
    (root / "dataset_info.json").write_text("{}")


def test_a_share_of_train_is_held_out_without_a_validation_split(tmp_path):
    write(tmp_path / "csv/train.csv", rows("train"))
    (tmp_path / "csv/test.csv").write_bytes(JUNK)
    trained, evaluated, told = used(tmp_path / "csv", tmp_path / "cache", data__eval_fraction=0.2)
    assert trained | evaluated == marks("train") and not trained & evaluated and len(evaluated) == 4
    assert told == f"{tmp_path}/csv: train (train.csv) is trained on; not read: test (test.csv)"
    globbed = used(tmp_path / "csv/*.csv", tmp_path / "cache", data__eval_fraction=0.2)
    assert globbed[:2] == (trained, evaluated) and "not read: test" in globbed[2]


def snapshot(name: str, cache: Path) -> Path:
    """Return the folder of a data set of the hub in the cache of another program."""
    place, commit = cache / "hub" / f"datasets--{name.replace('/', '--')}", "0" * 40
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text(commit)
    return place / "snapshots" / commit


def test_splits_of_a_cached_data_set_of_the_hub_are_recognised(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    for root in (snapshot("org/one", tmp_path) / "data", snapshot("org/two", tmp_path) / "en"):
        for split in ("train", "validation"):
            write(root / f"{split}-00000-of-00001.parquet", rows(split))
        (root / "test-00000-of-00001.parquet").write_bytes(JUNK)
    write(root.parent / "de/train-00000-of-00001.parquet", rows("train"))
    for path in ("hub:org/one", "hub:org/one/data/*", "hub:org/two/en"):
        trained, evaluated, told = used(path, tmp_path / "cache")
        assert trained == marks("train") and evaluated == marks("validation") and "not read: test" in told, path
    with pytest.raises(DataError, match=r"hub:org/two has several splits or configurations: .*in several folders"):
        used("hub:org/two", tmp_path / "cache")
    with pytest.raises(DataError, match="several splits or configurations"):
        used("hub:org/two/**/*.parquet", tmp_path / "cache")


def test_a_named_test_split_is_read_and_noted(tmp_path):
    for split in COUNTS:
        write(tmp_path / "d" / split / "0.jsonl", rows(split))
    whole = {"data__eval_fraction": 0}
    for path in ("d/test", "d/test/0.jsonl", "d/test/*.jsonl", "d/te*/*.jsonl"):
        trained, _, told = used(tmp_path / path, tmp_path / "cache", **whole)
        assert trained == marks("test"), path
        assert ("this test split is trained on" in told) == (path != "d/test/0.jsonl"), path
    assert used(tmp_path / "d/train", tmp_path / "cache", **whole) == (marks("train"), set(), "")
    every = ", ".join(str(tmp_path / "d" / split) for split in COUNTS)
    assert used(every, tmp_path / "cache", **whole)[0] == marks(*COUNTS)


def test_data_eval_path_wins_over_a_validation_split(tmp_path):
    for split in COUNTS:
        write(tmp_path / f"d/{split}.jsonl", rows(split))
    other = write(tmp_path / "other.jsonl", rows("other", 5))
    trained, evaluated, told = used(tmp_path / "d", tmp_path / "cache", data__eval_path=other)
    assert trained == marks("train") and evaluated == {f"other-{n}" for n in range(5)}
    left_out = "not read: validation (validation.jsonl), test (test.jsonl)"
    assert f"{left_out}; the held-out data comes from data.eval_path" in told
    on_test = used(tmp_path / "d", tmp_path / "cache", data__eval_path=tmp_path / "d/test.jsonl")
    assert on_test[:2] == (marks("train"), marks("test"))
    assert "test (test.jsonl) is evaluated on; not read: validation (validation.jsonl);" in on_test[2]
    trained, evaluated, told = used(other, tmp_path / "cache", data__eval_path=tmp_path / "d")
    assert evaluated == marks("validation") and len(trained) == 5
    assert told == (
        f"{tmp_path}/d: validation (validation.jsonl) is evaluated on; not read: train (train.jsonl), test (test.jsonl)"
    )


def test_each_of_several_sources_needs_a_validation_split_or_none_has_one(tmp_path):
    for source in "ab":
        for split in COUNTS:
            write(tmp_path / source / f"{split}.jsonl", rows(f"{source}{split}", COUNTS[split]))
    both = f"{tmp_path}/a, {tmp_path}/b"
    trained, evaluated, told = used(both, tmp_path / "cache", data__weights="2,1")
    assert trained == {f"{source}train-{n}" for source in "ab" for n in range(20)}
    assert evaluated == {f"{source}validation-{n}" for source in "ab" for n in range(4)}
    assert told.count("not read: test") == 2
    (tmp_path / "b/validation.jsonl").unlink()
    with pytest.raises(DataError, match=r"a: has a validation split, but .*/b has none; set data.eval_path"):
        used(both, tmp_path / "cache")
    assert used(both, tmp_path / "cache", data__eval_path=tmp_path / "a")[1] == {f"avalidation-{n}" for n in range(4)}


def test_tasks_without_columns_evaluate_on_the_validation_split(tmp_path):
    for split in COUNTS:
        write(tmp_path / f"d/{split}.jsonl", rows(split))
    for task in ("char_lm", "sequence_classification"):
        config = loaded(tmp_path / "d", task__type=task, data__max_length=16).config
        guess = find_task(task).data_facts(config, data_of(config), tmp_path / "cache")
        data = find_task(task).prepare(config, data_of(config), tmp_path / "cache", lambda *_: None)
        assert (data.counts.train_documents, data.counts.eval_documents) == (20, 4), task
        assert guess.splits == data.splits == find_task(task).facts(config, data).splits and guess.eval_rows


def test_the_plan_names_the_splits_in_text_and_json(tmp_path):
    parquet_folders(tmp_path / "rows")
    asked = loaded(tmp_path / "rows", data__eval_fraction=0, evaluation__early_stopping_patience=2)
    plan = estimated_plan(asked)
    expected = "train (train/0.parquet) is trained on; validation (validation/0.parquet) is evaluated on; not read: "
    shown = "\n".join(plan_lines(plan, data_words(plan.config, asked.data)))
    assert expected in shown and "is evaluated on validation/0.parquet" in shown and "trains on train/0.p" in shown
    assert plan.splits[0].unread_splits == ("test (test/0.parquet)",) and plan.eval_rows.value == 4
    assert read_plan_file(plan.model_dump_json().encode()).splits == plan.splits
    assert any(expected in note for note in make_preview(asked, 1, lambda *_: None).notes)


def test_splits_that_appear_later_are_noted_for_cached_data(tmp_path):
    write(tmp_path / "d/train.jsonl", rows("train"))
    assert used(tmp_path / "d", tmp_path / "cache")[2] == ""
    (tmp_path / "d/test.jsonl").write_bytes(JUNK)
    assert "not read: test (test.jsonl)" in used(tmp_path / "d", tmp_path / "cache")[2]


def test_ambiguous_splits_are_refused_with_what_to_write(tmp_path, subtests):
    for extra in ("sample_submission.csv", "train/0.csv"):
        folder = tmp_path / extra.partition(".")[0]
        for name in ("train.csv", "test.csv", extra):
            write(folder / name, rows("train"))
        words = rf"several splits or .*; set data.split to .*set data.path to one of these.*, such as {folder}/train"
        with subtests.test(extra), pytest.raises(ConfigError, match=words):
            estimated_plan(loaded(folder))


def test_a_glob_reads_the_train_files_of_several_folders(tmp_path):
    for language in ("en", "de"):
        write(tmp_path / language / "train.jsonl", rows(f"{language}train", 3))
    found = open_source(str(tmp_path / "*" / "train.jsonl"))
    assert [entry.path.parent.name for entry in found.entries] == ["de", "en"]
    with pytest.raises(DataError, match="splits are in several folders"):
        open_source(str(tmp_path))


def saved_dict(root: Path) -> None:
    from datasets import Dataset, DatasetDict

    DatasetDict({split: Dataset.from_list(rows(split)) for split in COUNTS}).save_to_disk(root)
    (root / "test/data-00000-of-00001.arrow").write_bytes(JUNK)


def csv_folder(root: Path) -> None:
    for split in ("train", "validation"):
        write(root / f"{split}.csv", rows(split))
    (root / "test.csv").write_bytes(JUNK)


def cache_of_datasets(root: Path) -> None:
    """Write what `load_dataset("org/stored")` leaves in HF_DATASETS_CACHE."""
    from datasets import DatasetDict, load_dataset

    source = root.parent / "source"
    for split in COUNTS:
        write(source / f"{split}.jsonl", rows(split))
    loaded_once = load_dataset(str(source), cache_dir=str(root.parent / "once"))
    assert isinstance(loaded_once, DatasetDict)
    [made] = {Path(file["filename"]).parent for files in loaded_once.cache_files.values() for file in files}
    place = root.parent / "hf/datasets/org___stored/default" / made.parent.name / made.name
    shutil.copytree(made, place)
    (place / "source-test.arrow").write_bytes(JUNK)


def snapshot_of_two_configurations(root: Path) -> None:
    place = snapshot("org/two", root.parent / "hf")
    for language in ("de", "en"):
        for split in ("train", "validation"):
            write(place / f"{language}/{split}-0.parquet", rows(split if language == "en" else f"{language}{split}", 4))
        (place / f"{language}/test-0.parquet").write_bytes(JUNK)
    configs = [
        f"- config_name: {language}\n  data_files:\n"
        + "".join(f"  - split: {split}\n    path: {language}/{split}-*.parquet\n" for split in COUNTS)
        for language in ("de", "en")
    ]
    (place / "README.md").write_text(f"---\nconfigs:\n{''.join(configs)}---\n# two languages\n")


LAYOUTS: dict[str, tuple[Callable[[Path], None], str, dict[str, str]]] = {
    "parquet": (parquet_folders, "parquet", {}),
    "csv": (csv_folder, "csv", {}),
    "jsonl": (json_lines, "jsonl", {}),
    "arrow": (cached_arrow, "arrow", {}),
    "hub, two configurations": (snapshot_of_two_configurations, "org/two", {"data__name": "en"}),
}


@pytest.fixture
def at_home(tmp_path, monkeypatch) -> Path:
    """The current folder, with caches of Hugging Face in it."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    return tmp_path


def check_layout(name: str, make: Callable[[Path], None], path: str, settings: dict[str, str], at_home: Path) -> None:
    root = at_home / name
    root.mkdir()
    make(root)
    trained, evaluated, notes = used(path, at_home / "prepared" / name, **settings)
    train = {f"train-{n}" for n in range(4)} if "hub" in name else marks("train")
    assert trained == train and evaluated == marks("validation")
    assert "train" in notes and "is evaluated on; not read: " in notes and "test" in notes
    before = {file: file.stat().st_mtime_ns for file in root.rglob("*")}
    sliced = {"data__split": "train[:50%]", "data__eval_split": "train[50%:]", **settings}
    first, second, _ = used(path, at_home / "prepared" / name, **sliced)
    assert first | second == trained and not first & second and len(first) == len(trained) // 2
    assert {file: file.stat().st_mtime_ns for file in root.rglob("*")} == before


def test_train_is_trained_on_validation_is_evaluated_on_and_test_is_not_opened(at_home, subtests):
    for name, layout in LAYOUTS.items():
        with subtests.test(name):
            check_layout(name, *layout, at_home)


@pytest.mark.full
def test_splits_that_the_datasets_library_has_written_are_used_the_same(at_home, subtests):
    for name, make, path in (("saved", saved_dict, "saved"), ("cached", cache_of_datasets, "org/stored")):
        with subtests.test(name):
            check_layout(name, make, path, {}, at_home)


def test_an_ambiguous_configuration_is_refused_with_the_choices(at_home):
    snapshot_of_two_configurations(at_home / "corpus")
    for path in ("org/two", "hub:org/two"):
        with pytest.raises(DataError, match=r"hub:org/two has several configurations: de, en; set data.name to one"):
            used(path, at_home / "prepared")
        with pytest.raises(DataError, match=r"hub:org/two has no configuration 'fr'; set data.name to one of de, en"):
            used(path, at_home / "prepared", data__name="fr")
    cached = at_home / "hf/datasets/org___stored"
    for language in ("de", "en"):
        (cached / language / "0.0.0/0a").mkdir(parents=True)
        (cached / language / "0.0.0/0a/dataset_info.json").write_text("{}")
    with pytest.raises(DataError, match=r"org/stored has several configurations: de, en; set data.name"):
        open_source("org/stored")
    with pytest.raises(DataError, match=r"has no configuration 'x'; leave data.name empty"):
        write(at_home / "de/train.jsonl", rows("train"))
        used("de", at_home / "prepared", data__name="x")


def test_folders_without_a_readme_are_configurations(at_home):
    for language in ("de", "en"):
        write(at_home / f"corpus/{language}/train.jsonl", rows(f"{language}train", 4))
        write(at_home / f"corpus/{language}/test.jsonl", rows("test"))
    with pytest.raises(DataError, match=r"set data.name to one of de, en; or set data.path to one"):
        used("corpus", at_home / "prepared")
    trained, evaluated, _ = used("corpus", at_home / "prepared", data__name="de", data__eval_split="test")
    assert (trained, evaluated) == ({f"detrain-{n}" for n in range(4)}, marks("test"))


@pytest.mark.full
def test_the_cache_of_datasets_is_found_by_the_name_of_the_data_set(at_home):
    from datasets.naming import camelcase_to_snakecase

    for name in ("TweetEval", "org/SQuAD2Mini", "org/plain-1.5"):
        *owner, last = name.split("/")
        place = at_home / "hf/datasets" / "___".join([*owner, camelcase_to_snakecase(last)]) / "default/0.0.0/0a"
        write(place / "x-train.arrow", rows("train"))
        (place / "dataset_info.json").write_text("{}")
        assert open_source(name).files == (place / "x-train.arrow",)


@pytest.mark.full
def test_declared_features_give_labels_their_names(at_home):
    from datasets import ClassLabel, Dataset, Features, Value

    content = [{"text": f"{n} words", "label": n % 2} for n in range(6)]
    features = Features({"text": Value("string"), "label": ClassLabel(names=["bad", "good"])})
    Dataset.from_list(content, features=features).save_to_disk(at_home / "saved")
    declared = at_home / "corpus/a.jsonl"
    declared.write_text("".join(json.dumps(row) + "\n" for row in content))
    (at_home / "corpus/README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files: a.jsonl\ndataset_info:\n  features:\n  - name: text\n"
        "    dtype: string\n  - name: label\n    dtype:\n      class_label:\n        names:\n          '0': bad\n"
        "          '1': good\n---\n"
    )
    for path in ("saved", "corpus"):
        found = open_source(path).rows(ProblemList(), choices=ColumnChoices(""))
        assert [row.values["label"] for row in found] == ["bad", "good"] * 3, path


def test_a_split_is_chosen_and_sliced_as_the_datasets_library_does(tmp_path, subtests):
    for ending in ("jsonl", "csv", "parquet"):
        folder = tmp_path / ending
        for name in COUNTS:
            half = len(rows(name)) // 2
            for shard, content in enumerate((rows(name)[:half], rows(name)[half:])):
                write(folder / f"{name}-0000{shard}-of-00002.{ending}", content)
        for split, expected in {
            "train[2:5]": ["train-2", "train-3", "train-4"],
            "train[:1]+validation[-1:]": ["train-0", "validation-3"],
            "validation+test": [*(f"validation-{n}" for n in range(4)), *(f"test-{n}" for n in range(3))],
            "validation": [f"validation-{n}" for n in range(4)],
        }.items():
            with subtests.test(f"{split} of {ending}"):
                source = open_source(str(folder), choice=DataChoice(split=split))
                assert [document.text.partition(":")[0] for document in source.documents()] == expected
                assert len(expected) // 2 <= size_of(source).documents <= 2 * len(expected)
                assert source.fingerprint() != open_source(str(folder)).fingerprint()


def test_a_missing_split_is_refused(tmp_path, subtests):
    for name in COUNTS:
        write(tmp_path / f"{name}.jsonl", rows(name))
    for split, words in (
        ("trian", "has no split 'trian'; set data.split to one of the splits train, validation, test"),
        ("train[5:", "'train[5:' is not a valid slice"),
        ("train[90:]", "'train[90:]' selects no rows; there are 20 rows"),
    ):
        with subtests.test(split), pytest.raises(DataError, match=re.escape(words)):
            open_source(str(tmp_path), choice=DataChoice(split=split))


def test_slices_are_noted_and_shared_rows_are_reported(tmp_path):
    for name in COUNTS:
        write(tmp_path / f"d/{name}.jsonl", rows(name))
    told = used(tmp_path / "d", tmp_path / "cache", data__split="train[:5]", data__eval_split="test")[2]
    assert "train[:5] (train.jsonl) is trained on; test (test.jsonl) is evaluated on" in told
    assert "not read: validation (validation.jsonl); the held-out data comes from data.eval_split" in told
    apart = {"data__split": "train[:5]", "data__eval_split": "train[5:7]"}
    trained, evaluated, told = used(tmp_path / "d/train.jsonl", tmp_path / "cache", **apart)
    assert (trained, evaluated) == ({f"train-{n}" for n in range(5)}, {"train-5", "train-6"})
    assert "train[5:7] (train.jsonl) is evaluated on" in told and "as well" not in told
    told = used(tmp_path / "d", tmp_path / "cache", data__eval_split="train[5:7]")[2]
    assert "evaluated rows are also trained on" in told


def test_a_bad_row_of_a_slice_is_reported_by_its_line_in_the_file(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n' * 5 + '{"text": 3}\n' + '{"text": "a"}\n' * 4)
    with pytest.raises(DataError, match=r"a.jsonl, line 6: the column 'text' is a number"):
        list(open_source(str(tmp_path / "a.jsonl"), choice=DataChoice(split="train[4:]")).documents())
    assert len(list(open_source(str(tmp_path / "a.jsonl"), choice=DataChoice(split="train[6:]")).documents())) == 4


def readme(folder: Path, **splits: str) -> Path:
    """Write a README.md that declares one configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = "".join(f"  - split: {split}\n    path: '{path}'\n" for split, path in splits.items())
    (folder / "README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files:\n{listed}---\n")
    return folder


def test_a_file_of_a_declared_test_split_is_not_trained_on(tmp_path):
    for split in ("train", "test"):
        write(tmp_path / f"d/{split}.jsonl", rows(split))
    readme(tmp_path / "d", train="*.jsonl", test="test.jsonl")
    folder = (str(tmp_path / "d"),)
    [found] = ResolvedData(paths=folder).sources
    assert [file.name for file in found.files] == ["train.jsonl"]
    assert "not read: test (" in found.splits[0].words()
    [every] = ResolvedData(paths=folder, split="train+test").sources
    assert len(every.files) == 2 and all("test.jsonl" not in use.words() for use in every.splits)
    readme(tmp_path / "d", train="test.jsonl", validation="test.jsonl", test="test.jsonl")
    with pytest.raises(DataError, match=r"\(train and another split have the same files: test.jsonl\)"):
        open_source(str(tmp_path / "d"))
    both = ResolvedData(paths=folder, split="train[:1]", eval_split="train[1:]")
    assert all(not use.unread_splits for use in both.splits)


def test_a_lone_test_split_is_trained_on_only_if_it_is_named(at_home):
    write(at_home / "corpus/test.jsonl", rows("test"))
    write(snapshot("org/one", at_home / "hf") / "data/test-00000-of-00001.jsonl", rows("test"))
    for path in ("corpus", "org/one", "hub:org/one/data"):
        with pytest.raises(DataError, match=r"has only the split test: .*; set data.split to test"):
            open_source(path)
        assert len(list(open_source(path, choice=DataChoice(split="test")).documents())) == 3
    for path in ("corpus/test.jsonl", "corpus/*.jsonl", "hub:org/one/data/test-*"):
        assert len(list(open_source(path).documents())) == 3, path


@pytest.mark.full
def test_a_declared_split_without_its_files_is_refused(at_home):
    saved_dict(at_home / "saved")
    shutil.rmtree(at_home / "saved/train")
    cache_of_datasets(at_home / "corpus")
    (at_home / "other").mkdir()
    next((at_home / "hf/datasets").glob("*/*/*/*/source-train.arrow")).unlink()
    for path in ("saved", "org/stored"):
        for choice in (DataChoice(), DataChoice(split="train[:1]")):
            with pytest.raises(DataError, match="train is declared, but its files are missing"):
                open_source(path, choice=choice)
    with pytest.raises(DataError, match=r"files are missing; found: .*; copy or download the dataset again; or set"):
        open_source("saved")
    saved_dict(at_home / "other")
    (at_home / "other/dataset_dict.json").write_text('{"splits": ["train", "train_more", "validation", "test"]}')
    assert open_source("other").remark == "declared splits without files: train_more"


@pytest.mark.full
def test_missing_shards_are_named(at_home):
    from datasets import Dataset

    place = snapshot("org/one", at_home / "hf")
    for folder in (at_home / "corpus", place):
        write(folder / "train-00000-of-00003.jsonl", rows("train"))
        write(folder / "test-00001-of-00002.jsonl", rows("test"))
    readme(at_home / "declared", train="train-*")
    write(at_home / "declared/train-00000-of-00003.jsonl", rows("train"))
    named = r"incomplete; missing: train-00001-of-00003.jsonl, train-00002-of-00003.jsonl; copy"
    for path in ("corpus", "org/one", "corpus/*.jsonl", "declared"):
        with pytest.raises(DataError, match=named):
            open_source(path)
    for path in ("corpus/train-00000-of-00003.jsonl", "hub:org/one/train-00000-of-00003.jsonl", "corpus/train-00000*"):
        assert len(open_source(path).files) == 1, path
    write(at_home / "corpus/train-00001-of-00003.jsonl", rows("train"))
    write(at_home / "corpus/train-00002-of-00003.jsonl", rows("train"))
    assert len(open_source("corpus").files) == 3  # a shard of test is missing, and nobody reads it
    Dataset.from_list(rows("train")).save_to_disk(at_home / "saved", num_shards=4)
    (at_home / "saved/data-00002-of-00004.arrow").unlink()
    with pytest.raises(DataError, match=r"incomplete; missing: data-00002-of-00004.arrow"):
        open_source("saved")
    Dataset.from_list(rows("train")).select([]).save_to_disk(at_home / "empty")
    with pytest.raises(DataError, match="no usable file in 'empty': nothing was found"):
        open_source("empty")


def test_train_is_preferred_to_other_splits_whose_names_begin_with_it(tmp_path):
    for split in ("train", "validation", "test", "more"):
        write(tmp_path / f"{split}.jsonl", rows("train" if split == "more" else split))
    splits = {"train_extra": "more.jsonl", "train": "train.jsonl", "validation": "validation.jsonl"}
    readme(tmp_path, **splits, validation_other="test.jsonl")
    found, held_out = ResolvedData(paths=(str(tmp_path),)).sources
    assert [file.name for file in found.files] == ["train.jsonl"]
    assert [file.name for file in held_out.files] == ["validation.jsonl"]
    readme(tmp_path, train_extra="more.jsonl", train_other="train.jsonl")
    with pytest.raises(
        DataError, match=r"several splits are named train.*; set data.split to train_extra or train_other; or"
    ):
        open_source(str(tmp_path))


@pytest.mark.full
def test_labels_and_fingerprints_do_not_depend_on_the_spelling_of_a_path(at_home, monkeypatch):
    write(at_home / "d/train.jsonl", rows("train"))
    readme(at_home / "d", train="train.jsonl")
    (at_home / "link").symlink_to(at_home / "d")
    found = [open_source(str(path)) for path in ("d", at_home / "d", "corpus/../d", "link")]
    assert {source.entries[0].label for source in found} == {"train.jsonl"}
    assert len({source.fingerprint() for source in found}) == 1


@pytest.mark.full
def test_the_commit_of_main_is_read_from_the_cache_of_datasets(at_home):
    place = at_home / "hf/datasets/org___stored"
    for made in ("default/0.0.0/aa", "default/0.0.0/bb", "default-0123456789abcdef/0.0.0/cc"):
        write(place / made / "x-train.arrow", rows("train"))
        (place / made / "dataset_info.json").write_text("{}")
    with pytest.raises(DataError, match=r"several commits in the cache of the datasets library: aa, bb; set data"):
        open_source("org/stored")
    for revision in ("aa", "bb"):
        assert open_source("org/stored", choice=DataChoice(revision=revision)).files[0].parent.name == revision
    refs = snapshot("org/stored", at_home / "hf").parents[1] / "refs/main"
    refs.write_text("aa")
    assert open_source("org/stored").files[0].parent.name == "aa"
    fragment = DataChoice(name="default-0123456789abcdef")
    assert open_source("org/stored", choice=fragment).files[0].parent.name == "cc"
    shutil.rmtree(place / "default")
    with pytest.raises(DataError, match="no Hub dataset org/stored on this machine"):
        open_source("org/stored")


BAD_README = [
    ("configs:\n- config_name: [x\n", "does not say where the data is: while parsing"),
    ("configs:\n- data_files: train.csv\n\tx: 1\n", "does not say where the data is: while scanning"),
    ("configs:\n- config_name: default\n  data_files: a.py\n", "Dataset scripts are no longer supported"),
    ("configs:\n- data_files:\n  - split: train\n    path: [train.csv, 'https://127.0.0.1:9/u.csv']\n",
     "refers to data on the network: https://127.0.0.1:9/u.csv; download"),
    ("configs:\n- config_name: default\n  data_files: train.csv\n  skiprows: 2\n", "sets skiprows to 2, which is"),
    ("configs:\n- {config_name: x, data_files: train.csv, header: null}\n", "sets header to None, which is"),
    ("configs:\n- config_name: default\n  data_files: train.jsonl\n  field: rows\n", "sets field to 'rows', which"),
]  # fmt: skip


def test_a_readme_that_cannot_be_followed_is_refused_with_what_to_do(tmp_path, subtests):
    for number, (front, words) in enumerate(BAD_README):
        with subtests.test(words):
            folder = tmp_path / str(number)
            write(folder / "train.csv", rows("train"))
            write(folder / "train.jsonl", rows("train"))
            if "a.py" in front:
                (folder / f"{folder.name}.py").write_text("x = 1")
            (folder / "README.md").write_text(f"---\n{front}---\n")
            with pytest.raises(DataError, match=re.escape(words)) as error:
                open_source(str(folder))
            assert "the README.md of '" in str(error.value) and "in data.path" in str(error.value)


def test_a_readme_sets_separator_and_names_of_columns(tmp_path):
    (tmp_path / "train.csv").write_text("a, b;1\nc, d;2\n")
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files: train.csv\n  sep: ';'\n  header: null\n"
        "  names: [text, label]\n---\n"
    )
    found = open_source(str(tmp_path)).rows(ProblemList(), choices=ColumnChoices(""))
    assert [row.values for row in found] == [{"text": "a, b", "label": "1"}, {"text": "c, d", "label": "2"}]
    assert len(list(open_source(str(tmp_path), choice=DataChoice(split="train[1:]")).documents())) == 1


@pytest.mark.full
def test_a_plan_reports_rows_shared_through_data_eval_path(tmp_path):
    path = write(tmp_path / "a.jsonl", rows("train"))
    (tmp_path / "link.jsonl").symlink_to(path)

    def shares(split: str, eval_split: str) -> bool:
        both = {"paths": (str(path),), "eval_paths": (str(tmp_path / "link.jsonl"),)}
        found, held_out = ResolvedData(**both, split=split, eval_split=eval_split).sources
        assert eval_split in held_out.description
        return any("also trained on" in use.words() for use in found.splits)

    assert shares("", "") and shares("train[:90%]", "train[80%:]") and not shares("train[:80%]", "train[80%:]")
    plan = estimated_plan(loaded(path, data__eval_path=path))
    assert plan.splits[0].shares_rows and read_plan_file(plan.model_dump_json().encode()).splits == plan.splits


@pytest.mark.full
def test_data_name_and_data_split_do_not_apply_to_data_eval_path(tmp_path):
    write(tmp_path / "cf/en.jsonl", rows("train"))
    (tmp_path / "cf/README.md").write_text("---\nconfigs:\n- config_name: en\n  data_files: en.jsonl\n---\n")
    write(tmp_path / "ev/v.jsonl", rows("validation"))
    (tmp_path / "ev/README.md").write_text("---\nconfigs:\n- config_name: plain\n  data_files: v.jsonl\n---\n")
    asked = {"paths": (str(tmp_path / "cf"),), "name": "en", "split": "train[:5]"}

    def held_out(path: str, eval_split: str = "") -> int:
        _, source = ResolvedData(**asked, eval_paths=(path,), eval_split=eval_split).sources
        return len(list(source.rows(ProblemList(), choices=ColumnChoices(""))))

    assert held_out(str(tmp_path / "ev")) == 4 and held_out("sample:python-docstrings") > 0
    for path, words in (
        ("sample:python-docstrings", "data.eval_split is set"),
        (str(tmp_path / "ev"), "has no split"),
    ):
        with pytest.raises(DataError, match=rf"{words}.*data.eval_split"):
            held_out(path, "dev")
    with pytest.raises(DataError, match=r"data.eval_split: 'train\[9:\]' selects no rows"):
        held_out(str(tmp_path / "ev"), "train[9:]")
    with pytest.raises(DataError, match="has no configuration 'fr'"):
        open_source(str(tmp_path / "cf"), choice=DataChoice(name="fr"))
    for kind in ("dev_a", "dev_b"):
        write(tmp_path / f"two/{kind}-00000-of-00001.jsonl", rows("validation"))
    with pytest.raises(DataError, match=r"set data.eval_split to dev_a or dev_b; or set data.eval_path to one"):
        held_out(str(tmp_path / "two"))


@pytest.mark.full
def test_settings_of_the_hub_are_noted_as_unused_for_a_local_path(at_home):
    write(at_home / "corpus/rows.jsonl", rows("train"))
    found = ResolvedData(paths=("corpus/rows.jsonl",), revision="v9", streaming=True)
    told = "data.revision and data.streaming are only for datasets on the Hub, and ignored for local data"
    assert [use.note for use in found.splits] == [told]
    write(snapshot("corpus", at_home / "hf") / "train.jsonl", rows("train"))
    for path in ("corpus", str(at_home / "corpus")):
        [use] = ResolvedData(paths=(path,)).splits
        assert "not the dataset of the same name on the Hub (hub:corpus)" in use.words()
    assert not open_source("hub:corpus", choice=DataChoice(revision="main")).remark
