"""Ray itself: started on this machine for as long as it is needed, or found on a cluster."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slm_lab.errors import InputError, RunError
from slm_lab.experiment.interrupt import SIGNALS
from slm_lab.lib.machine import usable_cores

EXTRA = "this runs on Ray: pip install 'slm-lab[search]'"
OBJECT_STORE = 128 * 2**20  # bytes; what goes through it is small
QUIET = {  # who stops Ray and who prints is the lab's business, and nothing is told to others of what is run
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial that was asked to stop may have nothing to tell
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # paths in a spec hold from where the lab was started
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


def refuse_without_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise RunError(EXTRA)


def quieten() -> None:
    """To be called before Ray is imported for the first time, which reads these then."""
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})


@contextmanager
def ray_running(address: str | None = None) -> Iterator[None]:
    """Ray on this machine's cores, stopped at the end; or the cluster at that address ("auto": the one found here)."""
    refuse_without_ray()
    quieten()
    import ray

    if ray.is_initialized():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    quietly: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    address = address or os.environ.get("RAY_ADDRESS")
    try:
        if address:
            ray.init(address=address, **quietly)
        else:
            here = {"address": "local", "num_cpus": usable_cores(), "include_dashboard": False}
            ray.init(**here, object_store_memory=OBJECT_STORE, **quietly)
    except (ConnectionError, ValueError, RuntimeError) as error:
        place = f"no Ray cluster at {address}" if address else "Ray cannot be started"
        raise InputError(f"{place}: {str(error).splitlines()[0]}") from error
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            signal.signal(number, handler)  # Ray has put its own there
    try:
        yield
    finally:
        ray.shutdown()
