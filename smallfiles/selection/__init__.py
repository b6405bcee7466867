"""Choose samples of a packed set by their values: a condition, a stored split, or a rule for one.

    reader = select(formats.open("train.arrow"), Choice(where="label == 'cat' and age > 40"))

`LoaderConfig`, `PackedFolder` and several verbs take the same settings. The trap: a list of chosen samples
beside the data is right until the set is packed again in another order. A condition on values stays right.
"""
