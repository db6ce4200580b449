"""The ranking that every search uses: in the palette, settings, recipes, data and models."""

import re
from typing import Final, NamedTuple

# Other words for actions (by label) and settings (by key). Searches treat them as words of the name.
SYNONYMS: Final = {
    "copy command": "cli, shell", "delete": "remove", "doctor": "slow, bottleneck",
    "export": "gguf, onnx, int8, merge, convert, ollama, llama.cpp", "help": "keys, manual", "open": "attach",
    "more": "evaluate, gate, forgotten, predict, publish, upload, report", "mouse": "select text",
    "new run": "own data",
    "processes": "kill, nvidia-smi", "quit": "exit, leave", "rehearse": "dry run", "resume": "continue",
    "save screen": "screenshot, picture", "stop": "cancel, abort", "theme": "dark, light, colours, colors",
    "try the model": "generate, chat, prompt, sample", "undo": "revert", "checkpoint.save_total_limit": "disk space",
    "data.max_length": "context, context length, sequence length, cutoff", "data.path": "dataset",
    "dataloader.num_workers": "threads", "evaluation.early_stopping_patience": "overfitting",
    "logging.report_to": "wandb, tensorboard, mlflow, trackio, tracker", "model.model_name_or_path": "base model",
    "model.attn_implementation": "flash attention, sdpa", "training.gradient_accumulation_steps": "ga, accumulate",
    "training.gradient_checkpointing": "activation checkpointing", "training.learning_rate": "lr",
    "training.lr_scheduler_type": "schedule, cosine", "training.max_grad_norm": "gradient clipping",
    "training.mixed_precision": "precision, bf16, fp16, half, amp", "training.num_train_epochs": "epochs, passes",
    "training.optim": "optimizer, adamw", "training.per_device_train_batch_size": "micro-batch",
    "training.weight_decay": "wd", "tuning.method": "lora, qlora, peft", "tuning.r": "rank, lora rank, lora r",
    "tuning.trainable_layers": "freeze, frozen",
}  # fmt: skip
IN_TEXT: Final = 3
"""From this rank on, a word was found only in the description."""


class Match(NamedTuple):
    """Rank of a match, smaller if it is better, and the positions of the found letters in the name."""

    rank: tuple[int, bool, bool]
    places: tuple[int, ...]


def match(query: str, name: str, text: str = "") -> Match | None:
    """Return how well a name with its description matches all words of a query; None if a word is missing.

    Whole words of the name are best, then starts of its words, then other parts of it, then whole words and starts of
    words of the description. Among equals, a name equal to the query is best, then one with its words in a row.
    """
    words = _words(query) or query.lower().split()
    last_part = name.rpartition(": ")[2]
    phrases = [last_part, last_part.rpartition(".")[2], *SYNONYMS.get(last_part, "").split(", ")]
    searched_names = ", ".join([name, *phrases[2:]]).lower()
    hits = [hit for word in words if (hit := _find(re.escape(word), searched_names, text.lower()))]
    if len(hits) < len(words):
        return None
    is_apart = not re.search(r"[\W_]+".join(map(re.escape, words)), searched_names)
    places = tuple(index for _, span in hits for index in range(*span) if index < len(name))
    rank = max((rank for rank, _ in hits), default=0)
    return Match((rank, words not in map(_words, phrases), is_apart), places)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _find(word: str, names: str, text: str) -> tuple[int, tuple[int, int]] | None:
    """Return the rank of a word, and where it starts and ends in the names; None if it is not found."""
    whole_word, word_start = rf"(?<![^\W_]){word}(?![^\W_])", rf"(?<![^\W_]){word}"
    patterns = ((whole_word, names), (word_start, names), (word, names), (whole_word, text), (word_start, text))
    hits = ((rank, re.search(pattern, searched_text)) for rank, (pattern, searched_text) in enumerate(patterns))
    return next(((rank, hit.span() if rank < IN_TEXT else (0, 0)) for rank, hit in hits if hit), None)
