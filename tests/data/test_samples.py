"""The sample data, which comes with the package."""

from tui_trainer.data.samples import built_in_samples, find_sample


def test_each_sample_has_rows_with_a_place():
    for name, sample in built_in_samples().items():
        rows = sample.content()
        assert len(rows) > 50 and all(where and content for where, content in rows), name
        assert all(isinstance(content, dict) == sample.is_table for _, content in rows), name


def test_answers_of_a_pair_have_the_same_words_in_another_order():
    rows = [row for _, row in find_sample("python-preferences").content()]
    assert 4000 < len(rows) < 5000
    assert {
        "prompt": "What does abc.abstractmethod do?",
        "chosen": "A decorator indicating abstract methods.",
        "rejected": "A decorator abstract indicating methods.",
    } in rows
    for row in rows:
        chosen, rejected = row["chosen"].split(), row["rejected"].split()
        assert chosen != rejected and sorted(chosen) == sorted(rejected)
        assert (chosen[0], chosen[-1]) == (rejected[0], rejected[-1])


def test_each_signature_has_one_sentence_and_none_repeats():
    rows = [row for _, row in find_sample("python-signatures").content()]
    assert 2500 < len(rows) < 10_000
    assert len({row["input"] for row in rows}) == len(rows)
    assert {
        "input": "dedent(text)",
        "output": "Remove any common leading whitespace from every line in `text`.",
    } in rows
    assert all(3 <= len(row["output"].split()) <= 25 and "\n" not in row["output"] for row in rows)
    names = [(row["input"].partition("(")[0], row["output"]) for row in rows]
    assert len(set(names)) == len(names)
