"""Does what happens between steps take too much of the time?"""

from statistics import fmean

from tui_trainer.doctor.contract import BAR_SHARE, IDLE_GPU, Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.units import format_bytes, format_seconds


def _often(every: int | None) -> str:
    return f", every {every} steps" if every else ""


@diagnosis("Cache emptied often")
def cache_emptied(view: RunView) -> Cause | None:
    """What is given back is asked for again in the next step; a healthy run needs none of it."""
    share, seconds = view.share(view.empty_cache_seconds), view.of_whole(view.empty_cache_seconds)
    often = _often(view.plan.empty_cache_steps if view.plan else None)
    return Cause(
        cause="Collecting garbage and emptying the cache takes the time of training.",
        evidence=f"emptying the cache {percent(share)} of the time: {seconds}{often}",
        share=share,
        fix={"training.empty_cache_steps": 0},
    )


@diagnosis("Much evaluation")
def evaluations(view: RunView) -> Cause | None:
    """While a run evaluates, it does not train."""
    seconds = [one.seconds for one in view.state.evals if one.scheduled]
    if not seconds:
        return None
    share, each = view.share(view.evaluation_seconds), fmean(seconds)
    every = view.plan.eval_every_steps if view.plan else None
    return Cause(
        cause="Evaluations take the time of training.",
        evidence=f"evaluations {percent(share)} of the time: {format_seconds(each)} each{_often(every)}",
        share=share,
        fix={"evaluation.eval_steps": view.seldom(each, view.evaluation_seconds)} if every else None,
        advice="evaluation.max_eval_rows makes each shorter",
    )


@diagnosis("Many checkpoints")
def checkpoints(view: RunView) -> Cause | None:
    """Training waits while a checkpoint is written and made safe on the disk."""
    saves, every = view.state.checkpoints, view.plan.save_every_steps if view.plan else None
    if not saves or (len(saves) < 3 and every and view.state.total_steps <= 2 * every):
        # One on the way is what a crash leaves: no fix takes it away.
        return None
    share, each = view.share(view.checkpoint_seconds), fmean(one.seconds for one in saves)
    words = f"{format_seconds(each)} and {format_bytes(saves[-1].bytes)} each{_often(every)}"
    return Cause(
        cause="Checkpoints take the time of training.",
        evidence=f"checkpoints {percent(share)} of the time: {words}",
        share=share,
        fix={"checkpoint.save_steps": view.seldom(each, view.checkpoint_seconds)},
    )


@diagnosis("Many text samples")
def text_samples(view: RunView) -> Cause | None:
    """A text takes one pass of the model for each of its tokens."""
    if not view.state.samples:
        return None
    share, each = view.share(view.sample_seconds), fmean(one.seconds for one in view.state.samples)
    every = view.plan.sample_every_steps if view.plan else None
    return Cause(
        cause="The texts that the model writes on the way take the time of training.",
        evidence=f"text samples {percent(share)} of the time: {format_seconds(each)} each, every {every} steps",
        share=share,
        fix={"logging.sample_steps": view.seldom(each, view.sample_seconds)},
    )


@diagnosis("Logging too often")
def journal_writes(view: RunView) -> Cause | None:
    """Each group of steps that is written waits once for the device, and for the file."""
    group, busy = view.plan.logging_steps if view.plan else None, view.gpu_mean("utilization_share")
    share = view.share(view.journal_seconds)
    evidence = f"the journal {percent(share)} of the time: {view.of_whole(view.journal_seconds)}"
    if group == 1 and busy is not None and busy < IDLE_GPU and view.share(view.data_seconds) < BAR_SHARE:
        # On a GPU each group waits once for the device, which then has nothing queued.
        evidence = f"each step waits for the device, which is busy {percent(busy)} of the time"
        share = max(share, (1 - busy) / 2)
    return Cause(
        cause="Writing the steps down holds them up.",
        evidence=evidence + (f", steps are written in groups of {group}" if group else ""),
        share=share,
        fix={"logging.logging_steps": 10 * group} if group else None,
    )


@diagnosis("Time between steps")
def between_steps(view: RunView) -> Cause | None:
    """Evaluations, checkpoints, samples, the journal and the cache are timed; the rest should be next to nothing."""
    share = view.share(view.other_seconds)
    return Cause(
        cause="Something between the steps takes time, and it is none of the parts that are timed.",
        evidence=f"unaccounted {percent(share)} of the time: {view.of_whole(view.other_seconds)}",
        share=share,
        advice="old checkpoints that are slowly removed, failed saves or samples, a machine that swaps: see the events",
    )
