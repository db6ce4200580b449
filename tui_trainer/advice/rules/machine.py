"""Rules about the machine: GPUs, cores, libraries and other programs."""

import os
from dataclasses import replace
from statistics import median

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import (
    IDLE_GPU_SHARE,
    LEAST_CAUSE_SHARE,
    Cause,
    Verdict,
    failed,
    not_applicable,
    passed,
    rule,
    symptom,
    warned,
)
from tui_trainer.advice.remedies import micro_batch_patch
from tui_trainer.advice.rules.kernels import COMPILE
from tui_trainer.advice.run_view import RunView
from tui_trainer.config.load import all_settings, value_of
from tui_trainer.config.sections import DATA_KEY
from tui_trainer.hardware.diagnosis import torch_problem
from tui_trainer.hardware.facts import Gpu
from tui_trainer.hardware.gpu_models import version_text
from tui_trainer.hardware.visible_gpus import VARIABLE
from tui_trainer.methods.optimizers import DEFAULT, OPTIMIZER_KEY
from tui_trainer.planning.batch_cut import ACCUMULATION_KEY, EFFECTIVE_BATCH_KEY, MICRO_BATCH_KEY
from tui_trainer.planning.planned import StepGrade
from tui_trainer.runs.state import WARM_UP_STEPS, slowest_rank
from tui_trainer.runs.wording import takes_words
from tui_trainer.terminal.safe_text import shell_word
from tui_trainer.units import MIB, format_bytes, format_number, format_percent, format_rate, format_seconds, quantity

GROUP = "Machine"
# Other programs that use one of two cores halve the speed of a step. A quarter of the cores is noticeable.
_BUSY_SHARE = 0.25
# Starting this program alone causes such a load in the first minute.
_LEAST_LOAD = 0.75
# Share of the cores. The system itself uses less than this.
_LEAST_OTHERS = 0.1
# Share of a GPU's memory. A desktop or the driver itself uses less than this.
_GUEST_BYTES_SHARE = 0.05
# Healthy machines also have this much in swap: pages that no program has used for a long time.
_MOST_SWAP_BYTES = 512 * MIB
_MOST_SWAP_SHARE = 0.05
THREADS = "training.cpu_threads"
_VARIABLES = ("OMP_THREAD_LIMIT", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Measured on 2 cores beside one busy process: 3465 ms per step if waiting threads never sleep, 340 ms if they do.
_SPINNING = "waiting threads never sleep, so one other program can make steps ten times as long"
# The first and the last steps of a run are compared, which needs enough of both.
_EARLY_STEPS = 100
_LEAST_STEPS = 200
# A run on a CPU should use at least this share of the usable cores.
_LEAST_BUSY_CORES = 0.5
# Step times usually differ by a smaller factor between runs or epochs.
_SLOWER_STEP_RATIO = 1.3
# If threads wait for a core during a larger share of the time, that alone explains slow steps.
_MOST_WAIT_SHARE = 0.1


@rule("The run can be planned", 10, needs_plan=False)
def plan(context: Context) -> Verdict:
    """Errors in settings and data are reported before the start, all of them together."""
    if context.problems or context.plan is None:
        count = len(context.problems)
        sentence = f"{count} problem{' prevents' if count == 1 else 's prevent'} this run from starting"
        if not context.problems:
            return failed(sentence)
        first, *others = context.problems
        # The advice is the hint of the first problem, which the evidence therefore leaves out.
        sentence, data_key = f"{sentence}: {replace(first, hint='')}", DATA_KEY if context.facts is None else ""
        setting = first.key if first.key in all_settings() else data_key
        return failed(sentence, *map(str, others), advice=first.hint, setting=setting)
    return passed(takes_words(context.plan))


@rule("The GPU is used", 20, needs_plan=False)
def device(context: Context) -> Verdict:
    """A run that was meant for a GPU and ends up on the CPU takes ten to a hundred times as long."""
    hardware = context.hardware
    gpu, device = context.gpu, context.device
    cpu = f"{hardware.cpu_name}, {hardware.usable_cores} usable cores"
    if device == "cuda" and gpu:
        other_gpus = [other for other in hardware.gpus if other is not gpu]
        others_text = f"; {quantity(len(other_gpus), 'more GPU')} on this machine" if other_gpus else ""
        return passed(f"trains on GPU {gpu.index}: {_gpu_text(gpu)}{others_text}", *map(_gpu_text, other_gpus))
    if hardware.gpus and context.chosen_gpu == "none":
        sentence = f"the GPU stays idle because of --gpu none, so the run is on the CPU ({cpu})"
        return warned(sentence, advice="omit --gpu none")
    if hardware.gpus:
        gpu_count, gpu_texts = len(hardware.gpus), tuple(map(_gpu_text, hardware.gpus))
        idle_text = "1 GPU stays idle" if gpu_count == 1 else f"{gpu_count} GPUs stay idle"
        idle_text += f" ({_gpu_text(gpu or hardware.gpus[0])})"
        verdict, advice = failed, "run tui-trainer diagnose for details"
        reason = next((card.problem for card in hardware.gpus if card.problem), "no GPU can be used now")
        if gpu and (problem := torch_problem(hardware, gpu)):
            reason = problem.sentence
            advice = problem.remedy or "use a newer GPU: no current CUDA version supports this one"
        elif all(not card.visible for card in hardware.gpus):
            verdict, reason, advice = warned, f"{VARIABLE} hides all GPUs", f"unset {VARIABLE}"
        return verdict(f"{idle_text}: {reason}; the run is on the CPU ({cpu})", *gpu_texts, advice=advice)
    if hardware.driver and hardware.driver.problem:
        sentence = f"the NVIDIA driver does not respond ({hardware.driver.problem}); the run is on the CPU"
        return warned(f"{sentence} ({cpu})", advice="run nvidia-smi to see the driver's message")
    if hardware.driver is None and hardware.nvidia_pci_devices:
        gpu_count = hardware.nvidia_pci_devices
        sentence = f"{quantity(gpu_count, 'NVIDIA GPU')} on the PCI bus, but no driver: the run is on the CPU ({cpu})"
        return failed(sentence, advice="run tui-trainer diagnose to see what to install")
    return not_applicable(f"no GPU on this machine, so the run is on the CPU ({cpu})")


def _gpu_text(gpu: Gpu) -> str:
    name = gpu.name or f"GPU {gpu.index}"
    return name if gpu.memory_bytes is None else f"{name}, {format_bytes(gpu.memory_bytes)}"


@rule("Libraries match the driver", 30, OPTIMIZER_KEY, needs_plan=False)
def libraries(context: Context) -> Verdict:
    """A torch build that does not match the driver silently falls back to the CPU."""
    hardware = context.hardware
    for key, library in context.config.libraries:
        if hardware.libraries.get(library, "") is None:  # versions that were not read are not missing
            sentence = f'{key} = "{value_of(context.config, key)}" needs {library}, which is not installed'
            fix = {OPTIMIZER_KEY: DEFAULT} if key == OPTIMIZER_KEY else None
            return failed(sentence, fix=fix, advice=f"install it: uv pip install {library}")
    version = hardware.libraries.get("torch")
    label = f"torch {version}" if version else "torch"
    if hardware.driver is None:
        return not_applicable(f"no NVIDIA driver on this machine: {label} runs on the CPU, whatever its CUDA version")
    gpu = context.gpu
    if gpu is None:
        return not_applicable(f"no GPU can be used now, so {label} runs on the CPU, whatever its CUDA version")
    if problem := torch_problem(hardware, gpu):
        sentence = f"{problem.sentence} ({label})" if version else problem.sentence
        return warned(sentence, advice=problem.remedy or "train on the CPU, or on a newer GPU")
    cuda, driver_cuda = hardware.torch_cuda, hardware.driver.cuda
    if cuda is None:
        return not_applicable(f"the CUDA version of {label} is unknown, so it cannot be compared with the driver")
    if driver_cuda is None:
        return not_applicable(f"the driver does not report its CUDA version, so it is unknown whether {label} matches")
    note = "; both have the same major version, so this works" if cuda > driver_cuda else ""
    driver_text = f"the driver supports {version_text(driver_cuda)}"
    return passed(f"{label} is built for CUDA {version_text(cuda)}, {driver_text}{note}")


@symptom("Other processes", least_share=0)
def other_processes(view: RunView) -> Cause | None:
    """All threads of a matmul wait for the slowest one, so one busy core delays all the others."""
    if view.on_gpu:
        used_bytes, total_bytes = view.gpu_mean("memory_used_bytes"), view.gpu_mean("memory_bytes")
        run_bytes = view.gpu_mean("process_memory_bytes")
        if used_bytes is None or not run_bytes or not total_bytes:
            return None
        other_bytes = used_bytes - run_bytes
        if other_bytes < _GUEST_BYTES_SHARE * total_bytes:
            return None
        run_text = f"the run {format_bytes(run_bytes)}"
        return Cause(
            cause="Another process uses the GPU of this run.",
            evidence=f"other processes use {format_bytes(other_bytes)} of GPU memory, {run_text}",
            # The driver reports the other process, but not how much it computes.
            share=other_bytes / used_bytes / 2 if (view.gpu_mean("utilization_share") or 0.0) > 0.9 else 0.0,
            advice="run nvidia-smi to see which process it is; choose another GPU with --gpu",
        )
    others, used, wait_share = view.others_cpu_share, view.mean("process_cpu_share"), view.mean("core_wait_share")
    cores = view.mean("usable_cores")
    if others is None or used is None or cores is None or others < _LEAST_OTHERS:
        return None
    # Share of the time that other programs took from this run: at most the time that its threads waited, if known.
    share = others / (others + used)
    if wait_share is not None:
        share = min(share, 2 * wait_share)
    # A run that waits for data does not need the cores meanwhile.
    share *= 1 - view.share_of_time(view.data_seconds)
    if share < LEAST_CAUSE_SHARE:
        return None
    note = ""
    if wait_share is not None:
        note = f"; its threads waited for a core for {format_percent(wait_share)} of their time"
    free_cores = max(1, round(cores * (1 - others)))
    core_list = "0" if free_cores == 1 else f"0-{free_cores - 1}"
    return Cause(
        cause="Other programs use the cores of this run, and its threads wait for each other.",
        evidence=f"other programs use {others * cores:.1f} of {cores:g} cores, the run {used * cores:.1f}{note}",
        share=share,
        advice=f"close these programs (`p` on the Hardware screen lists them), or quit and restart on fewer cores: "
        f"`taskset --cpu-list {core_list} tui-trainer`",
    )


@symptom("One slow process", can_occur=lambda plan: plan.processes.value > 1)
def slow_rank(view: RunView) -> Cause | None:
    """All processes finish a step together, so every step waits for the slowest one."""
    slowest = slowest_rank(view.state)
    if slowest is None:
        return None
    share = view.share_of_time(slowest.lag_seconds)
    where = "clock and temperature of the rank's GPU (nvidia-smi)" if view.on_gpu else "the load of the rank's cores"
    return Cause(
        cause=f"Rank {slowest.rank} is slower than the others, which wait for it in every step.",
        evidence=f"waiting for the rank takes {view.seconds_of_step_words(slowest.lag_seconds)}, "
        f"{format_percent(share)} of the time",
        share=share,
        advice=f"check {where} and other programs on its machine; if the rank stays slow, leave out its device "
        "(CUDA_VISIBLE_DEVICES, or fewer distributed.processes)",
    )


@rule("No other load", 40, needs_plan=False, symptoms=(other_processes, slow_rank))
def busy_machine(context: Context) -> Verdict:
    """Other programs take cores from a run, and its threads then wait for one another at every matmul."""
    hardware = context.hardware
    processes = [
        f"GPU {gpu.index}: {process.name or 'process'} (pid {process.pid}), {format_bytes(process.memory_bytes)}"
        for gpu in hardware.gpus
        for process in gpu.processes or ()
        if process.pid != os.getpid()
    ]
    load, cores = context.load_average, hardware.usable_cores
    if load is None:
        return not_applicable("this system does not report its load", *processes)
    sentence = f"load of other programs in the last minute: {load:.1f} on {cores} usable cores"
    gpu_note = f"; processes on the GPUs: {len(processes)}" if processes else ""
    if load > max(_BUSY_SHARE * cores, _LEAST_LOAD) or processes:
        advice = "`p` on the Hardware screen shows which programs are running"
        return warned(f"{sentence}{gpu_note}", *processes, advice=advice)
    return passed(sentence)


@rule("No swapping", 45, needs_plan=False)
def swap(context: Context) -> Verdict:
    """A step that waits for swapped-out memory takes a hundred times as long."""
    used_bytes, hardware = context.swap_used_bytes, context.hardware
    if used_bytes is None:
        return not_applicable("this system does not report its use of swap")
    sentence = f"{format_bytes(used_bytes)} of swap in use"
    if used_bytes <= max(_MOST_SWAP_BYTES, _MOST_SWAP_SHARE * (hardware.memory_bytes or 0)):
        return passed(sentence)
    return warned(
        f"{sentence}, {format_bytes(hardware.memory_available_bytes)} of memory available",
        advice="see which processes use memory: ps aux --sort=-rss | head",
    )


@symptom("More threads than cores", can_occur=lambda plan: plan.device == "cpu")
def threads_take_turns(view: RunView) -> Cause | None:
    """More threads than cores do not compute faster, and every matmul waits for the last thread."""
    wait_share, cores, threads = view.mean("core_wait_share"), view.mean("usable_cores"), view.state.threads
    if view.on_gpu or wait_share is None or cores is None or wait_share < LEAST_CAUSE_SHARE:
        return None
    if threads is None or threads <= cores or (view.others_cpu_share or 0.0) >= _LEAST_OTHERS:
        return None
    return Cause(
        cause="The run has more threads than cores, so they take turns.",
        evidence=f"{threads} threads on {cores:g} cores; they wait for a core for {format_percent(wait_share)} "
        "of their time",
        share=wait_share,
        fix={THREADS: "auto"},
    )


@symptom("Single thread", can_occur=lambda plan: plan.device == "cpu")
def one_thread(view: RunView) -> Cause | None:
    """Matmuls are split among threads; with only one, all other cores are idle."""
    threads, cores = view.state.threads, view.mean("usable_cores")
    if view.on_gpu or threads != 1 or cores is None or cores < 2:
        return None
    # Both are shares of the usable cores.
    used_share, others_share = view.mean("process_cpu_share"), view.others_cpu_share
    idle_share = max(1 - (1 / cores if used_share is None else used_share) - (others_share or 0.0), 0.0)
    return Cause(
        cause="The run computes with one thread, and the other cores are idle.",
        evidence=(
            f"1 thread on {cores:g} usable cores, {format_percent(idle_share)} of them idle; computing takes "
            f"{view.seconds_of_step_words(view.compute_seconds + view.optimizer_seconds)}, and more threads "
            "shorten only this time"
        ),
        share=idle_share * view.share_of_time(view.compute_seconds + view.optimizer_seconds),
        fix={THREADS: "auto"},
        advice=f"unset {', '.join(_VARIABLES)}: the plan uses one thread per core",
    )


@rule("CPU threads", 50, THREADS, symptoms=(threads_take_turns, one_thread))
def cpu_threads(context: Context) -> Verdict:
    """Fewer threads than cores leave cores idle; more of them take turns and wait for each other.

    Source: the documentation of PyTorch on CPU threading.
    """
    threads, environment = context.required_plan.threads.value, context.environment
    cores = context.hardware.usable_cores
    faults: list[tuple[str, str]] = []
    if environment.get("OMP_WAIT_POLICY", "").lower() == "active":
        faults.append(("OMP_WAIT_POLICY", f"OMP_WAIT_POLICY=active: {_SPINNING}"))
    for name in _VARIABLES:
        value = environment.get(name, "").split(",")[0]
        if value.isdigit() and int(value) < threads:
            faults.append((name, f"{name}={value}, but the plan uses {threads} threads"))
        elif name == "OMP_NUM_THREADS" and value.isdigit() and int(value) > cores:
            faults.append((name, f"{name}={value} for {cores} usable cores"))
    advice = "unset " + " ".join(name for name, _ in faults) if faults else ""
    if context.config.training.cpu_threads != "auto" and threads > max(1, cores):
        faults.append((THREADS, f"{threads} threads on {cores} usable cores take turns"))
    if faults:
        fix = {THREADS: "auto"} if faults[-1][0] == THREADS else None
        return warned("; ".join(text for _, text in faults), fix=fix, advice=advice)
    logical_cores = context.hardware.logical_cores
    logical_note = f" ({logical_cores} logical)" if logical_cores else ""
    sentence = f"{threads} threads on {cores} usable cores{logical_note}, set by the run itself"
    return passed(sentence, switch_state=f"{threads} CPU threads")


@symptom("Slower than before")
def slower_later(view: RunView) -> Cause | None:
    """The first epoch may be slow because of compilation; slower later epochs have another reason."""
    seconds = view.state.step_seconds
    steps = view.state.steps_since_start - WARM_UP_STEPS
    start = len(seconds) - steps
    is_crowded = not view.on_gpu and (view.mean("core_wait_share") or 0.0) > _MOST_WAIT_SHARE
    if steps < _LEAST_STEPS or start < 0 or is_crowded:
        return None
    early_seconds, late_seconds = median(seconds[start : start + _EARLY_STEPS]), median(seconds[-_EARLY_STEPS:])
    if late_seconds < _SLOWER_STEP_RATIO * early_seconds:
        return None
    share = 1 - early_seconds / late_seconds
    newest_steps = view.state.recent_sums
    if sum(step.data_seconds for step in newest_steps) > share / 2 * sum(step.step_seconds for step in newest_steps):
        # The wait for data has grown, which another diagnosis reports.
        return None
    epochs = view.state.epochs
    epochs_text = f"; epoch {epochs[0].epoch}: {format_seconds(epochs[0].seconds)}, " if len(epochs) > 1 else ""
    epochs_text += f"epoch {epochs[-1].epoch}: {format_seconds(epochs[-1].seconds)}" if epochs_text else ""
    return Cause(
        cause="Steps take longer than they did at the beginning.",
        evidence=(
            f"{format_number(1000 * early_seconds)} ms/step in the first {_EARLY_STEPS} steps, "
            f"{format_number(1000 * late_seconds)} ms now{epochs_text}"
        ),
        share=share,
        advice=f"{format_percent(share)} of the time is lost; usual reasons: longer rows, swapping, heat, other "
        "programs",
    )


@rule("Throughput", 160, group="Speed", symptoms=(slower_later,))
def throughput(context: Context) -> Verdict:
    """A rate that was measured on this machine shows whether a change of settings helped."""
    plan, seconds = context.required_plan, context.step_seconds
    source = plan.step_seconds.reason
    if seconds is None:
        return not_applicable(f"the speed of this model on this machine is unknown: {source}")
    rows = min(plan.effective_batch_size.value, plan.train_rows.value)
    rows_per_second = rows / seconds
    tokens_per_second = rows_per_second * plan.train_tokens.value / max(plan.train_rows.value, 1)
    sentence = f"planned: {format_rate(rows_per_second, 'rows')}, {format_rate(tokens_per_second, 'tokens')}"
    if plan.step_grade != StepGrade.MEASURED:
        return not_applicable(f"{sentence}, not measured with this model and batch yet", source)
    sentence += f" ({source})"
    # The plan uses the fastest earlier runs with such steps. The last of these runs may have been slower.
    earlier = context.earlier
    if earlier is None or earlier.step_seconds is None or earlier.step_seconds < _SLOWER_STEP_RATIO * seconds:
        return passed(sentence)
    sentence += f"; a step of run {earlier.name} took {earlier.step_seconds / seconds:.1f} times as long"
    return warned(sentence, advice=f"to see why: tui-trainer doctor {shell_word(earlier.name)}")


@symptom("GPU throttled", can_occur=lambda plan: plan.device == "cuda")
def throttled(view: RunView) -> Cause | None:
    """A GPU that is too hot or at its power limit lowers its clock, and every kernel takes longer."""
    gpus = [gpu for reading in view.readings for gpu in reading.gpus if gpu.slowed_by]
    count = sum(gpu.slowed_by is not None for reading in view.readings for gpu in reading.gpus)
    clock = view.gpu_mean("clock_share")
    if not gpus or clock is None or not count:
        return None
    share = (1 - clock) * len(gpus) / count
    celsius = max((gpu.temperature_celsius for gpu in gpus if gpu.temperature_celsius is not None), default=None)
    reason = gpus[-1].slowed_by
    note = f", up to {celsius:.0f} degrees Celsius" if celsius is not None else ""
    return Cause(
        cause="The GPU is throttled: it is too hot, or at its power limit.",
        evidence=f"slowed by {reason} in {format_percent(len(gpus) / count)} of readings, clock at "
        f"{format_percent(clock)}{note}",
        share=share,
        advice="improve the cooling of the machine"
        if reason == "heat"
        else "raise the limit: nvidia-smi --power-limit=WATTS",
    )


@symptom("Launch-bound", can_occur=lambda plan: plan.device == "cuda")
def launch_bound(view: RunView) -> Cause | None:
    """Launching a kernel takes about 10 microseconds; larger batches and compiled layers launch fewer per token."""
    usage, plan = view.gpu_mean("utilization_share"), view.plan
    if usage is None or usage >= IDLE_GPU_SHARE:
        return None
    overhead = 1 - view.share_of_time(view.compute_seconds + view.optimizer_seconds)
    share = 1 - usage - overhead
    rows = plan.per_device_train_batch_size if plan else None
    is_cut = plan is not None and plan.gradient_accumulation_steps > 1
    return Cause(
        cause="The GPU waits for small kernels to be launched.",
        evidence=f"GPU {format_percent(usage)} busy; data and overhead take "
        f"{format_percent(max(overhead, 0.0))} of the time",
        share=share,
        fix={MICRO_BATCH_KEY: 2 * rows} if rows and is_cut else {COMPILE: True},
        advice="or use a larger effective batch, or longer rows" if not is_cut else "",
    )


@rule(
    "Processor utilisation", 170, MICRO_BATCH_KEY, EFFECTIVE_BATCH_KEY, ACCUMULATION_KEY, COMPILE, group="Speed",
    symptoms=(throttled, launch_bound),
)  # fmt: skip
def gpu_utilisation(context: Context) -> Verdict:
    """A GPU that waits for data, for the journal or for small batches costs as much as a busy one."""
    earlier, device = context.earlier, context.device
    processor = "the GPU" if device == "cuda" else f"{context.hardware.usable_cores} usable cores"
    if earlier is None or earlier.busy_share is None:
        return not_applicable(f"utilisation of {processor} is measured in the first run of this kind")
    goal, usage = (IDLE_GPU_SHARE if device == "cuda" else _LEAST_BUSY_CORES), earlier.busy_share
    usage_text = f"{format_percent(usage)} in run {earlier.name}"
    sentence = f"utilisation of {processor}: {usage_text}; at least {format_percent(goal)} is good"
    if usage >= goal:
        return passed(sentence)
    advice = f"to see what the run waited for: tui-trainer doctor {shell_word(earlier.name)}"
    if device == "cpu" or (earlier.data_share or 0.0) >= LEAST_CAUSE_SHARE:
        return warned(sentence, advice=advice)
    is_cut = context.required_plan.gradient_accumulation_steps.value > 1
    rows = 2 * context.required_plan.per_device_train_batch_size.value
    fix = micro_batch_patch(context, rows) if is_cut else {COMPILE: True}
    return warned(sentence, fix=None if context.config.training.torch_compile and not is_cut else fix, advice=advice)
