"""Memory of the layers of a model: counted by a dry run on tensors without numbers, in a process that has torch.

Bytes of a row grow with its length and, of masks and scores, with the square of it; behind an encoder with the answer's
in the same way, and with the product of both. So they are counted at a few lengths and found for all others.
Nothing is guessed when that fails.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_type_hints

from tui_trainer.models.counting import Answers, deciding_fields
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.training_setup import LAYER_KEY, RARE_LAYER_KEY, LayerBytes, TrainingSetup
from tui_trainer.worker.asking import WorkerFailed

answers = Answers("dry_run", format_version=4)
_WORDS, _ROW_TOKENS = 128, 256


def measure_layer(
    config: Mapping[str, Any], shape: ModelShape, setup: TrainingSetup, row_tokens: int
) -> tuple[LayerBytes | None, str]:
    """Bytes of one layer of the model that a config.json describes, in rows of `row_tokens`; else None, and a clause
    about why.

    The first answer about a model and a setup takes seconds. On a card attention is counted as its fused kernels
    compute it. With a decoder behind an encoder the layers of both count together, as bytes of one token of the input
    in one layer of the encoder, for answers of `setup.target_tokens`. No code that comes with a model is run.
    """
    fields = deciding_fields(config)
    # No layer depends on what the ends of the model are.
    fields.pop("tie_word_embeddings", None)
    answer_tokens = setup.target_tokens if shape.decoder_layers else 0
    lengths = _lengths(answer_tokens > 0, shape.max_position_embeddings if shape.learned_positions else None)
    question = {
        "config": fields | {"vocab_size": _WORDS, "pad_token_id": 0},
        "setup": _deciding(setup),
        "lengths": lengths,
    }
    try:
        return _layer(answers.ask(question), lengths, row_tokens, answer_tokens, shape.layers), ""
    except WorkerFailed as failure:
        return None, f"the dry run {failure}"
    except (LookupError, TypeError, ValueError):
        return None, "the dry run gave no answer"


def _deciding(setup: TrainingSetup) -> dict[str, Any]:
    """Return the fields that are declared to decide the memory of a layer. Others must not change the question."""
    everything = asdict(setup)
    marks = {
        name: getattr(hint, "__metadata__", ())
        for name, hint in get_type_hints(TrainingSetup, include_extras=True).items()
    }
    return {
        name: everything[name]
        for name, found in marks.items()
        if LAYER_KEY in found or (RARE_LAYER_KEY in found and everything[name])
    }


def _lengths(has_answers: bool, most: int | None) -> list[tuple[int, int]]:
    """Tokens of a row and of its answer: as many pairs as there are unknown numbers, whatever the data has."""
    row = min(_ROW_TOKENS, most or _ROW_TOKENS)
    if not has_answers:
        return [(row, 0), (row // 2, 0)]
    pairs = [(row, row), (row // 2, row), (row, row // 2), (row // 2, row // 2)]
    return [*pairs, (row // 4, row), (row, row // 4)]


def _layer(
    counted: list[dict[str, float]], lengths: list[tuple[int, int]], row_tokens: int, answer_tokens: int, layers: int
) -> LayerBytes:
    """Of one token and layer, in a row of `row_tokens` with an answer of `answer_tokens`."""
    import numpy as np

    def powers(row: int, answer: int) -> list[int]:
        return [row, row**2, answer, answer**2, row * answer][: 5 if answer_tokens else 2]

    names = list(counted[0])
    rows = [[each[name] / (1 if name.startswith("largest") else layers) for name in names] for each in counted]
    weights, *_ = np.linalg.lstsq(np.array([powers(*pair) for pair in lengths], float), np.array(rows), rcond=None)
    found = np.array(powers(row_tokens, answer_tokens), float) @ weights / row_tokens
    per_pair = weights[1][names.index("made")]
    return LayerBytes(**dict(zip(names, map(round, found), strict=True)), made_per_pair=round(per_pair))
