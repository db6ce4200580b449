"""The split that a file belongs to, decided by names alone."""

from __future__ import annotations

from tui_trainer.data.sources.hub import data_names
from tui_trainer.data.sources.splits import assign_splits, is_readme_or_licence, split_in, split_of_file

FILE_NAMES = [
    ("train.csv", "train"),
    ("my_training_rows.jsonl.gz", "train"),
    ("TrainSet.csv", "train"),
    ("dev2.jsonl", "validation"),
    ("a val b.json", "validation"),
    ("x-valid.parquet", "validation"),
    ("eval.csv", "test"),
    ("imdb-test.arrow", "test"),
    ("squad_eval-train.arrow", "train"),
    ("squad_eval-train-00000-of-00002.arrow", "train"),
    ("contest.csv", None),
    ("trainer.csv", None),
    ("developers.csv", None),
    ("train_test.csv.gz", "test"),
    ("train test rows.csv", None),
]


def test_a_file_name_with_a_split_keyword_names_that_split(subtests):
    for name, split in FILE_NAMES:
        with subtests.test(name=name):
            assert split_in(name) == split


def files_by_split(*names: str, saved: frozenset[str] = frozenset()) -> dict[str, list[str]]:
    """Return the files by split, or by label where the split is unknown."""
    return {part.split or part.label: list(files) for part, files in assign_splits(names, saved).parts.items()}


TABLES = [
    (("train/0.csv", "train/1.csv", "dev/0.csv", "test/0.csv"),
     {"train": ["train/0.csv", "train/1.csv"], "validation": ["dev/0.csv"], "test": ["test/0.csv"]}),
    (("x-train-00000-of-00002.arrow", "x-train-00001-of-00002.arrow", "x-test.arrow"),
     {"train": ["x-train-00000-of-00002.arrow", "x-train-00001-of-00002.arrow"], "test": ["x-test.arrow"]}),
    (("train-00000-of-00001.parquet", "unsupervised-00000-of-00001.parquet"),
     {"train": ["train-00000-of-00001.parquet"], "unsupervised": ["unsupervised-00000-of-00001.parquet"]}),
    (("train_test_data/train.csv", "train_test_data/test.csv"),
     {"train": ["train_test_data/train.csv"], "test": ["train_test_data/test.csv"]}),
    (("books-00000-of-00001.jsonl", "web-00000-of-00001.jsonl"), {}),
]  # fmt: skip


def test_tables_of_one_split_belong_together(subtests):
    for names, parts in TABLES:
        with subtests.test(names=names):
            assert files_by_split(*names) == parts
            splits = assign_splits(names)
            assert not parts or splits.training_part() == splits.with_split("train")[0]


TRAIN = [f"data/train-0000{shard}-of-00003.parquet" for shard in range(3)]
TEST = "data/test-00000-of-00001.parquet"
SHARDS = [
    (TRAIN, {"train": 3}),
    (["a/0.parquet", "b/c/1.parquet"], {}),
    ([TEST, *TRAIN], {"test": 1, "train": 3}),
    (["train.csv", "test.csv"], {"train": 1, "test": 1}),
    (["trainset.csv", "testset.csv"], {"train": 1, "test": 1}),
    (["x/test/0.parquet", "x/train/0.parquet", "x/train/1/1.parquet"], {"test": 1, "train": 2}),
    (
        ["c/train.00000-of-00002.json.gz", "c/train.00001-of-00002.json.gz", "c/validation.00000-of-00001.json"],
        {"train": 2, "validation": 1},
    ),
    (["d/train_sft-00000-of-00001.parquet", "d/train_gen-00000-of-00001.parquet"],
     {"train_sft": 1, "train_gen": 1}),
    (["rows.csv", "rows.parquet"], {}),
    (["contest.csv", "latest.csv"], {}),
    (["training_data/test.jsonl", "training_data/train.jsonl"], {"train": 1, "test": 1}),
    (["d/test-suite/test.csv", "d/test-suite/train.csv"], {"train": 1, "test": 1}),
    (["train/a/train-x.csv", "train/b/train-x.csv", "test/x.csv"], {"train": 2, "test": 1}),
    (["d/en.csv", "d/fr.csv", "d/test_en.csv"], {"": 2, "test": 1}),
]  # fmt: skip


def test_files_on_the_hub_are_grouped_by_split_and_none_is_lost(subtests):
    for names, labels in SHARDS:
        with subtests.test(names=names):
            parts = assign_splits(data_names(names)).parts
            assert {part.label: len(files) for part, files in parts.items()} == labels
            assert not parts or sorted(name for files in parts.values() for name in files) == sorted(names)


DOUBTS = [
    (("train.csv", "extra.csv"), "the split of extra.csv is unknown"),
    (("train/a.csv", "b.csv"), "the split of b.csv is unknown"),
    (("en/train.csv", "en/test.csv", "de/train.csv"), "splits are in several folders: de, en"),
    (("train.csv", "train.jsonl", "test.csv"), "several splits are named train: train (csv), train (jsonl)"),
    (("train_sft-00000-of-00001.csv", "train_gen-00000-of-00001.csv"), "several splits are named train: train_sft"),
    (("validation.csv", "test.csv"), "no split is named train"),
    (("rows.csv", "train.txt", "test.txt"), "the split of rows.csv is unknown"),
    (("a.txt", "b.txt", "test_results.csv"), "the split of a.txt, b.txt is unknown"),
    (("doc.md", "README.md", "evaluation.jsonl"), "the split of doc.md is unknown"),
    (("train.txt", "valid.txt", "vocab.txt"), "the split of vocab.txt is unknown"),
]


def test_splits_that_cannot_be_told_apart_give_the_reason(subtests):
    for names, why in DOUBTS:
        with subtests.test(names=names):
            doubt = assign_splits(names).training_part()
            assert isinstance(doubt, str) and why in doubt
    # Split folders beside loose texts need a decision.
    doubt = assign_splits(["train/1.txt", "test/2.txt", "vocabulary.txt"]).training_part()
    assert doubt == "the split of vocabulary.txt is unknown"
    assert "several folders" in str(assign_splits(["en/train.txt", "en/test.txt", "de/train.txt"]).training_part())


def test_validation_is_preferred_over_test_for_evaluation():
    def measured(*names: str) -> str | None:
        part = assign_splits(names).evaluation_part()
        return part if isinstance(part, str) else part.split

    assert measured("train.csv", "test.csv", "valid.csv") == "validation"
    assert measured("train.csv", "test.csv") == "test"
    assert measured("train.csv") == "train"
    assert "several splits are named" in str(
        measured("train.csv", "dev_a-00000-of-00001.csv", "dev_b-00000-of-00001.csv")
    )


def test_texts_beside_split_tables_are_not_data():
    splits = assign_splits(["train.csv", "test.csv", "README.md", "load.py"])
    assert splits.ignored_files == ("README.md", "load.py") and len(splits.parts) == 2
    assert (
        is_readme_or_licence("README.md") and is_readme_or_licence("a/LICENSE") and not is_readme_or_licence("notes.md")
    )
    # Saved folders are splits under any name.
    names = "first/data-00000-of-00001.arrow", "train/data-00000-of-00001.arrow"
    assert files_by_split(*names, saved=frozenset({"first", "train"})) == {"first": [names[0]], "train": [names[1]]}


SPLIT_TEXTS = [
    ("train.txt", "valid.txt", "test.txt", "README.md"),
    ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens"),
    ("train-00000-of-00001.txt.gz", "dev_1.txt.gz", "test.txt.gz"),
    ("train/pos/1.md", "validation/pos/2.md", "test/pos/3.md"),
]


def test_text_files_are_splits_if_each_is_named_for_one(subtests):
    for names in SPLIT_TEXTS:
        with subtests.test(names=names):
            assert list(files_by_split(*names)) == ["train", "validation", "test"]


TEXT_CORPORA = [
    (("a.txt", "test_utils.txt", "my_train.txt"), ""),
    (("a.txt", "evaluation/notes.md"), "evaluation/notes.md is read as documents, and not as a split"),
    (("a.txt", "test.txt"), "test.txt is read as documents, and not as a split"),
    (("test.txt", "dev.txt"), "test.txt, dev.txt are read as documents, and not as a split"),
    (("train.py", "test.py"), ""),
    (("train.txt", "notes.txt"), ""),
]


def test_no_text_of_a_corpus_is_left_out_because_of_its_name(subtests):
    for names, noticed in TEXT_CORPORA:
        with subtests.test(names=names):
            splits = assign_splits(names)
            assert not splits.parts and not splits.ignored_files
            assert splits.remark.startswith(noticed) and bool(splits.remark) == bool(noticed)
    # A single text file belongs to a split only if its whole name is one.
    assert [split_of_file(name) for name in ("test.txt", "test_utils.txt", "test_a.csv")] == ["test", None, "test"]
