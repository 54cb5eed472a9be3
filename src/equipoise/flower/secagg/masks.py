r"""SAGA's weights from sums that no party can separate into its terms.

A server that averages models with the weights of :class:`~equipoise.methods.saga.SAGA` in clear text sees every model and
every client's value. Where clients send only their masked parts of a secure sum, the weight must be applied by the client. With
:math:`a_k = (v_k / v_{ref})^q` (:func:`scalar`), :math:`u_k` the weight a client last used and :math:`\theta_k` its model,
three protocols give the clear-text model (Wu et al., arXiv 2503.09587, Section IV-D6, completed):

=====  ============================================================  ==========================================
P0     one phase, no moving average: ``weighted(a_k, theta_k)``      ``mean``
P2     phase 1: ``[a_k, u_k]``; the server sends both sums; the      ``mean``
       client's ``weight`` gives w_k; phase 2:
       ``weighted(w_k, theta_k)``. Recommended
P1     one phase: ``doubled(a_k, u_k, theta_k)``; the sums of a and  ``smoothed``
       u come with the next model, for the client's ``weight``
=====  ============================================================  ==========================================

The left functions are the client's, the right ones turn the sum into the next model on the server.
:class:`SecureSum` is the sum; in one process :func:`agree` stands for the exchange of keys.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

import torch
from torch import Tensor

from equipoise.system.ranges import check_whole

WORD = 63  # bits of a signed 64-bit integer beside its sign
Keystream = Callable[[bytes, str, int], Tensor]  # n uniform 64-bit integers of a secret and a label


# on the client
def scalar(value: float, q: float, reference: float = 1.0, floor: float = 1e-10, ceiling: float = 2.0**10) -> float:
    r"""The number :math:`a_k = (\max(v_k, \epsilon) / v_{ref})^q` a client adds to the sum, clipped to the declared range.

    Parameters
    ----------
    value : sharpness S_k or perturbed loss L_k.
    q, floor : as in SAGA.
    reference : public v_ref > 0, the same for all; it keeps a_k near one and cancels in the weights. See
        :func:`reference`.
    ceiling : upper end of the declared range.
    """
    power = q * math.log(max(value, floor) / reference)
    return math.exp(min(power, math.log(ceiling)))


def weight(a: float, sum_a: float, last: float = 0.0, sum_last: float = 0.0, beta: float = 0.5) -> float:
    r"""The weight :math:`w_k = \beta a_k / A + (1 - \beta) u_k / U`, or :math:`a_k / A` while no client has a last one.

    ``sum_a`` and ``sum_last`` are the sums A and U over the clients of the round. The client remembers w_k as its u_k.

    Raises
    ------
    ValueError : A is not positive.
    """
    _require_positive(sum_a)
    return beta * a / sum_a + (1 - beta) * last / sum_last if sum_last > 0 else a / sum_a


def weighted(w: float, theta: Tensor) -> Tensor:
    """The content ``[w; w theta]`` [1 + G] that a client masks, float64."""
    return torch.cat([theta.new_tensor([w], dtype=torch.float64), w * theta.double()])


def doubled(a: float, last: float, theta: Tensor) -> Tensor:
    """The content ``[a; u; a theta; u theta]`` [2 + 2G] of protocol P1, float64; u is 0 before the first round."""
    scalars = theta.new_tensor([a, last], dtype=torch.float64)
    return torch.cat([scalars, a * theta.double(), last * theta.double()])


# on the server
def mean(total: Tensor) -> tuple[float, Tensor]:
    """From the sum of :func:`weighted` [1 + G], the sum of the weights and the next model [G].

    The weights of P2 sum to one unless a client vanished after phase 1; the division accounts for it.
    """
    _require_positive(float(total[0]))
    return float(total[0]), total[1:] / total[0]


def smoothed(total: Tensor, beta: float = 0.5) -> tuple[float, float, Tensor]:
    """From the sum of :func:`doubled` [2 + 2G], the sums A and U (to be sent with the next model), and that model [G]."""
    _require_positive(float(total[0]))
    fresh, last = total[2:].chunk(2)
    new = fresh / total[0]
    return float(total[0]), float(total[1]), beta * new + (1 - beta) * last / total[1] if total[1] > 0 else new


def reference(sum_a: float, n: int, q: float, before: float = 1.0) -> float:
    r"""The next round's :math:`v_{ref} = (A / n)^{1/q}`, from a sum A over ``n`` clients taken with ``before``."""
    return float(before * (sum_a / n) ** (1 / q)) if q > 0 else before


def _require_positive(total: float) -> None:
    if not total > 0:
        raise ValueError(
            f"The sum of the clients' weights must be > 0; found {total:g}. Every a_k is below the resolution: "
            "use more fractional bits, or a smaller reference."
        )


# numbers of any size
SMALLEST, LARGEST = 2.0**-990, 2.0**990  # of the numbers that :func:`wide` can hold
POINT = 1043  # bits after the point: the last of the smallest number
LAST = 64 * 33  # the bit at which the second number begins, which leaves room for the sum of 2^78 of the first
WORDS = 34


def wide(a: float, last: float, secret: bytes) -> Tensor:
    """A number in [SMALLEST, LARGEST] to all its 53 bits, and one in [0, 1] to 40 bits, as one integer of :data:`WORDS` words of 64 bits.

    The bits after the 53 follow from ``secret`` and look random: they hide those of smaller numbers in the sum, which shows no more than
    a sum of floating numbers. They are the same in every sum of a round, so that none of them can be averaged away.
    """
    mantissa, exponent = math.frexp(min(max(a, SMALLEST), LARGEST))
    shift = exponent - 53 + POINT
    noise = int.from_bytes(hashlib.shake_256(secret).digest(8 * WORDS), "little") % (1 << shift)
    first = (int(mantissa * 2**53) << shift) + noise
    return words(first + (round(last * 2**40) << LAST), WORDS)


def narrow(total: Tensor) -> tuple[float, float]:
    """The two sums, from the sum of :func:`wide` integers."""
    number = integer(total)
    return float(Fraction(number % 2**LAST, 2**POINT)), (number >> LAST) / 2**40


def words(number: int, n: int) -> Tensor:
    """An integer modulo 2^(64 n), as n words."""
    return torch.frombuffer(bytearray((number % 2 ** (64 * n)).to_bytes(8 * n, "little")), dtype=torch.int64)


def integer(x: Tensor) -> int:
    """The integer >= 0 of n words."""
    return int.from_bytes(x.numpy().tobytes(), "little")


def added(x: Tensor, y: Tensor, sign: int = 1, *, wide: bool = False) -> Tensor:
    """Add ``y`` [n] to ``x`` [n] or subtract it: number by number, in place, or, if ``wide``, as one integer of n words. Both wrap around."""
    return words(integer(x) + sign * integer(y), len(x)) if wide else x.add_(y, alpha=sign)


# the sum
class DropOutError(RuntimeError):
    """A client vanished after the others had masked their vectors for it."""


def agree(ids: Sequence[int]) -> dict[int, dict[int, bytes]]:
    """For each client, its secrets with every other one, in place of a key exchange.

    The server must never hold the result. Draw it once; :class:`SecureSum` makes a fresh mask of it for every ``label``.
    """
    table: dict[int, dict[int, bytes]] = {m: {} for m in ids}
    for k, m in enumerate(ids):
        for other in ids[:k]:
            table[m][other] = table[other][m] = secrets.token_bytes(32)
    return table


def shake(secret: bytes, label: str, n: int) -> Tensor:
    """SHAKE-256 of the secret and the label, as ``n`` 64-bit integers."""
    stream = hashlib.shake_256(secret + label.encode()).digest(8 * n)
    return torch.frombuffer(bytearray(stream), dtype=torch.int64)


@dataclass(frozen=True)
class SecureSum:
    r"""What everyone knows about one secure sum.

    .. math:: y_k = \operatorname{round}(2^{bits} x_k) + \sum_{j < k} r_{jk} - \sum_{j > k} r_{jk} \pmod{2^{64}}

    The masks :math:`r_{jk}` are uniform (a keystream of the pair's secret and ``label``), so each :math:`y_k` is, and they
    cancel in the sum. Bonawitz et al., CCS 2017, Section 4, without its recovery of dropped clients.

    Parameters
    ----------
    ids : the clients of this sum, at least two.
    label : a name that no other sum under the same secrets has, such as ``"round 3, phase 2"``.
    limit : declared range: numbers lie in [-limit, limit].
    bits : fractional bits, >= 24; numbers are rounded to multiples of 2^-bits.

    Raises
    ------
    ValueError : fewer than two clients, or a sum that may not fit in 64 bits.
    """

    ids: tuple[int, ...]
    label: str
    limit: float = 2.0**20
    bits: int = 32

    def __post_init__(self) -> None:
        if len(set(self.ids)) < max(2, len(self.ids)):
            raise ValueError(f"A secure sum needs at least two clients, each named once; found {list(self.ids)}.")
        check_whole("SecureSum: bits", self.bits, 24)
        if not 0 < self.limit * len(self.ids) < 2.0 ** (WORD - self.bits):
            raise ValueError(
                f"A sum over {len(self.ids)} clients in [-{self.limit:g}, {self.limit:g}] does not fit in 64 bits with "
                f"{self.bits} fractional bits: lower limit or bits, so that clients * limit < 2^(63 - bits)."
            )

    def encoded(self, values: Tensor) -> Tensor:
        """Numbers [n] in the declared range as multiples of 2^-bits: 64-bit integers [n]."""
        return (values.double() * 2.0**self.bits).round().long()

    # on the client
    def masked(self, client: int, values: Tensor, shared: Mapping[int, bytes], stream: Keystream = shake) -> Tensor:
        """The client's masked vector [n], which is all that the server sees: 64-bit integers.

        ``values`` [n] are the numbers to add, ``shared`` the client's secrets with the others (:func:`agree`); all
        clients make their masks by the same ``stream``.

        Raises
        ------
        ValueError : a value outside the declared range, or not finite.
        """
        x = values.double()
        if not bool((x.abs() <= self.limit).all()):
            at = int((~(x.abs() <= self.limit)).nonzero()[0])
            raise ValueError(
                f"Client {client}: number {at} is {float(x[at]):g}, outside the declared range "
                f"[-{self.limit:g}, {self.limit:g}]. Declare a larger limit for all clients, with fewer bits if need be."
            )
        return self.hidden(client, self.encoded(x), shared, stream)

    def hidden(
        self, client: int, y: Tensor, shared: Mapping[int, bytes], stream: Keystream = shake, *, wide: bool = False
    ) -> Tensor:
        """Integers ``y`` [n] behind the masks of the client's pairs, see :func:`added`."""
        for other in self.ids:
            if other != client:
                pad = stream(shared[other], self.label, len(y)).to(y.device)
                y = added(y, pad, 1 if other < client else -1, wide=wide)
        return y

    # on the server
    def total(self, received: Mapping[int, Tensor], *, wide: bool = False) -> Tensor:
        """The sum [n], float64, of all clients' masked vectors; if ``wide``, the integer in n words.

        Raises
        ------
        DropOutError : a masked vector is missing. Without it the masks do not cancel.
        ValueError : a masked vector of a client that is not part of this sum.
        """
        if missing := sorted(set(self.ids) - received.keys()):
            raise DropOutError(
                f"{self.label}: no masked vector of {', '.join(f'client {m}' for m in missing)}, so the masks do not cancel. "
                "Ask the others again for a sum without them, under a new label."
            )
        if extra := sorted(received.keys() - set(self.ids)):
            raise ValueError(f"{self.label}: client {extra[0]} is not part of this sum over {list(self.ids)}.")
        first, *others = (received[m] for m in self.ids)
        total = reduce(lambda x, y: added(x, y, wide=wide), others, first.clone())
        return total if wide else total.double() / 2.0**self.bits
