"""How long a query waits before its encode begins, where queries arrive at random instead of being backlogged.

Arrivals are Poisson; the schedule runs as if it were full, which errs on the long side, as fewer queries are served
faster. Encodes of B begin every C s: a query waits for the next one, uniform in 0..C, and a cycle more for each encode
that is full. What encodes leave behind follows Q' = (Q + A - B)+, whose cumulants are (Spitzer)

    k_n = sum_{j >= 1} E[((A_1 + ... + A_j - j B)+)**n] / j

exactly, and by Little's law a query waits E[Q] C / E[A] for it. Where a query takes a place of c that is free at once,
its wait is that of c servers whose service is its stay (Erlang's C, with Allen and Cunneen's factor for its variance).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, gammaincc, gammaln

from exegpt_planner.simulator.latency import Latency

Floats = NDArray[np.float64]

FULLEST = 0.95  # load up to which queries may arrive; beyond, the wait grows without end
TERMS = 30.0  # exponents of the last term's bound: e**-15 of the first


def wait_for_encode(rate_per_s: float, cycle_s: float, batch: int) -> Latency:
    """Where encodes of `batch` queries begin every `cycle_s`, at a load of `FULLEST` at most."""
    arriving = rate_per_s * cycle_s
    left, left_var = _left_behind(arriving, batch)
    turn_s = cycle_s / arriving
    return Latency(
        mean_s=cycle_s / 2 + left * turn_s,
        sd_s=math.sqrt(cycle_s**2 / 12 + left_var * (cycle_s / batch) ** 2),
    )


def wait_for_place(rate_per_s: float, stay_s: float, places: int, squared_cv: float) -> Latency:
    """Where one of `places` is taken for `stay_s`, whose variance is so many squared means."""
    offered = rate_per_s * stay_s
    load = offered / places
    log_mass = places * math.log(offered) - offered - float(gammaln(places + 1))
    blocked = math.exp(log_mass) / float(gammaincc(places + 1, offered))
    waits = blocked / (1 - load * (1 - blocked))  # Erlang's C
    each_s = stay_s / (places * (1 - load)) * (1 + squared_cv) / 2  # of those that wait
    return Latency(mean_s=waits * each_s, sd_s=each_s * math.sqrt(waits * (2 - waits)))


def _left_behind(arriving: float, batch: int) -> tuple[float, float]:
    """(mean, variance) of the queries that an encode leaves behind."""
    gap = batch - arriving
    most = int(TERMS * arriving / gap**2) + 4
    j = np.arange(1, most + 1)
    mean, least = j * arriving, j * batch

    def reaches(n: Floats | NDArray[np.int64]) -> Floats:
        """P(Poisson(mean) >= n)."""
        return np.where(n > 0, gammainc(np.maximum(n, 1), mean), 1.0)

    two, one, zero = reaches(least - 2), reaches(least - 1), reaches(least)
    first = mean * one - least * zero
    second = mean**2 * two + mean * one - 2 * least * mean * one + least**2 * zero
    return float((np.maximum(first, 0) / j).sum()), float((np.maximum(second, 0) / j).sum())
