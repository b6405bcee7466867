"""Five true sentences about a scene, phrased as Flickr30K's are.

Tokens stand apart (" ," and " ."), some sentences quote a word, most hold commas: what breaks a
parser that believes in quoting or splits at commas. The trap: a caption of a scene may only say what
is drawn, or a model that learns it learns noise; a test reads each one back. Notebook 03 packs them.
"""

from __future__ import annotations

import random

from smallfiles.sources.synthetic.scenes import Scene, Thing

CAPTIONS = 5
_NUMBERS = {1: "one object", 2: "two objects", 3: "three objects"}


def describe(scene: Scene, index: int, seed: int) -> list[str]:
    """Five captions of a scene.

    Args:
        scene: From `compose` with the same seed and index.
        index: Number of the picture.
        seed: Seed of the data set.
    """
    dice = random.Random(f"words {seed} {index}")
    main = scene.things[0]
    return [
        f"{_a(_dressed(main)).capitalize()} {dice.choice(('lies', 'rests', 'sits'))} {_ground(scene)} .",
        _relation(scene),
        f"Light falls from the {_light(scene)} on {_a(_coloured(main))} , {_place(main, scene)} .",
        _quoting(main, dice),
        f"There {_verb(scene)} {_NUMBERS[len(scene.things)]} in the picture , {_all(scene)} .",
    ]


def _a(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _coloured(thing: Thing) -> str:
    return f"{thing.colour} {thing.shape}"


def _dressed(thing: Thing) -> str:
    """`red and white striped disc`; a plain object has one colour."""
    if thing.texture == "plain":
        return f"plain {_coloured(thing)}"
    return f"{thing.colour} and {thing.second_colour} {thing.texture} {thing.shape}"


def _ground(scene: Scene) -> str:
    if scene.sky:
        return f"before {_a(scene.backdrop)} landscape under a cloudy sky"
    return f"on {_a(scene.backdrop)} background"


def _light(scene: Scene) -> str:
    return f"{'upper' if scene.light[1] < 0 else 'lower'} {'left' if scene.light[0] < 0 else 'right'}"


def _place(thing: Thing, scene: Scene) -> str:
    column = ("to the left", "in the middle", "to the right")[min(2, 3 * thing.x // scene.width)]
    row = ("near the top", "half way up", "near the bottom")[min(2, 3 * thing.y // scene.height)]
    return f"{column} , {row}"


def _relation(scene: Scene) -> str:
    main, *others = scene.things
    if not others:
        return f"The only thing to see , {_place(main, scene)} , is {_a(_coloured(main))} ."
    other = others[0]
    side = "left" if other.x < main.x else "right"
    return f"A small {_dressed(other)} is to the {side} of a large {_coloured(main)} ."


def _quoting(thing: Thing, dice: random.Random) -> str:
    word = dice.choice((thing.shape, thing.colour, thing.texture))
    return f'Someone would call this {thing.texture} {_coloured(thing)} simply " {word} " .'


def _verb(scene: Scene) -> str:
    return "is" if len(scene.things) == 1 else "are"


def _all(scene: Scene) -> str:
    names = [_a(_coloured(thing)) for thing in scene.things]
    return names[0] if len(names) == 1 else f"{' , '.join(names[:-1])} and {names[-1]}"
