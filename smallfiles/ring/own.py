"""A filler that lives in the trainer's process, as a thread beside the training.

The trap: a thread that dies of an error dies silently, and the training would wait for ever; so the error is
kept, and raised where the next batch would have been. Notebook 08 teaches the ring.
"""

from __future__ import annotations

import threading

from smallfiles.errors import SmallfilesError
from smallfiles.ring.faults import RingError
from smallfiles.ring.filler import Filler


class OwnFiller:
    """A filler as a thread of the trainer.

    Args:
        filler: Runs from now on.

    Attributes:
        error: Why it ended, if it failed.
    """

    def __init__(self, filler: Filler) -> None:
        self.filler = filler
        self.error: SmallfilesError | None = None
        self._thread = threading.Thread(target=self._run, name="ring filler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.filler.run()
        except SmallfilesError as error:
            self.error = error
        except Exception as error:  # a thread that dies silently would leave the trainer waiting
            self.error = RingError(
                f"the filler failed: {type(error).__name__}: {error}",
                expected="a filler that runs until it is stopped",
                next_step="Report this as a bug of the package",
            )

    def end(self) -> None:
        """Stop it and wait until nothing of it is left."""
        self.filler.stop()
        if threading.current_thread() is not self._thread:  # whose turn it may be to collect garbage
            self._thread.join()
