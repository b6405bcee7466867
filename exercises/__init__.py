"""The exercises; `exercises.checks` judges the answers."""

import smallfiles  # noqa: F401 - it says so if this Python is too old
