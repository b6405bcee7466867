"""The exercises; `exercises.checks` judges the answers."""
