"""Real tokens a second on short documents, against the plain Hugging Face Trainer and against bare loops.

    python tests/benchmarks/speed.py [--rounds N]

One small Llama, one set of documents of about 50 tokens with a limit of 256, the same documents in every step for
everybody. The contenders take turns, some steps each, in one process; the figures are medians of the rounds' ratios.

    ours        the program's own components and step, packed as its plan says
    trainer     transformers.Trainer with its own collator: rows padded to the longest of the batch
    bare        a hand-written loop over the very batches of ours, without anything else
    lora        ours with LoRA on all linear layers, against the same peft model in a bare loop

Real tokens are labels: padding does not count. The held-out losses of ours and of the Trainer after equal steps are
printed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["TUI_TRAINER_HOME"] = tempfile.mkdtemp(prefix="speed-home-")

from tui_trainer.hardware.environment import prepare_environment

prepare_environment()

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Trainer, TrainingArguments
from transformers.utils import logging as transformers_logging

from tui_trainer.config.load import Request
from tui_trainer.data.preparing.byte_bpe import BOS, EOS, PAD, train_tokenizer
from tui_trainer.data.preparing.token_rows import Rows
from tui_trainer.hardware.probe import probe
from tui_trainer.launching.start import load_config
from tui_trainer.planning import plan as planning
from tui_trainer.runs.folder import RunFolder
from tui_trainer.tasks import find_task
from tui_trainer.training.batches import windows
from tui_trainer.training.components import Components
from tui_trainer.training.evaluate import evaluate
from tui_trainer.training.job import Job
from tui_trainer.training.step import take_step

DOCUMENTS, MAX_LENGTH, EFFECTIVE, STEPS_A_TURN, LR = 3000, 256, 32, 5, 1e-3
SHAPE = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6, "num_attention_heads": 4}
VOCABULARY = 4096


def write_documents(path: Path) -> list[str]:
    """Pieces of Python's reference, as long as short answers are: log-normal, about 50 tokens."""
    from pydoc_data.topics import topics

    words = " ".join(topics[name] for name in sorted(topics)).split(" ")
    draw = random.Random(1)
    texts, at = [], 0
    while len(texts) < DOCUMENTS:
        count = max(4, min(150, round(draw.lognormvariate(3.35, 0.75))))
        if at + count > len(words):
            at = 0
        texts.append(" ".join(words[at : at + count]))
        at += count
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return texts


def write_model(folder: Path, texts: list[str]) -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(texts, VOCABULARY), pad_token=PAD, bos_token=BOS, eos_token=EOS
    )
    torch.manual_seed(0)
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True}
    shape = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=512, **SHAPE, **special)
    LlamaForCausalLM(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_components(folder: Path, method: str) -> tuple[Components, Job]:
    """What a run of the program would train with."""
    settings = {
        "tuning.method": method,
        "data.max_length": MAX_LENGTH,
        "training.effective_batch_size": EFFECTIVE,
        "training.max_steps": 100_000,
        "training.learning_rate": LR,
        "training.lr_scheduler_type": "constant",
        "training.mixed_precision": "no",
        "output.runs_dir": folder,
    }
    shortcuts = {"data.path": str(folder / "documents.jsonl"), "model.model_name_or_path": str(folder / "model")}
    assignments = tuple(f"{key}={value}" for key, value in settings.items())
    loaded = load_config(Request(assignments=assignments, shortcuts=shortcuts))
    task = find_task(loaded.config.task.type)
    data = task.prepare(loaded.config, folder / "cache", lambda *_: None)
    plan = planning.make(loaded, probe(), task.facts(loaded.config, data))
    torch.set_num_threads(plan.threads.value)
    job = Job(
        plan=plan, data=data, folder=RunFolder(folder / "run"), checkpoint=None, baselines=None, versions={}
    )  # fmt: skip
    return Components(job, lambda *told: print("  ", *told)), job


@dataclass
class Contender:
    """`turn(first_step)` takes STEPS_A_TURN steps and returns the real tokens that it learnt from."""

    name: str
    turn: Callable[[int], int]


def ours(components: Components) -> Callable[[int], int]:
    def turn(first: int) -> int:
        tokens = 0
        for step in range(first, first + STEPS_A_TURN):
            report = take_step(
                partial(components.window, step), components.loss, components.optimizer,
                components.mixed_precision, components.clock, lr=components.learning_rate(step), max_grad_norm=1.0,
            )  # fmt: skip
            tokens += report.tokens
        return tokens

    return turn


def bare(components: Components, model: Any) -> Callable[[int], int]:
    """The same packed batches, and nothing that is not needed."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, fused=True)

    def turn(first: int) -> int:
        tokens = 0
        for step in range(first, first + STEPS_A_TURN):
            window = components.batches.at(step)
            count = sum(batch.label_count for batch in window)
            for batch in window:
                logits = model(**batch.inputs, use_cache=False).logits.flatten(0, 1)
                if len(batch.places) < len(logits):
                    logits = logits[batch.places]
                loss = torch.nn.functional.cross_entropy(logits.float(), batch.labels, reduction="sum") / count
                loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            tokens += count
        return tokens

    return turn


class _Documents(torch.utils.data.Dataset):
    """The documents of the components's steps, in its order."""

    def __init__(self, components: Components) -> None:
        self._learner = components
        self._per_epoch = len(components.batches.rows)

    def __len__(self) -> int:
        return 10 * self._per_epoch

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        epoch, place = divmod(index, self._per_epoch)
        return {"input_ids": self._learner.batches.rows.row(int(self._rows_of(epoch)[place])).tolist()}

    @lru_cache(maxsize=2)  # noqa: B019  # one for the life of the process
    def _rows_of(self, epoch: int) -> np.ndarray:
        order = self._learner.batches.order
        first = epoch * order.steps_per_epoch + 1
        return np.concatenate([order.at(step) for step in range(first, first + order.steps_per_epoch)])


def hugging_face(components: Components, tokenizer: Any, model: Any, folder: Path) -> Callable[[int], int]:
    """transformers.Trainer on the same documents in the same order, one optimizer step for as many of them."""
    from transformers import DataCollatorForLanguageModeling

    arguments = TrainingArguments(
        output_dir=str(folder / "hf"), per_device_train_batch_size=EFFECTIVE, learning_rate=LR, max_steps=10**6,
        lr_scheduler_type="constant", save_strategy="no", logging_strategy="no", report_to="none", disable_tqdm=True,
        max_grad_norm=1.0, weight_decay=0.0, use_cpu=components.device.type == "cpu",
    )  # fmt: skip
    trainer = Trainer(
        model=model, args=arguments, train_dataset=_Documents(components),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )  # fmt: skip
    trainer._get_train_sampler = lambda *_: torch.utils.data.SequentialSampler(trainer.train_dataset)
    return _turns_of(trainer, components)


def _turns_of(trainer: Trainer, components: Components) -> Callable[[int], int]:
    """The Trainer runs in a thread of its own and is let go for some steps at a time."""
    import threading

    from transformers import TrainerCallback

    go, done = threading.Semaphore(0), threading.Semaphore(0)

    class _Gate(TrainerCallback):
        ended = False

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            go.acquire()
            control.should_training_stop = self.ended

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            done.release()

    gate = _Gate()
    trainer.add_callback(gate)
    threading.Thread(target=trainer.train, daemon=True).start()

    def turn(first: int) -> int:
        for _ in range(STEPS_A_TURN):
            go.release()
        for _ in range(STEPS_A_TURN):
            done.acquire()
        return sum(labels_of(components, step) for step in range(first, first + STEPS_A_TURN))

    return turn


def labels_of(components: Components, step: int) -> int:
    """The labels of a step, from the lengths of its documents alone."""
    batches = components.batches
    chosen = batches.order.at(step)
    return int((batches.rows.lengths[chosen] - 1).sum())


def race(contenders: list[Contender], rounds: int, first: int = 1) -> dict[str, list[float]]:
    """Real tokens a second of each round; the first turn of each warms up. The order turns with the rounds."""
    rates: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for number in range(rounds + 1):
        step = first + number * STEPS_A_TURN
        shift = number % len(contenders)
        for contender in contenders[shift:] + contenders[:shift]:
            started = perf_counter()
            tokens = contender.turn(step)
            if number:
                rates[contender.name].append(tokens / (perf_counter() - started))
    return rates


def ratio(rates: dict[str, list[float]], ours_name: str, other: str) -> float:
    return median(mine / theirs for mine, theirs in zip(rates[ours_name], rates[other], strict=True))


def held_out_loss(components: Components, job: Job, model: Any) -> float:
    """Nats a token of any model with this shape on the rows that are held out."""
    rows = Rows(job.data.eval_path)
    probe_learner = components
    kept = {name: tensor.clone() for name, tensor in components.model.state_dict().items()}
    components.model.load_state_dict(model.state_dict())
    result = evaluate(probe_learner, windows(rows, range(len(rows)), components.eval_layout))
    components.model.load_state_dict(kept)
    assert result is not None
    return result.loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    rounds = parser.parse_args().rounds
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_model(folder / "model", write_documents(folder / "documents.jsonl"))
        full, job = make_components(folder, "full")
        plan = job.plan
        print(f"load {os.getloadavg()[0]:.1f}; torch {torch.__version__}, {plan.threads.value} threads")
        print(f"{plan.parameters.value:,} parameters; packing: {plan.packing.reason}")
        load = partial(LlamaForCausalLM.from_pretrained, folder / "model", dtype=torch.float32)
        hf_model, bare_model = load(), load()
        bare_model.train()
        turn = hugging_face(full, full.tokenizer, hf_model, folder)
        contenders = [
            Contender("ours", ours(full)), Contender("trainer", turn), Contender("bare", bare(full, bare_model)),
        ]  # fmt: skip
        rates = race(contenders, rounds)
        for name, found in rates.items():
            print(f"{name:<8} {median(found):>9,.0f} real tokens/s  ({min(found):,.0f} to {max(found):,.0f})")
        print(f"ours / trainer {ratio(rates, 'ours', 'trainer'):.2f} (required 2, sought 2.6)")
        print(f"ours / bare    {ratio(rates, 'ours', 'bare'):.3f} (required 0.95)")
        steps = (rounds + 1) * STEPS_A_TURN
        losses = [held_out_loss(full, job, model) for model in (full.model, hf_model)]
        print(f"held-out loss after {steps} steps: ours {losses[0]:.4f}, trainer {losses[1]:.4f}")
        lora, _ = make_components(folder, "lora")
        twin, _ = make_components(folder, "lora")
        rates = race([Contender("lora", ours(lora)), Contender("peft", bare(twin, _unhooked(twin)))], rounds)
        for name, found in rates.items():
            print(f"{name:<8} {median(found):>9,.0f} real tokens/s  ({min(found):,.0f} to {max(found):,.0f})")
        print(f"lora / peft in a bare loop {ratio(rates, 'lora', 'peft'):.3f} (required 0.98)")


def _unhooked(components: Components) -> Any:
    """The model without the hook that narrows its head: a bare loop has none."""
    components.model.get_output_embeddings()._forward_pre_hooks.clear()
    return components.model


if __name__ == "__main__":
    main()
    os._exit(0)  # the Trainer still waits in its thread
