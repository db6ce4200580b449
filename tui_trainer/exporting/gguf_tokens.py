"""Token ids that llama.cpp computes with the tokenizer in a GGUF file, from the file's tokens, merges and scores."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

# Kinds of tokens in `tokenizer.ggml.token_type`. Source: `TokenType` in gguf-py/gguf/constants.py.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_SPACE = "\u2581"


class FileTokenizer:
    """Tokenizer of a GGUF file. `settings` has the fields `tokenizer.ggml.*` without that prefix.

    Byte-level BPE splits texts with the pattern of the trained `tokenizer`, because the file has only its name. A file
    with scores, as of SentencePiece, needs nothing else. For other tokenizers, only the ids are compared."""

    def __init__(self, settings: Mapping[str, Any], tokenizer: Any) -> None:
        self._settings, self._ids = settings, {token: index for index, token in enumerate(settings["tokens"])}
        kinds = dict(zip(settings["tokens"], settings["token_type"], strict=True))
        marks = [token for token, kind in kinds.items() if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) and token]
        # llama.cpp looks for longer tokens first. Source: `tokenizer_st_partition` in src/llama-vocab.cpp.
        mark_pattern = "|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or "(?!)"
        self._encode: Callable[[str], list[int]] = self._join_by_scores
        if settings["model"] == "gpt2":
            text_ids = {token: self._ids[token] for token in kinds if token not in marks}
            self._encode = _encoder_by_merges(tokenizer.backend_tokenizer, text_ids, settings)
        elif settings["model"] != "llama":
            mark_pattern = "(?!)"
            self._encode = lambda text: [self._ids.get(token, -1) for token in tokenizer.tokenize(text)]
        self._marks = re.compile(f"({mark_pattern})")

    def __call__(self, text: str, **_: bool) -> dict[str, list[int]]:
        settings, ids = self._settings, list[int]()
        # The pieces are in turn a text, which may be empty, and a mark.
        for number, piece in enumerate(self._marks.split(text)):
            if piece:
                ids += [self._ids[piece]] if number % 2 else self._encode(piece)
        bos = [settings["bos_token_id"]] if settings.get("add_bos_token") else []
        eos = [settings["eos_token_id"]] if settings.get("add_eos_token") else []
        return {"input_ids": [*bos, *ids, *eos]}

    def prompt_ids(self, text: str) -> list[int]:
        """Return the ids of a rendered conversation as llama-server reads it: it adds no second BOS."""
        settings = self._settings
        bos = settings["tokens"][settings["bos_token_id"]] if settings.get("add_bos_token") else "\0"
        return self(text.removeprefix(bos))["input_ids"]

    def _join_by_scores(self, text: str) -> list[int]:
        """Join neighbours whose text is a token, highest score first. Source: `llm_tokenizer_spm_session` there."""
        ids, scores = self._ids, self._settings["scores"]
        prefix = " " if self._settings.get("add_space_prefix", True) else ""
        parts = list((prefix + text).replace(" ", _SPACE))
        next_part, previous_part = [*range(1, len(parts)), -1], list(range(-1, len(parts) - 1))

        def pair(left: int, right: int) -> list[tuple[float, int, int, str]]:
            joined = parts[left] + parts[right] if left >= 0 and right >= 0 else ""
            return [(-scores[ids[joined]], left, right, joined)] if joined in ids else []

        queue = [entry for right in range(1, len(parts)) for entry in pair(right - 1, right)]
        heapify(queue)
        while queue:
            _, left, right, joined = heappop(queue)
            if not parts[left] or not parts[right] or parts[left] + parts[right] != joined:
                continue
            parts[left], parts[right] = joined, ""
            next_part[left] = next_part[right]
            if next_part[right] >= 0:
                previous_part[next_part[right]] = left
            for entry in [*pair(previous_part[left], left), *pair(left, next_part[left])]:
                heappush(queue, entry)
        return [
            token_id
            for part in filter(None, parts)
            for token_id in ([ids[part]] if part in ids else (ids.get(f"<0x{byte:02X}>", -1) for byte in part.encode()))
        ]


def _encoder_by_merges(backend: Any, ids: Mapping[str, int], settings: Mapping[str, Any]) -> Callable[[str], list[int]]:
    from tokenizers import Tokenizer

    content = json.loads(backend.to_str())
    merges: Sequence[str] = settings.get("merges", ())
    content["model"] |= {"vocab": ids, "merges": [merge.split(" ") for merge in merges], "unk_token": None}
    content |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    tokenizer: Any = Tokenizer.from_str(json.dumps(content))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)
