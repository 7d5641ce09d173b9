"""Native loops over a recording. Each has a plain-Python reference in the tests."""

# intrinsics are called without their typing context.
# mypy: disable-error-code="call-arg,var-annotated"

from __future__ import annotations

import numpy as np

from edbc.capture.forward.cutting import HEAD
from edbc.native.kernelcache import njit
from edbc.native.pointers import vector_of

_LONG = np.int64(0)

MAX_FIELDS = 8
"""Sums over the same operands that are merged into one node, at most."""
_SEARCH = 16
"""Earlier sums with the same first operand that are compared, at most: bounds the worst case."""


@njit(cache=True)
def local_refs(refs, first_value, first_external, num_values, num_externals):  # type: ignore[no-untyped-def]
    """Refs counted from the start of a mini-batch, and the first one that is not of this mini-batch, or -1."""
    local = np.empty(len(refs), np.int64)
    foreign = np.int64(-1)
    for i in range(len(refs) - 1, -1, -1):
        ref = refs[i]
        if ref >= 0:
            local[i] = ref - first_value
            is_ours = 0 <= local[i] < num_values
        else:
            local[i] = ref + first_external
            is_ours = -num_externals <= local[i] < 0
        if not is_ours:
            foreign = np.int64(i)
    return local, foreign


@njit(cache=True)
def number_values(entries, num_operands, num_outputs):  # type: ignore[no-untyped-def]
    """Where the operands and the values of every node begin, and the node and output of every value; operands and
    outputs are counted by entry."""
    n = len(entries)
    ptr, value_base = np.zeros(n + 1, np.int64), np.zeros(n + 1, np.int64)
    for v in range(n):
        ptr[v + 1] = ptr[v] + num_operands[entries[v]]
        value_base[v + 1] = value_base[v] + num_outputs[entries[v]]
    value_node, value_output = np.empty(value_base[n], np.int64), np.empty(value_base[n], np.int64)
    for v in range(n):
        for value in range(value_base[v], value_base[v + 1]):
            value_node[value] = v
            value_output[value] = value - value_base[v]
    return ptr, value_base, value_node, value_output


@njit(cache=True)
def compact(refs):  # type: ignore[no-untyped-def]
    """Local refs with their externals numbered anew, in the order in which they are met, and which externals these
    are."""
    smallest = np.int64(0)
    for ref in refs:
        smallest = min(smallest, ref)
    number, used = np.full(-smallest, -1, np.int64), np.empty(-smallest, np.int64)
    count = 0
    compacted = refs.copy()
    for i in range(len(refs)):
        if refs[i] < 0:
            external = -1 - refs[i]
            if number[external] < 0:
                number[external] = count
                used[count] = external
                count += 1
            compacted[i] = -1 - number[external]
    return compacted, used[:count]


@njit(cache=True)
def cut(  # type: ignore[no-untyped-def]
    numbers, num_entries, num_refs, num_live, num_wanted, first_value, first_external, told, num_told, aborted,
    may_wait, next_value, of_entries, num_classes, was_read,
):  # fmt: skip
    """What of a recording runs now, and what stays: the arrays of `forward.cutting.Parts` one behind the other, after
    its two numbers, where its last five arrays end, where the first begins and where the first five end.

    `numbers` are the entries and refs that were recorded, the refs of values that are alive, and that are wanted, and
    the sources and indices of externals that are new: they are told, in the columns of `told` behind those of others.
    `of_entries` is a record of the numbers of operands and outputs by entry, of where the classes of each begin, and of
    these. `aborted` first nodes are none unless somebody reads them; entries whose values are wanted are marked in
    `was_read`. O(nodes + operands + live).
    """
    at = of_entries.ctypes.data
    num_operands, num_outputs = vector_of(at, 0, _LONG), vector_of(at, 1, _LONG)
    class_ptr, output_classes = vector_of(at, 2, _LONG), vector_of(at, 3, _LONG)
    entries, refs = numbers[:num_entries], numbers[num_entries : num_entries + num_refs]
    live = numbers[num_entries + num_refs : num_entries + num_refs + num_live]
    wanted = numbers[num_entries + num_refs + num_live : num_entries + num_refs + num_live + num_wanted]
    new = numbers[num_entries + num_refs + num_live + num_wanted :]
    num_new = len(new) // 2
    num_externals = num_told + num_new
    for i in range(num_new):
        told[0, num_told + i], told[1, num_told + i] = new[i], new[num_new + i]
    ptr, value_base, value_node, _ = number_values(entries, num_operands, num_outputs)
    n, num_values = len(entries), value_base[-1]
    local, foreign = local_refs(refs, first_value, first_external, num_values, num_externals)
    is_live, needed = np.zeros(num_values, np.bool_), np.zeros(n, np.bool_)
    if foreign < 0:
        for ref in live:
            is_live[ref - first_value] = True
        for ref in wanted:
            v = value_node[ref - first_value]
            needed[v] = was_read[entries[v]] = True
        for v in range(n):
            for value in range(value_base[v] if was_read[entries[v]] else value_base[v + 1], value_base[v + 1]):
                needed[v] |= is_live[value]
    else:
        n = 0
    runs, stays = _now_and_later(n, ptr, local, value_base, value_node, is_live, needed, aborted, may_wait)
    crosses = np.zeros(num_values, np.bool_)
    for v in range(n):
        if runs[v]:
            for value in range(value_base[v], value_base[v + 1]):
                crosses[value] |= is_live[value]
        elif stays[v]:
            for i in range(ptr[v], ptr[v + 1]):
                if local[i] >= 0 and runs[value_node[local[i]]]:
                    crosses[local[i]] = True
    now = _alike_together(n, runs, entries, ptr, local, value_base, value_node, crosses, told)
    results, result_ptr, position = _by_class(now, entries, value_base, crosses, class_ptr, output_classes, num_classes)
    now_refs, new_value = _taken(now, ptr, local, value_base)
    later = np.flatnonzero(stays[:n])
    later_refs, new_later = _taken(later, ptr, local, value_base)
    for i in range(len(now_refs)):
        if now_refs[i] >= 0:
            now_refs[i] = new_value[now_refs[i]]
    now_refs, used = compact(now_refs)
    next_external = -1 - first_external - num_externals
    for i in range(len(later_refs)):
        ref = later_refs[i]
        if ref < 0:
            later_refs[i] = ref - first_external
        elif position[ref] >= 0:
            later_refs[i] = next_external - position[ref]
        else:
            later_refs[i] = next_value + new_later[ref]
    moved = np.empty(num_live, np.int64)
    for i in range(num_live if foreign < 0 else 0):
        value = live[i] - first_value
        moved[i] = next_external - position[value] if position[value] >= 0 else next_value + new_later[value]
    for i in range(len(results)):
        results[i] = new_value[results[i]]
    num_later = 0
    for v in later:
        num_later += value_base[v + 1] - value_base[v]
    in_key = np.cumsum(np.array([HEAD, len(now), len(now_refs), len(results), len(result_ptr), len(used)]))
    others = in_key[-1] + np.cumsum(np.array([len(used), len(moved), len(later), len(later_refs), len(now)]))
    return np.concatenate((np.array([num_later, foreign]), others, in_key, entries[now], now_refs, results, result_ptr,
                           told[0][used], told[1][used], moved, entries[later], later_refs, now))  # fmt: skip


@njit(cache=True)
def _now_and_later(n, ptr, local, value_base, value_node, is_live, needed, aborted, may_wait):  # type: ignore[no-untyped-def]
    """Nodes that run now: what is needed and what that reads, or, where none `may_wait`, all that count. And others
    that somebody will read."""
    runs, stays = needed.copy(), np.zeros(len(needed), np.bool_)
    for v in range(n - 1, -1, -1):
        is_read = runs[v] or stays[v] or (not may_wait and v >= aborted)
        for value in range(value_base[v], value_base[v + 1]):
            is_read |= is_live[value]
        if not is_read:
            continue
        runs[v] |= not may_wait
        stays[v] = not runs[v]
        for i in range(ptr[v], ptr[v + 1]):
            if local[i] >= 0:
                if runs[v]:
                    runs[value_node[local[i]]] = True
                else:
                    stays[value_node[local[i]]] = True
    return runs, stays


@njit(cache=True)
def _alike_together(n, runs, entries, ptr, local, value_base, value_node, crosses, told):  # type: ignore[no-untyped-def]
    """The nodes that run now in the order of `forward.cutting`, definition (3). O(operands)."""
    root, content, size = np.arange(n), np.zeros(n, np.int64), np.zeros(n, np.int64)
    for v in range(n):
        if runs[v]:
            for i in range(ptr[v], ptr[v + 1]):
                if local[i] >= 0:
                    a, b = _root(root, v), _root(root, value_node[local[i]])
                    root[max(a, b)] = min(a, b)
    number, of_group, count = np.empty(len(value_node), np.int64), np.zeros(n, np.int64), 0
    for v in range(n):
        if not runs[v]:
            continue
        r = root[v] = _root(root, v)
        count += 1
        size[r] += 1
        content[r] = _mixed(content[r], entries[v])
        for i in range(ptr[v], ptr[v + 1]):
            ref = local[i]
            content[r] = _mixed(content[r], number[ref] if ref >= 0 else -1 - told[0, -1 - ref])
        for value in range(value_base[v], value_base[v + 1]):
            number[value] = of_group[r]
            of_group[r] += 1
            content[r] = _mixed(content[r], np.int64(crosses[value]))
    first = np.flatnonzero(size)
    at, total = np.zeros(n, np.int64), 0
    for r in first[np.argsort(content[first], kind="mergesort")]:
        at[r] = total
        total += size[r]
    nodes = np.empty(count, np.int64)
    for v in range(n):
        if runs[v]:
            nodes[at[root[v]]] = v
            at[root[v]] += 1
    return nodes


@njit(cache=True)
def _root(root, v):  # type: ignore[no-untyped-def]
    """The first node of a group."""
    while root[v] != v:
        root[v] = root[root[v]]
        v = root[v]
    return v


@njit(cache=True)
def _mixed(content, item):  # type: ignore[no-untyped-def]
    """A number that tells a sequence, with one more item."""
    return (content ^ (item + 0x9E3779B9)) * 0x100000001B3


@njit(cache=True)
def _by_class(nodes, entries, value_base, crosses, class_ptr, output_classes, num_classes):  # type: ignore[no-untyped-def]
    """Values that cross, class by class and in their order, where each class begins, and where each value stands."""
    result_ptr = np.zeros(num_classes + 1, np.int64)
    for v in nodes:
        for j in range(value_base[v + 1] - value_base[v]):
            if crosses[value_base[v] + j]:
                result_ptr[output_classes[class_ptr[entries[v]] + j] + 1] += 1
    result_ptr = np.cumsum(result_ptr)
    at = result_ptr.copy()
    results, position = np.empty(result_ptr[-1], np.int64), np.full(len(crosses), -1, np.int64)
    for v in nodes:
        for j in range(value_base[v + 1] - value_base[v]):
            value = value_base[v] + j
            if crosses[value]:
                c = output_classes[class_ptr[entries[v]] + j]
                results[at[c]], position[value] = value, at[c]
                at[c] += 1
    return results, result_ptr, position


@njit(cache=True)
def _taken(nodes, ptr, local, value_base):  # type: ignore[no-untyped-def]
    """Refs of some nodes, as before, and the numbers of their values among each other's."""
    total = 0
    for v in nodes:
        total += ptr[v + 1] - ptr[v]
    refs, number = np.empty(total, np.int64), np.full(value_base[-1], -1, np.int64)
    at = first = 0
    for v in nodes:
        for i in range(ptr[v], ptr[v + 1]):
            refs[at] = local[i]
            at += 1
        for value in range(value_base[v], value_base[v + 1]):
            number[value] = first
            first += 1
    return refs, number


@njit(cache=True)
def as_operands(refs, value_node, value_output):  # type: ignore[no-untyped-def]
    """Values as pairs (node, output); externals stay negative."""
    nodes, outputs = refs.copy(), np.zeros(len(refs), np.int64)
    for i in range(len(refs)):
        if refs[i] >= 0:
            nodes[i] = value_node[refs[i]]
            outputs[i] = value_output[refs[i]]
    return nodes, outputs


@njit(cache=True)
def numbered(entries, refs, results, first_value, first_external, num_externals, type_index, num_operands, num_outputs):  # type: ignore[no-untyped-def]
    """What follows from a recording whose sums and patterns are its nodes: types of nodes, operands as CSR, and
    results, all as pairs; and the first operand and the first result that are not of this mini-batch, or -1."""
    ptr, value_base, value_node, value_output = number_values(entries, num_operands, num_outputs)
    local, foreign = local_refs(refs, first_value, first_external, value_base[-1], num_externals)
    local_results, foreign_result = local_refs(results, first_value, first_external, value_base[-1], num_externals)
    if foreign >= 0 or foreign_result >= 0:
        local, local_results = local[:0], local_results[:0]
    node_type = np.empty(len(entries), np.int32)
    for v in range(len(entries)):
        node_type[v] = type_index[entries[v]]
    operands, outputs = as_operands(local, value_node, value_output)
    result_node, result_output = as_operands(local_results, value_node, value_output)
    nodes = node_type, ptr.astype(np.int32), operands.astype(np.int32), outputs.astype(np.int32)
    return nodes, result_node, result_output, foreign, foreign_result


@njit(cache=True)
def absorbed_sums(is_sum, ptr, refs, value_node, value_uses):  # type: ignore[no-untyped-def]
    """Which sums live on only as the first term of another sum: `absorber[v]` is that sum, or -1. O(operands)."""
    n = len(is_sum)
    absorber = np.full(n, -1, np.int64)
    for v in range(n):
        if not is_sum[v]:
            continue
        first = refs[ptr[v]]
        if first >= 0 and value_uses[first] == 1 and is_sum[value_node[first]]:
            absorber[value_node[first]] = v
    return absorber


@njit(cache=True)
def chain_terms(is_sum, absorber, ptr, refs, value_node):  # type: ignore[no-untyped-def]
    """Terms of every sum that is not absorbed, in the order in which the user's code adds them, as CSR over nodes.

    A sum has two or more operands, of which the first may be an absorbed sum.
    """
    n = len(is_sum)
    start = np.zeros(n + 1, np.int64)
    for v in range(n):
        length = 0
        if is_sum[v] and absorber[v] < 0:
            length = 1
            u = v
            while True:
                length += ptr[u + 1] - ptr[u] - 1
                first = refs[ptr[u]]
                if first < 0 or absorber[value_node[first]] != u:
                    break
                u = value_node[first]
        start[v + 1] = start[v] + length
    terms = np.empty(start[n], np.int64)
    for v in range(n):
        at = start[v + 1] - 1
        u = v
        while at >= start[v]:
            for i in range(ptr[u + 1] - 1, ptr[u], -1):
                terms[at] = refs[i]
                at -= 1
            if at == start[v]:
                terms[at] = refs[ptr[u]]
                break
            u = value_node[refs[ptr[u]]]
    return start, terms


@njit(cache=True)
def merge_sums(start, terms, value_node):  # type: ignore[no-untyped-def]
    """Sums over the same operand nodes (of h and of c, say) become fields of one node.

    Returns `leader` (the sum whose node a sum joins, itself when it leads, -1 for other nodes) and `field`.
    """
    n = len(start) - 1
    leader = np.full(n, -1, np.int64)
    field = np.zeros(n, np.int64)
    num_fields = np.zeros(n, np.int64)
    previous = np.full(n, -1, np.int64)
    newest = np.full(len(value_node) + 1, -1, np.int64)
    for v in range(n):
        length = start[v + 1] - start[v]
        if length == 0:
            continue
        leader[v] = v
        num_fields[v] = 1
        first = terms[start[v]]
        if first < 0:
            continue
        key = value_node[first]
        u = newest[key]
        for _ in range(_SEARCH):
            if u < 0:
                break
            if start[u + 1] - start[u] == length and num_fields[u] < MAX_FIELDS:
                same = True
                different = False
                for i in range(length):
                    a = terms[start[v] + i]
                    b = terms[start[u] + i]
                    if a < 0 or b < 0 or value_node[a] != value_node[b]:
                        same = False
                        break
                    different = different or a != b
                if same and different:
                    leader[v] = u
                    field[v] = num_fields[u]
                    num_fields[u] += 1
                    break
            u = previous[u]
        if leader[v] == v:
            previous[v] = newest[key]
            newest[key] = v
    return leader, field, num_fields


@njit(cache=True)
def write_nodes(leader, absorber, num_fields, field, start, terms, ptr, refs, value_base):  # type: ignore[no-untyped-def]
    """Nodes that remain, their CSR operands (still as old values), and the new node and output of every old value.

    `kept` lists the old nodes in order; a merged sum's operands come item by item, within an item field by field.
    Values of absorbed sums, which nobody reads, have node -1.
    """
    n = len(leader)
    kept = np.empty(n, np.int64)
    position = np.full(n, -1, np.int64)
    count = 0
    total = 0
    for v in range(n):
        if absorber[v] >= 0 or (leader[v] >= 0 and leader[v] != v):
            continue
        kept[count] = v
        position[v] = count
        count += 1
        if leader[v] == v:
            total += (start[v + 1] - start[v]) * num_fields[v]
        else:
            total += ptr[v + 1] - ptr[v]
    new_ptr = np.zeros(count + 1, np.int64)
    new_refs = np.empty(total, np.int64)
    for i in range(count):
        v = kept[i]
        at = new_ptr[i]
        if leader[v] == v:
            new_ptr[i + 1] = at + (start[v + 1] - start[v]) * num_fields[v]
        else:
            for j in range(ptr[v], ptr[v + 1]):
                new_refs[at] = refs[j]
                at += 1
            new_ptr[i + 1] = at
    new_node = np.empty(value_base[n], np.int64)
    new_output = np.empty(value_base[n], np.int64)
    for v in range(n):
        first = value_base[v]
        if leader[v] < 0 or absorber[v] >= 0:
            for value in range(first, value_base[v + 1]):
                new_node[value] = position[v]
                new_output[value] = value - first
            continue
        i = position[leader[v]]
        for k in range(start[v + 1] - start[v]):
            new_refs[new_ptr[i] + k * num_fields[leader[v]] + field[v]] = terms[start[v] + k]
        new_node[first] = i
        new_output[first] = field[v]
    return kept[:count], new_ptr, new_refs, new_node, new_output


@njit(cache=True)
def fuse_sums(is_sum, ptr, refs, result_refs, value_base, value_node, value_output):  # type: ignore[no-untyped-def]
    """All of the above: which node every sum joins, its field there, and the graph that remains; the very arrays that
    are given where no sum joins another."""
    uses = np.zeros(len(value_node), np.int64)
    for read in (refs, result_refs):
        for ref in read:
            if ref >= 0:
                uses[ref] += 1
    absorber = absorbed_sums(is_sum, ptr, refs, value_node, uses)
    start, terms = chain_terms(is_sum, absorber, ptr, refs, value_node)
    leader, field, num_fields = merge_sums(start, terms, value_node)
    all_stay, numbers = True, np.arange(len(is_sum))
    for v in numbers:
        all_stay &= absorber[v] < 0 and (leader[v] < 0 or leader[v] == v)
    if all_stay:
        return leader, field, num_fields, (numbers, ptr, refs, value_node, value_output)
    remaining = write_nodes(leader, absorber, num_fields, field, start, terms, ptr, refs, value_base)
    return leader, field, num_fields, remaining


@njit(cache=True)
def kinds_of_sums(kept, leader, field, num_fields, output_class):  # type: ignore[no-untyped-def]
    """The combinations of classes that sums of several fields have, and which of them every node that remains has (-1
    for none); classes are given for every old node. O(nodes * combinations)."""
    classes = np.full((len(leader), MAX_FIELDS), -1, np.int64)
    for v in range(len(leader)):
        if leader[v] >= 0:
            classes[leader[v], field[v]] = output_class[v]
    kind_of = np.full(len(kept), -1, np.int64)
    example = np.empty(len(kept), np.int64)
    count = 0
    for i in range(len(kept)):
        v = kept[i]
        if num_fields[v] < 2:
            continue
        for kind in range(count):
            same = True
            for j in range(MAX_FIELDS):
                same = same and classes[example[kind], j] == classes[v, j]
            if same:
                kind_of[i] = kind
                break
        if kind_of[i] < 0:
            example[count] = v
            kind_of[i] = count
            count += 1
    return classes[example[:count]], kind_of
