"""Which split a file belongs to, decided by names alone."""

from __future__ import annotations

from tui_trainer.data.sources.splits import is_about_the_data, split_in, split_of_file, tell_apart

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
    """By split, the files; those of no known split under their label."""
    return {part.split or part.label: list(files) for part, files in tell_apart(names, saved).parts.items()}


TABLES = [
        (("rows.csv", "more.csv"), {}),
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
            splits = tell_apart(names)
            assert not parts or splits.trained() == splits.of("train")[0]


DOUBTS = [
    (("train.csv", "extra.csv"), "of extra.csv nobody knows the split"),
    (("train/a.csv", "b.csv"), "of b.csv nobody knows the split"),
    (("en/train.csv", "en/test.csv", "de/train.csv"), "splits lie in several places: de, en"),
    (("train.csv", "train.jsonl", "test.csv"), "several are named train: train (csv), train (jsonl)"),
    (("train_sft-00000-of-00001.csv", "train_gen-00000-of-00001.csv"), "several are named train: train_sft"),
    (("validation.csv", "test.csv"), "none of them is named train"),
    (("rows.csv", "train.txt", "test.txt"), "of rows.csv nobody knows the split"),
    (("a.txt", "b.txt", "test_results.csv"), "of a.txt, b.txt nobody knows the split"),
    (("doc.md", "README.md", "evaluation.jsonl"), "of doc.md nobody knows the split"),
    (("train.txt", "valid.txt", "vocab.txt"), "of vocab.txt nobody knows the split"),
]


def test_splits_that_cannot_be_told_apart_give_the_reason(subtests):
    for names, why in DOUBTS:
        with subtests.test(names=names):
            doubt = tell_apart(names).trained()
            assert isinstance(doubt, str) and why in doubt


def test_validation_is_preferred_over_test_for_evaluation():
    def measured(*names: str) -> str | None:
        part = tell_apart(names).measured()
        return part if isinstance(part, str) else part.split

    assert measured("train.csv", "test.csv", "valid.csv") == "validation"
    assert measured("train.csv", "test.csv") == "test"
    assert measured("train.csv") == "train"
    assert "several are named" in str(measured("train.csv", "dev_a-00000-of-00001.csv", "dev_b-00000-of-00001.csv"))


def test_saved_folders_are_splits_under_any_name():
    names = "first/data-00000-of-00001.arrow", "train/data-00000-of-00001.arrow"
    assert files_by_split(*names, saved=frozenset({"first", "train"})) == {"first": [names[0]], "train": [names[1]]}


def test_texts_beside_split_tables_are_not_data():
    splits = tell_apart(["train.csv", "test.csv", "README.md", "load.py"])
    assert splits.beside == ("README.md", "load.py") and len(splits.parts) == 2
    assert is_about_the_data("README.md") and is_about_the_data("a/LICENSE") and not is_about_the_data("notes.md")


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
    (("a.txt", "evaluation/notes.md"), "evaluation/notes.md is read like the other texts"),
    (("a.txt", "test.txt"), "test.txt is read like the other texts"),
    (("test.txt", "dev.txt"), "test.txt, dev.txt are read like the other texts"),
    (("train.py", "test.py"), ""),
    (("train.txt", "notes.txt"), ""),
]


def test_no_text_of_a_corpus_is_left_out_because_of_its_name(subtests):
    for names, noticed in TEXT_CORPORA:
        with subtests.test(names=names):
            splits = tell_apart(names)
            assert not splits.parts and not splits.beside
            assert splits.remark.startswith(noticed) and bool(splits.remark) == bool(noticed)


def test_split_folders_beside_loose_texts_need_a_decision():
    doubt = tell_apart(["train/1.txt", "test/2.txt", "vocabulary.txt"]).trained()
    assert doubt == "of vocabulary.txt nobody knows the split"
    assert "several places" in str(tell_apart(["en/train.txt", "en/test.txt", "de/train.txt"]).trained())


def test_a_single_text_file_belongs_to_a_split_only_if_its_whole_name_is_one():
    assert [split_of_file(name) for name in ("test.txt", "test_utils.txt", "test_a.csv")] == ["test", None, "test"]
