"""[data] and [dataloader]: what is learnt from, and how it reaches the model."""

from typing import Literal

from tui_trainer.config.fields import Auto, Numbers, PositiveInt, Section, WholeNumber, option
from tui_trainer.config.mixture import Paths


class DataSection(Section):
    path: Paths = option(
        "",
        "Files, folders, globs, data sets of the hub (owner/name), sample:NAME, with commas: text, JSONL, JSON, CSV, "
        "Parquet, Arrow, saved datasets.",
        completes="files",
    )
    name: str = option("", "The configuration, where a data set has several, such as a language; empty: the only one.")
    split: str = option(
        "",
        "The split to train on, or a slice as datasets writes it, such as train[:10%], train[1000:] or train+extra; "
        "empty: train.",
    )
    eval_split: str = option(
        "",
        "The split to measure on, or a slice of it, in data.eval_path or else in data.path; empty: validation.",
    )
    streaming: bool = option(
        False,
        "Read data sets that are not on this machine from the hub: once prepared, only their tokens stay on the disk.",
        advanced=True,
    )
    revision: str = option("", "A branch, a tag or a commit of data sets of the hub; empty: main.", advanced=True)
    weights: Numbers = option(
        "",
        "How often each row of a source is used in an epoch, a number for each path with commas: 2 = twice, "
        "0.5 = a half of them, chosen by data.seed; empty: once.",
    )
    eval_path: Paths = option(
        "",
        "Other sources to measure on, with commas; empty: the validation split of data.path where there is one, else "
        "eval_fraction of the text is held out.",
        completes="files",
    )
    text_column: str = option("auto", "The column of a table that holds the text; auto: the one that looks like it.")
    text_pair_column: str = option("", "The column of a second text that is read with the first; empty: none.")
    label_column: str = option("auto", "The column of labels or tags; auto: the one with a usual name.")
    target_column: str = option("auto", "The column of answers or summaries; auto: the one with a usual name.")
    eval_fraction: float = option(
        0.1,
        "Share of the text held out, whole documents at a time, to measure what was learnt, where neither eval_path "
        "nor a validation split is measured on.",
        low=0,
        high=0.9,
        step="+0.05",
    )
    max_length: int = option(
        256,
        "Tokens in a row.",
        low=2,
        high=1048576,
        unit="tokens",
        memory="activations grow with it",
        speed="attention with its square",
        step="x2",
    )
    packing: Literal["auto"] | bool = option(
        "auto",
        "Several documents of a batch in one row, without attention between them; auto: where that saves padding.",
        speed="no time for padding",
    )
    group_by_length: bool = option(
        False,
        "Draw batches from documents of similar length, which need less padding where they are not packed.",
        speed="less padding",
        advanced=True,
    )
    on_bad_rows: Literal["stop", "skip"] = option(
        "stop", "Rows that cannot be used: stop and list them, or skip and count them."
    )
    dedup: bool = option(False, "Use each text once: repeats, and what is held out as well, leave the training data.")
    max_rows: int = option(
        0, "Use at most so many rows of each source; 0: all.", low=0, unit="rows", step="1-2-5", advanced=True
    )
    num_proc: PositiveInt | Auto = option(
        "auto",
        "Processes that make tokens; auto: one, and of a table's rows one a core where the data is large.",
        speed="tokenising goes in proportion",
        advanced=True,
    )
    max_chars: int = option(
        0,
        "Use at most so many characters of the text of each source; 0: all.",
        low=0,
        unit="characters",
        step="1-2-5",
        advanced=True,
    )
    seed: int = option(
        42, "Decides what is held out, and which rows a weight below 1 takes.", low=0, high=2**63 - 1, advanced=True
    )


class DataloaderSection(Section):
    num_workers: WholeNumber | Auto = option(
        "auto",
        "Threads that make batches ahead of the training; 0: made when they are needed.",
        speed="hides the making of batches behind the device's work",
        step="+1",
    )
    prefetch_factor: int = option(2, "Batches that each of them makes ahead.", low=1, high=1000, advanced=True)
    pin_memory: bool = option(
        True, "Keep batches where a GPU reads them without a copy.", speed="copies run beside the work", advanced=True
    )
