"""Read and write squashfs images from Python: no mount, no root, no C library."""
