"""Batches for training: every sample exactly once per epoch, over all ranks and workers.

    plan           which samples a rank reads, in which order, over which streams: arithmetic
    schedule       which epoch and batch comes next
    batches        what a batch is
    makers         one maker per field: Image, Mask, Boxes, Array, Audio, Value, Ragged, Function
    fields         batches of all fields; unreadable samples
    callables      torchvision's transforms, and functions of a picture
    dataset        any sample by its number
    packed_folder  the class in place of torchvision's ImageFolder
    stream         ranges of shards, mixed in a buffer
    loader         `make_loader`: a DataLoader with processes, threads, or neither
    worker_errors  why a worker died, in a sentence

The trap: each of a loader's dozen settings fails silently: duplicate samples, the same order in all epochs,
equal crops in all workers. `make_loader` sets them together. Notebook 08 teaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smallfiles import lazy

if TYPE_CHECKING:
    from smallfiles.loading.batches import Batch as Batch
    from smallfiles.loading.batches import BatchMaker as BatchMaker
    from smallfiles.loading.config import LoaderConfig as LoaderConfig
    from smallfiles.loading.dataset import LoadedBatch as LoadedBatch
    from smallfiles.loading.dataset import SampleDataset as SampleDataset
    from smallfiles.loading.fields import BadSampleError as BadSampleError
    from smallfiles.loading.fields import FieldBatches as FieldBatches
    from smallfiles.loading.fields import field_batches as field_batches
    from smallfiles.loading.loader import Loader as Loader
    from smallfiles.loading.loader import make_loader as make_loader
    from smallfiles.loading.makers import Array as Array
    from smallfiles.loading.makers import Audio as Audio
    from smallfiles.loading.makers import Boxes as Boxes
    from smallfiles.loading.makers import Function as Function
    from smallfiles.loading.makers import Image as Image
    from smallfiles.loading.makers import Mask as Mask
    from smallfiles.loading.makers import Ragged as Ragged
    from smallfiles.loading.makers import Value as Value
    from smallfiles.loading.packed_folder import PackedFolder as PackedFolder
    from smallfiles.loading.plan import EpochPlan as EpochPlan
    from smallfiles.loading.worker_errors import WorkerDiedError as WorkerDiedError

__getattr__ = lazy.names(__name__)
