"""Imported first, keeps the noise of other packages off the terminal; what this patch set says stays."""

import contextlib
import logging
import os
import sys
import tempfile
import warnings
from typing import Iterator

warnings.filterwarnings("ignore")
for _package in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_package).setLevel(logging.ERROR)


@contextlib.contextmanager
def native_notes_held() -> Iterator[None]:
    """Holds what native code writes to standard error, and shows it if the scope fails.

    The thread pool notes there what it does not find out about the processor.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 2)
        try:
            yield
        except BaseException:
            notes.seek(0)
            os.write(kept, notes.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
