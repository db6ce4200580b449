"""Make the steps, evaluations, samples and checkpoints of a run, and answer requests between steps."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, TypeVar

import numpy as np

from tui_trainer.advice.remedies import less_memory_advice
from tui_trainer.data.columns.row import Row
from tui_trainer.data.preparing.token_rows import Rows, evenly_spaced
from tui_trainer.errors import CheckpointError, FolderError, GroupOutOfMemory, RunError, system_reason
from tui_trainer.hardware.out_of_memory import free_memory
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.named_losses import NamedLoss
from tui_trainer.planning.plan_file import write_plan_file
from tui_trainer.planning.retarget import with_smaller_passes
from tui_trainer.runs import events
from tui_trainer.runs.controls import Controls
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.runs.steps_and_eta import is_due
from tui_trainer.tasks import find_task
from tui_trainer.tasks.contract import Calibration
from tui_trainer.tasks.parts.suite import suite_row
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.training import checkpoint, checkpoint_folder
from tui_trainer.training.attempt import (
    MemoryShortage,
    SmallerPasses,
    attempt,
    attempt_twice,
    reduced_event,
    too_large_message,
)
from tui_trainer.training.batches import Layout, micro_batches_of_rows
from tui_trainer.training.checkpoint import WRITE_ERRORS, Checkpoints
from tui_trainer.training.clock import BetweenStepsTimer
from tui_trainer.training.collectives import gather_model
from tui_trainer.training.compiled import without_cuda_graphs
from tui_trainer.training.components import Components
from tui_trainer.training.evaluate import (
    Evaluation,
    ObservedSums,
    answer_scores,
    combine_results,
    observe,
    right_rows,
    terms_of_all,
    write_text,
)
from tui_trainer.training.final_model import write_final_model
from tui_trainer.training.host_memory import HINT, HostMemoryWatch
from tui_trainer.training.job import Job
from tui_trainer.training.position import Position
from tui_trainer.training.process import breaks_the_device
from tui_trainer.training.ranks import SINGLE_PROCESS, Ranks
from tui_trainer.training.recorder import Recorder
from tui_trainer.training.row_values import RowReader, Values
from tui_trainer.training.step import StepReport
from tui_trainer.units import quantity

_PROGRESS_SECONDS = 1.0
T = TypeVar("T")


class Session:
    """Model, optimizer, data and position of one run, ready for its next step."""

    def __init__(
        self, job: Job, journal: JournalWriter, is_interrupted: Callable[[], bool], ranks: Ranks = SINGLE_PROCESS
    ) -> None:
        """Build everything from the plan, and load the job's checkpoint if it has one.

        Long work between steps calls `is_interrupted`, and ends early if it returns True. Each process of a run has a
        session; `ranks` connects them. Raises ConfigError if the model does not fit the plan, and CheckpointError if
        the checkpoint does not fit the model.
        """
        self.ranks = ranks
        self.job, self.plan, self._journal = job, job.plan, journal
        self.position, self._is_interrupted = Position(), is_interrupted
        # Without held-out rows the run makes no evaluations, and text samples use training rows.
        self._eval_rows = Rows(job.data.eval_path) if job.data.eval_path else None
        self._eval_indices = evenly_spaced(len(self._eval_rows), self.plan.eval_rows.value) if self._eval_rows else []
        row_values = self._values_of_reference()
        self.components = Components(job, self._problem, ranks, self._meter)
        self.batches = self.components.batches
        if self.components.row_pass:
            self.batches.rows.row_values, eval_values = row_values or self._row_values(job, self.components)
            if self._eval_rows:
                self._eval_rows.row_values = eval_values
        if job.checkpoint:
            self.position = checkpoint.load_checkpoint(job.checkpoint, self.components)
            old_kernels, now = self.position.kernels, self.components.kernels
            if old_kernels != now:
                message = f"model.kernels was {old_kernels} until step {self.position.step}, and is {now} from now on"
                self._problem("kernels changed", message, "the run continues, but may not be bit-identical")
            if self._returns_to_best and (damage := ranks.run_on_first(self._damage_of_best)):
                hint = "the search for the best evaluation starts again from this step"
                self._problem("best checkpoint lost", f"step-{self.position.best_step}: {damage}", hint)
                self.position.forget_best()
        self.position.kernels = self.components.kernels
        if job.checkpoint and not self.position.adapters_fused:
            # The run began without fused adapters, for example in an earlier version.
            self.components.adapters.switch_off()
        self.position.adapters_fused = bool(self.components.adapters.layers)
        self._has_given_up_evaluating = False
        self._observed_at_step: tuple[int, list[ObservedSums]] = (0, [])
        self.calibration = Calibration()
        self._host_memory = HostMemoryWatch()
        self.between_steps = BetweenStepsTimer(journal, ranks.times if ranks.world_size > 1 else None)
        self._checkpoints = Checkpoints(job, self.components, journal, self.between_steps, self.position.step)
        self._recorder = Recorder(
            journal,
            self.position,
            self.components.device,
            self.between_steps,
            steps_per_epoch=self.batches.order.steps_per_epoch,
            group=self.plan.config.logging.logging_steps,
            clipped_by_scale=self.components.mixed_precision.scaler is not None,
            times=ranks.times,
        )

    def _values_of_reference(self) -> tuple[Values, Values | None] | None:
        """Return `_row_values` of another reference model, which is loaded and freed; None if there is none."""
        plan = self.plan
        config = find_task(plan.config.task.type).reference_config(plan.config)
        if config is None:
            return None
        plan = plan.model_copy(update={"config": config, "model_key": plan.reference_key})
        job = replace(self.job, plan=plan)
        row_values = self._row_values(job, Components(job, self._problem, self.ranks))
        free_memory()
        return row_values

    def _row_values(self, job: Job, components: Components) -> tuple[Values, Values | None]:
        """Return the values of all training rows and of all held-out rows that the run uses, computed with the model of
        `components`, which no step has changed."""
        batches, reader = components.batches, partial(RowReader, job, components, self._journal, self._is_interrupted)
        steps = range(1, min(self.plan.total_steps.value, batches.order.steps_per_epoch) + 1)
        used_rows = np.unique(np.concatenate([batches.order.at(step) for step in steps]))
        train_values = reader(batches.rows, used_rows).read()
        return train_values, reader(self._eval_rows, self._eval_indices).read() if self._eval_rows else None

    @property
    def median_step_seconds(self) -> float | None:
        """Median seconds of the last steps of this process; None for too few steps or after an out-of-memory error."""
        return self._recorder.median_step_seconds if self.plan.shape_key else None

    def take_step(self, step: int) -> None:
        """Make one optimizer step, and queue its report for the journal.

        If memory runs out, the step is repeated with smaller passes. Raises RunError if a pass of one row is too large.
        """
        components = self.components
        self._checkpoints.finish(waits=False)
        work = partial(self._step, step)
        self.between_steps.step_begins(step)
        while isinstance(report := attempt(work, components.device, components.discard_step), MemoryShortage):
            self._take_smaller_passes(step, report)
        self.between_steps.step_ended()
        self.position.step = step
        self._recorder.add(step, report)
        self._report_missing_gradients()
        if is_due(step, self.plan.config.training.empty_cache_steps):
            with self.between_steps.emptying_the_cache():
                free_memory()

    def _step(self, step: int) -> StepReport:
        return self.components.take_step(step, partial(self.components.micro_batches_of, step))

    def _take_smaller_passes(self, step: int, shortage: MemoryShortage) -> None:
        """Save a checkpoint of the previous step, and halve the rows per pass in this step and all later ones.

        With several processes or sharded state this raises GroupOutOfMemory instead, because the other processes wait:
        `launching/torchrun.py` then starts all of them again with smaller passes.
        """
        if self.ranks.world_size > 1 or self.components.collectives.splits_state:
            raise GroupOutOfMemory(f"out of memory in process {self.ranks.rank} at step {step} ({shortage.words})")
        batches, documents = self.batches, self.batches.documents(step)
        old_layout, smaller_layout = batches.layout, batches.layout.halved(documents)
        is_saved = self.save("out of memory")
        if smaller_layout is None:
            raise RunError(too_large_message(self.components, self.job.data.source, step, shortage, saved=is_saved))
        self.components.set_layout(smaller_layout)
        rows = min(self.plan.effective_batch_size.value, len(batches.rows))
        old_passes, halves = (SmallerPasses.of_step(layout, documents, rows) for layout in (old_layout, smaller_layout))
        event = reduced_event("training", step, old_passes, halves, documents, shortage)
        self._record_smaller_passes(event, smaller_layout)
        if old_passes.pass_count == 1 and self.plan.config.training.torch_compile_mode == "reduce-overhead":
            without_cuda_graphs(self.components.model, self._problem)

    def _record_smaller_passes(self, event: events.MicroBatchReduced, smaller: Layout) -> None:
        """Write smaller passes to the journal and to the plan file, so that a resumed run uses them."""
        self._journal.append(event)
        reason = f"out of memory at step {event.step} with {quantity(event.rows_before, 'row')}"
        width = smaller.packed_width if event.rows == event.rows_before else 0
        self.plan = with_smaller_passes(self.plan, event, reason, width)
        if not self.ranks.is_first:
            return  # the plan file is that of the first process
        try:
            write_plan_file(self.job.folder, self.plan)
        except FolderError as error:
            self._problem("plan not written", str(error), "a resumed run starts with the previous micro-batches")

    def flush(self) -> None:
        self._recorder.flush()
        self._report_missing_gradients()

    def _report_missing_gradients(self) -> None:
        if self._recorder.has_written_all and (words := self.components.optimizer.first_gradients.words()):
            self._problem(events.NO_GRADIENT, *words)

    def finish_epoch(self) -> None:
        """Write the summary of the epoch that has just ended, and reset its sums."""
        self.flush()
        position = self.position
        self._journal.append(
            events.EpochDone(
                step=position.step,
                epoch=position.step // self.batches.order.steps_per_epoch,
                mean_loss=position.epoch_loss_sum / position.epoch_tokens,
                seconds=round(position.epoch_seconds, 3),
                samples_per_second=round(position.epoch_samples / position.epoch_seconds, 2),
                tokens_per_second=round(position.epoch_input_tokens / position.epoch_seconds, 1),
            )
        )
        position.start_epoch()

    @property
    def evaluation_is_due(self) -> bool:
        """Whether the plan has an evaluation after the current step that has not been made yet."""
        step, plan = self.position.step, self.plan
        is_planned = is_due(step, plan.eval_every_steps.value) or step == plan.total_steps.value
        return self._eval_rows is not None and is_planned and step not in (0, self.position.evaluated_step)

    def evaluate_if_due(self) -> None:
        if self.evaluation_is_due:
            self.evaluate(scheduled=True)

    def evaluate(self, *, scheduled: bool) -> None:
        """Compute the held-out loss and the task's scores. Early stopping uses only scheduled evaluations."""
        self.flush()
        if self._eval_rows is None:
            message = "there is no held-out data to evaluate on"
            self._problem("nothing to evaluate", message, "set data.eval_fraction = 0.1 in a new run")
            return
        started_at = perf_counter()
        result = self._evaluate_rows(self._eval_rows, scheduled)
        if result is None:
            return
        scores_of_answers: dict[str, float] = {}
        if not scheduled or self._answers_are_due:
            scores_of_answers = self._on_whole_model(partial(self._answer_scores, self._eval_rows))
        scores = {"loss": -result.loss} | dict(result.scores.values) | scores_of_answers
        seconds = perf_counter() - started_at
        self.between_steps.count(seconds)
        evaluation, position = self.plan.config.evaluation, self.position
        best_before = (position.best_eval_loss, position.best_metric, position.best_step, position.best_scores)
        metric = scores.get(evaluation.metric_for_best_model)
        del scores["loss"]
        is_best, is_judged = False, scheduled and metric is not None
        if scheduled and metric is None:
            position.skip_evaluation(result.loss, scores)
        elif scheduled and metric is not None:
            is_best = position.judge(result.loss, metric, threshold=evaluation.early_stopping_threshold, scores=scores)
        if not math.isfinite(result.loss):
            is_fp16 = self.components.mixed_precision.scaler is not None
            hint = 'training.mixed_precision = "no"' if is_fp16 else "a lower training.learning_rate"
            self._problem("not finite", "the held-out loss is not finite", f"set {hint} in a new run")
        self._journal.append(
            events.EvalDone(
                step=self.position.step,
                loss_sum=result.loss_sum,
                tokens=result.tokens,
                loss=result.loss,
                seconds=round(seconds, 3),
                scheduled=scheduled,
                best=is_best,
                scores=scores,
                table_title=result.scores.table_title,
                table_columns=list(result.scores.table_columns),
                table_rows={name: list(row) for name, row in result.scores.table_rows.items()},
            )
        )
        if not is_judged or not evaluation.early_stopping_patience:
            return
        is_at_end = position.step >= self.plan.total_steps.value
        if is_best and not self.save("best") and not is_at_end:
            # The run cannot return to weights that are not on the disk, unless they are those of the last step.
            position.best_eval_loss, position.best_metric, position.best_step, position.best_scores = best_before
        if position.evaluations_without_improvement >= evaluation.early_stopping_patience and not is_at_end:
            position.stopped_early = True

    @property
    def _answers_are_due(self) -> bool:
        step, interval = self.position.step, self.plan.eval_every_steps.value
        return step == self.plan.total_steps.value or not interval or not step // interval % self.plan.answers_interval

    def _evaluate_rows(self, rows: Rows, scheduled: bool) -> Evaluation | None:
        """Evaluate the rows. Return None after a stop, or if a pass of one row takes too much memory."""
        components = self.components
        observe_part: Callable[..., ObservedSums | None] = observe
        if isinstance(components.loss, NamedLoss) and components.loss.terms:
            parts = self._observe_rows(rows, scheduled, partial(observe, finds_terms=True))
            if parts is None:
                return None
            observe_part = partial(observe, terms=terms_of_all(components, parts))
        parts = self._observe_rows(rows, scheduled, observe_part)
        if parts is not None and components.task.calibrates(self.job.data):
            self._observed_at_step = self.position.step, parts
        return None if parts is None else combine_results(components, parts)

    def _observe_rows(
        self, rows: Rows, scheduled: bool, observe_part: Callable[..., ObservedSums | None]
    ) -> list[ObservedSums] | None:
        """Evaluate in all processes, with smaller passes if memory runs out. Return their results or None."""
        components, progress = self.components, self._meter("evaluating", len(self._eval_indices), "rows")
        rank_rows = self._eval_indices[self.ranks.rank :: self.ranks.world_size]
        while True:
            layout = components.eval_layout

            def spare_batch(layout: Layout = layout) -> MicroBatch:
                return next(micro_batches_of_rows(rows, self._eval_indices[:1], layout))

            batches = micro_batches_of_rows(rows, rank_rows, layout)
            work = partial(observe_part, components, batches, progress, spare_batch)
            part = attempt(work, components.device)
            if isinstance(part, MemoryShortage) and self.ranks.world_size > 1 and components.collectives.splits_weights:
                # The other processes wait inside a forward pass of the sharded model, so all processes must end.
                message = f"out of memory in process {self.ranks.rank} in the evaluation ({part.words})"
                raise GroupOutOfMemory(message)
            parts = self.ranks.gathered(part)
            observed_parts = [part for part in parts if isinstance(part, ObservedSums)]
            if len(observed_parts) == len(parts):
                return observed_parts
            shortage = next((part for part in parts if isinstance(part, MemoryShortage)), None)
            if shortage is None:
                # A process was stopped. Others may not have seen the stop yet.
                self.ranks.has_news_anywhere = True
                return None
            documents = [rows.example(index) for index in self._eval_indices]
            halved = layout.halved(documents)
            if halved is None:
                self._give_up_evaluation(scheduled, max(map(len, documents)), shortage)
                return None
            components.eval_layout = halved
            split, new_passes = SmallerPasses.of(layout, documents), SmallerPasses.of(halved, documents)
            event = reduced_event("evaluation", self.position.step, split, new_passes, documents, shortage)
            self._record_smaller_passes(event, halved)

    def _give_up_evaluation(self, scheduled: bool, tokens: int, shortage: MemoryShortage) -> None:
        """Report an evaluation that does not fit in memory. Early stopping ignores it."""
        if scheduled:
            self.position.skip_evaluation(None, {})
        if not self._has_given_up_evaluating:
            self._has_given_up_evaluating = True
            message = f"out of memory in the evaluation with one row per pass; the longest row has {tokens:,} tokens"
            remedy = less_memory_advice(self.plan, tokens)
            hint = f"this evaluation is skipped, and training continues; in a new run set {remedy}"
            self._problem("not evaluated", f"{message} ({shortage.words})", hint)

    def answer_suite(self) -> None:
        """Find the rows of `evaluation.gate_suite` that the model answers right before the first step. Checkpoints have
        them, so that a resumed run does not answer them again."""
        has_suite = self.plan.config.evaluation.gate_suite and self.components.task.usual_answer_rows
        if has_suite and self._eval_rows is not None and not self.position.step:
            self.position.kept_rows = self._on_whole_model(self._right_rows)

    def _on_whole_model(self, work: Callable[[], T]) -> T:
        """Return the result of `work` in the first process, or in each if each has a part of the model."""
        return work() if self.components.collectives.splits_weights else self.ranks.run_on_first(work)

    def _right_rows(self) -> list[dict[str, Any]]:
        rows = self.components.task.suite_rows(self.plan.config)
        self._journal.append(events.Progress(what="answering the suite", done=0, total=len(rows), unit="rows"))
        result = self._attempt_generation(partial(right_rows, self.components, rows), "no scores", "answer the suite")
        if isinstance(result, list) and result:
            return [row.values for row in result]
        message = f"none of {quantity(len(rows), 'row')} to keep was answered right before training"
        self._problem("nothing to keep", message, "this run has no score of kept answers")
        return []

    def _answer_scores(self, rows: Rows) -> dict[str, float]:
        kept_rows = [suite_row(Row("", values)) for values in self.position.kept_rows]
        work = partial(answer_scores, self.components, rows, self._eval_indices, kept_rows)
        scores = self._attempt_generation(work, "no scores", "answer held-out rows")
        if not isinstance(scores, MemoryShortage):
            return scores or {}
        message = f"there is not enough memory to generate the answers that are scored ({scores.words})"
        half_rows = self.components.task.answer_rows(self.plan.config) // 2
        self._problem("no scores", message, f"set evaluation.generate_rows = {half_rows} in a new run")
        return {}

    def _attempt_generation(self, work: Callable[[], T], kind: str, purpose: str) -> T | MemoryShortage | None:
        """Return the result of `work`, which generates text. An error is reported as a problem of this kind. Then None
        is returned, and training continues with unchanged weights."""
        try:
            return attempt(work, self.components.device)
        except Exception as error:  # models and tokenizers raise whatever their parts raise
            if breaks_the_device(error):
                raise
            reason = one_line(f"{type(error).__name__}: {error}", 200)
            hint = "the weights are unchanged, and training continues"
            self._problem(kind, f"the model could not {purpose}: {reason}", hint)
            return None

    def sample(self) -> None:
        """Write a text sample for a held-out row. A failure is reported, and training continues."""
        self.flush()
        if not (self.ranks.is_first or self.components.collectives.splits_weights):
            return
        rows = self._eval_rows or self.batches.rows
        step = self.position.step
        row, seed = rows.example(step % len(rows)), self.plan.config.training.seed + step
        started_at = perf_counter()
        new_tokens = self.plan.sample_tokens.value
        work = partial(write_text, self.components, row, seed=seed, new_tokens=new_tokens)
        written_texts = self._attempt_generation(work, "no text", "generate a sample")
        if isinstance(written_texts, MemoryShortage):
            message = "there is not enough memory to generate a sample"
            self._problem("no text", message, "set logging.sample_steps = 0 in a new run to turn samples off")
        if not isinstance(written_texts, tuple):
            # Memory is freed only here, because the error has held tensors until now.
            free_memory()
            return
        prompt, text = written_texts
        seconds = round(perf_counter() - started_at, 3)
        self.between_steps.count(seconds)
        self._journal.append(events.TextSampled(step=step, prompt=prompt, text=text, seconds=seconds))

    def save(self, reason: str) -> bool:
        """Write a checkpoint of this step if there is none, and return whether it exists or is being written.

        The journal is synced to the disk first, so that the loss curve of a resumed run has no gap. Raises RunError
        after three failures in a row.
        """
        self.flush()
        return self._checkpoints.save(self.position, self.plan, reason)

    @property
    def unsaved_phrase(self) -> str:
        """Phrase that says why the current step could not be saved, and which checkpoint exists instead."""
        failure, resume_sentence = self._checkpoints.failure, self._checkpoints.resume_sentence()
        return f"step {self.position.step}, which could not be saved: {failure}. {resume_sentence}"

    def watch_host_memory(self) -> None:
        """Warn before the machine runs out of memory, once for each trend, and save a checkpoint.

        With several processes this only warns, because they can only save together.
        """
        if not self.ranks.is_first:
            return
        if (warning := self._host_memory.check_memory(self.position.step)) and self.ranks.world_size > 1:
            self._problem("host memory", warning, HINT)
        elif warning:
            is_saved = self.save("memory runs out")
            resume_command = f"`tui-trainer resume {shell_word(self.job.folder.name)}`"
            saved_words = f"step {self.position.step} is saved; resume from it with {resume_command}"
            self._problem("host memory", warning, f"{HINT}; {saved_words}" if is_saved else HINT)

    def close(self) -> None:
        self._checkpoints.close()
        self.components.close()

    def _problem(self, kind: str, message: str, hint: str) -> None:
        self._journal.append(events.RunProblem(step=self.position.step, kind=kind, message=message, hint=hint))

    def write_final_model(self) -> None:
        """Write the final model and its card: the last weights, or with early stopping the best. A classifier is
        calibrated before. Raises RunError."""
        position = self.position
        if self._returns_to_best:
            self._load_best_weights()
        if self._eval_rows is not None and self.components.task.calibrates(self.job.data):
            self.calibration = self._calibrate(self._eval_rows)
        if self.components.collectives.splits_weights:
            gather_model(self.components.model, self.components.collectives.whole, keep=self.ranks.is_first)
        write = partial(write_final_model, self.job, self.plan, self.components, position, self.calibration.scores)
        try:
            self.ranks.run_on_first(partial(attempt_twice, write, self.components.device))
        except WRITE_ERRORS as error:
            problem = f"the final model could not be written: {system_reason(error)}"
            raise RunError(f"{problem}. {self._checkpoints.resume_sentence()}") from error

    def _calibrate(self, rows: Rows) -> Calibration:
        """Calibrate the final model on the held-out rows, as far as they can be evaluated. Processes that hold parts of
        the weights do not change them."""
        components, position = self.components, self.position
        step, parts = self._observed_at_step
        if step != (position.best_step if self._returns_to_best else position.step):
            observed_parts = self._observe_rows(rows, False, observe)
            if observed_parts is None:
                return Calibration()
            parts = observed_parts
        batch = None
        if not components.collectives.splits_weights:
            first_batches = micro_batches_of_rows(rows, self._eval_indices[:1], components.eval_layout)
            batch = next(first_batches).to(components.device)
        seen = [inputs for part in parts for inputs in part.seen]
        work = partial(components.task.calibrate, self.job.data, components.model, components.loss, seen, batch)
        components.model.eval()
        try:
            with components.reading():
                return self.ranks.run_on_first(work)
        finally:
            components.model.train()

    @property
    def _returns_to_best(self) -> bool:
        """Whether early stopping returns to the weights of a step before the last one."""
        has_patience = self.plan.config.evaluation.early_stopping_patience > 0
        return has_patience and self.position.best_step not in (0, self.position.step)

    @property
    def _best_checkpoint(self) -> Path:
        return self.job.folder.checkpoints / f"step-{self.position.best_step}"

    def _damage_of_best(self) -> str:
        """Return what is wrong with the checkpoint of the best evaluation, or an empty string."""
        try:
            return checkpoint_folder.damage_of(self._best_checkpoint, self.position.best_step) or ""
        except CheckpointError as error:
            return str(error)

    def _load_best_weights(self) -> None:
        """Load the weights of the best evaluation. If their checkpoint is damaged, report it and keep the last."""
        position = self.position
        best_checkpoint = self._best_checkpoint
        if damage := self._damage_of_best():
            hint = "the final model has the weights of the last step instead"
            self._problem("checkpoint damaged", f"{best_checkpoint.name}: {damage}", hint)
            position.best_eval_loss, position.best_step = position.eval_loss, position.step
            position.best_scores = position.scores
        else:
            checkpoint.load_weights(best_checkpoint, self.components)

    def _meter(self, what: str, total: int, unit: str) -> Callable[[int], bool]:
        reported_at = monotonic()

        def go_on(done: int) -> bool:
            nonlocal reported_at
            if monotonic() - reported_at >= _PROGRESS_SECONDS:
                reported_at = monotonic()
                step = self.position.step
                self._journal.append(events.Progress(step=step, what=what, done=done, total=total, unit=unit))
            return not self._is_interrupted()

        return go_on


# Requests are answered between two steps: pause, resume, save, evaluate, stop.
#
# No request changes a later loss: evaluation and saving do not use the random generators of training.

_PAUSE_POLL_SECONDS = 0.1


@dataclass(slots=True)
class ControlHandler:
    controls: Controls
    session: Session
    journal: JournalWriter
    _paused: bool = False
    _stop: bool = False

    def __post_init__(self) -> None:
        ranks = self.session.ranks
        ranks.has_news = self.controls.has_news if ranks.is_first else lambda: self.controls.is_stopped_here

    def should_stop(self) -> bool:
        """Answer the requests since the last step, wait while paused, and return whether to stop."""
        self._answer()
        while self._paused and not self._stop:
            time.sleep(_PAUSE_POLL_SECONDS)
            self._answer()
        return self._stop

    def _answer(self) -> None:
        """Answer new requests, in all processes at the same step.

        Processes exchange requests while paused, or if any of them had news at the last step. The first process reads
        the requests of users. A stop may come from any process.
        """
        ranks = self.session.ranks
        if not (ranks.has_news_anywhere or self._paused):
            return
        requests = dict.fromkeys(chain(*ranks.gathered(self.controls.take_requests(of_file=ranks.is_first))))
        # A stop interrupts evaluations, so none is started before a stop.
        has_stop = any(request.action == "stop" for request in requests)
        for request in requests:
            match request.action:
                case "pause":
                    self._pause(True)
                case "resume":
                    self._pause(False)
                case "save":
                    self.session.save("requested")
                case "evaluate" if not has_stop:
                    self.session.evaluate(scheduled=False)
                case "stop":
                    self._stop = True
            step = self.session.position.step
            self.journal.append(events.ControlApplied(step=step, action=request.action, request_id=request.id))

    def _pause(self, is_paused: bool) -> None:
        if is_paused == self._paused:
            return
        self._paused = is_paused
        self.session.flush()
        self.session.between_steps.forget()
        step = self.session.position.step
        self.journal.append(events.PhaseChanged(step=step, phase="paused" if is_paused else "training"))
