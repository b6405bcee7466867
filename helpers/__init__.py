"""Shared by the notebooks: `start` in the set-up cell, `show` for output, `figures`, `experiments`.

    import sys

    sys.path.append("..")
    from helpers import show, start

    setup = start("03")

The trap: a notebook opened in a kernel of another environment fails with a traceback about some
package, three cells in. So nothing but the standard library is imported here until `start` has
looked at the kernel, and every failure after that is one sentence. All notebooks begin with it.
"""

import smallfiles  # noqa: F401, I001 - it says so if this Python is too old

from helpers import show, worksheet
from helpers.kernel import check_kernel, install_handlers
from helpers.setup import Setup, set_up

__all__ = ["Setup", "show", "start"]


def start(notebook: str, size: str | int | None = None) -> Setup:
    """Begin a notebook: look at the kernel and the machine, make or find the data.

    Thirty participants who each download or unpack their own data set are a load that a parallel
    file system feels; here each makes a small one once, and later notebooks find it.

    Args:
        notebook: Its number, such as "03"; exercises say "ex03".
        size: `small`, `medium` or a number of images; None takes `COURSE_SIZE` or `small`.

    Returns:
        Where the data is, and how much the experiments may do.

    Raises:
        SmallfilesError: The kernel, the folder or the data set is not what is needed; in a notebook
            the sentence stands alone, without a traceback.
    """
    install_handlers()
    check_kernel()
    setup = set_up(notebook, size)
    worksheet.keep_times(not setup.is_busy)
    show.break_between_words()
    show.style_figures()
    show.say(setup.summary())
    return setup
