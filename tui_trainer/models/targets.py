"""Find the layers that get a LoRA adapter or are trained as a whole, by name, and count their weights.

Source: peft 0.21: `check_target_module_exists` (a name matches a whole path, or its end after a dot),
`_maybe_include_all_linear_layers` (all-linear excludes the head), `_set_trainable` (modules_to_save match any
end of a path, even inside a word).
"""

from collections.abc import Iterable
from difflib import get_close_matches

from tui_trainer.config.fields import is_pattern, names_in
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.heads import CLASSIFYING_HEADS
from tui_trainer.models.modules import Linear, ModelPart
from tui_trainer.models.shape import ModelShape
from tui_trainer.terminal.safe_text import one_line

ALL_LINEAR = "all-linear"
MODULES_KEY, SAVED_KEY = "tuning.target_modules", "tuning.modules_to_save"


def match_targets(
    shape: ModelShape, target_modules: str, modules_to_save: str = "", target_parameters: str = ""
) -> tuple[str, ...]:
    """Return the names of the target layers for peft, with `all-linear` resolved to names. A regular expression is
    returned unchanged, because `adapter_targets.py` resolves it.

    Raise ConfigError for names that match no linear layer, with the nearest names, and for the head or an embedding
    among the targets, which are trained as a whole."""
    problems = [problem for name in names_in(modules_to_save) if (problem := _saved_problem(shape, name))]
    if is_pattern(target_modules):
        if problems:
            raise ConfigError(problems)
        return (target_modules,)
    problems = [problem for name in names_in(target_modules) if (problem := _target_problem(shape, name))] + problems
    if not names_in(target_modules) and not target_parameters:
        problems.append(Problem(message="names no layer", key=MODULES_KEY, hint='"all-linear" selects all layers'))
    # No layer can have an adapter and be trained as a whole.
    target_paths = {linear.path for name in names_in(target_modules) for linear in _linears_of(shape, name)}
    saved_modules = _named_modules(shape, names_in(modules_to_save))
    if not problems and (name := next((entry.name for entry in saved_modules if entry.path in target_paths), "")):
        hint = f"remove {name} from {SAVED_KEY}, or set {MODULES_KEY} to a list of layers without {name}"
        problems.append(Problem(message=f"{name} gets an adapter, so it is frozen", key=SAVED_KEY, hint=hint))
    if problems:
        raise ConfigError(problems)
    unique_names: dict[str, None] = {}
    for name in names_in(target_modules):
        unique_names |= dict.fromkeys(target_names(shape) if _is_all(name) else (name,))
    return tuple(unique_names)


def adapted_linears(shape: ModelShape, targets: Iterable[str]) -> tuple[Linear, ...]:
    """Return the linear layers outside of the head whose paths end with one of the target names."""
    names, layers = tuple(targets), (linear for linear in shape.linears if not linear.is_head)
    return tuple(linear for linear in layers if any(_matches(name, linear.path) for name in names))


def adapter_parameters(linears: Iterable[Linear], r: int, use_dora: bool = False) -> int:
    """Return the number of adapter weights: r x (inputs + outputs) for each layer; with DoRA, also one per output.

    Sources: LoRA, arXiv:2106.09685, section 4.1; DoRA, arXiv:2402.09353, section 4.1."""
    return sum(linear.count * (r * (linear.inputs + linear.outputs) + use_dora * linear.outputs) for linear in linears)


def saved_module_parameters(shape: ModelShape, modules_to_save: str) -> int:
    """Return the number of weights in modules that train as a whole. A tied head among them is no longer tied."""
    return sum(entry.parameters for entry in _named_modules(shape, names_in(modules_to_save)))


def saves_head(shape: ModelShape, modules_to_save: str) -> bool:
    """Return whether the matrix that computes the logits trains as a whole. A tied head trains with the embedding."""
    modules = _named_modules(shape, names_in(modules_to_save))
    saves_tied_embedding = shape.tied_embeddings and saves_embedding(shape, modules_to_save)
    return saves_tied_embedding or any(entry.is_head for entry in modules)


def saves_embedding(shape: ModelShape, modules_to_save: str) -> bool:
    """Return whether the embedding of the vocabulary is trained as a whole."""
    entries = _named_modules(shape, names_in(modules_to_save))
    tables = (entry for entry in entries if isinstance(entry, ModelPart) and entry.is_embedding)
    return any(table.rows == shape.vocabulary for table in tables)


def target_names(shape: ModelShape) -> tuple[str, ...]:
    """Return the names that can be targets, each once, in the order of the layers.

    If a part of the head has the same name (RoBERTa's `dense`), the whole path is used."""
    head_names = {linear.name for linear in shape.linears if linear.is_head}
    body = (linear for linear in shape.linears if not linear.is_head)
    return tuple(dict.fromkeys(linear.path if linear.name in head_names else linear.name for linear in body))


def head_modules(shape: ModelShape) -> tuple[str, ...]:
    """Return the modules of a classifier's head, by the names that `modules_to_save` takes; none for other heads.

    They are new or belong to another task. Under LoRA they would stay random unless they are trained as a whole."""
    if shape.head not in CLASSIFYING_HEADS:
        return ()
    head_paths = (entry.path.partition(".")[0] for entry in _modules(shape) if entry.is_head)
    return tuple(dict.fromkeys(head_paths))


def is_all_linear(target_modules: str) -> bool:
    return any(map(_is_all, names_in(target_modules)))


def _is_all(name: str) -> bool:
    return name.lower() == ALL_LINEAR


def _matches(name: str, path: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _named_modules(shape: ModelShape, names: Iterable[str]) -> list[Linear | ModelPart]:
    """Return the modules that names in `modules_to_save` match. The name of the head matches all of its parts."""
    path_endings = tuple(names)
    return [
        entry
        for entry in _modules(shape)
        if entry.path.endswith(path_endings) or (entry.is_head and entry.path.partition(".")[0].endswith(path_endings))
    ]


def _modules(shape: ModelShape) -> tuple[Linear | ModelPart, ...]:
    return (*shape.linears, *shape.parts)


def _linears_of(shape: ModelShape, name: str) -> tuple[Linear, ...]:
    return adapted_linears(shape, target_names(shape) if _is_all(name) else (name,))


def _target_problem(shape: ModelShape, name: str) -> Problem | None:
    if _linears_of(shape, name):
        return None
    if any(_matches(name, entry.path) for entry in _modules(shape)):
        message = f"{one_line(name, 80)} is not a linear layer inside the model and gets no adapter"
        return Problem(message=message, key=MODULES_KEY, hint=f"to train it as a whole, add it to {SAVED_KEY}")
    return _unknown(name, target_names(shape), MODULES_KEY, "linear layers")


def _saved_problem(shape: ModelShape, name: str) -> Problem | None:
    if _named_modules(shape, [name]):
        return None
    names = tuple(dict.fromkeys(entry.name for entry in _modules(shape)))
    return _unknown(name, names, SAVED_KEY, "modules")


def _unknown(name: str, existing: tuple[str, ...], key: str, kind: str) -> Problem:
    similar_names = get_close_matches(name.rpartition(".")[2], existing, n=2, cutoff=0.6)
    suggestion = f"did you mean {' or '.join(similar_names)}? " if similar_names else ""
    listed_names = one_line(", ".join(existing), 300)
    message = f"the model has no module called {one_line(name, 80)}"
    return Problem(message=message, key=key, hint=f"{suggestion}{kind} of the model: {listed_names}")
