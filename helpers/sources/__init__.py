"""Where manifests and bytes come from: trees, archives and synthetic copies of them.

`load` looks at a path, tells what it is, and returns its manifest together with the store that
its bytes are read from.
"""
