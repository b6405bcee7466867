"""Feed deep learning from many small files: the package behind the course.

The modules follow the data's path: `sources` -> `manifest` -> `pack` -> `formats` -> `bench`.
Import what you need (`from helpers import formats`); nothing heavy is imported here, so that
`python -m helpers --help` answers at once on a login node.
"""

__version__ = "0.1.0"
