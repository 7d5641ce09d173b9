"""Packed sequences (`torch.nn.utils.rnn`) of the one sequence that an instance has: its rows, in their order.

Code that was written for padded batches packs a batch of one. What torch does below its Python then is to take the
batch dimension off and to put it back; a recurrent module is called with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from edbc.capture.standins.standin import Symbol, refuse

if TYPE_CHECKING:
    from edbc.capture.record.recorder import Recorder


def _require_one(is_one: bool) -> None:
    if not is_one:
        refuse(
            "several sequences are packed while recording",
            "let an instance have one sequence (sequences of all lengths are batched), or call the RNN on each",
        )


def packed(rec: Recorder, padded: Any, lengths: Any, batch_first: bool) -> Any:
    """`_pack_padded_sequence`: the first so many rows, and sizes of 1."""
    batch = 0 if batch_first else 1
    _require_one(not isinstance(lengths, Symbol) and len(lengths) == padded.shape[batch] == 1)
    length, longest = int(lengths[0]), padded.shape[1 - batch]
    if not 0 < length <= longest:
        raise RuntimeError(f"Expected a length from 1 to {longest}, but got {length}")
    rows = padded.select(batch, 0)
    return rows[:length] if length < longest else rows, torch.ones(length, dtype=torch.int64)


def padded(rec: Recorder, data: Any, sizes: torch.Tensor, batch_first: bool, value: float, length: int) -> Any:
    """`_pad_packed_sequence`: rows, with others of a value behind them, and how many they were."""
    _require_one(_is_of_one(sizes))
    if length > len(sizes):
        behind = torch.full((length - len(sizes), *data.shape[1:]), value, dtype=data.dtype)
        data = rec.function(torch.cat, ([data, behind],), {})
    return data.unsqueeze(0 if batch_first else 1), torch.tensor([len(sizes)])


def sequences_padded(rec: Recorder, sequences: Sequence[Any], batch_first: bool = False, *rest: Any) -> Any:
    """`pad_sequence` of one."""
    return sequences[0].unsqueeze(0 if batch_first else 1) if len(sequences) == 1 else NotImplemented


def selected(rec: Recorder, value: Any, dim: Any, index: Any) -> Any:
    """`index_select`, or `value[index]`, of the one item of a dimension, as sorting one sequence by length does."""
    is_number = type(index) is torch.Tensor and index.shape == (1,) and index.dtype is torch.int64
    is_one = is_number and type(dim) is int and value.ndim > 0 and value.shape[dim] == 1
    return value.clone() if is_one and int(index[0]) == 0 else NotImplemented


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_pack_padded_sequence": packed,
    "_pad_packed_sequence": padded,
    "pad_sequence": sequences_padded,
    "index_select": selected,
}


def is_packed(module: nn.Module, args: tuple[Any, ...]) -> bool:
    """Whether a recurrent module is called with a packed sequence."""
    return bool(args) and type(args[0]) is PackedSequence and isinstance(module, nn.RNNBase)


def on_rows(call: Callable[..., Any], sequence: PackedSequence, states: Any = None) -> Any:
    """What a recurrent module gives for a packed sequence: `call` is the module's of rows, and of states."""
    _require_one(_is_of_one(sequence.batch_sizes))
    given = () if states is None else (_each_state(lambda state: state.squeeze(1), states),)
    output, last = call(sequence.data, *given)
    made = PackedSequence(output, sequence.batch_sizes, sequence.sorted_indices, sequence.unsorted_indices)
    return made, _each_state(lambda state: state.unsqueeze(1), last)


def _each_state(function: Callable[[Any], Any], states: Any) -> Any:
    return tuple(map(function, states)) if isinstance(states, tuple | list) else function(states)


def _is_of_one(sizes: Any) -> bool:
    return type(sizes) is torch.Tensor and bool((sizes == 1).all())
