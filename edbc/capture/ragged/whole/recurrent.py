"""`nn.LSTM`, `nn.GRU` and `nn.RNN` of one layer and direction over a ragged sequence, unrolled into steps whose nodes
batch over instances. Those of more are taken whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from edbc.capture.ragged.call import Call, Rule
from edbc.capture.ragged.rows import rows_at
from edbc.capture.ragged.value import Ragged
from edbc.capture.standins.standin import Value

_CELLS: dict[str, Any] = {
    "lstm": torch.lstm_cell,
    "gru": torch.gru_cell,
    "rnn_tanh": torch.rnn_tanh_cell,
    "rnn_relu": torch.rnn_relu_cell,
}


def recurrent(call: Call) -> Any:
    """`lstm(input, states, weights, has_biases, layers, dropout, training, both_ways, batch_first)` and its like."""
    if len(call.args) != 9 or call.kwargs or type(call.args[0]) is not Ragged:
        return NotImplemented
    sequence, states, weights, has_biases, layers, _, _, both_ways, batch_first = call.args
    if sequence.ndim != 3 or sequence.at != int(batch_first) or layers > 1 or both_ways:
        return NotImplemented
    if len(weights) != (4 if has_biases else 2):  # projections
        return NotImplemented
    rec, is_lstm = call.rec, call.name == "lstm"
    rec.counted = True
    state = [_first_state(rec, s) for s in (states if is_lstm else (states,))]
    outputs = _steps(call, sequence.values(), state, weights)
    rows = rows_at(rec, [value.ref for value in outputs], outputs[0].slot, sequence.at)
    return (rows, *[rec.function(torch.stack, ([last],), {}) for last in state])


def _first_state(rec: Any, states: Any) -> Any:
    """The state before the first step; states made of zeros by torch are equal rows."""
    if type(states) is torch.Tensor and not states.requires_grad:
        return rec.constant_row(states[0].contiguous())
    return states[0]


def _steps(call: Call, values: Sequence[Value], state: list[Any], weights: Sequence[Any]) -> list[Value]:
    """Outputs of one layer in one direction; `state` becomes the last one."""
    cell, is_lstm, found = _CELLS[call.name], call.name == "lstm", []
    for value in values:
        made = call.rec.function(cell, (value, tuple(state) if is_lstm else state[0], *weights), {})
        state[:] = made if is_lstm else [made]
        found.append(state[0])
    return found


RULES: dict[str, Rule] = dict.fromkeys(_CELLS, recurrent)
