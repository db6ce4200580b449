"""Run llama.cpp's converter on a model folder: `python run_converter.py convert_hf_to_gguf.py FOLDER --outfile FILE`.

The converter takes tokenizers that it knows by a hash of some ids, so it refuses each one that was trained anew. This
program describes such a tokenizer by its own pattern and merges. Begin and end tokens are added as the folder's
tokenizer_config.json states. It is a process of its own, without this package."""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# llama.cpp's names of patterns that split texts, with and without `ignore_merges`; "" is GPT-2's, which tokenizers has
# built in. Source: `llm_tokenizer_bpe` in src/llama-vocab.cpp.
PATTERNS = {
    ("", False): "gpt-2",
    (_WORDS + r"\p{N}{1,3}" + _SIGNS, True): "llama-bpe",
    (_WORDS + r"\p{N}{1,3}" + _SIGNS, False): "dbrx",
    (_WORDS + r"\p{N}" + _SIGNS, False): "qwen2",
}
_LOWEST_SCORE = -1e6


def pattern_name(tokenizer: dict[str, Any]) -> str:
    """Return llama.cpp's name for the pattern of a byte-level tokenizer.json; "" if it has none."""
    steps = tokenizer.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    patterns = [step["pattern"].get("Regex", "?") for step in steps if step.get("type") == "Split"]
    byte_level = [step for step in steps if step.get("type") == "ByteLevel" and not step.get("add_prefix_space")]
    is_known = len(byte_level) == 1 and len(patterns) <= 1 and len(steps) == 1 + len(patterns)
    if not is_known or bool(patterns) == byte_level[0].get("use_regex", True):
        return ""
    return PATTERNS.get(("".join(patterns), bool(tokenizer["model"].get("ignore_merges"))), "")


def merge_scores(tokenizer: dict[str, Any]) -> dict[str, float]:
    """Return the score of each merged token, with which llama.cpp joins the pairs of a text in the order of merges."""
    pairs = (pair.split(" ") if isinstance(pair, str) else pair for pair in tokenizer["model"]["merges"])
    scores: dict[str, float] = {}
    for rank, pair in enumerate(pairs):
        scores.setdefault("".join(pair), -float(rank))
    return scores


def _patch_converter(text_model: Any, gguf: Any) -> None:
    """Replace the converter's methods that identify a tokenizer, because they fail for tokenizers not listed there."""
    set_sentencepiece, set_byte_level = text_model._set_vocab_sentencepiece, text_model._set_vocab_gpt2
    find_name, load_special = text_model.get_vocab_base_pre, gguf.SpecialVocab._try_load_from_tokenizer_json

    def tokenizer_of(model: Any) -> Any:
        return json.loads((model.dir_model / "tokenizer.json").read_bytes())

    def set_byte_fallback(model: Any) -> None:
        content = tokenizer_of(model)
        if content["model"]["type"] != "BPE" or not content["model"].get("byte_fallback"):
            raise FileNotFoundError("neither tokenizer.model nor a tokenizer.json with byte fallback")
        scores, kinds = merge_scores(content), gguf.TokenType
        added = {token["content"]: token["special"] for token in content["added_tokens"]}
        ids = {**content["model"]["vocab"], **{token["content"]: token["id"] for token in content["added_tokens"]}}
        size = max(model.hparams.get("vocab_size", 0), max(ids.values()) + 1)
        rows = [(f"[PAD{token_id}]", _LOWEST_SCORE, kinds.UNUSED) for token_id in range(size)]
        for token, token_id in ids.items():
            kind = kinds.BYTE if len(token) == 6 and token.startswith("<0x") else kinds.NORMAL
            if token in added:
                kind = kinds.CONTROL if added[token] else kinds.USER_DEFINED
            text = token.replace("\u2581", " ") if kind == kinds.USER_DEFINED else token
            rows[token_id] = (text, scores.get(token, _LOWEST_SCORE), kind)
        texts, token_scores, token_kinds = map(list, zip(*rows, strict=True))
        model.gguf_writer.add_tokenizer_model("llama")
        model.gguf_writer.add_tokenizer_pre("default")
        model.gguf_writer.add_token_list(texts)
        model.gguf_writer.add_token_scores(token_scores)
        model.gguf_writer.add_token_types(token_kinds)
        model.gguf_writer.add_add_space_prefix("prepend" in json.dumps(content.get("normalizer")).lower() or any(
            step in json.dumps(content.get("pre_tokenizer")) for step in ('"first"', '"always"')))  # fmt: skip
        gguf.SpecialVocab(model.dir_model, n_vocab=size).add_to_gguf(model.gguf_writer)

    def patched_sentencepiece(model: Any) -> None:
        try:
            set_sentencepiece(model)
        except FileNotFoundError:
            set_byte_fallback(model)

    def patched_byte_level(model: Any) -> None:
        has_fallback = tokenizer_of(model)["model"].get("byte_fallback")
        (set_byte_fallback if has_fallback else set_byte_level)(model)

    def patched_name(model: Any, tokenizer: Any) -> str:
        try:
            return str(find_name(model, tokenizer))
        except NotImplementedError:
            if name := pattern_name(tokenizer_of(model)):
                return name
            raise

    def patched_special(vocabulary: Any, path: Path) -> bool:
        is_found = bool(load_special(vocabulary, path))
        settings = json.loads((path / "tokenizer_config.json").read_bytes())
        vocabulary.add_special_token |= {name: settings[f"add_{name}_token"] for name in ("bos", "eos")}
        return is_found

    text_model._set_vocab_sentencepiece, text_model._set_vocab_gpt2 = patched_sentencepiece, patched_byte_level
    text_model.get_vocab_base_pre = patched_name
    gguf.SpecialVocab._try_load_from_tokenizer_json = patched_special


def main() -> None:
    script = Path(sys.argv[1])
    sys.argv = sys.argv[1:]
    sys.path[:1] = [str(script.parent), str(script.parent / "gguf-py")]
    if (script.parent / "conversion").is_dir():  # older versions are a single file, which needs no corrections
        import gguf
        from conversion import TextModel  # type: ignore[import-not-found]

        _patch_converter(TextModel, gguf)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
