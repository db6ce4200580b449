"""Data files in the shapes that people have, all made up, each with its right outcome: what is learnt of every row, or
why the file is refused. `test_wild_data.py` tries them all.

A new shape is a new line here, and not a test of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Model = Literal["decoder", "encoder", "text to text"]


@dataclass(frozen=True, kw_only=True)
class Wild:
    """One file, and what becomes of it under a model where nobody names a task.

    `content`: rows, or the text or the bytes of the file. Either `refused` stands in the refusal, with `where` it
    stands; or `task` is what is learnt, `learnt` of each row as `test_wild_data.learnt_of` writes it, with all of
    `reads` in what the model reads, and all of `notes` in what is said.
    """

    name: str
    content: Sequence[Mapping[str, Any]] | str | bytes
    file: str = "rows.jsonl"
    model: Model = "decoder"
    settings: Mapping[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    where: str = ""
    task: str = ""
    learnt: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def write(self, folder: Path) -> Path:
        path, content = folder / self.file, self.content
        if path.suffix == ".parquet" and not isinstance(content, str | bytes):
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist([dict(row) for row in content]), path)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        elif path.suffix == ".json":
            path.write_text(json.dumps(list(content)), encoding="utf-8")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
        return path


TURNS = [{"role": "user", "content": "Sheep?"}, {"role": "assistant", "content": "None."}]

TEXTS = (
    Wild(name="plain text", file="sheep.txt", content="Many sheep.\n", task="causal_lm", learnt=("Many sheep.\n",)),
    Wild(name="one text column", content=[{"text": "A sheep."}] * 2, task="causal_lm", learnt=("A sheep.",) * 2),
)
CONVERSATIONS = (
    Wild(name="messages", content=[{"messages": TURNS}] * 2, task="chat", learnt=("None.",) * 2, reads=("Sheep?",)),
)
PREFERENCES: tuple[Wild, ...] = ()
LABELS = (
    Wild(
        name="text and label",
        content=[{"text": "a sheep", "label": "animal"}, {"text": "a rose", "label": "plant"}],
        model="encoder",
        task="sequence_classification",
        learnt=("a sheep -> animal", "a rose -> plant"),
    ),
)
PAIRS = (
    Wild(
        name="document and summary",
        content=[{"document": "Many sheep.", "summary": "Sheep."}] * 2,
        model="text to text",
        task="seq2seq",
        learnt=("Many sheep. -> Sheep.",) * 2,
    ),
)
TAGS = (
    Wild(
        name="words and tags",
        content=[{"tokens": ["Ann", "sleeps"], "ner_tags": ["B-PER", "O"]}] * 2,
        model="encoder",
        task="token_classification",
        learnt=("Ann/B-PER sleeps/O",) * 2,
    ),
)
TABLES: tuple[Wild, ...] = ()


def named_tags(names: Sequence[str], tags: Sequence[Sequence[int]]) -> bytes:
    """Parquet as `datasets` writes it, with the names of the tags beside their numbers."""
    import pyarrow
    import pyarrow.parquet

    feature = {"feature": {"names": list(names), "_type": "ClassLabel"}, "_type": "Sequence"}
    about = {"huggingface": json.dumps({"info": {"features": {"ner_tags": feature}}})}
    table = pyarrow.table({"tokens": [["Ann", "sleeps"]] * len(tags), "ner_tags": [list(one) for one in tags]})
    out = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(table.replace_schema_metadata(about), out)
    return bytes(out.getvalue())


ANN, BO = "Ann/B-PER sleeps/O", "Bo/B-PER eats/O hay/O"
KAGGLE = "Sentence #,Word,POS,Tag\nSentence: 1,Ann,NNP,B-PER\n,sleeps,VBZ,O\nSentence: 2,Bo,NNP,B-PER\n,eats,VBZ,O\n"
KAGGLE += ",hay,NN,O\n"
UNIVERSAL = """# newdoc
# sent_id = 1
# text = Ann doesn't
1\tAnn\tAnn\tPROPN\tNNP\tNumber=Sing\t2\tnsubj\t_\t_
2-3\tdoesn't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdoes\tdo\tAUX\tVBZ\tTense=Pres\t0\troot\t_\t_
3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_
3.1\tsleep\tsleep\tVERB\tVB\t_\t_\t_\t2:x\t_

# text = Sheep
1\tSheep\tsheep\tNOUN\tNNS\t_\t0\troot\t_\t_
"""
UNIVERSAL_LEARNT = ("Ann/PROPN does/AUX n't/PART", "Sheep/NOUN")


def tagged(name: str, content: Any, file: str = "rows.jsonl", learnt: Sequence[str] = (ANN, BO), **more: Any) -> Wild:
    task = "token_classification"
    return Wild(name=name, content=content, file=file, model="encoder", task=task, learnt=tuple(learnt), **more)


def not_tagged(name: str, content: Any, file: str, *refused: str, where: str = "", **more: Any) -> Wild:
    more.setdefault("settings", {"task.type": "token_classification"})
    return Wild(name=name, content=content, file=file, model="encoder", refused=refused, where=where, **more)


WORD_ROWS = [
    {"sentence_id": 1, "words": "Ann", "labels": "B-PER"},
    {"sentence_id": 1, "words": "sleeps", "labels": "O"},
    {"sentence_id": 2, "words": "Bo", "labels": "B-PER"},
    {"sentence_id": 2, "words": "eats", "labels": "O"},
    {"sentence_id": 2, "words": "hay", "labels": "O"},
]
SPAN_TEXT = {"text": "Ann sleeps"}
ANN_SPAN = {"start": 0, "end": 3, "label": "PER"}

WORD_TABLES = (
    tagged("Kaggle's words, with the sentence in its first row", KAGGLE, "ner.csv", notes=("POS", "are one sentence")),
    tagged(
        "Kaggle's words, with the sentence in each row",
        KAGGLE.replace("\n,", "\nSentence: 1,", 1).replace("\n,", "\nSentence: 2,"),
        "ner.csv",
    ),
    tagged(
        "words of simpletransformers",
        "sentence_id,words,labels\n0,Ann,B-PER\n0,sleeps,O\n1,Bo,B-PER\n1,eats,O\n1,hay,O\n",
        "train.csv",
    ),
    tagged("words with a sentence in JSON Lines", WORD_ROWS),
    tagged("words with a sentence in Parquet", WORD_ROWS, "rows.parquet"),
    tagged(
        "words with a document and a sentence",
        "doc_id\tsent_id\ttoken\ttag\na\t1\tAnn\tB-PER\na\t1\tsleeps\tO\n"
        "b\t1\tBo\tB-PER\nb\t1\teats\tO\nb\t1\thay\tO\n",
        "rows.tsv",
    ),
    tagged(
        "words with their parts of speech named",
        KAGGLE,
        "ner.csv",
        ("Ann/NNP sleeps/VBZ", "Bo/NNP eats/VBZ hay/NN"),
        settings={"data.label_column": "POS", "task.type": "token_classification"},
    ),
    tagged(
        "whole sentences with a number of their own",
        [
            {"sentence_id": 1, "words": "Ann sleeps", "labels": "B-PER O"},
            {"sentence_id": 2, "words": "Bo eats hay", "labels": "B-PER O O"},
        ],
    ),
    tagged(
        "a header in the middle of words",
        KAGGLE + "Sentence #,Word,POS,Tag\nSentence: 3,Cy,NNP,B-PER\n,naps,VBZ,O\n",
        "ner.csv",
        (ANN, BO, "Cy/B-PER naps/O"),
        notes=("line 7 is the header again",),
    ),
    not_tagged(
        "a sentence that begins again",
        "sentence_id,words,labels\n1,Ann,B-PER\n1,sleeps,O\n2,Bo,B-PER\n1,eats,O\n",
        "rows.csv",
        "the sentence '1' was there before",
        "sort the rows",
        where="rows.csv, line 5",
    ),
    not_tagged(
        "words without a sentence",
        "word,tag\nAnn,B-PER\nsleeps,O\n",
        "rows.csv",
        "each row has one word",
        "sentence_id",
        where="rows.csv",
    ),
    not_tagged(
        "sentences under a number of others",
        "sentence_id,words,labels\n1,Ann sleeps,B-PER O\n1,Bo eats,B-PER O\n",
        "rows.csv",
        "whose number others have",
        where="rows.csv, line 2",
    ),
    not_tagged(
        "a first word without a sentence",
        "Sentence #,Word,Tag\n,Ann,B-PER\n,sleeps,O\n",
        "rows.csv",
        "the first word has no 'Sentence #'",
        where="rows.csv, line 2",
    ),
    not_tagged(
        "a word without a tag of its own in a sentence",
        "sentence_id,words,labels\n1,Ann,B-PER\n1,sleeps\n2,Bo,O\n",
        "rows.csv",
        "the row has 2 fields, the header 3",
        where="rows.csv, line 3",
    ),
)
CONLL_FILES = (
    tagged("CoNLL-U as .conll", UNIVERSAL, "rows.conll", UNIVERSAL_LEARNT, notes=("CoNLL-U", "UPOS")),
    tagged("CoNLL-U as .conllu", UNIVERSAL, "rows.conllu", UNIVERSAL_LEARNT),
    tagged(
        "CoNLL-U with XPOS named",
        UNIVERSAL,
        "rows.conllu",
        ("Ann/NNP does/VBZ n't/RB", "Sheep/NNS"),
        settings={"data.label_column": "xpos"},
    ),
    tagged(
        "CoNLL-2003",
        "-DOCSTART- -X- -X- O\n\nAnn NNP B-NP B-PER\nsleeps VBZ B-VP O\n\nBo NNP B-NP B-PER\n"
        "eats VBZ B-VP O\nhay NN B-NP O\n",
        "train.conll",
    ),
    tagged("CoNLL-2002", "Ann Np B-PER\nsleeps V O\n\nBo Np B-PER\neats V O\nhay N O\n", "train.conll"),
    tagged(
        "IOB1 with lines of blanks",
        "Ann\tI-PER\nsleeps\tO\n \t\nBo\tI-PER\neats\tO\nhay\tO\n",
        "a.iob",
        ("Ann/I-PER sleeps/O", "Bo/I-PER eats/O hay/O"),
        notes=("IOB1",),
    ),
    tagged(
        "tags before words",
        "B-PER\tAnn\nO\tsleeps\n\nB-PER\tBo\nO\teats\nO\thay\n",
        "movies.bio",
        notes=("the tag is in the first column",),
    ),
    tagged(
        "numbered words in three columns",
        "1 Ann B-PER\n2 sleeps O\n\n1 Bo B-PER\n2 eats O\n3 hay O\n",
        "a.conll",
        notes=("numbers the words",),
    ),
    tagged(
        "names of columns in CoNLL",
        "token\ttag\nAnn\tB-PER\nsleeps\tO\n\nBo\tB-PER\neats\tO\nhay\tO\n",
        "a.conll",
        notes=("names the columns",),
    ),
    not_tagged(
        "CoNLL-2012", "#begin document (a); part 000\na 0 0 Ann NNP * - - - - (PERSON) -\n", "a.conll", "CoNLL-2012"
    ),
    not_tagged(
        "CoNLL-2012 without its first line",
        "a 0 0 Ann NNP (S* - - - - (PERSON) -\na 0 1 naps VBZ *) - - - - * -\n",
        "a.conll",
        "column 3 of 12 numbers the words",
    ),
    not_tagged(
        "GermEval's two columns of tags",
        "#\tn-tv.de [2005]\n1\tAnn\tB-PER\tO\n2\tsleeps\tO\tO\n",
        "a.conll",
        "column 1 of 4 numbers the words",
    ),
    not_tagged("tags in brackets", "Ann (PERSON*)\nsleeps *\n", "a.conll", "brackets"),
    not_tagged(
        "CoNLL-U without tags of some words",
        UNIVERSAL.replace("PART", "_"),
        "a.conllu",
        "no UPOS",
        where="a.conllu, line 7",
    ),
)
TAGGED_ROWS = (
    tagged(
        "doccano with a text that has no entity",
        [{**SPAN_TEXT, "label": [[0, 3, "PER"]]}, {"text": "Bo eats", "label": []}],
        learnt=(ANN, "Bo/O eats/O"),
    ),
    tagged("labels as spans", [{**SPAN_TEXT, "labels": [[0, 3, "PER"]]}] * 2, learnt=(ANN, ANN)),
    tagged("entities as objects", [{**SPAN_TEXT, "entities": [{**ANN_SPAN, "id": 7}]}] * 2, learnt=(ANN, ANN)),
    tagged(
        "Prodigy",
        [
            {
                **SPAN_TEXT,
                "tokens": [{"text": "Ann", "start": 0, "end": 3, "id": 0}],
                "spans": [ANN_SPAN],
                "answer": "accept",
            }
        ]
        * 2,
        learnt=(ANN, ANN),
    ),
    tagged(
        "Label Studio's JSON-MIN",
        [{"id": 1, **SPAN_TEXT, "annotator": 1, "label": [{"start": 0, "end": 3, "text": "Ann", "labels": ["PER"]}]}]
        * 2,
        "export.json",
        (ANN, ANN),
    ),
    tagged("spaCy's pairs", json.dumps([["Ann sleeps", {"entities": [[0, 3, "PER"]]}]] * 2), "train.json", (ANN, ANN)),
    tagged("spaCy's pairs, one a line", '["Ann sleeps", {"entities": [[0, 3, "PER"]]}]\n' * 2, learnt=(ANN, ANN)),
    tagged(
        "spans printed in a CSV",
        "text,entities\nAnn sleeps,\"[(0, 3, 'PER')]\"\nAnn sleeps,[]\n",
        "rows.csv",
        (ANN, "Ann/O sleeps/O"),
    ),
    tagged("tags in a string", [{"text": "Ann sleeps", "tags": "B-PER O"}] * 2, learnt=(ANN, ANN)),
    tagged(
        "words with a mark in a string",
        [{"words": "Ann sleeps.", "tags": "B-PER O"}] * 2,
        learnt=("Ann/B-PER sleeps./O",) * 2,
    ),
    tagged(
        "lists printed in a CSV",
        "tokens,ner_tags\n" + "\"['Ann', 'sleeps']\",\"['B-PER', 'O']\"\n" * 2,
        "rows.csv",
        (ANN, ANN),
    ),
    tagged(
        "numbers of tags with names in Parquet",
        named_tags(("O", "B-PER"), [[1, 0], [1, 0]]),
        "rows.parquet",
        (ANN, ANN),
    ),
    tagged(
        "three columns of tags",
        [
            {
                "tokens": ["Ann", "sleeps"],
                "pos_tags": ["NNP", "VBZ"],
                "chunk_tags": ["B-NP", "O"],
                "ner_tags": ["B-PER", "O"],
            }
        ]
        * 2,
        learnt=(ANN, ANN),
        notes=("also there: pos_tags",),
    ),
    tagged(
        "tags beside their numbers",
        [{"tokens": ["Ann", "sleeps"], "ner_tags_ids": [1, 0], "ner_tags": ["B-PER", "O"]}] * 2,
        learnt=(ANN, ANN),
    ),
    not_tagged(
        "a row that Prodigy's annotator rejected",
        [
            {**SPAN_TEXT, "spans": [ANN_SPAN], "answer": "reject"},
            {**SPAN_TEXT, "spans": [ANN_SPAN], "answer": "accept"},
        ],
        "rows.jsonl",
        "did not accept",
        where="rows.jsonl, line 1",
    ),
    not_tagged(
        "Label Studio's full JSON",
        [{"id": 1, "data": SPAN_TEXT, "annotations": [{"result": []}]}],
        "export.json",
        "Label Studio",
        "JSON-MIN",
    ),
    not_tagged(
        "numbers of tags without names",
        [{"tokens": ["Ann", "naps"], "ner_tags": [1, 0]}],
        "rows.jsonl",
        "numbers, which have no names",
    ),
    not_tagged(
        "numbers of tags without names in a CSV",
        "tokens,ner_tags\nAnn naps,1 0\n",
        "rows.csv",
        "numbers, which have no names",
    ),
    not_tagged(
        "arrays printed by numpy",
        "tokens,ner_tags\n" + "['Ann' 'naps'],['B-PER' 'O']\n" * 2,
        "rows.csv",
        "no list that can be read",
        where="rows.csv, line 2",
    ),
    not_tagged(
        "spans that overlap", [{**SPAN_TEXT, "entities": [[0, 3, "PER"], [0, 10, "S"]]}], "rows.jsonl", "overlap"
    ),
    not_tagged(
        "more words than tags", [{"tokens": ["Ann", "naps"], "ner_tags": ["O"]}], "rows.jsonl", "2 words and 1 tag"
    ),
    not_tagged(
        "a word that is empty", [{"tokens": ["Ann", ""], "ner_tags": ["O", "O"]}], "rows.jsonl", "word 2 is empty"
    ),
)


def labelled(name: str, content: Any, file: str = "rows.csv", **more: Any) -> Wild:
    learnt = ("good hay -> pos", "bad hay -> neg")
    values: dict[str, Any] = {"model": "encoder", "task": "sequence_classification", "learnt": learnt}
    return Wild(name=name, content=content, file=file, **values | more)


def not_read(name: str, content: Any, file: str, *refused: str, where: str = "", **more: Any) -> Wild:
    return Wild(name=name, content=content, file=file, refused=refused, where=where, **more)


FLAT = "text,label\ngood hay,pos\nbad hay,neg\n"
SEPARATED_FILES = (
    labelled(
        "a header in the middle",
        FLAT + FLAT,
        learnt=("good hay -> pos", "bad hay -> neg") * 2,
        notes=("line 4 is the header again",),
    ),
    labelled(
        "a header in the middle, in capitals",
        FLAT + FLAT.replace("text,label", "Text,Label"),
        learnt=("good hay -> pos", "bad hay -> neg") * 2,
    ),
    labelled(
        "a header in the middle of a TSV",
        (FLAT + FLAT).replace(",", "\t"),
        "rows.tsv",
        learnt=("good hay -> pos", "bad hay -> neg") * 2,
    ),
    Wild(
        name="a header in the middle of texts",
        content="text\nSheep.\ntext\nHay.\n",
        file="rows.csv",
        task="causal_lm",
        learnt=("Sheep.", "Hay."),
        notes=("line 3 is the header again",),
    ),
    not_read(
        "a header in the middle, in another order",
        FLAT + "label,text\nneg,dry hay\n",
        "rows.csv",
        "its columns in another order",
        where="rows.csv, line 4",
    ),
    labelled(
        "a lone quote in a TSV",
        'text\tlabel\n"good hay\tpos\nbad hay\tneg\n',
        "rows.tsv",
        learnt=('"good hay -> pos', "bad hay -> neg"),
        notes=("line 2", "without quoting"),
    ),
    labelled(
        "two lone quotes in a TSV",
        'text\tlabel\n"good hay\tpos\nbad hay\tneg\n"dry" hay\tneg\n',
        "rows.tsv",
        learnt=('"good hay -> pos', "bad hay -> neg", '"dry" hay -> neg'),
    ),
    labelled(
        "a lone quote in two rows of a TSV",
        'label\ttext\npos\t"good hay\nneg\tbad hay\nneg\tdry"\n',
        "rows.tsv",
        learnt=('"good hay -> pos', "bad hay -> neg", 'dry" -> neg'),
    ),
    labelled(
        "lines within quotes in a TSV",
        'label\ttext\npos\t"good\nhay"\nneg\tbad hay\n',
        "rows.tsv",
        learnt=("good\nhay -> pos", "bad hay -> neg"),
    ),
    labelled(
        "columns without a name at the end",
        "v1,v2,,,\npos,good hay,,,\nneg,bad hay,,,\n",
        "spam.csv",
        settings={"data.text_column": "v2", "data.label_column": "v1", "task.type": "sequence_classification"},
        notes=("3 columns without a name",),
    ),
    not_read(
        "a text that goes on in a column without a name",
        "v1,v2,,\npos,good,hay,\n",
        "spam.csv",
        "goes on in a column that has no name",
        where="spam.csv, line 2",
        settings={"data.text_column": "v2", "task.type": "causal_lm"},
    ),
    labelled("a separator at the end of each row", "text,label\ngood hay,pos,\nbad hay,neg,\n"),
    labelled("the index of pandas", ",text,label\n0,good hay,pos\n1,bad hay,neg\n"),
    labelled("a separator in Excel's first line", "sep=;\ntext;label\ngood hay;pos\nbad hay;neg\n"),
    labelled("columns separated by bars", FLAT.replace(",", "|"), notes=("separated by '|'",)),
    labelled("a .tsv with commas", FLAT, "rows.tsv"),
    labelled("blanks behind commas", 'text, label\n"good hay", pos\n"bad hay", neg\n'),
    labelled("a mark of UTF-8 and lines of Windows", b"\xef\xbb\xbf" + FLAT.replace("\n", "\r\n").encode()),
    labelled(
        "quotes escaped with a backslash",
        'text,label\n"a \\"good\\" hay",pos\n"bad, hay",neg\n',
        learnt=('a "good" hay -> pos', "bad, hay -> neg"),
        notes=("backslash",),
    ),
    labelled("blank lines", FLAT.replace("\n", "\n\n")),
    not_read(
        "a CSV without a header",
        '5,"great film"\n1,"dull film"\n',
        "rows.csv",
        "the first line is no header: '5'",
        "text,label",
        where="rows.csv, line 1",
    ),
    not_read(
        "a CSV without a header, with labels",
        "pos,great film\nneg,dull film\npos,fine film\n",
        "rows.csv",
        "the first line is no header: 'pos'",
    ),
    not_read("a comment above the header", "# made in May\ntext,label\na,b\n", "rows.csv", "a comment stands"),
    not_read(
        "too few fields",
        "text,label\ngood hay\n",
        "rows.csv",
        "the row has 1 field, the header 2",
        where="rows.csv, line 2",
        settings={"task.type": "causal_lm"},
    ),
    not_read(
        "a lone quote in a CSV",
        'text,label\n"good hay,pos\nbad hay,neg\n',
        "rows.csv",
        "is not closed",
        "twice",
        where="rows.csv, line 2",
        settings={"task.type": "causal_lm"},
    ),
    not_read("names in single quotes", "'text','label'\n'good, hay','pos'\n", "rows.csv", "single quotes"),
    not_read("UTF-16", "text\nsheep\n".encode("utf-16"), "rows.csv", "UTF-16", "iconv"),
    not_read("Latin-1", "text\ncaf\xe9\n".encode("latin-1"), "rows.csv", "Latin-1", "iconv", where="rows.csv, line 2"),
    not_read("Excel under the name .csv", b"PK\x03\x04 and more", "rows.csv", "an Excel file", "save it as CSV"),
    not_read("a web page under the name .csv", "<!DOCTYPE html>\n<html>\n", "rows.csv", "a web page"),
    not_read(
        "a pointer of Git LFS",
        "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n",
        "rows.csv",
        "Git LFS",
        "git lfs pull",
    ),
    not_read(
        "a pointer of Git LFS for a text",
        "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n",
        "book.txt",
        "Git LFS",
    ),
    not_read("JSON under the name .csv", '[{"text": "a"}]', "rows.csv", "this is JSON"),
)
ROWS = [{"text": "good hay", "label": "pos"}, {"text": "bad hay", "label": "neg"}]
BY_NUMBER = {"0": "good hay", "1": "bad hay"}
JSON_FILES = (
    labelled("a list under the name .jsonl", json.dumps(ROWS), "rows.jsonl"),
    labelled("an indented list under the name .jsonl", json.dumps(ROWS, indent=1), "rows.jsonl"),
    labelled(
        "indented objects under the name .jsonl", "\n".join(json.dumps(row, indent=1) for row in ROWS), "rows.jsonl"
    ),
    labelled("a list with an object a line", "[" + ",\n".join(map(json.dumps, ROWS)) + "]", "rows.jsonl"),
    labelled("commas at the ends of lines", ",\n".join(map(json.dumps, ROWS)), "rows.ndjson"),
    labelled("objects one behind the other", "".join(map(json.dumps, ROWS)), "rows.json"),
    labelled("pandas' columns", json.dumps({"text": BY_NUMBER, "label": {"0": "pos", "1": "neg"}}), "rows.json"),
    labelled("pandas' index", json.dumps({str(place): row for place, row in enumerate(ROWS)}), "rows.json"),
    labelled("columns as lists", json.dumps({"text": ["good hay", "bad hay"], "label": ["pos", "neg"]}), "rows.json"),
    labelled(
        "pandas' split",
        json.dumps({"columns": ["text", "label"], "index": [0, 1], "data": [["good hay", "pos"], ["bad hay", "neg"]]}),
        "rows.json",
    ),
    labelled("a list in an object", json.dumps({"version": "1", "data": ROWS}), "rows.json"),
    Wild(
        name="one indented conversation a row",
        content="\n".join(json.dumps({"messages": TURNS}, indent=1) for _ in "ab"),
        file="rows.json",
        task="chat",
        learnt=("None.",) * 2,
    ),
    not_read(
        "columns of different lengths",
        json.dumps({"text": ["a", "b"], "label": ["x"]}),
        "rows.json",
        "different lengths",
    ),
    not_read("two lists of objects", json.dumps({"train": ROWS, "test": ROWS}), "rows.json", "a second list"),
    not_read(
        "a name that is in an object twice",
        '{"text": "a", "text": "b"}\n' * 2,
        "rows.jsonl",
        "'text'",
        "twice",
        where="rows.jsonl, line 1",
        settings={"task.type": "causal_lm"},
    ),
    not_read(
        "a name that is in an object of a list twice", '[{"text": "a", "text": "b"}]', "rows.json", "'text'", "twice"
    ),
    not_read("comments in JSON", '[{"text": "a"}, // first\n{"text": "b"}]', "rows.json", "broken JSON"),
    not_read(
        "NaN for a text",
        '{"text": NaN}\n',
        "rows.jsonl",
        "a number, not a string",
        where="rows.jsonl, line 1",
        settings={"task.type": "causal_lm"},
    ),
)

CASES = (
    *TEXTS, *CONVERSATIONS, *PREFERENCES, *LABELS, *PAIRS, *TAGS, *TABLES,
    *WORD_TABLES, *CONLL_FILES, *TAGGED_ROWS, *SEPARATED_FILES, *JSON_FILES,
)  # fmt: skip
