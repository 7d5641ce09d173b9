"""The native loop of expansion: from runs to nodes (`ragged.expand`)."""

# numba infers the types of kernels.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edbc.capture.ragged.program import (
    ALIAS,
    EACH,
    FILL,
    GROUP,
    INDICES,
    JOIN,
    NONE,
    ONE,
    REDUCE,
    REFS,
    RUN,
    SCAN,
    SLICE,
    TAKE,
    TILE,
)
from edbc.native.hashing import mixed, slots_for
from edbc.native.kernelcache import U
from edbc.native.kinds import copy, inlined, inner, inner_uncounted, native

NEITHER, REPEATS, SAME = range(3)
"""Whether values of a register are equal; see `expanded`."""
NODES, OUT, VALUES, TOP, EQUAL, MISSING = range(6)
"""Where it is counted what there is: nodes, their refs, values, what stands in the heap, nodes that equal others, and
numbers of reductions without an entry."""


class Step(NamedTuple):
    """A step of a run as `words` tells of it, and the run."""

    op: int
    parameters: int  # where they begin in `words`
    registers: int  # where those that it reads begin
    num_registers: int
    num_args: int
    calls: int
    made: int  # the first register that it makes


@native
def expanded(
    entries, refs, calls, shares, first_value, num_virtual, indices, room, num_operands, num_outputs, words,
    word_ptr, entry_of_count, reduction_ptr,
):  # fmt: skip
    """Entries and refs of nodes alone; the ref of each value that was recorded; how many nodes there are before each
    recorded entry, and before each step of each run; and what reductions of so many values have no entry yet, as pairs,
    for which 0 stands.

    A run is of so many `calls`, one where none are told; each step is taken for all of them before the next. Registers
    are vectors in `heap`, register r of call i in `heap[begin[r * calls + i] : begin[r * calls + i + 1]]`. As much
    `room` is made for nodes, refs and registers as the one before needed, for it is told. O(rows * operands).

    Where it `shares`, nodes for rows that follow from look-ups, which are one external where they are equal (REFS), and
    from what all calls have are one node where they read the same. Of each register `equal` says whether values of it
    may equal others (REPEATS), or one is the same in all calls (SAME). A step most of whose nodes equal none ends that.

    Each kind of step is a function of its own, for which there is room before: as one function with arrays that grow
    anywhere in it this took as long to compile as the rest of a first mini-batch.
    """
    nodes, out = np.empty(2 * len(entries) + room[0], np.int64), np.empty(4 * len(refs) + room[1], np.int64)
    real, node_ptr = np.empty(num_virtual, np.int64), np.empty(len(entries) + 1, np.int64)
    heap, begin = np.empty(room[2], np.int64), np.empty(65, np.int64)
    step_ptr, missing, equal = np.empty(64, np.int64), np.empty(0, np.int64), np.zeros(64, np.int64)
    leaders, starts, slots = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    counts = np.zeros(MISSING + 1, np.int64)
    none = np.int64(0)  # a number in the code would make a version of its own of what it goes to
    virtual = at = run = taken = most = none
    for position in range(len(entries)):
        node_ptr[position] = counts[NODES]
        entry = entries[position]
        if entry >= 0:
            k, outputs = num_operands[entry], num_outputs[entry]
            nodes, out = grown(nodes, counts[NODES], 1), grown(out, counts[OUT], k)
            for i in range(k):
                out[counts[OUT] + i] = resolved(refs[at + i], first_value, virtual, real)
            at += k
            for o in range(outputs):
                real[virtual + o] = first_value + counts[VALUES] + o
            virtual += outputs
            add_node(nodes, counts, entry, k, outputs)
            continue
        word = word_ptr[-1 - entry]
        num_args, num_steps = words[word], words[word + 1]
        n = calls[run] if len(calls) else 1
        run += 1
        word += 2
        begin, equal = grown(begin, 0, num_args * n + 1), grown(equal, 0, num_args + 1)
        size = 0
        for i in range(num_args * n):
            size += refs[at + 3 * i + 2]
        heap = grown(heap, 0, size)
        counts[TOP] = load_arguments(
            refs, at, n, num_args, indices, first_value, virtual, real, shares, heap, begin, equal
        )
        at += 3 * num_args * n
        made = num_args
        step_ptr = grown(step_ptr, taken, num_steps + 1)
        for _ in range(num_steps):
            step_ptr[taken] = counts[NODES]
            taken += 1
            op, p = words[word], word + 2
            r = p + words[word + 1] + 1
            step = Step(op, p, r, words[r - 1], num_args, n, made)
            word = r + step.num_registers
            most_nodes, most_refs, most_rows, width = needed(step, words, begin)
            nodes, out = grown(nodes, counts[NODES], most_nodes), grown(out, counts[OUT], most_refs)
            heap, begin = grown(heap, counts[TOP], most_rows), grown(begin, made * n + 1, width * n)
            equal = grown(equal, made, width)
            looks = may_repeat(step, words, equal)
            if looks:
                leaders, starts = grown(leaders, 0, most_nodes), grown(starts, 0, most_nodes)
                slots = grown(slots, 0, slots_for(most_nodes))
            if op in (REDUCE, GROUP, RUN):
                missing = grown(missing, counts[MISSING], 2 * most_nodes)
            for o in range(width):
                equal[made + o] = NEITHER
            if op == EACH:
                each(step, words, first_value, looks, nodes, out, heap, begin, equal, leaders, starts, slots, counts)
            elif op == SCAN:
                scan(step, words, first_value, nodes, out, heap, begin, counts)
            elif op == GROUP:
                group(step, words, first_value, looks, nodes, out, heap, begin, equal, starts, slots, counts,
                      entry_of_count, reduction_ptr, missing)  # fmt: skip
            elif op == REDUCE:
                reduce(step, words, first_value, nodes, out, heap, begin, counts, entry_of_count, reduction_ptr,
                       missing)  # fmt: skip
            elif op == RUN:
                run_rows(step, words, first_value, nodes, out, heap, begin, counts, entry_of_count, reduction_ptr,
                         missing)  # fmt: skip
            else:
                move(step, words, first_value, virtual, real, heap, begin, equal, counts)
            made += width
        most = max(most, counts[TOP])
        num_results = words[word]
        for k in range(num_results):
            g = register(words[word + 1 + k], num_args) * n
            for place in range(begin[g], begin[g + n]):
                real[virtual] = heap[place]
                virtual += 1
    num_nodes, num_refs = counts[NODES], counts[OUT]
    node_ptr[len(entries)] = step_ptr[taken] = num_nodes
    room[0], room[1], room[2] = num_nodes + 64, num_refs + 256, most + 64
    return (nodes[:num_nodes], out[:num_refs], real, node_ptr, step_ptr[: taken + 1], counts[EQUAL],
            missing[: counts[MISSING]])  # fmt: skip


@inner_uncounted
def load_arguments(refs, at, n, num_args, indices, first_value, virtual, real, shares, heap, begin, equal):
    """The registers of a run's arguments; returns where the next one begins."""
    top = 0
    begin[0] = 0
    for a in range(num_args):
        equal[a] = SAME if shares else NEITHER
        for i in range(n):
            place = at + 3 * (i * num_args + a)
            first, step, count = refs[place], refs[place + 1], refs[place + 2]
            if step in (INDICES, REFS):
                copy(indices, first, first + count, heap, top)
                equal[a] = REPEATS if step == REFS else NEITHER
            else:
                if (count != 1 and step != 0) or first != refs[at + 3 * a]:
                    equal[a] = NEITHER
                for row in range(count):
                    heap[top + row] = resolved(first + row * step, first_value, virtual, real)
            top += count
            begin[a * n + i + 1] = top
    return top


@inner_uncounted
def needed(step, words, begin):
    """Most nodes, refs, and places in the heap that a step takes, and how many registers it makes."""
    op, p, n = step.op, step.parameters, step.calls
    if op == EACH:
        total = rows_of(step, words, begin, words[p + 2]) if words[p + 2] >= 0 else n
        return total, total * step.num_registers, total * words[p + 1], words[p + 1]
    total = rows_of(step, words, begin, 0)
    if op == SCAN:
        num_states, num_inner, width = words[p + 1], words[p + 2], words[p + 3]
        w = p + 4
        for _ in range(num_inner):
            w += 3 + words[w + 2]
        # behind the registers that are made: what a step reads, and the states of the next one
        rows = total * width + step.num_registers + width + num_states
        return total * num_inner, total * (w - p - 4 - 3 * num_inner), rows, width
    if op == REDUCE:
        return n, total, n, 1
    if op == GROUP:
        sent = rows_of(step, words, begin, 1)
        return total, total + sent, 2 * total + sent + 1, 1
    if op == RUN:
        num_refs, num_lengths = 0, words[p + 2]
        for i in range(n):
            items = 0
            for j in range(fields_of(step, p)):
                q = place_of(step, words, j) + i
                items = max(items, begin[q + 1] - begin[q])
            num_refs += items * (fields_of(step, p) + (1 if num_lengths > 1 else 0))
        return n, num_refs, (n if words[p + 1] == ONE else total) + num_lengths, 1
    if op in (TAKE, FILL):
        total = rows_of(step, words, begin, 1)
    if op == TILE:
        total, rows, values = np.int64(0), place_of(step, words, 0), place_of(step, words, 1)
        for i in range(n):
            total += (begin[rows + i + 1] - begin[rows + i]) * (begin[values + i + 1] - begin[values + i])
    for j in range(1, step.num_registers if op == JOIN else 1):
        total += rows_of(step, words, begin, j)
    return 0, 0, total, 1


@inner_uncounted
def may_repeat(step, words, equal):
    """Whether nodes of a step may equal others."""
    if step.op == GROUP:
        known = equal[register(words[step.registers], step.num_args)]
        return both(known, equal[register(words[step.registers + 1], step.num_args)]) == REPEATS
    if step.op != EACH or step.num_registers == 0:
        return False
    num_alone = 0
    for j in range(step.num_registers):
        num_alone += equal[register(words[step.registers + j], step.num_args)] == NEITHER
    return num_alone == 0


@inner_uncounted
def each(step, words, first_value, looks, nodes, out, heap, begin, equal, leaders, starts, slots, counts):
    """A node for each row."""
    n, num_registers, made = step.calls, step.num_registers, step.made
    entry, outputs, leader = words[step.parameters], words[step.parameters + 1], words[step.parameters + 2]
    num_refs, top = counts[OUT], counts[TOP]
    g = place_of(step, words, leader) if leader >= 0 else -1
    total = begin[g + n] - begin[g] if g >= 0 else n
    for j in range(num_registers):
        q = place_of(step, words, j)
        place = num_refs + j
        for i in range(n):
            start, stride = begin[q + i], 0 if begin[q + i + 1] - begin[q + i] == 1 else 1
            for row in range(begin[g + i + 1] - begin[g + i] if g >= 0 else 1):
                out[place] = heap[start + row * stride]
                place += num_registers
    kept = total
    if looks:
        kept, mask = 0, cleared(slots, total)
        for row in range(total):
            here, there = num_refs + row * num_registers, num_refs + kept * num_registers
            for j in range(num_registers if here > there else 0):
                out[there + j] = out[here + j]
            which = first_like(out, there, num_registers, num_refs, num_registers, starts, slots, mask, kept)
            leaders[row] = which
            kept += which == kept
        counts[EQUAL] += total - kept
    for row in range(kept):
        nodes[counts[NODES] + row] = entry
    for o in range(outputs):
        value, row = first_value + counts[VALUES] + o, 0
        for i in range(n):
            for _ in range(begin[g + i + 1] - begin[g + i] if g >= 0 else 1):
                heap[top] = value + (leaders[row] if kept < total else row) * outputs
                row += 1
                top += 1
            begin[(made + o) * n + i + 1] = top
        equal[made + o] = REPEATS if looks and 8 * kept <= 7 * total else NEITHER
    counts[NODES] += kept
    counts[OUT] += kept * num_registers
    counts[VALUES] += kept * outputs
    counts[TOP] = top


@inner_uncounted
def scan(step, words, first_value, nodes, out, heap, begin, counts):
    """Nodes for one row after the other, each of which reads the states of the one before."""
    n, num_registers, p, top = step.calls, step.num_registers, step.parameters, counts[TOP]
    backwards, num_states, num_inner, width = words[p], words[p + 1], words[p + 2], words[p + 3]
    g = place_of(step, words, 0)
    total = begin[g + n] - begin[g]
    frame = top + total * width
    states = frame + num_registers + width
    for i in range(n):
        start, count = begin[g + i], begin[g + i + 1] - begin[g + i]
        for j in range(1, num_registers):
            heap[frame + j] = heap[begin[place_of(step, words, j) + i]]
        for number in range(count):
            row = count - 1 - number if backwards else number
            heap[frame] = heap[start + row]
            w, output = p + 4, num_registers
            for _ in range(num_inner):
                entry, outputs, k = words[w], words[w + 1], words[w + 2]
                for j in range(k):
                    out[counts[OUT] + j] = heap[frame + words[w + 3 + j]]
                for o in range(outputs):
                    value = first_value + counts[VALUES] + o
                    heap[frame + output + o] = value
                    heap[top + (output + o - num_registers) * total + start - begin[g] + row] = value
                add_node(nodes, counts, entry, k, outputs)
                output += outputs
                w += 3 + k
            for k in range(num_states):
                heap[states + k] = heap[frame + words[w + k]]
            copy(heap, states, states + num_states, heap, frame + 1)
    for made in range(step.made, step.made + width):
        for i in range(n):
            top += begin[g + i + 1] - begin[g + i]
            begin[made * n + i + 1] = top
    counts[TOP] = top


@inner_uncounted
def reduce(step, words, first_value, nodes, out, heap, begin, counts, entry_of_count, reduction_ptr, missing):
    """A reduction of the rows of each call, or the only one."""
    g = place_of(step, words, 0)
    for i in range(step.calls):
        start, count, top = begin[g + i], begin[g + i + 1] - begin[g + i], counts[TOP]
        heap[top] = heap[start]
        if count > 1:
            copy(heap, start, start + count, out, counts[OUT])
            heap[top] = first_value + counts[VALUES]
            entry = reduction(entry_of_count, reduction_ptr, words[step.parameters], count, missing, counts)
            add_node(nodes, counts, entry, count, 1)
        counts[TOP] = begin[step.made * step.calls + i + 1] = top + 1


@inner_uncounted
def group(step, words, first_value, looks, nodes, out, heap, begin, equal, starts, slots, counts, entry_of_count,
          reduction_ptr, missing):  # fmt: skip
    """A reduction of the rows that are sent to each row, and of that row where it keeps it."""
    n, number, keeps, begun, sums = step.calls, words[step.parameters], words[step.parameters + 1], counts[NODES], 0
    g, rows, send = place_of(step, words, 0), place_of(step, words, 1), place_of(step, words, 2)
    mask, none = cleared(slots, begin[g + n] - begin[g]) if looks else U(0), np.int64(0)
    for i in range(n):
        start, count, top = begin[g + i], begin[g + i + 1] - begin[g + i], counts[TOP]
        length = begin[rows + i + 1] - begin[rows + i]
        # counting sort of what is sent, behind the register that is made
        ptr = top + count
        sent = ptr + count + 1
        for row in range(count + 1):
            heap[ptr + row] = 0
        for row in range(length):
            heap[ptr + heap[begin[send + i] + row] + 1] += 1
        for row in range(count):
            heap[ptr + row + 1] += heap[ptr + row]
        for row in range(length):
            target = ptr + heap[begin[send + i] + row]
            heap[sent + heap[target]] = heap[begin[rows + i] + row]
            heap[target] += 1
        low = 0
        for row in range(count):
            high = heap[ptr + row]
            items = high - low + (1 if keeps and high > low else 0)
            if items == 0:
                heap[top + row] = heap[start + row]
            elif items == 1:
                heap[top + row] = heap[sent + low]
            else:
                entry = reduction(entry_of_count, reduction_ptr, number, items, missing, counts)
                begun_refs = counts[OUT]
                if keeps:
                    out[begun_refs] = heap[start + row]
                copy(heap, sent + low, sent + high, out, begun_refs + items - (high - low))
                new = counts[NODES] - begun
                which = new
                sums += 1
                if looks:
                    starts[new] = begun_refs
                    which = first_like(out, begun_refs, items, none, none, starts, slots, mask, new)
                heap[top + row] = first_value + counts[VALUES] - (new - which)
                if which == new:
                    add_node(nodes, counts, entry, items, 1)
                else:
                    counts[EQUAL] += 1
            low = high
        counts[TOP] = begin[step.made * n + i + 1] = top + count
    if looks and 8 * (counts[NODES] - begun) <= 7 * sums:
        equal[step.made] = REPEATS


@inner_uncounted
def run_rows(step, words, first_value, nodes, out, heap, begin, counts, entry_of_count, reduction_ptr, missing):
    """A node over the rows of each call: as many items as its longest field has rows."""
    p, num_fields = step.parameters, fields_of(step, step.parameters)
    number, kind, num_lengths = words[p], words[p + 1], words[p + 2]
    width = num_fields + (1 if num_lengths > 1 else 0)
    g = place_of(step, words, 0)
    for i in range(step.calls):
        top = counts[TOP]
        results = 1 if kind == ONE else begin[g + i + 1] - begin[g + i]
        lengths, items = top + results, 0
        for k in range(num_lengths):
            heap[lengths + k] = 0
        for j in range(num_fields):
            q = place_of(step, words, j) + i
            heap[lengths + words[p + 3 + j]] = begin[q + 1] - begin[q]
        for k in range(num_lengths):
            items = max(items, heap[lengths + k])
        if items > 0:
            num_refs = counts[OUT]
            for j in range(num_fields):
                q = place_of(step, words, j) + i
                low, last = begin[q], begin[q + 1] - 1
                for item in range(items):
                    out[num_refs + item * width + j] = heap[min(low + item, last)]
            for item in range(items if num_lengths > 1 else 0):
                bits = 0
                for k in range(num_lengths):
                    bits |= (item < heap[lengths + k]) << k
                out[num_refs + item * width + num_fields] = heap[
                    begin[place_of(step, words, num_fields + bits - 1) + i]
                ]
            for row in range(results):
                heap[top + row] = first_value + counts[VALUES] + row
            entry = reduction(entry_of_count, reduction_ptr, number, items, missing, counts)
            add_node(nodes, counts, entry, items * width, 1 if kind == ONE else items)
        counts[TOP] = begin[step.made * step.calls + i + 1] = top + results


@inner_uncounted
def move(step, words, first_value, virtual, real, heap, begin, equal, counts):
    """What makes no node: rows of registers in another order."""
    op, p, g, top = step.op, step.parameters, place_of(step, words, 0), counts[TOP]
    for i in range(step.calls):
        start, count = begin[g + i], begin[g + i + 1] - begin[g + i]
        if op == JOIN:
            for j in range(step.num_registers):
                q = place_of(step, words, j) + i
                for row in range(begin[q], begin[q + 1]):
                    heap[top] = heap[row]
                    top += 1
        elif op == SLICE:
            first, stride, length = bounds(words[p], words[p + 1], words[p + 2], count)
            for row in range(length):
                heap[top + row] = heap[start + first + row * stride]
            top += length
        elif op == TILE:
            q = place_of(step, words, 1) + i
            times = begin[q + 1] - begin[q]
            for number in range(count * times):
                heap[top + number] = heap[start + (number // times if words[p] else number % count)]
            top += count * times
        elif op == ALIAS:
            for row in range(count):
                heap[top + row] = resolved(heap[start + row], first_value, virtual, real)
            top += count
        else:
            q = place_of(step, words, 1) + i
            for row in range(begin[q], begin[q + 1]):
                number = heap[row] if op == TAKE else 0
                heap[top] = heap[start + number + (count if number < 0 else 0)]
                top += 1
        begin[step.made * step.calls + i + 1] = top
    equal[step.made] = NEITHER if op in (JOIN, ALIAS) else equal[register(words[step.registers], step.num_args)]
    counts[TOP] = top


@inlined
def add_node(nodes, counts, entry, num_refs, num_values):
    """A node the refs of which are written."""
    nodes[counts[NODES]] = entry
    counts[NODES] += 1
    counts[OUT] += num_refs
    counts[VALUES] += num_values


@inlined
def place_of(step, words, j):
    """Where in `begin` the register of a step's j-th operand stands."""
    return register(words[step.registers + j], step.num_args) * step.calls


@inlined
def rows_of(step, words, begin, j):
    """How many rows all calls have of a step's j-th operand."""
    place = place_of(step, words, j)
    return begin[place + step.calls] - begin[place]


@inlined
def fields_of(step, parameters):
    """How many fields the items of a run have."""
    return step.registers - 1 - parameters - 3


@native
def real_refs(refs, first_value, real):
    """The refs that recorded ones come to."""
    found = refs.copy()
    for i in range(len(refs)):
        found[i] = resolved(refs[i], first_value, len(real), real)
    return found


@native
def extent(numbers):
    """The least and the greatest of some numbers; 0 and -1 of none."""
    low, high = (numbers[0], numbers[0]) if len(numbers) else (np.int64(0), np.int64(-1))
    for number in numbers:
        low, high = min(low, number), max(high, number)
    return low, high


@native
def distinct(numbers):
    """Different numbers in the order in which they come first, and which of them each is. O(n)."""
    found, which = np.empty(len(numbers), np.int64), np.empty(len(numbers), np.int64)
    slots = np.full(slots_for(len(numbers)), -1, np.int64)
    count = 0
    for i in range(len(numbers)):
        at = mixed(U(0), numbers[i]) & U(len(slots) - 1)
        while slots[at] >= 0 and found[slots[at]] != numbers[i]:
            at = (at + U(1)) & U(len(slots) - 1)
        if slots[at] < 0:
            slots[at], found[count] = count, numbers[i]
            count += 1
        which[i] = slots[at]
    return found[:count], which


@native
def extents(numbers, begins, ends):
    """`extent` of the numbers in each range."""
    low, high = np.zeros(len(begins), np.int64), np.full(len(begins), -1, np.int64)
    for i in range(len(begins)):
        for k in range(begins[i], ends[i]):
            number = numbers[k]
            low[i] = number if k == begins[i] else min(low[i], number)
            high[i] = number if k == begins[i] else max(high[i], number)
    return low, high


@inlined
def resolved(ref, first_value, virtual, real):
    """The ref that a recorded one comes to: itself, of externals and of other mini-batches."""
    return real[ref - first_value] if first_value <= ref < first_value + virtual else ref


@inlined
def both(a, b):
    """What is known of equal values where nodes read those of two registers."""
    return NEITHER if a == NEITHER or b == NEITHER else min(a, b)


@inner_uncounted
def cleared(slots, count):
    """Empties a table for so many nodes; returns what a hash is masked with."""
    size = slots_for(count)
    for slot in range(size):
        slots[slot] = -1
    return U(size - 1)


@inner_uncounted
def first_like(out, start, count, base, width, starts, slots, mask, new):
    """The number of the first node that reads what one does whose `count` refs are in `out` from `start` on, which is
    `new` where none did. Those of node v begin at `base + v * width`, or are `count` too and begin at `starts[v]` where
    there is no width; behind the last ones stand those of the new one."""
    hashed = U(count)
    for i in range(start, start + count):
        hashed = mixed(hashed, out[i])
    at = hashed & mask
    while slots[at] >= 0:
        v = slots[at]
        other = base + v * width if width else starts[v]
        is_equal = width > 0 or starts[v + 1] - other == count
        for i in range(count if is_equal else 0):
            if out[other + i] != out[start + i]:
                is_equal = False
                break
        if is_equal:
            return v
        at = (at + U(1)) & mask
    slots[at] = new
    return new


@inlined
def register(number, num_args):
    """Where a register stands."""
    return -1 - number if number < 0 else num_args + number


@inner
def grown(array, used, more):
    """The array, or a longer copy, with room for so many more."""
    if used + more <= len(array):
        return array
    longer = np.empty(2 * (used + more), np.int64)
    copy(array, 0, used, longer, 0)
    return longer


@inner_uncounted
def reduction(entry_of_count, reduction_ptr, number, count, missing, counts):
    """The entry of a reduction of so many values; 0 where there is none, which is missing then."""
    at = reduction_ptr[number] + count
    if at < reduction_ptr[number + 1] and entry_of_count[at] >= 0:
        return entry_of_count[at]
    missing[counts[MISSING]], missing[counts[MISSING] + 1] = number, count
    counts[MISSING] += 2
    return np.int64(0)


@inner_uncounted
def bounds(start, stop, step, count):
    """First, step and length of a slice of so many, as Python has it."""
    step = 1 if step == NONE else step
    low, high = (0, count) if step > 0 else (-1, count - 1)
    if start == NONE:
        first = low if step > 0 else high
    else:
        first = start + count if start < 0 else start
        first = min(max(first, low), high)
    if stop == NONE:
        last = high if step > 0 else low
    else:
        last = stop + count if stop < 0 else stop
        last = min(max(last, low), high)
    length = (last - first + step - 1) // step if step > 0 else (first - last - step - 1) // -step
    return first, step, max(0, length)
