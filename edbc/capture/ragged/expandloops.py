"""The native loop of expansion: from runs to nodes (`ragged.expand`)."""

from __future__ import annotations

import numpy as np

from edbc.capture.ragged.program import (
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
)
from edbc.native.hashing import mixed, slots_for
from edbc.native.kernelcache import U
from edbc.native.kinds import inlined, inner, native

NEITHER, REPEATS, SAME = range(3)
"""Whether values of a register are equal; see `expanded`."""


@native
def expanded(  # type: ignore[no-untyped-def]
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
    """
    nodes, out = np.empty(2 * len(entries) + room[0], np.int64), np.empty(4 * len(refs) + room[1], np.int64)
    real, node_ptr = np.empty(num_virtual, np.int64), np.empty(len(entries) + 1, np.int64)
    heap, begin = np.empty(room[2], np.int64), np.empty(65, np.int64)
    step_ptr, missing, equal = np.empty(64, np.int64), np.empty(0, np.int64), np.zeros(64, np.int64)
    leaders, starts, slots = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    num_nodes = num_refs = virtual = num_values = at = run = taken = most = num_equal = 0
    for position in range(len(entries)):
        node_ptr[position] = num_nodes
        entry = entries[position]
        if entry >= 0:
            k = num_operands[entry]
            nodes, out = grown(nodes, num_nodes, 1), grown(out, num_refs, k)
            for i in range(k):
                out[num_refs + i] = resolved(refs[at + i], first_value, virtual, real)
            at += k
            nodes[num_nodes] = entry
            num_nodes += 1
            num_refs += k
            for _ in range(num_outputs[entry]):
                real[virtual] = first_value + num_values
                virtual += 1
                num_values += 1
            continue
        word = word_ptr[-1 - entry]
        num_args, num_steps = words[word], words[word + 1]
        n = calls[run] if len(calls) else 1
        run += 1
        word += 2
        top = 0
        begin, equal = grown(begin, 0, num_args * n + 1), grown(equal, 0, num_args + 1)
        begin[0] = 0
        for a in range(num_args):
            equal[a] = SAME if shares else NEITHER
            for i in range(n):
                place = at + 3 * (i * num_args + a)
                first, step, count = refs[place], refs[place + 1], refs[place + 2]
                heap = grown(heap, top, count)
                if step in (INDICES, REFS):
                    heap[top : top + count] = indices[first : first + count]
                    equal[a] = REPEATS if step == REFS else NEITHER
                else:
                    if (count != 1 and step != 0) or first != refs[at + 3 * a]:
                        equal[a] = NEITHER
                    for row in range(count):
                        heap[top + row] = resolved(first + row * step, first_value, virtual, real)
                top += count
                begin[a * n + i + 1] = top
        at += 3 * num_args * n
        made = num_args
        step_ptr = grown(step_ptr, taken, num_steps + 1)
        for _ in range(num_steps):
            step_ptr[taken] = num_nodes
            taken += 1
            op, num_parameters = words[word], words[word + 1]
            p = word + 2
            num_registers = words[p + num_parameters]
            r = p + num_parameters + 1
            word = r + num_registers
            if op == EACH:
                entry, outputs, leader = words[p], words[p + 1], words[p + 2]
                g = register(words[r + leader], num_args) * n if leader >= 0 else -1
                total = begin[g + n] - begin[g] if g >= 0 else n
                nodes, out = grown(nodes, num_nodes, total), grown(out, num_refs, total * num_registers)
                heap, begin = grown(heap, top, total * outputs), grown(begin, made * n + 1, outputs * n)
                equal, all_equal = grown(equal, made, outputs), REPEATS if num_registers else NEITHER
                for j in range(num_registers):
                    all_equal = both(all_equal, equal[register(words[r + j], num_args)])
                for j in range(num_registers):
                    q = register(words[r + j], num_args) * n
                    place = num_refs + j
                    for i in range(n):
                        start, stride = begin[q + i], 0 if begin[q + i + 1] - begin[q + i] == 1 else 1
                        for row in range(begin[g + i + 1] - begin[g + i] if g >= 0 else 1):
                            out[place] = heap[start + row * stride]
                            place += num_registers
                kept = total
                if all_equal:
                    leaders, slots = grown(leaders, 0, total), cleared(slots, total)
                    kept = 0
                    for row in range(total):
                        here, there = num_refs + row * num_registers, num_refs + kept * num_registers
                        for j in range(num_registers if here > there else 0):
                            out[there + j] = out[here + j]
                        which = first_like(out, there, num_registers, num_refs, num_registers, starts, slots, kept)
                        leaders[row] = which
                        kept += which == kept
                    all_equal = NEITHER if 8 * kept > 7 * total else all_equal
                    num_equal += total - kept
                nodes[num_nodes : num_nodes + kept] = entry
                for o in range(outputs):
                    value, row = first_value + num_values + o, 0
                    for i in range(n):
                        for _ in range(begin[g + i + 1] - begin[g + i] if g >= 0 else 1):
                            heap[top] = value + (leaders[row] if kept < total else row) * outputs
                            row += 1
                            top += 1
                        begin[made * n + i + 1] = top
                    equal[made] = all_equal
                    made += 1
                num_nodes += kept
                num_refs += kept * num_registers
                num_values += kept * outputs
                continue
            g = register(words[r], num_args) * n
            if op == SCAN:
                backwards, num_states, num_inner, width = words[p], words[p + 1], words[p + 2], words[p + 3]
                inputs, total = num_registers + width, begin[g + n] - begin[g]
                # behind the registers that are made: what a step reads, and the states of the next one
                heap = grown(heap, top, total * width + inputs + num_states)
                begin = grown(begin, made * n + 1, width * n)
                frame = heap[top + total * width : top + total * width + inputs]
                states = heap[top + total * width + inputs : top + total * width + inputs + num_states]
                for i in range(n):
                    start, count = begin[g + i], begin[g + i + 1] - begin[g + i]
                    for j in range(1, num_registers):
                        frame[j] = heap[begin[register(words[r + j], num_args) * n + i]]
                    for number in range(count):
                        row = count - 1 - number if backwards else number
                        frame[0] = heap[start + row]
                        w, output = p + 4, num_registers
                        for _ in range(num_inner):
                            entry, outputs, k = words[w], words[w + 1], words[w + 2]
                            nodes, out = grown(nodes, num_nodes, 1), grown(out, num_refs, k)
                            nodes[num_nodes] = entry
                            for j in range(k):
                                out[num_refs + j] = frame[words[w + 3 + j]]
                            for o in range(outputs):
                                frame[output + o] = first_value + num_values + o
                                heap[top + (output + o - num_registers) * total + start - begin[g] + row] = (
                                    first_value + num_values + o
                                )
                            num_nodes += 1
                            num_refs += k
                            num_values += outputs
                            output += outputs
                            w += 3 + k
                        for k in range(num_states):
                            states[k] = frame[words[w + k]]
                        frame[1 : 1 + num_states] = states
                equal = grown(equal, made, width)
                for _ in range(width):
                    for i in range(n):
                        top += begin[g + i + 1] - begin[g + i]
                        begin[made * n + i + 1] = top
                    equal[made] = NEITHER
                    made += 1
                continue
            begin, equal = grown(begin, made * n + 1, n), grown(equal, made, 1)
            equal[made] = equal[g // n] if op in (TAKE, SLICE, FILL) else NEITHER
            looks = False
            if op == GROUP:
                looks = both(equal[g // n], equal[register(words[r + 1], num_args)]) == REPEATS
                total, begun, sums = begin[g + n] - begin[g], num_nodes, 0
                if looks:
                    starts, slots = grown(starts, 0, total), cleared(slots, total)
            for i in range(n):
                start, count = begin[g + i], begin[g + i + 1] - begin[g + i]
                if op == REDUCE:
                    heap = grown(heap, top, 1)
                    heap[top] = heap[start]
                    if count > 1:
                        nodes, out = grown(nodes, num_nodes, 1), grown(out, num_refs, count)
                        nodes[num_nodes], missing = reduction(entry_of_count, reduction_ptr, words[p], count, missing)
                        out[num_refs : num_refs + count] = heap[start : start + count]
                        heap[top] = first_value + num_values
                        num_nodes += 1
                        num_refs += count
                        num_values += 1
                    top += 1
                elif op == TAKE:
                    q = register(words[r + 1], num_args) * n + i
                    low, length = begin[q], begin[q + 1] - begin[q]
                    heap = grown(heap, top, length)
                    for row in range(length):
                        number = heap[low + row]
                        heap[top + row] = heap[start + number + (count if number < 0 else 0)]
                    top += length
                elif op == JOIN:
                    for j in range(num_registers):
                        q = register(words[r + j], num_args) * n + i
                        low, length = begin[q], begin[q + 1] - begin[q]
                        heap = grown(heap, top, length)
                        for row in range(length):
                            heap[top + row] = heap[low + row]
                        top += length
                elif op == SLICE:
                    first, step, length = bounds(words[p], words[p + 1], words[p + 2], count)
                    heap = grown(heap, top, length)
                    for row in range(length):
                        heap[top + row] = heap[start + first + row * step]
                    top += length
                elif op == FILL:
                    q = register(words[r + 1], num_args) * n + i
                    length = begin[q + 1] - begin[q]
                    heap = grown(heap, top, length)
                    heap[top : top + length] = heap[start]
                    top += length
                elif op == GROUP:
                    rows, send = register(words[r + 1], num_args) * n + i, register(words[r + 2], num_args) * n + i
                    length = begin[rows + 1] - begin[rows]
                    nodes, out = grown(nodes, num_nodes, count), grown(out, num_refs, count + length)
                    heap = grown(heap, top, count + length + count + 1)
                    keeps = words[p + 1]
                    # counting sort of what is sent, behind the register that is made
                    ptr = heap[top + count : top + 2 * count + 1]
                    ptr[:] = 0
                    for row in range(length):
                        ptr[heap[begin[send] + row] + 1] += 1
                    for row in range(count):
                        ptr[row + 1] += ptr[row]
                    sent = heap[top + 2 * count + 1 : top + 2 * count + 1 + length]
                    for row in range(length):
                        target = heap[begin[send] + row]
                        sent[ptr[target]] = heap[begin[rows] + row]
                        ptr[target] += 1
                    low = 0
                    for row in range(count):
                        high = ptr[row]
                        items = high - low + (1 if keeps and high > low else 0)
                        if items == 0:
                            heap[top + row] = heap[start + row]
                        elif items == 1:
                            heap[top + row] = sent[low]
                        else:
                            nodes[num_nodes], missing = reduction(
                                entry_of_count, reduction_ptr, words[p], items, missing
                            )
                            at_refs = num_refs
                            if keeps:
                                out[num_refs] = heap[start + row]
                                num_refs += 1
                            for k in range(low, high):
                                out[num_refs] = sent[k]
                                num_refs += 1
                            which = num_nodes - begun
                            sums += 1
                            if looks:
                                starts[which] = at_refs
                                which = first_like(out, at_refs, items, 0, 0, starts, slots, which)
                            heap[top + row] = first_value + num_values - (num_nodes - begun - which)
                            if which == num_nodes - begun:
                                num_nodes += 1
                                num_values += 1
                            else:
                                num_refs = at_refs
                                num_equal += 1
                        low = high
                    top += count
                    if looks and 8 * (num_nodes - begun) <= 7 * sums:
                        equal[made] = REPEATS
                elif op == RUN:
                    kind, num_lengths = words[p + 1], words[p + 2]
                    fields = num_parameters - 3
                    lengths = np.zeros(num_lengths, np.int64)
                    for j in range(fields):
                        q = register(words[r + j], num_args) * n + i
                        lengths[words[p + 3 + j]] = begin[q + 1] - begin[q]
                    items, group = lengths.max(), fields + (1 if num_lengths > 1 else 0)
                    results = 1 if kind == ONE else count
                    nodes, out = grown(nodes, num_nodes, 1), grown(out, num_refs, items * group)
                    heap = grown(heap, top, results)
                    if items > 0:
                        nodes[num_nodes], missing = reduction(entry_of_count, reduction_ptr, words[p], items, missing)
                        for j in range(fields):
                            q = register(words[r + j], num_args) * n + i
                            low, last = begin[q], begin[q + 1] - 1
                            for item in range(items):
                                out[num_refs + item * group + j] = heap[min(low + item, last)]
                        for item in range(items if num_lengths > 1 else 0):
                            bits = 0
                            for k in range(num_lengths):
                                bits |= (item < lengths[k]) << k
                            out[num_refs + item * group + fields] = heap[
                                begin[register(words[r + fields + bits - 1], num_args) * n + i]
                            ]
                        for row in range(results):
                            heap[top + row] = first_value + num_values + row
                        num_nodes += 1
                        num_refs += items * group
                        num_values += 1 if kind == ONE else items
                    top += results
                else:  # ALIAS
                    heap = grown(heap, top, count)
                    for row in range(count):
                        heap[top + row] = resolved(heap[start + row], first_value, virtual, real)
                    top += count
                begin[made * n + i + 1] = top
            made += 1
        most = max(most, top)
        num_results = words[word]
        for k in range(num_results):
            g = register(words[word + 1 + k], num_args) * n
            for place in range(begin[g], begin[g + n]):
                real[virtual] = heap[place]
                virtual += 1
    node_ptr[len(entries)] = step_ptr[taken] = num_nodes
    room[0], room[1], room[2] = num_nodes + 64, num_refs + 256, most + 64
    return nodes[:num_nodes], out[:num_refs], real, node_ptr, step_ptr[: taken + 1], num_equal, missing


@native
def real_refs(refs, first_value, real):  # type: ignore[no-untyped-def]
    """The refs that recorded ones come to."""
    found = refs.copy()
    for i in range(len(refs)):
        found[i] = resolved(refs[i], first_value, len(real), real)
    return found


@native
def extent(numbers):  # type: ignore[no-untyped-def]
    """The least and the greatest of some numbers; 0 and -1 of none."""
    low, high = (numbers[0], numbers[0]) if len(numbers) else (np.int64(0), np.int64(-1))
    for number in numbers:
        low, high = min(low, number), max(high, number)
    return low, high


@native
def distinct(numbers):  # type: ignore[no-untyped-def]
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
def extents(numbers, begins, ends):  # type: ignore[no-untyped-def]
    """`extent` of the numbers in each range."""
    low, high = np.zeros(len(begins), np.int64), np.full(len(begins), -1, np.int64)
    for i in range(len(begins)):
        for k in range(begins[i], ends[i]):
            number = numbers[k]
            low[i] = number if k == begins[i] else min(low[i], number)
            high[i] = number if k == begins[i] else max(high[i], number)
    return low, high


@inlined
def resolved(ref, first_value, virtual, real):  # type: ignore[no-untyped-def]
    """The ref that a recorded one comes to: itself, of externals and of other mini-batches."""
    return real[ref - first_value] if first_value <= ref < first_value + virtual else ref


@inlined
def both(a, b):  # type: ignore[no-untyped-def]
    """What is known of equal values where nodes read those of two registers."""
    return NEITHER if a == NEITHER or b == NEITHER else min(a, b)


@inner
def cleared(slots, count):  # type: ignore[no-untyped-def]
    """An empty table for so many nodes."""
    size = slots_for(count)
    slots = slots if len(slots) >= size else np.empty(size, np.int64)
    slots[:size] = -1
    return slots[:size]


@inlined
def first_like(out, start, count, base, width, starts, slots, new):  # type: ignore[no-untyped-def]
    """The number of the first node that reads what one does whose `count` refs are in `out` from `start` on, which is
    `new` where none did. Those of node v begin at `base + v * width`, or are `count` too and begin at `starts[v]` where
    there is no width; behind the last ones stand those of the new one."""
    hashed = U(count)
    for i in range(start, start + count):
        hashed = mixed(hashed, out[i])
    at = hashed & U(len(slots) - 1)
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
        at = (at + U(1)) & U(len(slots) - 1)
    slots[at] = new
    return new


@inlined
def register(number, num_args):  # type: ignore[no-untyped-def]
    """Where a register stands."""
    return -1 - number if number < 0 else num_args + number


@inner
def grown(array, used, more):  # type: ignore[no-untyped-def]
    """The array, or a longer copy, with room for so many more."""
    if used + more <= len(array):
        return array
    longer = np.empty(2 * (used + more), np.int64)
    longer[:used] = array[:used]
    return longer


@inner
def reduction(entry_of_count, reduction_ptr, number, count, missing):  # type: ignore[no-untyped-def]
    """The entry of a reduction of so many values."""
    at = reduction_ptr[number] + count
    if at < reduction_ptr[number + 1] and entry_of_count[at] >= 0:
        return entry_of_count[at], missing
    return np.int64(0), np.append(missing, np.array([number, count], np.int64))


@inner
def bounds(start, stop, step, count):  # type: ignore[no-untyped-def]
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
