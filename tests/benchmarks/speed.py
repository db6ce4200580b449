"""Real tokens a second on short documents, against the plain Hugging Face Trainer and against bare loops.

    python tests/benchmarks/speed.py [--rounds N] [--shape small] [--method full] [--device cpu] [--apart]

One Llama of a shape of `llamas.py`, one set of documents (of about 50 tokens with a limit of 256 for the small one),
the same documents in every step for everybody. The contenders take turns, some steps each, in one process; the figures
are medians of the rounds' ratios. --json FILE keeps them.

    ours        the program's own components and step, packed as its plan says
    trainer     transformers.Trainer with its own collator: rows padded to the longest of the batch
    trl         the same with TRL's SFTTrainer, where it is installed
    bare        a hand-written loop over the very batches of ours, without anything else

With --method lora they train LoRA on all linear layers, with qlora beside weights in 4 bits; without --method a race of
full and one of LoRA. --apart builds each contender for its turn only, which large models need and which shows the
memory of each; on a card, bf16 with fp32 weights where these train. Real tokens are labels: padding does not count. The
held-out losses of ours and of the Trainer after equal steps are printed, where both are there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["TUI_TRAINER_HOME"] = tempfile.mkdtemp(prefix="speed-home-")

from tui_trainer.hardware.environment import prepare_environment
from tui_trainer.planning.measured_steps import NOT_ALLOCATED

prepare_environment()

import numpy as np
import torch
from llamas import SHAPES, Llama, make
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments
from transformers.utils import logging as transformers_logging

from tui_trainer.config.load import Request
from tui_trainer.data.batching.row_order import RowOrder
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.errors import InputError
from tui_trainer.hardware.gpu_models import find_card
from tui_trainer.hardware.probe import probe
from tui_trainer.launching.open_run import load_config
from tui_trainer.planning import plan as planning
from tui_trainer.runs.folder import RunFolder
from tui_trainer.tasks import find_task
from tui_trainer.training.batches import micro_batches_of_rows
from tui_trainer.training.compiled import compiler
from tui_trainer.training.components import Components
from tui_trainer.training.evaluate import evaluate
from tui_trainer.training.job import Job
from tui_trainer.training.process import settings_of
from tui_trainer.training.step import take_step

STEPS_A_TURN, LR = 5, 1e-3
RANK, ALPHA = 16, 32
NAMES = ("ours", "trainer", "trl", "bare")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all contenders train."""

    llama: Llama
    model: Path
    documents: Path
    method: str
    device: str
    settings: Mapping[str, str]
    place: Path

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights: where they are frozen on a card, those of its matmuls."""
        return torch.bfloat16 if self.device == "cuda" and self.method != "full" else torch.float32

    @cached_property
    def job(self) -> Job:
        """What a run of the program would train with. Raises ConfigError when it does not fit."""
        settings = {
            "tuning.method": self.method,
            "tuning.r": RANK,
            "tuning.lora_alpha": ALPHA,
            "data.max_length": self.llama.max_length,
            "training.effective_batch_size": self.llama.effective,
            "training.max_steps": 100_000,
            "training.learning_rate": LR,
            "training.lr_scheduler_type": "constant",
            "output.runs_dir": self.place,
            **({"training.mixed_precision": "no"} if self.device == "cpu" else {}),
            **self.settings,
        }
        shortcuts = {"data.path": str(self.documents), "model.model_name_or_path": str(self.model)}
        assignments = tuple(f"{key}={value}" for key, value in settings.items())
        gpu = "none" if self.device == "cpu" else None
        loaded = load_config(Request(assignments=assignments, shortcuts=shortcuts), gpu=gpu)
        task = find_task(loaded.config.task.type)
        data = task.prepare(loaded.config, loaded.data, self.place / "cache", lambda *_: None)
        plan = planning.make(loaded, probe(), task.facts(loaded.config, data), chosen_gpu=gpu)
        folder = RunFolder(self.place / "run")
        return Job(plan=plan, data=data, folder=folder, checkpoint=None, baselines=None, versions={})


@dataclass(frozen=True)
class Entrant:
    """A contender that is ready: `take(first_step)` takes STEPS_A_TURN steps and returns the real tokens of them."""

    take: Callable[[int], int]
    model: Any
    components: Components | None = None


@dataclass(frozen=True)
class Contender:
    """`open()` makes it ready; it has its memory until it is closed."""

    name: str
    open: Callable[[], AbstractContextManager[Entrant]]


@dataclass(kw_only=True)
class Rates:
    """Of one contender, a number for each round. `peak_memory_bytes` is that of the card, where it was there alone."""

    tokens_per_second: list[float] = field(default_factory=list)
    steps_per_second: list[float] = field(default_factory=list)
    peak_memory_bytes: int = 0
    problems: list[str] = field(default_factory=list)


@contextmanager
def components_of(setup: Setup, told: list[str]) -> Iterator[Components]:
    """What a run of the program trains with, in the process as such a run sets it."""
    job = setup.job
    with settings_of(job.plan), compiler() if job.plan.config.training.torch_compile else nullcontext():
        components = Components(job, lambda *words: told.append(": ".join(words[:2])))
        try:
            yield components
        finally:
            components.close()


@contextmanager
def ours(setup: Setup, told: list[str]) -> Iterator[Entrant]:
    with components_of(setup, told) as components:

        def take(first: int) -> int:
            tokens = 0
            for step in range(first, first + STEPS_A_TURN):
                report = take_step(
                    partial(components.micro_batches_of, step), components.loss, components.optimizer,
                    components.mixed_precision, components.clock, lr=components.learning_rate(step), max_grad_norm=1.0,
                )  # fmt: skip
                tokens += report.token_count
            return tokens

        yield Entrant(take, components.model, components)


@contextmanager
def bare(setup: Setup, told: list[str]) -> Iterator[Entrant]:
    """The same model and packed batches, and nothing that is not needed: all logits, and torch's own AdamW."""
    with components_of(setup, told) as components:
        model: Any = components.model
        # The hook narrows the head to the tokens that train: a bare loop has none.
        model.get_output_embeddings()._forward_pre_hooks.clear()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=LR, fused=True)

        def take(first: int) -> int:
            tokens = 0
            for step in range(first, first + STEPS_A_TURN):
                window = components.batches.micro_batches_of(step)
                count = sum(batch.label_count for batch in window)
                for batch in (batch.to(components.device) for batch in window):
                    with components.mixed_precision.autocast():
                        logits = model(**batch.inputs, use_cache=False).logits.flatten(0, 1)
                    if len(batch.label_positions) < len(logits):
                        logits = logits[batch.label_positions]
                    loss = torch.nn.functional.cross_entropy(logits.float(), batch.labels, reduction="sum") / count
                    loss.backward()
                torch.nn.utils.clip_grad_norm_(trained, 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                tokens += count
            return tokens

        yield Entrant(take, model)


class _Documents(torch.utils.data.Dataset):
    """The documents of the steps, in their order."""

    def __init__(self, rows: Rows, order: Any) -> None:
        self._rows, self._order = rows, order

    def __len__(self) -> int:
        return 10 * len(self._rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        epoch, place = divmod(index, len(self._rows))
        return {"input_ids": self._rows.row(int(self._rows_of(epoch)[place])).tolist()}

    @lru_cache(maxsize=2)  # noqa: B019  # one for the life of the process
    def _rows_of(self, epoch: int) -> np.ndarray:
        first = epoch * self._order.steps_per_epoch + 1
        return np.concatenate([self._order.at(step) for step in range(first, first + self._order.steps_per_epoch)])


@contextmanager
def hugging_face(setup: Setup, rows: Rows, order: Any, *, with_trl: bool = False) -> Iterator[Entrant]:
    """transformers.Trainer on the same documents in the same order, one optimizer step for as many of them."""
    from transformers import DataCollatorForLanguageModeling

    tokenizer, model = AutoTokenizer.from_pretrained(setup.model), plain_model(setup)
    settings: dict[str, Any] = {
        "output_dir": str(setup.place / "hf"), "per_device_train_batch_size": setup.llama.micro_batch,
        "gradient_accumulation_steps": setup.llama.effective // setup.llama.micro_batch, "learning_rate": LR,
        "max_steps": 10**6, "lr_scheduler_type": "constant", "save_strategy": "no", "logging_strategy": "no",
        "report_to": "none", "disable_tqdm": True, "max_grad_norm": 1.0, "weight_decay": 0.0,
        "use_cpu": setup.device == "cpu", "bf16": setup.device == "cuda",
    }  # fmt: skip
    collator, documents = DataCollatorForLanguageModeling(tokenizer, mlm=False), _Documents(rows, order)
    if with_trl:
        from datasets import Dataset
        from trl import SFTConfig, SFTTrainer

        # TRL recomputes activations unless it is told not to; the others do not.
        more = {"max_length": setup.llama.max_length, "dataset_kwargs": {"skip_prepare_dataset": True},
                "gradient_checkpointing": False}  # fmt: skip
        table = Dataset.from_list([documents[index] for index in range(len(rows))])
        trainer: Trainer = SFTTrainer(
            model, args=SFTConfig(**settings, **more), train_dataset=table, processing_class=tokenizer,
            data_collator=collator,
        )  # fmt: skip
    else:
        trainer = Trainer(
            model=model, args=TrainingArguments(**settings), train_dataset=documents, data_collator=collator
        )
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(trainer.train_dataset)
    with turns_of(trainer) as take_turn:

        def take(first: int) -> int:
            take_turn()
            return sum(labels_of(rows, order, step) for step in range(first, first + STEPS_A_TURN))

        yield Entrant(take, model)


def plain_model(setup: Setup) -> Any:
    """As a person would load it for the Trainer."""
    if setup.method == "full":
        return AutoModelForCausalLM.from_pretrained(setup.model, dtype=setup.dtype)
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    more: dict[str, Any] = {}
    if setup.method == "qlora":
        from transformers import BitsAndBytesConfig

        more["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )  # fmt: skip
        more["device_map"] = {"": 0}
    model: Any = AutoModelForCausalLM.from_pretrained(setup.model, dtype=setup.dtype, **more)
    if setup.method == "qlora":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    adapter = LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, target_modules="all-linear")
    return get_peft_model(model, adapter)


@contextmanager
def turns_of(trainer: Trainer) -> Iterator[Callable[[], None]]:
    """The Trainer runs in a thread of its own and is let go for some steps at a time."""
    import threading

    from transformers import TrainerCallback

    go, done = threading.Semaphore(0), threading.Semaphore(0)
    failures: list[BaseException] = []

    class _Gate(TrainerCallback):
        ended = False

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            go.acquire()
            if self.ended:
                raise _Ended

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            done.release()

    def train() -> None:
        try:
            trainer.train()
        except _Ended:
            pass
        except Exception as error:
            failures.append(error)
            done.release()

    gate = _Gate()
    trainer.add_callback(gate)
    thread = threading.Thread(target=train, daemon=True)
    thread.start()

    def turn() -> None:
        for _ in range(STEPS_A_TURN):
            go.release()
        for _ in range(STEPS_A_TURN):
            done.acquire()
            if failures:
                raise failures[0]

    try:
        yield turn
    finally:
        gate.ended = True
        go.release()
        thread.join()


class _Ended(Exception):
    """The race is over."""


def labels_of(rows: Rows, order: Any, step: int) -> int:
    """The labels of a step, from the lengths of its documents alone."""
    return int((rows.lengths[order.at(step)] - 1).sum())


def race(contenders: Sequence[tuple[str, Entrant]], rounds: int, first: int = 1) -> dict[str, Rates]:
    """All are ready at once; the first turn of each warms up. The order turns with the rounds."""
    rates = {name: Rates() for name, _ in contenders}
    for number in range(rounds + 1):
        for name, entrant in rotated(contenders, number):
            time_turn(entrant, first + number * STEPS_A_TURN, rates[name] if number else Rates())
    return rates


def race_apart(contenders: Sequence[Contender], rounds: int, first: int = 1) -> tuple[dict[str, Rates], dict[str, str]]:
    """One is there at a time: made, warmed up for a turn, timed for two, and gone. (rates, who failed and why.)"""
    rates: dict[str, Rates] = {contender.name: Rates() for contender in contenders}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for contender in rotated(contenders, number):
            if contender.name in failed:
                continue
            found = rates[contender.name]
            forget_peak()
            try:
                with contender.open() as entrant:
                    time_turn(entrant, first, Rates())
                    for turn in (1, 2):
                        time_turn(entrant, first + turn * STEPS_A_TURN, found)
                    if torch.cuda.is_initialized():
                        found.peak_memory_bytes = max(found.peak_memory_bytes, torch.cuda.max_memory_allocated())
            except (RuntimeError, ValueError, TypeError, ImportError, AttributeError, InputError) as error:
                failed[contender.name] = f"{type(error).__name__}: {str(error)[:300]}"
    return {name: found for name, found in rates.items() if found.tokens_per_second}, failed


def rotated(contenders: Sequence[Any], number: int) -> Sequence[Any]:
    shift = number % len(contenders)
    return [*contenders[shift:], *contenders[:shift]]


def time_turn(entrant: Entrant, first: int, rates: Rates) -> None:
    wait()
    started = perf_counter()
    tokens = entrant.take(first)
    wait()
    seconds = perf_counter() - started
    rates.tokens_per_second.append(tokens / seconds)
    rates.steps_per_second.append(STEPS_A_TURN / seconds)


def wait() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def forget_peak() -> None:
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def ratio(rates: Mapping[str, Rates], mine: str, other: str) -> float:
    pairs = zip(rates[mine].tokens_per_second, rates[other].tokens_per_second, strict=True)
    return median(ours / theirs for ours, theirs in pairs)


def held_out_loss(components: Components, model: Any) -> float:
    """Nats a token of any model with this shape on the rows that are held out."""
    rows = Rows(components.data.eval_path)
    kept = {name: tensor.clone() for name, tensor in components.model.state_dict().items()}
    components.model.load_state_dict(model.state_dict())
    result = evaluate(components, micro_batches_of_rows(rows, range(len(rows)), components.eval_layout))
    components.model.load_state_dict(kept)
    assert result is not None
    return result.loss


def contenders_of(setup: Setup, names: Sequence[str], told: list[str]) -> tuple[list[Contender], dict[str, str]]:
    """(who takes part, who does not and why.)"""
    missing = {}
    if "trl" in names:
        absent = [name for name in ("trl", "datasets") if not find_spec(name)]
        missing = {"trl": f"{absent[0]} is not installed"} if absent else {}
    job = setup.job
    plan, rows = job.plan, Rows(job.data.train_path)
    order = RowOrder(
        rows.lengths, effective_batch=plan.effective_batch_size.value, seed=plan.config.training.seed,
        group_by_length=plan.config.data.group_by_length,
    )  # fmt: skip
    known = {
        "ours": partial(ours, setup, told),
        "trainer": partial(hugging_face, setup, rows, order),
        "trl": partial(hugging_face, setup, rows, order, with_trl=True),
        "bare": partial(bare, setup, []),
    }
    return [Contender(name, known[name]) for name in names if name not in missing], missing


def figures_of(setup: Setup, rates: Mapping[str, Rates], failed: Mapping[str, str], told: list[str]) -> dict[str, Any]:
    """What a race found, and what the plan said before. MFU counts the operations that the plan counts."""
    plan = setup.job.plan
    rate = None
    if setup.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        found = find_card(properties.name, properties.total_memory)
        rate = getattr(found.teraflops, plan.precision.value, None) if found else None
    contenders = {}
    for name, one in rates.items():
        steps = median(one.steps_per_second)
        contenders[name] = {
            **asdict(one), "median_tokens_per_second": median(one.tokens_per_second), "step_seconds": 1 / steps,
            "mfu": plan.step_flops * steps / (rate * 1e12) if rate else None,
        }  # fmt: skip
    allocated = sum(part.bytes for part in plan.memory_parts if part.name not in NOT_ALLOCATED)
    planned = {"step_seconds": plan.step_seconds.value, "step_seconds_reason": plan.step_seconds.reason,
               "memory_bytes": plan.memory_bytes.value, "allocated_bytes": allocated,
               "micro_batch": plan.per_device_train_batch_size.value, "packing": plan.packing.value,
               "precision": plan.precision.value, "step_flops": plan.step_flops}  # fmt: skip
    return {"method": setup.method, "device": setup.device, "parameters": plan.parameters.value, "planned": planned,
            "settings": dict(setup.settings), "contenders": contenders, "left_out": dict(failed),
            "problems": list(dict.fromkeys(told))}  # fmt: skip


def run_race(setup: Setup, names: Sequence[str], rounds: int, *, apart: bool) -> dict[str, Any]:
    """One race, printed; its figures."""
    told: list[str] = []
    contenders, failed = contenders_of(setup, names, told)
    losses = {}
    if apart:
        rates, more = race_apart(contenders, rounds)
        failed |= more
    else:
        with ExitStack() as stack:
            ready = [(contender.name, stack.enter_context(contender.open())) for contender in contenders]
            rates = race(ready, rounds)
            models = dict(ready)
            if setup.method == "full" and {"ours", "trainer"} <= models.keys():
                mine = models["ours"].components
                assert mine is not None
                losses = {name: held_out_loss(mine, models[name].model) for name in ("ours", "trainer")}
    figures = figures_of(setup, rates, failed, told)
    figures["held_out_losses"] = losses
    print(f"{setup.method}: {figures['parameters']:,} parameters, load {os.getloadavg()[0]:.1f}")
    for name, found in rates.items():
        speeds, share = found.tokens_per_second, figures["contenders"][name]["mfu"]
        words = f"{name:<8} {median(speeds):>9,.0f} real tokens/s  ({min(speeds):,.0f} to {max(speeds):,.0f})"
        words += f"  {found.peak_memory_bytes / 2**30:.1f} GiB" if found.peak_memory_bytes else ""
        print(words + (f"  MFU {share:.1%}" if share else ""))
    for name, why in failed.items():
        print(f"{name:<8} left out: {why}")
    if "ours" in rates:
        required = {"trainer": "required 2, sought 2.6", "bare": "required 0.95" if setup.method == "full" else "0.98"}
        for other in rates.keys() - {"ours"}:
            figures["contenders"][other]["ours_times"] = ratio(rates, "ours", other)
            print(f"ours / {other:<7} {ratio(rates, 'ours', other):.3f}  ({required.get(other, 'more than 1')})")
    if losses:
        steps = (rounds + 1) * STEPS_A_TURN
        print(f"held-out loss after {steps} steps: " + ", ".join(f"{n} {loss:.4f}" for n, loss in losses.items()))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--method", choices=("full", "lora", "qlora"), action="append")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--contenders", default="ours,trainer,bare", help=f"some of {','.join(NAMES)}")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the program, for ours")
    parser.add_argument("--models", type=Path, help="a folder that keeps models and documents")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    names = chosen.contenders.split(",")
    found = []
    with tempfile.TemporaryDirectory() as place:
        model, documents = make(chosen.models or Path(place, "models"), chosen.shape)
        for method in chosen.method or ("full", "lora"):
            setup = Setup(
                llama=SHAPES[chosen.shape], model=model, documents=documents, method=method, device=chosen.device,
                settings=dict(text.split("=", 1) for text in chosen.set), place=Path(place, method),
            )  # fmt: skip
            try:
                found.append({"shape": chosen.shape, **run_race(setup, names, chosen.rounds, apart=chosen.apart)})
            except InputError as error:
                sys.exit(f"{method}: {error}")
            if chosen.json:
                chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
