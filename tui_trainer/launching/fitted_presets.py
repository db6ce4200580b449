"""Fitting presets: a preset that does not suit the model, the data or the Slurm job is replaced, with a note.

Values that the user wrote are not replaced. If they do not fit, they are refused.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from tui_trainer.config.changes import with_changes
from tui_trainer.config.load import LoadedConfig, all_settings, value_of
from tui_trainer.config.sections import DATA_KEY, MODEL_KEY, Config
from tui_trainer.data.columns.conversations import NO_CONVERSATIONS
from tui_trainer.data.columns.labels import holds_labels, label_columns
from tui_trainer.data.columns.row import AUTO, Row, columns_of, kind_of_rows
from tui_trainer.data.columns.text_columns import SECOND_TEXT_KEY, ColumnChoices, head_of, pair_of_texts
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.errors import ConfigError, DataError, InputError
from tui_trainer.launching.run_as_model import with_run_as_model
from tui_trainer.methods.tuning_methods import METHOD_KEY
from tui_trainer.models.adapters import adapter_settings, should_continue_adapter
from tui_trainer.models.facts import find_model
from tui_trainer.models.heads import CAUSAL, lacks_head
from tui_trainer.models.problems import length_problems
from tui_trainer.planning.ancestry import run_of_model
from tui_trainer.planning.conflicts import setting_problems
from tui_trainer.planning.unread_settings import unread_settings
from tui_trainer.runs.folder import RunFolder, read_fields
from tui_trainer.runs.slurm import Allocation
from tui_trainer.tasks import find_task, task_names
from tui_trainer.tasks.parts.learns_from_data import named_columns
from tui_trainer.terminal.safe_text import one_line

_TASK = "task.type"
# Recipes for any model set causal_lm, which means "not chosen" until the rows have been read.
_ANY_MODEL, _CHAT, _CLASSES, _TAGS = "causal_lm", "chat", "sequence_classification", "token_classification"
_CHARACTERS = "char_lm"
# The settings that name the data.
_DATA_KEYS = (DATA_KEY, "data.name", "data.split")
TEXT = "data.text_column"
COLUMN_ROLES = {
    TEXT: "text", SECOND_TEXT_KEY: "second text", "data.label_column": "label", "data.target_column": "answer",
}  # fmt: skip


def with_fitted_presets(loaded: LoadedConfig) -> LoadedConfig:
    """Return the config with its presets fitted to its model and data. Waits for the first rows of the data."""
    loaded = _with_adapter_that_fits(_with_task_that_fits(with_run_as_model(loaded)))
    return _with_length_that_fits(_with_classes_that_fit(_with_texts_that_fit(loaded)))


def with_nodes_of_step(loaded: LoadedConfig) -> LoadedConfig:
    """Return the config with as many nodes as the Slurm step has. Raises ConfigError if the user set another number."""
    allocation, key = Allocation.of_this_process(), "distributed.nodes"
    if allocation is None or allocation.node_count in (1, loaded.config.distributed.nodes):
        return loaded
    if loaded.origin(key).by_user:
        message = f"is {loaded.config.distributed.nodes}, but this Slurm step has {allocation.node_count} nodes"
        raise ConfigError(loaded.problem(key, message, "remove the setting: Slurm provides the number of nodes"))
    return loaded.with_fitted_value(key, allocation.node_count, f"this Slurm step has {allocation.node_count} nodes")


@contextmanager
def fitted_task_named(loaded: LoadedConfig) -> Iterator[None]:
    """If the task refuses the data within this context, add to the error why the program chose this task."""
    try:
        yield
    except DataError as error:
        reason = loaded.fitted_because(_TASK)
        rows = _first_rows(loaded.data) if reason else ()
        is_of_task = rows and _refusal_of_rows(loaded.config, loaded.config.task.type, rows)[0]
        if not is_of_task or any(reason == problem.message for problem in error.problems):
            raise
        *others, last = error.problems
        task_reason = f"{_TASK} = {loaded.config.task.type} was chosen because {reason}"
        raise DataError([*others, replace(last, hint="; ".join(filter(None, (last.hint, task_reason))))]) from None


def with_unread_noted(loaded: LoadedConfig, *, has_gpu: bool) -> LoadedConfig:
    """Return the config with a note on each value of the user without an effect, and on columns that are not used."""
    unread_keys = dict[tuple[str, str], list[str]]()
    for key, reason in unread_settings(loaded.config, has_gpu=has_gpu).items():
        if loaded.origin(key).by_user and value_of(loaded.config, key) != all_settings()[key].default:
            unread_keys.setdefault((loaded.where(key), reason), []).append(key)
    notes = (
        f"{', '.join(keys)} ({where}) {'has' if len(keys) == 1 else 'have'} no effect: {reason}"
        for (where, reason), keys in unread_keys.items()
    )
    unused_columns = ", ".join(f"'{one_line(name, 30)}'" for name in with_columns_found(loaded).unused_columns)
    column_notes = [f"columns not used by the task {loaded.config.task.type}: {unused_columns}"] * bool(unused_columns)
    return replace(loaded, notes=(*loaded.notes, *notes, *column_notes))


def change_words(before: LoadedConfig, after: LoadedConfig) -> str:
    """Return which presets changed because the user chose another model or other data; empty if none did.

    Example: `the task is now sequence_classification, from the columns of x.csv; columns: text body, label kind`."""
    change_texts = (_changed_recipe_and_task(before, after), *_changed_presets(before, after))
    return "; ".join(filter(None, change_texts)) if _changed_sources(before, after) else ""


def _changed_sources(before: LoadedConfig, after: LoadedConfig) -> list[str]:
    return [key for key in (MODEL_KEY, *_DATA_KEYS) if value_of(before.config, key) != value_of(after.config, key)]


def _changed_presets(before: LoadedConfig, after: LoadedConfig) -> Iterator[str]:
    """Yield the changes of fitted presets other than the task, and the columns that were found."""
    for key in (key for key in after.layers if after.fitted_because(key) and key not in (_TASK, *COLUMN_ROLES)):
        if (value := value_of(after.config, key)) != value_of(before.config, key):
            yield f"{all_settings()[key].name} is now {value}"
    if after.columns and after.columns != before.columns:
        yield f"columns: {columns_words(after.columns)}"


def _changed_recipe_and_task(before: LoadedConfig, after: LoadedConfig) -> str:
    """Return how the recipe and the task changed, and why: `the task is now chat, ...`; empty if they did not."""
    changed_keys = _changed_sources(before, after)
    old_recipe_name, recipe_name = (loaded.recipe.name if loaded.recipe else "none" for loaded in (before, after))
    task, texts = after.config.task.type, list[str]()
    if recipe_name != old_recipe_name and not after.origin("profile").by_user:
        texts.append(f"the recipe is now {recipe_name}")
    if task != before.config.task.type and not after.origin(_TASK).by_user:
        texts.append(f"the task is now {task}")
    if not texts:
        return ""
    data_name, reason = one_line(Path(value_of(after.config, DATA_KEY)).name, 40), f"from recipe {recipe_name}"
    if after.fitted_because(_TASK) and task != before.config.task.type:
        if len(texts) == 2:  # a shorter form, for the narrowest terminal
            return f"now recipe {recipe_name} and task {task}, to fit model and {data_name}"
        reason = f"from {'the model and ' * (MODEL_KEY in changed_keys)}the columns of {data_name}"
    elif MODEL_KEY in changed_keys:
        reason = "because a model is set" if value_of(after.config, MODEL_KEY) else "because no model is set"
    return f"{' and '.join(texts)}, {reason}"


def _with_task_that_fits(loaded: LoadedConfig) -> LoadedConfig:
    """Return the config with a task that suits its model and rows, if neither the user nor the recipe chose a task."""
    config = loaded.config
    if loaded.origin(_TASK).by_user or config.task.type != _ANY_MODEL or not config.model.model_name_or_path:
        return loaded
    if (run := run_of_model(Path(config.model.model_name_or_path))) and _task_of(run) == _CHARACTERS:
        return loaded.with_fitted_value(_TASK, _CHARACTERS, f"the run {run.name} is a character model")
    relevant_config = with_changes(Config(), {name: getattr(config, name) for name in ("task", "data", "model")})
    task, reason = _task_that_fits(relevant_config, loaded.data, _signature(loaded.data))
    return loaded.with_fitted_value(_TASK, task, reason) if task else loaded


def with_columns_found(loaded: LoadedConfig) -> LoadedConfig:
    """Return the config with the columns that its task finds in the first rows; without columns if ambiguous."""
    config, columns, unused_columns = loaded.config, dict[str, str](), tuple[str, ...]()
    with suppress(InputError):
        task, rows = find_task(config.task.type), _first_rows(loaded.data)
        if rows and task.row_kind != "examples":
            columns["text_column"] = text_column = ColumnChoices(config.data.text_column).choose(rows)
            unused_columns = tuple(name for name in columns_of(rows) if name != text_column)
        elif rows:
            reader = task.reader_of_inputs(config)
            reader.begin(rows)
            columns.update(reader.found_columns)
    found_columns = {f"data.{name}": column for name, column in columns.items() if column}
    return replace(loaded, columns=found_columns, unused_columns=unused_columns)


def columns_words(columns: Mapping[str, str]) -> str:
    """Return the columns, keyed by setting, as text with role and name of each: `text body, label kind`."""
    return ", ".join(f"{COLUMN_ROLES[key]} {one_line(name, 30)}" for key, name in columns.items())


def misfit(loaded: LoadedConfig) -> str:
    """Return why the task does not suit the model and data that the user chose; empty if it does."""
    config, task = loaded.config, find_task(loaded.config.task.type)
    if problems := setting_problems(loaded):
        return problems[0].message
    is_named = loaded.origin(MODEL_KEY).by_user and config.model.model_name_or_path and not config.is_from_scratch
    if is_named and (refusal := _refusal_of_model(config, task.name)):
        return refusal
    if not loaded.origin(DATA_KEY).by_user:
        return ""
    if rows := _first_rows(loaded.data):
        return _refusal_of_rows(config, task.name, rows)[0]
    with suppress(InputError, OSError):
        is_text = not config.data.streaming and not loaded.data.parts[0].is_table
        return "it trains on the rows of a table" if is_text and task.row_kind == "examples" else ""
    return ""


def _task_of(run: RunFolder) -> str:
    """Return the task of a run; empty if its plan cannot be read."""
    settings = read_fields(run.plan).get("config")
    task = settings.get("task") if isinstance(settings, dict) else None
    return str(task.get("type")) if isinstance(task, dict) else ""


def _with_adapter_that_fits(loaded: LoadedConfig) -> LoadedConfig:
    """Return the config with the settings of an adapter that it continues, or `full` tuning if it merges it."""
    model, method_key = loaded.config.model, METHOD_KEY
    if not model.model_name_or_path or loaded.config.is_from_scratch:
        return loaded
    try:
        head = find_task(loaded.config.task.type).head
        facts = find_model(model.model_name_or_path, model.revision, head=head)
        adapter, tuning = facts.adapter, loaded.config.tuning
        if adapter is None:
            return loaded
        run, may_choose_method = run_of_model(adapter.folder), not loaded.origin(method_key).by_user
        source = f"the adapter of the run {run.name}" if run else f"the adapter in {one_line(adapter.folder.name, 40)}"
        if may_choose_method and tuning.continue_adapter == "merge" and tuning.has_adapter:
            return loaded.with_fitted_value(method_key, "full", f"{source} is merged, and the whole model is trained")
        if may_choose_method and tuning.continue_adapter != "merge" and not tuning.has_adapter:
            loaded = loaded.with_fitted_value(method_key, "lora", f"{source} is continued")
        if not should_continue_adapter(loaded.config.tuning) or not loaded.config.tuning.has_adapter:
            return loaded
        for key, value in adapter_settings(facts, adapter).items():
            if not loaded.origin(key).by_user and value_of(loaded.config, key) != value:
                loaded = loaded.with_fitted_value(key, value, f"{source} is continued")
    except ConfigError:  # reported later, with all other problems
        return loaded
    return loaded


def _with_texts_that_fit(loaded: LoadedConfig) -> LoadedConfig:
    """Return the config with both columns of a text pair, for a classifier whose columns the user did not name."""
    config = loaded.config
    if config.task.type != _CLASSES or config.data.text_column != AUTO or config.data.text_pair_column:
        return loaded
    columns = _columns_of_pair(config, _first_rows(loaded.data))
    note = f"the columns {' and '.join(columns.values())} hold pairs of texts; to train on one column only, set {TEXT}"
    for key, column in columns.items():
        loaded = loaded.with_fitted_value(key, column, note)
    return loaded


def _with_classes_that_fit(loaded: LoadedConfig) -> LoadedConfig:
    """Return the config with the label columns of data that has a 0/1 column per class, if the user named none."""
    data = loaded.config.data
    if loaded.config.task.type != _CLASSES or data.label_column != AUTO or not (rows := _first_rows(loaded.data)):
        return loaded
    class_columns: tuple[str, ...] = ()
    with suppress(DataError):  # reported when the rows are read
        class_columns = label_columns(AUTO, rows, "", (data.text_column, data.text_pair_column))
    if len(class_columns) < 2:
        return loaded
    note = f"each of these {len(class_columns)} columns holds 0 or 1; to train on other columns, set data.label_column"
    return loaded.with_fitted_value("data.label_column", ", ".join(class_columns), note)


def _columns_of_pair(config: Config, rows: Sequence[Row]) -> dict[str, str]:
    """Return the two columns of a text pair, keyed by setting; empty without a pair, or if a text column is named."""
    may_choose = config.data.text_column == AUTO and not config.data.text_pair_column
    column_pair = pair_of_texts(rows) if may_choose else None
    column_pair = None if column_pair and config.data.label_column in column_pair else column_pair
    return dict(zip((TEXT, SECOND_TEXT_KEY), column_pair, strict=True)) if column_pair else {}


def _signature(data: ResolvedData) -> Hashable:
    """Return the sizes and times of the data files, to notice changes; empty if unreadable, and for streamed data."""
    with suppress(InputError, OSError):
        return () if data.streaming else data.signature
    return ()


@lru_cache(maxsize=4)
def _task_that_fits(config: Config, data: ResolvedData, signature: Hashable) -> tuple[str, str]:
    """Return the task that fits the model and the data, and why causal_lm does not fit; else two empty texts.

    If no task can learn from the rows, return the task whose refusal has the clearest reason. The result is cached,
    because each edit asks again and the data may be on a slow disk."""
    refusals = {name: _refusal_of_model(config, name) for name in task_names()}
    candidates = [name for name, reason in refusals.items() if not reason]
    keys = named_columns(config)
    if reading_tasks := [name for name in candidates if set(keys) <= set(find_task(name).used_column_settings)]:
        refusals |= {name: f"{name} does not use data.{keys[-1]}" for name in candidates if name not in reading_tasks}
        candidates = reading_tasks
    is_generative = any(not find_task(name).labels_rows for name in candidates)
    if is_generative:
        # A generative model writes its answers. Tasks that mark them in the text must be named.
        candidates = [name for name in candidates if not find_task(name).is_only_by_columns]
    if not candidates:
        return "", ""
    rows = _first_rows(data)
    kind = kind_of_rows(rows) if config.data.text_column == AUTO else None
    if kind and (matching_task := next((name for name in kind.tasks if name in candidates), "")):
        best_task = matching_task
        refusals[_ANY_MODEL] = refusals[_ANY_MODEL] or f"the rows are {kind.description}"
    else:
        # Only pairs show that a model shall score answers.
        candidates = [name for name in candidates if not find_task(name).scores_answers] or candidates
        # A decoder learns labels or tags only if the columns say so, or if the user names the task.
        if _ANY_MODEL in candidates:
            candidates = [name for name in candidates if name in (_ANY_MODEL, _CHAT)]
        trials = {name: _refusal_of_rows(config, name, rows) for name in candidates} if rows else {}
        refusals |= {name: reason for name, (reason, _) in trials.items()}
        # If the classifier needs to know the kind of labels, they must not be learnt as tags instead.
        needs_kind = _CLASSES in trials and not trials[_CLASSES][1] and holds_labels(rows)
        readable_tasks = [name for name in candidates if not (refusals[name] or (needs_kind and name == _TAGS))]
        with_columns = {name for name, (_, has_columns) in trials.items() if has_columns}
        by_columns = [name for name in trials if name in with_columns or (needs_kind and name == _CLASSES)]
        is_question = kind is not None and kind.columns[0].strip().lower() in ("question", "query")
        tasks_for_question = [name for name in candidates if find_task(name).is_only_by_columns == is_question]
        if not (readable_tasks or is_generative) and kind and kind.tasks == (_CHAT,):
            return _CHAT, f"the rows are {kind.description}"  # chat then says why the model cannot learn them
        best_task = [*readable_tasks, *by_columns, *tasks_for_question, *candidates][0]
        if best_task == _ANY_MODEL and _CHAT in trials:
            reason, has_columns = trials[_CHAT]
            is_clear = not reason if has_columns else reason != NO_CONVERSATIONS
            if is_clear or (has_columns and refusals[_ANY_MODEL]):
                best_task, refusals[_ANY_MODEL] = _CHAT, refusals[_ANY_MODEL] or "the rows are conversations"
    return ("", "") if best_task == _ANY_MODEL else (best_task, refusals[_ANY_MODEL])


def _first_rows(data: ResolvedData) -> Sequence[Row]:
    """Return the first rows of a table on this machine; empty for other data, or if the table cannot be read.

    Waits even for a slow disk, because the choice of the task must not depend on the speed of the disk."""
    return () if data.streaming else _rows_of(data, _signature(data))


@lru_cache(maxsize=1)  # an edited config has the same rows
def _rows_of(data: ResolvedData, signature: Hashable) -> Sequence[Row]:
    with suppress(InputError, OSError):
        return head_of(data.parts[0].rows(ProblemList(), choices=ColumnChoices(data.text_column)))[0]
    return ()


def _refusal_of_model(config: Config, name: str) -> str:
    """Return why the config's model cannot learn the task `name`; empty if it can."""
    task = find_task(name)
    if task.row_kind == "stream":
        return f"{name} trains from scratch"
    try:
        facts = find_model(config.model.model_name_or_path, config.model.revision, head=task.head)
    except InputError as error:
        return error.problems[0].message
    # Only models that could write answers score them.
    is_encoder = lacks_head(str(facts.config.get("model_type")), CAUSAL)
    return f"{name} needs a decoder" if task.scores_answers and is_encoder else ""


def _refusal_of_rows(config: Config, name: str, rows: Sequence[Row]) -> tuple[str, bool]:
    """Return why the task `name` cannot learn from the rows (empty if it can), and whether it found its columns."""
    task, refusal = find_task(name), ""
    try:
        if task.row_kind != "examples":
            column = ColumnChoices(config.data.text_column).choose(rows)
            holds_text = any(isinstance(row.values.get(column), str) for row in rows)
            return "" if holds_text else f"the column '{one_line(column, 40)}' holds no text", True
        columns = _columns_of_pair(config, rows) if name == _CLASSES else {}
        reader = task.reader_of_inputs(with_changes(config, {_TASK: name, **columns}))
        reader.begin(rows)
    except InputError as error:
        return error.problems[0].message, False
    for row in rows:
        try:
            reader.read(row)
        except InputError as error:
            refusal = error.problems[0].message
        else:
            return "", True
    return refusal, True


def _with_length_that_fits(loaded: LoadedConfig) -> LoadedConfig:
    """Return the config with `data.max_length` within the model's positions, unless the user set it."""
    key, model = "data.max_length", loaded.config.model
    if loaded.origin(key).by_user or not model.model_name_or_path:
        return loaded
    try:
        shape = find_task(loaded.config.task.type).model_shape(loaded.config, vocabulary=1)
    except ConfigError:  # reported later, with all other problems
        return loaded
    position_count = shape.max_position_embeddings
    if position_count is None or not length_problems(shape, loaded.config.data.max_length):
        return loaded
    reason = f"this {shape.model_type} model has {position_count} positions"
    return loaded.with_fitted_value(key, position_count, reason)
