"""The default text: sentences drawn from a small grammar, the same on every machine.

So losses agree across versions of Python. Only `random.Random.random` draws, whose sequence Python
promises not to change.
"""

import re
from random import Random

import numpy as np
from numpy.typing import NDArray

NBYTES = 1 << 19
"""Of the whole text."""

# What a name in capitals may become. Choices nearer to the front are more frequent.
_GRAMMAR = {
    "PARAGRAPH": [
        "SENTENCE SENTENCE SENTENCE",
        "SENTENCE SENTENCE SENTENCE SENTENCE SENTENCE",
        "HEADING\n\nSENTENCE SENTENCE",
        "SENTENCE TABLE",
    ],
    "HEADING": ["Day DAY: the PLACE", "About the THING of the PERSON", "The PLACE in SEASON"],
    "SENTENCE": [
        "WHO VERBED the ADJECTIVE THING.",
        "WHO VERBED a THING PLACING, and OTHER VERBED it back.",
        "In SEASON WHO VERBED NUMBER THINGs PLACING.",
        '"QUESTION?" asked the PERSON. "ANSWER," said WHO.',
        "When WHO VERBED the THING, it was too ADJECTIVE for OTHER.",
        "SUM.",
        "If the THING is ADJECTIVE, the PERSON keeps it PLACING; if not, it goes to the PLACE.",
        "Nobody VERBED the THING before OTHER did, NUMBER days later.",
    ],
    "TABLE": [
        "They wrote it down:\n\n  THING: DIGIT\n  THING: DIGIT\n  THING: DIGIT",
        "The list had two lines:\n\n  - NUMBER ADJECTIVE THINGs\n  - NUMBER THINGs PLACING",
    ],
    "QUESTION": [
        "Who VERBED the THING",
        "Where is the ADJECTIVE THING",
        "How many THINGs are PLACING",
        "Why is the THING so ADJECTIVE",
    ],
    "ANSWER": [
        "WHO VERBED it PLACING",
        "I left it PLACING",
        "There are NUMBER of them",
        "It was ADJECTIVE already",
        "Ask OTHER",
    ],
    "WHO": ["the PERSON", "NAME", "the ADJECTIVE PERSON", "NAME the PERSON"],
    "OTHER": ["NAME", "the PERSON of the PLACE", "another PERSON", "NAME and NAME"],
    "NAME": ["Ada", "Bruno", "Clara", "Dmitri", "Esra", "Femi", "Greta", "Hugo", "Ines", "Jun"],
    "PERSON": ["baker", "ferryman", "gardener", "clockmaker", "teacher", "smith", "librarian"],
    "VERBED": ["found", "carried", "mended", "hid", "painted", "counted", "borrowed", "weighed"],
    "ADJECTIVE": ["heavy", "small", "green", "broken", "old", "quiet", "bright", "narrow", "warm"],
    "THING": ["lamp", "kettle", "map", "wheel", "basket", "key", "ladder", "drum", "letter"],
    "PLACING": ["by the PLACE", "behind the PLACE", "under the PLACE", "on the way to the PLACE"],
    "PLACE": ["harbour", "mill", "bridge", "orchard", "tower", "market", "well", "station"],
    "SEASON": ["spring", "summer", "autumn", "winter"],
    "DIGIT": ["1", "2", "3", "5", "8", "13", "21", "34"],
    "NUMBER": ["two", "three", "four", "five", "seven", "nine", "twelve", "twenty"],
}

_NAMES = re.compile("|".join(sorted([*_GRAMMAR, "DAY", "SUM"], key=len, reverse=True)))


def generate(nbytes: int = NBYTES) -> NDArray[np.uint8]:
    """Return the first `nbytes` bytes of the text."""
    random = Random(20)
    parts: list[str] = []
    size = 0
    while size < nbytes:
        paragraph = _expand("PARAGRAPH", random) + "\n\n"
        parts.append(paragraph)
        size += len(paragraph)
    return np.frombuffer("".join(parts).encode("ascii")[:nbytes], np.uint8)


def _expand(name: str, random: Random) -> str:
    """Return a text for a name of the grammar."""
    if name == "DAY":
        return str(1 + int(365 * random.random()))
    if name == "SUM":
        first, second = (1 + int(90 * random.random()) for _ in range(2))
        return f"{first} and {second} make {first + second}"
    choices = _GRAMMAR[name]
    choice = choices[int(len(choices) * random.random() ** 1.5)]
    text = _NAMES.sub(lambda found: _expand(found[0], random), choice)
    return text[0].upper() + text[1:] if name in ("SENTENCE", "ANSWER") else text
