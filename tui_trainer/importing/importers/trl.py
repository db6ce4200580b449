"""TRL's `SFTConfig`, with the model and data arguments of its command line.

Source: trl/trainer/sft_config.py and trl/trainer/model_config.py of TRL 1.x; older names where they were renamed.
"""

from tui_trainer.importing.conversion import Conversion, Group, Importer
from tui_trainer.importing.groups import LOSS_ON_PARTS, batch, method, write_part, write_places
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.rules import Automatic, Off, Same, To, Why, under
from tui_trainer.importing.values import off
from tui_trainer.safe_text import one_line

# Which are found by their names.
_USUAL_COLUMNS = frozenset("messages conversations prompt completion text".split())
# Its defaults: data without a split of that name would be refused.
_TRAIN = Automatic("of data with splits, train is trained on")
_TEST = Automatic(
    "its default; the validation split is evaluated on, else held-out rows; data.eval_split names another"
)


def _no_cut(done: Conversion) -> None:
    if done.given.get("max_length", 0) is None:
        done.leave(Why.DOES_NOT_FIT, "no row is cut there; set data.max_length to the longest row", "max_length")


def _mixture(done: Conversion) -> None:
    """Its list of data sets, whose rows are used one after another."""
    entries = write_places(done, "datasets", "data.path")
    if not entries:
        return
    read = {"path", "data_files", "data_dir", *write_part(done, "datasets", entries, trained=True)}
    columns = [one.get("columns") or [] for one in entries]
    if len(columns[0]) == 1 and all(some == columns[0] for some in columns):
        done.write("data.text_column", columns[0][0], "datasets")
        read |= {"columns"}
    elif all(set(map(str, some)) <= _USUAL_COLUMNS for some in columns):
        read |= {"columns"}
    unread = (str(key) for one in entries for key, value in one.items() if key not in read and not off(value))
    if rest := list(dict.fromkeys(unread)):
        names = one_line(", ".join(rest), 60)
        done.leave(Why.REFUSED, f"not read of it: {names}; it could change which rows are learnt", "datasets")


def _whole_conversations(done: Conversion) -> None:
    """What is learnt where no key says it."""
    if done.has("model_name_or_path") and "task.loss_on" not in done.values:
        reason = 'it learns whole conversations; of rows with a prompt and a completion, "completion" alone'
        done.write("task.loss_on", "all", reason=reason)


IMPORTER = Importer(
    name="trl",
    title="TRL SFTConfig",
    rank=2,
    telltale="""dataset_text_field packing_strategy padding_free completion_only_loss assistant_only_loss
    dataset_num_proc dataset_kwargs eval_packing chat_template_path use_peft lora_task_type use_bnb_nested_quant
    dataset_train_split dataset_test_split num_of_sequences chars_per_token truncation_mode""",
    tables=(
        hf.ARGUMENTS, hf.MODEL, hf.LORA, hf.FOUR_BITS, hf.HUB_DATA, under("model_init_kwargs", hf.MODEL),
        {
            "max_length max_seq_length": "data.max_length",
            "packing": hf.PACKING,
            "eval_packing": Automatic("held-out rows are packed as the others are"),
            "packing_strategy num_of_sequences": Automatic("rows are filled by best fit"),
            "padding_free": Automatic("packed rows have no padding"),
            "pad_to_multiple_of": Automatic("rows are padded to the longest of their batch"),
            "truncation_mode": Same(("keep_start",), "the start is kept", "the start of a long row is kept here"),
            "shuffle_dataset": hf.NEW_ORDER,
            "dataset_text_field": "data.text_column",
            "dataset_num_proc": "data.num_proc",
            "dataset_batch_size": Automatic("data is prepared in pieces of a fitting size"),
            "dataset_kwargs": Off("data is always prepared"),
            "dataset_train_split": To("data.split", values={"train": _TRAIN}),
            "dataset_test_split": To("data.eval_split", values={"test": _TEST}),
            "dataset_streaming streaming": "data.streaming",
            "datasets": Off("data.path names files and folders"),
            "test_split_size": "data.eval_fraction",
            "chat_template_path": "task.chat_template",
            "eos_token": Off("the end of a text is the tokenizer's own token"),
            "pad_token": Off("padding never counts, so its token does not matter"),
            "model_init_kwargs.revision": "model.revision",
            "chars_per_token": Automatic("tokens are counted"),
            "loss_type": Same(("nll", "chunked_nll"), "cross entropy, in chunks on a GPU", "the loss is cross entropy"),
            "activation_offloading": Off("activations stay on the GPU; training.gradient_checkpointing saves them"),
            "lora_task_type": Automatic("task.type says it"),
            "use_bnb_nested_quant": "quantization.bnb_4bit_use_double_quant",
            "gradient_checkpointing_use_reentrant": Automatic("checkpointing is never reentrant"),
        },
    ),
    groups=(
        batch(hf.MICRO, micro_default=8, packing="packing"),
        Group(("max_length",), _no_cut),
        *hf.GROUPS,
        Group(("datasets",), _mixture),
        LOSS_ON_PARTS,
        Group((), _whole_conversations),
        method(
            "use_peft", {True: "lora", False: "full"}, four_bit=("load_in_4bit",), model=("model_name_or_path",),
            otherwise="full",
        ),
    ),
    defaults={
        **hf.DEFAULTS, "training.learning_rate": 2e-5, "training.gradient_checkpointing": True,
        "data.max_length": 1024, "data.packing": False, "data.eval_fraction": 0, "tuning.lora_dropout": 0.05,
    },
)  # fmt: skip
