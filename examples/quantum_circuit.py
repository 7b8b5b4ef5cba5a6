"""All amplitudes of a random quantum circuit, by a cut into two halves, in complex64
and complex128.

    python examples/quantum_circuit.py [--size N] [--device
    cpu|cuda] [--accuracy A] [--summary]

Gates on neighbouring qubits are random and unitary; after each cycle a CZ gate crosses
the cut. It is a sum of two products of one-qubit operators, P0 I + P1 Z, so that c
cycles make 2**c paths, of which each half is evolved by itself. The amplitudes are the
sum over paths, a product of large matrices. The method is that of Markov, Fatima,
Isakov and Boixo, Quantum Supremacy Is Both Closer and Farther than It Appears,
arXiv:1807.10749, after Aaronson and Chen, arXiv:1612.05903. The reference is the whole
state in complex128, evolved gate by gate with the same rounded gates.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from common import Rows, compare, options, parser
from torch import Tensor

Gates = list[list[tuple[int, Tensor]]]
"""For each cycle, first qubits and matrices of gates on neighbours: 4 x 4 for two of
them.
"""


def random_gates(
    qubits: int, cycles: int, dtype: torch.dtype, generator: torch.Generator
) -> Gates:
    """In each cycle a gate on every pair of neighbours, even pairs first."""
    pairs = [*range(0, qubits - 1, 2), *range(1, qubits - 1, 2)]
    shape = cycles, len(pairs), 4, 4
    unitary = torch.linalg.qr(
        torch.randn(shape, dtype=torch.complex128, generator=generator)
    ).Q.to(dtype)
    return [list(zip(pairs, cycle, strict=True)) for cycle in unitary]


def joined(gates: Gates) -> Gates:
    """The same gates, where up to three on adjacent pairs of qubits became one gate on
    six qubits.
    """
    made: Gates = []
    for cycle in gates:
        made.append([])
        end, count = -1, 0
        for qubit, gate in cycle:
            if qubit == end and count < 3:
                first, before = made[-1].pop()
                made[-1].append((first, torch.kron(before, gate)))
                count += 1
            else:
                made[-1].append((qubit, gate))
                count = 1
            end = qubit + 2
    return made


def apply(gate: Tensor, qubit: int, states: Tensor) -> Tensor:
    """States, the columns, after a gate on `qubit` and its next ones; qubit 0 is the
    leading bit of an index.
    """
    parts = states.reshape(2**qubit, len(gate), -1)
    return torch.einsum("xy,ayb->axb", gate.to(states), parts).reshape(states.shape)


def evolve_half(
    gates: Gates, qubits: int, branches: tuple[Tensor, Tensor], dtype: torch.dtype
) -> Tensor:
    """States of a half, one column for each path; a CZ gate doubles the paths, with a
    diagonal operator for each.
    """
    states = torch.zeros(2**qubits, 1, dtype=dtype, device=branches[0].device)
    states[0] = 1
    for cycle in joined(gates):
        for qubit, gate in cycle:
            states = apply(gate, qubit, states)
        states = torch.cat([branch[:, None] * states for branch in branches], 1)
    return states


def amplitudes(
    left: Gates, right: Gates, qubits: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The state as a matrix: rows are the bits of the left half, columns those of the
    right one.
    """
    index = torch.arange(2**qubits, device=device)
    last, first = index & 1, index >> (qubits - 1)
    a = evolve_half(left, qubits, (1 - last, last), dtype)
    b = evolve_half(right, qubits, (torch.ones_like(first), 1 - 2 * first), dtype)
    return torch.einsum("xp,yp->xy", a, b)


def evolve(left: Gates, right: Gates, qubits: int, device: torch.device) -> Tensor:
    """The state of both halves together, gate by gate, in complex128."""
    index = torch.arange(4**qubits, device=device)
    signs = 1 - 2 * ((index >> qubits) & (index >> (qubits - 1)) & 1)
    state = (index == 0).to(torch.complex128)[:, None]
    for one, other in zip(left, right, strict=True):
        for qubit, gate in [*one, *((qubit + qubits, gate) for qubit, gate in other)]:
            state = apply(gate, qubit, state)
        state = signs[:, None] * state
    return state.reshape(2**qubits, 2**qubits)


def main(argv: Sequence[str] | None = None) -> dict[str, Rows]:
    """Run the program and return times and errors of both dtypes: norm of the
    difference to the reference.
    """
    found = options(parser(__doc__, 18, 28, "number of qubits, even, 6 or more"), argv)
    qubits, cycles, tables = found.size // 2, found.size // 2 - 2, {}
    for dtype in (torch.complex64, torch.complex128):
        generator = torch.Generator().manual_seed(0)
        left, right = (random_gates(qubits, cycles, dtype, generator) for _ in range(2))
        reference = evolve(left, right, qubits, found.device)

        def errors(state: Tensor, reference: Tensor = reference) -> dict[str, float]:
            return {"error": torch.linalg.norm(state - reference).item()}

        def compute(
            left: Gates = left, right: Gates = right, dtype: torch.dtype = dtype
        ) -> Tensor:
            return amplitudes(left, right, qubits, dtype, found.device)

        name = str(dtype)[6:]
        tables[name] = compare(
            found,
            f"Circuit of {2 * qubits} qubits, {2**cycles} paths, {name}",
            compute,
            errors,
        )
    return tables


if __name__ == "__main__":
    main(sys.argv[1:])
