"""What the cells of a notebook call: `start` in the set-up cell, `figure`, `say` and `command` later.

    import sys

    sys.path.append("..")
    from helpers import course

    setup = course.start("03")

The trap: a notebook opened in a kernel of another environment fails with a traceback about some
package, three cells in. So nothing but the standard library is imported here until `start` has
looked at the kernel, and every failure after that is one sentence. All notebooks begin with it.
"""

from helpers.course.kernel import check_kernel, install_handlers
from helpers.course.setup import DataSet, Setup, set_up
from helpers.course.showing import command, figure, say

__all__ = ["DataSet", "Setup", "command", "figure", "say", "start"]


def start(notebook: str, size: str | int | None = None) -> Setup:
    """Begin a notebook: look at the kernel and the machine, make or find the data.

    Thirty participants who each download or unpack their own data set are a load that a parallel
    file system feels; here each makes a small one once, and later notebooks find it.

    Args:
        notebook: Its number, "00" to "05"; exercises say "ex00" to "ex05".
        size: `small`, `medium` or a number of images; None takes `COURSE_SIZE` or `small`.

    Returns:
        Where the data is, and how much the experiments may do.

    Raises:
        HelpersError: The kernel, the folder or the data set is not what is needed; in a notebook
            the sentence stands alone, without a traceback.
    """
    install_handlers()
    check_kernel()
    setup = set_up(notebook, size)
    say(setup.summary())
    return setup
