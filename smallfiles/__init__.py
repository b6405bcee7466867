"""Feed deep learning from many small files: the toolbox.

The rooms follow the data's path: `sources` -> `manifest` -> `pack` -> `staging` -> `formats` -> `images` ->
`loading` -> `training`. Import what you need (`from smallfiles import formats`); nothing heavy is imported
here, so that `smallfiles --help` answers at once on a login node.
"""

__version__ = "0.1.0"
