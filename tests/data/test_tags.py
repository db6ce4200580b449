"""Entities in tags of every scheme, and spans converted to tags."""

from __future__ import annotations

import pytest

from tui_trainer.data.columns.tagged_rows import (
    TagSurvey,
    entities,
    marks_entities,
    sort_tags,
    tagged_text,
    word_offsets,
)
from tui_trainer.errors import DataError

TAGGED = [
    ("B-PER I-PER O B-LOC", [(0, 2, "PER"), (3, 4, "LOC")]),
    # Lenient, as conlleval: an I- that nothing begins is the beginning, and so is one of another type.
    ("I-PER I-PER O I-LOC", [(0, 2, "PER"), (3, 4, "LOC")]),
    ("B-PER I-LOC I-LOC", [(0, 1, "PER"), (1, 3, "LOC")]),
    # IOB1: B- parts two entities of one type that touch.
    ("I-PER I-PER B-PER I-PER", [(0, 2, "PER"), (2, 4, "PER")]),
    ("B-PER B-PER", [(0, 1, "PER"), (1, 2, "PER")]),
    ("B-A I-A E-A S-B S-B B-B E-B O", [(0, 3, "A"), (3, 4, "B"), (4, 5, "B"), (5, 7, "B")]),
    ("E-A E-A", [(0, 1, "A"), (1, 2, "A")]),
    ("S-A I-A", [(0, 1, "A"), (1, 2, "A")]),
    ("B-A L-A U-A", [(0, 2, "A"), (2, 3, "A")]),
    ("B-geo-loc I-geo-loc", [(0, 2, "geo-loc")]),
    ("B I O B", [(0, 2, "entity"), (3, 4, "entity")]),
    ("O O", []),
    ("", []),
]


def test_entities_are_those_of_conlleval_and_seqeval(subtests):
    for tags, found in TAGGED:
        with subtests.test(tags=tags):
            assert entities(tags.split()) == found


SCHEMES = [
    (["B-PER I-PER O", "O B-LOC"], "IOB2"),
    (["I-PER I-PER O", "I-LOC B-LOC"], "IOB1"),
    (["B-PER I-PER O", "O I-LOC"], "IOB2"),  # some are loose, but B- stands where IOB1 has I-
    (["S-PER O", "B-LOC E-LOC"], "BIOES"),
    (["U-PER O", "B-LOC L-LOC"], "BIOES"),
    (["NOUN VERB", "PRON VERB"], "plain"),
    (["PER O", "LOC O"], "plain"),
    (["O O"], "plain"),
    (["B I O"], "IOB2"),
    (["S V O"], "plain"),
]


def test_the_scheme_follows_from_the_tags(subtests):
    for sentences, scheme in SCHEMES:
        with subtests.test(sentences=sentences):
            survey = TagSurvey()
            for tags in sentences:
                survey.add(tags.split())
            assert survey.scheme == scheme
            assert survey.counts.total() == sum(len(tags.split()) for tags in sentences)
    # Entities without a beginning are counted.
    survey = TagSurvey()
    survey.add("I-PER I-PER O B-PER I-PER I-LOC".split())
    assert (survey.inside_start_count, survey.needless_begin_count) == (2, 1)


def test_the_order_of_the_tags_does_not_depend_on_the_rows():
    names = ["I-B", "B-B", "O", "S-A", "E-A", "B-A", "I-A"]
    assert sort_tags(names) == ("O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B")
    assert sort_tags(reversed(names)) == sort_tags(names)
    assert sort_tags(["VERB", "NOUN", "."]) == (".", "NOUN", "VERB")
    assert marks_entities(names) and not marks_entities(["B-A", "X"]) and not marks_entities(["O"])


def test_words_of_a_text_are_whole_in_every_script():
    text = "Dr. O'Neil  ate 3.5\u00a0kg — தமிழ்நாடு नमस्ते 👩‍💻!"
    words = [text[start:end] for start, end in word_offsets(text)]
    assert words[:9] == ["Dr", ".", "O", "'", "Neil", "ate", "3", ".", "5"]
    assert words[9:13] == ["kg", "—", "தமிழ்நாடு", "नमस्ते"]
    assert "".join(words) == "".join(text.split())


def test_spans_become_tags_of_words():
    text = "Angela Merkel visited New York, Paris."
    spans = [
        {"start": 0, "end": 13, "text": "Angela Merkel", "labels": ["PER"]},
        {"start": 22, "end": 30, "label": "LOC"},
        {"start_offset": 32, "end_offset": 37, "type": "LOC"},
    ]
    tagged = tagged_text(text, spans, "a.jsonl, line 1")
    assert tagged.words == ["Angela", "Merkel", "visited", "New", "York", ",", "Paris", "."]
    assert tagged.tags == ["B-PER", "I-PER", "O", "B-LOC", "I-LOC", "O", "B-LOC", "O"]
    assert tagged.extended_span_count == 0
    assert tagged_text(text, [], "a").tags == ["O"] * 8
    assert tagged_text(text, [[0, 13, "PER"]], "a").tags[:3] == ["B-PER", "I-PER", "O"]


def test_touching_spans_stay_separate_and_cut_words_are_counted():
    tagged = tagged_text("footballs in Paris", [[0, 4, "X"], [13, 18, "Y"]], "a")
    assert (tagged.tags, tagged.extended_span_count) == (["B-X", "O", "B-Y"], 1)
    tagged = tagged_text("New York(NY)", [[9, 11, "B"], [0, 8, "A"]], "a")
    assert tagged.tags == ["B-A", "I-A", "O", "B-B", "O"]
    # White space at the ends of a span cuts nothing.
    assert tagged_text("a Paris b", [[1, 8, "A"]], "a").extended_span_count == 0


BAD_SPANS = [
    ([[0, 6, "A"], [4, 9, "B"]], r"the spans 0-6 \(A\) and 4-9 \(B\) overlap"),
    ([[0, 3, "A"], [3, 6, "B"]], r"3-6 \(B\) shares a word with the previous span"),
    ([[6, 7, "A"]], "contains no word"),
    ([[0, 99, "A"]], "is not within the 13 characters of the text"),
    ([[5, 5, "A"]], "is not within"),
    ([[-1, 5, "A"]], "is not within"),
    ([[0, 3]], "span 1 cannot be read"),
    ([[0, 3, ""]], "span 1 has no label"),
    ([[True, 3, "A"]], "span 1 cannot be read"),
    ([{"start": 0, "label": "A"}], "span 1 cannot be read"),
    ([{"start": 0, "end": 6, "labels": ["A", "B"]}], "span 1 cannot be read"),
    ("PER", "the spans are a string, not a list"),
    (None, "the spans are null"),
]


def test_bad_spans_are_reported_with_their_place(subtests):
    for spans, words in BAD_SPANS:
        with subtests.test(spans=spans), pytest.raises(DataError, match=rf"^a.jsonl, line 7: .*{words}"):
            tagged_text("Angela Merkel", spans, "a.jsonl, line 7")
    # A text without words is refused.
    with pytest.raises(DataError, match="the text has no words"):
        tagged_text("  ", [], "a")
