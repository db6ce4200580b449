"""Is the processor or the card kept from computing, or computes it more slowly than it could?"""

from statistics import median

from tui_trainer.config.changes import Patch
from tui_trainer.doctor.contract import BAR_SHARE, IDLE_GPU, Cause, diagnosis, percent
from tui_trainer.doctor.view import RunView
from tui_trainer.runs.state import WARM_UP_STEPS, slowest_rank
from tui_trainer.units import format_bytes, format_number, format_seconds

# Of the cores, and of the memory of a card.
_LEAST_OTHERS, _GUEST_BYTES_SHARE = 0.1, 0.05
# Of two cores instead of one: what is not in a kernel gains nothing.
_GAIN_OF_CORES = 0.7
# Times as fast as fp32. CPU: measured from width 256 on (planning/automatic_values.py); GPU: tensor cores have 2 to 8
# times the matmuls a second.
_GAIN = {"cpu": 1.5, "cuda": 2.0}
_TIMES_AS_LONG, _SEEN = 5.0, 500
# Positions of a pass at which half of its time is fixed cost.
_HALF_AT = {"cpu": 32, "cuda": 256}
_BUSY_GPU = 0.9
_EARLY_STEPS, _LEAST_STEPS = 100, 200
_SLOWER = 1.3
# What explains it already.
_CROWDED = 0.1


@diagnosis("Other processes", least_share=0)
def other_processes(view: RunView) -> Cause | None:
    """Threads of one matmul wait for the slowest of them: one core taken away holds all others up."""
    return _on_the_card(view) if view.on_gpu else _on_the_cores(view)


def _on_the_cores(view: RunView) -> Cause | None:
    others, own, wait = view.others_cpu_share, view.mean("process_cpu_share"), view.mean("core_wait_share")
    cores = view.mean("usable_cores")
    if others is None or own is None or cores is None or others < _LEAST_OTHERS:
        return None
    # What they have taken from this run: where the kernel counts it, no more than its threads waited.
    share = others / (others + own)
    if wait is not None:
        share = min(share, 2 * wait)
    # A run that waits for its data has no use for the cores meanwhile.
    share *= 1 - view.share(view.data_seconds)
    if share < BAR_SHARE:
        return None
    waits = f"; its threads waited for a core {percent(wait)} of their time" if wait is not None else ""
    fewer = max(1, round(cores * (1 - others)))
    first = "0" if fewer == 1 else f"0-{fewer - 1}"
    return Cause(
        cause="Other programs compute on the cores of this run, and its threads wait for each other.",
        evidence=f"others use {others * cores:.1f} of {cores:g} cores, the run {own * cores:.1f}{waits}",
        share=share,
        advice=f"end them (`top` shows them), or train on fewer cores: taskset --cpu-list {first} COMMAND",
    )


def _on_the_card(view: RunView) -> Cause | None:
    used = view.gpu_mean("memory_used_bytes")
    own = view.gpu_mean("process_memory_bytes")
    total = view.gpu_mean("memory_bytes")
    if used is None or not own or not total or used - own < _GUEST_BYTES_SHARE * total:
        return None
    return Cause(
        cause="Another process is on the card of this run.",
        evidence=f"{format_bytes(used - own)} of its memory are others', {format_bytes(own)} the run's",
        # That it is there is known; what it computes is not reported.
        share=(used - own) / used / 2 if (view.gpu_mean("utilization_share") or 0.0) > 0.9 else 0.0,
        advice="see who it is: nvidia-smi; choose another card with --gpu",
    )


@diagnosis("More threads than cores")
def threads_take_turns(view: RunView) -> Cause | None:
    """Threads beyond the cores compute nothing more, and every matmul waits for the last of them."""
    wait, others, cores, threads = (
        view.mean("core_wait_share"),
        view.others_cpu_share,
        view.mean("usable_cores"),
        view.state.threads,
    )
    if view.on_gpu or None in (wait, cores) or wait is None or cores is None or wait < BAR_SHARE:
        return None
    if threads is None or threads <= cores or (others or 0.0) >= _LEAST_OTHERS:
        return None
    return Cause(
        cause="The run has more threads than cores, and they take turns.",
        evidence=f"{threads} threads on {cores:g} cores; they waited for a core {percent(wait)} of their time",
        share=wait,
        advice=f"export OMP_NUM_THREADS={max(1, int(cores))}",
    )


@diagnosis("One slow process")
def slow_rank(view: RunView) -> Cause | None:
    """All processes end a step together: the others wait for the slowest in each."""
    found = slowest_rank(view.state)
    if found is None:
        return None
    share = view.share(found.lag_seconds)
    where = "its clock and temperature (nvidia-smi)" if view.on_gpu else "the load of its cores"
    return Cause(
        cause=f"Rank {found.rank} is slower than the others, which wait for it in every step.",
        evidence=f"{view.of_whole(found.lag_seconds)}, {percent(share)} of the time, until rank {found.rank} has come",
        share=share,
        advice=f"look at {where}, and for other programs there; if it stays slow, leave it out "
        "(CUDA_VISIBLE_DEVICES, or fewer distributed.processes)",
    )


@diagnosis("One thread")
def one_thread(view: RunView) -> Cause | None:
    """Matmuls share their work among threads; with one of them all cores but one have nothing to do."""
    threads, cores = view.state.threads, view.mean("usable_cores")
    if view.on_gpu or threads != 1 or cores is None or cores < 2:
        return None
    idle = max(1 - 1 / cores - (view.others_cpu_share or 0.0), 0.0)
    share = _GAIN_OF_CORES * idle * view.share(view.compute_seconds + view.optimizer_seconds)
    return Cause(
        cause="The run computes with one thread, and the other cores are idle.",
        evidence=f"1 thread on {cores:g} usable cores, {percent(idle)} of them idle",
        share=share,
        advice="unset OMP_THREAD_LIMIT, OMP_NUM_THREADS and MKL_NUM_THREADS: the plan takes one thread a core",
    )


@diagnosis("fp32 where 16 bits are native")
def slow_precision(view: RunView) -> Cause | None:
    """Matmuls in 16 bits are faster and halve activations, where the processor has them natively."""
    plan = view.plan
    if plan is None or plan.precision != "fp32" or plan.best_precision in ("", "fp32"):
        return None
    gain = _GAIN["cuda" if view.on_gpu else "cpu"]
    share = (1 - 1 / gain) * view.share(view.compute_seconds)
    return Cause(
        cause=f"The run computes in fp32, and {plan.best_precision} is native here.",
        evidence=(
            f"fp32 for {view.of_whole(view.compute_seconds)} of forward and backward; {plan.best_precision} is about "
            f"{gain:g} times as fast"
        ),
        share=share,
        fix={"training.mixed_precision": "auto"},
    )


@diagnosis("Card throttled")
def throttled(view: RunView) -> Cause | None:
    """A card that is too hot or at its power limit lowers its clock, and every kernel takes longer."""
    slowed = [gpu for reading in view.readings for gpu in reading.gpus if gpu.slowed_by]
    asked = sum(gpu.slowed_by is not None for reading in view.readings for gpu in reading.gpus)
    clock = view.gpu_mean("clock_share")
    if not slowed or clock is None or not asked:
        return None
    share = (1 - clock) * len(slowed) / asked
    hot = max((gpu.temperature_celsius for gpu in slowed if gpu.temperature_celsius is not None), default=None)
    by = slowed[-1].slowed_by
    degrees = f", up to {hot:.0f} degrees Celsius" if hot is not None else ""
    return Cause(
        cause="The card runs below its clock: it is too hot, or draws all the power that it may.",
        evidence=f"slowed by {by} in {percent(len(slowed) / asked)} of readings, clock at {percent(clock)}{degrees}",
        share=share,
        advice="see the air flow of the machine" if by == "heat" else "raise the limit: nvidia-smi --power-limit=WATTS",
    )


@diagnosis("Compiled again and again")
def compiles_again(view: RunView) -> Cause | None:
    """If all epochs are slow and not only the first, compiling has not paid."""
    plan, seconds = view.plan, view.state.step_seconds[-_SEEN:]
    if plan is None or not plan.torch_compile or len(seconds) < 20:
        return None
    later = seconds[len(seconds) // 4 :]
    usual = median(later)
    long = [one - usual for one in later if one > _TIMES_AS_LONG * usual]
    share = sum(long) / sum(later) if sum(later) > 0 else 0.0
    if len(long) < 2:
        return None
    return Cause(
        cause="Layers are compiled again and again, long after the first steps.",
        evidence=f"{len(long)} steps took {_TIMES_AS_LONG:g} times as long as the others: {percent(share)} of the time",
        share=share,
        fix={"training.torch_compile": False},
        advice="or rows of one length: packing, or documents cut to data.max_length",
    )


@diagnosis("Launch-bound")
def launch_bound(view: RunView) -> Cause | None:
    """A kernel takes about 10 microseconds to start; larger batches and compiled layers have fewer of them a token."""
    busy, plan = view.gpu_mean("utilization_share"), view.plan
    if busy is None or busy >= IDLE_GPU:
        return None
    explained = 1 - view.share(view.compute_seconds + view.optimizer_seconds)
    share = 1 - busy - explained
    rows = plan.per_device_train_batch_size if plan else None
    cut = plan is not None and plan.gradient_accumulation_steps > 1
    return Cause(
        cause="The GPU waits for its kernels to be started: each of them is small.",
        evidence=f"GPU {percent(busy)} busy, data and interruptions explain {percent(max(explained, 0.0))}",
        share=share,
        fix={"training.per_device_train_batch_size": 2 * rows} if rows and cut else {"training.torch_compile": True},
        advice="a larger effective batch, or longer rows" if not cut else "",
    )


@diagnosis("Small batches")
def small_batch(view: RunView) -> Cause | None:
    """The optimizer, the start of each kernel and the Python around it cost the same for one row as for many."""
    plan, sums = view.plan, view.sums
    if plan is None or not sums.positions or (view.gpu_mean("utilization_share") or 0.0) >= _BUSY_GPU:
        return None
    passes = max(plan.gradient_accumulation_steps, 1)
    positions = sums.positions / sums.steps / passes
    half = _HALF_AT["cuda" if view.on_gpu else "cpu"]
    fixed = half / (half + positions)
    update = view.share(view.optimizer_seconds)
    if passes > 1:  # the same rows behind a step in fewer passes
        fix: Patch = {"training.gradient_accumulation_steps": "auto"}
    else:
        fix = {"training.effective_batch_size": max(16, 4 * plan.effective_batch_size)}
    return Cause(
        cause="Batches are too small: most of a step is what each step costs, however little it learns from.",
        evidence=(
            f"{positions:,.0f} positions in a pass ({plan.per_device_train_batch_size} rows); the optimizer takes "
            f"{percent(update)} of the time"
        ),
        share=fixed * (view.share(view.compute_seconds) + update),
        fix={"training.per_device_train_batch_size": "auto", **fix},
    )


@diagnosis("Slower than before")
def slower_later(view: RunView) -> Cause | None:
    """The first epoch may be the slow one, for it compiles; later ones that are slower have another reason."""
    seconds = view.state.step_seconds
    done = view.state.steps_since_start - WARM_UP_STEPS
    begin = len(seconds) - done
    if done < _LEAST_STEPS or begin < 0 or (not view.on_gpu and (view.mean("core_wait_share") or 0.0) > _CROWDED):
        return None
    early, late = median(seconds[begin : begin + _EARLY_STEPS]), median(seconds[-_EARLY_STEPS:])
    if late < _SLOWER * early:
        return None
    share = 1 - early / late
    newest = view.state.recent
    if sum(done.data_seconds for done in newest) > share / 2 * sum(done.step_seconds for done in newest):
        # What grew is known: the wait for data has a diagnosis of its own.
        return None
    epochs = view.state.epochs
    words = f"; epoch {epochs[0].epoch}: {format_seconds(epochs[0].seconds)}, " if len(epochs) > 1 else ""
    words += f"epoch {epochs[-1].epoch}: {format_seconds(epochs[-1].seconds)}" if words else ""
    return Cause(
        cause="Steps take longer than they did at the beginning.",
        evidence=(
            f"{format_number(1000 * early)} ms a step in the first {_EARLY_STEPS} steps, "
            f"{format_number(1000 * late)} ms now{words}"
        ),
        share=share,
        advice=f"{percent(share)} is lost to what came since: longer rows, memory that swaps, heat, other programs",
    )
