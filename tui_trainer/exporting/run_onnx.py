"""Run an exported ONNX model; needs only numpy, onnxruntime and tokenizers.

Each export contains a copy of this file: `python run_onnx.py "a text" "another text"`. Separate the two texts of a
pair, or a question and its context, with a tab.
"""

import argparse
import json
import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime

if TYPE_CHECKING or __package__:
    from tui_trainer.tasks.parts.thresholds import label_words, thresholds_of
    from tui_trainer.tasks.parts.word_windows import windows_of
else:  # in the folder of an export
    from thresholds import label_words, thresholds_of
    from word_windows import windows_of

Arrays = dict[str, Any]
_CACHE = "past_key_values"
_SPAN_LOGITS = ("start_logits", "end_logits")


class Graphs:
    """The ONNX graphs of an export.

    An encoder-decoder model has the graphs `encoder`, `decoder` (first pass) and `decoder_with_past` (one more token).
    Other models have one graph, `model`. That of a decoder reads any number of tokens after its key-value cache."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        path = folder / "generation_config.json"
        self.generation: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else self.config
        self.reading: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text())
        self.kind = str((self.config.get("architectures") or [""])[0])
        self._sessions = {file.stem: onnxruntime.InferenceSession(str(file)) for file in folder.glob("*.onnx")}
        input_names = {name: {entry.name for entry in session.get_inputs()} for name, session in self._sessions.items()}
        self.has_encoder = "encoder" in input_names
        output_names = {entry.name for session in self._sessions.values() for entry in session.get_outputs()}
        self.has_span_logits = set(_SPAN_LOGITS) <= output_names
        self.has_cache = any(_cache_name(name) for names in input_names.values() for name in names)

    def run(self, graph: str, values: Mapping[str, Any], cache: Arrays | None = None) -> tuple[Any, Arrays]:
        """Run a graph. Return (logits or the encoder's hidden states, updated key-value cache).

        `values` may contain more inputs than the graph has. Without `cache` the cache is empty.
        """
        session = self._sessions[graph]
        row_count = len(next(iter(values.values())))
        feeds = {}
        for entry in session.get_inputs():
            if cache_name := _cache_name(entry.name):
                feeds[entry.name] = cache[cache_name] if cache else _empty(entry, row_count)
            else:
                feeds[entry.name] = values[entry.name]
        output_names = [entry.name for entry in session.get_outputs()]
        outputs = dict(zip(output_names, session.run(output_names, feeds), strict=True))
        return outputs[output_names[0]], {key: output for name, output in outputs.items() if (key := _cache_name(name))}

    def logits(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        """Return logits: [B, T, V] of a decoder, [B, C] of a text classifier, [B, T, C] of a token classifier.

        The ids are int64 [B, T]. A decoder reads them in two halves, the second half with the key-value cache.
        """
        if not self.has_cache:
            token_types = np.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            values = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_types}
            return self.run("model", values)[0]
        half_length = input_ids.shape[1] // 2
        first_logits, cache = self.decode_with_cache(input_ids[:, :half_length], attention_mask[:, :half_length], None)
        second_logits, _ = self.decode_with_cache(input_ids[:, half_length:], attention_mask, cache)
        return np.concatenate([first_logits, second_logits], axis=1)

    def span_logits(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        """Return two arrays [B, T]: logits that a token begins, and ends, the answer. Inputs are int64 [B, T]."""
        token_types = np.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        values = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_types}
        session = self._sessions["model"]
        return session.run(list(_SPAN_LOGITS), {entry.name: values[entry.name] for entry in session.get_inputs()})

    def decode_with_cache(self, input_ids: Any, attention_mask: Any, cache: Arrays | None) -> tuple[Any, Arrays]:
        """Run a decoder after a cache. Return (logits [B, T, V], new cache). The mask includes cached tokens."""
        positions = (attention_mask.cumsum(axis=1) - 1).clip(0)[:, -input_ids.shape[1] :]
        values = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": positions}
        return self.run("model", values, cache)

    def answer_logits(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any) -> Any:
        """Return the logits [B, T, V] of an answer's tokens. The last token is read with the key-value cache."""
        values = {"attention_mask": attention_mask, _STATES: self._run_encoder(input_ids, attention_mask)}
        if decoder_input_ids.shape[1] == 1:
            return self.run("decoder", {**values, "decoder_input_ids": decoder_input_ids})[0]
        first_logits, cache = self.run("decoder", {**values, "decoder_input_ids": decoder_input_ids[:, :-1]})
        end_logits, _ = self.run("decoder_with_past", {**values, "decoder_input_ids": decoder_input_ids[:, -1:]}, cache)
        return np.concatenate([first_logits, end_logits], axis=1)

    def _run_encoder(self, input_ids: Any, attention_mask: Any) -> Any:
        return self.run("encoder", {"input_ids": input_ids, "attention_mask": attention_mask})[0]

    def generate(self, ids: list[int], max_new_tokens: int) -> list[int]:
        """Generate text by greedy decoding after the tokens `ids`. Return the new tokens without the stop token."""
        next_ids = np.array([ids], dtype=np.int64)
        mask = np.ones_like(next_ids)
        if self.has_encoder:
            values = {"attention_mask": mask, _STATES: self._run_encoder(next_ids, mask)}
            next_ids = np.array([[self.generation["decoder_start_token_id"]]], dtype=np.int64)
        stop_ids = self.generation.get("eos_token_id")
        stop_ids = stop_ids if isinstance(stop_ids, list) else [stop_ids]
        forced_id = self.generation.get("forced_bos_token_id")
        banned_ids = [word[0] for word in self.generation.get("bad_words_ids") or () if len(word) == 1]
        banned_ids += self.generation.get("suppress_tokens") or ()
        cache: Arrays | None = None
        new_ids: list[int] = []
        while len(new_ids) < max_new_tokens and (not new_ids or new_ids[-1] not in stop_ids):
            if self.has_encoder:
                graph = "decoder_with_past" if cache else "decoder"
                logits, cache = self.run(graph, {**values, "decoder_input_ids": next_ids}, cache)
            elif self.has_cache:
                logits, cache = self.decode_with_cache(next_ids, mask, cache)
            else:
                logits = self.logits(next_ids, mask)
            logits[0, -1, banned_ids] = -np.inf
            token = int(logits[0, -1].argmax()) if new_ids or forced_id is None else forced_id
            new_ids.append(token)
            next_ids = np.array([[token]]) if cache else np.append(next_ids, [[token]], axis=1)
            mask = mask if self.has_encoder else np.append(mask, [[1]], axis=1)
        return new_ids[:-1] if new_ids and new_ids[-1] in stop_ids else new_ids


_STATES = "encoder_outputs.last_hidden_state"


def _cache_name(name: str) -> str:
    """Return the common name of a cache tensor's input and output; an empty text for other tensors."""
    prefix, _, suffix = name.partition(".")
    if prefix in ("input", "output"):
        return suffix
    # transformers 5.24 calls the cache of some models `cache`.
    return name if _CACHE in name or prefix == "cache" else ""


def _empty(entry: Any, rows: int) -> Any:
    """Return an empty cache tensor [rows, heads, 0, head size], or the number 0 for a count of the tokens so far."""
    sizes = [int(size) if str(size).isdigit() else 0 for size in entry.shape]
    return np.zeros([rows, *sizes[1:]] if sizes else [], np.float32 if "float" in entry.type else np.int64)


def read_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of an export, so that it returns the same tokens as in transformers."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens"))
    return tokenizer


def encode(graphs: Graphs, tokenizer: Any, *texts: str, stride: int = 0, strategy: str = "longest_first") -> Any:
    """Return the encoding of one or two texts, truncated as in training. The prompt of a decoder is not truncated.

    Its `overflowing` has the rest of the text as windows that overlap by `stride` tokens."""
    tokenizer.no_truncation()
    if graphs.has_encoder or "Classification" in graphs.kind or graphs.has_span_logits:
        side = graphs.reading.get("truncation_side", "right")
        length = graphs.reading["model_max_length"]
        tokenizer.enable_truncation(length, stride=stride, strategy=strategy, direction=side)
    return tokenizer.encode(*texts)


def inputs(graphs: Graphs, encoding: Any) -> Arrays:
    """Return the model's inputs: `input_ids`, `attention_mask` and if needed `token_type_ids`, int64 [1, T] each."""
    values = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask, "token_type_ids": encoding.type_ids}
    input_names = ("input_ids", "attention_mask", *graphs.reading.get("model_input_names", ()))
    return {name: np.array([row], dtype=np.int64) for name, row in values.items() if name in input_names}


def answer(graphs: Graphs, tokenizer: Any, text: str, max_new_tokens: int = 60) -> str:
    """Return the answer for a text: label probabilities (`joy 0.93, anger 0.04`), tagged words, or generated text."""
    first_text, tab, second = text.partition("\t")
    if "TokenClassification" in graphs.kind:
        return " ".join(f"{word}/{tag}" for word, tag in tag_words(graphs, tokenizer, re.findall(r"\w+|[^\w\s]", text)))
    if graphs.has_span_logits:
        question, mark, context = (first_text, "", second) if tab else text.partition("?")
        return extract_answer(graphs, tokenizer, question + mark, context.strip())
    if "SequenceClassification" not in graphs.kind:
        ids = encode(graphs, tokenizer, text).ids
        return str(tokenizer.decode(graphs.generate(ids, max_new_tokens)))
    logits = graphs.logits(**inputs(graphs, encode(graphs, tokenizer, *([first_text, second] if tab else [text]))))[0]
    problem_type = graphs.config.get("problem_type")
    if problem_type == "regression":
        return f"{logits[0]:.4g}"
    is_multi_label = problem_type == "multi_label_classification"
    probabilities = 1 / (1 + np.exp(-logits)) if is_multi_label else np.exp(logits - np.logaddexp.reduce(logits))
    names = [graphs.config["id2label"][str(index)] for index in range(len(probabilities))]
    labels = []
    if is_multi_label:
        thresholds = thresholds_of(graphs.config.get("calibration"), names)
        labels = [name for name, value, least in zip(names, probabilities, thresholds, strict=True) if value > least]
    return ", ".join(label_words(dict(zip(names, probabilities, strict=True)), labels, 5))


def extract_answer(graphs: Graphs, tokenizer: Any, question: str, context: str) -> str:
    """Return the most likely answer in the context. If training had questions without an answer, it may be ''."""
    config, length = graphs.config, graphs.reading["model_max_length"]
    max_answer_tokens = config.get("max_answer_length", 30)
    tokenizer.no_truncation()
    question_tokens = len(tokenizer.encode(question, add_special_tokens=False).ids)
    context_room = max(length - tokenizer.num_special_tokens_to_add(True) - question_tokens, 0)
    stride = min(config.get("doc_stride", 128), context_room // 2)
    encoding = encode(graphs, tokenizer, question, context, stride=stride, strategy="only_second")
    best_span, no_answer_score = (-np.inf, 0, 0), np.inf
    for window in (encoding, *encoding.overflowing):
        starts, ends = (logits[0] for logits in graphs.span_logits(**inputs(graphs, window)))
        no_answer_score = min(no_answer_score, starts[0] + ends[0])
        context_tokens = [index for index, sequence in enumerate(window.sequence_ids) if sequence == 1]
        for start, end in product(context_tokens, context_tokens):
            if start <= end < start + max_answer_tokens and starts[start] + ends[end] > best_span[0]:
                best_span = starts[start] + ends[end], window.offsets[start][0], window.offsets[end][1]
    if config.get("version_2_with_negative") and no_answer_score >= best_span[0]:
        return ""
    return str(context[best_span[1] : best_span[2]].strip())


def tag_words(graphs: Graphs, tokenizer: Any, words: list[str]) -> list[tuple[str, str]]:
    """Return (word, tag) pairs. A tag is that of the word's first token, or `?` for a word without a token."""
    tokenizer.no_truncation()
    encoding = tokenizer.encode(words, is_pretokenized=True)
    tags: dict[int, str] = {}
    for window in windows_of(encoding.ids, encoding.word_ids, graphs.reading["model_max_length"]):
        ids = np.array([window.ids], dtype=np.int64)
        label_ids = graphs.logits(ids, np.ones_like(ids))[0].argmax(-1)
        tags |= {word: graphs.config["id2label"][str(label_ids[token])] for token, word in window.firsts}
    return [(word, tags.get(word_number, "?")) for word_number, word in enumerate(words)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the ONNX model in this folder on one or more texts.")
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="separate the two texts of a pair with a tab")
    parser.add_argument("--max-new-tokens", type=int, help="maximum length of a generated text, in tokens")
    arguments = parser.parse_args()
    folder = Path(__file__).parent
    graphs, tokenizer = Graphs(folder), read_tokenizer(folder)
    max_new_tokens = arguments.max_new_tokens or graphs.generation.get("max_new_tokens") or 60
    for text in arguments.texts:
        print(answer(graphs, tokenizer, text, max_new_tokens))


if __name__ == "__main__":
    main()
