"""Answers from the ONNX graphs of a folder, with NumPy, ONNX Runtime and tokenizers alone.

An export has a copy of this file beside its graphs: `python run_onnx.py "a text" "another one"`.
"""

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

Arrays = dict[str, Any]
_CACHE = "past_key_values"
_PLACES = ("start_logits", "end_logits")
_LONGEST_ANSWER = 30  # tokens


class Graphs:
    """What an export wrote: one graph, `model`, or of an encoder with a decoder `encoder`, `decoder` and
    `decoder_with_past`, which goes on by one token. A decoder's only graph takes any number of tokens after what its
    key-value cache holds."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        written = folder / "generation_config.json"
        self.generation: dict[str, Any] = json.loads(written.read_text()) if written.is_file() else self.config
        self._sessions = {path.stem: onnxruntime.InferenceSession(str(path)) for path in folder.glob("*.onnx")}
        inputs = {name: {entry.name for entry in session.get_inputs()} for name, session in self._sessions.items()}
        self.has_encoder = "encoder" in inputs
        outputs = {entry.name for session in self._sessions.values() for entry in session.get_outputs()}
        self.marks_answers = set(_PLACES) <= outputs
        self.has_cache = any(_cache_name(name) for names in inputs.values() for name in names)

    def run(self, graph: str, given: Mapping[str, Any], cache: Arrays | None = None) -> tuple[Any, Arrays]:
        """The first output (logits, or what an encoder makes of a text) and the key-value cache after it.

        `given` may hold more than the graph takes. Without `cache` one begins.
        """
        session = self._sessions[graph]
        rows = len(next(iter(given.values())))
        fed = {}
        for entry in session.get_inputs():
            if kept := _cache_name(entry.name):
                fed[entry.name] = cache[kept] if cache else _empty(entry, rows)
            else:
                fed[entry.name] = given[entry.name]
        names = [entry.name for entry in session.get_outputs()]
        found = dict(zip(names, session.run(names, fed), strict=True))
        return found[names[0]], {kept: value for name, value in found.items() if (kept := _cache_name(name))}

    def logits(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        """[B, T, V] of a decoder, [B, C] of a classifier of texts, [B, T, C] of one of tokens; ids are int64 [B, T].

        A decoder reads the first half, and the second one after its key-value cache.
        """
        if not self.has_cache:
            types = np.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": types}
            return self.run("model", given)[0]
        half = input_ids.shape[1] // 2
        first, cache = self.continued(input_ids[:, :half], attention_mask[:, :half], None)
        second, _ = self.continued(input_ids[:, half:], attention_mask, cache)
        return np.concatenate([first, second], axis=1)

    def places(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        """Logits of the first and of the last token of an answer, [B, T] each; ids are int64 [B, T]."""
        types = np.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": types}
        session = self._sessions["model"]
        return session.run(list(_PLACES), {entry.name: given[entry.name] for entry in session.get_inputs()})

    def continued(self, input_ids: Any, attention_mask: Any, cache: Arrays | None) -> tuple[Any, Arrays]:
        """(logits [B, T, V], cache) of a decoder; the mask is that of what was read before as well."""
        positions = (attention_mask.cumsum(axis=1) - 1).clip(0)[:, -input_ids.shape[1] :]
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": positions}
        return self.run("model", given, cache)

    def answer_logits(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any) -> Any:
        """[B, T, V] of the answer's tokens, the last of which is read after the key-value cache."""
        given = {"attention_mask": attention_mask, _STATES: self._encoded(input_ids, attention_mask)}
        if decoder_input_ids.shape[1] == 1:
            return self.run("decoder", {**given, "decoder_input_ids": decoder_input_ids})[0]
        first, cache = self.run("decoder", {**given, "decoder_input_ids": decoder_input_ids[:, :-1]})
        last, _ = self.run("decoder_with_past", {**given, "decoder_input_ids": decoder_input_ids[:, -1:]}, cache)
        return np.concatenate([first, last], axis=1)

    def _encoded(self, input_ids: Any, attention_mask: Any) -> Any:
        return self.run("encoder", {"input_ids": input_ids, "attention_mask": attention_mask})[0]

    def written(self, ids: list[int], max_new_tokens: int) -> list[int]:
        """What comes after a text, or in answer to it: always the likeliest token, up to one that ends texts."""
        read = np.array([ids], dtype=np.int64)
        mask = np.ones_like(read)
        if self.has_encoder:
            given = {"attention_mask": mask, _STATES: self._encoded(read, mask)}
            read = np.array([[self.generation["decoder_start_token_id"]]], dtype=np.int64)
        ends = self.generation.get("eos_token_id")
        ends = ends if isinstance(ends, list) else [ends]
        forced = self.generation.get("forced_bos_token_id")
        cache: Arrays | None = None
        new: list[int] = []
        while len(new) < max_new_tokens and (not new or new[-1] not in ends):
            if self.has_encoder:
                graph = "decoder_with_past" if cache else "decoder"
                logits, cache = self.run(graph, {**given, "decoder_input_ids": read}, cache)
            elif self.has_cache:
                logits, cache = self.continued(read, mask, cache)
            else:
                logits = self.logits(read, mask)
            token = int(logits[0, -1].argmax()) if new or forced is None else forced
            new.append(token)
            read = np.array([[token]]) if cache else np.append(read, [[token]], axis=1)
            mask = mask if self.has_encoder else np.append(mask, [[1]], axis=1)
        return new[:-1] if new and new[-1] in ends else new


_STATES = "encoder_outputs.last_hidden_state"


def _cache_name(name: str) -> str:
    """Of a part of the key-value cache, the same of inputs and outputs; empty for anything else."""
    first, _, rest = name.partition(".")
    if first in ("input", "output"):
        return rest
    # transformers 5.24 calls the cache of some models `cache`.
    return name if _CACHE in name or first == "cache" else ""


def _empty(entry: Any, rows: int) -> Any:
    """A part of a cache that holds nothing: [rows, heads, 0, size of a head], or a count of what was read."""
    sizes = [int(size) if str(size).isdigit() else 0 for size in entry.shape]
    return np.zeros([rows, *sizes[1:]] if sizes else [], np.float32 if "float" in entry.type else np.int64)


def answer(graphs: Graphs, tokenizer: Any, text: str, max_new_tokens: int) -> str:
    """What the model makes of a text: `joy 0.93, anger 0.04`, words with their tags, or what it writes."""
    kind = str((graphs.config.get("architectures") or [""])[0])
    if "TokenClassification" in kind:
        return _tagged(graphs, tokenizer, text)
    if graphs.marks_answers:
        return _marked(graphs, tokenizer, text)
    encoding = tokenizer.encode(text)
    if "SequenceClassification" not in kind:
        return str(tokenizer.decode(graphs.written(encoding.ids, max_new_tokens)))
    logits = graphs.logits(*(np.array([values]) for values in (encoding.ids, encoding.attention_mask)))[0]
    problem = graphs.config.get("problem_type")
    if problem == "regression":
        return f"{logits[0]:.4g}"
    several = problem == "multi_label_classification"
    chances = 1 / (1 + np.exp(-logits)) if several else np.exp(logits - np.logaddexp.reduce(logits))
    labels = graphs.config["id2label"]
    return ", ".join(f"{labels[str(at)]} {chances[at]:.2f}" for at in np.argsort(-chances)[:5])


def _marked(graphs: Graphs, tokenizer: Any, text: str) -> str:
    """The likeliest answer to `question?` in the text behind it; empty where none is likelier, if that was learnt."""
    question, mark, context = text.partition("?")
    context = context.strip()
    tokenizer.no_truncation()
    encoding = tokenizer.encode(question + mark, context)
    arrays = (np.array([values]) for values in (encoding.ids, encoding.attention_mask, encoding.type_ids))
    starts, ends = (logits[0] for logits in graphs.places(*arrays))
    places = [at for at, part in enumerate(encoding.sequence_ids) if part == 1]
    pairs = [(first, last) for first in places for last in places if first <= last < first + _LONGEST_ANSWER]
    score, first, last = max((starts[first] + ends[last], first, last) for first, last in pairs)
    if graphs.config.get("version_2_with_negative") and starts[0] + ends[0] >= score:
        return ""
    return str(context[encoding.offsets[first][0] : encoding.offsets[last][1]].strip())


def _tagged(graphs: Graphs, tokenizer: Any, text: str) -> str:
    """`Ada/B-PER wrote/O`: a word has the tag of its first token."""
    words = re.findall(r"\w+|[^\w\s]", text)
    encoding = tokenizer.encode(words, is_pretokenized=True)
    labels = graphs.logits(np.array([encoding.ids]), np.array([encoding.attention_mask]))[0].argmax(-1)
    tags: dict[int, str] = {}
    for place, word in enumerate(encoding.word_ids):
        if word is not None:
            tags.setdefault(word, graphs.config["id2label"][str(labels[place])])
    return " ".join(f"{word}/{tags.get(number, '?')}" for number, word in enumerate(words))


def main() -> None:
    from tokenizers import Tokenizer

    parser = argparse.ArgumentParser(description="Answers from the ONNX graphs of this folder.")
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parser.add_argument("--max-new-tokens", type=int, default=60)
    asked = parser.parse_args()
    folder = Path(__file__).parent
    graphs, tokenizer = Graphs(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))
    for text in asked.texts:
        print(answer(graphs, tokenizer, text, asked.max_new_tokens))


if __name__ == "__main__":
    main()
