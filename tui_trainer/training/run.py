"""Execute a run, from loading the model to writing the final model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from tui_trainer.errors import RunError
from tui_trainer.models.files.fingerprint import file_fingerprints
from tui_trainer.runs.controls import Controls
from tui_trainer.runs.events import LibrariesLoaded, PhaseChanged, RunFinished
from tui_trainer.runs.folder import RunFolder, folder_size
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.runs.steps_and_eta import is_due
from tui_trainer.training.compiled import compiler
from tui_trainer.training.fused_kernels import removing_kernels
from tui_trainer.training.job import EndReason, Job, Result
from tui_trainer.training.process import kernel_threads, settings_of
from tui_trainer.training.ranks import SINGLE_PROCESS, Ranks
from tui_trainer.training.recorder import memory_before, peak_memory_bytes
from tui_trainer.training.session import ControlHandler, Session


def run(job: Job, journal: JournalWriter, controls: Controls, ranks: Ranks = SINGLE_PROCESS) -> Result:
    """Execute the plan of a job, in one process or as one of several (`ranks`).

    Raises RunError if training cannot continue. The last checkpoint is kept.
    """
    with opened_session(job, journal, controls.has_stop, ranks) as (session, resident_bytes):
        result = _train(session, journal, ControlHandler(controls, session, journal))
        if result.reason == "done" and not job.checkpoint and not session.plan.out_of_memory_events:
            peak_bytes = peak_memory_bytes(session.components.device) - resident_bytes
            result = replace(result, peak_memory_bytes=max(peak_bytes, 0))
        return result


@contextmanager
def opened_session(
    job: Job, journal: JournalWriter, is_interrupted: Callable[[], bool], ranks: Ranks = SINGLE_PROCESS
) -> Iterator[tuple[Session, int]]:
    """Yield (session before its first step, resident bytes of the libraries). Global state is set as the plan requires.
    On a GPU the bytes are 0."""
    plan = job.plan
    with settings_of(plan), removing_kernels(), compiler() if plan.config.training.torch_compile else nullcontext():
        resident_bytes = None if plan.device == "cuda" else memory_before(plan.config)
        journal.append(LibrariesLoaded(resident_bytes=resident_bytes, threads=kernel_threads()))
        session = Session(job, journal, is_interrupted, ranks)
        try:
            yield session, resident_bytes or 0
        finally:
            session.close()


def _train(session: Session, journal: JournalWriter, handler: ControlHandler) -> Result:
    plan = session.plan
    journal.append(PhaseChanged(phase="training", step=session.position.step))
    session.answer_suite()
    # A stop may have interrupted an evaluation. The checkpoint of that step was then saved without its result.
    session.evaluate_if_due()
    for step in range(session.position.step + 1, plan.total_steps.value + 1):
        if session.position.stopped_early or handler.should_stop():
            break
        session.take_step(step)
        if is_due(step, session.batches.order.steps_per_epoch):
            session.finish_epoch()
        session.evaluate_if_due()
        if is_due(step, plan.sample_every_steps.value):
            session.sample()
        if is_due(step, plan.save_every_steps.value) or step == plan.total_steps.value:
            session.save("scheduled")
        session.watch_host_memory()

    session.between_steps.write(session.position.step)
    reason = _reason(session)
    is_saved = session.save(reason)
    if reason == "stopped":
        if not is_saved:
            raise RunError(f"stopped at {session.unsaved_phrase}")
    else:
        journal.append(PhaseChanged(phase="saving", step=session.position.step))
        session.write_final_model()
    journal.append(_finished_event(reason, session, session.job.folder))
    return Result(reason=reason, step_seconds=session.median_step_seconds)


def _reason(session: Session) -> EndReason:
    if session.position.stopped_early:
        return "early stopping"
    is_at_end = session.position.step >= session.plan.total_steps.value
    return "done" if is_at_end and not session.evaluation_is_due else "stopped"


def _finished_event(reason: EndReason, session: Session, folder: RunFolder) -> RunFinished:
    position = session.position
    # With early stopping the final model has the weights of the best evaluation.
    patience = session.plan.config.evaluation.early_stopping_patience
    goes_back = patience > 0 and position.best_step > 0 and reason != "stopped"
    return RunFinished(
        step=position.step,
        reason=reason,
        loss=position.recent_loss,
        eval_loss=position.best_eval_loss if goes_back else position.eval_loss,
        seconds=round(position.training_seconds, 3),
        model_path=None if reason == "stopped" else str(folder.model.relative_to(folder.root)),
        model_bytes=None if reason == "stopped" else folder_size(folder.model).bytes,
        model_step=None if reason == "stopped" else position.best_step if goes_back else position.step,
        scores={**(position.best_scores if goes_back else position.scores), **session.calibration.scores},
        model_files={} if reason == "stopped" else file_fingerprints(folder.model),
        calibrated_loss=session.calibration.loss,
    )
