"""Choose samples of a packed set by their values: a condition, a stored split, or a rule for one.

    reader = select(formats.open("train.arrow"), Choice(where="label == 'cat' and age > 40"))

`LoaderConfig`, `PackedFolder` and several verbs take the same settings. The trap: a list of chosen samples
beside the data is right until the set is packed again in another order. A condition on values stays right.

Here are these settings, which are flags too. docs/recipes.md has examples.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from smallfiles.errors import UsageError
from smallfiles.options import Settings, option

Classes = Literal["same", "names", "numbers"]


def parse_rule(text: str) -> dict[str, float]:
    """Read a rule such as `train=0.8,val=0.2`."""
    try:
        pairs = [part.split("=") for part in text.split(",")]
        rule = {name.strip(): float(share) for name, share in pairs}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}; expected shares, such as train=0.8,val=0.2") from None
    if len(rule) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} names a split twice; expected each split once")
    return rule


def rule_text(rule: Mapping[str, float]) -> str:
    """Write a rule as `parse_rule` reads it."""
    return ",".join(f"{name}={share:g}" for name, share in rule.items())


@dataclass(frozen=True, kw_only=True)
class Choice(Settings):
    """Which samples of a set are used; all of them by default.

    Args:
        where: A condition on fields in Python's syntax, such as `label == 'cat' and age > 40`.
        split: The samples of this split, by the stored field `split`, or by a rule.
        split_rule: The share of each split, such as `{"train": 0.8, "val": 0.2}`. A hash of the key decides,
            so each sample stays in its split when others are added.
        split_by: A field such as the patient: all samples with one value of it are in one split.
        stratify: A field such as the label, for each value of which the hash decides separately. Shares are
            about those of the rule, in each class too.
        split_seed: Another number gives another split.
    """

    where: str | None = option(
        None, "only samples with these values, such as \"label == 'cat' and age > 40\"", metavar="CONDITION"
    )
    split: str | None = option(None, "only samples of this split: by the field split, or by --split-rule")
    split_rule: Mapping[str, float] | None = option(
        None,
        "the share of each split, such as train=0.8,val=0.2; a hash of the key decides",
        parse=parse_rule,
        show=rule_text,
        metavar="NAME=SHARE,...",
    )
    split_by: str | None = option(
        None, "a field, such as the patient, whose equal values are in one split", metavar="FIELD"
    )
    stratify: str | None = option(
        None, "a field, such as the label: each of its values is split separately", metavar="FIELD"
    )
    split_seed: int = option(0, "another number gives another split", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split_rule is not None:
            check_rule(self.split_rule)
        elif self.split_by or self.stratify or self.split_seed:
            raise UsageError(
                "split-by, stratify or split-seed was given without a rule for splits",
                expected="shares, such as train=0.8,test=0.2",
                next_step="Give split-rule too, or leave the others out",
            )
        if self.split_by and self.stratify:
            raise UsageError(
                f"the split is to keep each {self.split_by} together, and made for each {self.stratify}",
                expected="one of split-by and stratify, since one group may hold several classes",
                next_step="Leave stratify out, and compare the shares of the classes in the report",
            )
        if self.split_rule is not None and self.split is not None and self.split not in self.split_rule:
            raise UsageError(
                f"the split {self.split!r} is not in the rule {rule_text(self.split_rule)}",
                expected=f"one of {', '.join(self.split_rule)}",
                next_step="Choose one of these",
            )

    @property
    def chooses(self) -> bool:
        """Whether not all samples are used."""
        return self.where is not None or self.split is not None

    @property
    def choice(self) -> Choice:
        """These settings alone, without those that a subclass adds."""
        return Choice(**{name: getattr(self, name) for name in CHOICES})

    @property
    def chosen(self) -> dict[str, Any]:
        """The settings that are given, for records."""
        found = {name: getattr(self, name) for name in CHOICES}
        return {name: value for name, value in found.items() if value not in (None, 0)}


@dataclass(frozen=True, kw_only=True)
class Draw(Choice):
    """Which samples of a set an epoch has, and how often; each of them once by default.

    Args:
        balance: A field such as the label: an epoch has all of its values equally often. Samples of the
            largest class come once, and those of smaller classes are repeated, as evenly as possible.
        weights: A field of numbers: an epoch has as many samples as the set, and how often a sample comes is
            proportional to its number.
        mix_samples: Samples in an epoch of a mixture. By default, an epoch ends when one set is used up, and
            no sample comes twice; with more samples, those of this set are repeated.
        mix_classes: What labels mean if the sets of a mixture have different classes: `names` joins classes
            of equal names and gives them new labels, and `numbers` takes equal labels as equal classes.
    """

    balance: str | None = option(
        None, "all values of this field, such as label, equally often, by repeats", metavar="FIELD"
    )
    weights: str | None = option(
        None, "how often samples come is proportional to this field", metavar="FIELD"
    )
    mix_samples: int | None = option(
        None, "samples in an epoch of a mixture (default: until one set is used up)", least=1
    )
    mix_classes: Classes = option(
        "same", "what joins the classes of a mixture if the sets have different ones: names or numbers"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.balance is not None and self.weights is not None:
            raise UsageError(
                f"samples should be balanced by {self.balance} and also weighted by {self.weights}",
                expected="one of the two",
                next_step="Leave one of them out",
            )

    @property
    def draw(self) -> Draw:
        """These settings alone, without those that a subclass adds."""
        return Draw(**{name: getattr(self, name) for name in DRAWS})


def check_rule(rule: Mapping[str, float]) -> None:
    """Refuse shares that do not make up a whole.

    Raises:
        UsageError: A share is not positive, or their sum is not 1.
    """
    shares = [*rule.values()]
    if not shares or not all(0 < share <= 1 for share in shares) or not math.isclose(sum(shares), 1):
        raise UsageError(
            f"the rule of the splits is {rule_text(rule) or 'empty'}",
            expected="positive shares whose sum is 1, such as train=0.8,test=0.2",
            next_step="Correct the shares",
        )


EVERYTHING = Choice()
"""The choice of all samples."""
CHOICES = tuple(Choice.__dataclass_fields__)
"""The names of the settings that choose."""
DRAWS = tuple(Draw.__dataclass_fields__)
"""The same, and those that say how often."""
