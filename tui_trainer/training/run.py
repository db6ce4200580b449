"""The story of a run, from load to the final model, on one page."""

from __future__ import annotations

import os

import torch
from transformers.utils import logging as transformers_logging

from tui_trainer.errors import RunError
from tui_trainer.planning.cadence import due
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.controls import Controls
from tui_trainer.runs.events import LibrariesLoaded, PhaseChanged, RunFinished
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.training.desk import Desk
from tui_trainer.training.device import device_of, use_device
from tui_trainer.training.job import Job, Reason, Result
from tui_trainer.training.recorder import memory_before
from tui_trainer.training.session import Session


def run(job: Job, journal: JournalWriter, controls: Controls) -> Result:
    """Carry out a plan. Raises RunError when it cannot go on; the last checkpoint then stands."""
    plan = job.plan
    _prepare_process(plan)
    before = None if plan.device == "cuda" else memory_before(plan.config.tuning.method)
    journal.append(LibrariesLoaded(resident_bytes=before))
    session = Session(job, journal)
    try:
        return _train(session, journal, Desk(controls, session, journal))
    finally:
        session.close()


def _train(session: Session, journal: JournalWriter, desk: Desk) -> Result:
    plan = session.plan
    journal.append(PhaseChanged(phase="training", step=session.position.step))
    # A stop may have cut an evaluation short, and the checkpoint of that step was saved without it.
    session.evaluate_if_due()
    for step in range(session.position.step + 1, plan.total_steps.value + 1):
        if session.position.stopped_early or desk.wants_stop():
            break
        session.take_step(step)
        if due(step, session.batches.steps_per_epoch):
            session.finish_epoch()
        session.evaluate_if_due()
        if due(step, plan.sample_every_steps.value):
            session.sample()
        if due(step, plan.save_every_steps.value) or step == plan.total_steps.value:
            session.save("scheduled")

    reason = _reason(session)
    saved = session.save(reason)
    if reason == "stopped":
        if not saved:
            raise RunError(f"stopped at step {session.position.step}, which could not be saved; see the problem before")
    else:
        journal.append(PhaseChanged(phase="saving", step=session.position.step))
        session.write_final_model()
    journal.append(_finished(reason, session, session.job.folder))
    return Result(reason=reason, step_seconds=session.median_step_seconds)


def _reason(session: Session) -> Reason:
    if session.position.stopped_early:
        return "early stopping"
    at_the_end = session.position.step >= session.plan.total_steps.value
    return "done" if at_the_end and not session.evaluation_is_due else "stopped"


def _finished(reason: Reason, session: Session, folder: RunFolder) -> RunFinished:
    position = session.position
    # With early stopping the model has the weights of the best evaluation.
    patience = session.plan.config.evaluation.early_stopping_patience
    goes_back = patience > 0 and position.best_step > 0 and reason != "stopped"
    return RunFinished(
        step=position.step,
        reason=reason,
        loss=position.recent_loss,
        eval_loss=position.best_eval_loss if goes_back else position.eval_loss,
        seconds=round(position.training_seconds, 3),
        model_path=None if reason == "stopped" else str(folder.model.relative_to(folder.root)),
    )


def _prepare_process(plan: Plan) -> None:
    """What is global in a process. The number of threads is part of exactness: another one sums in another order."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    torch.set_num_threads(plan.threads.value)
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    if plan.device == "cuda":
        _prepare_gpu(plan)
    use_device(device_of(plan))


def _prepare_gpu(plan: Plan) -> None:
    training = plan.config.training
    torch.set_float32_matmul_precision("high" if training.tf32 and not training.deterministic else "highest")
    if training.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Where CUDA is at work already, as for a second run, the first has said so.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    # Not `warn_only`: then torch's attention kernels stay as they are, and the backward pass differs from run to run.
    torch.use_deterministic_algorithms(training.deterministic)
