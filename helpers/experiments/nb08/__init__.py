"""The experiments of notebook 08: where a batch's time goes, who makes it, and what a buffer is good for.

    ways       four ways to make one batch of the same views; clock: what each part of it takes
    stages     these ways measured, what sending a batch costs included
    pictures   large pictures, and how far two batches differ
    workers    epochs of a loader against the number of processes or threads
    stalls     a storage that stands still at times, and what prefetching or a ring makes of it
    filler     `ring fill` as a program beside the notebook
    pinning    copies to a GPU, where there is one

The trap: PyTorch uses all cores for a single picture in the main process and one in a worker. So whatever
is followed here works in one thread.
"""
