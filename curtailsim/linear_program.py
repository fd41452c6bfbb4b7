"""Mixed-integer linear programs, filled row by row and column by column, and their solution by HiGHS."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Progress:
    """Where the solver stands.

    Args:
        time_s: Wall time since the start. [s]
        best_usd: Cost of the best plan so far; infinite before the first. [USD]
        bound_usd: No plan is cheaper. [USD]
        relative_gap: Distance between the two. [-]
    """

    time_s: float
    best_usd: float
    bound_usd: float
    relative_gap: float


@dataclass(frozen=True)
class LinearResult:
    """What the solver says about a `LinearProgram`; `values` is none if it found no solution.

    `reduced_costs` are those of a relaxed program: what the optimum rises by, at least, per unit of each variable.
    """

    status: Literal["optimal", "infeasible", "time_limit"]
    values: Floats | None
    objective: float
    bound: float
    relative_gap: float
    time_s: float
    reduced_costs: Floats | None = None


def solver_available() -> bool:
    """Whether HiGHS is installed."""
    return importlib.util.find_spec("highspy") is not None


class LinearProgram:
    """A mixed-integer linear program, filled row by row and column by column, minimised by HiGHS.

    References:
        Huangfu and Hall, Parallelizing the dual revised simplex method, 2018. doi:10.1007/s12532-017-0130-5
    """

    def __init__(self) -> None:
        self.offset = 0.0
        self._row_bounds: list[tuple[float, float]] = []
        self._columns: list[tuple[float, float, float, bool]] = []
        self._starts, self._rows, self._values = [0], list[int](), list[float]()

    def row(self, lower: float, upper: float) -> int:
        """Add a constraint with its bounds; returns its number."""
        self._row_bounds.append((lower, upper))
        return len(self._row_bounds) - 1

    def rows(self, lower: Sequence[float], upper: Sequence[float]) -> list[int]:
        """Add one constraint per pair of bounds."""
        return [self.row(float(low), float(high)) for low, high in zip(lower, upper, strict=True)]

    def column(
        self, cost: float, lower: float, upper: float, entries: Iterable[tuple[int, float]], integer: bool = False
    ) -> int:
        """Add a variable with its cost, bounds and (row, coefficient) entries; returns its number."""
        self._columns.append((cost, lower, upper, integer))
        for row, value in entries:
            self._rows.append(row)
            self._values.append(value)
        self._starts.append(len(self._rows))
        return len(self._columns) - 1

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self._row_bounds), len(self._columns)

    def minimise(
        self,
        *,
        relative_gap: float = 2e-3,
        time_limit_s: float = 120.0,
        relax: bool = False,
        excluded: Iterable[int] = (),
        progress: Callable[[Progress], None] | None = None,
    ) -> LinearResult:
        """Solve the program.

        Args:
            relative_gap: Stop when the best solution is within this share of the bound. [-]
            time_limit_s: Stop after this wall time. [s]
            relax: Forget that variables are integers.
            excluded: Variables to fix at zero.
            progress: Called with every better solution, and about once a second.
        """
        import highspy  # an optional dependency, needed here alone

        with _without_banner():
            highs = highspy.Highs()
        # the number of threads is left alone: HiGHS shares one scheduler per process, which cannot be changed later
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("time_limit", float(time_limit_s))
        highs.setOptionValue("mip_rel_gap", float(relative_gap))
        highs.passModel(self._highs_model(relax, set(excluded)))
        began = time.perf_counter()
        if progress is not None:
            _report_progress(highs, progress, began)
        highs.run()
        elapsed = time.perf_counter() - began
        return _linear_result(highs, elapsed, is_mip=not relax and any(column[3] for column in self._columns))

    def _highs_model(self, relax: bool, excluded: set[int]) -> Any:
        import highspy

        def bounded(values: Iterable[float]) -> Floats:
            return np.clip(np.asarray(list(values), float), -highspy.kHighsInf, highspy.kHighsInf)

        model = highspy.HighsLp()
        model.num_row_, model.num_col_ = self.size
        cost, lower, upper, integer = zip(*self._columns, strict=True)
        upper = tuple(0.0 if column in excluded else bound for column, bound in enumerate(upper))
        row_lower, row_upper = zip(*self._row_bounds, strict=True)
        model.col_cost_, model.col_lower_, model.col_upper_ = np.asarray(cost, float), bounded(lower), bounded(upper)
        model.row_lower_, model.row_upper_, model.offset_ = bounded(row_lower), bounded(row_upper), self.offset
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = np.asarray(self._starts, np.int32)
        model.a_matrix_.index_ = np.asarray(self._rows, np.int32)
        model.a_matrix_.value_ = np.asarray(self._values, float)
        if not relax:
            kinds = highspy.HighsVarType
            model.integrality_ = [kinds.kInteger if flag else kinds.kContinuous for flag in integer]
        return model


@contextmanager
def _without_banner() -> Iterator[None]:
    """HiGHS prints its version when it is first made, before it can be told to be silent."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _report_progress(highs: Any, progress: Callable[[Progress], None], began: float, every_s: float = 1.0) -> None:
    """Have HiGHS report every better solution, and its bounds about once a second."""
    last_s = 0.0

    def report(data: Any) -> None:
        nonlocal last_s
        last_s = time.perf_counter() - began
        progress(Progress(last_s, data.mip_primal_bound, data.mip_dual_bound, data.mip_gap))

    def report_sometimes(event: Any) -> None:
        if time.perf_counter() - began > last_s + every_s:
            report(event.data_out)

    highs.cbMipImprovingSolution.subscribe(lambda event: report(event.data_out))
    # HiGHS asks very often whether to go on, and logs nothing when it is told to be silent
    highs.cbMipInterrupt.subscribe(report_sometimes)


def _linear_result(highs: Any, elapsed_s: float, is_mip: bool) -> LinearResult:
    import highspy

    status = highs.getModelStatus()
    info = highs.getInfo()
    states = highspy.HighsModelStatus
    solved = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    if status in (states.kInfeasible, states.kUnboundedOrInfeasible):
        return LinearResult("infeasible", None, math.inf, math.inf, math.inf, elapsed_s)
    bound = info.mip_dual_bound if is_mip else info.objective_function_value
    gap = info.mip_gap if is_mip else 0.0
    if not solved:
        return LinearResult("time_limit", None, math.inf, bound if is_mip else -math.inf, math.inf, elapsed_s)
    name: Literal["optimal", "time_limit"] = "optimal" if status == states.kOptimal else "time_limit"
    solution = highs.getSolution()
    values = np.array(solution.col_value)
    reduced_costs = None if is_mip else np.array(solution.col_dual)
    return LinearResult(name, values, info.objective_function_value, bound, gap, elapsed_s, reduced_costs)
