"""Batches for training: every sample exactly once an epoch, over all ranks and workers."""
