"""What somebody else does with a trained model: a program of its own, with transformers, peft and ONNX Runtime and
without this package. Each case of the JSON on standard input has the code of the model's README, or the folder of an
ONNX export, and rows; the answers go to standard output."""

import json
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def labelled(model: Any, tokenizer: Any, row: Row) -> Any:
    chances = model(**tokenizer(*row["texts"], truncation=True, return_tensors="pt")).logits[0].softmax(-1)
    return [model.config.id2label[int(chances.argmax())], float(chances.max())]


def tagged(model: Any, tokenizer: Any, row: Row) -> Any:
    inputs = tokenizer(row["words"], is_split_into_words=True, truncation=True, return_tensors="pt")
    numbers, words = model(**inputs).logits[0].argmax(-1).tolist(), inputs.word_ids(0)
    firsts = [at for at, word in enumerate(words) if word is not None and word not in words[:at]]
    return [model.config.id2label[numbers[at]] for at in firsts]


def marked(model: Any, tokenizer: Any, row: Row) -> Any:
    found = [(float("-inf"), "")]
    most_tokens = model.config.max_answer_length
    inputs = tokenizer(
        *row["texts"], truncation="only_second", stride=model.config.doc_stride, padding=True, return_tensors="pt",
        return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    offsets, _ = inputs.pop("offset_mapping"), inputs.pop("overflow_to_sample_mapping")
    outputs = model(**inputs)
    for window in range(len(offsets)):
        starts, ends = outputs.start_logits[window].tolist(), outputs.end_logits[window].tolist()
        places = [at for at, part in enumerate(inputs.sequence_ids(window)) if part == 1]
        for first in places:
            for last in (at for at in places if first <= at < first + most_tokens):
                text = row["texts"][1][offsets[window][first][0] : offsets[window][last][1]]
                found.append((starts[first] + ends[last], text.strip()))
    return max(found, key=lambda one: one[0])[1]


def answered(model: Any, tokenizer: Any, row: Row) -> Any:
    inputs = tokenizer(row["text"], truncation=True, return_tensors="pt")
    return tokenizer.decode(model.generate(**inputs)[0], skip_special_tokens=True)


def continued(model: Any, tokenizer: Any, row: Row) -> Any:
    if "messages" in row:
        inputs = tokenizer.apply_chat_template(
            row["messages"], add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
    else:
        inputs = tokenizer(row["text"], return_tensors="pt", return_token_type_ids=False)
    new = model.generate(**inputs, max_new_tokens=row["most"])[0, inputs["input_ids"].shape[1] :]
    return tokenizer.decode(new, skip_special_tokens=True)


def of_graphs(folder: str, kind: str, rows: list[Row]) -> list[Any]:
    sys.path.insert(0, folder)
    for name in ("run_onnx", "thresholds", "word_windows"):
        sys.modules.pop(name, None)
    import run_onnx  # type: ignore[import-not-found]

    graphs, tokenizer = run_onnx.Graphs(Path(folder)), run_onnx.read_tokenizer(Path(folder))
    sys.path.remove(folder)
    if kind == "tagged":
        return [[tag for _, tag in run_onnx.tag_words(graphs, tokenizer, row["words"])] for row in rows]
    most = graphs.generation.get("max_new_tokens")
    found = [run_onnx.answer(graphs, tokenizer, "\t".join(row.get("texts") or [row["text"]]), most) for row in rows]
    return [text.partition(",")[0] for text in found] if kind == "labelled" else found


def of_readme(code: str, kind: str, rows: list[Row]) -> list[Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    model, tokenizer = names["model"].eval(), names["tokenizer"]
    return [globals()[kind](model, tokenizer, row) for row in rows]


if __name__ == "__main__":
    cases = json.load(sys.stdin)
    found = [(of_graphs if one["graphs"] else of_readme)(one["source"], one["kind"], one["rows"]) for one in cases]
    assert not [name for name in sys.modules if name.partition(".")[0] == "tui_trainer"]
    assert "torch" not in sys.modules or not all(one["graphs"] for one in cases)
    print(json.dumps(found))
