"""Exercise 02: the validation manifest from the devkit, and whose label order a manifest has.

    from exercises.checks import ex02_describe_a_dataset as check

    check.val_manifest(val_manifest)
    check.label_order(label_order)

The trap is the exercise's subject: wrong labels are whole numbers too, and nothing complains about them.
"""

from exercises.checks.ex02_describe_a_dataset.devkits import devkit_classes
from exercises.checks.ex02_describe_a_dataset.strangers import KNOWN, label_order
from exercises.checks.ex02_describe_a_dataset.validation import val_manifest

__all__ = ["KNOWN", "devkit_classes", "label_order", "val_manifest"]
