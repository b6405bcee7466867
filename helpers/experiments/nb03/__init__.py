"""Experiments of notebook 03: rows a batch, two layouts and their readers, a pack that is killed.

The trap: an Arrow file that is read from end to end is equally fast in every layout; only random
reads, which training does, tell good batches from bad ones.
"""
