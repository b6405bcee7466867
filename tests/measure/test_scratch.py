"""The folder of a measurement goes with it, whatever still writes there."""

import contextlib
import threading

from smallfiles.measure.scratch import private_folder


def test_a_folder_goes_although_a_worker_that_outlives_the_program_still_writes_into_it(tmp_path):
    ended = threading.Event()

    def write(folder):
        for number in range(10**9):
            if ended.is_set():
                return
            with contextlib.suppress(OSError):  # it is gone
                (folder / f"{number % 1000}.part").touch()

    for _ in range(20):
        ended.clear()
        with private_folder(tmp_path, "ours-") as folder:
            writers = [threading.Thread(target=write, args=(folder,)) for _ in range(2)]
            for writer in writers:
                writer.start()
        left = list(tmp_path.iterdir())
        ended.set()
        for writer in writers:
            writer.join()
        assert left == [], "files of the measurement stayed behind"
