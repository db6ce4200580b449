"""The parts of a run that is under way, and what can be done with them between two steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic, perf_counter

import torch
from safetensors import SafetensorError

from tui_trainer.data.rows import Rows, evenly_spaced
from tui_trainer.errors import RunError
from tui_trainer.runs.events import CheckpointSaved, EpochDone, EvalDone, Progress, RunProblem, TextSampled
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.tasks import find_task
from tui_trainer.training import checkpoint, checkpoint_folder
from tui_trainer.training.batches import Batches, micro_batches
from tui_trainer.training.evaluate import evaluate
from tui_trainer.training.final_model import CardFacts, write_final_model
from tui_trainer.training.job import Job
from tui_trainer.training.optimiser import build_optimiser, build_schedule
from tui_trainer.training.position import Position
from tui_trainer.training.recorder import Recorder
from tui_trainer.training.sample import write_text
from tui_trainer.training.step import StepReport

_FAILED_SAVES_IN_A_ROW = 3
_PROGRESS_SECONDS = 1.0
_PROMPT_TOKENS = 32
_SAMPLE_TOKENS = 160


class Session:
    """Model, optimiser, data and position of one run, ready for its next step."""

    def __init__(self, job: Job, journal: JournalWriter) -> None:
        """Build everything from the plan; put the checkpoint back where there is one. Raises CheckpointError."""
        plan = job.plan
        training = plan.config.training
        task = find_task(plan.config.task.type)
        self.job, self.plan, self._journal = job, plan, journal
        self.tokenizer = task.load_tokenizer(job.data)
        torch.manual_seed(training.seed)
        self.model = task.build_model(plan.config, job.data, self.tokenizer)
        self.model.train()
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimiser = build_optimiser(self.model, training)
        self.learning_rate = build_schedule(
            self.optimiser, training, warmup_steps=plan.warmup_steps.value, total_steps=plan.total_steps.value
        )
        self.loss_sum = partial(task.loss_sum, self.model)
        self._collate = partial(task.collate, tokenizer=self.tokenizer)
        self.batches = Batches(
            Rows(job.data.train_path),
            self._collate,
            effective_batch=plan.effective_batch_size.value,
            micro_batch=plan.per_device_train_batch_size.value,
            seed=training.seed,
        )
        # Without held-out text nothing is evaluated, and samples continue training text.
        self._eval_rows = Rows(job.data.eval_path) if job.data.eval_path else None
        self._eval_chosen = evenly_spaced(len(self._eval_rows), plan.eval_rows.value) if self._eval_rows else []
        self.position = Position()
        if job.checkpoint:
            self.position = checkpoint.load_checkpoint(job.checkpoint, self.model, self.optimiser)
        self._saved_step = self.position.step
        self._failed_saves = 0
        self._recorder = Recorder(
            journal,
            self.position,
            steps_per_epoch=self.batches.steps_per_epoch,
            group=plan.config.logging.logging_steps,
        )

    @property
    def recent_loss(self) -> float | None:
        """Mean training loss of the last steps of this process, in nats per token."""
        return self._recorder.recent_loss

    @property
    def median_step_seconds(self) -> float | None:
        """Of the last steps of this process; None while there are too few to say."""
        return self._recorder.median_step_seconds

    def finished_step(self, step: int, report: StepReport) -> None:
        self.position.step = step
        self._recorder.add(step, report)

    def flush(self) -> None:
        """Write the steps that wait to the journal."""
        self._recorder.flush()

    def finish_epoch(self) -> None:
        """The epoch's summary, and the sums start anew."""
        self.flush()
        position = self.position
        self._journal.append(
            EpochDone(
                step=position.step,
                epoch=position.step // self.batches.steps_per_epoch,
                mean_loss=position.epoch_loss_sum / position.epoch_tokens,
                seconds=round(position.epoch_seconds, 3),
                samples_per_second=round(position.epoch_samples / position.epoch_seconds, 2),
                tokens_per_second=round(position.epoch_tokens / position.epoch_seconds, 1),
            )
        )
        position.start_epoch()

    def evaluate(self, *, scheduled: bool) -> None:
        """Measure the held-out loss. Only a scheduled evaluation counts for early stopping."""
        if self._eval_rows is None:
            return
        self.flush()
        batch = self.plan.per_device_eval_batch_size.value
        batches = micro_batches(self._eval_rows, self._eval_chosen, self._collate, batch)
        result = evaluate(self.model, self.loss_sum, batches, self._evaluation_progress())
        evaluation = self.plan.config.evaluation
        best = scheduled and self.position.judge(result.loss, threshold=evaluation.early_stopping_threshold)
        self._journal.append(
            EvalDone(
                step=self.position.step,
                loss_sum=result.loss_sum,
                tokens=result.tokens,
                loss=result.loss,
                seconds=round(result.seconds, 3),
                scheduled=scheduled,
                best=best,
            )
        )
        if scheduled and evaluation.early_stopping_patience:
            self._stop_early_or_keep_best(best, evaluation.early_stopping_patience)

    def _stop_early_or_keep_best(self, best: bool, patience: int) -> None:
        if best:
            self.save("best")
        elif self.position.evaluations_without_improvement >= patience:
            self.position.stopped_early = True

    def sample(self) -> None:
        """Let the model continue a few words of held-out text."""
        self.flush()
        rows = self._eval_rows or self.batches.rows
        step = self.position.step
        prompt_ids = rows.row(step % len(rows))[:_PROMPT_TOKENS].tolist()
        new_tokens = max(1, min(_SAMPLE_TOKENS, self.plan.config.data.max_length - len(prompt_ids)))
        seed = self.plan.config.training.seed + step
        text = write_text(self.model, self.tokenizer, prompt_ids, new_tokens=new_tokens, seed=seed)
        prompt = str(self.tokenizer.decode(prompt_ids, skip_special_tokens=True))
        self._journal.append(TextSampled(step=step, prompt=prompt, text=text))

    def save(self, reason: str) -> None:
        """Write a checkpoint of this step unless there is one. Raises RunError after three failures in a row.

        The journal is made durable first, so that a resumed curve has no gap.
        """
        self.flush()
        if self.position.step == self._saved_step:
            return
        self._journal.sync()
        started = perf_counter()
        try:
            saved = checkpoint.save_checkpoint(
                self.job.folder.checkpoints, self.model, self.tokenizer, self.optimiser, self.position
            )
        except (OSError, SafetensorError) as error:
            self._save_failed(error)
            return
        self._saved_step, self._failed_saves = self.position.step, 0
        limit = self.plan.config.checkpoint.save_total_limit
        spare = [self.position.best_step] if self.plan.config.evaluation.early_stopping_patience else []
        checkpoint_folder.rotate(self.job.folder.checkpoints, limit, spare)
        self._journal.append(
            CheckpointSaved(
                step=saved.step,
                path=str(saved.path.relative_to(self.job.folder.root)),
                bytes=saved.bytes,
                seconds=round(perf_counter() - started, 3),
                reason=reason,
            )
        )

    def _save_failed(self, error: Exception) -> None:
        self._failed_saves += 1
        message = f"the checkpoint of step {self.position.step} could not be written: {error}"
        if self._failed_saves >= _FAILED_SAVES_IN_A_ROW:
            raise RunError(f"{message}. This was the third failure in a row")
        hint = "training goes on; the last good checkpoint stands"
        self._journal.append(RunProblem(step=self.position.step, kind="save failed", message=message, hint=hint))

    def write_final_model(self) -> None:
        """The last weights, or with early stopping the best, go to `model/` with a card."""
        folder, position = self.job.folder, self.position
        if self.plan.config.evaluation.early_stopping_patience and position.best_step not in (0, position.step):
            checkpoint.load_weights(folder.checkpoints / f"step-{position.best_step}", self.model)
        facts = CardFacts(
            data_description=self.job.data.source,
            train_loss=self.recent_loss,
            baselines=self.job.baselines,
            versions=self.job.versions,
        )
        write_final_model(folder.model, self.model, self.tokenizer, self.plan, position, facts)

    def _evaluation_progress(self) -> Callable[[int], None]:
        last = monotonic()

        def on_rows(rows: int) -> None:
            nonlocal last
            if monotonic() - last >= _PROGRESS_SECONDS:
                last = monotonic()
                total = len(self._eval_chosen)
                self._journal.append(
                    Progress(step=self.position.step, what="evaluating", done=rows, total=total, unit="rows")
                )

        return on_rows
