"""Memory of the layers of a model: counted by a dry run on tensors without numbers, in a process that has torch.

The bytes of a row grow with its length and, for masks and scores, with the square of it. An encoder-decoder adds the
length of the answer, its square, and the product of both lengths. The bytes are therefore counted at a few lengths and
fitted for all others. A failed dry run gives no figures.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_type_hints

from tui_trainer.models.counting import Answers, deciding_fields
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.training_setup import LAYER_KEY, RARE_LAYER_KEY, LayerBytes, TrainingSetup
from tui_trainer.worker.asking import WorkerFailed

answers = Answers("dry_run", format_version=4)
_VOCABULARY_SIZE, _ROW_TOKENS = 128, 256


def measure_layer(
    config: Mapping[str, Any], shape: ModelShape, setup: TrainingSetup, row_tokens: int
) -> tuple[LayerBytes | None, str]:
    """Return the bytes of one layer of the model that a config.json describes, in rows of `row_tokens`.

    Returns None and a clause that gives the reason if the dry run fails. The first answer about a model and a setup
    takes seconds. For a GPU the figures are those of fused attention kernels. In an encoder-decoder the layers of both
    halves count together, as bytes of one input token in one layer of the encoder, for answers of
    `setup.target_tokens`. No code that comes with a model is run.
    """
    fields = deciding_fields(config)
    # The memory of a layer does not depend on the embedding and the head.
    fields.pop("tie_word_embeddings", None)
    answer_tokens = setup.target_tokens if shape.decoder_layers else 0
    lengths = _lengths(answer_tokens > 0, shape.max_position_embeddings if shape.learned_positions else None)
    fields |= {"vocab_size": _VOCABULARY_SIZE, "pad_token_id": 0}
    question = {"config": fields, "setup": _deciding_setup(setup), "lengths": lengths}
    try:
        return _layer(answers.ask(question), lengths, row_tokens, answer_tokens, shape.layers), ""
    except WorkerFailed as failure:
        return None, f"the dry run {failure}"
    except (LookupError, TypeError, ValueError):
        return None, "the dry run gave no answer"


def _deciding_setup(setup: TrainingSetup) -> dict[str, Any]:
    """Return the fields of a setup that decide the memory of a layer: other fields must not change the cache key."""
    value_by_name = asdict(setup)
    marks_by_name = {
        name: getattr(annotation, "__metadata__", ())
        for name, annotation in get_type_hints(TrainingSetup, include_extras=True).items()
    }
    return {
        name: value_by_name[name]
        for name, marks in marks_by_name.items()
        if LAYER_KEY in marks or (RARE_LAYER_KEY in marks and value_by_name[name])
    }


def _lengths(has_answers: bool, max_positions: int | None) -> list[tuple[int, int]]:
    """Return pairs (tokens of a row, tokens of its answer) to count at: one pair for each coefficient of the fit."""
    tokens = min(_ROW_TOKENS, max_positions or _ROW_TOKENS)
    if not has_answers:
        return [(tokens, 0), (tokens // 2, 0)]
    length_pairs = [(tokens, tokens), (tokens // 2, tokens), (tokens, tokens // 2), (tokens // 2, tokens // 2)]
    return [*length_pairs, (tokens // 4, tokens), (tokens, tokens // 4)]


def _layer(
    counts: list[dict[str, float]], lengths: list[tuple[int, int]], row_tokens: int, answer_tokens: int, layers: int
) -> LayerBytes:
    """Return the bytes of one token and layer in rows of `row_tokens`, from a fit of the counts by least squares."""
    import numpy as np

    def terms(row: int, answer: int) -> list[int]:
        return [row, row**2, answer, answer**2, row * answer][: 5 if answer_tokens else 2]

    names = list(counts[0])
    count_rows = [[count[name] / (1 if name.startswith("largest") else layers) for name in names] for count in counts]
    factors, *_ = np.linalg.lstsq(np.array([terms(*pair) for pair in lengths], float), np.array(count_rows), rcond=None)
    layer_bytes = np.array(terms(row_tokens, answer_tokens), float) @ factors / row_tokens
    bytes_per_pair = factors[1][names.index("made")]
    return LayerBytes(**dict(zip(names, map(round, layer_bytes), strict=True)), made_per_pair=round(bytes_per_pair))
