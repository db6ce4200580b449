"""Steps: how many there are, and on which of them something happens."""


def every(steps_or_share: float, total_steps: int) -> int:
    """A setting such as `eval_steps` as a number of steps: below 1 a share of all steps, 0 stays 0 (never)."""
    if 0 < steps_or_share < 1:
        return max(1, round(steps_or_share * total_steps))
    return int(steps_or_share)


def due(step: int, every_steps: int) -> bool:
    """Whether something that happens every so many steps happens after this one; 0 is never."""
    return every_steps > 0 and step % every_steps == 0


def times(total_steps: int, every_steps: int, *, after: int = 0) -> int:
    """How often `due` is true after that step, the end counted in."""
    if after >= total_steps:
        return 0
    if every_steps <= 0:
        return 1
    return total_steps // every_steps - after // every_steps + (total_steps % every_steps != 0)
