"""Tasks in processes of this machine, by joblib's own executor."""

from __future__ import annotations

from typing import Any

import joblib
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import BrokenProcessPool

from .engine import Engine, EngineName
from .usable_cores import usable_cores


class ProcessEngine(Engine):
    """Fresh interpreters on this machine, by joblib's own executor, which never forks without exec."""

    name: EngineName = "processes"
    worker_failures = (BrokenProcessPool,)
    ends_with_main_process = True

    def num_workers(self) -> int:
        return usable_cores()

    def _start(self, count: int, options: dict[str, Any]) -> Any:
        return joblib.Parallel(n_jobs=count, backend="loky", max_nbytes=None, **options)

    def stop(self) -> None:
        if self._parallel is not None:
            super().stop()
            # joblib keeps its executor for the next Parallel; a task may still be running there.
            get_reusable_executor().shutdown(wait=True, kill_workers=True)
