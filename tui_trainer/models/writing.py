"""Generate texts with a model: settings, batches of prompts, padding."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

TEMPERATURE = 0.8
ANSWERS_AT_A_TIME = 16
"""Maximum number of prompts in a batch whose answers are generated together."""
# The limit in tokens of models that have none.
_NO_LIMIT = 1 << 30
# The model's own generation settings that remain: first, last and suppressed tokens, and maximum lengths. Its minimum
# lengths, repetition penalties and beams were chosen for other data.
_KEPT = frozenset({
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "bad_words_ids", "suppress_tokens",
    "begin_suppress_tokens", "max_length", "max_new_tokens", "use_cache", "cache_implementation",
})  # fmt: skip
# Sampling settings, which remain if the model is published with `do_sample`.
_DRAWN = frozenset({
    "do_sample", "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
})  # fmt: skip
# Settings that shape the generated text, with the values that have no effect.
_SHAPING: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("min_length", "min_new_tokens", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), (0,)),
    **dict.fromkeys(("length_penalty", "repetition_penalty", "encoder_repetition_penalty", "num_beams"), (1,)),
    **dict.fromkeys(("penalty_alpha", "exponential_decay_length_penalty", "sequence_bias", "stop_strings"), ()),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Settings of generation. `temperature` 0 is greedy decoding or, with `num_beams` above 1, beam search."""

    max_new_tokens: int
    temperature: float
    seed: int
    num_beams: int = 1

    def settings(self) -> dict[str, Any]:
        """Return the arguments for `generate`. `num_beams` is always set, as its default is the model's own."""
        sampling = {"do_sample": True, "temperature": self.temperature} if self.temperature else {"do_sample": False}
        return {"max_new_tokens": self.max_new_tokens, "num_beams": self.num_beams, **sampling}


NO_SAMPLING = Sampling(max_new_tokens=1, temperature=0, seed=0)
"""Placeholder for models that generate no text."""


def shaping_settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in a generation_config.json (or an old config.json) that `keep_plain_settings` takes away."""
    value_by_name = {name: fields.get(name) for name in _SHAPING}
    return {name: value for name, value in value_by_name.items() if value is not None and value not in _SHAPING[name]}


def keep_plain_settings(model: Any) -> None:
    """Reset all generation settings of a model except those of tokens, sampling and maximum lengths. The model then
    writes the same text in evaluations and samples, and wherever its saved generation_config.json is read."""
    from transformers import GenerationConfig

    settings = getattr(model, "generation_config", None)
    if settings is None:
        return
    kept_names = _KEPT | (_DRAWN if settings.do_sample else set())
    # This also resets `_from_model_config`, with which generate() would restore the settings of config.json.
    for name, default in vars(GenerationConfig()).items():
        if name not in kept_names:
            setattr(settings, name, default)
    if (settings.pad_token_id or 0) < 0:  # -1 in early Llamas
        settings.pad_token_id = None


def sample_continuation(model: Any, tokenizer: Any, prompt_ids: list[int], *, new_tokens: int) -> tuple[str, str]:
    """Return a prompt and a sampled continuation, both as text. The caller seeds torch's generator."""
    sampling = Sampling(max_new_tokens=new_tokens, temperature=TEMPERATURE, seed=0)
    prompt = tokenizer.decode(prompt_ids, skip_special_tokens=True)
    return str(prompt), generate_texts(model, tokenizer, [prompt_ids], sampling)[0]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Generated answer: its text, and its token ids without the end token. `limit` is the maximum number of tokens."""

    text: str
    ids: Sequence[int]
    has_stopped: bool
    limit: int


def generate_answers(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], *, new_tokens: int) -> list[Answer]:
    """Return the greedy answer to each prompt, in one batch, with at most `new_tokens` tokens."""
    sampling = Sampling(max_new_tokens=new_tokens, temperature=0, seed=0)
    answers, stops = [], set(stop_ids(model))
    first = int(model.config.is_encoder_decoder)  # the output of an encoder-decoder begins with its start token
    for row in generate_ids(model, tokenizer, prompts, **sampling.settings())[0][:, first:].tolist():
        length = next((index for index, token_id in enumerate(row) if token_id in stops), len(row))
        text = str(tokenizer.decode(row[:length], skip_special_tokens=True))
        answers.append(Answer(text=text, ids=row[:length], has_stopped=length < len(row), limit=new_tokens))
    return answers


def answer_in_batches(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], *, new_tokens: int) -> list[Answer]:
    """Return the greedy answer to each prompt. Prompts share batches, unless a decoder would read their padding."""
    longest_prompt, rows_at_a_time = max(prompts, key=len, default=[]), ANSWERS_AT_A_TIME
    has_padding = any(len(prompt) < len(longest_prompt) for prompt in prompts)
    if has_padding and not model.config.is_encoder_decoder:
        rows_at_a_time = rows_at_a_time if ignores_left_padding(model, tokenizer, longest_prompt) else 1
    batches = [prompts[start : start + rows_at_a_time] for start in range(0, len(prompts), rows_at_a_time)]
    return [answer for batch in batches for answer in generate_answers(model, tokenizer, batch, new_tokens=new_tokens)]


def stop_ids(model: Any) -> list[int]:
    """Return the ids of the tokens that end what a model generates; first that of the run's own answers."""
    ids = model.generation_config.eos_token_id
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def generate_texts(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[str]:
    """Return the text that the model generates for each prompt, up to its end token."""
    new_ids = generate_ids(model, tokenizer, prompts, **sampling.settings())[0]
    return [str(tokenizer.decode(row, skip_special_tokens=True)) for row in new_ids.tolist()]


def generate_ids(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], **settings: Any) -> tuple[Any, Any]:
    """Return (generated ids, int64 [B, T'], logits of each step if `output_logits` is set).

    Shorter prompts are padded on the left, or on the right for an encoder."""
    import torch

    has_encoder, pad_id, longest = model.config.is_encoder_decoder, pad_token_id(tokenizer), max(map(len, prompts))
    rows, masks = [], []
    for prompt in prompts:
        padding, padding_mask = [pad_id] * (longest - len(prompt)), [0] * (longest - len(prompt))
        rows.append([*prompt, *padding] if has_encoder else [*padding, *prompt])
        masks.append([1] * len(prompt) + padding_mask if has_encoder else padding_mask + [1] * len(prompt))
    with _without_router_logits(model.config.get_text_config()):
        inputs = {"input_ids": rows, "attention_mask": masks}
        tensors = {name: torch.tensor(values, device=model.device) for name, values in inputs.items()}
        output = model.generate(**tensors, pad_token_id=pad_id, **settings)
    ids_BT = output if isinstance(output, torch.Tensor) else output.sequences
    return ids_BT[:, 0 if has_encoder else longest :], getattr(output, "logits", None)


@contextmanager
def _without_router_logits(config: Any) -> Iterator[None]:
    """Return a context in which a mixture of experts computes no router loss.

    The loss needs logits of all tokens in the mask, and generation computes those of one token at a time."""
    has_loss = getattr(config, "output_router_logits", False)
    try:
        if has_loss:
            config.output_router_logits = False
        yield
    finally:
        if has_loss:
            config.output_router_logits = True


def ignores_left_padding(model: Any, tokenizer: Any, prompt_ids: Sequence[int]) -> bool:
    """Return whether left padding leaves the logits of a prompt unchanged. Recurrent models may read padding."""
    import torch

    settings = {"max_new_tokens": 1, "do_sample": False, "num_beams": 1, "output_logits": True}
    settings["return_dict_in_generate"] = True
    longer_prompt = list(prompt_ids) if len(prompt_ids) > 16 else [*prompt_ids, *prompt_ids, *prompt_ids]
    prompt_ids = longer_prompt[:-8] if len(prompt_ids) > 16 else prompt_ids
    unpadded, padded = (
        generate_ids(model, tokenizer, prompts, **settings)[1][0][0].float()
        for prompts in ([prompt_ids], [prompt_ids, longer_prompt])
    )
    is_finite = unpadded.isfinite() & padded.isfinite()
    largest_logit = unpadded[is_finite].abs().max()
    return bool((unpadded - padded)[is_finite].abs().max() <= 4 * torch.finfo(model.dtype).eps ** 0.5 * largest_logit)


def longest_sequence_tokens(model: Any, tokenizer: Any) -> int:
    """Return the maximum number of tokens that the model reads and writes together, by its positions and its tokenizer.
    The tokenizer's limit does not apply to an encoder-decoder, where it limits only the input."""
    max_positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or _NO_LIMIT
    tokenizer_limit = _NO_LIMIT if model.config.is_encoder_decoder else tokenizer.model_max_length
    return int(min(max_positions, tokenizer_limit, _NO_LIMIT))


def row_padding_id(model: Any, pad_id: int) -> int:
    """Return the id that pads rows for this model: the pad token of its config, or `pad_id` if the config has none."""
    own_id = model.config.get_text_config().pad_token_id
    return pad_id if own_id is None or own_id < 0 else int(own_id)


def pad_token_id(tokenizer: Any) -> int:
    """Return the id that pads rows. Any token will do, because padding has no label and is masked in the attention."""
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return next(int(token) for token in candidates if token is not None)
