"""When staging pays: after how many epochs the copy has earned its time.

The trap: an epoch that is bound by decoding is no faster from memory, and then no number of epochs
pays for the copy. So measure an epoch, not a raw read. Notebook 07 draws the crossing.
"""

from __future__ import annotations

import math

from smallfiles.errors import UsageError
from smallfiles.progress import duration_text


def break_even(copy_s: float, epoch_slow_s: float, epoch_staged_s: float) -> float:
    """After how many epochs staging has paid.

    Args:
        copy_s: Seconds of staging.
        epoch_slow_s: Seconds of an epoch from where the data lies.
        epoch_staged_s: Seconds of an epoch from the copy.

    Returns:
        Epochs, with a fraction; infinite if the staged epoch is not shorter.

    Raises:
        UsageError: A duration is negative or no number.

    Example:
        >>> break_even(30.0, 20.0, 5.0)
        2.0
    """
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in (copy_s, epoch_slow_s, epoch_staged_s)):
        raise UsageError(
            f"durations of {copy_s}, {epoch_slow_s} and {epoch_staged_s} s were given",
            expected="three finite durations, none negative",
            next_step="Measure them again",
        )
    saved_s = epoch_slow_s - epoch_staged_s
    if copy_s == 0:
        return 0.0
    return copy_s / saved_s if saved_s > 0 else math.inf


def break_even_of_rates(
    set_bytes: int, copy_rate: float, slow_rate: float, staged_rate: float, *, bound_s: float = 0.0
) -> float:
    """`break_even` from measured rates in bytes per second.

    Args:
        set_bytes: Bytes of one epoch, and of the copy.
        copy_rate: Of staging.
        slow_rate: Of reading an epoch where the data lies.
        staged_rate: Of reading an epoch from the copy.
        bound_s: What an epoch takes at least for other reasons (decoding, the GPU).

    Raises:
        UsageError: A rate is not positive.
    """
    if min(copy_rate, slow_rate, staged_rate) <= 0:
        raise UsageError(
            f"rates of {copy_rate}, {slow_rate} and {staged_rate} bytes/s were given",
            expected="rates above zero",
            next_step="Measure them again",
        )
    slow_s, staged_s = (max(bound_s, set_bytes / rate) for rate in (slow_rate, staged_rate))
    return break_even(set_bytes / copy_rate, slow_s, staged_s)


def break_even_text(copy_s: float, epoch_slow_s: float, epoch_staged_s: float) -> str:
    """The same as a sentence for people."""
    epochs = break_even(copy_s, epoch_slow_s, epoch_staged_s)
    if math.isinf(epochs):
        return (
            f"staging takes {duration_text(copy_s)} and never pays: an epoch takes "
            f"{epoch_staged_s:.3g} s from the copy and {epoch_slow_s:.3g} s from where the data lies"
        )
    first = max(1, math.ceil(epochs))
    return (
        f"staging takes {copy_s:.3g} s, saves {epoch_slow_s - epoch_staged_s:.3g} s an epoch, and has paid "
        f"after {first} epoch{'s' if first > 1 else ''}"
    )
